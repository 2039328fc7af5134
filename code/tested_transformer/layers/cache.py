"""The key/value cache: keys and values of tokens already seen are kept, never computed twice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..bounds import AtLeast, AtMost, Below, NonNegativeInt, PositiveInt
from ..errors import argument_error
from ..shapes import checked

__all__ = ["AttentionCache", "DecoderCache", "KeyValueCache", "LayerState", "WindowCache"]


@runtime_checkable
class LayerState(Protocol):
    """What a decoder's cache needs of each layer's: keys and values, or a state of fixed size.

    length: all tokens seen, dropped ones too.

    Source: chapter 16.
    """

    length: int

    @property
    def nbytes(self) -> int:
        """Bytes set aside."""

    def reorder(self, rows: Int[Tensor, " N"]) -> None:
        """Keep these sequences of the batch, in this order."""

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` tokens."""


@runtime_checkable
class AttentionCache(Protocol):
    """What an attention layer needs of a cache, whatever it keeps: all keys, the last ones, a latent.

    The chunk just appended always comes last in what `append` returns, so that causal masks, windows
    and ALiBi, which are aligned with the last key, are right without knowing what was dropped.

    length: all tokens seen, dropped ones too. fixed: nothing is appended after the first call; what is
    there is read as `keys` and `values`.

    Source: chapter 5.
    """

    fixed: bool
    length: int

    @property
    def nbytes(self) -> int:
        """Bytes set aside."""

    def append(
        self, key: Float[Tensor, "B G L d"], value: Float[Tensor, "B G L dv"]
    ) -> tuple[Float[Tensor, "B G S d"], Float[Tensor, "B G S dv"]]:
        """Add a chunk of L tokens; return all that its queries attend to."""

    def num_keys(self, new: int) -> int:
        """How many keys `append` will return for a chunk of `new` tokens."""

    def reorder(self, rows: Int[Tensor, " N"]) -> None:
        """Keep these sequences of the batch, in this order."""

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` tokens."""


STORED = {
    "B": "self._keys.shape.0",
    "G": "self._keys.shape.1",
    "d": "self._keys.shape.3",
    "dv": "self._values.shape.3",
}


class KeyValueCache:
    """Keys and values of one attention layer, in memory set aside in advance.

    Room for `capacity` tokens is taken at the first call and doubled whenever it is full, so that n
    tokens are copied fewer than 2n times, not n^2 / 2 times. A chunk may have any length.

    fixed=True is for cross-attention: the keys of the context are computed at the first call and only
    read afterwards.

    A cache is for generation, not for training: gradients do not flow through it.

    Shapes: keys (B, G, S, d) and values (B, G, S, dv), S tokens so far.
    Source: chapter 5; Shazeer 2019, section 2.4.
    """

    @checked
    def __init__(self, *, capacity: PositiveInt = 64, fixed: bool = False) -> None:
        self.capacity, self.fixed, self.length = capacity, fixed, 0
        self._keys: Tensor | None = None  # B G capacity d
        self._values: Tensor | None = None  # B G capacity dv

    @property
    def keys(self) -> Float[Tensor, "B G S d"]:
        """The keys so far, a view: it changes when the cache does."""
        return self._filled().narrow(2, 0, self.length)

    @property
    def values(self) -> Float[Tensor, "B G S dv"]:
        """The values so far, a view."""
        self._filled()
        return self._values.narrow(2, 0, self.length)

    @property
    def batch(self) -> int | None:
        """How many sequences there are; None before the first call."""
        return None if self._keys is None else self._keys.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes set aside, used or not."""
        return 0 if self._keys is None else self._keys.nbytes + self._values.nbytes

    @checked(like="self._keys", **STORED)
    def append(
        self, key: Float[Tensor, "B G L d"], value: Float[Tensor, "B G L dv"]
    ) -> tuple[Float[Tensor, "B G S d"], Float[Tensor, "B G S dv"]]:
        """Add a chunk of L tokens and give back everything so far, the chunk included.

        Raises: TypeError or ValueError if the chunk does not fit what is there; ValueError if the
            cache is fixed and full, or if a gradient would be lost.
        """
        self._check(key, value)
        if self._keys is None:
            self._allocate(key, value)
        needed = self.length + key.shape[2]
        if needed > self.capacity:
            self._grow(needed)
        self._keys.narrow(2, self.length, key.shape[2]).copy_(key)
        self._values.narrow(2, self.length, key.shape[2]).copy_(value)
        self.length = needed
        return self.keys, self.values

    @checked
    def num_keys(self, new: NonNegativeInt) -> int:
        """How many keys `append` will return for a chunk of `new` tokens."""
        return self.length + new

    @checked(like="self._keys")
    def reorder(self, rows: Annotated[Int[Tensor, " N"], AtLeast(0), Below("self.batch")]) -> None:
        """Keep these sequences of the batch, in this order; one may be named twice (beam search).

        Raises: TypeError or ValueError for rows that are no such numbers.
        """
        self._filled()
        self._keys, self._values = self._keys[rows], self._values[rows]

    @checked
    def truncate(self, length: Annotated[int, AtLeast(0), AtMost("self.length")]) -> None:
        """Forget everything after the first `length` tokens.

        Raises: TypeError or ValueError for a length that is not in 0 to the present one.
        """
        self.length = length

    def _filled(self) -> Tensor:
        if self._keys is None:
            raise RuntimeError("the cache is empty: append keys and values first")
        return self._keys

    def _allocate(self, key: Tensor, value: Tensor) -> None:
        self.capacity = max(self.capacity, key.shape[2])
        if self.fixed:  # nothing will follow
            self.capacity = key.shape[2]
        self._keys = key.new_empty(*key.shape[:2], self.capacity, key.shape[3])
        self._values = value.new_empty(*value.shape[:2], self.capacity, value.shape[3])

    def _grow(self, needed: int) -> None:
        self.capacity = max(needed, 2 * self.capacity)
        for name in ("_keys", "_values"):
            old = getattr(self, name)
            new = old.new_empty(*old.shape[:2], self.capacity, old.shape[3])
            new[:, :, : self.length] = old[:, :, : self.length]
            setattr(self, name, new)

    def _check(self, key: Tensor, value: Tensor) -> None:
        """Raise if the cache is fixed and full, or a gradient would be lost."""
        if self.fixed and self.length:
            wanted = "none: the cache is fixed"
            raise argument_error(ValueError, "key", f"{key.shape[2]} more", wanted)
        check_no_gradient(key=key, value=value)


class WindowCache(KeyValueCache):
    """The keys and values of the last `window` tokens: for causal attention with a window.

    Its memory does not grow with the text. `truncate` can only take back what leaves the window full.

    Shapes: keys (B, G, S, d) and values (B, G, S, dv), S = min(length, window).
    Raises: TypeError or ValueError that name the argument.
    Source: Beltagy et al. 2020, section 3.1; Jiang et al. 2023 (Mistral 7B), section 2.
    """

    @checked
    def __init__(self, window: PositiveInt) -> None:
        super().__init__(capacity=window)
        self.window = window

    @property
    def keys(self) -> Float[Tensor, "B G S d"]:
        """The keys of the last tokens."""
        return self._filled()

    @property
    def values(self) -> Float[Tensor, "B G S dv"]:
        """The values of the last tokens."""
        self._filled()
        return self._values

    @checked(like="self._keys", **STORED)
    def append(
        self, key: Float[Tensor, "B G L d"], value: Float[Tensor, "B G L dv"]
    ) -> tuple[Float[Tensor, "B G S d"], Float[Tensor, "B G S dv"]]:
        """Add a chunk; return it with the `window` tokens before it, then keep the last `window`.

        Raises: as KeyValueCache.append.
        """
        self._check(key, value)
        self.length += key.shape[2]
        if self._keys is not None:
            key = torch.cat([self._keys, key], dim=2)
            value = torch.cat([self._values, value], dim=2)
        self._keys = key[:, :, -self.window :].clone()  # so that the rest can be freed
        self._values = value[:, :, -self.window :].clone()
        return key, value

    @checked
    def num_keys(self, new: NonNegativeInt) -> int:
        """How many keys `append` will return for a chunk of `new` tokens."""
        return new if self._keys is None else self._keys.shape[2] + new

    @checked
    def truncate(self, length: NonNegativeInt) -> None:
        """Forget everything after the first `length` tokens.

        Raises: TypeError or ValueError for a length that is not in 0 to the present one; ValueError if
            the next token's window would reach back to keys that are gone.
        """
        left = self.num_keys(0) - (self.length - length)
        if length > self.length or left < min(length, self.window - 1):
            least = self.length - self.num_keys(0) + self.window - 1
            wanted = f"{min(least, self.length)} to {self.length}: older keys are gone"
            raise argument_error(ValueError, "length", length, wanted)
        if self._keys is not None:
            self._keys, self._values = self._keys[:, :, :left], self._values[:, :, :left]
        self.length = length


def check_no_gradient(**tensors: Tensor) -> None:
    """Raise ValueError, with the name of the argument, if a gradient would be lost in a cache."""
    for name, tensor in tensors.items():
        if torch.is_grad_enabled() and tensor.requires_grad:
            wanted = "no gradient: call under torch.no_grad(), a cache is for generating"
            raise argument_error(ValueError, name, "a tensor that requires one", wanted)


class LayerCache:
    """What one decoder layer keeps: its own keys and values, and those of the encoder's output."""

    def __init__(self, own: LayerState) -> None:
        self.own = own
        self.cross = KeyValueCache(fixed=True)  # stays empty in a model without an encoder

    @property
    def filled(self) -> list[LayerState]:
        """Those that hold something."""
        return [cache for cache in (self.own, self.cross) if cache.length]


class DecoderCache:
    """The caches of a whole decoder, and which of the tokens so far are real (not padding).

    Sequences of a batch may have different lengths: pad a chunk left or right; padding is masked for
    every later token, and a token's position counts the real tokens before it.

    own: makes the cache of one layer's self-attention; a KeyValueCache of that capacity if not given.

    padded: whether any token may be padding; a model without a padding token sets it.

    Shapes: real (B, S), True for a real token, S tokens so far; None before the first call.
    Source: chapter 5.
    """

    @checked
    def __init__(
        self,
        num_layers: PositiveInt,
        *,
        capacity: PositiveInt = 64,
        own: Callable[[], LayerState] | None = None,
    ) -> None:
        own = partial(KeyValueCache, capacity=capacity) if own is None else own
        self.layers = [LayerCache(own()) for _ in range(num_layers)]
        self.real: Bool[Tensor, "B S"] | None = None
        self.padded = False

    @property
    def length(self) -> int:
        """How many tokens have been seen, padding included."""
        return 0 if self.real is None else self.real.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes set aside in all layers."""
        return sum(cache.nbytes for layer in self.layers for cache in layer.filled)

    @property
    def batch(self) -> int | None:
        """How many sequences there are; None before the first call."""
        return None if self.real is None else self.real.shape[0]

    @checked(B="self.real.shape.0", like="self.real")
    def extend(self, real: Bool[Tensor, "B L"]) -> Bool[Tensor, "B S"]:
        """Remember which tokens of a new chunk are real; return those of all tokens so far."""
        self.real = real if self.real is None else torch.cat([self.real, real], dim=1)
        return self.real

    @checked(like="self.real")
    def reorder(self, rows: Annotated[Int[Tensor, " N"], AtLeast(0), Below("self.batch")]) -> None:
        """Keep these sequences of the batch, in this order, in every layer.

        Raises: TypeError or ValueError for rows that are no such numbers.
        """
        if self.real is None:
            raise RuntimeError("the cache is empty: decode something first")
        for layer in self.layers:
            for cache in layer.filled:
                cache.reorder(rows)
        self.real = self.real[rows]

    @checked
    def truncate(self, length: Annotated[int, AtLeast(0), AtMost("self.length")]) -> None:
        """Forget everything after the first `length` tokens, in every layer.

        Raises: TypeError or ValueError for a length that is not in 0 to the present one.
        """
        for layer in self.layers:
            layer.own.truncate(length)
        self.real = None if self.real is None else self.real[:, :length]
