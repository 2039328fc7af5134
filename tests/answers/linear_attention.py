"""Linear attention by einsum, as attention with other weights, token by token; and wrong ones that are nobody's mistake."""

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.mixers.linear_attention import (
    chunked_linear_attention,
    parallel_linear_attention,
    recurrent_linear_attention,
)

right("linear_attention", "the package's, parallel")(parallel_linear_attention)
right("linear_attention", "the package's, recurrent")(recurrent_linear_attention)
right("linear_attention", "the package's, in chunks")(chunked_linear_attention)


def features(x, name, real=None):
    x = functional.elu(x) + 1 if name == "elu+1" else x
    return x if real is None else torch.where(real[:, None, :, None], x, 0.0)


@right("linear_attention", "einsum of cumulative sums")
def by_cumulative_sums(
    query, key, value, *, feature_map="elu+1", normalize=True, real=None, state=None, chunk_size=None
):  # fmt: skip
    q, k = features(query, feature_map), features(key, feature_map, real)
    value = functional.pad(value, (0, 1), value=1.0) if normalize else value
    sums = torch.einsum("bhld,bhlm->bhldm", k, value).cumsum(2)
    before = value.new_zeros(*k.shape[:2], k.shape[-1], value.shape[-1]) if state is None else state
    output = torch.einsum("bhld,bhldm->bhlm", q, sums + before[:, :, None])
    if normalize:
        total = output[..., -1:]
        output = torch.where(
            total == 0, 0.0, output[..., :-1] / torch.where(total == 0, 1.0, total)
        )
    return output, before + torch.einsum("bhld,bhlm->bhdm", k, value)


@right("linear_attention", "token by token, the normalizer by itself")
def two_states(
    query, key, value, *, feature_map="elu+1", normalize=True, real=None, state=None, chunk_size=None
):  # fmt: skip
    q, k = features(query, feature_map), features(key, feature_map, real)
    width = value.shape[-1]
    matrix = value.new_zeros(*k.shape[:2], k.shape[-1], width)
    sums = value.new_zeros(*k.shape[:2], k.shape[-1])
    if state is not None:
        matrix, sums = state[..., :width], state[..., width:].sum(-1)
    outputs = [value[:, :, :0]]
    for t in range(q.shape[2]):
        matrix = torch.baddbmm(
            matrix.flatten(0, 1), k[:, :, t, :, None].flatten(0, 1), value[:, :, t, None].flatten(0, 1)
        ).view_as(matrix)  # fmt: skip
        sums = sums + k[:, :, t]
        read = torch.einsum("bhd,bhdm->bhm", q[:, :, t], matrix)
        if normalize:
            total = (q[:, :, t] * sums).sum(-1, keepdim=True)
            read = read / total.masked_fill(total == 0, 1.0)
        outputs.append(read[:, :, None])
    state = torch.cat((matrix, sums[..., None]), -1) if normalize else matrix
    return torch.cat(outputs, 2), state


@wrong("linear_attention", "the state is detached from call to call")
def detached(query, key, value, *, state=None, **options):
    state = None if state is None else state.detach()
    return parallel_linear_attention(query, key, value, state=state, **options)


@wrong("linear_attention", "the keys get no gradient")
def fixed_keys(query, key, value, **options):
    return parallel_linear_attention(query, key.detach(), value, **options)


@wrong("linear_attention", "softmax attention")
def softmax_attention(query, key, value, **options):
    _, state = parallel_linear_attention(query, key, value, **options)
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True), state


@wrong("linear_attention", "a constant is added to the normalizer")
def with_epsilon(query, key, value, *, normalize=True, **options):
    output, state = parallel_linear_attention(query, key, value, normalize=normalize, **options)
    return (output * (1 - 1e-6) if normalize else output), state
