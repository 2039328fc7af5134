"""What a call may change besides its answer: torch's settings and the random numbers of its caller."""

from __future__ import annotations

import ctypes
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

SEED = 20170612  # that of every call; a function that sets a seed will hardly take this one


class Setting(NamedTuple):
    """Something global, in words, and how it is read and set."""

    words: str
    read: Callable[[], Any]
    restore: Callable[[Any], Any]


SETTINGS = (
    Setting("torch's grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    Setting("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    Setting("torch's default device", torch.get_default_device, torch.set_default_device),
    Setting("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
    Setting(
        "torch's deterministic algorithms",
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    Setting(
        "autocast for the CPU",
        lambda: torch.is_autocast_enabled("cpu"),
        lambda enabled: torch.set_autocast_enabled("cpu", enabled),
    ),
    Setting(
        "the precision of float32 matmuls",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    Setting("anomaly detection", torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    Setting(
        "flushing of denormal numbers",
        lambda: sys.float_info.min / 2 == 0.0,
        torch.set_flush_denormal,
    ),
    Setting("NumPy's handling of errors", np.geterr, lambda modes: np.seterr(**modes)),
    Setting("torch's random seed", torch.initial_seed, lambda seed: None),  # fork_rng restores it
    Setting("Python's recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
)


_OPEN: list[list[str]] = []  # what the calls under way have changed


def note(words: str) -> None:
    """Say that the call under way changed a setting of another process: a student's, in a jail."""
    if _OPEN:
        _OPEN[-1].append(words)


WORDS = 624  # of the state of a Mersenne Twister, which Python and NumPy use
ENOUGH = 100  # times as many numbers: a function that draws more will not be told from one that sets a seed


def is_reseeded(before: Any, after: Any) -> bool:
    """Whether a generator's words are neither those from before nor what drawing makes of them."""
    if np.array_equal(before, after):
        return False
    generator = np.random.RandomState()
    generator.set_state(("MT19937", np.asarray(before, dtype=np.uint32), WORDS))
    for _ in range(ENOUGH):
        generator.bytes(4 * WORDS)
        if np.array_equal(generator.get_state()[1], after):
            return False
    return True


def _numpy_words(generator: Any) -> bytes:
    """NumPy's words, and its place in them, as they lie in memory: np.random.get_state copies each by itself."""
    return ctypes.string_at(generator.ctypes.state_address, 4 * (WORDS + 1))


@lru_cache(maxsize=4)
def _numpy_state(words: bytes) -> tuple:
    """The whole state of NumPy's generator, which has these words now."""
    return np.random.get_state()  # noqa: NPY002


def _numpy_restored() -> Callable[[], list[str]]:
    """What puts NumPy's random numbers back as they are now, and says what had changed."""
    generator = np.random.get_bit_generator()
    twister = isinstance(generator, np.random.MT19937)  # NumPy's own, unless somebody set another
    words = _numpy_words(generator) if twister else b""
    state = _numpy_state(words) if twister else generator.state
    if twister and state[3]:  # a normal number drawn ahead: to take it changes no word
        state = np.random.get_state()  # noqa: NPY002

    def restore() -> list[str]:
        found = []
        if swapped := np.random.get_bit_generator() is not generator:
            np.random.set_bit_generator(generator)
            found.append("NumPy's random generator")
        if not twister:  # whether it drew or set a seed cannot be told
            generator.state = state
            return found
        now = _numpy_words(generator)
        if swapped or now != words or state[3]:
            np.random.set_state(state)  # noqa: NPY002
            if is_reseeded(state[1], np.frombuffer(now, dtype=np.uint32, count=WORDS)):
                found.append("NumPy's random seed")
        return found

    return restore


def reseed(seed: int = SEED) -> None:
    """Let torch's random numbers on the CPU begin anew."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed asks every kind of device


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run something with torch's random numbers on the CPU from a seed; those of the caller go on afterwards."""
    with torch.random.fork_rng(devices=[]):
        reseed(seed)
        yield


@contextmanager
def kept() -> Iterator[list[str]]:
    """Run something with a fixed random seed, without warnings, and put all settings back afterwards.

    The list names what had changed, once the block has ended. Drawing random numbers is no change,
    setting a seed is one.
    """
    changed: list[str] = []
    python, restore_numpy = random.getstate(), _numpy_restored()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning from a wrong function belongs on no page
        reseed()
        before = [setting.read() for setting in SETTINGS]
        _OPEN.append(changed)
        try:
            yield changed
        finally:
            _OPEN.pop()
            for setting, value in zip(SETTINGS, before, strict=True):
                if setting.read() != value:
                    changed.append(setting.words)
                    setting.restore(value)
            if (now := random.getstate()) != python:
                random.setstate(python)
                if is_reseeded(python[1][:WORDS], now[1][:WORDS]):
                    changed.append("Python's random seed")
            changed += restore_numpy()
