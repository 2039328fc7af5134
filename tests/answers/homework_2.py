"""The answers to homework 2."""

import math

import numpy as np
import torch

from . import right, wrong

# --- windowed -------------------------------------------------------------------------------------


def logs_of_the_window(scores, centers, width):
    steps = torch.arange(scores.shape[-1]).to(scores) - centers[..., None]
    return -(steps**2) / (2 * width**2)


@right("hw02.windowed")
def windowed_by_logarithms(scores, centers, width):
    both = scores.log_softmax(-1) + logs_of_the_window(scores, centers, width)
    return (both - both.logsumexp(-1, keepdim=True)).exp()


@right("hw02.windowed")
def windowed_written_out(scores, centers, width):
    both = scores + logs_of_the_window(scores, centers, width)
    raised = (both - both.max(-1, keepdim=True).values).exp()
    return raised / raised.sum(-1, keepdim=True)


@right("hw02.windowed")
def windowed_in_numpy(scores, centers, width):
    scores, centers = (t.double().numpy() for t in (scores, centers))
    both = scores - 0.5 * ((np.arange(scores.shape[-1]) - centers[..., None]) / width) ** 2
    raised = np.exp(both - both.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


@right("hw02.windowed")
def windowed_expanded(scores, centers, width):
    """(s - p)^2 without p^2, which every position of a row has."""
    s = torch.arange(scores.shape[-1], dtype=torch.float64)
    steps = (s * s - 2 * s * centers.double()[..., None]) / (2 * width * width)
    return (scores.double() - steps).softmax(-1).to(scores.dtype)


@wrong("hw02.windowed", "the weights of the window added, not multiplied")
def windowed_added(scores, centers, width):
    both = scores.softmax(-1) + logs_of_the_window(scores, centers, width).exp()
    return both / both.sum(-1, keepdim=True)


@wrong("hw02.windowed", "the width not squared")
def windowed_width_not_squared(scores, centers, width):
    both = scores + width * logs_of_the_window(scores, centers, width)
    return both.softmax(-1)


@wrong("hw02.windowed", "the centers rounded")
def windowed_rounded(scores, centers, width):
    return windowed_written_out(scores, centers.round(), width)


@wrong("hw02.windowed", "the centers kept inside")
def windowed_clamped(scores, centers, width):
    return windowed_written_out(scores, centers.clamp(0, scores.shape[-1] - 1), width)


@wrong("hw02.windowed", "eps added to the sum")
def windowed_with_eps(scores, centers, width):
    both = scores + logs_of_the_window(scores, centers, width)
    raised = (both - both.amax(-1, keepdim=True)).exp()
    return raised / (raised.sum(-1, keepdim=True) + 1e-9)


@wrong("hw02.windowed", "the window in float32")
def windowed_single(scores, centers, width):
    window = logs_of_the_window(scores.float(), centers.float(), width)
    return (scores + window.to(scores)).softmax(-1)


@wrong("hw02.windowed", "normalized over the queries")
def windowed_over_queries(scores, centers, width):
    return (scores + logs_of_the_window(scores, centers, width)).softmax(-2)


# --- level ----------------------------------------------------------------------------------------


@right("hw02.level")
def level_by_norms(key):
    norms = key.norm(dim=-1, keepdim=True)
    longest = norms.amax(-2, keepdim=True)
    return torch.cat([key, (longest**2 - norms**2).clamp(min=0).sqrt()], -1)


@right("hw02.level")
def level_by_factors(key):
    """(a - b) (a + b), with a and b the norms."""
    norms = torch.linalg.vector_norm(key, dim=-1, keepdim=True)
    longest = norms.max(-2, keepdim=True).values
    return torch.cat([key, ((longest - norms) * (longest + norms)).sqrt()], -1)


@right("hw02.level")
def level_in_numpy(key):
    key = key.numpy()
    squares = np.einsum("...d,...d->...", key, key)[..., None]
    return np.concatenate([key, np.sqrt(squares.max(-2, keepdims=True) - squares)], -1)


@right("hw02.level")
def level_in_a_loop(key):
    answer = key.new_zeros(*key.shape[:-1], key.shape[-1] + 1)
    answer[..., :-1] = key
    for at in np.ndindex(*key.shape[:-2]):
        squares = [float(row @ row) for row in key[at].double()]
        for j, square in enumerate(squares):
            answer[at][j, -1] = math.sqrt(max(squares) - square)
    return answer


@wrong("hw02.level", "the number below 0")
def level_negative(key):
    answer = level_by_norms(key)
    return torch.cat([key, -answer[..., -1:]], -1)


@wrong("hw02.level", "longer than it must be")
def level_too_long(key):
    squares = key.square().sum(-1, keepdim=True)
    return torch.cat([key, (2 * squares.amax(-2, keepdim=True) - squares).sqrt()], -1)


@wrong("hw02.level", "the number in front")
def level_in_front(key):
    answer = level_by_norms(key)
    return torch.cat([answer[..., -1:], key], -1)


@wrong("hw02.level", "in float32")
def level_single(key):
    return level_by_norms(key.float()).to(key.dtype)


@wrong("hw02.level", "the longest of the heads of a sample")
def level_over_heads(key):
    if key.ndim < 4:
        return level_by_norms(key)
    return level_by_norms(key.flatten(1, 2)).unflatten(1, key.shape[1:3])


# --- scale_for ------------------------------------------------------------------------------------


@right("hw02.scale_for")
def scale_by_the_variance(d, query_mean, query_std, key_mean, key_std):
    return (d * (query_std**2 + query_mean**2) * key_std**2) ** -0.5


@right("hw02.scale_for")
def scale_by_logarithms(d, query_mean, query_std, key_mean, key_std):
    size = math.hypot(query_mean, query_std)
    return math.exp(-0.5 * math.log(d)) / size / key_std


@right("hw02.scale_for")
def scale_as_a_tensor(d, query_mean, query_std, key_mean, key_std):
    moments = torch.tensor([query_mean, query_std], dtype=torch.float64)
    return 1 / (math.sqrt(d) * moments.norm() * key_std)


@right("hw02.scale_for")
def scale_in_numpy(d, query_mean, query_std, key_mean, key_std):
    return np.float64(1) / (np.sqrt(np.float64(d)) * np.hypot(query_mean, query_std) * key_std)


@wrong("hw02.scale_for", "the mean of the keys counted")
def scale_with_key_mean(d, query_mean, query_std, key_mean, key_std):
    return (d * (query_std**2 + query_mean**2) * (key_std**2 + key_mean**2)) ** -0.5


@wrong("hw02.scale_for", "in float32")
def scale_single(d, query_mean, query_std, key_mean, key_std):
    return float(np.float32(scale_by_the_variance(d, query_mean, query_std, key_mean, key_std)))


@wrong("hw02.scale_for", "queries and keys change places")
def scale_swapped(d, query_mean, query_std, key_mean, key_std):
    return scale_by_the_variance(d, key_mean, key_std, query_mean, query_std)


@wrong("hw02.scale_for", "the mean added to the deviation")
def scale_sum(d, query_mean, query_std, key_mean, key_std):
    return 1 / (math.sqrt(d) * (query_std + abs(query_mean)) * key_std)


# --- entropy_gradient -----------------------------------------------------------------------------


@right("hw02.entropy_gradient")
def entropy_by_xlogy(scores):
    weights = scores.softmax(-1)
    terms = torch.special.xlogy(weights, weights)
    return weights * terms.sum(-1, keepdim=True) - terms


@right("hw02.entropy_gradient")
def entropy_from_scores(scores):
    """-p (s - sum p s): the logarithm of the sum cancels."""
    weights = scores.softmax(-1)
    top = scores.amax(-1, keepdim=True)
    moved = torch.where(weights > 0, scores - top, 0.0)
    return -weights * (moved - (weights * moved).sum(-1, keepdim=True))


@right("hw02.entropy_gradient")
def entropy_by_the_jacobian(scores):
    weights = scores.softmax(-1)
    slopes = -(torch.where(weights > 0, weights, 1.0).log() + 1)
    jacobian = torch.diag_embed(weights) - weights[..., :, None] * weights[..., None, :]
    return (jacobian @ slopes[..., None])[..., 0]


@right("hw02.entropy_gradient")
def entropy_in_numpy(scores):
    scores = scores.double().numpy()
    moved = scores - scores.max(-1, keepdims=True)
    raised = np.exp(moved)
    weights = raised / raised.sum(-1, keepdims=True)
    moved = np.where(weights > 0, moved, 0.0)
    return weights * ((weights * moved).sum(-1, keepdims=True) - moved)


@right("hw02.entropy_gradient")
@torch.no_grad()
def entropy_without_a_graph(scores):
    return entropy_by_xlogy(scores)


@wrong("hw02.entropy_gradient", "logarithms clamped at 1e-9")
def entropy_clamped(scores):
    weights = scores.softmax(-1)
    logs = weights.clamp(min=1e-9).log()
    return -weights * (logs - (weights * logs).sum(-1, keepdim=True))


@wrong("hw02.entropy_gradient", "NaN cleared, infinite scores too")
def entropy_cleared(scores):
    weights = scores.softmax(-1)
    logs = weights.log()
    return (-weights * (logs - (weights * logs).sum(-1, keepdim=True))).nan_to_num(0.0)


@wrong("hw02.entropy_gradient", "the entropy of the whole batch")
def entropy_of_the_batch(scores):
    weights = scores.softmax(-1)
    terms = torch.special.xlogy(weights, weights)
    return weights * terms.sum() - terms


@wrong("hw02.entropy_gradient", "by differences")
def entropy_by_differences(scores):
    def entropy(s):
        return torch.special.entr(s.softmax(-1)).sum(-1)

    step, columns = 1e-5, []
    for j in range(scores.shape[-1]):
        moved = torch.zeros_like(scores)
        moved[..., j] = step
        columns.append((entropy(scores + moved) - entropy(scores - moved)) / (2 * step))
    return torch.stack(columns, -1)


@wrong("hw02.entropy_gradient", "in float32")
def entropy_single(scores):
    return entropy_by_xlogy(scores.float()).to(scores.dtype)


@wrong("hw02.entropy_gradient", "the scores shifted in place")
def entropy_in_place(scores):
    scores -= scores.amax(-1, keepdim=True)
    return entropy_by_xlogy(scores)
