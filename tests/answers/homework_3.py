"""The answers to homework 3."""

import math

import numpy as np
import torch

from . import right, wrong

# --- count_pairs ----------------------------------------------------------------------------------


@right("hw03.count_pairs")
def count_by_sums(num_queries, num_keys, window):
    """Query i sees min(i + S - L + 1, window) keys, if that is more than 0."""
    return sum(
        max(0, min(i + num_keys - num_queries + 1, window, num_keys)) for i in range(num_queries)
    )


@right("hw03.count_pairs")
def count_by_triangles(num_queries, num_keys, window):
    def triangle(n):
        return n * (n + 1) // 2 if n > 0 else 0

    first = num_keys - num_queries
    return (
        triangle(num_keys)
        - triangle(first)
        - triangle(num_keys - window)
        + triangle(first - window)
    )


@right("hw03.count_pairs")
def count_in_numpy(num_queries, num_keys, window):
    back = np.arange(num_keys - num_queries + 1, num_keys + 1, dtype=np.int64)
    return np.clip(back, 0, window).sum()


@right("hw03.count_pairs")
def count_in_torch(num_queries, num_keys, window):
    back = torch.arange(num_keys - num_queries, num_keys) + 1
    return back.clamp(0, window).sum()


@wrong("hw03.count_pairs", "float64 on the way")
def count_in_floats(num_queries, num_keys, window):
    first = num_keys - num_queries
    whole = [n * (n + 1) / 2 if n > 0 else 0.0
             for n in (num_keys, first, num_keys - window, first - window)]  # fmt: skip
    return int(whole[0] - whole[1] - whole[2] + whole[3])


@wrong("hw03.count_pairs", "all rows are full")
def count_full_rows(num_queries, num_keys, window):
    return num_queries * min(window, num_keys)


@wrong("hw03.count_pairs", "at least one key for each query")
def count_at_least_one(num_queries, num_keys, window):
    first = num_keys - num_queries
    return sum(max(1, min(i + first + 1, window)) for i in range(num_queries))


@wrong("hw03.count_pairs", "more queries than keys turned round")
def count_turned(num_queries, num_keys, window):
    return count_by_sums(min(num_queries, num_keys), max(num_queries, num_keys), window)


# --- mean_of_words --------------------------------------------------------------------------------


@right("hw03.mean_of_words")
def mean_by_where(x, real):
    shares = real.to(x.dtype) / real.sum(1, keepdim=True).clamp(min=1)
    words = torch.where(real[..., None], x, torch.zeros((), dtype=x.dtype))
    return torch.einsum("bl,bld->bd", shares.to(x.dtype), words)


@right("hw03.mean_of_words")
def mean_in_a_loop(x, real):
    rows = []
    for sample, words in zip(x, real, strict=True):
        some = sample[words]
        rows.append(
            some.double().mean(0).to(x.dtype) if len(some) else sample.new_zeros(x.shape[2])
        )
    return torch.stack(rows)


@right("hw03.mean_of_words")
def mean_in_double(x, real):
    total = x.double().masked_fill(~real.unsqueeze(-1), 0).sum(dim=1)
    return (total / real.sum(dim=1, keepdim=True).clamp_min(1)).to(x.dtype)


@right("hw03.mean_of_words")
def mean_step_by_step(x, real):
    """The mean so far, moved by each word."""
    mean, count = torch.zeros_like(x[:, 0], dtype=torch.float64), torch.zeros(len(x), 1)
    for token, is_word in zip(x.double().unbind(1), real.unbind(1), strict=True):
        count = count + is_word[:, None]
        step = torch.where(is_word[:, None], token - mean, 0.0) / count.clamp(min=1)
        mean = mean + step
    return mean.to(x.dtype)


@wrong("hw03.mean_of_words", "detached")
def mean_detached(x, real):
    return mean_in_double(x, real).detach()


@wrong("hw03.mean_of_words", "no gradient in float16")
def mean_detached_in_half(x, real):
    answer = mean_in_double(x, real)
    return answer.detach() + 0 * x[:, 0].nan_to_num(0) if x.dtype == torch.float16 else answer


@wrong("hw03.mean_of_words", "the words up to the last one")
def mean_up_to_the_last(x, real):
    place = torch.arange(real.shape[1])
    last = (real * (place + 1)).amax(1, keepdim=True)
    return mean_in_double(x, place < last)


@wrong("hw03.mean_of_words", "the first words, by their number")
def mean_of_the_first(x, real):
    return mean_in_double(x, torch.arange(real.shape[1]) < real.sum(1, keepdim=True))


@wrong("hw03.mean_of_words", "no words give the mean of the padding")
def mean_of_padding(x, real):
    real = real | ~real.any(1, keepdim=True)
    return mean_in_double(x.nan_to_num(0), real)


@wrong("hw03.mean_of_words", "the padding overwritten")
def mean_in_place(x, real):
    x.data[~real] = 0
    return mean_in_double(x, real)


@wrong("hw03.mean_of_words", "the mean over the batch")
def mean_over_the_batch(x, real):
    total = x.double().masked_fill(~real[..., None], 0).sum(1)
    return (total / real.sum().clamp(min=1) * len(x)).to(x.dtype)


@wrong("hw03.mean_of_words", "eps in the denominator")
def mean_with_eps(x, real):
    total = x.double().masked_fill(~real[..., None], 0).sum(1)
    return (total / (real.sum(1, keepdim=True) + 1e-6)).to(x.dtype)


# --- chunk_mask -----------------------------------------------------------------------------------


@right("hw03.chunk_mask")
def chunk_in_a_loop(pads, num_cached, num_new):
    mask = torch.zeros(len(pads), 1, num_new, num_cached + num_new, dtype=torch.bool)
    for b, pad in enumerate(pads.tolist()):
        for i in range(num_new):
            place = num_cached + i
            mask[b, 0, i, pad : place + 1] = True
            mask[b, 0, i, place] = True
    return mask


@right("hw03.chunk_mask")
def chunk_of_the_whole(pads, num_cached, num_new):
    """The mask of the whole text; the chunk's rows are its last."""
    size = num_cached + num_new
    words = torch.arange(size) >= pads[:, None, None, None]
    whole = torch.ones(size, size, dtype=torch.bool).tril() & words
    return (whole | torch.eye(size, dtype=torch.bool))[:, :, num_cached:]


@right("hw03.chunk_mask")
def chunk_by_words(pads, num_cached, num_new):
    key = np.arange(num_cached + num_new)
    place = key[num_cached:, None]
    real = key >= pads.numpy()[:, None]  # B S
    sees = real[:, None, :] & real[:, num_cached:, None] & (key <= place)
    return torch.as_tensor(sees | (key == place)).unsqueeze(1)


@wrong("hw03.chunk_mask", "as many pads in all samples")
def chunk_first_pads(pads, num_cached, num_new):
    return chunk_of_the_whole(pads[:1].expand_as(pads), num_cached, num_new)


@wrong("hw03.chunk_mask", "words see one pad")
def chunk_one_pad(pads, num_cached, num_new):
    return chunk_of_the_whole((pads - 1).clamp(min=0), num_cached, num_new)


@wrong("hw03.chunk_mask", "numbers for truth values")
def chunk_as_numbers(pads, num_cached, num_new):
    return chunk_of_the_whole(pads, num_cached, num_new).long()


@wrong("hw03.chunk_mask", "True for what is hidden")
def chunk_turned(pads, num_cached, num_new):
    return ~chunk_of_the_whole(pads, num_cached, num_new)


@wrong("hw03.chunk_mask", "right for a batch of one token")
def chunk_one_token(pads, num_cached, num_new):
    return chunk_of_the_whole(pads, num_cached, num_new)[:, :, -1:].expand(-1, -1, num_new, -1)


# --- buffer_attention -----------------------------------------------------------------------------


def emptied(mask, *buffers):
    unseen = ~mask.any(-2)[..., None]
    return [torch.where(unseen, torch.zeros((), dtype=b.dtype), b) for b in buffers]


@right("hw03.buffer_attention")
def buffer_by_logarithms(query, key, value, mask):
    key, value = emptied(mask, key, value)
    scores = torch.einsum("bhld,bhsd->bhls", query, key).double() / query.shape[-1] ** 0.5
    scores = scores.masked_fill(~mask, -math.inf)
    empty = ~mask.any(-1, keepdim=True)
    scores = scores.masked_fill(empty, 0.0)
    weights = (scores - scores.logsumexp(-1, keepdim=True)).exp().masked_fill(empty, 0.0)
    return (weights @ value.double()).to(query.dtype)


@right("hw03.buffer_attention")
def buffer_query_by_query(query, key, value, mask):
    mask = mask.expand(*query.shape[:3], key.shape[2])
    rows = []
    for b, h, i in np.ndindex(*query.shape[:3]):
        seen = mask[b, h, i]
        if not seen.any():
            rows.append(query[b, h, i].sum() * 0 + value.new_zeros(value.shape[3]))
            continue
        scores = key[b, h, seen] @ (query[b, h, i] / query.shape[-1] ** 0.5)
        rows.append(scores.softmax(0) @ value[b, h, seen])
    return torch.stack(rows).unflatten(0, query.shape[:3])


@right("hw03.buffer_attention")
def buffer_divided_last(query, key, value, mask):
    key, value = emptied(mask, key, value)
    scores = (query.float() if query.dtype == torch.float16 else query) @ (
        key.to(torch.float32 if query.dtype == torch.float16 else key.dtype).mT
    )
    scores = (scores * query.shape[-1] ** -0.5).masked_fill(~mask, -math.inf)
    empty = ~mask.any(-1, keepdim=True)
    top = scores.amax(-1, keepdim=True).masked_fill(empty, 0.0)
    raised = (scores - top).exp()
    total = raised.sum(-1, keepdim=True).masked_fill(empty, 1.0)
    return (raised @ value.to(raised.dtype) / total).to(query.dtype)


@wrong("hw03.buffer_attention", "the weights detached")
def buffer_detached(query, key, value, mask):
    key, value = emptied(mask, key, value)
    empty = ~mask.any(-1, keepdim=True)
    scores = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(~mask, -math.inf)
    weights = scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    return weights.detach() @ value


@wrong("hw03.buffer_attention", "the keys detached in float16")
def buffer_detached_in_half(query, key, value, mask):
    key = key.detach() if key.dtype == torch.float16 else key
    return buffer_by_logarithms(query, key, value, mask)


@wrong("hw03.buffer_attention", "-10,000 for minus infinity")
def buffer_large_number(query, key, value, mask):
    key, value = emptied(mask, key, value)
    scores = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(~mask, -1e4)
    return scores.softmax(-1).masked_fill(~mask.any(-1, keepdim=True), 0.0) @ value


@wrong("hw03.buffer_attention", "the scale of the values")
def buffer_scale_of_values(query, key, value, mask):
    root = (query.shape[-1] / value.shape[-1]) ** 0.5
    return buffer_by_logarithms(query * root, key, value, mask)


@wrong("hw03.buffer_attention", "the mask of head 0")
def buffer_head_0(query, key, value, mask):
    return buffer_by_logarithms(query, key, value, mask[:, :1])


@wrong("hw03.buffer_attention", "the mask of sample 0")
def buffer_sample_0(query, key, value, mask):
    return buffer_by_logarithms(query, key, value, mask[:1])


@wrong("hw03.buffer_attention", "no maximum in float16")
def buffer_naive_in_half(query, key, value, mask):
    if query.dtype != torch.float16:
        return buffer_by_logarithms(query, key, value, mask)
    key, value = emptied(mask, key, value)
    raised = (query @ key.mT / query.shape[-1] ** 0.5).exp() * mask
    total = raised.sum(-1, keepdim=True)
    return raised / total.masked_fill(total == 0, 1.0) @ value


@wrong("hw03.buffer_attention", "torch's grad mode switched off")
def buffer_without_gradients(query, key, value, mask):
    torch.set_grad_enabled(False)
    return buffer_by_logarithms(query, key, value, mask)


@wrong("hw03.buffer_attention", "the first row of the mask for all queries")
def buffer_first_row(query, key, value, mask):
    return buffer_by_logarithms(query, key, value, mask[:, :, :1])
