"""DeepSeek sparse attention by sorting, by thresholds and by loops; the loss by kl_div and by cross-entropies."""

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.mixers.indexed_attention import (
    indexed_attention,
    indexer_loss,
    lightning_indexer,
    masked_indexed_attention,
)

right("indexed_attention", "the package's")(indexed_attention)
right("lightning_indexer", "the package's")(lightning_indexer)
right("indexer_loss", "the package's")(indexer_loss)


@right("indexed_attention", "the package's, under a mask")
def masked(
    query, key, value, index_query, index_key, index_weights, *, num_keys, causal=True,
    key_mask=None, mask=None, scale=None,
):  # fmt: skip
    return masked_indexed_attention(
        query, key, value, index_query, index_key, index_weights, num_keys=num_keys,
        causal=causal, key_mask=key_mask, mask=mask, scale=scale,
    )  # fmt: skip


def may_read(query, key, causal, key_mask):
    """True where a query may read a key: (B, L, S)."""
    length, total = query.shape[2], key.shape[2]
    own = torch.arange(length)[:, None] + total - length
    allowed = (torch.arange(total) <= own) | torch.tensor(not causal)
    real = torch.ones(len(key), total, dtype=torch.bool) if key_mask is None else key_mask
    return allowed & real[:, None]


def votes(index_query, index_key, index_weights):
    dots = torch.einsum("bile,bse->bils", index_query, index_key)
    return torch.einsum("bil,bils->bls", index_weights, dots.clamp_min(0))


@right("indexed_attention", "ranks from two sorts, torch's own attention")
def by_ranks(
    query, key, value, index_query, index_key, index_weights, *, num_keys, causal=True,
    key_mask=None, scale=None,
):  # fmt: skip
    allowed = may_read(query, key, causal, key_mask)
    scores = votes(index_query, index_key, index_weights).masked_fill(~allowed, -torch.inf)
    ranks = scores.argsort(-1, descending=True).argsort(-1)
    chosen = (allowed & (ranks < num_keys))[:, None]
    repeats = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(repeats, 1) for each in (key, value))
    some = chosen.any(-1, keepdim=True)
    output = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=chosen | ~some, scale=scale
    )
    return torch.where(some, output, torch.zeros_like(output))


@right("indexed_attention", "a threshold, query by query")
def by_threshold(
    query, key, value, index_query, index_key, index_weights, *, num_keys, causal=True, key_mask=None
):  # fmt: skip
    allowed = may_read(query, key, causal, key_mask)
    scores, outputs = votes(index_query, index_key, index_weights), []
    groups = query.shape[1] // key.shape[1]
    for b in range(len(query)):
        for t in range(query.shape[2]):
            own = allowed[b, t].nonzero()[:, 0]
            if len(own) > num_keys:
                limit = scores[b, t, own].sort(descending=True).values[num_keys - 1]
                own = own[scores[b, t, own] >= limit]
            for h in range(query.shape[1]):
                keys, values = key[b, h // groups, own], value[b, h // groups, own]
                weights = (keys @ query[b, h, t] / query.shape[-1] ** 0.5).softmax(0)
                outputs.append(weights @ values)
    if not outputs:
        return query.new_zeros(*query.shape[:3], value.shape[-1])
    shape = (len(query), query.shape[2], query.shape[1], value.shape[-1])
    return torch.stack(outputs).reshape(shape).transpose(1, 2)


@right("lightning_indexer", "complex numbers and a sort")
def by_complex(query, key, weights, *, num_keys, rotary_dim, base=10000.0):
    length, half = key.shape[1], rotary_dim // 2
    angles = torch.arange(length).double()[:, None] / base ** (torch.arange(half).double() / half)

    def turned(x):
        x = x.double()
        pairs = torch.complex(x[..., :half], x[..., half:rotary_dim])
        pairs = pairs * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((pairs.real, pairs.imag, x[..., rotary_dim:]), -1)

    scores = votes(turned(query), turned(key), weights.double())
    past = torch.ones(length, length, dtype=torch.bool).tril()
    ranks = scores.masked_fill(~past, -torch.inf).argsort(-1, descending=True).argsort(-1)
    return past & (ranks < num_keys)


@right("lightning_indexer", "the difference of positions alone")
def by_distance(query, key, weights, *, num_keys, rotary_dim, base=10000.0):
    """Queries rotated by the distance to each key, keys as they are."""
    length, half = key.shape[1], rotary_dim // 2
    steps = torch.arange(length).double()
    angles = (steps[:, None] - steps)[..., None] / base ** (2 * torch.arange(half) / rotary_dim)
    cos, sin = angles.cos(), angles.sin()  # L S half
    q, k = query.double(), key.double()
    a, b = q[..., :half, None].mT, q[..., half:rotary_dim, None].mT  # B I L 1 half
    turned = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)  # B I L S r
    dots = torch.einsum("bilsr,bsr->bils", turned, k[..., :rotary_dim])
    dots = dots + torch.einsum("bile,bse->bils", q[..., rotary_dim:], k[..., rotary_dim:])
    scores = torch.einsum("bil,bils->bls", weights.double(), dots.relu())
    past = torch.ones(length, length, dtype=torch.bool).tril()
    scores = scores.masked_fill(~past, -torch.inf)
    chosen = scores.topk(min(num_keys, length), -1).indices
    return torch.zeros_like(scores).scatter(-1, chosen, 1.0).bool() & past


@right("indexer_loss", "cross-entropy minus entropy, over queries one by one")
def by_entropies(scores, attention_weights, *, mask=None):
    mask = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand_as(scores)
    found = []
    for own, weights, keys in zip(
        scores.flatten(0, 1), attention_weights.detach().transpose(1, 2).flatten(0, 1),
        mask.flatten(0, 1), strict=True,
    ):  # fmt: skip
        p = weights[:, keys].sum(0)
        if p.sum() > 0:
            p = p / p.sum()
            entropy = torch.special.entr(p).sum()
            found.append(functional.cross_entropy(own[keys][None], p[None]) - entropy)
    return torch.stack(found).mean() if found else scores.sum()


@right("indexer_loss", "torch's kl_div")
def by_kl_div(scores, attention_weights, *, mask=None):
    mask = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand_as(scores)
    p = (attention_weights.detach() * mask[:, None]).mean(1)
    counts = p.sum(-1) > 0
    p, mask, scores = functional.normalize(p[counts], p=1, dim=-1), mask[counts], scores[counts]
    logs = scores - scores.masked_fill(~mask, -torch.inf).logsumexp(-1, keepdim=True)
    return functional.kl_div(logs, p, reduction="sum") / max(1, int(counts.sum()))


@wrong("indexed_attention", "the selected keys are those of the lowest scores")
def lowest(query, key, value, index_query, index_key, index_weights, **options):
    return indexed_attention(query, key, value, index_query, index_key, -index_weights, **options)


@wrong("indexed_attention", "the keys get no gradient")
def detached(query, key, value, *index, **options):
    return indexed_attention(query, key.detach(), value, *index, **options)


@wrong("indexed_attention", "one key too few")
def one_less(*tensors, num_keys, **options):
    return indexed_attention(*tensors, num_keys=max(1, num_keys - 1), **options)


@wrong("lightning_indexer", "positions count from the end")
def backwards(query, key, weights, **options):
    flipped = lightning_indexer(query.flip(2), key.flip(1), weights.flip(2), **options)
    return flipped.flip(1, 2) & torch.ones_like(flipped).tril()


@wrong("lightning_indexer", "a query does not select its own token")
def strictly_past(query, key, weights, **options):
    selected = lightning_indexer(query, key, weights, **options)
    return selected & ~torch.eye(selected.shape[-1], dtype=torch.bool)


@wrong("indexer_loss", "the sum over queries, not the mean")
def summed(scores, attention_weights, **options):
    return scores.shape[1] * indexer_loss(scores, attention_weights, **options)


@wrong("indexer_loss", "the mean of logarithms of each head")
def per_head(scores, attention_weights, **options):
    heads = attention_weights.unbind(1)
    return sum(indexer_loss(scores, h[:, None], **options) for h in heads) / len(heads)
