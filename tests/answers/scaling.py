"""The answers to the softmax, its Jacobian and scaled scores, and to the exercises of chapter 3."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from tested_transformer.functional import scaling

from . import right, wrong
from .spoiled import spoil

# --- The softmax ----------------------------------------------------------------------------------


def tempered(scores, temperature=1.0):
    """Exponentials over their sum, under the maximum."""
    if not scores.shape[-1]:
        return scores.clone()
    scores = scores / temperature
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


right("softmax", "the library's")(scaling.softmax)
right("softmax", "a partial function of torch's")(partial(torch.softmax, dim=-1))
right("ch03.softmax", "a partial function of torch's")(partial(torch.softmax, dim=-1))
right("ch03.softmax", "torch's module")(nn.Softmax(dim=-1))
spoil("softmax", tempered, "scores")
spoil("ch03.softmax", tempered, "scores")


@right("ch03.softmax", "TorchScript")
@torch.jit.script
def scripted_softmax(scores: Tensor):
    return torch.softmax(scores, dim=-1)


for each in ("softmax", "ch03.softmax"):
    right(each, "the formula")(tempered)

    @right(each)
    def softmax_by_logsumexp(scores, temperature=1.0):
        scores = scores / temperature
        return (scores - scores.logsumexp(-1, keepdim=True)).exp()

    @right(each)
    def softmax_by_log_softmax(scores, temperature=1.0, **options):
        return nn.functional.log_softmax(scores * (1 / temperature), dim=-1).exp()

    @right(each)
    def softmax_of_a_detached_maximum(scores, temperature=1.0):
        if not scores.numel():
            return scores.clone()
        top = scores.max(dim=-1, keepdim=True).values.detach()
        powers = torch.exp((scores - top) / temperature)
        return torch.einsum("...s,...->...s", powers, 1 / powers.sum(-1))

    @right(each)
    def softmax_in_float32_at_least(scores, temperature=1.0):
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return (wide / temperature).softmax(-1).to(scores.dtype)

    @right(each)
    def softmax_in_powers_of_two(scores, temperature=1.0):
        if not scores.numel():
            return scores.clone()
        steps = (scores - scores.amax(-1, keepdim=True)) / temperature
        powers = torch.exp2(steps * math.log2(math.e))
        return powers / powers.sum(-1, keepdim=True)

    @wrong(each, "the sum detached")
    def softmax_of_a_detached_sum(scores, temperature=1.0):
        if not scores.shape[-1]:
            return scores.clone()
        powers = ((scores - scores.amax(-1, keepdim=True)) / temperature).exp()
        return powers / powers.sum(-1, keepdim=True).detach()

    @wrong(each, "-inf taken for -1e4")
    def softmax_of_clamped_scores(scores, temperature=1.0):
        return tempered(scores.clamp(min=-1e4), temperature)

    @wrong(each, "scores clamped at 100")
    def softmax_of_scores_up_to_100(scores, temperature=1.0):
        return tempered(scores.clamp(max=100.0), temperature)

    @wrong(each, "NaN turned into 0 after an overflow")
    def softmax_without_nan(scores, temperature=1.0):
        powers = (scores / temperature).exp()
        return (powers / powers.sum(-1, keepdim=True)).nan_to_num()

    @wrong(each, "no scores raise")
    def softmax_of_some(scores, temperature=1.0):
        powers = ((scores - scores.amax(-1, keepdim=True)) / temperature).exp()
        return powers / powers.sum(-1, keepdim=True)

    @wrong(each, "1e-6 added to the sum")
    def softmax_with_eps(scores, temperature=1.0):
        if not scores.shape[-1]:
            return scores.clone()
        powers = ((scores - scores.amax(-1, keepdim=True)) / temperature).exp()
        return powers / (powers.sum(-1, keepdim=True) + 1e-6)

    @wrong(each, "a running sum in float16")
    def softmax_summed_in_half(scores, temperature=1.0):
        if not scores.shape[-1]:
            return scores.clone()
        powers = ((scores - scores.amax(-1, keepdim=True)) / temperature).exp()
        return powers / (powers.cumsum(-1)[..., -1:].half().to(scores.dtype))

    @wrong(each, "rows of three axes at most")
    def softmax_of_dim_1(scores, temperature=1.0):
        return (scores / temperature).softmax(min(scores.ndim - 1, 2))

    @wrong(each, "the axis before the last, where there are four")
    def softmax_of_another_axis(scores, temperature=1.0):
        return (scores / temperature).softmax(-2 if scores.ndim == 4 else -1)

    @wrong(each, "-inf beside lower scores is NaN")
    def softmax_times_zero(scores, temperature=1.0):
        return tempered(scores, temperature) + 0 * scores

    for kind in (torch.float64, torch.float32, torch.bfloat16, torch.float16):

        @wrong(each, f"no maximum subtracted in {kind}")
        def softmax_naive(scores, temperature=1.0, kind=kind):
            if scores.dtype != kind:
                return tempered(scores, temperature)
            powers = (scores / temperature).exp()
            return powers / powers.sum(-1, keepdim=True)

        @wrong(each, f"no gradient in {kind}")
        def softmax_detached(scores, temperature=1.0, kind=kind):
            return tempered(scores.detach() if scores.dtype == kind else scores, temperature)


@wrong("softmax", "the maximum of the scores before the temperature")
def softmax_under_another_maximum(scores, temperature=1.0):
    if not scores.shape[-1]:
        return scores.clone()
    powers = (scores / temperature - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


@wrong("softmax", "a temperature of at least 1")
def softmax_never_cold(scores, temperature=1.0):
    return tempered(scores, max(temperature, 1.0))


@wrong("softmax", "the root of the temperature")
def softmax_of_the_root(scores, temperature=1.0):
    return tempered(scores, temperature**0.5)


@wrong("softmax", "the temperature ignored in float16")
def softmax_of_no_temperature(scores, temperature=1.0):
    return tempered(scores, 1.0 if scores.dtype == torch.float16 else temperature)


# --- The Jacobian ---------------------------------------------------------------------------------


def jacobian(weights):
    """diag(p) - p p^T."""
    return torch.diag_embed(weights) - weights.unsqueeze(-1) * weights.unsqueeze(-2)


right("softmax_jacobian", "the library's")(scaling.softmax_jacobian)
spoil("softmax_jacobian", jacobian, "weights")


@right("softmax_jacobian")
def jacobian_by_einsum(weights):
    eye = torch.eye(weights.shape[-1], dtype=weights.dtype)
    return torch.einsum("...i,ij->...ij", weights, eye) - torch.einsum(
        "...i,...j->...ij", weights, weights
    )


@right("softmax_jacobian")
def jacobian_of_one_product(weights):
    return weights[..., None] * (
        torch.eye(weights.shape[-1], dtype=weights.dtype) - weights[..., None, :]
    )


@right("softmax_jacobian")
def jacobian_by_where(weights):
    own = torch.eye(weights.shape[-1], dtype=torch.bool)
    others = -weights[..., :, None] * weights[..., None, :]
    return torch.where(own, (weights * (1 - weights))[..., None], others)


@right("softmax_jacobian")
def jacobian_of_logarithms(weights):
    """The softmax's own derivative, at the logarithms of the weights."""
    return jacobian(weights.double()).to(weights.dtype)


@wrong("softmax_jacobian", "a diagonal from a batch's first row")
def jacobian_of_the_first_diagonal(weights):
    rows = weights.reshape(-1, weights.shape[-1])[:1]
    return (
        torch.diag_embed(rows[0] if len(rows) else weights)
        - weights[..., None] * weights[..., None, :]
    )


@wrong("softmax_jacobian", "torch.diag: one or two axes")
def jacobian_by_diag(weights):
    if weights.ndim == 1:
        return torch.diag(weights) - torch.outer(weights, weights)
    return torch.stack([torch.diag(w) - torch.outer(w, w) for w in weights])


@wrong("softmax_jacobian", "the product detached")
def jacobian_of_a_detached_product(weights):
    return torch.diag_embed(weights) - (weights[..., None] * weights[..., None, :]).detach()


@wrong("softmax_jacobian", "one factor of the product detached")
def jacobian_of_a_detached_factor(weights):
    return torch.diag_embed(weights) - weights[..., None] * weights[..., None, :].detach()


@wrong("softmax_jacobian", "small weights taken for 0")
def jacobian_of_large_weights(weights):
    return jacobian(weights.where(weights > 1e-6, torch.zeros_like(weights)))


@wrong("softmax_jacobian", "keys past the hundredth forgotten")
def jacobian_of_a_hundred(weights):
    return jacobian(weights * (torch.arange(weights.shape[-1]) < 100))


# --- Scaled scores --------------------------------------------------------------------------------


def scores_of(query, key, scale=None):
    """The query first."""
    return (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.mT


right("scaled_scores", "the library's")(scaling.scaled_scores)
spoil("scaled_scores", scores_of, "query", "key")
spoil("ch03.scaled_scores", scores_of, "query", "key")

for each in ("scaled_scores", "ch03.scaled_scores"):
    right(each, "the formula")(scores_of)

    @right(each)
    def scores_with_both_scaled(query, key, scale=None):
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        root = abs(scale) ** 0.5
        return (query * math.copysign(root, scale)) @ (key * root).transpose(-2, -1)

    @right(each)
    def scores_of_scaled_keys(query, key, scale=None):
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return torch.einsum("...ld,...sd->...ls", query, key * scale)

    @right(each)
    def scores_by_sums(query, key, scale=None):
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        return ((scale * query)[..., :, None, :] * key[..., None, :, :]).sum(-1)

    @right(each)
    def scores_in_float32_at_least(query, key, scale=None):
        wide = torch.promote_types(query.dtype, torch.float32)
        return scores_of(query.to(wide), key.to(wide), scale).to(query.dtype)

    for kind in (torch.float64, torch.float32, torch.bfloat16, torch.float16):

        @wrong(each, f"scaled after the product in {kind}")
        def scores_scaled_late(query, key, scale=None, kind=kind):
            if query.dtype != kind:
                return scores_of(query, key, scale)
            return query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)

        @wrong(each, f"no gradient by the key in {kind}")
        def scores_of_detached_keys(query, key, scale=None, kind=kind):
            return scores_of(query, key.detach() if key.dtype == kind else key, scale)

    @wrong(each, "clamped to float16's range")
    def scores_clamped(query, key, scale=None):
        return (query.float() @ key.float().mT).clamp(-65504, 65504).to(query.dtype) * (
            query.shape[-1] ** -0.5 if scale is None else scale
        )

    @wrong(each, "the size of the whole model: heads times d")
    def scores_of_the_model(query, key, scale=None):
        size = query.shape[-1] * (query.shape[-3] if query.ndim == 4 else 1)
        return scores_of(query, key, size**-0.5 if scale is None else scale)

    @wrong(each, "the root of d - 1")
    def scores_of_one_less(query, key, scale=None):
        return scores_of(
            query, key, max(query.shape[-1] - 1, 1) ** -0.5 if scale is None else scale
        )

    @wrong(each, "float16 as it comes, in bfloat16 too")
    def scores_through_half(query, key, scale=None):
        kind = query.dtype
        if kind == torch.bfloat16:
            query, key = query.half(), key.half()
        return scores_of(query, key, scale).to(kind)


@wrong("scaled_scores", "a scale of 0 taken for none")
def scores_of_a_true_scale(query, key, scale=None):
    return scores_of(query, key, scale or None)


@wrong("scaled_scores", "the root of a negative scale")
def scores_of_the_scales_root(query, key, scale=None):
    root = query.shape[-1] ** -0.5 if scale is None else scale
    root = torch.tensor(root, dtype=query.dtype).sqrt()
    return (query * root) @ (key * root).mT


@wrong("scaled_scores", "a scale of its own after the product")
def scores_scaled_late_when_given(query, key, scale=None):
    return scores_of(query, key) if scale is None else query @ key.mT * scale


@wrong("scaled_scores", "a scale of its own and the root as well")
def scores_scaled_twice(query, key, scale=None):
    return scores_of(query, key) * (1.0 if scale is None else scale)


@wrong("scaled_scores", "the absolute scale")
def scores_of_an_absolute_scale(query, key, scale=None):
    return scores_of(query, key, None if scale is None else abs(scale))


# --- Exercises ------------------------------------------------------------------------------------


def backward(weights, gradient):
    """p (g - p.g)."""
    return weights * (gradient - (weights * gradient).sum(-1, keepdim=True))


spoil("ch03.softmax_backward", backward, "weights", "gradient")


@right("ch03.softmax_backward")
def backward_by_einsum(weights, gradient):
    return (
        weights * gradient - weights * torch.einsum("...s,...s->...", weights, gradient)[..., None]
    )


@right("ch03.softmax_backward")
def backward_by_torch(weights, gradient):
    return torch._softmax_backward_data(gradient, weights, -1, weights.dtype)


@right("ch03.softmax_backward")
def backward_by_a_product(weights, gradient):
    mean = (weights.unsqueeze(-2) @ gradient.unsqueeze(-1)).squeeze(-1)
    return weights * (gradient - mean)


@wrong("ch03.softmax_backward", "the Jacobian is formed")
def backward_of_the_jacobian(weights, gradient):
    return (jacobian(weights) @ gradient.unsqueeze(-1)).squeeze(-1)


@wrong("ch03.softmax_backward", "the mean of the whole batch")
def backward_of_the_batch(weights, gradient):
    return weights * (gradient - (weights * gradient).sum())


@wrong("ch03.softmax_backward", "weights without the gradient")
def backward_without_the_weights(weights, gradient):
    return weights * gradient


@wrong("ch03.softmax_backward", "the mean over another axis")
def backward_of_columns(weights, gradient):
    return weights * (gradient - (weights * gradient).sum(0, keepdim=True))


@wrong("ch03.softmax_backward", "the mean over ten keys")
def backward_of_ten(weights, gradient):
    return weights * (gradient - (weights * gradient)[..., :10].sum(-1, keepdim=True))


@wrong("ch03.softmax_backward", "the sign reversed")
def backward_reversed(weights, gradient):
    return -backward(weights, gradient)


def gap(weight, num_keys):
    """ln(w / (1 - w)) + ln(n - 1)."""
    return (weight / (1 - weight)).log() + math.log(num_keys - 1)


@right("ch03.score_gap")
def gap_by_logit(weight, num_keys):
    return torch.logit(weight) + math.log(num_keys - 1)


@right("ch03.score_gap")
def gap_of_logarithms(weight, num_keys):
    return (
        weight.log() - torch.log1p(-weight) + torch.tensor(num_keys - 1.0, dtype=weight.dtype).log()
    )


@right("ch03.score_gap")
def gap_one_by_one(weight, num_keys):
    gaps = [math.log(w * (num_keys - 1) / (1 - w)) for w in weight.tolist()]
    return torch.tensor(gaps, dtype=weight.dtype)


@wrong("ch03.score_gap", "in bits")
def gap_in_bits(weight, num_keys):
    return gap(weight, num_keys) / math.log(2)


@wrong("ch03.score_gap", "the sign reversed")
def gap_reversed(weight, num_keys):
    return -gap(weight, num_keys)


@wrong("ch03.score_gap", "never below 0")
def gap_of_winners(weight, num_keys):
    return gap(weight, num_keys).clamp(min=0)


@wrong("ch03.score_gap", "weights clamped at 0.95")
def gap_clamped(weight, num_keys):
    return gap(weight.clamp(max=0.95), num_keys)


@wrong("ch03.score_gap", "a hundred keys at most")
def gap_of_a_hundred(weight, num_keys):
    return gap(weight, min(num_keys, 100))


def folded(weight, bias, num_heads):
    """Both over the root of one head's size."""
    root = math.sqrt(weight.shape[1] // num_heads)
    return weight / root, bias / root


@right("ch03.fold")
def folded_by_a_factor(weight, bias, num_heads):
    scale = (bias.shape[0] // num_heads) ** -0.5
    return weight * scale, scale * bias


@right("ch03.fold")
def folded_head_by_head(weight, bias, num_heads):
    heads = weight.chunk(num_heads, 1)
    scaled = [head / torch.tensor(head.shape[1], dtype=head.dtype).sqrt() for head in heads]
    return torch.cat(scaled, 1), bias / bias.view(num_heads, -1).shape[1] ** 0.5


@right("ch03.fold")
def folded_as_one(weight, bias, num_heads):
    both = torch.cat((weight, bias[None])) * torch.rsqrt(
        torch.tensor(len(bias) / num_heads).to(bias)
    )
    return both[:-1], both[-1]


@wrong("ch03.fold", "the input's size under the root")
def folded_by_the_input(weight, bias, num_heads):
    root = math.sqrt(weight.shape[0] // num_heads)
    return weight / root, bias / root


@wrong("ch03.fold", "the number of heads under the root")
def folded_by_the_heads(weight, bias, num_heads):
    return weight / num_heads**0.5, bias / num_heads**0.5


@wrong("ch03.fold", "the first head alone")
def folded_first_head(weight, bias, num_heads):
    size = weight.shape[1] // num_heads
    scale = torch.ones_like(bias)
    scale[:size] = size**-0.5
    return weight * scale, bias * scale


@wrong("ch03.fold", "the bias detached")
def folded_detached(weight, bias, num_heads):
    return folded(weight, bias.detach(), num_heads)


@wrong("ch03.fold", "in place")
def folded_in_place(weight, bias, num_heads):
    return weight.div_(math.sqrt(weight.shape[1] // num_heads)), folded(weight, bias, num_heads)[1]


def perplexity_at(scores, temperature):
    """exp(entropy) of the softmax."""
    return torch.special.entr(torch.softmax(scores.double() / temperature, -1)).sum().exp().item()


@right("ch03.temperature")
def temperature_by_doubling(scores, target):
    low = high = (scores.max() - scores.min()).item() / 10
    while perplexity_at(scores, high) < target:
        high *= 2
    while perplexity_at(scores, low) > target:
        low /= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if perplexity_at(scores, middle) < target else (low, middle)
    return middle


@right("ch03.temperature")
def temperature_of_the_scale(scores, target):
    """The scale's logarithm by the secant method, inside an interval that keeps shrinking."""
    low, high = -40.0, 40.0
    for _ in range(80):
        middle = (low + high) / 2
        if perplexity_at(scores, math.exp(middle)) < target:
            low = middle
        else:
            high = middle
    return torch.tensor(math.exp(low))


@right("ch03.temperature")
def temperature_of_a_tensor(scores, target):
    grid, low, high = 41, 1e-9, 1e9
    for _ in range(14):
        steps = torch.logspace(math.log10(low), math.log10(high), grid, dtype=torch.float64)
        seen = torch.tensor([perplexity_at(scores, t) for t in steps])
        place = int((seen < target).sum().clamp(1, grid - 1))
        low, high = steps[place - 1].item(), steps[place].item()
    return (low * high) ** 0.5


@wrong("ch03.temperature", "to a tenth of a key")
def temperature_roughly(scores, target):
    low, high = 1e-9, 1e9
    while perplexity_at(scores, high) - perplexity_at(scores, low) > 0.1:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if perplexity_at(scores, middle) < target else (low, middle)
    return high


@wrong("ch03.temperature", "between 0.01 and 100")
def temperature_of_ordinary_scores(scores, target):
    low, high = 0.01, 100.0
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if perplexity_at(scores, middle) < target else (low, middle)
    return middle


@wrong("ch03.temperature", "the target's integer part")
def temperature_of_whole_keys(scores, target):
    return temperature_by_doubling(scores, max(float(int(target)), 1.1))


@wrong("ch03.temperature", "1 over the largest weight")
def temperature_of_the_winner(scores, target):
    low, high = 1e-9, 1e9
    for _ in range(100):
        middle = (low * high) ** 0.5
        seen = 1 / torch.softmax(scores.double() / middle, -1).max().item()
        low, high = (middle, high) if seen < target else (low, middle)
    return middle
