"""Latent attention by einsum, by torch's own attention, and head by head."""

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.functional.latent import absorbed_latent_attention, latent_attention

right("latent_attention", "the package's, keys written out")(latent_attention)
right("latent_attention", "the package's, absorbed")(absorbed_latent_attention)


def hidden(length, keys, causal, mask):
    """Minus infinity where a query may not attend, of shape (L, S)."""
    allowed = torch.ones(length, keys, dtype=torch.bool)
    allowed = allowed.tril(keys - length) if causal else allowed
    allowed = allowed if mask is None else allowed & mask
    return torch.zeros(length, keys).masked_fill(~allowed, float("-inf"))


@right("latent_attention", "einsum")
def by_einsum(
    query, rotary_query, latent, rotary_key, up_key, up_value, *, causal=False, mask=None
):
    key = torch.einsum("bsc,hdc->bhsd", latent, up_key)
    scores = torch.einsum("bhld,bhsd->bhls", query, key)
    scores = scores + torch.einsum("bhlr,bsr->bhls", rotary_query, rotary_key)
    scores = scores / (query.shape[-1] + rotary_query.shape[-1]) ** 0.5
    scores = scores + hidden(*scores.shape[-2:], causal, mask).to(scores)
    return torch.einsum("bhls,bsc,hvc->bhlv", scores.softmax(-1), latent, up_value)


@right("latent_attention", "torch's attention, head by head")
def by_torch(query, rotary_query, latent, rotary_key, up_key, up_value, *, causal=False, mask=None):
    bias = hidden(query.shape[2], latent.shape[1], causal, mask).to(query)
    bias = bias.expand(*query.shape[:3], latent.shape[1])
    heads = [
        functional.scaled_dot_product_attention(
            torch.cat((query[:, h], rotary_query[:, h]), -1),
            torch.cat((latent @ up_key[h].mT, rotary_key), -1),
            latent @ up_value[h].mT,
            attn_mask=bias[:, h],
        )
        for h in range(query.shape[1])
    ]
    return torch.stack(heads, 1)


@wrong("latent_attention", "the rotary key is scaled up with the number of heads")
def rotary_for_each_head(query, rotary_query, latent, rotary_key, *others, **options):
    return latent_attention(
        query, rotary_query, latent, query.shape[1] * rotary_key, *others, **options
    )


@wrong("latent_attention", "the latent is detached from the values")
def detached(query, rotary_query, latent, rotary_key, up_key, up_value, **options):
    made = (query, rotary_query, latent, rotary_key, up_key, up_value)
    _, weights = latent_attention(*made, return_weights=True, **options)
    return weights @ (latent.detach()[:, None] @ up_value.mT)
