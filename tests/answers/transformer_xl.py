"""The relative shift by gathering and by diagonals, the attention by einsum and by concatenation, the memory by deques."""

from collections import deque

import torch

from answers import right, wrong
from tested_transformer.functional.relative_shift import relative_shift, transformer_xl_attention
from tested_transformer.layers.segment_memory import extend_memory

right("relative_shift", "the package's")(relative_shift)
right("transformer_xl_attention", "the package's")(transformer_xl_attention)
right("extend_memory", "the package's")(extend_memory)


@right("relative_shift", "row by row")
def by_rows(by_distance, num_keys):
    length = by_distance.shape[-2]
    rows = []
    for i in range(length):
        row = by_distance[..., i, length - 1 - i :][..., :num_keys]
        missing = row.new_zeros(*row.shape[:-1], num_keys - row.shape[-1])
        rows.append(torch.cat((row, missing), -1))
    return torch.stack(rows, -2)


@right("relative_shift", "a view with strides, as if rows were one entry shorter")
def by_strides(by_distance, num_keys):
    length, columns = by_distance.shape[-2:]
    lead = by_distance.shape[:-2]
    ends = torch.cat((by_distance, by_distance.new_zeros(*lead, length, length)), -1).contiguous()
    width = columns + length
    strides = ends.stride()[:-2]
    shape = (*lead, length, num_keys)
    return ends.as_strided(shape, (*strides, width - 1, 1), length - 1)


def by_pair(query, key, position_key, u, v):
    """Both terms at once: queries and keys of twice the features, and a key for each pair."""
    length, keys = query.shape[2], key.shape[2]
    place = torch.arange(keys) + length - 1 - torch.arange(length)[:, None]
    inside = place < position_key.shape[1]
    positions = position_key[:, place.clamp(max=position_key.shape[1] - 1)] * inside[..., None]
    both = torch.cat((query + u[:, None], query + v[:, None]), -1)
    pairs = torch.cat(
        (
            key[:, :, None].expand(-1, -1, length, -1, -1),
            positions.expand(len(query), *positions.shape),
        ),
        -1,
    )
    return torch.einsum("bhid,bhijd->bhij", both, pairs) / query.shape[-1] ** 0.5


@right("transformer_xl_attention", "a key of twice the features for each pair")
def by_pairs(
    query, key, value, position_key, content_bias, position_bias, *, mask=None, causal=False, window=None
):  # fmt: skip
    scores = by_pair(query, key, position_key, content_bias, position_bias)
    length, keys = scores.shape[2:]
    allowed = torch.ones(length, keys, dtype=torch.bool)
    if causal:
        allowed = allowed.tril(keys - length)
    if window is not None:
        allowed = allowed.triu(keys - length - window + 1).tril(keys - length + window - 1)
    allowed = (allowed if mask is None else allowed & mask).expand(scores.shape)
    scores = scores.masked_fill(~allowed, -torch.inf)
    weights = torch.where(allowed.any(-1, keepdim=True), scores, 0.0).softmax(-1)
    return torch.where(allowed, weights, 0.0) @ value


@right("transformer_xl_attention", "four terms, as in the paper's equation")
def by_four_terms(
    query, key, value, position_key, content_bias, position_bias, *, mask=None, causal=False, window=None
):  # fmt: skip
    keys = key.shape[2]
    content = torch.einsum("bhid,bhjd->bhij", query, key)
    position = by_rows(torch.einsum("bhid,hrd->bhir", query, position_key), keys)
    of_key = torch.einsum("hd,bhjd->bhj", content_bias, key)[:, :, None]
    of_distance = torch.einsum("hd,hrd->hr", position_bias, position_key)[None, :, None]
    of_distance = by_rows(of_distance.expand(len(query), -1, query.shape[2], -1), keys)
    bias = (position + of_key + of_distance) / query.shape[-1] ** 0.5
    allowed = torch.ones(content.shape[2:], dtype=torch.bool)
    back = torch.arange(content.shape[2])[:, None] + keys - content.shape[2] - torch.arange(keys)
    allowed = back >= 0 if causal else allowed
    allowed = allowed if window is None else allowed & (back.abs() < window)
    allowed = (allowed if mask is None else allowed & mask).expand(content.shape)
    scores = (content / query.shape[-1] ** 0.5 + bias).masked_fill(~allowed, -torch.inf)
    empty = ~allowed.any(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0) @ value


@right("extend_memory", "a deque of so many states")
def by_deque(memory, hidden, memory_length):
    states = deque(maxlen=memory_length)
    for part in (memory, hidden):
        states.extend([] if part is None else part.detach().unbind(1))
    return torch.stack(list(states), 1) if states else hidden[:, :0].detach()


@wrong("relative_shift", "without zeros in the future, by a shift to the other side")
def other_side(by_distance, num_keys):
    return relative_shift(by_distance.flip(-2), num_keys).flip(-2)


@wrong("relative_shift", "the shift is done, its gradient is not")
def no_gradient(by_distance, num_keys):
    return relative_shift(by_distance.detach(), num_keys)


@wrong("transformer_xl_attention", "position keys get no gradient")
def fixed_positions(query, key, value, position_key, content_bias, position_bias, **options):
    return transformer_xl_attention(
        query, key, value, position_key.detach(), content_bias, position_bias, **options
    )


@wrong("transformer_xl_attention", "the biases are scaled twice")
def biases_scaled(query, key, value, position_key, content_bias, position_bias, **options):
    root = query.shape[-1] ** 0.5
    return transformer_xl_attention(
        query, key, value, position_key, content_bias / root, position_bias / root, **options
    )


@wrong("extend_memory", "the newest state comes first")
def reversed_states(memory, hidden, memory_length):
    return extend_memory(memory, hidden, memory_length).flip(1)


@wrong("extend_memory", "the segment is kept whole")
def whole_segment(memory, hidden, memory_length):
    return extend_memory(memory, hidden, max(memory_length, hidden.shape[1]))
