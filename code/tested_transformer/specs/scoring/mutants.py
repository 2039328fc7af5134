"""The famous mistakes of the scoring functions: the right formula with one step gone wrong."""

from __future__ import annotations

import torch

from ..mistakes import Formula, mistake

# --- Additive -------------------------------------------------------------------------------------


def plain_additive(query, key, w_query, w_key, w_v):
    """The baseline: w_v^T tanh(W_q q + W_k k)."""
    sums = (query @ w_query.mT).unsqueeze(-2) + (key @ w_key.mT).unsqueeze(-3)
    return torch.tanh(sums) @ w_v


@mistake(
    "additive without tanh",
    rejected_by="the score mixes query and key",
    symptom="Every query gets the same weights: attention that ignores the question.",
    cause="w_v^T (W_q q + W_k k) is a sum; the query's part cancels in the softmax.",
    seen="practical-pytorch issue 82 (the `concat` score)",
    of="additive scores",
)
def additive_without_tanh(query, key, w_query, w_key, w_v):
    sums = (query @ w_query.mT).unsqueeze(-2) + (key @ w_key.mT).unsqueeze(-3)
    return sums @ w_v


@mistake(
    "tanh before the sum",
    rejected_by="the score mixes query and key",
    symptom="Every query gets the same weights, although a tanh is there.",
    cause="The tanh is taken of each projection, not of their sum.",
    of="additive scores",
)
def tanh_before_the_sum(query, key, w_query, w_key, w_v):
    query, key = torch.tanh(query @ w_query.mT), torch.tanh(key @ w_key.mT)
    return (query.unsqueeze(-2) + key.unsqueeze(-3)) @ w_v


@mistake(
    "additive transposed",
    rejected_by="the right shape and dtype",
    symptom="Scores (S, L); with as many queries as keys nothing complains.",
    cause="The new axes are swapped: queries belong on rows, keys on columns.",
    of="additive scores",
)
def additive_transposed(query, key, w_query, w_key, w_v):
    sums = (query @ w_query.mT).unsqueeze(-3) + (key @ w_key.mT).unsqueeze(-2)
    return torch.tanh(sums) @ w_v


@mistake(
    "additive without projections",
    rejected_by="RuntimeError",
    symptom="RuntimeError unless query, key and hidden size agree; then, wrong scores.",
    cause="tanh(q + k) without W_q and W_k: not the paper's score.",
    seen="tensorflow issue 39332",
    of="additive scores",
)
def additive_without_projections(query, key, w_query, w_key, w_v):
    return torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)) @ w_v


@mistake(
    "additive without w_v",
    rejected_by="w_v weighs the hidden units",
    symptom="Hidden units cannot vote against a match.",
    cause="The hidden layer is summed; w_v is never used.",
    of="additive scores",
)
def additive_without_w_v(query, key, w_query, w_key, w_v):
    sums = (query @ w_query.mT).unsqueeze(-2) + (key @ w_key.mT).unsqueeze(-3)
    return torch.tanh(sums).sum(-1)


# --- Bilinear -------------------------------------------------------------------------------------


def plain_bilinear(query, key, weight):
    """The baseline: q^T W k."""
    return query @ weight @ key.mT


@mistake(
    "bilinear weight transposed",
    rejected_by="rows of W meet the query",
    symptom="RuntimeError where the sizes differ; where they agree, silently k^T W q.",
    cause="q^T W^T k: the weight of a Linear layer is used the wrong way round.",
    of="bilinear scores",
)
def weight_transposed(query, key, weight):
    return query @ weight.mT @ key.mT


@mistake(
    "bilinear with a scale",
    rejected_by="W = I gives the dot product",
    symptom="Scores too small by sqrt(d): the weights are flatter than the paper's.",
    cause="A 1/sqrt(d) of the scaled dot product, where W already sets the scale.",
    of="bilinear scores",
)
def bilinear_scaled(query, key, weight):
    return query @ weight @ key.mT / query.shape[-1] ** 0.5


@mistake(
    "only the diagonal of W",
    rejected_by="rows of W meet the query",
    symptom="Number m of a query only ever meets number m of a key.",
    cause="W is a vector in disguise: a weight a feature, no mixing of features.",
    of="bilinear scores",
)
def only_the_diagonal(query, key, weight):
    size = min(weight.shape)
    return query[..., :size] * weight.diagonal() @ key[..., :size].mT


# --- Location -------------------------------------------------------------------------------------


def plain_location(query, weight):
    """The baseline: W q."""
    return query @ weight.mT


@mistake(
    "softmax twice",
    rejected_by="scores are linear in the query",
    symptom="Almost uniform weights: a softmax of numbers between 0 and 1.",
    cause="The scores already went through a softmax.",
    of="location scores",
)
def location_after_softmax(query, weight):
    return (query @ weight.mT).softmax(-1)


@mistake(
    "location with a scale",
    rejected_by="row j of W scores place j",
    symptom="Scores too small by sqrt(d).",
    cause="A 1/sqrt(d) of the scaled dot product: W already sets the scale.",
    of="location scores",
)
def location_scaled(query, weight):
    return query @ weight.mT / query.shape[-1] ** 0.5


@mistake(
    "as many places as queries",
    rejected_by="the right shape and dtype",
    symptom="The source can be no longer than the target.",
    cause="The table is cut to the number of queries, not of keys.",
    of="location scores",
)
def location_of_itself(query, weight):
    return query @ weight[: query.shape[-2]].mT


# --- Content --------------------------------------------------------------------------------------


def plain_content(query, key, sharpness):
    """The baseline: the sharpness times the cosine, 0 for a zero vector."""
    lengths = query.norm(dim=-1, keepdim=True) * key.norm(dim=-1).unsqueeze(-2)
    return (
        sharpness * (query @ key.mT) / torch.where(lengths == 0, torch.ones_like(lengths), lengths)
    )


@mistake(
    "cosine without lengths",
    rejected_by="only the direction counts",
    symptom="Long keys win, whatever they say.",
    cause="A dot product: the lengths are not divided out.",
    of="content scores",
)
def cosine_without_lengths(query, key, sharpness):
    return sharpness * (query @ key.mT)


@mistake(
    "cosine of a zero vector",
    rejected_by="a zero vector scores 0",
    symptom="NaN everywhere as soon as one memory slot is empty.",
    cause="The length 0 is in the denominator: 0/0.",
    seen="NTM-tensorflow issue 2",
    of="content scores",
)
def cosine_divides_by_zero(query, key, sharpness):
    query, key = (v / v.norm(dim=-1, keepdim=True) for v in (query, key))
    return sharpness * (query @ key.mT)


@mistake(
    "lengths over the wrong axis",
    rejected_by="only the direction counts",
    symptom="One long key shrinks all the others.",
    cause="The norm runs over the sequence (dim=-2), not over each vector.",
    of="content scores",
)
def length_over_the_wrong_axis(query, key, sharpness):
    query, key = (v / v.norm(dim=-2, keepdim=True).clamp_min(1e-12) for v in (query, key))
    return sharpness * (query @ key.mT)


@mistake(
    "sharpness as a temperature",
    rejected_by="parallel vectors score the sharpness",
    symptom="Raising the sharpness flattens the weights.",
    cause="The cosine is divided by the sharpness, which multiplies.",
    of="content scores",
)
def sharpness_as_temperature(query, key, sharpness):
    return plain_content(query, key, 1 / sharpness)


# --- Kernel regression ----------------------------------------------------------------------------


def squared_distances(query, key):
    """|q - k|^2 for each pair, from the differences."""
    return (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(-1)


def plain_kernel(query, key, value, bandwidth):
    """The baseline: softmax(-|q - k|^2 / (2 s^2)) v, by the logarithm of the sum, which rounds most."""
    scores = -squared_distances(query, key) / (2 * bandwidth**2)
    return (scores - scores.logsumexp(-1, keepdim=True)).exp() @ value


@mistake(
    "bandwidth not squared",
    rejected_by="the unit does not matter",
    symptom="The curve changes when meters become feet.",
    cause="The exponent is divided by 2 s, where 2 s^2 is meant.",
    of="kernel regression",
)
def bandwidth_not_squared(query, key, value, bandwidth):
    return torch.softmax(-squared_distances(query, key) / (2 * bandwidth), -1) @ value


@mistake(
    "bandwidth upside down",
    rejected_by="the unit does not matter",
    symptom="A larger bandwidth makes the curve rougher.",
    cause="The distance is multiplied by the bandwidth: an inverse width.",
    of="kernel regression",
)
def bandwidth_upside_down(query, key, value, bandwidth):
    return torch.softmax(-squared_distances(query, key) * bandwidth**2 / 2, -1) @ value


@mistake(
    "the 2 of the Gaussian",
    rejected_by="equals the reference",
    symptom="A curve as for a bandwidth smaller by sqrt(2).",
    cause="The exponent is divided by s^2, where 2 s^2 is meant.",
    of="kernel regression",
)
def the_two_forgotten(query, key, value, bandwidth):
    return torch.softmax(-squared_distances(query, key) / bandwidth**2, -1) @ value


@mistake(
    "kernels without a softmax",
    rejected_by="far away it is still a number",
    symptom="NaN for a query far from every key.",
    cause="Kernels are exponentiated first and divided by their sum: 0/0.",
    of="kernel regression",
)
def kernel_by_hand(query, key, value, bandwidth):
    kernel = torch.exp(-squared_distances(query, key) / (2 * bandwidth**2))
    return kernel / kernel.sum(-1, keepdim=True) @ value


@mistake(
    "kernels not normalized",
    rejected_by="equal values give that value",
    symptom="The curve sinks to 0 where points are few.",
    cause="Divided by the number of points, not by the sum of their kernels.",
    of="kernel regression",
)
def kernel_not_normalized(query, key, value, bandwidth):
    kernel = torch.exp(-squared_distances(query, key) / (2 * bandwidth**2))
    return kernel @ value / key.shape[-2]


@mistake(
    "the square expanded",
    rejected_by="moving all points changes nothing",
    symptom="Points far from zero blur into each other in float32.",
    cause="|q|^2 - 2 q.k + |k|^2 subtracts large numbers that nearly agree.",
    seen="pytorch issue 42479",
    of="kernel regression",
)
def square_expanded(query, key, value, bandwidth):
    squares = query.square().sum(-1, keepdim=True) + key.square().sum(-1).unsqueeze(-2)
    distances = squares - 2 * query @ key.mT
    return torch.softmax(-distances / (2 * bandwidth**2), -1) @ value


@mistake(
    "kernel over the queries",
    rejected_by="equal values give that value",
    symptom="Predictions that depend on which other questions are asked.",
    cause="The softmax runs over the queries: dim=-2 in place of dim=-1.",
    of="kernel regression",
)
def kernel_over_queries(query, key, value, bandwidth):
    return torch.softmax(-squared_distances(query, key) / (2 * bandwidth**2), -2) @ value


# --- Local ----------------------------------------------------------------------------------------


class LocalFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, scores, centers, half_width, *, gaussian=False):
        """A softmax over the window, times a Gaussian for local-p."""
        steps = torch.arange(scores.shape[-1]) - self.centers(centers).unsqueeze(-1)
        weights = self.weights(scores, self.window(steps, half_width))
        if not gaussian:
            return weights
        return self.product(
            weights, torch.exp(-(steps.square()) / (2 * self.sigma(half_width) ** 2))
        )

    def centers(self, centers):
        """Real numbers, as they come."""
        return centers

    def window(self, steps, half_width):
        """Both ends belong to the window."""
        return steps.abs() <= half_width

    def weights(self, scores, window):
        """A softmax over the window alone, zeros where it holds no place."""
        empty = ~window.any(-1, keepdim=True)
        weights = scores.masked_fill(~(window | empty), -torch.inf).softmax(-1)
        return weights.masked_fill(empty, 0.0)

    def sigma(self, half_width):
        """Half the half-width."""
        return half_width / 2

    def product(self, weights, gaussian):
        """The product, as it is."""
        return weights * gaussian


@mistake(
    "window after the softmax",
    rejected_by="the window shares the whole",
    symptom="Far keys take weight away, and it is lost: the output shrinks.",
    cause="The softmax ran over all keys before the window cut them off.",
    of="local weights",
)
class WindowAfterSoftmax(LocalFormula):
    def weights(self, scores, window):
        return scores.softmax(-1) * window


@mistake(
    "window like a slice",
    rejected_by="the window reaches D places",
    symptom="One place is missing on the right.",
    cause="Python's range(p - D, p + D) leaves p + D out.",
    of="local weights",
)
class WindowLikeASlice(LocalFormula):
    def window(self, steps, half_width):
        return (steps >= -half_width) & (steps < half_width)


@mistake(
    "sigma is the half-width",
    rejected_by="equals the reference",
    symptom="The Gaussian hardly falls inside the window.",
    cause="sigma = D, where the paper sets sigma = D/2.",
    of="local weights",
)
class SigmaIsTheHalfWidth(LocalFormula):
    def sigma(self, half_width):
        return half_width


@mistake(
    "local-p made to sum to 1",
    rejected_by="the Gaussian takes its part",
    symptom="Weights that sum to 1: plausible, and not the paper's.",
    cause="The product is divided by its sum, or the Gaussian went into the softmax.",
    of="local weights",
)
class Renormalized(LocalFormula):
    def product(self, weights, gaussian):
        return weights * gaussian / (weights * gaussian).sum(-1, keepdim=True)


@mistake(
    "rounded centers",
    rejected_by="the window reaches D places",
    symptom="The center never gets a gradient.",
    cause="p is rounded to a place; the paper keeps the real number.",
    of="local weights",
)
class RoundedCenters(LocalFormula):
    def centers(self, centers):
        return centers.round()
