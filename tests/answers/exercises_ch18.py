"""The answers to the exercises of chapter 18."""

import math

import torch
from torch.nn.functional import elu, pad

from tested_transformer.exercises.ch18_core import ntk_frequencies
from tested_transformer.exercises.ch18_scaled import new_angles
from tested_transformer.functional.permutation_masks import permutation_masks
from tested_transformer.functional.relative_shift import relative_shift
from tested_transformer.mixers.infini_attention import infini_attention
from tested_transformer.positions.alibi import alibi_slopes
from tested_transformer.positions.rotary import apply_rotary
from tested_transformer.positions.xpos import apply_xpos
from tested_transformer.specs.dynamic_ntk.mutants import dynamic_base
from tested_transformer.specs.rotary_layout.mutants import to_halves
from tested_transformer.training.auxiliary import auxiliary_loss

from . import right, wrong

# --- Rotary positions, interleaved ----------------------------------------------------------------

right("ch18.rotary_interleaved", "the package's")(apply_rotary)


@right("ch18.rotary_interleaved", "as complex numbers")
def complex_rotation(x, position_ids):
    d = x.shape[-1]
    speed = 10000.0 ** (-torch.arange(0, d, 2).double() / d)
    angles = position_ids[:, None] * speed
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


@right("ch18.rotary_interleaved", "evens and odds, written into a copy")
def evens_and_odds(x, position_ids):
    d = x.shape[-1]
    angles = position_ids[:, None] * 10000.0 ** (-torch.arange(0, d, 2).double() / d)
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    a, b = x[..., 0::2], x[..., 1::2]
    out = torch.empty_like(x)
    out[..., 0::2], out[..., 1::2] = a * cos - b * sin, a * sin + b * cos
    return out


@wrong("ch18.rotary_interleaved", "halves")
def in_halves(x, position_ids):
    return apply_rotary(x, position_ids, layout="halves")


@wrong("ch18.rotary_interleaved", "another base")
def small_base(x, position_ids):
    return apply_rotary(x, position_ids, base=1000.0)


# --- NTK-aware scaling ----------------------------------------------------------------------------

right("ch18.ntk_frequencies", "the new base")(ntk_frequencies)


@right("ch18.ntk_frequencies", "each frequency divided by a power of the factor, in float64")
def each_divided(d, factor):
    pairs = torch.arange(d // 2).double()
    return 10000.0 ** (-2 * pairs / d) / factor ** (2 * pairs / (d - 2))


@right("ch18.ntk_frequencies", "from the first to the last by equal ratios")
def by_equal_ratios(d, factor):
    last = 10000.0 ** (-(d - 2) / d) / factor
    return torch.logspace(0, math.log10(last), d // 2, dtype=torch.float64)


@wrong("ch18.ntk_frequencies", "the last frequency alone divided")
def last_alone(d, factor):
    frequency = 10000.0 ** -(torch.arange(0, d, 2) / d)
    return torch.cat((frequency[:-1], frequency[-1:] / factor))


@wrong("ch18.ntk_frequencies", "the angles' base squared")
def squared(d, factor):
    return (10000.0 * factor**2) ** -(torch.arange(0, d, 2) / d)


# --- Pairs that meet new angles -------------------------------------------------------------------

right("ch18.new_angles", "turns below one")(new_angles)


@right("ch18.new_angles", "by the angle of the last token")
def by_angle(d, base, trained):
    exponents = -2 * torch.arange(d // 2, dtype=torch.float64) / d
    return trained * torch.pow(base, exponents) < 2 * math.pi


@right("ch18.new_angles", "from an index on")
def from_an_index(d, base, trained):
    index = math.log(trained / (2 * math.pi)) / (2 / d * math.log(base))
    return torch.arange(d // 2) > index


@wrong("ch18.new_angles", "turns in a text four times as long")
def in_the_new_text(d, base, trained):
    return new_angles(d, base, 4 * trained)


@wrong("ch18.new_angles", "from the middle on")
def from_the_middle(d, base, trained):
    return torch.arange(d // 2) >= d // 4


# --- Dynamic NTK ----------------------------------------------------------------------------------

right("ch18.dynamic_base", "clamped")(dynamic_base)


@right("ch18.dynamic_base", "text by text")
def by_text(lengths, base, d, trained, factor):
    stretches = [max(1.0, factor * n / trained - (factor - 1)) for n in lengths.tolist()]
    return torch.tensor([base * s ** (d / (d - 2)) for s in stretches], dtype=torch.float64)


@wrong("ch18.dynamic_base", "the factor times the base")
def times(lengths, base, d, trained, factor):
    return torch.where(lengths > trained, base * factor, base).double()


@wrong("ch18.dynamic_base", "the exponent inverted")
def inverted(lengths, base, d, trained, factor):
    stretch = factor * lengths.clamp(min=trained).double() / trained - (factor - 1)
    return base * stretch ** ((d - 2) / d)


# --- From interleaved to halves -------------------------------------------------------------------

right("ch18.to_halves", "by three axes")(to_halves)


@right("ch18.to_halves", "evens, then odds, of each head")
def evens_then_odds(weight, num_heads):
    heads = weight.chunk(num_heads)
    return torch.cat([torch.cat((head[0::2], head[1::2])) for head in heads])


@right("ch18.to_halves", "the line of a conversion script")
def as_in_transformers(weight, num_heads):
    rows, columns = weight.shape
    pairs = weight.view(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)


@wrong("ch18.to_halves", "the columns in place of the rows")
def columns_permuted(weight, num_heads):
    return torch.cat((weight[:, 0::2], weight[:, 1::2]), 1)


# --- The relative shift ---------------------------------------------------------------------------

right("ch18.causal_shift", "the package's")(relative_shift)


@right("ch18.causal_shift", "by gather")
def by_gather(by_distance, num_keys):
    length = by_distance.shape[-2]
    i, j = torch.arange(length)[:, None], torch.arange(num_keys)
    distance = i + num_keys - length - j
    column = (num_keys - 1 - distance).clamp(max=num_keys - 1)
    picked = by_distance.gather(-1, column.expand(by_distance.shape))
    return picked * (distance >= 0)


@right("ch18.causal_shift", "row by row")
def rolled(by_distance, num_keys):
    length, rows = by_distance.shape[-2], []
    for i in range(length):
        left = length - 1 - i
        rows.append(pad(by_distance[..., i, left:], (0, left)))
    return torch.stack(rows, -2)


@wrong("ch18.causal_shift", "the future left as it comes")
def no_tril(by_distance, num_keys):
    *batch, length, columns = by_distance.shape
    padded = pad(by_distance, (1, 0)).reshape(*batch, columns + 1, length)
    return padded[..., 1:, :].reshape(by_distance.shape)


@wrong("ch18.causal_shift", "to the right")
def to_the_right(by_distance, num_keys):
    rows = [by_distance[..., i, :].roll(i, -1) for i in range(by_distance.shape[-2])]
    return torch.stack(rows, -2).tril(num_keys - by_distance.shape[-2])


# --- Infini-attention -----------------------------------------------------------------------------

right("ch18.infini_attention", "the package's")(infini_attention)


@right("ch18.infini_attention", "all keys of earlier segments, without a memory")
def by_all_keys(query, key, value, gate, *, segment_length):
    f, length = lambda x: elu(x) + 1, query.shape[2]
    number = torch.arange(length) // segment_length
    weights = f(query) @ f(key).mT * (number[:, None] > number)
    recalled = weights @ value / weights.sum(-1, keepdim=True).clamp(min=1e-300)
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    own = (number[:, None] == number).tril()
    local = scores.masked_fill(~own, -math.inf).softmax(-1) @ value
    share = gate.sigmoid()[:, None, None]
    return share * recalled + (1 - share) * local, f(key).mT @ value, f(key).sum(2)


@wrong("ch18.infini_attention", "relu in place of ELU + 1")
def by_relu(query, key, value, gate, *, segment_length):
    _, memory, normalizer = infini_attention(query, key, value, gate, segment_length=segment_length)
    output, _, _ = infini_attention(
        query.relu(), key.relu(), value, gate, segment_length=segment_length
    )
    return output, memory, normalizer


@wrong("ch18.infini_attention", "one segment")
def one_segment(query, key, value, gate, *, segment_length):
    return infini_attention(query, key, value, gate, segment_length=query.shape[2])


# --- Orders ---------------------------------------------------------------------------------------

right("ch18.order_masks", "the package's")(permutation_masks)


@right("ch18.order_masks", "step by step")
def step_by_step(order):
    batch, length = order.shape
    query = torch.zeros(batch, 1, length, length, dtype=torch.bool)
    for b, row in enumerate(order.tolist()):
        for t, position in enumerate(row):
            query[b, 0, position, row[:t]] = True
    return query | torch.eye(length, dtype=torch.bool), query


@wrong("ch18.order_masks", "from left to right, whatever the order")
def left_to_right(order):
    return permutation_masks(torch.arange(order.shape[1]).expand(order.shape))


@wrong("ch18.order_masks", "the masks the other way round")
def swapped(order):
    return permutation_masks(order)[::-1]


# --- Buckets and slopes ---------------------------------------------------------------------------


@right("ch18.causal_buckets", "pair by pair")
def pair_by_pair(query_ids, key_ids, table, bidirectional=False, max_distance=128):
    half, rows = len(table) // 2, []
    for i in query_ids.tolist():
        for j in key_ids.tolist():
            distance = max(i - j, 0)
            if distance >= half:
                share = math.log(distance / half) / math.log(max_distance / half)
                distance = min(half + int(share * (len(table) - half)), len(table) - 1)
            rows.append(table[distance])
    return torch.stack(rows, -1).unflatten(-1, (len(query_ids), -1))[None]


@wrong("ch18.causal_buckets", "one bucket for every eight")
def by_eight(query_ids, key_ids, table, bidirectional=False, max_distance=128):
    distance = (query_ids[:, None] - key_ids).clamp(min=0)
    return table[(distance // 8).clamp(max=len(table) - 1)].movedim(-1, 0)[None]


right("ch18.alibi_slopes", "the package's")(alibi_slopes)


@wrong("ch18.alibi_slopes", "1 / 2^h")
def halves(num_heads):
    return 0.5 ** torch.arange(1, num_heads + 1)


# --- xPos -----------------------------------------------------------------------------------------

right("ch18.xpos", "the package's")(apply_xpos)


@right("ch18.xpos", "as complex numbers")
def xpos_as_complex_numbers(
    x, position_ids, *, of_keys=False, scale_base=512.0, center=0, layout="interleaved"
):
    d = x.shape[-1]
    a, b = (x[..., 0::2], x[..., 1::2]) if layout == "interleaved" else x.chunk(2, -1)
    i = torch.arange(0, d, 2).double() / d
    exponent = (position_ids.double() - center) / scale_base * (-1 if of_keys else 1)
    size = ((i + 0.4) / 1.4) ** exponent[:, None]
    pairs = torch.complex(a, b) * torch.polar(size, position_ids[:, None] * 10000.0**-i)
    if layout == "interleaved":
        return torch.view_as_real(pairs).flatten(-2)
    return torch.cat((pairs.real, pairs.imag), -1)


@wrong("ch18.xpos", "the decay of a pair for its first feature alone")
def first_feature_alone(
    x, position_ids, *, of_keys=False, scale_base=512.0, center=0, layout="interleaved"
):
    one = apply_xpos(
        x, position_ids, of_keys=of_keys, scale_base=scale_base, center=center, layout=layout
    )
    two = apply_rotary(x, position_ids, layout=layout)
    if layout == "interleaved":
        return torch.stack((one[..., 0::2], two[..., 1::2]), -1).flatten(-2)
    return torch.cat((one.chunk(2, -1)[0], two.chunk(2, -1)[1]), -1)


# --- Auxiliary losses -----------------------------------------------------------------------------

right("ch18.auxiliary_loss", "the package's")(auxiliary_loss)


@right("ch18.auxiliary_loss", "weights times a matrix of losses")
def matrix_of_losses(logits, ids, *, progress, extra_weight=0.5):
    n, k = logits.shape[:2]
    log_p = logits.log_softmax(-1)
    losses = [
        [-log_p[i, j, :, : -j - 1].gather(-1, ids[:, j + 1 :, None]).mean() for j in range(k)]
        for i in range(n)
    ]
    losses = torch.stack([torch.stack(each) for each in losses])  # n K
    targets = torch.full((k,), extra_weight).to(logits)
    targets[0] = 1.0
    layers = [float(i == n or 2 * n * progress < i) for i in range(1, n + 1)]
    return torch.tensor(layers).to(logits) @ losses @ targets


@wrong("ch18.auxiliary_loss", "the sum over the positions")
def sum_over_positions(logits, ids, *, progress, extra_weight=0.5):
    return auxiliary_loss(logits, ids, progress=progress, extra_weight=extra_weight) * ids.numel()


@wrong("ch18.auxiliary_loss", "the first layer stays, not the last")
def first_layer_stays(logits, ids, *, progress, extra_weight=0.5):
    return auxiliary_loss(logits.flip(0), ids, progress=progress, extra_weight=extra_weight)
