"""The Spec of YOCO: a module made from a configuration, with weights copied in by name."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from ... import reference
from ...models.yoco import YocoConfig
from ..compare import Problem, unchanged
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants
from .weights import by_name, number_of

STATEMENT = """YOCO: the lower half of the layers has gated retention, or causal attention with a window, and what comes
out of it is normalized and made into one set of keys and values, which every upper layer attends to.
A module class(config), config being a YocoConfig, or a function of ids, weights in one row, and config;
forward takes ids (B, L) -> logits (B, L, V). Padding, config.pad_id, may stand anywhere; its logits may be anything.
Every layer adds its attention or retention, then its SwiGLU, each of the RMSNorm of its input. Weights have the
names and shapes of Yoco(config).named_parameters(). Other values than the default occur for every size, for
window, temperature, norm_eps, chunk_size and pad_id."""
SMALL = {
    "vocab_size": 11, "d_model": 6, "num_heads": 2, "num_kv_heads": 1, "d_head": 4, "num_layers": 4,
    "d_ff": 5, "dropout": 0.0, "temperature": 2.0, "chunk_size": 3, "pad_id": None,
}  # fmt: skip


@lru_cache(maxsize=16)
def _made(candidate: type, config: YocoConfig, dtype: torch.dtype) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        return candidate(config).to(dtype).eval()


def build(candidate: Any, arguments: dict[str, Any]) -> Any:
    """A function of ids, weights and configuration."""
    if not isinstance(candidate, type):
        return candidate

    def call(ids: Tensor, weights: Tensor, config: YocoConfig) -> Tensor:
        module = _made(candidate, config, weights.dtype)
        given = by_name(weights, config)
        if module.output is not None:
            given["output.weight"] = given["embedding.table.weight"]
        return functional_call(module, given, (ids,), tie_weights=False)

    return call


def read(answer: Tensor | None, arguments: dict[str, Any]) -> Tensor | None:
    """The logits of real tokens; 0 for padding."""
    pad_id = arguments["config"].pad_id
    if answer is None or pad_id is None:
        return answer
    return answer * (arguments["ids"] != pad_id)[..., None]


def _truth(ids: np.ndarray, weights: np.ndarray, config: YocoConfig) -> np.ndarray:
    """The reference's logits, 0 for padding."""
    logits = reference.yoco(ids, by_name(weights, config), config)
    return logits if config.pad_id is None else logits * (ids != config.pad_id)[..., None]


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, batch, length, dtype=torch.float64, **changes) -> Case:
        config = YocoConfig(**SMALL | changes)
        ids = rng.integers(1, config.vocab_size, (batch, length))
        if config.pad_id is not None:
            ids[0, :2] = config.pad_id
        weights = 0.7 * rng.normal(size=number_of(config))
        return Case(label, {"ids": ids, "weights": weights, "config": config}, dtype)

    return [
        case("two layers, one token", 1, 1, num_layers=2),
        case("two layers, three tokens", 1, 3, num_layers=2),
        case("retention in the lower half", 2, 5),
        case("a window of two, a token more than it reaches", 1, 4, window=2),
        case("a window of two in a longer text", 1, 7, window=2),
        case("a window of three", 2, 6, window=3, num_heads=3, num_kv_heads=3),
        case("padding, with retention", 2, 5, pad_id=0),
        case("padding, with a window", 2, 5, pad_id=0, window=2),
        case("another eps and temperature", 1, 4, norm_eps=0.1, temperature=5.0),
        case("float32", 2, 5, dtype=torch.float32),
    ]


def _future(run: Run, case: Case) -> Problem | None:
    ids = case.arguments["ids"].copy()
    ids[:, -1] = ids[:, -1] % (case.arguments["config"].vocab_size - 1) + 1
    before, after = run.value(case)[:, :-1], run.value(case, ids=ids)[:, :-1]
    slack = run.expected(case)[1] + run.expected(case, ids=ids)[1]
    return unchanged(before, after, slack, "the last token changes", "an earlier token's logits")


def _first_token(run: Run, case: Case, **changes: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """The last token's logits before and after the first token changes, and what rounding may do."""
    ids = case.arguments["ids"].copy()
    ids[:, 0] = ids[:, 0] % (case.arguments["config"].vocab_size - 1) + 1
    before, after = (
        run.value(case, ids=each, **changes)[:, -1] for each in (case.arguments["ids"], ids)
    )
    slack = run.expected(case, **changes)[1] + run.expected(case, ids=ids, **changes)[1]
    return before, after, slack


def _reach(case: Case) -> int:
    """How far back the lower half sees."""
    config = case.arguments["config"]
    return config.num_lower * (config.window - 1)


def _window_ends(run: Run, case: Case) -> Problem | None:
    """Without the upper half's attention a token sees no farther than the windows reach."""
    config, weights = case.arguments["config"], case.arguments["weights"].copy()
    for number in range(config.num_lower, config.num_layers):
        by_name(weights, config)[f"layers.{number}.attention.output.weight"][:] = 0
    when = f"a token {case.arguments['ids'].shape[1] - 1} back changes, and windows reach {_reach(case)} back,"
    return unchanged(
        *_first_token(run, case, weights=weights), f"{when} without the upper half's attention",
        "the last token's logits",
    )  # fmt: skip


def _whole_text(run: Run, case: Case) -> Problem | None:
    before, after, slack = _first_token(run, case)
    if np.abs(before - after).max() > slack:
        return None
    return Problem("other logits of the last token when the first one changes", "the same logits")


def _is_beyond(case: Case, more: int = 0) -> bool:
    """Whether the first token is farther from the last than the windows reach, and `more` tokens."""
    config, length = case.arguments["config"], case.arguments["ids"].shape[1]
    if config.window is None or config.pad_id is not None:
        return False
    return length - 1 > _reach(case) + more


YOCO = Spec(
    name="yoco",
    statement=STATEMENT,
    required=("ids", "weights", "config"),
    reference=_truth,
    baseline=mutants.YocoFormula(),
    cases=_cases,
    build=build,
    read=read,
    checks=(
        Check(
            "no token depends on later ones",
            "Cross-attention attends to the text itself here, so it is causal.",
            _future,
            when=lambda case: case.arguments["ids"].shape[1] > 1,
        ),
        Check(
            "the window ends where it should",
            "In a window of w a token attends to itself and w - 1 tokens before it.",
            _window_ends,
            when=_is_beyond,
        ),
        Check(
            "the upper half reads the whole text",
            "Windows and decays are the lower half's; the shared keys are those of all tokens.",
            _whole_text,
            when=lambda case: _is_beyond(case, more=case.arguments["config"].window or 0),
        ),
    ),
    mutants=mistakes_in(mutants),
    chapter=16,
)
