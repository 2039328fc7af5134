"""The answers to the exercises of chapter 9."""

import math

import torch
from torch.nn import functional

from . import right, wrong

# --- The embedding --------------------------------------------------------------------------------


@right("ch09.embed")
def by_torch(ids, table, positions):
    return functional.embedding(ids, table) * math.sqrt(table.shape[1]) + positions[: ids.shape[1]]


@right("ch09.embed")
def by_one_hot(ids, table, positions):
    rows = functional.one_hot(ids, len(table)).to(table.dtype) @ table
    return rows * table.shape[1] ** 0.5 + positions[: ids.shape[1]]


@right("ch09.embed")
def scaled_table(ids, table, positions):
    return torch.add(positions[None, : ids.shape[1]], (table.shape[1] ** 0.5 * table)[ids])


@wrong("ch09.embed", "the table is detached")
def table_detached(ids, table, positions):
    return by_torch(ids, table.detach(), positions)


@wrong("ch09.embed", "the positions are detached")
def positions_detached(ids, table, positions):
    return by_torch(ids, table, positions.detach())


@wrong("ch09.embed", "the last positions, not the first")
def last_positions(ids, table, positions):
    return by_torch(ids, table, positions[len(positions) - ids.shape[1] :])


@wrong("ch09.embed", "the root of the vocabulary's size")
def root_of_vocabulary(ids, table, positions):
    return table[ids] * len(table) ** 0.5 + positions[: ids.shape[1]]


@wrong("ch09.embed", "token 0 is taken for padding")
def zero_is_padding(ids, table, positions):
    rows = functional.embedding(ids, table, padding_idx=0)
    return rows * table.shape[1] ** 0.5 + positions[: ids.shape[1]]


# --- The masks of a translation -------------------------------------------------------------------


@right("ch09.masks")
def broadcast(source, target, pad_id):
    steps = torch.arange(target.shape[1])
    own = (target != pad_id)[:, None, None, :] & (steps <= steps[:, None])
    return own, (source != pad_id)[:, None, None, :]


@right("ch09.masks")
def expanded(source, target, pad_id):
    """Both in full, with the causal mask by triu."""
    (batch, length), keys = target.shape, source.shape[1]
    future = torch.triu(torch.ones(length, length), diagonal=1).bool()
    own = ~(future | target.eq(pad_id)[:, None, :])
    return own[:, None], source.ne(pad_id)[:, None, None].expand(batch, 1, length, keys)


@right("ch09.masks")
def sample_by_sample(source, target, pad_id):
    length = target.shape[1]
    own = [torch.tril((row != pad_id).expand(length, length)) for row in target]
    cross = [(row != pad_id).expand(length, len(row)) for row in source]
    return torch.stack(own)[:, None], torch.stack(cross)[:, None]


@wrong("ch09.masks", "token IDs below the padding are masked")
def greater(source, target, pad_id):
    return (
        (target > pad_id)[:, None, None, :] & torch.ones(2 * target.shape[1:]).tril().bool(),
        (source > pad_id)[:, None, None, :],
    )


@wrong("ch09.masks", "the padding is always 0")
def zero_pads(source, target, pad_id):
    return broadcast(source, target, 0)


@wrong("ch09.masks", "rows of padding are masked too")
def padded_queries(source, target, pad_id):
    own, cross = broadcast(source, target, pad_id)
    return own & (target != pad_id)[:, None, :, None], cross


@wrong("ch09.masks", "padding counted and taken to stand on the right")
def counted_from_the_left(source, target, pad_id):
    def real(ids):
        return torch.arange(ids.shape[1]) < (ids != pad_id).sum(1, keepdim=True)

    past = torch.ones(2 * target.shape[1:]).tril().bool()
    return real(target)[:, None, None, :] & past, real(source)[:, None, None, :]


@wrong("ch09.masks", "the lengths, not the padding: every sample as the first")
def first_sample(source, target, pad_id):
    own, cross = broadcast(source, target, pad_id)
    return own[:1].expand_as(own), cross[:1].expand_as(cross)


# --- A decoder layer ------------------------------------------------------------------------------


@right("ch09.decoder_layer")
def step_by_step(x, memory, own, cross, think, norm):
    x = norm(x + own(x))
    x = norm(x + cross(x, memory))
    return norm(x + think(x))


@right("ch09.decoder_layer")
def sublayer_first(x, memory, own, cross, think, norm):
    past = norm(own(x) + x)
    seen = norm(cross(past, memory) + past)
    return norm(think(seen) + seen)


@right("ch09.decoder_layer")
def in_a_loop(x, memory, own, cross, think, norm):
    for sublayer, others in ((own, ()), (cross, (memory,)), (think, ())):
        x = norm(torch.add(x, sublayer(x, *others)))
    return x


@wrong("ch09.decoder_layer", "the memory is detached")
def memory_detached(x, memory, own, cross, think, norm):
    return step_by_step(x, memory.detach(), own, cross, think, norm)


@wrong("ch09.decoder_layer", "the memory is normalized again")
def memory_normalized(x, memory, own, cross, think, norm):
    return step_by_step(x, norm(memory), own, cross, think, norm)


@wrong("ch09.decoder_layer", "the residual is detached")
def residual_detached(x, memory, own, cross, think, norm):
    x = norm(x + own(x))
    x = norm(x.detach() + cross(x, memory))
    return norm(x + think(x))


@wrong("ch09.decoder_layer", "a norm more at the end")
def normalized_twice(x, memory, own, cross, think, norm):
    return norm(step_by_step(x, memory, own, cross, think, norm))


@wrong("ch09.decoder_layer", "two sublayers side by side")
def side_by_side(x, memory, own, cross, think, norm):
    x = norm(x + own(x) + cross(x, memory))
    return norm(x + think(x))


# --- Counting -------------------------------------------------------------------------------------


@right("ch09.count_parameters")
def by_modules(vocab, d_model, d_ff, encoder_layers, decoder_layers):
    square, norm = d_model**2 + d_model, 2 * d_model
    network = 2 * d_model * d_ff + d_model + d_ff
    encoder, decoder = 4 * square + network + 2 * norm, 8 * square + network + 3 * norm
    return vocab * d_model + encoder_layers * encoder + decoder_layers * decoder


@right("ch09.count_parameters")
def by_torch_layers(vocab, d_model, d_ff, encoder_layers, decoder_layers):
    """torch's own layers, without memory for their numbers."""
    options = {"d_model": d_model, "nhead": 1, "dim_feedforward": d_ff, "device": "meta"}
    layers = (
        torch.nn.TransformerEncoderLayer(**options),
        torch.nn.TransformerDecoderLayer(**options),
    )
    encoder, decoder = (sum(p.numel() for p in layer.parameters()) for layer in layers)
    return vocab * d_model + encoder_layers * encoder + decoder_layers * decoder


@wrong("ch09.count_parameters", "d_ff is taken to be 4 d_model")
def four_times(vocab, d_model, d_ff, encoder_layers, decoder_layers):
    return by_modules(vocab, d_model, 4 * d_model, encoder_layers, decoder_layers)


@wrong("ch09.count_parameters", "as many decoder as encoder layers")
def alike(vocab, d_model, d_ff, encoder_layers, decoder_layers):
    return by_modules(vocab, d_model, d_ff, encoder_layers, encoder_layers)


@wrong("ch09.count_parameters", "a float")
def approximately(vocab, d_model, d_ff, encoder_layers, decoder_layers):
    return float(by_modules(vocab, d_model, d_ff, encoder_layers, decoder_layers))


# --- The loss -------------------------------------------------------------------------------------


@right("ch09.loss")
def by_cross_entropy(logits, answers, pad_id):
    return functional.cross_entropy(logits.transpose(1, 2), answers, ignore_index=pad_id)


@right("ch09.loss")
def from_log_probabilities(logits, answers, pad_id):
    real = answers != pad_id
    chosen = logits.log_softmax(-1).gather(-1, (answers * real)[..., None])[..., 0]
    return -(chosen * real).sum() / real.sum()


@right("ch09.loss")
def real_tokens_only(logits, answers, pad_id):
    logits, answers = logits[answers != pad_id], answers[answers != pad_id]
    return (logits.logsumexp(-1) - logits[torch.arange(len(answers)), answers]).mean()


@right("ch09.loss")
def with_one_hot(logits, answers, pad_id):
    wanted = functional.one_hot(answers.clamp(min=0), logits.shape[-1]).to(logits.dtype)
    wanted = wanted * (answers != pad_id)[..., None]
    return -torch.einsum("blv,blv->", wanted, logits.log_softmax(-1)) / wanted.sum()


@wrong("ch09.loss", "the padding is always 0")
def zero_is_padding_too(logits, answers, pad_id):
    return by_cross_entropy(logits, answers, 0)


@wrong("ch09.loss", "the padding's own logit is looked up")
def padding_looked_up(logits, answers, pad_id):
    real = answers != pad_id
    right_logits = logits.gather(-1, answers[..., None])[..., 0]
    return ((logits.logsumexp(-1) - right_logits) * real).sum() / real.sum()


@wrong("ch09.loss", "token IDs below the padding do not count")
def only_above(logits, answers, pad_id):
    return by_cross_entropy(logits, torch.where(answers > pad_id, answers, pad_id), pad_id)


@wrong("ch09.loss", "a mean of the samples' means")
def mean_of_means(logits, answers, pad_id):
    each = zip(logits, answers, strict=True)
    return torch.stack([functional.cross_entropy(*s, ignore_index=pad_id) for s in each]).mean()


@wrong("ch09.loss", "the logits are detached in part")
def half_detached(logits, answers, pad_id):
    logits = logits - logits.logsumexp(-1, keepdim=True).detach()
    return functional.nll_loss(logits.flatten(0, 1), answers.flatten(), ignore_index=pad_id)


@wrong("ch09.loss", "the largest logit is not subtracted")
def naive(logits, answers, pad_id):
    return functional.nll_loss(
        (logits.exp() / logits.exp().sum(-1, keepdim=True)).log().flatten(0, 1),
        answers.flatten(),
        ignore_index=pad_id,
    )


@wrong("ch09.loss", "smoothed a little")
def smoothed(logits, answers, pad_id):
    return functional.cross_entropy(
        logits.flatten(0, 1), answers.flatten(), ignore_index=pad_id, label_smoothing=1e-6
    )
