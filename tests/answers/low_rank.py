"""Attention to fewer keys: by einsum and by torch's kernel, in logarithms, token by token, by indices of segments."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from answers import right, wrong
from tested_transformer.mixers.linformer import linformer_attention
from tested_transformer.mixers.nystrom import nystrom_attention
from tested_transformer.mixers.performer import performer_attention

right("linformer_attention", "the package's")(linformer_attention)
right("performer_attention", "the package's")(performer_attention)
right("nystrom_attention", "the package's")(nystrom_attention)


# --- Linformer ------------------------------------------------------------------------------------


@right("linformer_attention", "einsum, padding as zeros in the projections")
def projections_masked(
    query, key, value, key_projection, value_projection, *, key_mask=None, scale=None
):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    both = [each.expand(*query.shape[:2], -1, -1) for each in (key_projection, value_projection)]
    if key_mask is not None:
        both = [torch.where(key_mask[:, None, None], each, 0.0) for each in both]
    keys = torch.einsum("bhks,bhsd->bhkd", both[0], key)
    values = torch.einsum("bhks,bhsv->bhkv", both[1], value)
    weights = torch.einsum("bhld,bhkd->bhlk", query, keys).mul(scale).softmax(-1)
    return torch.einsum("bhlk,bhkv->bhlv", weights, values)


@right("linformer_attention", "torch's kernel, sample by sample, without the padding")
def without_padding(
    query, key, value, key_projection, value_projection, *, key_mask=None, scale=None
):
    outputs = []
    for b in range(len(query)):
        real = slice(None) if key_mask is None else key_mask[b]
        keys = key_projection[..., real] @ key[b, :, real]
        values = value_projection[..., real] @ value[b, :, real]
        outputs.append(scaled_dot_product_attention(query[b], keys, values, scale=scale))
    return torch.stack(outputs)


@wrong("linformer_attention", "the projection gets no gradient")
def fixed_projection(query, key, value, key_projection, value_projection, **options):
    return linformer_attention(
        query, key, value, key_projection.detach(), value_projection, **options
    )


@wrong("linformer_attention", "the first head's projection for all")
def first_head(query, key, value, key_projection, value_projection, **options):
    return linformer_attention(
        query, key, value, key_projection[:1], value_projection[:1], **options
    )


# --- Performer ------------------------------------------------------------------------------------


def wide(*tensors):
    dtype = torch.promote_types(tensors[0].dtype, torch.float32)
    return [each.to(dtype) for each in tensors]


@right("performer_attention", "a softmax of the logarithm of the estimated kernel")
def by_logarithms(
    query, key, value, directions, *, causal=False, key_mask=None, scale=None, chunk_size=None
):  # fmt: skip
    q, k, v, w = wide(query, key, value, directions)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    q, k = q * scale**0.5, k * scale**0.5
    logs = [x @ w.mT - x.pow(2).sum(-1, keepdim=True) / 2 for x in (q, k)]
    kernel = (logs[0].unsqueeze(3) + logs[1].unsqueeze(2)).logsumexp(-1)  # B H L S
    if causal:
        kernel = kernel.masked_fill(
            torch.ones(kernel.shape[-2:], dtype=torch.bool).triu(1), -torch.inf
        )
    if key_mask is not None:
        kernel = kernel.masked_fill(~key_mask[:, None, None], -torch.inf)
    nothing = kernel.isinf().all(-1, keepdim=True)
    weights = kernel.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
    return (weights @ v).to(query.dtype)


@right("performer_attention", "token by token, with a maximum that grows")
def by_tokens(
    query, key, value, directions, *, causal=False, key_mask=None, scale=None, chunk_size=None
):  # fmt: skip
    if not causal:
        return by_logarithms(query, key, value, directions, key_mask=key_mask, scale=scale)
    q, k, v, w = wide(query, key, value, directions)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    logs = [(scale**0.5 * x) @ w.mT - scale * x.pow(2).sum(-1, keepdim=True) / 2 for x in (q, k)]
    if key_mask is not None:
        logs[1] = logs[1].masked_fill(~key_mask[:, None, :, None], -torch.inf)
    with_one = torch.cat((v, torch.ones_like(v[..., :1])), -1)
    top = logs[1].new_full((*k.shape[:2], 1, 1), -1e30)
    state, outputs = torch.zeros_like(top).expand(-1, -1, w.shape[0], with_one.shape[-1]), []
    for t in range(q.shape[2]):
        log = logs[1][:, :, t : t + 1]
        new = torch.maximum(top, log.detach().amax(-1, keepdim=True))
        state = state * (top - new).exp() + (log - new).exp().mT @ with_one[:, :, t : t + 1]
        top = new
        sums = logs[0][:, :, t : t + 1].softmax(-1) @ state
        outputs.append(sums[..., :-1] / sums[..., -1:].where(sums[..., -1:] > 0, 1.0))
    return torch.cat(outputs, 2).to(query.dtype) if outputs else value


@wrong("performer_attention", "the last direction is left out")
def one_direction_less(query, key, value, directions, **options):
    few = directions[:-1] if len(directions) > 1 else directions
    return performer_attention(query, key, value, few, **options)


@wrong("performer_attention", "the directions get no gradient")
def fixed_directions(query, key, value, directions, **options):
    return performer_attention(query, key, value, directions.detach(), **options)


@wrong("performer_attention", "chunks do not see each other")
def chunks_apart(query, key, value, directions, *, causal=False, chunk_size=64, **options):
    if not causal or options.get("key_mask") is not None:
        return performer_attention(query, key, value, directions, causal=causal, **options)
    parts = zip(*(each.split(chunk_size, 2) for each in (query, key, value)), strict=True)
    done = [performer_attention(*part, directions, causal=True, **options) for part in parts]
    return torch.cat(done, 2)


# --- Nystrom --------------------------------------------------------------------------------------


def inverse_by_residuals(matrix, iterations):
    """The same polynomial as a series of the residual: Z (I + E + E^2 + E^3 / 4) with E = I - A Z."""
    size = matrix.sum(-2).max(-1).values * matrix.sum(-1).max(-1).values
    inverse, one = matrix.transpose(-2, -1) / size[..., None, None], torch.eye(matrix.shape[-1])
    for _ in range(iterations):
        e = one.to(matrix.dtype) - matrix @ inverse
        inverse = inverse + inverse @ (e + e @ (e + e @ e / 4))
    return inverse


@right("nystrom_attention", "sample by sample, segments by their indices")
def by_segments(query, key, value, num_landmarks, *, iterations=6, key_mask=None, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    outputs = []
    for b in range(len(query)):
        length = query.shape[2]
        real = torch.arange(length) if key_mask is None else key_mask[b].nonzero()[:, 0]
        if not len(real):
            outputs.append(torch.zeros_like(value[b]))
            continue
        segment = torch.arange(len(real)) * num_landmarks // len(real)
        runs = [real[segment == s] for s in segment.unique()]
        q, k = (torch.stack([x[b][:, run].mean(1) for run in runs], 1) for x in (query, key))
        columns = (scale * query[b] @ k.mT).softmax(-1)
        core = (scale * q @ k.mT).softmax(-1)
        rows = (scale * q @ key[b][:, real].mT).softmax(-1)
        outputs.append(
            columns @ inverse_by_residuals(core, iterations) @ (rows @ value[b][:, real])
        )
    return torch.stack(outputs)


@wrong("nystrom_attention", "the exact pseudo-inverse")
def exact_inverse(query, key, value, num_landmarks, *, iterations=6, **options):
    return nystrom_attention(query, key, value, num_landmarks, iterations=30, **options)


@wrong("nystrom_attention", "queries have the keys' landmarks")
def shared_landmarks(query, key, value, num_landmarks, **options):
    return nystrom_attention(key, key, value, num_landmarks, **options)
