"""The answers to attention."""

import math
from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention

import tested_transformer
from tested_transformer import minimal
from tested_transformer.specs.attention.mutants import AttentionFormula

from . import right, wrong

# --- Right: every option --------------------------------------------------------------------------

right("attention")(tested_transformer.attention)
for _backend in ("plain", "tiled", "fused"):
    right("attention", f"backend {_backend}")(
        partial(tested_transformer.attention, backend=_backend)
    )
right("attention", "the formula of the mistakes")(AttentionFormula())


@right("attention")
def forwards_its_options(query, key, value, **options):
    return tested_transformer.attention(query, key, value, **options)


@right("attention", "exp(scores - logsumexp)")
class ByLogSumExp(AttentionFormula):
    def __new__(cls, *tensors, **options):
        return super().__new__(cls).__call__(*tensors, **options)

    def weights(self, scores, allowed, mask):
        empty = ~allowed.any(-1, keepdim=True)
        filled = scores.masked_fill(~allowed, -math.inf).masked_fill(empty, 0.0)
        return (filled - filled.logsumexp(-1, keepdim=True)).exp().masked_fill(empty, 0.0)


@right("attention", "where in place of masked_fill, einsum")
class ByEinsum(ByLogSumExp):
    def scores(self, query, key):
        return torch.einsum("...id,...jd->...ij", query, key)

    def weights(self, scores, allowed, mask):
        filled = torch.where(allowed, scores, -math.inf)
        top = filled.amax(-1, keepdim=True) if scores.shape[-1] else filled.sum(-1, keepdim=True)
        top = top.clamp(min=torch.finfo(top.dtype).min).detach()  # -inf less -inf is NaN
        exponentials = torch.where(allowed, (filled - top).exp(), 0.0)
        total = exponentials.sum(-1, keepdim=True)
        return exponentials / total.masked_fill(total == 0, 1.0)


@right("attention", "the query scaled first, groups by a new axis")
def scaled_first(query, key, value, *, mask=None, bias=None, causal=False, window=None,
                 key_lengths=None, alibi_slopes=None, scale=None):  # fmt: skip
    query = query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if query.ndim == 4:
        key, value = (
            t[:, :, None].expand(-1, -1, query.shape[1] // t.shape[1], -1, -1).flatten(1, 2)
            for t in (key, value)
        )
    scores = torch.matmul(query, key.mT)
    length, keys = scores.shape[-2:]
    steps = torch.arange(keys - length, keys)[:, None] - torch.arange(keys)
    added = torch.zeros((), dtype=scores.dtype)
    if bias is not None:
        added = added + bias
    if alibi_slopes is not None:
        added = added - alibi_slopes.view(-1, 1, 1) * steps.abs()
    hidden = torch.zeros(length, keys, dtype=torch.bool)
    if causal:
        hidden = hidden | (steps < 0)
    if window is not None:
        hidden = hidden | (steps >= window) | (steps <= -window)
    if key_lengths is not None:
        past = torch.arange(keys) >= key_lengths[:, None]
        hidden = hidden | past.reshape(-1, *[1] * (query.ndim - 2), keys)
    if mask is not None:
        hidden = hidden | ~mask
    scores = (scores + added).masked_fill(hidden, -math.inf)
    empty = (scores == -math.inf).all(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(empty, 0), -1).masked_fill(empty, 0) @ value


# --- Right: no options ----------------------------------------------------------------------------

right("ch01.attention")(minimal.attention)
right("ch01.attention", "torch's own, a builtin")(scaled_dot_product_attention)
right("ch01.attention", "torch's own, partial")(
    partial(scaled_dot_product_attention, dropout_p=0.0)
)


@torch.jit.script
def scripted(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(query, key.transpose(-2, -1)) / (query.shape[-1] ** 0.5)
    return torch.matmul(torch.softmax(scores, dim=-1), value)


right("ch01.attention", "TorchScript")(scripted)


@right("ch01.attention")
def by_log_softmax(query, key, value):
    scores = torch.einsum("...id,...jd->...ij", query, key) / math.sqrt(query.size(-1))
    return torch.einsum("...ij,...jv->...iv", scores.log_softmax(-1).exp(), value)


@right("ch01.attention")
def query_by_query(query, key, value):
    root = query.shape[-1] ** 0.25
    rows = [
        ((q[..., None, :] / root) @ (key / root).mT).softmax(-1) @ value for q in query.unbind(-2)
    ]
    return torch.cat(rows, -2) if rows else query @ key.mT @ value


@right("ch01.weights")
def weights_by_log_sum_exp(query, key):
    scores = (key * query).sum(-1) / math.sqrt(len(query))
    return torch.exp(scores - torch.logsumexp(scores, 0))


@right("ch01.weights")
def weights_with_the_maximum(query, key):
    scores = torch.stack([torch.dot(query, row) for row in key]) * query.numel() ** -0.5
    exponentials = torch.exp(scores - scores.max())
    return exponentials / exponentials.sum()


@right("ch01.weights")
def weights_in_float64(query, key):
    scores = torch.einsum("d,sd->s", query.double(), key.double()) / len(query) ** 0.5
    return scores.softmax(0).to(query.dtype)


# --- Wrong: gradients -----------------------------------------------------------------------------


def wrong_formula(name):
    """A subclass of the right formula with a step gone wrong."""
    return lambda made: wrong("attention", name)(made()) and made


for _name, _step in {
    "the weights are detached": lambda q, k, v, f: f(q.detach(), k.detach(), v),
    "the query is detached": lambda q, k, v, f: f(q.detach(), k, v),
    "the key is detached": lambda q, k, v, f: f(q, k.detach(), v),
    "the value is detached": lambda q, k, v, f: f(q, k, v.detach()),
    "no gradient in float32": lambda q, k, v, f: (
        f(q.detach(), k, v) if q.dtype == torch.float32 else f(q, k, v)
    ),
    "twice the scale in bfloat16": lambda q, k, v, f: f(
        q * (2 if q.dtype == torch.bfloat16 else 1), k, v
    ),
    "a tenth more scale in float16": lambda q, k, v, f: f(
        q * (1.1 if q.dtype == torch.float16 else 1), k, v
    ),
    "the key detached in half precision": lambda q, k, v, f: f(
        q, k.detach() if q.dtype.itemsize == 2 else k, v
    ),
    "the gradient of the query twice": lambda q, k, v, f: f(2 * q - q.detach(), k, v),
    "no answer for no keys": lambda q, k, v, f: f(q, k, v) if k.shape[-2] else f(q, k, v).new_zeros(0),
    "it sets the seed": lambda q, k, v, f: (torch.manual_seed(0), f(q, k, v))[1],
    "it turns gradients off": lambda q, k, v, f: (
        f(q, k, v), torch.set_grad_enabled(False)
    )[0],
    "one sample at most": lambda q, k, v, f: f(q, k, v) if len(q) > 1 or q.ndim < 3 else f(q, k, v) * 0,
}.items():  # fmt: skip

    def _wrong_call(query, key, value, *, _step=_step, mask=None, bias=None, causal=False,
                    window=None, key_lengths=None, alibi_slopes=None, scale=None):  # fmt: skip
        right_one = partial(
            AttentionFormula(), mask=mask, bias=bias, causal=causal, window=window,
            key_lengths=key_lengths, alibi_slopes=alibi_slopes, scale=scale,
        )  # fmt: skip
        return _step(query, key, value, right_one)

    wrong("attention", _name)(_wrong_call)


@wrong("ch01.attention", "the weights are detached")
def weights_detached(query, key, value):
    weights = torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, dim=-1)
    return weights.detach() @ value


@wrong("ch01.attention", "the key is detached")
def key_detached(query, key, value):
    return torch.softmax(query @ key.detach().mT * query.shape[-1] ** -0.5, dim=-1) @ value


@wrong("ch01.attention", "no maximum in float32")
def no_maximum(query, key, value):
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if scores.dtype == torch.float64:
        return scores.softmax(-1) @ value
    exponentials = scores.exp()
    return exponentials / exponentials.sum(-1, keepdim=True) @ value


@wrong("ch01.attention", "the maximum of the whole batch")
def one_maximum(query, key, value):
    scores = query @ key.mT * query.shape[-1] ** -0.5
    exponentials = (scores - scores.max()).exp()
    return exponentials / exponentials.sum(-1, keepdim=True) @ value


@wrong("ch01.attention", "views of the memory")
def views(query, key, value):
    flat = [t.view(-1, *t.shape[-2:]) for t in (query, key, value)]
    output = (flat[0] @ flat[1].mT * query.shape[-1] ** -0.5).softmax(-1) @ flat[2]
    return output.view(*query.shape[:-1], value.shape[-1])


# --- Wrong: overflow ------------------------------------------------------------------------------


@wrong_formula("no maximum in float32, bfloat16 and float16")
class NoMaximum(AttentionFormula):
    def weights(self, scores, allowed, mask):
        if scores.dtype == torch.float64:
            return super().weights(scores, allowed, mask)
        exponentials = scores.exp() * allowed
        total = exponentials.sum(-1, keepdim=True)
        return exponentials / total.masked_fill(total == 0, 1.0)


@wrong_formula("no maximum in float16 alone")
class NoMaximumInHalf(NoMaximum):
    def weights(self, scores, allowed, mask):
        if scores.dtype == torch.float16:
            return super().weights(scores, allowed, mask)
        return AttentionFormula.weights(self, scores, allowed, mask)


@wrong_formula("scores clamped at 50")
class Clamped(AttentionFormula):
    def scores(self, query, key):
        return super().scores(query, key).clamp(-50, 50)


# --- Wrong: options together ----------------------------------------------------------------------


@wrong_formula("the window counted from the first key where there are fewer keys than queries")
class WindowTopLeft(AttentionFormula):
    def allowed(self, scores, mask, causal, window, key_lengths):
        allowed = super().allowed(scores, mask, causal, None, key_lengths)
        if window is None:
            return allowed
        length, keys = scores.shape[-2:]
        back = torch.arange(length)[:, None] + max(keys - length, 0) - torch.arange(keys)
        return allowed & (back.abs() < window)


@wrong_formula("lengths for four axes only")
class LengthsForHeads(AttentionFormula):
    def allowed(self, scores, mask, causal, window, key_lengths):
        allowed = super().allowed(scores, mask, causal, window, None)
        if key_lengths is None:
            return allowed
        inside = torch.arange(scores.shape[-1]) < key_lengths[:, None]
        return (allowed & inside[:, None, None]).view(scores.shape)


@wrong_formula("distance counted from the first key where there are fewer keys than queries")
class AlibiTopLeft(AttentionFormula):
    def bias(self, scores, bias, alibi_slopes):
        if alibi_slopes is not None:
            length, keys = scores.shape[-2:]
            back = torch.arange(length)[:, None] + max(keys - length, 0) - torch.arange(keys)
            scores = scores - alibi_slopes[:, None, None] * back.abs()
        return scores if bias is None else scores + bias


@wrong_formula("the mask's lower triangle for mask and causal")
class TrilOfMask(AttentionFormula):
    def allowed(self, scores, mask, causal, window, key_lengths):
        if mask is not None and causal:
            mask, causal = mask.tril(scores.shape[-1] - scores.shape[-2]), False
        return super().allowed(scores, mask, causal, window, key_lengths)


@wrong_formula("causal forgotten beside a mask")
class MaskOrCausal(AttentionFormula):
    def allowed(self, scores, mask, causal, window, key_lengths):
        return super().allowed(scores, mask, causal and mask is None, window, key_lengths)


@wrong_formula("a row that the bias hides is NaN")
class NanByBias(AttentionFormula):
    def weights(self, scores, allowed, mask):
        empty = (~allowed & (scores > -math.inf)).all(-1, keepdim=True)
        filled = scores.masked_fill(~allowed, -math.inf).masked_fill(empty, 0.0)
        return filled.softmax(-1).masked_fill(empty, 0.0)


@wrong_formula("NaN where two options together leave nothing")
class NanByTwo(AttentionFormula):
    def allowed(self, scores, mask, causal, window, key_lengths):
        alone = super().allowed(scores, mask, False, None, None)
        self.empty = ~alone.any(-1, keepdim=True)
        return super().allowed(scores, mask, causal, window, key_lengths)

    def weights(self, scores, allowed, mask):
        filled = scores.masked_fill(~allowed, -math.inf).masked_fill(self.empty, 0.0)
        return filled.softmax(-1).masked_fill(self.empty, 0.0)


@wrong_formula("grouped-query attention: one mask for each group")
class MaskOfTheGroup(AttentionFormula):
    def __call__(self, query, key, value, *, mask=None, **options):
        if query.ndim == 4 and mask is not None and mask.ndim == 4 and mask.shape[1] > 1:
            groups = query.shape[1] // key.shape[1]
            mask = mask[:, ::groups].repeat_interleave(groups, 1)
        return super().__call__(query, key, value, mask=mask, **options)


@wrong_formula("the mask of the first head for all")
class MaskOfTheFirstHead(AttentionFormula):
    def allowed(self, scores, mask, causal, window, key_lengths):
        mask = mask[:, :1] if mask is not None and mask.ndim == 4 else mask
        return super().allowed(scores, mask, causal, window, key_lengths)


@wrong_formula("the mask of the first sample for all")
class MaskOfTheFirstSample(AttentionFormula):
    def allowed(self, scores, mask, causal, window, key_lengths):
        mask = mask[:1] if mask is not None and mask.ndim > 2 else mask
        return super().allowed(scores, mask, causal, window, key_lengths)


@wrong_formula("one causal query sees all keys, window or not")
class DecodeStep(AttentionFormula):
    def allowed(self, scores, mask, causal, window, key_lengths):
        if causal and scores.shape[-2] == 1:
            causal, window = False, None
        return super().allowed(scores, mask, causal, window, key_lengths)


@wrong_formula("the bias ignored beside causal")
class BiasOrCausal(AttentionFormula):
    def __call__(self, query, key, value, *, bias=None, causal=False, **options):
        bias = None if causal and options.get("mask") is None else bias
        return super().__call__(query, key, value, bias=bias, causal=causal, **options)


@wrong_formula("lengths move the causal diagonal")
class LengthsMove(AttentionFormula):
    def allowed(self, scores, mask, causal, window, key_lengths):
        allowed = super().allowed(scores, mask, causal, window, key_lengths)
        if not causal or key_lengths is None:
            return allowed
        length, keys = scores.shape[-2:]
        last = torch.arange(length) + key_lengths[:, None] - length
        past = torch.arange(keys) <= last[..., None]
        return allowed & past.view(len(past), *[1] * (scores.ndim - 3), length, keys)


@wrong_formula("the bias scaled too")
class BiasScaled(AttentionFormula):
    def __call__(self, query, key, value, *, bias=None, scale=None, **options):
        if bias is not None and scale is not None:
            bias = bias * scale
        return super().__call__(query, key, value, bias=bias, scale=scale, **options)


@wrong_formula("a window of queries only, causal or not")
class WindowCausal(AttentionFormula):
    def allowed(self, scores, mask, causal, window, key_lengths):
        causal = causal or (window is not None and mask is not None)
        return super().allowed(scores, mask, causal, window, key_lengths)


@wrong_formula("slopes of the KV heads")
class SlopesOfGroups(AttentionFormula):
    def __call__(self, query, key, value, *, alibi_slopes=None, **options):
        if alibi_slopes is not None and query.shape[1] != key.shape[1]:
            groups = query.shape[1] // key.shape[1]
            alibi_slopes = alibi_slopes[::groups].repeat_interleave(groups)
        return super().__call__(query, key, value, alibi_slopes=alibi_slopes, **options)


# --- Wrong: other sizes ---------------------------------------------------------------------------


@wrong_formula("the root of the scale on query and key")
class RootOfTheScale(AttentionFormula):
    def __call__(self, query, key, value, *, scale=None, **options):
        root = (query.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
        if isinstance(root, complex):
            root = math.nan
        return super().__call__(query * root, key * root, value, scale=1.0, **options)


@wrong_formula("`scale or` for `scale is None`")
class ScaleOr(AttentionFormula):
    def __call__(self, query, key, value, *, scale=None, **options):
        return super().__call__(query, key, value, scale=scale or None, **options)


@wrong_formula("views of the memory")
class ByView(AttentionFormula):
    def __call__(self, query, key, value, **options):
        query, key, value = (t.view(t.numel()).view(t.shape) for t in (query, key, value))
        return super().__call__(query, key, value, **options)


@wrong_formula("the maximum of no keys")
class MaximumOfNothing(AttentionFormula):
    def weights(self, scores, allowed, mask):
        return super().weights(scores - scores.amax(-1, keepdim=True).nan_to_num(0, 0, 0).detach(),
                               allowed, mask)  # fmt: skip


@wrong_formula("queries and keys exchanged")
class Exchanged(AttentionFormula):
    def scores(self, query, key):
        return (key @ query.mT).reshape(*query.shape[:-1], key.shape[-2])


@wrong_formula("the values reversed")
class ValuesReversed(AttentionFormula):
    def __call__(self, query, key, value, **options):
        return super().__call__(query, key, value.flip(-2), **options)


@wrong_formula("it keeps its first keys")
class KeepsKeys(AttentionFormula):
    kept = None

    def scores(self, query, key):
        if self.kept is None or self.kept.shape != key.shape or self.kept.dtype != key.dtype:
            self.kept = key.detach().clone()
        return super().scores(query, self.kept + 0 * key)


@wrong("ch01.weights", "the query detached")
def query_detached(query, key):
    return torch.softmax(key @ query.detach() * len(query) ** -0.5, 0)


@wrong("ch01.weights", "no maximum in float32")
def weights_overflow(query, key):
    scores = key @ query * len(query) ** -0.5
    if scores.dtype == torch.float64:
        return scores.softmax(0)
    return scores.exp() / scores.exp().sum()


@wrong("ch01.weights", "the scale of the keys' number where they are fewer")
def smaller_of_two(query, key):
    return torch.softmax(key @ query * min(key.shape) ** -0.5, 0)
