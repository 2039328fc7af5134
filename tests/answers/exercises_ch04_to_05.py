"""The answers to exercises of chapters 4 and 5 that stand with no family."""

import torch

from . import right, wrong

# --- A test for leaks -----------------------------------------------------------------------------


@wrong("ch04.is_causal", "only the last token is changed")
def last_only(candidate):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    changed = x.clone()
    changed[-1] += 1
    before, after = candidate(x, x, x), candidate(changed, changed, changed)
    return torch.allclose(before[:-1], after[:-1], atol=1e-9)


# --- The heads' contributions ---------------------------------------------------------------------


@right("ch05.contributions")
def by_einsum(heads, w_output):
    matrices = w_output.reshape(heads.shape[1], heads.shape[3], -1)
    return torch.einsum("bhld,hdD->bhlD", heads, matrices)


@right("ch05.contributions")
def head_by_head(heads, w_output):
    pairs = zip(heads.unbind(1), w_output.chunk(heads.shape[1]), strict=True)
    return torch.stack([head @ matrix for head, matrix in pairs], 1)


@right("ch05.contributions")
def others_zeroed(heads, w_output):
    """The output with every other head set to zero."""
    parts = []
    for head in range(heads.shape[1]):
        alone = torch.zeros_like(heads)
        alone[:, head] = heads[:, head]
        parts.append(alone.transpose(1, 2).flatten(2) @ w_output)
    return torch.stack(parts, 1)


@wrong("ch05.contributions", "the matrix is detached")
def detached(heads, w_output):
    return by_einsum(heads, w_output.detach())


@wrong("ch05.contributions", "computed in float32")
def in_float32(heads, w_output):
    return by_einsum(heads.float(), w_output.float()).to(heads.dtype)


@wrong("ch05.contributions", "differences to the output without the head before")
def cumulative(heads, w_output):
    return by_einsum(heads, w_output).cumsum(1)
