"""What True means, and all else on which attention libraries differ, found out by trying."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ..functional.attention import attention

__all__ = ["compare_libraries"]

BIAS = 0.5  # the output bias of nn.MultiheadAttention here, so that it can be recognized


def plain_formula(query: Tensor, key: Tensor, value: Tensor, mask=None, causal=None) -> Tensor:
    """Softmax and one masked_fill, as many pages print it: the mask says what to fill."""
    if causal is not None:
        raise NotImplementedError("the formula has no such flag")
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(mask, -math.inf)
    return scores.softmax(-1) @ value


def sdpa(query: Tensor, key: Tensor, value: Tensor, mask=None, causal=None) -> Tensor:
    """PyTorch's fused kernel."""
    return scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal is not None
    )


def multihead(
    query: Tensor, key: Tensor, value: Tensor, mask=None, causal=None, *, need_weights: bool
) -> Tensor:
    """nn.MultiheadAttention whose projections change nothing: the formula, plus an output bias.

    Shapes: (B, H, L, d) as elsewhere; the module itself takes (B, L, H d).
    """
    (batch, heads, length, width), model = query.shape, query.shape[1] * query.shape[3]
    module = nn.MultiheadAttention(model, heads, batch_first=True, dtype=query.dtype)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(model).repeat(3, 1))
        module.out_proj.weight.copy_(torch.eye(model))
        module.out_proj.bias.fill_(BIAS)
    joined = (t.transpose(1, 2).flatten(2) for t in (query, key, value))
    if causal == "with a right mask":
        keys = key.shape[2]
        mask = torch.arange(keys) > torch.arange(length)[:, None] + keys - length
    output, _ = module(
        *joined, attn_mask=mask, is_causal=causal is not None, need_weights=need_weights
    )
    return output.view(batch, length, heads, width).transpose(1, 2)


def package(query: Tensor, key: Tensor, value: Tensor, mask=None, causal=None) -> Tensor:
    """This package."""
    return attention(query, key, value, mask=mask, causal=causal is not None)


Attend = Callable[..., Tensor]
LIBRARIES: dict[str, Attend] = {
    "plain formula": plain_formula,
    "SDPA": sdpa,
    "MHA, weights": partial(multihead, need_weights=True),
    "MHA, no weights": partial(multihead, need_weights=False),
    "this package": package,
}


def weights_by(attend: Attend, keys: int, **options) -> Tensor:
    """The weights of one query over some keys of equal score: values from an identity matrix."""
    query, key = torch.zeros(1, 1, 1, keys), torch.zeros(1, 1, keys, keys)
    bias = BIAS if isinstance(attend, partial) else 0.0
    return attend(query, key, torch.eye(keys)[None, None], **options)[0, 0, 0] - bias


def meaning_of_true(attend: Attend) -> str:
    """Of two keys the first is marked True: is it the one that gets the weight?"""
    weights = weights_by(attend, 2, mask=torch.tensor([[True, False]]))
    return "may attend" if weights[0] > weights[1] else "masked"


def causal_alignment(attend: Attend) -> str:
    """One new query, four keys, causal=True: how many keys may it attend to?"""
    try:
        seen = int((weights_by(attend, 4, causal="flag") > 0).sum())
    except NotImplementedError:
        return "no such flag"
    except RuntimeError:
        alone = "alone refused; beside a right mask "
        seen = int((weights_by(attend, 4, causal="with a right mask") > 0).sum())
    else:
        alone = ""
    corner = {1: "top-left", 4: "bottom-right"}[seen]
    return f"{alone}{corner} ({seen} of 4 keys)"


def accepts(dtype: torch.dtype, attend: Attend) -> str:
    """Does it take a mask of this dtype, and what does it do with it?"""
    mask = torch.zeros(1, 2, dtype=dtype)
    if dtype.is_floating_point:
        mask[0, 1] = math.log(3)
    try:
        weights = weights_by(attend, 2, mask=mask)
    except (RuntimeError, TypeError, AssertionError):
        return "refused"
    if torch.allclose(weights, torch.tensor([0.25, 0.75])):
        return "added to the scores"
    return "taken"


def _with_fully_masked_row(attend: Attend) -> tuple[Tensor, dict[str, Tensor]]:
    """The output of a fully masked row above a full one, and the gradients by name."""
    generator = torch.Generator().manual_seed(0)
    names = ("query", "key", "value")
    given = {n: torch.randn(1, 1, 2, 4, generator=generator).requires_grad_() for n in names}
    mask = torch.tensor([[False, False], [True, True]])
    mask = mask if meaning_of_true(attend) == "may attend" else ~mask
    output = attend(*given.values(), mask=mask)
    output.sum().backward()
    return output[0, 0, 0].detach(), {name: tensor.grad for name, tensor in given.items()}


def empty_row(attend: Attend) -> str:
    """The output of a query that may attend to nothing."""
    output, _ = _with_fully_masked_row(attend)
    if output.isnan().all():
        return "NaN"
    constant = {0.0: "zeros", BIAS: "its output bias"}
    return constant.get(float(output[0]), "a mean") if output.std() == 0 else "a mean"


def empty_gradients(attend: Attend) -> str:
    """Which gradients a fully masked row spoils; if none, what its query gets."""
    _, gradients = _with_fully_masked_row(attend)
    spoiled = [name for name, gradient in gradients.items() if gradient.isnan().any()]
    if spoiled:
        return "NaN: " + ", ".join(spoiled)
    return "finite, zero for its query" if not gradients["query"][0, 0, 0].any() else "finite"


SHAPES = {
    "S": (5,), "L S": (4, 5), "B S": (2, 5), "B L S": (2, 4, 5), "B 1 1 S": (2, 1, 1, 5),
    "B 1 L S": (2, 1, 4, 5), "B H L S": (2, 3, 4, 5), "(B H) L S": (6, 4, 5),
}  # fmt: skip


def shapes_taken(attend: Attend) -> str:
    """Which shapes of a mask are taken for B = 2, H = 3, L = 4, S = 5."""
    taken = []
    for name, shape in SHAPES.items():
        query, key = torch.zeros(2, 3, 4, 6), torch.zeros(2, 3, 5, 6)
        mask = torch.ones(shape, dtype=torch.bool)
        mask = mask if meaning_of_true(attend) == "may attend" else ~mask
        try:
            attend(query, key, key, mask=mask)
        except (RuntimeError, ValueError, IndexError, AssertionError):
            continue
        taken.append(name.replace(" ", "\N{NO-BREAK SPACE}"))  # a shape stays on one line
    return "; ".join(taken)


QUESTIONS: dict[str, Callable[[Attend], str]] = {
    "True means": meaning_of_true,
    "causal flag, 1 query and 4 keys": causal_alignment,
    "boolean mask": partial(accepts, torch.bool),
    "float mask": partial(accepts, torch.float32),
    "uint8 mask": partial(accepts, torch.uint8),
    "output of a fully masked row": empty_row,
    "gradients with a fully masked row": empty_gradients,
    "mask shapes taken": shapes_taken,
}


@dataclass(frozen=True)
class Table:
    """The answers, by question and library; a notebook shows it as a table."""

    answers: dict[str, dict[str, str]]

    @property
    def markdown(self) -> str:
        """The table in Markdown: a row for each question, a column for each library."""
        lines = ["| | " + " | ".join(LIBRARIES) + " |", "|---" * (len(LIBRARIES) + 1) + "|"]
        for question, row in self.answers.items():
            lines.append(f"| **{question}** | " + " | ".join(row.values()) + " |")
        return "\n".join(lines)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/markdown": self.markdown, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"Table({len(self.answers)} questions, {len(LIBRARIES)} libraries)"


def compare_libraries() -> Table:
    """Ask every library every question, by calling it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Table({
            question: {name: ask(attend) for name, attend in LIBRARIES.items()}
            for question, ask in QUESTIONS.items()
        })  # fmt: skip
