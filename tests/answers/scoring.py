"""The answers to the scoring functions."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from tested_transformer.functional import scoring

from . import right, wrong
from .spoiled import spoil

# --- Additive -------------------------------------------------------------------------------------


def additive(query, key, w_query, w_key, w_v):
    """The formula, as chapter 2 has it."""
    return torch.tanh((query @ w_query.T)[..., :, None, :] + (key @ w_key.T)[..., None, :, :]) @ w_v


for each in ("additive scores", "ch02.additive_scores"):
    right(each, "the library's")(scoring.additive_scores)
    right(each, "a partial function")(partial(additive))
    spoil(each, additive, "query", "key", "w_query", "w_key", "w_v")

    @right(each)
    def additive_by_einsum(query, key, w_query, w_key, w_v):
        left = torch.einsum("...ld,hd->...lh", query, w_query)
        right = torch.einsum("...sd,hd->...sh", key, w_key)
        return torch.einsum(
            "...lsh,h->...ls", (left[..., None, :] + right[..., None, :, :]).tanh(), w_v
        )

    @right(each)
    def additive_of_one_matrix(query, key, w_query, w_key, w_v):
        """W of (q, k), one concatenation for each pair."""
        length, keys = query.shape[-2], key.shape[-2]
        queries = query.unsqueeze(-2).expand(*query.shape[:-1], keys, query.shape[-1])
        key = key.unsqueeze(-3).expand(*key.shape[:-2], length, keys, key.shape[-1])
        pairs = torch.cat((queries, key), -1)
        return nn.functional.linear(
            torch.tanh(nn.functional.linear(pairs, torch.cat((w_query, w_key), 1))), w_v[None]
        )[..., 0]

    @right(each)
    def additive_unit_by_unit(query, key, w_query, w_key, w_v, **options):
        scores = torch.zeros(*query.shape[:-1], key.shape[-2], dtype=query.dtype)
        for unit in range(len(w_v)):
            of_query, of_key = query @ w_query[unit], key @ w_key[unit]
            scores = scores + w_v[unit] * torch.tanh(of_query[..., :, None] + of_key[..., None, :])
        return scores

    @wrong(each, "new axes at fixed places: three axes at most")
    def additive_of_three_axes(query, key, w_query, w_key, w_v):
        if query.ndim == 2:
            return additive(query, key, w_query, w_key, w_v)
        return torch.tanh((query @ w_query.T).unsqueeze(2) + (key @ w_key.T).unsqueeze(1)) @ w_v

    @wrong(each, "two axes only: no batch")
    def additive_without_a_batch(query, key, w_query, w_key, w_v):
        return torch.tanh((query @ w_query.T)[:, None] + (key @ w_key.T)[None]) @ w_v

    @wrong(each, "tanh by exponentials that overflow")
    def additive_that_overflows(query, key, w_query, w_key, w_v):
        twice = (
            2 * ((query @ w_query.T)[..., :, None, :] + (key @ w_key.T)[..., None, :, :])
        ).exp()
        return (twice - 1) / (twice + 1) @ w_v

    @wrong(each, "a sigmoid for the tanh")
    def additive_by_sigmoid(query, key, w_query, w_key, w_v):
        return (
            torch.sigmoid((query @ w_query.T)[..., :, None, :] + (key @ w_key.T)[..., None, :, :])
            @ w_v
        )

    @wrong(each, "tanh cut to a line")
    def additive_by_hardtanh(query, key, w_query, w_key, w_v):
        return (
            nn.functional.hardtanh(
                (query @ w_query.T)[..., :, None, :] + (key @ w_key.T)[..., None, :, :]
            )
            @ w_v
        )

    @wrong(each, "scaled by the root of the hidden size")
    def additive_scaled(query, key, w_query, w_key, w_v):
        return additive(query, key, w_query, w_key, w_v) / len(w_v) ** 0.5

    @wrong(each, "one batch for all")
    def additive_of_the_first_sample(query, key, w_query, w_key, w_v):
        key = key if key.ndim == 2 else key[:1]
        return additive(query, key, w_query, w_key, w_v)

    @wrong(each, "a straight-through tanh")
    def additive_straight_through(query, key, w_query, w_key, w_v):
        sums = (query @ w_query.T)[..., :, None, :] + (key @ w_key.T)[..., None, :, :]
        return (sums + (torch.tanh(sums) - sums).detach()) @ w_v

    @wrong(each, "no keys raise")
    def additive_of_some_keys(query, key, w_query, w_key, w_v):
        scores = additive(query, key, w_query, w_key, w_v)
        scores.amax(-1)
        return scores


@right("additive scores", "TorchScript")
@torch.jit.script
def additive_scripted(
    query: Tensor, key: Tensor, w_query: Tensor, w_key: Tensor, w_v: Tensor
) -> Tensor:
    sums = (query @ w_query.t()).unsqueeze(-2) + (key @ w_key.t()).unsqueeze(-3)
    return torch.tanh(sums).matmul(w_v)


# --- Bilinear -------------------------------------------------------------------------------------


def bilinear(query, key, weight):
    """q^T W k."""
    return query @ weight @ key.mT


right("bilinear scores", "the library's")(scoring.bilinear_scores)
spoil("bilinear scores", bilinear, "query", "key", "weight")


@right("bilinear scores")
def bilinear_by_einsum(query, key, weight):
    return torch.einsum("...ld,de,...se->...ls", query, weight, key)


@right("bilinear scores")
def bilinear_keys_first(query, key, weight):
    return query @ (key @ weight.T).transpose(-2, -1)


@right("bilinear scores")
def bilinear_pair_by_pair(query, key, weight):
    products = query[..., :, None, :, None] * weight * key[..., None, :, None, :]
    return products.sum((-2, -1))


@right("bilinear scores")
def bilinear_of_low_rank(query, key, weight):
    """Row by row of W: each is a rank of its own."""
    scores = torch.zeros(*query.shape[:-1], key.shape[-2], dtype=query.dtype)
    for row in range(len(weight)):
        scores = scores + query[..., row, None] * (key @ weight[row])[..., None, :]
    return scores


@wrong("bilinear scores", "the symmetric part of W")
def bilinear_symmetric(query, key, weight):
    if weight.shape[0] == weight.shape[1]:
        weight = (weight + weight.T) / 2
    return bilinear(query, key, weight)


@wrong("bilinear scores", "the transposed W where it fits")
def bilinear_transposed_where_square(query, key, weight):
    return bilinear(query, key, weight.T if weight.shape[0] == weight.shape[1] else weight)


@wrong("bilinear scores", "a scale where W is not square")
def bilinear_scaled_if_not_square(query, key, weight):
    scale = 1.0 if weight.shape[0] == weight.shape[1] else weight.shape[0] ** -0.5
    return scale * bilinear(query, key, weight)


@wrong("bilinear scores", "a tanh")
def bilinear_with_tanh(query, key, weight):
    return bilinear(query, key, weight).tanh()


@wrong("bilinear scores", "bmm: three axes only")
def bilinear_by_bmm(query, key, weight):
    if query.ndim == 2:
        return bilinear(query, key, weight)
    return torch.bmm(query @ weight, key.transpose(1, 2))


@wrong("bilinear scores", ".t(): two axes only")
def bilinear_by_t(query, key, weight):
    return query @ weight @ key.t()


# --- Location -------------------------------------------------------------------------------------


def location(query, weight):
    """W q."""
    return query @ weight.T


right("location scores", "the library's")(scoring.location_scores)
right("location scores", "torch's")(nn.functional.linear)
spoil("location scores", location, "query", "weight")


@right("location scores")
def location_by_einsum(query, weight):
    return torch.einsum("...d,sd->...s", query, weight)


@right("location scores")
def location_by_sums(query, weight):
    return (query.unsqueeze(-2) * weight).sum(-1)


@right("location scores")
def location_the_other_way_round(query, weight):
    return (weight @ query.mT).mT


@wrong("location scores", "places numbered from the end")
def location_reversed(query, weight):
    return location(query, weight.flip(0))


@wrong("location scores", "only as many places as queries")
def location_of_few(query, weight):
    scores = location(query, weight)
    return scores.masked_fill(torch.arange(len(weight)) >= query.shape[-2], 0.0)


@wrong("location scores", "the query normalized when it is long")
def location_of_short_queries(query, weight):
    return location(query / query.norm(dim=-1, keepdim=True).clamp_min(3.0) * 3.0, weight)


@wrong("location scores", "centered scores")
def location_centered(query, weight):
    scores = location(query, weight)
    return scores - scores.mean(-1, keepdim=True)


# --- Content --------------------------------------------------------------------------------------


def content(query, key, sharpness):
    """The dot product of the directions."""
    query, key = nn.functional.normalize(query, dim=-1), nn.functional.normalize(key, dim=-1)
    return sharpness * query @ key.mT


right("content scores", "the library's")(scoring.content_scores)
right("content scores", "of torch's normalize")(content)
spoil("content scores", content, "query", "key")


@right("content scores")
def content_of_torch(query, key, sharpness):
    eps = torch.finfo(query.dtype).tiny ** 0.5  # its own 1e-8 would clamp short vectors
    cosine = nn.functional.cosine_similarity(
        query.unsqueeze(-2), key.unsqueeze(-3), dim=-1, eps=eps
    )
    return sharpness * cosine


@right("content scores")
def content_by_einsum(query, key, sharpness):
    def direction(vectors):
        size = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        return vectors / torch.where(size > 0, size, 1.0)

    return (
        torch.einsum("...ld,...sd->...ls", direction(sharpness * query), direction(key)) * sharpness
    )


@right("content scores")
def content_by_rsqrt(query, key, sharpness):
    largest = [v.abs().amax(-1, keepdim=True) for v in (query, key)]
    query, key = (
        v / torch.where(m > 0, m, 1.0) for v, m in zip((query, key), largest, strict=True)
    )
    squares = query.square().sum(-1)[..., :, None] * key.square().sum(-1)[..., None, :]
    return sharpness * (query @ key.mT) * torch.where(squares > 0, squares, 1.0).rsqrt()


@wrong("content scores", "lengths clamped at 1e-8")
def content_clamped(query, key, sharpness):
    return sharpness * nn.functional.cosine_similarity(
        query.unsqueeze(-2), key.unsqueeze(-3), dim=-1
    )


@wrong("content scores", "1e-6 added to the lengths")
def content_with_eps(query, key, sharpness):
    lengths = query.norm(dim=-1)[..., :, None] * key.norm(dim=-1)[..., None, :]
    return sharpness * query @ key.mT / (lengths + 1e-6)


@wrong("content scores", "a gradient of NaN for a vector of zeros")
def content_with_nan_gradient(query, key, sharpness):
    query, key = (v / v.square().sum(-1, keepdim=True).sqrt() for v in (query, key))
    return sharpness * query.nan_to_num() @ key.nan_to_num().mT


@wrong("content scores", "squares that overflow")
def content_in_half(query, key, sharpness):
    return content((query * 1e20).float().to(query.dtype), key, sharpness)


@wrong("content scores", "clamped to sharpness / 2")
def content_clamped_at_half(query, key, sharpness):
    return content(query, key, sharpness).clamp(-sharpness / 2, sharpness / 2)


@wrong("content scores", "the absolute cosine")
def content_without_sign(query, key, sharpness):
    return content(query, key, sharpness).abs()


@wrong("content scores", "lengths detached")
def content_of_detached_lengths(query, key, sharpness):
    query = query / query.norm(dim=-1, keepdim=True).detach()
    return (
        content(query, key, sharpness) * 0
        + sharpness * query @ nn.functional.normalize(key, dim=-1).mT
    )


@wrong("content scores", "the key's length alone")
def content_of_key_directions(query, key, sharpness):
    return sharpness * query @ nn.functional.normalize(key, dim=-1).mT


# --- Kernel regression ----------------------------------------------------------------------------


def kernel(query, key, value, bandwidth):
    """softmax(-|q - k|^2 / (2 s^2)) v."""
    squares = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(-1)
    return torch.softmax(-squares / (2 * bandwidth**2), -1) @ value


for each in ("kernel regression", "ch02.kernel_regression"):
    spoil(each, kernel, "query", "key", "value")

    @right(each)
    def kernel_of_the_library(query, key, value, bandwidth):
        return scoring.kernel_regression(query, key, value, bandwidth=bandwidth)

    @right(each)
    def kernel_by_logsumexp(query, key, value, bandwidth):
        scores = -((query.unsqueeze(-2) - key.unsqueeze(-3)) / bandwidth).square().sum(-1) / 2
        return (scores - scores.logsumexp(-1, keepdim=True)).exp() @ value

    @right(each)
    def kernel_by_einsum(query, key, value, bandwidth):
        steps = query[..., :, None, :] - key[..., None, :, :]
        scores = torch.einsum("...d,...d->...", steps, steps) * (-0.5 * bandwidth**-2)
        return torch.einsum("...ls,...sv->...lv", scores.softmax(-1), value)

    @right(each)
    def kernel_by_hand(query, key, value, bandwidth):
        scores = -(query.unsqueeze(-2) - key.unsqueeze(-3)).pow(2).sum(-1) / (2 * bandwidth**2)
        kernels = (scores - scores.amax(-1, keepdim=True).detach()).exp()
        return kernels @ value / kernels.sum(-1, keepdim=True)

    @right(each)
    def kernel_by_cdist(query, key, value, bandwidth):
        exact = "donot_use_mm_for_euclid_dist"
        distance = torch.cdist(query, key, compute_mode=exact)
        return (-(distance**2) / (2 * bandwidth**2)).softmax(-1) @ value

    @wrong(each, "distances by a matrix product: cdist of many points")
    def kernel_by_mm(query, key, value, bandwidth):
        distance = torch.cdist(query, key, compute_mode="use_mm_for_euclid_dist")
        return (-(distance**2) / (2 * bandwidth**2)).softmax(-1) @ value

    @wrong(each, "the sum of absolute steps")
    def kernel_of_l1(query, key, value, bandwidth):
        squares = (query.unsqueeze(-2) - key.unsqueeze(-3)).abs().sum(-1).square()
        return torch.softmax(-squares / (2 * bandwidth**2), -1) @ value

    @wrong(each, "kernels plus 1e-9")
    def kernel_with_eps(query, key, value, bandwidth):
        squares = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(-1)
        kernels = torch.exp(-squares / (2 * bandwidth**2))
        return kernels @ value / (kernels.sum(-1, keepdim=True) + 1e-9)

    @wrong(each, "the nearest point alone when all are far")
    def kernel_of_the_nearest(query, key, value, bandwidth):
        squares = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(-1)
        far = squares.amin(-1, keepdim=True) > 1000 * bandwidth**2
        kernels = torch.exp(-squares / (2 * bandwidth**2)).clamp_min(1e-300)
        even = torch.where(far, torch.ones_like(kernels), kernels)
        return even / even.sum(-1, keepdim=True) @ value

    @wrong(each, "naive in float32")
    def kernel_naive_in_float32(query, key, value, bandwidth):
        if query.dtype != torch.float32:
            return kernel(query, key, value, bandwidth)
        squares = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(-1)
        kernels = torch.exp(-squares / (2 * bandwidth**2))
        return kernels / kernels.sum(-1, keepdim=True) @ value

    @wrong(each, "three axes at most")
    def kernel_of_three_axes(query, key, value, bandwidth):
        if query.ndim == 2:
            return kernel(query, key, value, bandwidth)
        squares = (query[:, :, None] - key[:, None]).square().sum(-1)
        return torch.bmm(torch.softmax(-squares / (2 * bandwidth**2), -1), value)

    @wrong(each, "only the first feature's distance")
    def kernel_of_the_first_feature(query, key, value, bandwidth):
        return kernel(query[..., :1], key[..., :1], value, bandwidth)

    @wrong(each, "the weights detached")
    def kernel_detached(query, key, value, bandwidth):
        squares = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(-1)
        return torch.softmax(-squares / (2 * bandwidth**2), -1).detach() @ value


# --- Local ----------------------------------------------------------------------------------------


def local(scores, centers, half_width, gaussian=False):
    """A softmax over the window, zeros where it holds no place."""
    steps = torch.arange(scores.shape[-1]) - centers.unsqueeze(-1)
    window = steps.abs() <= half_width
    empty = ~window.any(-1, keepdim=True)
    weights = scores.masked_fill(~window & ~empty, -math.inf).softmax(-1).masked_fill(empty, 0.0)
    bell = torch.exp(-2 * (steps / half_width).square())
    return weights * bell if gaussian else weights


right("local weights", "the library's")(scoring.local_weights)
right("local weights", "the formula")(local)
spoil("local weights", local, "scores", "centers")
spoil("ch02.local_p_weights", partial(local, gaussian=True), "scores", "centers")
right("ch02.local_p_weights", "the library's")(partial(scoring.local_weights, gaussian=True))
right("ch02.local_p_weights", "the formula")(partial(local, gaussian=True))


@right("local weights")
def local_by_hand(scores, centers, half_width, gaussian=False, **options):
    """Exponentials that are 0 outside the window, in logarithms with the Gaussian."""
    places = torch.arange(scores.shape[-1], dtype=scores.dtype)
    steps = places - centers[..., None]
    window = (steps <= half_width) & (steps >= -half_width)
    top = (
        torch.where(window, scores, -math.inf)
        .amax(-1, keepdim=True)
        .detach()
        .nan_to_num(neginf=0.0)
    )
    powers = torch.where(window, scores - top, 0.0).exp() * window
    total = powers.sum(-1, keepdim=True)
    weights = powers / torch.where(total > 0, total, 1.0)
    return weights * torch.exp(-(steps**2) / (2 * (half_width / 2) ** 2)) if gaussian else weights


@right("local weights")
def local_row_by_row(scores, centers, half_width, gaussian=False):
    rows, middles = scores.reshape(-1, scores.shape[-1]), centers.reshape(-1)
    found = []
    for row, center in zip(rows, middles, strict=True):
        steps = torch.arange(len(row)) - center
        inside = (steps.abs() <= half_width).nonzero()[:, 0]
        weights = torch.zeros_like(row).index_copy(0, inside, row[inside].softmax(0))
        found.append(
            weights * torch.exp(-0.5 * (2 * steps / half_width) ** 2) if gaussian else weights
        )
    return torch.stack(found).view(scores.shape)


@right("ch02.local_p_weights")
def local_p_by_logarithms(scores, centers, half_width):
    steps = torch.arange(scores.shape[-1]) - centers[..., None]
    logs = scores.where(steps.abs() <= half_width, torch.tensor(-math.inf, dtype=scores.dtype))
    return torch.exp(logs.log_softmax(-1) - 2 * (steps / half_width) ** 2)


@right("ch02.local_p_weights")
def local_p_by_a_mask(scores, centers, half_width):
    places = torch.arange(scores.shape[-1])
    inside = (places >= centers[..., None] - half_width) & (
        places <= centers[..., None] + half_width
    )
    mask = torch.zeros_like(scores).masked_fill(~inside, -math.inf)
    bell = torch.exp(-((places - centers[..., None]) ** 2) / (2 * (half_width / 2) ** 2))
    return bell * nn.functional.softmax(scores + mask, dim=-1)


def both(name):
    """A wrong answer to the whole Spec and to the exercise."""

    def note(formula):
        wrong("local weights", name)(formula)
        wrong("ch02.local_p_weights", name)(partial(formula, gaussian=True))
        return formula

    return note


@both("exponentials without the maximum")
def local_naive(scores, centers, half_width, gaussian=False):
    steps = torch.arange(scores.shape[-1]) - centers.unsqueeze(-1)
    powers = scores.exp() * (steps.abs() <= half_width)
    weights = powers / powers.sum(-1, keepdim=True)
    return weights * torch.exp(-2 * (steps / half_width).square()) if gaussian else weights


@both("the maximum of the whole row")
def local_under_the_row(scores, centers, half_width, gaussian=False):
    steps = torch.arange(scores.shape[-1]) - centers.unsqueeze(-1)
    powers = (scores - scores.amax(-1, keepdim=True)).exp() * (steps.abs() <= half_width)
    weights = powers / powers.sum(-1, keepdim=True).clamp_min(1e-300)
    return weights * torch.exp(-2 * (steps / half_width).square()) if gaussian else weights


@both("-1e4 outside the window")
def local_by_a_constant(scores, centers, half_width, gaussian=False):
    steps = torch.arange(scores.shape[-1]) - centers.unsqueeze(-1)
    weights = scores.masked_fill(steps.abs() > half_width, -1e2).softmax(-1)
    return weights * torch.exp(-2 * (steps / half_width).square()) if gaussian else weights


@both("the centers detached")
def local_of_detached_centers(scores, centers, half_width, gaussian=False):
    return local(scores, centers.detach(), half_width, gaussian)


@both("centers clamped one place inside")
def local_clamped(scores, centers, half_width, gaussian=False):
    return local(scores, centers.clamp(1, max(scores.shape[-1] - 2, 1)), half_width, gaussian)


@both("a window of at most 4 places")
def local_of_at_most_four(scores, centers, half_width, gaussian=False):
    return local(scores, centers, min(half_width, 2), gaussian)


@both("the Gaussian in integers: half_width // 2")
def local_floored(scores, centers, half_width, gaussian=False):
    weights = local(scores, centers, half_width)
    steps = torch.arange(scores.shape[-1]) - centers.unsqueeze(-1)
    sigma = max(half_width // 2, 1)
    return weights * torch.exp(-(steps**2) / (2 * sigma**2)) if gaussian else weights


@both("the centers of the first sample")
def local_of_the_first_sample(scores, centers, half_width, gaussian=False):
    return local(
        scores,
        centers if centers.ndim == 1 else centers[:1].expand_as(centers),
        half_width,
        gaussian,
    )


@wrong("local weights", "NaN where the window holds no place")
def local_of_some_place(scores, centers, half_width, gaussian=False):
    steps = torch.arange(scores.shape[-1]) - centers.unsqueeze(-1)
    weights = scores.masked_fill(steps.abs() > half_width, -math.inf).softmax(-1)
    return weights * torch.exp(-2 * (steps / half_width).square()) if gaussian else weights


@wrong("local weights", "even weights where the window holds no place")
def local_even_outside(scores, centers, half_width, gaussian=False):
    steps = torch.arange(scores.shape[-1]) - centers.unsqueeze(-1)
    window = steps.abs() <= half_width
    weights = scores.masked_fill(~window & window.any(-1, keepdim=True), -math.inf).softmax(-1)
    return weights * torch.exp(-2 * (steps / half_width).square()) if gaussian else weights


# --- Exercises of chapter 2 -----------------------------------------------------------------------


def features(query, key, bandwidth):
    """(q, 1) / s^2 and (k, -|k|^2 / 2)."""
    ones, squares = torch.ones_like(query[..., :1]), key.square().sum(-1, keepdim=True)
    return torch.cat((query, ones), -1) / bandwidth**2, torch.cat((key, -squares / 2), -1)


@right("ch02.gaussian_features")
def features_of_the_whole_square(query, key, bandwidth):
    """With |q|^2 as well: the dot product is the exponent itself."""
    of_query = (-(query**2).sum(-1, keepdim=True) / 2, torch.ones_like(query[..., :1]), query)
    of_key = (torch.ones_like(key[..., :1]), -(key**2).sum(-1, keepdim=True) / 2, key)
    return torch.cat(of_query, -1) / bandwidth, torch.cat(of_key, -1) / bandwidth


@right("ch02.gaussian_features")
def features_shared(query, key, bandwidth):
    of_query, of_key = features(query / bandwidth, key / bandwidth, 1.0)
    return [of_query, of_key]


@right("ch02.gaussian_features")
def features_with_padding(query, key, bandwidth):
    of_query, of_key = features(query, key, bandwidth)
    return nn.functional.pad(of_query, (0, 2)), nn.functional.pad(of_key, (2, 0)).roll(-2, -1)


for part in (0, 1):

    @wrong("ch02.gaussian_features", f"features {part} detached")
    def features_detached(query, key, bandwidth, part=part):
        pair = list(features(query, key, bandwidth))
        pair[part] = pair[part].detach()
        return pair


@wrong("ch02.gaussian_features", "the square of the first feature alone")
def features_of_one_square(query, key, bandwidth):
    ones = torch.ones_like(query[..., :1])
    return torch.cat((query, ones), -1) / bandwidth**2, torch.cat(
        (key, -(key[..., :1] ** 2) / 2), -1
    )


@wrong("ch02.gaussian_features", "no gradient in float32")
def features_without_float32(query, key, bandwidth):
    if query.dtype == torch.float32:
        key = key.detach()
    return features(query, key, bandwidth)


@wrong("ch02.gaussian_features", "one bandwidth for all: 0.5")
def features_of_a_half(query, key, bandwidth):
    return features(query, key, 0.5)


@wrong("ch02.gaussian_features", "centered on the keys' mean by the query")
def features_of_queries_that_know_the_keys(query, key, bandwidth):
    mean = key.mean(-2, keepdim=True)
    return features(query - mean, key - mean, bandwidth)


@right("ch02.split")
def split_on_the_right(weight, rank):
    u, s, vh = torch.linalg.svd(weight, full_matrices=False)
    return u.mT[:rank], torch.diag(s[:rank]) @ vh[:rank]


@right("ch02.split")
def split_by_projection(weight, rank):
    """The strongest right singular vectors, and what W makes of them."""
    _, _, vh = torch.linalg.svd(weight)
    return (weight @ vh[:rank].T).T, vh[:rank]


@right("ch02.split")
def split_by_eigenvectors(weight, rank):
    _, vectors = torch.linalg.eigh(weight @ weight.T)
    strongest = vectors[:, -rank:].T
    return strongest, strongest @ weight


@wrong("ch02.split", "one rank more than asked, in the last row")
def split_of_more(weight, rank):
    u, s, vh = torch.linalg.svd(weight, full_matrices=False)
    more = min(rank + 1, len(s))
    return (u[:, :more] * s[:more]).T, vh[:more]


@wrong("ch02.split", "one rank less than asked")
def split_of_less(weight, rank):
    u, s, vh = torch.linalg.svd(weight, full_matrices=False)
    s = torch.where(torch.arange(len(s)) < max(rank - 1, 1), s, 0.0)
    return (u[:, :rank] * s[:rank]).T, vh[:rank]


@wrong("ch02.split", "square weights only")
def split_of_squares(weight, rank):
    _, vectors = torch.linalg.eigh(weight @ weight.T)
    return vectors[:, -rank:].T, weight[:, -rank:].T @ weight


@wrong("ch02.split", "the singular values rounded")
def split_rounded(weight, rank):
    u, s, vh = torch.linalg.svd(weight, full_matrices=False)
    return (u[:, :rank] * s[:rank].half().to(s.dtype)).T, vh[:rank]
