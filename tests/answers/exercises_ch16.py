"""The answers to the exercises of chapter 16."""

import math

import torch
from torch.nn import functional

from tested_transformer import attention
from tested_transformer.functional.latent import absorbed_latent_attention, latent_attention
from tested_transformer.mixers.retention import (
    gated_log_decay,
    gated_retention,
    parallel_retention,
)

from . import right, wrong

# --- Bytes of a cache -----------------------------------------------------------------------------


@right("ch16.cache_bytes")
def by_formula(layers, kv_heads, d_head, tokens, item):
    return 2 * layers * kv_heads * d_head * tokens * item


@right("ch16.cache_bytes")
def by_product(*sizes):
    return 2 * math.prod(sizes)


@right("ch16.cache_bytes")
def by_allocation(layers, kv_heads, d_head, tokens, item):
    keys = torch.empty(layers, kv_heads, tokens, d_head, dtype=torch.uint8, device="meta")
    return 2 * keys.nbytes * item


@wrong("ch16.cache_bytes", "in kilobytes")
def kilobytes(layers, kv_heads, d_head, tokens, item):
    return 2 * layers * kv_heads * d_head * tokens * item // 1000


@wrong("ch16.cache_bytes", "two bytes whatever the item")
def half_precision(layers, kv_heads, d_head, tokens, item):
    return 4 * layers * kv_heads * d_head * tokens


# --- Tokens per second ----------------------------------------------------------------------------


@right("ch16.tokens_per_second")
def by_steps(memory, bandwidth, weights, cache):
    sequences = (memory - weights) // cache
    seconds = (weights + sequences * cache) / bandwidth
    return sequences / seconds


@right("ch16.tokens_per_second")
def by_the_rest(memory, bandwidth, weights, cache):
    left = (memory - weights) % cache
    return bandwidth * ((memory - weights - left) // cache / (memory - left))


@right("ch16.tokens_per_second")
def in_tensors(memory, bandwidth, weights, cache):
    memory, weights, cache = torch.tensor([memory, weights, cache])
    sequences = (memory - weights).div(cache, rounding_mode="floor")
    return sequences.double() * bandwidth / (weights + sequences * cache).double()


@wrong("ch16.tokens_per_second", "each sequence alone")
def of_each(memory, bandwidth, weights, cache):
    sequences = (memory - weights) // cache
    return bandwidth / (weights + sequences * cache)


@wrong("ch16.tokens_per_second", "rounded up")
def rounded_up(memory, bandwidth, weights, cache):
    sequences = math.ceil((memory - weights) / cache)
    return sequences * bandwidth / (weights + sequences * cache)


@wrong("ch16.tokens_per_second", "the caches alone are read")
def without_weights(memory, bandwidth, weights, cache):
    sequences = (memory - weights) // cache
    return sequences * bandwidth / max(1, sequences * cache)


# --- Grouped-query attention ----------------------------------------------------------------------


@right("ch16.grouped_attention", "the package's")
def by_package(query, key, value):
    return attention(query, key, value, causal=True)


@right("ch16.grouped_attention", "torch's")
def by_torch(query, key, value):
    attend = functional.scaled_dot_product_attention
    return attend(query, key, value, is_causal=True, enable_gqa=True)


@right("ch16.grouped_attention")
def by_einsum(query, key, value):
    query = query.unflatten(1, (key.shape[1], -1))
    scores = torch.einsum("bghld,bgsd->bghls", query, key) / query.shape[-1] ** 0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, -math.inf).softmax(-1)
    return torch.einsum("bghls,bgsv->bghlv", weights, value).flatten(1, 2)


@wrong("ch16.grouped_attention", "the future is visible")
def both_ways(query, key, value):
    return attention(query, key, value)


@wrong("ch16.grouped_attention", "the KV heads are averaged")
def averaged(query, key, value):
    return attention(query, key.mean(1, keepdim=True), value.mean(1, keepdim=True), causal=True)


@wrong("ch16.grouped_attention", "values are tiled, keys are not")
def values_tiled(query, key, value):
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat(1, group, 1, 1)
    return attention(query, key, value, causal=True)


# --- Fewer heads from many ------------------------------------------------------------------------


@right("ch16.pool_heads")
def by_reshape(weight, num_heads, groups):
    d, group = weight.shape[0] // num_heads, num_heads // groups
    return weight.reshape(groups, group, d, -1).mean(dim=1).reshape(groups * d, -1)


@right("ch16.pool_heads")
def by_matrix(weight, num_heads, groups):
    d, group = weight.shape[0] // num_heads, num_heads // groups
    mix = torch.eye(groups, dtype=weight.dtype).repeat_interleave(group, dim=1) / group  # G H
    return torch.kron(mix, torch.eye(d, dtype=weight.dtype)) @ weight


@right("ch16.pool_heads")
def by_loop(weight, num_heads, groups):
    heads = weight.chunk(num_heads)
    group = num_heads // groups
    means = [torch.stack(heads[g * group : (g + 1) * group]).mean(0) for g in range(groups)]
    return torch.cat(means)


@wrong("ch16.pool_heads", "rows averaged inside each head")
def rows_averaged(weight, num_heads, groups):
    group = num_heads // groups
    return weight.unflatten(0, (-1, group)).mean(1)


@wrong("ch16.pool_heads", "divided by the number of heads")
def too_small(weight, num_heads, groups):
    return by_reshape(weight, num_heads, groups) * groups / num_heads


# --- The absorbed form ----------------------------------------------------------------------------

right("ch16.absorbed_attention", "the package's, absorbed")(absorbed_latent_attention)
right("ch16.absorbed_attention", "the package's, keys made")(latent_attention)


@right("ch16.absorbed_attention", "by matrix products")
def absorbed(query, rotary_query, latent, rotary_key, up_key, up_value):
    latent, rotary_key = latent[:, None], rotary_key[:, None]
    scores = query @ up_key @ latent.mT + rotary_query @ rotary_key.mT
    scores = scores / (query.shape[-1] + rotary_query.shape[-1]) ** 0.5
    return scores.softmax(-1) @ latent @ up_value.mT


@wrong("ch16.absorbed_attention", "no scale")
def without_scale(query, rotary_query, latent, rotary_key, up_key, up_value):
    made = (query, rotary_query, latent, rotary_key, up_key, up_value)
    return latent_attention(*made, scale=1.0)


@wrong("ch16.absorbed_attention", "the two parts have a softmax each")
def two_softmaxes(query, rotary_query, latent, rotary_key, up_key, up_value):
    latent, rotary_key = latent[:, None], rotary_key[:, None]
    scale = (query.shape[-1] + rotary_query.shape[-1]) ** -0.5
    parts = query @ up_key @ latent.mT, rotary_query @ rotary_key.mT
    weights = sum((scale * part).softmax(-1) for part in parts) / 2
    return weights @ latent @ up_value.mT


# --- A ring buffer, a sink ------------------------------------------------------------------------


@right("ch16.ring_buffer")
class Ring:
    def __init__(self, window):
        self.tokens, self.window = [], window

    def append(self, key, value):
        self.tokens = [*self.tokens, (key, value)][-self.window :]
        return tuple(torch.cat(every, dim=2) for every in zip(*self.tokens, strict=True))


@wrong("ch16.ring_buffer", "keys are forgotten, values are not")
class AllValues(Ring):
    def append(self, key, value):
        keys, _ = super().append(key, value)
        return keys, value.expand(-1, -1, keys.shape[2], -1)


@right("ch16.sink_attention")
def by_gate(query, key, value, sinks):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    gate = torch.sigmoid(scores.logsumexp(-1, keepdim=True) - sinks[:, None, None])
    return gate * functional.scaled_dot_product_attention(query, key, value)


@right("ch16.sink_attention")
def by_column(query, key, value, sinks):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    column = sinks[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), -1).softmax(-1)[..., :-1] @ value


@wrong("ch16.sink_attention", "the gate of another sign")
def other_gate(query, key, value, sinks):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    gate = torch.sigmoid(sinks[:, None, None] - scores.logsumexp(-1, keepdim=True))
    return gate * functional.scaled_dot_product_attention(query, key, value)


@wrong("ch16.sink_attention", "the maximum in place of the sum")
def by_maximum(query, key, value, sinks):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    gate = torch.sigmoid(scores.amax(-1, keepdim=True) - sinks[:, None, None])
    return gate * functional.scaled_dot_product_attention(query, key, value)


# --- Copy on write --------------------------------------------------------------------------------


@right("ch16.copy_on_write")
def block_to_write(block, references, free, copy):
    if references[block] == 1:
        return block
    new = free.pop()
    copy(block, new)
    references[block] -= 1
    references[new] = 1
    return new


@right("ch16.copy_on_write", "from the other end of the list")
def first_free(block, references, free, copy):
    if references[block] > 1:
        references[block] -= 1
        block, old = free.pop(0), block
        references[block] = 1
        copy(old, block)
    return block


@wrong("ch16.copy_on_write", "the new block stays on the free list")
def still_free(block, references, free, copy):
    if references[block] == 1:
        return block
    new = free[-1]
    copy(block, new)
    references[block] -= 1
    references[new] = 1
    return new


@wrong("ch16.copy_on_write", "copied with three readers only")
def three_readers(block, references, free, copy):
    return block if references[block] < 3 else block_to_write(block, references, free, copy)


# --- Accept or replace ----------------------------------------------------------------------------


@right("ch16.checked_token")
def checked_token(token, q, p, choose):
    accepted = (p[token] / q[token]).clamp(max=1)
    if choose(torch.stack([1 - accepted, accepted])):
        return token
    missing = (p - q).clamp(min=0)
    return choose(missing / missing.sum())


@right("ch16.checked_token", "in one sample")
def in_one_sample(token, q, p, choose):
    """What is missing, times the probability of a rejection, and the token itself."""
    stay = min(1.0, float(p[token] / q[token]))
    missing = (p.double() - q.double()).clamp(min=0)
    total = float(missing.sum())
    mixed = (1 - stay) * missing / total if total > 1e-9 else torch.zeros_like(missing)
    mixed[token] += stay
    return choose(mixed)


@wrong("ch16.checked_token", "always accepted")
def always(token, q, p, choose):
    return token


@wrong("ch16.checked_token", "replaced from the absolute difference")
def absolute(token, q, p, choose):
    accepted = (p[token] / q[token]).clamp(max=1)
    if choose(torch.stack([1 - accepted, accepted])):
        return token
    return choose((p - q).abs() / (p - q).abs().sum())


right("ch16.gated_retention", "the package's")(gated_retention)


@right("ch16.gated_retention", "token by token")
def gates_by_token(query, key, value, gate_logits, *, temperature=16.0, state=None):
    decays, outputs = gate_logits.sigmoid() ** (1 / temperature), []
    state = 0.0 if state is None else state
    for t in range(query.shape[2]):
        state = decays[:, :, t, None, None] * state + key[:, :, t, :, None] * value[:, :, t, None]
        outputs.append((query[:, :, t, None] @ state)[:, :, 0] / query.shape[-1] ** 0.5)
    output = torch.stack(outputs, 2)
    return output / (output.square().mean(-1, keepdim=True) + 1e-5).sqrt(), state


@wrong("ch16.gated_retention", "the new state is the old one")
def state_forgotten(query, key, value, gate_logits, *, temperature=16.0, state=None):
    output, new = gated_retention(
        query, key, value, gate_logits, temperature=temperature, state=state
    )
    return output, new if state is None else state


@wrong("ch16.gated_retention", "the output is not normalized")
def not_normalized(query, key, value, gate_logits, *, temperature=16.0, state=None):
    log_decay = gated_log_decay(gate_logits, temperature=temperature)
    return parallel_retention(query, key, value, log_decay, state=state)
