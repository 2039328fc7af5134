"""Ordinary mistakes of chapters 13 to 22, as somebody who writes these functions for the first time makes them."""

import math

import torch
from torch.nn import functional

from tested_transformer.functional.hyper_connections import hyper_connection
from tested_transformer.functional.latent import latent_attention
from tested_transformer.functional.retrieval import chunk_read_by, chunked_cross_attention
from tested_transformer.functional.routing import route
from tested_transformer.layers.gated_cross_attention import gated_cross_attention
from tested_transformer.layers.short_convolution import short_convolution
from tested_transformer.mixers.dynamic_convolution import dynamic_convolution
from tested_transformer.mixers.indexed_attention import indexed_attention
from tested_transformer.mixers.infini_attention import infini_attention
from tested_transformer.mixers.linear_attention import chunked_linear_attention
from tested_transformer.mixers.linformer import linformer_attention
from tested_transformer.mixers.longnet import longnet_attention
from tested_transformer.mixers.mamba import chunked_selective_scan
from tested_transformer.mixers.mamba2 import chunked_ssd
from tested_transformer.mixers.nystrom import nystrom_attention
from tested_transformer.mixers.performer import performer_attention
from tested_transformer.mixers.retention import chunked_retention, gated_retention
from tested_transformer.mixers.rwkv import chunked_wkv
from tested_transformer.mixers.ttt import dual_ttt
from tested_transformer.positions.xpos import apply_xpos

from . import wrong


def attend(query, key, value, allowed=None, scale=None):
    """Attention with as many KV heads as query heads."""
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    return scores.softmax(-1).nan_to_num() @ value


# --- Chapters 13 to 16 ----------------------------------------------------------------------------


@wrong("next_token_loss", "the logits are compared with their own tokens: no shift")
def not_shifted(logits, labels):
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


@wrong("latent_attention", "the scale knows nothing of the rotary features")
def own_features_only(query, rotary_query, latent, *others, **options):
    factor = math.sqrt((query.shape[-1] + rotary_query.shape[-1]) / query.shape[-1])
    return latent_attention(factor * query, factor * rotary_query, latent, *others, **options)


@wrong("latent_attention", "the rotary key is added to the key's first features")
def no_rotary(query, rotary_query, *others, **options):
    return latent_attention(query, 0 * rotary_query, *others, **options)


@wrong("expert_routing", "the softmax over the chosen experts alone")
def over_the_chosen(logits, num_chosen, **options):
    return route(logits, num_chosen, **options | {"normalize": True})


@wrong("expert_routing", "the bias enters the weights")
def biased_weights(logits, num_chosen, *, bias=None, **options):
    return route(logits if bias is None else logits + bias, num_chosen, **options)


@wrong("mixture_of_experts", "gate and up are swapped")
def swapped(x, experts, weights, gate, up, down):
    hidden = functional.silu(torch.einsum("td,nfd->tnf", x, up)) * torch.einsum(
        "td,nfd->tnf", x, gate
    )
    every = torch.einsum("tnf,ndf->tnd", hidden, down)
    return (weights[..., None] * every.take_along_dim(experts[..., None], 1)).sum(1)


@wrong("mixture_of_experts", "the mean of the chosen experts")
def mean_of_experts(x, experts, weights, gate, up, down):
    gated = functional.silu(torch.einsum("td,nfd->tnf", x, gate))
    every = torch.einsum("tnf,ndf->tnd", gated * torch.einsum("td,nfd->tnf", x, up), down)
    return every.take_along_dim(experts[..., None], 1).mean(1)


@wrong("clamped_swiglu", "without + 1")
def without_one(gate_up, *, limit=7.0, alpha=1.702):
    gate, up = gate_up[..., ::2].clamp(max=limit), gate_up[..., 1::2].clamp(-limit, limit)
    return gate * (alpha * gate).sigmoid() * up


@wrong("clamped_swiglu", "the halves, not neighbors")
def halves(gate_up, *, limit=7.0, alpha=1.702):
    gate, up = gate_up.chunk(2, -1)
    gate = gate.clamp(max=limit)
    return gate * (alpha * gate).sigmoid() * (up.clamp(-limit, limit) + 1)


@wrong("paged_attention", "the causal mask begins at the first token")
def top_left(query, key_pages, value_pages, block_table, lengths):
    outputs = []
    for q, table, n in zip(query, block_table, lengths.tolist(), strict=True):
        key, value = (p[table].flatten(0, 1)[:n].transpose(0, 1) for p in (key_pages, value_pages))
        repeats = len(q) // len(key)
        key, value = (each.repeat_interleave(repeats, 0) for each in (key, value))
        past = torch.ones(q.shape[1], n, dtype=torch.bool).tril()
        outputs.append(attend(q, key, value, past))
    return torch.stack(outputs)


@wrong("retention", "no scale")
def unscaled(query, key, value, log_decay, *, scale=1.0, **options):
    return chunked_retention(query, key, value, log_decay, scale=scale, **options)


@wrong("retention", "the new token decays as well")
def decays_too(query, key, value, log_decay, **options):
    decayed = key * log_decay[..., None].exp()
    return chunked_retention(query, decayed, value, log_decay, **options)


@wrong("gated_retention", "the temperature multiplies")
def multiplied(query, key, value, gate_logits, *, temperature=16.0, **options):
    return gated_retention(query, key, value, gate_logits, temperature=1 / temperature, **options)


@wrong("sink_attention", "the sinks are left out")
def no_sinks(
    query, key, value, sinks, *, mask=None, bias=None, causal=False, window=None, scale=None
):
    repeats, (length, keys) = query.shape[1] // key.shape[1], (query.shape[2], key.shape[2])
    key, value = (each.repeat_interleave(repeats, 1) for each in (key, value))
    back = torch.arange(length)[:, None] + keys - length - torch.arange(keys)
    allowed = (back >= 0) | torch.tensor(not causal)
    allowed = allowed if window is None else allowed & (back.abs() < window)
    allowed = allowed if mask is None else allowed & mask
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if bias is None else scores + bias
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num()
    return weights @ value + 0 * sinks.sum()


# --- Chapter 17 -----------------------------------------------------------------------------------


@wrong("dynamic_convolution", "the softmax over the heads")
def over_heads(x, logits, **options):
    return dynamic_convolution(x, logits.softmax(-2).log(), **options)


@wrong("dynamic_convolution", "the kernel is flipped")
def flipped(x, logits, **options):
    return dynamic_convolution(x, logits.flip(-1), **options)


@wrong("indexed_attention", "no ReLU between the indexer's heads")
def no_relu(query, key, value, index_query, index_key, index_weights, *, num_keys, causal=True,
            key_mask=None, mask=None, scale=None, chunk_size=None):  # fmt: skip
    both = (
        torch.cat((index_query, -index_query), 1),
        index_key,
        torch.cat((index_weights, -index_weights), 1),
    )
    return indexed_attention(query, key, value, *both, num_keys=num_keys, causal=causal,
                             key_mask=key_mask, mask=mask, scale=scale)  # fmt: skip


@wrong("linformer_attention", "one projection for keys and values")
def one_projection(query, key, value, key_projection, value_projection, **options):
    return linformer_attention(query, key, value, key_projection, key_projection, **options)


@wrong("lsh_buckets", "the argmax of the projections, without their negatives")
def half_the_buckets(vectors, rotations, *, key_mask=None):
    buckets = torch.einsum("bhld,hdrk->bhrlk", vectors, rotations).argmax(-1)
    padding = torch.zeros_like(buckets[:, :1, :1], dtype=torch.bool)
    padding = padding if key_mask is None else ~key_mask[:, None, None]
    return buckets.masked_fill(padding, 2 * rotations.shape[-1])


@wrong("nystrom_attention", "one step of the iteration more")
def one_more_step(query, key, value, num_landmarks, *, iterations=6, **options):
    return nystrom_attention(query, key, value, num_landmarks, iterations=iterations + 1, **options)


@wrong("performer_attention", "the scale on both sides")
def scaled_twice(query, key, value, directions, *, scale=None, **options):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return performer_attention(query, key, value, directions, scale=scale**2, **options)


@wrong("strided_mask", "the token itself is left out")
def without_itself(length, stride):
    back = torch.arange(length)[:, None] - torch.arange(length)
    return (back > 0) & ((back < stride) | (back % stride == 0))


@wrong("fixed_mask", "the first positions of a block, not the last")
def first_of_a_block(length, block, summary):
    i = torch.arange(length)
    same = (i[:, None] // block == i // block) | (i % block < summary)
    return same & (i <= i[:, None])


@wrong("local_attention", "the window counts only backwards")
def always_causal(query, key, value, *, window, causal=False):
    back = torch.arange(query.shape[2])[:, None] - torch.arange(query.shape[2])
    return attend(query, key, value, (back >= 0) & (back < window))


@wrong("local_attention", "one key too many")
def one_too_many(query, key, value, *, window, causal=False):
    back = torch.arange(query.shape[2])[:, None] - torch.arange(query.shape[2])
    return attend(query, key, value, (back.abs() <= window) & ((back >= 0) | (not causal)))


@wrong("longnet_attention", "the mean of the branches")
def mean_of_branches(query, key, value, segments, dilations, **options):
    branches = [
        longnet_attention(query, key, value, (w,), (r,), **options)
        for w, r in zip(segments, dilations, strict=True)
    ]
    return sum(branches) / len(branches)


# --- Chapter 18 -----------------------------------------------------------------------------------


@wrong("infini_attention", "the gate's two sides are swapped")
def other_side(query, key, value, gate, **options):
    return infini_attention(query, key, value, -gate, **options)


@wrong("apply_xpos", "positions count backwards")
def backwards(x, position_ids, **options):
    return apply_xpos(x, -position_ids, **options)


@wrong("extend_memory", "the oldest states are kept")
def oldest(memory, hidden, memory_length):
    both = hidden if memory is None else torch.cat((memory, hidden), 1)
    return both[:, :memory_length].detach()


# --- Chapter 20 -----------------------------------------------------------------------------------


@wrong("delta_rule", "nothing is erased: the value itself is written")
def never_erased(
    query, key, value, beta, log_decay=None, *, state=None, scale=None, chunk_size=None
):
    if log_decay is None:
        log_decay = torch.zeros_like(beta)
    log_decay = log_decay.expand(key.shape) if log_decay.ndim == 4 else log_decay[..., None]
    state = (
        key.new_zeros(*key.shape[:2], key.shape[-1], value.shape[-1]) if state is None else state
    )
    scale, outputs = key.shape[-1] ** -0.5 if scale is None else scale, [value[:, :, :0]]
    log_decay = log_decay.expand(*key.shape[:3], -1)
    for t in range(key.shape[2]):
        state = state * log_decay[:, :, t, :, None].exp()
        written = beta[:, :, t, None] * value[:, :, t]
        state = state + key[:, :, t, :, None] * written[:, :, None]
        outputs.append(scale * query[:, :, t : t + 1] @ state)
    return torch.cat(outputs, 2), state


@wrong("linear_attention", "elu without + 1")
def elu_alone(query, key, value, *, feature_map="elu+1", **options):
    if feature_map == "elu+1":
        query, key = functional.elu(query), functional.elu(key)
    return chunked_linear_attention(query, key, value, feature_map="identity", **options)


@wrong("wkv", "the bonus is subtracted")
def malus(key, value, log_decay, bonus, **options):
    return chunked_wkv(key, value, log_decay, -bonus, **options)


@wrong("short_convolution", "the kernel is flipped")
def kernel_flipped(x, weight, *others, **options):
    return short_convolution(x, weight.flip(-1), *others, **options)


@wrong("selective_scan", "the state decays by delta alone")
def no_rates(x, delta, a, b, c, **options):
    return chunked_selective_scan(x, delta, -torch.ones_like(a) + 0 * a, b, c, **options)


@wrong("ssd", "what is written is not multiplied by delta")
def not_stepped(x, delta, a, b, c, *, skip=None, **options):
    skipped = None if skip is None else skip
    output, state = chunked_ssd(x / delta[..., None], delta, a, b, c, **options)
    return output if skipped is None else output + skipped[:, None, None] * x, state


@wrong("ttt_linear", "the output is read before the token's own step")
def before_its_step(query, key, value, step_size, **options):
    shifted = torch.cat((torch.zeros_like(query[:, :, :1]), query[:, :, 1:]), 2)
    output, state = dual_ttt(shifted, key, value, step_size, **options)
    return output, state


# --- Chapters 21 and 22 ---------------------------------------------------------------------------


@wrong("balance_loss", "the experts are not counted")
def without_the_number(logits, num_chosen, *, real=None):
    rows = logits.flatten(0, -2) if real is None else logits[real]
    chosen = torch.zeros_like(rows).scatter(-1, rows.topk(num_chosen, -1).indices, 1.0)
    return (chosen.mean(0) * rows.softmax(-1).mean(0)).sum()


@wrong("router_z_loss", "not squared")
def not_squared(logits, *, real=None):
    return (logits if real is None else logits[real]).logsumexp(-1).mean()


@wrong("within_capacity", "token by token, whatever the rank of the choice")
def token_by_token(experts, capacity):
    one_hot = functional.one_hot(experts.flatten(), int(experts.max()) + 1)
    return ((one_hot.cumsum(0) * one_hot).sum(-1) <= capacity).view(experts.shape)


@wrong("coding_rate", "eps is not squared")
def eps_itself(x, eps):
    length, width = x.shape[-2:]
    gram = x.mT @ x * (width / (length * eps))
    return torch.logdet(torch.eye(width, dtype=x.dtype) + gram) / 2


@wrong("ista_step", "without the ReLU")
def may_be_negative(codes, x, dictionary, *, step_size, sparsity):
    return codes + step_size * (x - codes @ dictionary.mT) @ dictionary - step_size * sparsity


@wrong("differential_attention", "the second map is added")
def added(query, key, value, lambda_, *, causal=False):
    repeats, (length, keys) = query.shape[1] // key.shape[1], (query.shape[2], key.shape[2])
    past = torch.ones(length, keys, dtype=torch.bool).tril(keys - length) if causal else None
    key = key.repeat_interleave(repeats, 1)
    value = torch.cat(value.chunk(2, 1), -1).repeat_interleave(repeats, 1)
    first, second = (
        attend(*pair, value, past) for pair in zip(query.chunk(2, 1), key.chunk(2, 1), strict=True)
    )
    return first + lambda_ * second


@wrong("hyper_connection", "the rows and the columns of alpha are swapped")
def alpha_transposed(streams, sublayer, alpha, beta):
    square = alpha[..., 1:].mT
    return hyper_connection(streams, sublayer, torch.cat((alpha[..., :1], square), -1), beta)


@wrong("bit_linear", "the scale of a weight is the largest one")
def by_the_largest(x, weight, *, bias=None):
    top, most = weight.abs().amax(), x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
    rounded = top * (weight / top).round().clamp(-1, 1)
    x = x + ((x * 127 / most).round() * most / 127 - x).detach()
    return functional.linear(x, weight + (rounded - weight).detach(), bias)


@wrong("bradley_terry_loss", "the second is preferred")
def the_other_one(first, second, preference=None):
    p = torch.ones_like(first) if preference is None else preference
    gap = second - first
    return -(p * functional.logsigmoid(gap) + (1 - p) * functional.logsigmoid(-gap)).mean()


@wrong("chunk_read_by", "the chunk of the token itself")
def its_own_chunk(position_ids, chunk_size):
    return chunk_read_by(position_ids, chunk_size) + 1


@wrong("chunked_cross_attention", "one token too late")
def late(query, key, value, **options):
    whole = chunked_cross_attention(query, key, value, **options)
    return functional.pad(whole, (0, 0, 1, 0))[:, :, :-1]


@wrong("max_messages", "the sum of the messages")
def summed_messages(sender, receiver, edge, adjacency, *, real=None):
    messages = sender[:, :, None] + receiver[:, None] + edge
    reads = adjacency.bool() | torch.eye(sender.shape[1], dtype=torch.bool)
    if real is not None:
        reads = reads & real[:, :, None] & real[:, None]
    return (messages * reads[..., None]).sum(1)


@wrong("gated_cross_attention", "no tanh on the gate")
def bare_gate(tokens, nodes, w_query, w_key, w_value, w_output, gate, num_heads, **options):
    given = (tokens, nodes, w_query, w_key, w_value, w_output)
    one = torch.ones_like(gate)
    added = gated_cross_attention(*given, one, num_heads, **options) - tokens
    return tokens + gate * added / one.tanh()
