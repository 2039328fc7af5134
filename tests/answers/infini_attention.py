"""Infini-attention by einsum, by one matrix with the normalizer as its last column, and from all keys that are past."""

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.mixers.infini_attention import infini_attention

right("infini_attention", "the package's")(infini_attention)


def positive(x):
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


@right("infini_attention", "the normalizer as one more column of the memory")
def one_matrix(
    query, key, value, gate, *, segment_length, delta=False, memory=None, normalizer=None, scale=None
):  # fmt: skip
    heads = (*key.shape[:2], key.shape[-1])
    if memory is None:
        memory, normalizer = value.new_zeros(*heads, value.shape[-1]), value.new_zeros(heads)
    state = torch.cat((memory, normalizer[..., None]), -1)

    def divided(x):
        both = torch.einsum("bhld,bhdv->bhlv", positive(x), state)
        return both[..., :-1] / torch.where(both[..., -1:] == 0, 1.0, both[..., -1:])

    share, outputs = torch.sigmoid(gate)[None, :, None, None], []
    for start in range(0, query.shape[2], segment_length):
        q, k, v = (x[:, :, start : start + segment_length] for x in (query, key, value))
        local = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        outputs.append(torch.lerp(local, divided(q), share.expand_as(local)))
        new = v - divided(k) if delta else v
        new = torch.cat((new, torch.ones_like(new[..., :1])), -1)
        state = state + torch.einsum("bhld,bhlv->bhdv", positive(k), new)
    output = torch.cat(outputs, 2) if outputs else torch.zeros_like(value)
    return output, state[..., :-1], state[..., -1]


@right("infini_attention", "what is recalled as attention to all tokens of the segments before")
def from_all_keys(
    query, key, value, gate, *, segment_length, delta=False, memory=None, normalizer=None, scale=None
):  # fmt: skip
    if delta:
        options = {"memory": memory, "normalizer": normalizer, "scale": scale}
        return one_matrix(
            query, key, value, gate, segment_length=segment_length, delta=True, **options
        )
    place = torch.arange(query.shape[2])
    segment = place // segment_length
    within = (segment[:, None] == segment) & (place[:, None] >= place)
    width = query.shape[-1]
    scores = query @ key.mT * (width**-0.5 if scale is None else scale)
    local = scores.masked_fill(~within, -torch.inf).softmax(-1) @ value
    past = (positive(query) @ positive(key).mT) * (segment[:, None] > segment)
    top, bottom = past @ value, past.sum(-1, keepdim=True)
    written = positive(key).mT @ value, positive(key).sum(2)
    if memory is not None:
        top = top + positive(query) @ memory
        bottom = bottom + positive(query) @ normalizer[..., None]
        written = memory + written[0], normalizer + written[1]
    share = gate.sigmoid()[:, None, None]
    recalled = top / torch.where(bottom == 0, 1.0, bottom)
    return share * recalled + (1 - share) * local, *written


@wrong("infini_attention", "the memory is detached between segments")
def detached(query, key, value, gate, *, segment_length, memory=None, normalizer=None, **options):
    outputs = []
    for part in zip(*(x.split(segment_length, 2) for x in (query, key, value)), strict=True):
        output, memory, normalizer = infini_attention(
            *part,
            gate,
            segment_length=segment_length,
            memory=memory,
            normalizer=normalizer,
            **options,
        )
        outputs.append(output)
        memory, normalizer = memory.detach(), normalizer.detach()
    return torch.cat(outputs, 2), memory, normalizer


@wrong("infini_attention", "the features are ReLU, so that a query may match nothing")
def by_relu(query, key, value, gate, **options):
    _, memory, normalizer = infini_attention(query, key, value, gate, **options)
    output, _, _ = infini_attention(query, key.relu(), value, gate, **options)
    return output, memory, normalizer


@wrong("infini_attention", "the delta rule is not asked for and applied")
def always_delta(query, key, value, gate, *, delta=False, **options):
    return infini_attention(query, key, value, gate, delta=True, **options)
