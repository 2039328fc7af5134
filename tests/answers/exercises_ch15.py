"""The answers to the exercises of chapter 15."""

import math

import torch
from torch.nn import functional

from tested_transformer.functional import online_softmax as package

from . import right, wrong

# --- The running maximum and sum ------------------------------------------------------------------


@right("ch15.running_sum")
def by_logcumsumexp(scores):
    best = scores.cummax(0).values
    return torch.stack([best, (scores.logcumsumexp(0) - best).exp()], 1)


@right("ch15.running_sum")
def prefix_by_prefix(scores):
    rows = []
    for n in range(1, len(scores) + 1):
        best = scores[:n].max()
        rows.append(torch.stack([best, (scores[:n] - best).exp().sum()]))
    return torch.stack(rows)


@right("ch15.running_sum")
def by_a_triangle(scores):
    best = scores.cummax(0).values
    past = torch.ones(len(scores), len(scores), dtype=torch.bool).tril()
    each = (scores - best[:, None]).masked_fill(~past, -math.inf).exp()
    return torch.stack([best, each.sum(1)], 1)


@right("ch15.running_sum")
def one_branch(scores):
    """Rescaled only where the maximum rises."""
    best, total, rows = scores[0], torch.ones_like(scores[0]), []
    for n, score in enumerate(scores):
        if n and score > best:
            best, total = score, total * (best - score).exp() + 1
        elif n:
            total = total + (score - best).exp()
        rows.append(torch.stack([best, total]))
    return torch.stack(rows)


@wrong("ch15.running_sum", "the newest score counts twice")
def counted_twice(scores):
    answer = by_logcumsumexp(scores)
    return torch.stack([answer[:, 0], answer[:, 1] + (scores - answer[:, 0]).exp() / 1e6], 1)


@wrong("ch15.running_sum", "the first maximum is 0")
def starts_at_zero(scores):
    best = scores.cummax(0).values.clamp(min=0)
    return torch.stack([best, (scores.logcumsumexp(0) - best).exp()], 1)


@wrong("ch15.running_sum", "the sum is detached")
def sum_detached(scores):
    answer = by_logcumsumexp(scores)
    return torch.stack([answer[:, 0], answer[:, 1].detach()], 1)


@wrong("ch15.running_sum", "float32 throughout")
def sums_in_float32(scores):
    return by_logcumsumexp(scores.float()).to(scores.dtype)


# --- Two halves of a row --------------------------------------------------------------------------


@right("ch15.merge")
def by_softmax(output_a, lse_a, output_b, lse_b):
    logs = torch.stack([lse_a, lse_b])
    weights = logs.softmax(0).nan_to_num(0.0)
    outputs = torch.stack([output_a, output_b])
    return (weights[..., None] * outputs).sum(0), logs.logsumexp(0)


@right("ch15.merge")
def by_sigmoid(output_a, lse_a, output_b, lse_b):
    """The first half's weight is a sigmoid of the difference."""
    neither = (lse_a == -math.inf) & (lse_b == -math.inf)
    share = torch.sigmoid((lse_a - lse_b).masked_fill(neither, 0.0))[..., None]
    return share * output_a + (1 - share) * output_b, torch.logaddexp(lse_a, lse_b)


@right("ch15.merge")
def from_the_maximum(output_a, lse_a, output_b, lse_b):
    best = torch.maximum(lse_a, lse_b)
    best = torch.where(best == -math.inf, 0.0, best)
    a, b = (lse_a - best).exp(), (lse_b - best).exp()
    total = torch.where(a + b == 0, 1.0, a + b)
    output = (a[..., None] * output_a + b[..., None] * output_b) / total[..., None]
    return output, best + (a + b).log()


@wrong("ch15.merge", "NaN where only the second half is empty")
def b_empty(output_a, lse_a, output_b, lse_b):
    """The second half's weight from its own logarithm."""
    output, lse = from_the_maximum(output_a, lse_a, output_b, lse_b)
    alone = (lse_b == -math.inf) & (lse_a != -math.inf)
    return output, torch.where(alone, math.nan, lse)


@wrong("ch15.merge", "the second half wins wherever the first is smaller than e^-30 of it")
def cut_off(output_a, lse_a, output_b, lse_b):
    lse_a = lse_a.masked_fill(lse_a < lse_b - 30, -math.inf)
    output, lse = by_softmax(output_a, lse_a, output_b, lse_b)
    return output, lse.clamp(max=1000.0)


@wrong("ch15.merge", "the weights are detached")
def weights_detached(output_a, lse_a, output_b, lse_b):
    return by_softmax(output_a, lse_a.detach(), output_b, lse_b.detach())


@wrong("ch15.merge", "an empty half still weighs something")
def weighs_a_little(output_a, lse_a, output_b, lse_b):
    return by_softmax(output_a, lse_a.clamp(min=-20.0), output_b, lse_b.clamp(min=-20.0))


@wrong("ch15.merge", "the first row's weights for all rows")
def first_row(output_a, lse_a, output_b, lse_b):
    weights = torch.stack([lse_a, lse_b]).softmax(0).nan_to_num(0.0)[..., :1, None]
    return (weights * torch.stack([output_a, output_b])).sum(0), torch.logaddexp(lse_a, lse_b)


# --- The tiles of a window ------------------------------------------------------------------------


@right("ch15.window_tiles")
def from_the_mask(length, keys, tile, window):
    """The whole mask, padded to whole tiles with what its own tile says."""
    far = torch.arange(length)[:, None] + keys - length - torch.arange(keys)
    seen = (far >= 0) & (far < window)
    rows = [row.split(tile, 1) for row in seen.split(tile)]
    kinds = [[2 if part.all() else int(part.any()) for part in row] for row in rows]
    return torch.tensor(kinds)


@right("ch15.window_tiles")
def by_sums(length, keys, tile, window):
    seen = torch.ones(length, keys).tril(keys - length).triu(keys - length - window + 1)
    high, wide = -(-length // tile), -(-keys // tile)
    padded = functional.pad(seen, (0, wide * tile - keys, 0, high * tile - length))
    there = functional.pad(
        torch.ones(length, keys), (0, wide * tile - keys, 0, high * tile - length)
    )
    sums = [m.view(high, tile, wide, tile).sum((1, 3)) for m in (padded, there)]
    return (sums[0] > 0).long() + (sums[0] == sums[1]).long()


@wrong("ch15.window_tiles", "a short last tile is never full")
def never_full(length, keys, tile, window):
    kinds = from_the_mask(length, keys, tile, window)
    if keys % tile:
        kinds[:, -1] = kinds[:, -1].clamp(max=1)
    return kinds


@wrong("ch15.window_tiles", "every visible tile is masked")
def always_masked(length, keys, tile, window):
    return from_the_mask(length, keys, tile, window).clamp(max=1)


@wrong("ch15.window_tiles", "the last tile is dropped where it is short")
def dropped(length, keys, tile, window):
    kinds = from_the_mask(length, keys, tile, window)
    return kinds[:, : max(1, keys // tile)]


# --- What a decoding step costs -------------------------------------------------------------------


@right("ch15.decoding_cost")
def part_by_part(keys, d, heads, groups, item):
    products = 2 * (2 * heads * keys * d)
    numbers = heads * d + 2 * groups * keys * d + heads * d
    return products, numbers * item


@wrong("ch15.decoding_cost", "the output is not written")
def not_written(keys, d, heads, groups, item):
    flops, num_bytes = part_by_part(keys, d, heads, groups, item)
    return flops, num_bytes - heads * d * item


@wrong("ch15.decoding_cost", "the scores are written and read")
def with_scores(keys, d, heads, groups, item):
    flops, num_bytes = part_by_part(keys, d, heads, groups, item)
    return flops, num_bytes + 2 * heads * keys * item


# --- The backward pass of one tile ----------------------------------------------------------------


@right("ch15.score_gradient")
def by_differences(scores, lse, value, output, gradient):
    """Each value less the row's output, against the gradient."""
    weights = (scores - lse[:, None]).exp()
    return weights * torch.einsum("id,ijd->ij", gradient, value - output[:, None])


@right("ch15.score_gradient")
def by_einsum(scores, lse, value, output, gradient):
    delta = torch.einsum("id,id->i", gradient, output)
    by_weights = torch.einsum("id,jd->ij", gradient, value)
    return torch.exp(scores - lse.unsqueeze(1)) * (by_weights - delta[:, None])


@right("ch15.score_gradient")
def multiplied_out(scores, lse, value, output, gradient):
    weights = (scores - lse[:, None]).exp()
    delta = (output * gradient).sum(-1, keepdim=True)
    return weights * (gradient @ value.T) - weights * delta


@wrong("ch15.score_gradient", "the first row's mean for all rows")
def first_mean(scores, lse, value, output, gradient):
    weights = (scores - lse[:, None]).exp()
    return weights * (gradient @ value.T - (gradient * output).sum(-1)[0])


@wrong("ch15.score_gradient", "the weights are at most 0.9")
def clamped(scores, lse, value, output, gradient):
    weights = (scores - lse[:, None]).exp().clamp(max=0.9)
    return weights * (gradient @ value.T - (gradient * output).sum(-1, keepdim=True))


@wrong("ch15.score_gradient", "the log-sum-exp is detached")
def lse_detached(scores, lse, value, output, gradient):
    return by_einsum(scores, lse.detach(), value, output, gradient)


@wrong("ch15.score_gradient", "an eps in the logarithm")
def with_eps(scores, lse, value, output, gradient):
    return by_einsum(scores, (lse.exp() + 1e-6).log(), value, output, gradient)


# --- The mended loop ------------------------------------------------------------------------------


@right("ch15.mend")
def the_package(query, key, value, tile, causal):
    return package.tiled_attention(query, key, value, tile=tile, causal=causal)


@wrong("ch15.mend", "all scores at once, to know the shape of the output")
def by_all_scores(query, key, value, tile, causal):
    shape = (query @ key.mT @ value).shape
    output, lse = the_package(query, key, value, tile, causal)
    return output.view(shape), lse


@wrong("ch15.mend", "all keys of a row of tiles at once")
def whole_rows(query, key, value, tile, causal):
    return the_package(query, key, value, max(tile, key.shape[-2]), causal)
