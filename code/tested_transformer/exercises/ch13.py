"""Exercises of chapter 13: GPT-2 and its heirs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..specs.byte_bpe.spec import TEXT_SPEC, TOKENS_SPEC
from ..specs.compare import Problem, compare
from ..specs.mistakes import mistake, mistakes
from ..specs.next_token.spec import NEXT_TOKEN_LOSS
from ..specs.qk_norm.spec import QK_NORM_SCORES
from ..specs.rotary.spec import ROTARY
from ..specs.spec import Case, Check, Run, Spec

# --- How many parameters --------------------------------------------------------------------------


def _count_reference(vocab: int, max_length: int, d_model: int, num_layers: int) -> np.ndarray:
    """Matrix by matrix and vector by vector, as the file has them."""
    embeddings = vocab * d_model + max_length * d_model
    layer = 0
    for d_in, d_out in ((1, 3), (1, 1), (1, 4), (4, 1)):  # times d_model
        layer += d_in * d_model * d_out * d_model + d_out * d_model
    layer += 2 * 2 * d_model  # two norms, scale and shift
    return np.asarray(embeddings + num_layers * layer + 2 * d_model)


def _count(vocab: int, max_length: int, d_model: int, num_layers: int) -> int:
    return int(_count_reference(vocab, max_length, d_model, num_layers))


@mistake(
    "the output layer counted again",
    rejected_by="a token of the vocabulary costs d_model",
    cause="GPT-2's output layer is its embedding matrix: tied weights are stored once.",
)
def count_untied(vocab, max_length, d_model, num_layers):
    """The embedding matrix twice."""
    return _count(vocab, max_length, d_model, num_layers) + vocab * d_model


@mistake(
    "matrices alone counted",
    rejected_by="a layer costs 12 d^2 + 13 d",
    cause="Every linear layer has a bias, and every norm a scale and a shift: 13 d in a layer.",
)
def count_matrices(vocab, max_length, d_model, num_layers):
    """No biases, no norms."""
    return (vocab + max_length) * d_model + num_layers * 12 * d_model**2


@mistake(
    "the final norm forgotten",
    rejected_by="without layers: embeddings and the last norm",
    cause="A pre-norm model normalizes once more after its last layer: 2 d parameters.",
)
def count_without_final_norm(vocab, max_length, d_model, num_layers):
    """A norm less."""
    return _count(vocab, max_length, d_model, num_layers) - 2 * d_model


@mistake(
    "positions not counted",
    rejected_by="a position costs d_model",
    cause="Learned positions are an embedding matrix of max_length rows.",
)
def count_without_positions(vocab, max_length, d_model, num_layers):
    """As if the positions were sinusoids."""
    return _count(vocab, 0, d_model, num_layers)


def _count_cases(rng: np.random.Generator) -> list[Case]:
    names = ("vocab", "max_length", "d_model", "num_layers")
    sizes = [(11, 8, 4, 2), (5, 7, 2, 0), (50257, 1024, 768, 12), (50257, 1024, 1600, 48)]
    sizes += [(40478, 512, 768, 12)]
    sizes += [tuple(int(n) for n in rng.integers(2, 40, size=4)) for _ in range(3)]
    return [Case(f"{row}", dict(zip(names, row, strict=True))) for row in sizes]


def _one_more(name: str, cost: Any):
    """The check that one more of something costs what it should."""

    def test(run: Run, case: Case) -> Problem | None:
        given = case.arguments
        more = int(run.value(case, **{name: given[name] + 1})) - int(run.value(case))
        return compare(
            np.asarray(cost(given["d_model"])), np.asarray(more), 0.0, f"one more {name}"
        )

    return test


def _no_layers(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    wanted = (a["vocab"] + a["max_length"] + 2) * a["d_model"]
    return compare(np.asarray(wanted), run.value(case, num_layers=0), 0.0, "without layers")


COUNT_PARAMETERS = Spec(
    name="ch13.count_parameters",
    statement="count_parameters(vocab, max_length, d_model, num_layers): the number of parameters of a GPT-2 "
    "of these sizes, with d_ff = 4 d_model, biases everywhere, learned positions and a tied output layer",
    required=("vocab", "max_length", "d_model", "num_layers"),
    reference=_count_reference,
    differentiable=False,
    cases=_count_cases,
    checks=(
        Check(
            "a token of the vocabulary costs d_model",
            "Each token has one row, in the embedding matrix, which is the output layer too.",
            _one_more("vocab", lambda d: d),
        ),
        Check(
            "a position costs d_model",
            "Each position has one row of learned features.",
            _one_more("max_length", lambda d: d),
        ),
        Check(
            "a layer costs 12 d^2 + 13 d",
            "Attention has 4 d^2 + 4 d parameters, the feed-forward network 8 d^2 + 5 d, two norms 4 d.",
            _one_more("num_layers", lambda d: 12 * d * d + 13 * d),
        ),
        Check(
            "without layers: embeddings and the last norm",
            "What is left without layers are two embedding matrices and one norm.",
            _no_layers,
        ),
    ),
    mutants=mistakes(
        count_untied, count_matrices, count_without_final_norm, count_without_positions
    ),
    chapter=13,
    points=1,
)

# --- The loss, and the rotation -------------------------------------------------------------------

NEXT_TOKEN = NEXT_TOKEN_LOSS.narrowed(
    lambda case: "ignore" not in case.arguments and case.arguments["labels"].min() >= 0
    and case.arguments["labels"].shape[1] > 1,
    name="ch13.next_token_loss",
    statement="next_token_loss(logits, ids): the mean negative log-likelihood of each sequence's next "
    "tokens. logits (B, L, V); ids (B, L), the tokens that were read",
    required=("logits", "labels"),
    mutants=[
        mutant for mutant in NEXT_TOKEN_LOSS.mutants
        if mutant.name.startswith(("labels shifted", "labels not", "the last target"))
    ],
    points=2,
)  # fmt: skip

ROTATE = ROTARY.narrowed(
    lambda case: not case.arguments.keys() & {"base", "layout", "rotary_dim"}
    and case.arguments["position_ids"].ndim == 1,
    name="ch13.rotate",
    chapter=13,
    statement="rotate(x, position_ids): rotary positions with base 10,000. Pair i = 0 ... d/2 - 1, the "
    "features 2i and 2i + 1 of each token, (a, b), becomes (a cos t - b sin t, a sin t + b cos t) with "
    "t = position / 10000^(2i/d). x (B, H, L, d), position_ids (L)",
    mutants=[
        mutant for mutant in ROTARY.mutants
        if mutant.name in {
            "rotated backwards", "a rotation without its minus", "the other pairing of features",
            "rotated features not interleaved again", "rotary positions counted from 1",
            "rotary exponent i in place of 2i", "rotary position IDs ignored",
        }
    ],
    points=2,
)  # fmt: skip

# --- On the deeper pages --------------------------------------------------------------------------

BPE_TOKENS = replace(TOKENS_SPEC, name="ch13.bpe_tokens", points=2)
BPE_TEXT = replace(TEXT_SPEC, name="ch13.bpe_text", points=1)
QK_NORM = replace(QK_NORM_SCORES, name="ch13.qk_norm_scores", points=2)

EXERCISES = (COUNT_PARAMETERS, NEXT_TOKEN, ROTATE, BPE_TOKENS, BPE_TEXT, QK_NORM)
