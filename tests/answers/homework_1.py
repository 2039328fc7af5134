"""The answers to homework 1."""

import numpy as np
import torch

from . import right, wrong


def hits(labels, asked):
    return asked[..., :, None] == labels[..., None, :]


class Marked(torch.Tensor):
    """A tensor of a student's own."""


# --- look_up --------------------------------------------------------------------------------------


@right("hw01.look_up")
def look_up_by_logarithms(labels, value, asked, sharpness):
    scores = hits(labels, asked).to(value) * sharpness
    return torch.exp(scores - scores.logsumexp(-1, keepdim=True)) @ value


@right("hw01.look_up")
def look_up_by_counting(labels, value, asked, sharpness):
    """k entries match: they weigh 1, the others e^-sharpness."""
    hit = hits(labels, asked).to(value)
    count, quiet = hit.sum(-1, keepdim=True), float(np.exp(-sharpness))
    some = (hit @ value + quiet * ((1 - hit) @ value)) / (
        count + quiet * (hit.shape[-1] - count)
    ).clamp(min=1e-300)
    return torch.where(count > 0, some, value.mean(-2, keepdim=True))


@right("hw01.look_up")
def look_up_in_numpy(labels, value, asked, sharpness):
    labels, value, asked = (np.asarray(t) for t in (labels, value, asked))
    scores = np.where(hits(labels, asked), sharpness, 0.0)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights @ value.astype(np.float64) / weights.sum(-1, keepdims=True)


@right("hw01.look_up")
def look_up_in_a_tensor_of_its_own(labels, value, asked, sharpness):
    scores = torch.zeros((*asked.shape, labels.shape[-1]), dtype=value.dtype)
    scores[hits(labels, asked)] = sharpness
    return torch.einsum("...ls,...sv->...lv", scores.softmax(-1), value).as_subclass(Marked)


@wrong("hw01.look_up", "exp overflows in float32 only")
def look_up_naive_in_single(labels, value, asked, sharpness):
    scores = hits(labels, asked).to(value) * sharpness
    if value.dtype == torch.float32:
        return scores.exp() @ value / scores.exp().sum(-1, keepdim=True)
    return scores.softmax(-1) @ value


@wrong("hw01.look_up", "a label that is not there gives zeros")
def look_up_zeros(labels, value, asked, sharpness):
    hit = hits(labels, asked)
    answer = look_up_by_logarithms(labels, value, asked, sharpness)
    return answer * hit.any(-1, keepdim=True)


@wrong("hw01.look_up", "the sharpness squared")
def look_up_squared(labels, value, asked, sharpness):
    return look_up_by_logarithms(labels, value, asked, sharpness**2)


@wrong("hw01.look_up", "all samples ask the first one's entries")
def look_up_first_sample(labels, value, asked, sharpness):
    flat = value.reshape(-1, *value.shape[-2:])[0].expand_as(value)
    return look_up_by_logarithms(labels, flat, asked, sharpness)


@wrong("hw01.look_up", "torch's default dtype is set")
def look_up_sets_the_default(labels, value, asked, sharpness):
    torch.set_default_dtype(torch.float64)
    return look_up_by_logarithms(labels, value, asked, sharpness)


@wrong("hw01.look_up", "torch's seed is set")
def look_up_sets_the_seed(labels, value, asked, sharpness):
    torch.manual_seed(0)
    return look_up_by_logarithms(labels, value, asked, sharpness)


@wrong("hw01.look_up", "the labels of the first call are kept")
class LookUpKeeps:
    labels = None

    def __call__(self, labels, value, asked, sharpness):
        if self.labels is None or self.labels.shape != labels.shape:
            self.labels = labels.clone()
        return look_up_by_logarithms(self.labels, value, asked, sharpness)


# --- unshuffle ------------------------------------------------------------------------------------


@right("hw01.unshuffle")
def unshuffle_by_matrices(weights, order):
    """P^T W P with P the permutation's matrix."""
    matrix = torch.nn.functional.one_hot(order, order.shape[-1]).to(weights)
    return matrix.mT @ weights @ matrix


@right("hw01.unshuffle")
def unshuffle_by_writing(weights, order):
    answer = torch.empty_like(weights)
    for at in np.ndindex(*order.shape[:-1]):
        answer[at][order[at][:, None], order[at]] = weights[at]
    return answer


@right("hw01.unshuffle")
def unshuffle_in_numpy(weights, order):
    weights, back = weights.numpy(), np.argsort(order.numpy(), -1)
    rows = np.take_along_axis(weights, back[..., :, None], -2)
    return np.take_along_axis(rows, back[..., None, :], -1)


@right("hw01.unshuffle")
def unshuffle_by_scatter(weights, order):
    rows = torch.zeros_like(weights).scatter(-2, order[..., :, None].expand_as(weights), weights)
    return torch.zeros_like(weights).scatter(-1, order[..., None, :].expand_as(weights), rows)


@wrong("hw01.unshuffle", "transposed")
def unshuffle_transposed(weights, order):
    return unshuffle_by_scatter(weights, order).mT


@wrong("hw01.unshuffle", "sorted by size, not put back")
def unshuffle_sorted(weights, order):
    return weights.sort(-1).values


@wrong("hw01.unshuffle", "rows in order, columns by the order itself")
def unshuffle_one_way(weights, order):
    rows = torch.take_along_dim(weights, order.argsort(-1)[..., :, None], -2)
    return torch.take_along_dim(rows, order[..., None, :], -1)


@wrong("hw01.unshuffle", "through float32")
def unshuffle_single(weights, order):
    return unshuffle_by_scatter(weights.float(), order).to(weights.dtype)


@wrong("hw01.unshuffle", "one head's order for all heads of a sample")
def unshuffle_one_head(weights, order):
    if order.ndim > 2:
        order = order[:, :1].expand_as(order)
    return unshuffle_by_scatter(weights, order.contiguous())


# --- one_way --------------------------------------------------------------------------------------


@right("hw01.one_way")
def one_way_by_traces(w_query, w_key):
    """|M - M^T|^2 / 4 = (|M|^2 - tr M M) / 2."""
    table = w_query @ w_key.mT
    whole = table.square().sum((-2, -1))
    return (whole - (table @ table).diagonal(dim1=-2, dim2=-1).sum(-1)) / (2 * whole)


@right("hw01.one_way")
def one_way_by_norms(w_query, w_key):
    table = torch.einsum("...id,...jd->...ij", w_query, w_key)
    odd = torch.linalg.matrix_norm(table - table.transpose(-2, -1)) / 2
    return (odd / torch.linalg.matrix_norm(table)) ** 2


@right("hw01.one_way")
def one_way_in_numpy(w_query, w_key):
    table = w_query.numpy() @ np.swapaxes(w_key.numpy(), -2, -1)
    even = (table + np.swapaxes(table, -2, -1)) / 2
    return 1 - (even**2).sum((-2, -1)) / (table**2).sum((-2, -1))


@right("hw01.one_way")
def one_way_rounded(w_query, w_key):
    """Six decimals are asked for."""
    return one_way_by_traces(w_query, w_key).round(decimals=6)


@wrong("hw01.one_way", "M divided by its largest entry in one of the two sums")
def one_way_scaled(w_query, w_key):
    table = w_query @ w_key.mT
    odd = (table - table.mT) / 2 / table.abs().amax((-2, -1), keepdim=True)
    return odd.square().sum((-2, -1)) / table.square().sum((-2, -1))


@wrong("hw01.one_way", "W_Q^T W_K for W_Q W_K^T")
def one_way_of_the_head(w_query, w_key):
    return one_way_by_norms(w_query.mT, w_key.mT)


@wrong("hw01.one_way", "entries in place of their squares")
def one_way_of_sizes(w_query, w_key):
    table = w_query @ w_key.mT
    return ((table - table.mT) / 2).abs().sum((-2, -1)) / table.abs().sum((-2, -1))


@wrong("hw01.one_way", "one number for the batch")
def one_way_of_the_batch(w_query, w_key):
    table = w_query @ w_key.mT
    share = ((table - table.mT) / 2).square().sum() / table.square().sum()
    return share.expand(w_query.shape[:-2])


# --- who_was_read ---------------------------------------------------------------------------------


def with_ones(tensor):
    return torch.cat([tensor, torch.ones_like(tensor[..., :1])], -1)


@right("hw01.who_was_read")
def who_by_lstsq(output, value):
    return torch.linalg.lstsq(with_ones(value).mT, with_ones(output).mT).solution.mT


@right("hw01.who_was_read")
def who_by_normal_equations(output, value):
    value, output = with_ones(value), with_ones(output)
    return torch.linalg.solve(value @ value.mT, value @ output.mT).mT


@right("hw01.who_was_read")
def who_by_differences(output, value):
    """One weight is what the others leave: solve for the differences from the last value."""
    last = value[..., -1:, :]
    others = (output - last) @ torch.linalg.pinv(value[..., :-1, :] - last)
    return torch.cat([others, 1 - others.sum(-1, keepdim=True)], -1)


@right("hw01.who_was_read")
def who_in_numpy(output, value):
    output, value = with_ones(output).numpy(), with_ones(value).numpy()
    return (output @ np.linalg.pinv(value)).round(6)


@wrong("hw01.who_was_read", "negative weights cut off and shared out")
def who_shared(output, value):
    weights = who_by_lstsq(output, value - value.mean(-2, keepdim=True)).clamp(min=0)
    return weights / weights.sum(-1, keepdim=True)


@wrong("hw01.who_was_read", "regularized")
def who_regularized(output, value):
    value, output = with_ones(value), with_ones(output)
    eye = torch.eye(value.shape[-2], dtype=value.dtype)
    return torch.linalg.solve(value @ value.mT + 1e-3 * eye, value @ output.mT).mT


@wrong("hw01.who_was_read", "the weights of the keys, transposed where they fit")
def who_transposed(output, value):
    weights = who_by_lstsq(output, value)
    return weights.mT if weights.shape[-1] == weights.shape[-2] else weights


@wrong("hw01.who_was_read", "the nearest value gets it all")
def who_nearest(output, value):
    return torch.nn.functional.one_hot(torch.cdist(output, value).argmin(-1), value.shape[-2]).to(
        value
    )
