"""The answers to rotary positions and to ALiBi."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import nn

from tested_transformer.functional.attention import attention
from tested_transformer.positions.alibi import ALiBi, alibi_slopes
from tested_transformer.positions.rotary import apply_rotary
from tested_transformer.specs.rotary.mutants import RotaryDecoder

from . import right, wrong
from .spoiled import spoil

# --- The rotation ---------------------------------------------------------------------------------


def rotate_half(x):
    """(-b, a) of two halves, as transformers has it."""
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def rotary(x, position_ids, base=10000.0, layout="interleaved", rotary_dim=None):
    """x cos + rotate_half(x) sin, the features of interleaved pairs moved into halves and back."""
    size = x.shape[-1] if rotary_dim is None else rotary_dim
    speeds = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = (position_ids[..., None] * speeds).unsqueeze(-3)
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (torch.cat((t, t), -1).to(wide) for t in (angles.cos(), angles.sin()))
    order = torch.arange(size).view(2, -1).T.flatten()  # from halves to interleaved
    turned = x[..., :size].to(wide)
    if layout == "interleaved":
        turned = turned[..., order.argsort()]
    turned = turned * cos + rotate_half(turned) * sin
    if layout == "interleaved":
        turned = turned[..., order]
    return torch.cat((turned.to(x.dtype), x[..., size:]), -1)


right("apply_rotary", "the library's")(apply_rotary)
right("apply_rotary", "the formula")(rotary)
right("apply_rotary", "a partial function")(partial(rotary))
spoil("apply_rotary", rotary, "x")


@right("apply_rotary")
def rotary_of_complex_numbers(x, position_ids, base=10000.0, layout="interleaved", rotary_dim=None):
    """As Llama has it: pairs as complex numbers."""
    size = rotary_dim or x.shape[-1]
    speeds = 1 / base ** (torch.arange(0, size, 2).double() / size)
    angles = position_ids.unsqueeze(-1).double() * speeds
    wide = torch.promote_types(x.dtype, torch.float32)
    turn = torch.polar(torch.ones_like(angles), angles).unsqueeze(-3)
    turn = turn.to(torch.complex128 if wide == torch.float64 else torch.complex64)
    shape = (-1, 2) if layout == "interleaved" else (2, -1)
    pairs = x[..., :size].to(wide).reshape(*x.shape[:-1], *_sizes(shape, size))
    pairs = pairs if layout == "interleaved" else pairs.mT
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    turned = turned if layout == "interleaved" else turned.mT
    return torch.cat((turned.flatten(-2).to(x.dtype), x[..., size:]), -1)


def _sizes(shape, size):
    return tuple(size // 2 if n < 0 else n for n in shape)


@right("apply_rotary")
def rotary_by_matrices(
    x, position_ids, base=10000.0, layout="interleaved", rotary_dim=None, **options
):
    """A 2 x 2 matrix for each position and pair."""
    size = x.shape[-1] if rotary_dim is None else rotary_dim
    speeds = torch.exp(torch.arange(size // 2).double() * (-2 * math.log(base) / size))
    angles = torch.einsum("...l,i->...li", position_ids.double(), speeds)
    cos, sin = angles.cos(), angles.sin()
    matrices = torch.stack((cos, -sin, sin, cos), -1).unflatten(-1, (2, 2)).unsqueeze(-5)
    odd = slice(size // 2, size) if layout == "halves" else slice(1, size, 2)
    even = slice(size // 2) if layout == "halves" else slice(0, size, 2)
    wide = torch.promote_types(x.dtype, torch.float32)
    pairs = torch.stack((x[..., even], x[..., odd]), -1).to(wide)
    turned = (matrices.to(wide) @ pairs.unsqueeze(-1)).squeeze(-1).to(x.dtype)
    answer = x.clone()
    answer[..., even], answer[..., odd] = turned[..., 0], turned[..., 1]
    return answer


@right("apply_rotary")
def rotary_of_float32_angles(x, position_ids, base=10000.0, layout="interleaved", rotary_dim=None):
    """The angles in the dtype of the rotation, as most code has them."""
    size = x.shape[-1] if rotary_dim is None else rotary_dim
    wide = torch.promote_types(x.dtype, torch.float32)
    speeds = 1.0 / (base ** (torch.arange(0, size, 2, dtype=wide) / size))
    angles = (position_ids.to(wide)[..., None] * speeds).unsqueeze(-3)
    pairs = (size // 2, 2) if layout == "interleaved" else (2, size // 2)
    axis = -1 if layout == "interleaved" else -2
    a, b = x[..., :size].to(wide).unflatten(-1, pairs).unbind(axis)
    turned = (a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin())
    return torch.cat((torch.stack(turned, axis).flatten(-2).to(x.dtype), x[..., size:]), -1)


def rotary_of(change):
    """The right formula of changed arguments."""

    def formula(x, position_ids, *, base=10000.0, layout="interleaved", rotary_dim=None):
        return change(x, position_ids, base, layout, rotary_dim)

    return formula


def at_once(x, ids, *options):
    """Positions of the first head's batch, whatever their axes are."""
    return rotary(x, ids.reshape(-1)[: x.shape[2]], *options)


for name, change in {
    "the base ignored in halves": lambda x, p, b, way, r: rotary(
        x, p, 10000.0 if way == "halves" else b, way, r
    ),
    "rotary_dim ignored in halves": lambda x, p, b, way, r: rotary(
        x, p, b, way, None if way == "halves" else r
    ),
    "a base of 10,000 beside a rotary_dim": lambda x, p, b, way, r: rotary(
        x, p, 10000.0 if r else b, way, r
    ),
    "the layout ignored in bfloat16": lambda x, p, b, way, r: rotary(
        x, p, b, "interleaved" if x.dtype == torch.bfloat16 else way, r
    ),
    "the layout ignored in float32": lambda x, p, b, way, r: rotary(
        x, p, b, "interleaved" if x.dtype == torch.float32 else way, r
    ),
    "positions of the first sequence": at_once,
    "at most 512 positions": lambda x, p, *o: rotary(x, p.clamp(max=512), *o),
    "positions by 2048": lambda x, p, *o: rotary(x, p % 2048, *o),
    "positions in half precision": lambda x, p, *o: rotary(
        x, p.to(x.dtype).double() if x.dtype in (torch.bfloat16, torch.float16) else p, *o
    ),
    "positions of one token are 0": lambda x, p, *o: rotary(x, 0 * p if x.shape[2] == 1 else p, *o),
    "no tokens raise": lambda x, p, *o: rotary(x, p + 0 * p.max(), *o),
    "float32 comes back from bfloat16": lambda x, p, *o: rotary(x, p, *o).to(
        torch.float32 if x.dtype == torch.bfloat16 else x.dtype
    ),
    "scaled by the root of 2": lambda x, p, *o: rotary(x, p, *o) * 2**0.5,
    "the last features rotated": lambda x, p, b, way, r: (
        rotary(x.flip(-1), p, b, way, r).flip(-1) if r else rotary(x, p, b, way)
    ),
    "the rest dropped to 0": lambda x, p, b, way, r: rotary(
        x * (torch.arange(x.shape[-1]) < (r or x.shape[-1])), p, b, way, r
    ),
    "the rest detached": lambda x, p, b, way, r: torch.cat(
        (rotary(x, p, b, way, r)[..., : r or x.shape[-1]], x[..., r or x.shape[-1] :].detach()), -1
    ),
    "tokens and features taken for each other where as many": lambda x, p, *o: (
        rotary(x.mT, p, *o).mT if x.shape[-1] == x.shape[-2] else rotary(x, p, *o)
    ),
}.items():
    wrong("apply_rotary", name)(rotary_of(change))

# --- Decoding -------------------------------------------------------------------------------------

right("rotary_attention", "the baseline's class")(RotaryDecoder)


class Decoder:
    """Keys as they come, rotated anew at every step; the library's attention."""

    def __init__(self):
        self.keys, self.values = [], []

    def __call__(self, query, key, value):
        past = sum(k.shape[2] for k in self.keys)
        self.keys.append(key)
        self.values.append(value)
        keys, values = torch.cat(self.keys, 2), torch.cat(self.values, 2)
        query = rotary(query, torch.arange(past, past + query.shape[2]))
        return self.attend(query, rotary(keys, torch.arange(keys.shape[2])), values)

    def attend(self, query, key, value):
        return attention(query, key, value, causal=True)


right("rotary_attention", "keys rotated at each step")(Decoder)


@right("rotary_attention")
class ByTorch(Decoder):
    def attend(self, query, key, value):
        allowed = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
        allowed = allowed.tril(key.shape[2] - query.shape[2])
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)


@right("rotary_attention")
class ByLogarithms(Decoder):
    def attend(self, query, key, value):
        scores = torch.einsum("bhld,bhsd->bhls", query, key) / math.sqrt(query.shape[-1])
        length, total = scores.shape[-2:]
        later = torch.arange(total) > torch.arange(total - length, total)[:, None]
        scores = scores.masked_fill(later, -math.inf)
        return (scores - scores.logsumexp(-1, keepdim=True)).exp() @ value


@wrong("rotary_attention", "keys detached")
class KeysDetached(Decoder):
    def attend(self, query, key, value):
        return super().attend(query, key.detach(), value)


@wrong("rotary_attention", "cached values detached")
class ValuesDetached(Decoder):
    def attend(self, query, key, value):
        past = value.shape[2] - query.shape[2]
        value = torch.cat((value[:, :, :past].detach(), value[:, :, past:]), 2)
        return super().attend(query, key, value)


@wrong("rotary_attention", "the last 16 keys only")
class LastSixteen(Decoder):
    def attend(self, query, key, value):
        return attention(query, key, value, causal=True, window=16)


@wrong("rotary_attention", "chunks that see their own future")
class NotCausal(Decoder):
    def attend(self, query, key, value):
        return attention(query, key, value)


@wrong("rotary_attention", "causal from the top left")
class FromTheTopLeft(Decoder):
    def attend(self, query, key, value):
        allowed = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
        return attention(query, key, value, mask=allowed)


@wrong("rotary_attention", "a softmax that overflows")
class Overflows(Decoder):
    def attend(self, query, key, value):
        powers = (query @ key.mT / query.shape[-1] ** 0.5).exp()
        powers = powers.tril(key.shape[2] - query.shape[2])
        return powers / powers.sum(-1, keepdim=True) @ value


@wrong("rotary_attention", "no scale")
class NoScale(Decoder):
    def attend(self, query, key, value):
        return attention(query, key, value, causal=True, scale=1.0)


@wrong("rotary_attention", "a cache that all objects share")
class Shared(Decoder):
    keys, values = [], []

    def __init__(self):
        pass


@wrong("rotary_attention", "new keys before old ones")
class NewFirst(Decoder):
    def __call__(self, query, key, value):
        past = sum(k.shape[2] for k in self.keys)
        self.keys.insert(0, key)
        self.values.insert(0, value)
        keys, values = torch.cat(self.keys, 2), torch.cat(self.values, 2)
        query = rotary(query, torch.arange(past, past + query.shape[2]))
        return self.attend(query, rotary(keys, torch.arange(keys.shape[2])), values)


@wrong("rotary_attention", "query and key swapped")
class Swapped(Decoder):
    def __call__(self, query, key, value):
        return super().__call__(key, query, value)


@wrong("rotary_attention", "the halves' layout")
class Halves(RotaryDecoder):
    def turn(self, x, offset):
        return rotary(x, torch.arange(offset, offset + x.shape[2]), layout="halves")


@wrong("rotary_attention", "counts from the batch")
class CountsTheBatch(RotaryDecoder):
    def offset(self, key):
        return 0 if self.key is None else self.key.shape[2] * max(key.shape[0] - 1, 1)


# --- ALiBi ----------------------------------------------------------------------------------------

right("alibi_slopes", "the library's")(alibi_slopes)


def slopes_of_the_paper(num_heads):
    """`get_slopes` of Press et al.'s code."""

    def of_power(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(num_heads).is_integer():
        return of_power(num_heads)
    closest = 2 ** math.floor(math.log2(num_heads))
    more = slopes_of_the_paper(2 * closest)
    return of_power(closest) + more[0::2][: num_heads - closest]


@right("alibi_slopes")
def slopes_of_press(num_heads):
    return torch.tensor(slopes_of_the_paper(num_heads))


@right("alibi_slopes")
def slopes_by_powers(num_heads):
    n = 1 << (num_heads.bit_length() - 1)
    first = torch.exp2(-8.0 * torch.arange(1, n + 1, dtype=torch.float64) / n)
    rest = torch.exp2(-4.0 * torch.arange(1, 2 * n + 1, 2, dtype=torch.float64) / n)
    return torch.cat((first, rest[: num_heads - n])).float()


@right("alibi_slopes")
def slopes_by_products(num_heads):
    n = 2 ** int(math.log2(num_heads))
    first, half = 2 ** (-8 / n), 2 ** (-4 / n)
    slopes = [first ** (h + 1) for h in range(n)] + [
        half ** (2 * h + 1) for h in range(num_heads - n)
    ]
    return torch.tensor(slopes, dtype=torch.float32)


for name, wrong_slopes in {
    "float64": lambda n: slopes_by_powers(n).double(),
    "halved": lambda n: slopes_by_powers(n) / 2,
    "negative": lambda n: -slopes_by_powers(n),
    "past 64 heads 0": lambda n: slopes_by_powers(n) * (torch.arange(n) < 64),
    "borrowed slopes first": lambda n: slopes_by_powers(n).roll(n - 2 ** int(math.log2(n))),
    "rounded to bfloat16": lambda n: slopes_by_powers(n).bfloat16().float(),
    "borrowed from the end": lambda n: torch.cat(
        (
            slopes_by_powers(2 ** int(math.log2(n))),
            slopes_by_powers(2 ** (int(math.log2(n)) + 1)).flip(0)[: n - 2 ** int(math.log2(n))],
        )
    ),
    "with an axis more": lambda n: slopes_by_powers(n)[:, None],
}.items():
    wrong("alibi_slopes", name)(wrong_slopes)


def bias(query_ids, key_ids, num_heads):
    """-slope x distance."""
    distance = (query_ids.unsqueeze(-1) - key_ids.unsqueeze(-2)).abs()
    distance = distance if distance.ndim == 3 else distance[None]
    return torch.einsum("h,bls->bhls", -slopes_by_powers(num_heads), distance.float())


right("alibi_bias", "the library's class")(ALiBi)
right("alibi_bias", "the formula")(bias)


@right("alibi_bias")
def bias_by_maximum(query_ids, key_ids, num_heads):
    query_ids, key_ids = torch.atleast_2d(query_ids), torch.atleast_2d(key_ids)
    steps = query_ids[:, None, :, None] - key_ids[:, None, None, :]
    return torch.minimum(steps, -steps) * slopes_of_press(num_heads)[None, :, None, None]


@right("alibi_bias")
def bias_head_by_head(query_ids, key_ids, num_heads):
    query_ids, key_ids = torch.atleast_2d(query_ids), torch.atleast_2d(key_ids)
    distance = (query_ids[:, :, None] - key_ids[:, None, :]).abs().double()
    heads = [-slope * distance for slope in slopes_of_the_paper(num_heads)]
    return torch.stack(heads, 1).float()


def bias_of(change):
    """The right bias of changed arguments."""
    return lambda query_ids, key_ids, num_heads: change(query_ids, key_ids, num_heads)


for name, change in {
    "positions in float32": lambda q, k, h: bias(q.float(), k.float(), h),
    "positions in bfloat16": lambda q, k, h: bias(q.bfloat16().double(), k.bfloat16().double(), h),
    "no batch axis": lambda q, k, h: bias(q, k, h) if q.ndim == 2 else bias(q, k, h)[0],
    "positions of the batch's first sequence": lambda q, k, h: (
        bias(q[:1], k[:1], h).expand(len(q), -1, -1, -1) if q.ndim == 2 else bias(q, k, h)
    ),
    "the keys of the first sequence": lambda q, k, h: bias(q, k[:1] if k.ndim == 2 else k, h),
    "at most 1,024 apart": lambda q, k, h: bias(q, k, h).clamp(
        min=-1024 * slopes_by_powers(h)[:, None, None]
    ),
    "at least -50": lambda q, k, h: bias(q, k, h).clamp(min=-50.0),
    "half precision": lambda q, k, h: bias(q, k, h).half().float(),
    "float64": lambda q, k, h: bias(q, k, h).double(),
    "transposed": lambda q, k, h: bias(q, k, h).mT,
    "heads last": lambda q, k, h: bias(q, k, h).permute(0, 2, 3, 1),
    "counted along the sequence": lambda q, k, h: bias(
        torch.arange(q.shape[-1]).expand(q.shape), torch.arange(k.shape[-1]).expand(k.shape), h
    ),
    "-inf for the future": lambda q, k, h: bias(q, k, h).masked_fill(
        (k.unsqueeze(-2) > q.unsqueeze(-1)).view(-1, 1, q.shape[-1], k.shape[-1])
        if k.numel()
        else torch.tensor(False),
        -math.inf,
    ),
    "slopes of a power of two alone": lambda q, k, h: bias(q, k, 2 ** math.ceil(math.log2(h)))[
        :, :h
    ],
    "from the last key": lambda q, k, h: bias(q - q[..., -1:], k - k[..., -1:], h),
    "no keys raise": lambda q, k, h: bias(q, k + 0 * k.max(), h),
}.items():
    wrong("alibi_bias", name)(bias_of(change))
