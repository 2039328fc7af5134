"""The answers to self-attention and to multi-head attention."""

import math

import torch
from torch import nn
from torch.nn.functional import linear, multi_head_attention_forward, scaled_dot_product_attention

from tested_transformer import MultiHeadAttention, SelfAttention, minimal, self_attention
from tested_transformer.specs.multi_head.mutants import HeadsFormula, Layers
from tested_transformer.specs.self_attention.mutants import SelfFormula

from . import right, wrong

# --- Self-attention: right ------------------------------------------------------------------------

right("self_attention")(self_attention)
right("self_attention")(SelfAttention)
right("self_attention", "the formula of the mistakes")(SelfFormula())


@right("self_attention")
def by_einsum(x, w_query, w_key, w_value):
    scores = torch.einsum("...id,df,gf,...jg->...ij", x, w_query, w_key, x)
    return (scores / math.sqrt(w_query.shape[1])).softmax(-1) @ (x @ w_value)


@right("self_attention")
def by_log_sum_exp(x, w_query, w_key, w_value):
    query = x @ (w_query / w_query.shape[1] ** 0.5)
    scores = query @ (x @ w_key).transpose(-1, -2)
    weights = torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True))
    return weights @ x @ w_value


@right("self_attention")
def by_torchs_function(x, w_query, w_key, w_value):
    return scaled_dot_product_attention(x @ w_query, x @ w_key, x @ w_value)


@torch.jit.script
def scripted(
    x: torch.Tensor, w_query: torch.Tensor, w_key: torch.Tensor, w_value: torch.Tensor
) -> torch.Tensor:
    query, key = x.matmul(w_query), x.matmul(w_key)
    scores = query.matmul(key.transpose(-2, -1)) / (key.shape[-1] ** 0.5)
    return torch.softmax(scores, dim=-1).matmul(x.matmul(w_value))


right("self_attention", "TorchScript")(scripted)


@right("self_attention")
def forwards_its_options(*matrices, **options):
    return self_attention(*matrices, **options)


# --- Self-attention: wrong ------------------------------------------------------------------------


def wrong_self(name):
    return lambda made: wrong("self_attention", name)(made()) and made


for _name, _detached in {"x": 0, "w_query": 1, "w_key": 2, "w_value": 3}.items():

    def _without(*given, _place=_detached):
        given = [t.detach() if place == _place else t for place, t in enumerate(given)]
        return SelfFormula()(*given)

    wrong("self_attention", f"`{_name}` is detached")(_without)


@wrong("self_attention", "the keys detached from x")
def keys_detached(x, w_query, w_key, w_value):
    scores = (x @ w_query) @ (x.detach() @ w_key).mT * w_query.shape[1] ** -0.5
    return scores.softmax(-1) @ (x @ w_value)


@wrong_self("no maximum")
class NoMaximum(SelfFormula):
    def weights(self, scores):
        return scores.exp() / scores.exp().sum(-1, keepdim=True)


@wrong_self("no maximum in float32")
class NoMaximumInFloat32(SelfFormula):
    def weights(self, scores):
        if scores.dtype == torch.float64:
            return scores.softmax(-1)
        return scores.exp() / scores.exp().sum(-1, keepdim=True)


@wrong_self("no scale in float16")
class NoScaleInHalf(SelfFormula):
    def scale(self, x, query):
        return 1.0 if x.dtype == torch.float16 else super().scale(x, query)


@wrong_self("a causal mask")
class Causal(SelfFormula):
    def weights(self, scores):
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        return scores.masked_fill(future, -math.inf).softmax(-1)


@wrong_self("views of the memory")
class SelfByView(SelfFormula):
    def project(self, x, w_query, w_key, w_value):
        flat = x.view(-1, x.shape[-1])
        return ((flat @ w).view(*x.shape[:-1], w.shape[-1]) for w in (w_query, w_key, w_value))


@wrong_self("the maximum of no tokens")
class MaximumOfNothing(SelfFormula):
    def weights(self, scores):
        return (scores - scores.amax(-1, keepdim=True)).softmax(-1)


@wrong_self("the values of the first sample")
class ValuesOfTheFirst(SelfFormula):
    def project(self, x, w_query, w_key, w_value):
        value = (x[:1].expand_as(x) if x.ndim > 2 else x) @ w_value
        return x @ w_query, x @ w_key, value


@wrong("self_attention", "a module that keeps the keys of its first call")
class KeepsKeys(SelfAttention):
    kept = None

    def forward(self, x):
        if self.kept is None or self.kept.shape != x.shape:
            self.kept = x.detach()
        query, key, value = self.query(x), self.key(self.kept + 0 * x), self.value(x)
        return scaled_dot_product_attention(query, key, value)


@wrong("self_attention", "a module that keeps the longest keys")
class KeepsTheLength(SelfAttention):
    longest = 0

    def forward(self, x):
        if not self.longest:
            self.longest = x.shape[-2]
        return super().forward(x[..., : self.longest, :])


@wrong("self_attention", "a module that is causal in evaluation")
class CausalInEvaluation(SelfAttention):
    def forward(self, x):
        query, key, value = self.query(x), self.key(x), self.value(x)
        return scaled_dot_product_attention(query, key, value, is_causal=not self.training)


@wrong("self_attention", "a module with dropout that was not asked for")
class Dropout(SelfAttention):
    def forward(self, x):
        query, key, value = self.query(x), self.key(x), self.value(x)
        p = 0.1 if self.training else 0.0
        return scaled_dot_product_attention(query, key, value, dropout_p=p)


# --- Multi-head: right ----------------------------------------------------------------------------

right("multi_head")(MultiHeadAttention)
right("multi_head")(Layers)
right("multi_head", "the formula of the mistakes")(HeadsFormula())


@right("multi_head")
class Minimal(minimal.MultiHeadAttention):
    """Without causal, which minimal.py says by a mask."""

    def forward(self, x, context=None, *, mask=None):
        return super().forward(x, context, mask)


@right("multi_head")
def head_by_head(x, w_query, w_key, w_value, w_output, num_heads, *, context=None, mask=None,
                 causal=False):  # fmt: skip
    """A sum over the heads, each through its own rows of w_output."""
    context, d, output = x if context is None else context, x.shape[-1] // num_heads, 0
    for h in range(num_heads):
        own = slice(h * d, (h + 1) * d)
        scores = torch.einsum(
            "bid,bjd->bij", x @ w_query[:, own], context @ w_key[:, own]
        ) / math.sqrt(d)
        allowed = torch.ones_like(scores, dtype=torch.bool)
        if causal:
            allowed = allowed.tril(scores.shape[-1] - scores.shape[-2])
        if mask is not None:
            own_mask = mask[:, h if mask.shape[1] > 1 else 0] if mask.ndim == 4 else mask
            allowed = allowed & own_mask
        none = ~allowed.any(-1, keepdim=True)
        filled = torch.where(allowed | none, scores, -math.inf)
        weights = (filled - filled.logsumexp(-1, keepdim=True)).exp()
        weights = torch.where(none, torch.zeros_like(weights), weights)
        output = output + (weights @ (context @ w_value[:, own])) @ w_output[own]
    return output


@right("multi_head")
def by_torch(x, w_query, w_key, w_value, w_output, num_heads, *, context=None, mask=None):
    context = x if context is None else context
    query, key, value = (
        t.unflatten(-1, (num_heads, -1)).transpose(1, 2)
        for t in (x @ w_query, context @ w_key, context @ w_value)
    )
    heads = scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return linear(heads.transpose(1, 2).flatten(2), w_output.T)


@right("ch05.multi_head")
def by_torchs_module(x, w_query, w_key, w_value, w_output, num_heads, mask=None):
    """F.multi_head_attention_forward, which wants the batch second, and True where a key is hidden."""
    if mask is not None:
        mask = ~mask.expand(len(x), num_heads, x.shape[1], x.shape[1]).flatten(0, 1)
    width, zeros = x.shape[-1], x.new_zeros(3 * x.shape[-1])
    turned = x.transpose(0, 1)
    output, _ = multi_head_attention_forward(
        turned, turned, turned, width, num_heads, torch.cat([w_query, w_key, w_value], 1).T, zeros,
        None, None, False, 0.0, w_output.T, zeros[:width], need_weights=False, attn_mask=mask,
    )  # fmt: skip
    return output.transpose(0, 1)


# --- Multi-head: wrong ----------------------------------------------------------------------------


def wrong_heads(name):
    return lambda made: wrong("multi_head", name)(made()) and made


for _name, _place in {"x": 0, "w_query": 1, "w_key": 2, "w_value": 3, "w_output": 4}.items():

    def _detached_one(*given, _place=_place, **options):
        given = [t.detach() if place == _place else t for place, t in enumerate(given)]
        return HeadsFormula()(*given, **options)

    wrong("multi_head", f"`{_name}` is detached")(_detached_one)


@wrong_heads("the context is detached")
class ContextDetached(HeadsFormula):
    def project(self, x, context, w_query, w_key, w_value):
        context = context if context is x else context.detach()
        return x @ w_query, context @ w_key, context @ w_value


@wrong_heads("no maximum")
class HeadsNoMaximum(HeadsFormula):
    def weights(self, scores, allowed):
        exponentials = scores.exp() * allowed
        total = exponentials.sum(-1, keepdim=True)
        return exponentials / total.masked_fill(total == 0, 1.0)


@wrong_heads("no maximum in float32")
class HeadsNoMaximumInFloat32(HeadsNoMaximum):
    def weights(self, scores, allowed):
        one = HeadsFormula if scores.dtype == torch.float64 else HeadsNoMaximum
        return one.weights(self, scores, allowed)


@wrong_heads("-1e9 for -inf")
class FiniteFill(HeadsFormula):
    def weights(self, scores, allowed):
        low = max(-1e9, torch.finfo(scores.dtype).min)
        return scores.masked_fill(~allowed, low).softmax(-1)


@wrong_heads("causal and a context, aligned top-left")
class TopLeft(HeadsFormula):
    def allowed(self, scores, mask, causal):
        allowed = super().allowed(scores, mask, False)
        return allowed.tril() if causal else allowed


@wrong_heads("a mask of four axes only")
class FourAxes(HeadsFormula):
    def allowed(self, scores, mask, causal):
        if mask is not None:
            _, _, _, _ = mask.shape
        return super().allowed(scores, mask, causal)


@wrong_heads("grouped-query attention forgets causal")
class GroupedNotCausal(HeadsFormula):
    def __call__(self, *given, causal=False, num_kv_heads=None, **options):
        causal = causal and num_kv_heads is None
        return super().__call__(*given, causal=causal, num_kv_heads=num_kv_heads, **options)


@wrong_heads("causal forgotten beside a mask")
class MaskOrCausal(HeadsFormula):
    def allowed(self, scores, mask, causal):
        return super().allowed(scores, mask, causal and mask is None)


@wrong_heads("the mask forgotten with a context")
class NoMaskWithContext(HeadsFormula):
    def __call__(self, *given, context=None, mask=None, **options):
        mask = mask if context is None else None
        return super().__call__(*given, context=context, mask=mask, **options)


@wrong_heads("the mask of the first head for all")
class MaskOfTheFirstHead(HeadsFormula):
    def allowed(self, scores, mask, causal):
        mask = mask[:, :1] if mask is not None and mask.ndim == 4 else mask
        return super().allowed(scores, mask, causal)


@wrong_heads("the mask of the first sample for all")
class MaskOfTheFirstSample(HeadsFormula):
    def allowed(self, scores, mask, causal):
        mask = mask[:1] if mask is not None and mask.ndim == 4 else mask
        return super().allowed(scores, mask, causal)


@wrong_heads("groups repeated, not interleaved")
class Repeated(HeadsFormula):
    def __call__(self, x, w_query, w_key, w_value, w_output, num_heads, *, num_kv_heads=None,
                 **options):  # fmt: skip
        if num_kv_heads is not None:
            times = num_heads // num_kv_heads
            w_key, w_value = w_key.repeat(1, times), w_value.repeat(1, times)
        return super().__call__(x, w_query, w_key, w_value, w_output, num_heads, **options)


@wrong_heads("views of the memory")
class ByView(HeadsFormula):
    def split(self, x, num_heads):
        return x.view(*x.shape[:2], num_heads, -1).transpose(1, 2)

    def __call__(self, x, *given, **options):
        return super().__call__(x.view(-1).view(x.shape), *given, **options)


@wrong_heads("the keys reversed")
class KeysReversed(HeadsFormula):
    def project(self, x, context, w_query, w_key, w_value):
        query, key, value = super().project(x, context, w_query, w_key, w_value)
        return query, key.flip(1), value


@wrong_heads("the scale of the whole width beside a context")
class ScaleWithContext(HeadsFormula):
    def __call__(self, *given, context=None, **options):
        self.cross = context is not None
        return super().__call__(*given, context=context, **options)

    def scale(self, query, num_heads):
        d = query.shape[-1]
        return (d * num_heads if self.cross else d) ** -0.5


class Wrapped(MultiHeadAttention):
    """The right module, for mistakes around it."""


@wrong("multi_head", "a module that adds the value's bias twice")
class BiasTwice(Wrapped):
    def forward(self, x, context=None, **options):
        extra = linear(self.value.bias.expand_as(x), self.output.weight)
        return super().forward(x, context, **options) + extra


@wrong("multi_head", "a module that leaves the bias of the key out of a context")
class NoOutputBias(Wrapped):
    def forward(self, x, context=None, **options):
        return super().forward(x, context, **options) - self.output.bias


@wrong("multi_head", "a module that keeps the causal mask of its first call")
class KeepsMask(Wrapped):
    first = None

    def forward(self, x, context=None, *, mask=None, causal=False):
        keys = x.shape[1] if context is None else context.shape[1]
        if self.first is None:
            shape = (x.shape[1], keys)
            every = torch.ones(shape, dtype=torch.bool)
            self.first = every.tril(keys - x.shape[1]) if causal else every
        mask = self.first if mask is None else mask & self.first
        return super().forward(x, context, mask=mask)


@wrong("multi_head", "a module that keeps the context of its first call")
class KeepsContext(Wrapped):
    first = None

    def forward(self, x, context=None, **options):
        if context is not None and (self.first is None or self.first.shape != context.shape):
            self.first = context.detach()
        return super().forward(x, None if context is None else self.first + 0 * context, **options)


@wrong("multi_head", "a module that is causal in training only")
class CausalInTraining(Wrapped):
    def forward(self, x, context=None, *, mask=None, causal=False):
        return super().forward(x, context, mask=mask, causal=causal and self.training)


@wrong("multi_head", "a module with dropout in evaluation")
class DropoutInEvaluation(Wrapped):
    def forward(self, x, context=None, **options):
        output = super().forward(x, context, **options)
        return output if self.training else nn.functional.dropout(output, 0.1, training=True)


@wrong("ch05.multi_head", "the values are detached")
def values_detached(x, w_query, w_key, w_value, w_output, num_heads, mask=None):
    given = (x, w_query, w_key, w_value.detach(), w_output)
    return HeadsFormula()(*given, num_heads, mask=mask)


@wrong("ch05.multi_head", "a mask of four axes only")
def four_axes(x, w_query, w_key, w_value, w_output, num_heads, mask=None):
    return FourAxes()(x, w_query, w_key, w_value, w_output, num_heads, mask=mask)
