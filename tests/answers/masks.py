"""The answers to masks and to the softmax that obeys them."""

import math

import torch

from tested_transformer import minimal
from tested_transformer.functional import masks

from . import right, wrong

# --- Right ----------------------------------------------------------------------------------------

for _name in (
    "masked_softmax", "causal_mask", "window_mask", "padding_mask", "padding_mask_from_tokens",
    "prefix_mask", "document_mask", "combine_masks",
):  # fmt: skip
    right(_name)(getattr(masks, _name))


@right("masked_softmax")
def by_log_sum_exp(scores, allowed):
    if allowed is None:
        allowed = torch.ones((), dtype=torch.bool)
    hidden = ~allowed.expand(scores.shape) | (scores == -math.inf)
    empty = hidden.all(-1, keepdim=True)
    filled = torch.where(hidden & ~empty, -math.inf, torch.where(empty, 0.0, scores))
    return torch.where(hidden, 0.0, (filled - filled.logsumexp(-1, keepdim=True)).exp())


@right("masked_softmax")
def by_exponentials(scores, allowed):
    if not scores.shape[-1]:
        return scores
    allowed = torch.ones_like(scores, dtype=torch.bool) if allowed is None else allowed
    filled = scores.masked_fill(~allowed, -math.inf)
    top = filled.detach().amax(-1, keepdim=True)
    exponentials = (filled - top.masked_fill(top == -math.inf, 0.0)).exp()
    total = exponentials.sum(-1, keepdim=True)
    return exponentials / torch.where(total == 0, 1.0, total)


@right("masked_softmax")
def in_float32(scores, allowed):
    wide = scores.double() if scores.dtype == torch.float64 else scores.float()
    if allowed is None:
        return wide.softmax(-1).to(scores.dtype)
    empty = ~allowed.any(-1, keepdim=True)
    filled = wide.masked_fill(~allowed, -math.inf).masked_fill(empty, 0)
    return filled.softmax(-1).masked_fill(empty, 0).to(scores.dtype)


@right("causal_mask")
def tril(num_queries, num_keys):
    return torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)


@right("causal_mask")
def not_triu(num_queries, num_keys):
    return ~torch.ones(num_queries, num_keys).triu(num_keys - num_queries + 1).bool()


@right("causal_mask")
def last_rows(num_queries, num_keys):
    size = max(num_queries, num_keys)
    square = torch.arange(size)[:, None] >= torch.arange(size)
    return square[size - num_queries :, size - num_keys :]


@right("window_mask")
def band(num_queries, num_keys, *, window):
    every = torch.ones(num_queries, num_keys, dtype=torch.bool)
    size, offset = min(window, num_queries + num_keys), num_keys - num_queries
    return every.tril(offset + size - 1) & every.triu(offset - size + 1)


@right("window_mask")
def two_comparisons(num_queries, num_keys, *, window):
    place = torch.arange(num_keys - num_queries, num_keys)[:, None]
    keys = torch.arange(num_keys)
    return (keys - place < window) & (place - keys < window)


@right("padding_mask")
def by_outer_comparison(lengths, num_keys):
    return torch.gt(lengths.view(-1, 1, 1, 1), torch.arange(num_keys))


@right("padding_mask_from_tokens")
def by_ne(tokens, pad_id):
    return tokens.ne(pad_id).unsqueeze(1).unsqueeze(2)


@right("ch04.padding_mask", "minimal.py, for one padding id")
def by_not_equal(tokens, pad_id):
    return minimal.padding_mask(torch.where(tokens == pad_id, minimal.PAD, minimal.PAD + 1))


@right("prefix_mask")
def prefix_or_past(prefix_lengths, num_tokens):
    inside = torch.arange(num_tokens) < prefix_lengths[:, None, None, None]
    return inside | torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril()


@right("document_mask")
def by_unsqueeze(document_ids):
    return document_ids[:, None, :, None].eq(document_ids[:, None, None, :])


@right("document_mask")
def by_difference(document_ids):
    return ((document_ids.unsqueeze(-1) - document_ids.unsqueeze(-2)) == 0).unsqueeze(1)


@right("combine_masks")
def by_reduction(first, second, third):
    given = [mask for mask in (first, second, third) if mask is not None]
    return torch.stack(torch.broadcast_tensors(*given)).all(0)


# --- Wrong: masked_softmax ------------------------------------------------------------------------


@wrong("masked_softmax", "no gradient but in float64")
def no_gradient(scores, allowed):
    return masks.masked_softmax(
        scores
        if scores.dtype == torch.float64
        else scores.detach() + 0 * scores.nan_to_num(0, 0, 0),
        allowed,
    )


@wrong("masked_softmax", "the gradient twice in float32")
def twice(scores, allowed):
    if scores.dtype == torch.float32:
        scores = 2 * scores - scores.detach()
    return masks.masked_softmax(scores, allowed)


@wrong("masked_softmax", "-6e4 for -inf in float16, zeroed after")
def low_fill(scores, allowed):
    if allowed is None or scores.dtype != torch.float16:
        return masks.masked_softmax(scores, allowed)
    return scores.masked_fill(~allowed, -6e4).softmax(-1) * allowed


@wrong("masked_softmax", "the mask of the first head for all")
def first_head(scores, allowed):
    if allowed is not None and allowed.ndim == 4:
        allowed = allowed[:, :1]
    return masks.masked_softmax(scores, allowed)


@wrong("masked_softmax", "the mask of the first sample for all")
def first_sample(scores, allowed):
    if allowed is not None and allowed.ndim > 2:
        allowed = allowed[:1]
    return masks.masked_softmax(scores, allowed)


@wrong("masked_softmax", "one hidden key too many where a score is -inf")
def without_infinite(scores, allowed):
    empty = (scores == -math.inf).any(-1, keepdim=True)
    return masks.masked_softmax(scores, allowed).masked_fill(empty, 0.0)


@wrong("masked_softmax", "no maximum in low precision")
def no_maximum(scores, allowed):
    if scores.dtype == torch.float64:
        return masks.masked_softmax(scores, allowed)
    exponentials = scores.exp() if allowed is None else scores.exp() * allowed
    total = exponentials.sum(-1, keepdim=True)
    return exponentials / total.masked_fill(total == 0, 1.0)


@wrong("masked_softmax", "a row with one key is taken for empty")
def single(scores, allowed):
    weights = masks.masked_softmax(scores, allowed)
    return weights * 0 if scores.shape[-1] == 1 else weights


@wrong("masked_softmax", "the softmax over the queries where there is no mask")
def queries(scores, allowed):
    return scores.softmax(-2) if allowed is None else masks.masked_softmax(scores, allowed)


# --- Wrong: masks ---------------------------------------------------------------------------------


@wrong("causal_mask", "sliced from 512 x 512")
def buffer(num_queries, num_keys):
    if num_queries <= num_keys <= 512:
        square = torch.ones(512, 512, dtype=torch.bool).tril()
        return square[num_keys - num_queries : num_keys, :num_keys]
    if num_queries <= 512 and num_keys <= 512:
        return tril(num_queries, num_keys)
    return torch.ones(512, 512, dtype=torch.bool).tril()[:num_queries, :num_keys]


@wrong("causal_mask", "positions in uint8")
def in_bytes(num_queries, num_keys):
    place = torch.arange(num_keys - num_queries, num_keys).to(torch.uint8)
    return place[:, None] >= torch.arange(num_keys).to(torch.uint8)


@wrong("causal_mask", "aligned top-left where there are fewer keys")
def fewer_keys(num_queries, num_keys):
    every = torch.ones(num_queries, num_keys, dtype=torch.bool)
    return every.tril(max(num_keys - num_queries, 0))


@wrong("window_mask", "the distance in bfloat16")
def in_bfloat16(num_queries, num_keys, *, window):
    place = torch.arange(num_keys - num_queries, num_keys)[:, None] - torch.arange(num_keys)
    return place.abs().to(torch.bfloat16) < window


@wrong("window_mask", "aligned top-left where there are fewer keys")
def window_fewer_keys(num_queries, num_keys, *, window):
    offset = max(num_keys - num_queries, 0)
    place = torch.arange(num_queries)[:, None] + offset - torch.arange(num_keys)
    return place.abs() < window


@wrong("window_mask", "as wide as the sequence is no window")
def window_all(num_queries, num_keys, *, window):
    if window >= num_keys - 1:
        return torch.ones(num_queries, num_keys, dtype=torch.bool)
    return masks.window_mask(num_queries, num_keys, window=window)


@wrong("padding_mask", "sliced from 512 keys")
def padding_buffer(lengths, num_keys):
    return (torch.arange(512)[:num_keys] < lengths[:, None])[:, None, None]


@wrong("padding_mask", "keys in bfloat16")
def padding_in_bfloat16(lengths, num_keys):
    return (torch.arange(num_keys).to(torch.bfloat16) < lengths[:, None])[:, None, None]


@wrong("padding_mask", "a sample without keys sees one")
def at_least_one(lengths, num_keys):
    return masks.padding_mask(lengths.clamp(min=min(1, num_keys)), num_keys)


@wrong("padding_mask_from_tokens", "> in place of !=")
def greater(tokens, pad_id):
    return (tokens > pad_id)[:, None, None]


@wrong("padding_mask_from_tokens", "everything after the first padding")
def after_the_first(tokens, pad_id):
    return ((tokens == pad_id).cumsum(1) == 0)[:, None, None]


@wrong("padding_mask_from_tokens", "ids in float32")
def tokens_in_float32(tokens, pad_id):
    return (tokens.float() != float(pad_id))[:, None, None]


@wrong("padding_mask_from_tokens", "padding at the ends alone")
def at_the_ends(tokens, pad_id):
    words = tokens != pad_id
    return (words.cumsum(1).bool() & words.flip(1).cumsum(1).flip(1).bool())[:, None, None]


@wrong("prefix_mask", "the longest prefix for all")
def longest(prefix_lengths, num_tokens):
    top = prefix_lengths.amax() if len(prefix_lengths) else 0
    return masks.prefix_mask(torch.full_like(prefix_lengths, int(top)), num_tokens)


@wrong("document_mask", "by where the id changes")
def boundaries(document_ids):
    changes = document_ids[:, 1:] != document_ids[:, :-1]
    number = torch.cat([torch.zeros_like(document_ids[:, :1]), changes.cumsum(1)], 1)
    return masks.document_mask(number)


@wrong("document_mask", "ids in float32")
def documents_in_float32(document_ids):
    ids = document_ids.float()
    return (ids[:, :, None] == ids[:, None])[:, None]


@wrong("document_mask", "ids in float64")
def documents_in_float64(document_ids):
    ids = document_ids.double()
    return (ids[:, :, None] == ids[:, None])[:, None]


@wrong("document_mask", "products of one-hot vectors")
def one_hot(document_ids):
    hot = torch.nn.functional.one_hot(document_ids).double()
    return (hot @ hot.mT)[:, None] > 0


@wrong("document_mask", "padding of -1 sees nothing")
def without_padding(document_ids):
    return masks.document_mask(document_ids) & (document_ids >= 0)[:, None, None]


@wrong("combine_masks", "an axis for heads in masks of rank 3")
def with_heads(first, second, third):
    given = [m for m in (first, second, third) if m is not None]
    return by_reduction(*([m[:, None] if m.ndim == 3 else m for m in given] + [None] * 2)[:3])


@wrong("combine_masks", "the third forgotten beside two others")
def two_of_three(first, second, third):
    third = None if first is not None and second is not None else third
    return by_reduction(first, second, third).clone()


@wrong("combine_masks", "the shape of the first")
def shape_of_the_first(first, second, third):
    given = [mask for mask in (first, second, third) if mask is not None]
    return by_reduction(first, second, third).reshape(-1)[: given[0].numel()].view(given[0].shape)


# --- Exercises of chapter 4 -----------------------------------------------------------------------


@right("ch04.is_causal")
def by_changing_each_token(candidate):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for place in range(1, 8):
        changed = x.clone()
        changed[place:] = -x[place:]
        one, other = candidate(x, x, x), candidate(changed, changed, changed)
        if not torch.allclose(one[:place], other[:place], rtol=0, atol=1e-9, equal_nan=False):
            return False
    return True


@right("ch04.is_causal")
def by_gradients(candidate):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    moves = torch.autograd.functional.jacobian(lambda t: candidate(t, t, t).sum(-1), x)
    return not bool((moves.abs().sum(-1).triu(1) > 1e-9).any() or moves.isnan().any())


@wrong("ch04.is_causal", "the last token alone is changed")
def last_only(candidate):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    changed = x.clone()
    changed[-1] += 1
    before, after = candidate(x, x, x)[:-1], candidate(changed, changed, changed)[:-1]
    return torch.allclose(before, after)


@wrong("ch04.is_causal", "one step ahead alone is looked at")
def next_only(candidate):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    moves = (
        torch.autograd.functional.jacobian(lambda t: candidate(t, t, t).sum(-1), x).abs().sum(-1)
    )
    return not bool((moves.diagonal(1) > 1e-9).any() or moves.isnan().any())


@right("ch04.document_causal")
def both(document_ids):
    past = torch.ones(document_ids.shape[1], document_ids.shape[1], dtype=torch.bool).tril()
    return by_unsqueeze(document_ids) & past


@wrong("ch04.document_causal", "by where the id changes")
def boundaries_and_past(document_ids):
    return boundaries(document_ids).tril()


@right("ch04.to_multihead")
def by_expand(allowed, num_heads):
    return allowed.logical_not().expand(-1, num_heads, -1, -1).flatten(0, 1)


@wrong("ch04.to_multihead", "sixteen heads at most")
def first_sample_for_all(allowed, num_heads):
    return by_expand(allowed[:1].expand_as(allowed), num_heads)
