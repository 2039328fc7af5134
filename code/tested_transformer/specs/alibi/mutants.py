"""The famous mistakes with ALiBi: the right formula with one step gone wrong."""

from __future__ import annotations

import math

import torch

from ..mistakes import Formula, mistake


def slopes(num_heads):
    """The right slopes, by the recursion of Press et al."""
    if num_heads & (num_heads - 1) == 0:
        return 2.0 ** (-8 / num_heads * torch.arange(1, num_heads + 1))
    smaller = 2 ** math.floor(math.log2(num_heads))
    return torch.cat((slopes(smaller), slopes(2 * smaller)[::2][: num_heads - smaller]))


@mistake(
    "one formula for every number of heads",
    rejected_by="a power of two comes first",
    symptom="Right for 8 or 16 heads; with 12 or 40, loaded weights get other slopes.",
    cause="2^(-8h/n) as the paper's text has it; its code, and so every checkpoint, does otherwise.",
    seen="ml-explore/mlx pull request 3071",
    of="alibi_slopes",
)
def one_formula_for_every_number(num_heads):
    return 2.0 ** (-8 / num_heads * torch.arange(1, num_heads + 1))


@mistake(
    "slopes from 1 on",
    rejected_by="a power of two: 2^(-8/n) to 2^-8",
    symptom="Every head forgets faster than it was trained to; six tests had pinned the values.",
    cause="Exponents count from 0, where the first head has -8/n.",
    seen="paiml/aprender pull request 2143",
    of="alibi_slopes",
)
def first_slope_one(num_heads):
    return slopes(num_heads) * 2.0 ** (8 / 2 ** math.floor(math.log2(num_heads)))


@mistake(
    "a crash unless a power of two",
    rejected_by="RuntimeError",
    symptom="RuntimeError with 6 heads.",
    cause="The tensor has the next power's slopes, and its shape is given as the heads.",
    seen="huggingface/transformers pull request 28380 (MPT)",
    of="alibi_slopes",
)
def powers_of_two_only(num_heads):
    power = 2 ** math.ceil(math.log2(num_heads))
    return slopes(power).view(num_heads)


@mistake(
    "slopes of the next power, cut off",
    rejected_by="a power of two comes first",
    symptom="The heads that look far are missing.",
    cause="The first H slopes of the next larger power of two.",
    of="alibi_slopes",
)
def rounded_up_and_cut(num_heads):
    return slopes(2 ** math.ceil(math.log2(num_heads)))[:num_heads]


@mistake(
    "every slope borrowed, not every second",
    rejected_by="equals the reference",
    symptom="The borrowed heads have each other's slopes; with 5 heads nothing shows.",
    cause="`[0::2]` is missing: the second borrowed slope is 2^(-8/n), which head 0 has already.",
    of="alibi_slopes",
)
def every_neighbor(num_heads):
    smaller = 2 ** math.floor(math.log2(num_heads))
    return torch.cat((slopes(smaller), slopes(2 * smaller)[: num_heads - smaller]))


@mistake(
    "slopes put in order",
    rejected_by="a power of two comes first",
    symptom="Fine from scratch; loaded weights meet another head's slope.",
    cause="The borrowed slopes are larger than those before them, which looks like a bug.",
    seen="proposed in antofuller/CROMA issue 12",
    of="alibi_slopes",
)
def sorted_slopes(num_heads):
    return slopes(num_heads).sort(descending=True).values


# --- The bias -------------------------------------------------------------------------------------


class BiasFormula(Formula):
    """The right bias, cut into the steps that the mutants replace one at a time."""

    def __call__(self, query_ids, key_ids, num_heads):
        """-slope x |query position - key position|."""
        query_ids, key_ids = self.places(query_ids, key_ids)
        distance = self.distance(query_ids[..., :, None] - key_ids[..., None, :])  # *B L S
        distance = distance if distance.ndim == 3 else distance[None]
        return self.penalty(self.slopes(num_heads).view(-1, 1, 1), distance.unsqueeze(1))

    def places(self, query_ids, key_ids):
        """The positions."""
        return query_ids, key_ids

    def distance(self, steps):
        """In either direction."""
        return steps.abs()

    def slopes(self, num_heads):
        """One for each head."""
        return slopes(num_heads)

    def penalty(self, slopes, distance):
        """Farther is less."""
        return -slopes * distance


@mistake(
    "distance rewarded",
    rejected_by="farther is less",
    symptom="Attention goes to the far end of the text.",
    cause="The sign: slopes are positive and are subtracted.",
    of="alibi_bias",
)
class Rewarded(BiasFormula):
    def penalty(self, slopes, distance):
        return slopes * distance


@mistake(
    "the squared distance",
    rejected_by="every step costs the same",
    symptom="A bell in place of a line: nothing far away is left.",
    cause="Distances are squared, as in a Gaussian window.",
    of="alibi_bias",
)
class Squared(BiasFormula):
    def penalty(self, slopes, distance):
        return -slopes * distance**2


@mistake(
    "divided by the slope",
    rejected_by="each head has its slope",
    symptom="Penalties of hundreds: every query attends to itself alone.",
    cause="The exponent's sign is wrong: 2^(8h/n).",
    of="alibi_bias",
)
class DividedByTheSlope(BiasFormula):
    def penalty(self, slopes, distance):
        return -distance / slopes


@mistake(
    "the future rewarded",
    rejected_by="farther is less",
    symptom="Right in causal models; in an encoder later tokens get a bonus.",
    cause="-slope x (i - j) without the absolute value.",
    of="alibi_bias",
)
class FutureRewarded(BiasFormula):
    def distance(self, steps):
        return steps


@mistake(
    "the past alone penalized",
    rejected_by="farther is less",
    symptom="Right in causal models; in an encoder all later tokens are equally near.",
    cause="Negative distances are clamped to 0.",
    of="alibi_bias",
)
class PastAlone(BiasFormula):
    def distance(self, steps):
        return steps.clamp(min=0)


@mistake(
    "one slope for all heads",
    rejected_by="each head has its slope",
    symptom="No head looks far: all forget at the speed of the first.",
    cause="One slope per layer, where each head has its own.",
    of="alibi_bias",
)
class OneSlope(BiasFormula):
    def slopes(self, num_heads):
        return slopes(num_heads)[:1].expand(num_heads)


@mistake(
    "slopes from the last head to the first",
    rejected_by="each head has its slope",
    symptom="Fine from scratch; loaded weights give nonsense.",
    cause="The sequence is built from 2^-8 up.",
    of="alibi_bias",
)
class HeadsReversed(BiasFormula):
    def slopes(self, num_heads):
        return slopes(num_heads).flip(0)


@mistake(
    "ALiBi's distances from the top left",
    rejected_by="no penalty at no distance",
    symptom="With a cache each new query counts as the first: old keys are the nearest.",
    cause="Queries and keys are both counted from 0; the bias does not know the cache's length.",
    seen="huggingface/candle pull request 899",
    of="alibi_bias",
)
class FromTheTopLeft(BiasFormula):
    def places(self, query_ids, key_ids):
        return query_ids - query_ids[..., :1], key_ids - key_ids[..., :1]


@mistake(
    "a bias of the queries alone",
    rejected_by="the right shape and dtype",
    symptom="With a cache: an error for chunks, and for one token a bias of 0 that broadcasts.",
    cause="The bias is built over the query's length; scores span the keys of the cache.",
    seen="keras-team/keras-hub issue 2861 (Falcon)",
    of="alibi_bias",
)
class OfTheQueriesAlone(BiasFormula):
    def places(self, query_ids, key_ids):
        return query_ids, query_ids


@mistake(
    "one sequence's distances for the whole batch",
    rejected_by="the right shape and dtype",
    symptom="Sequences whose positions differ (holes, packed documents) share one bias.",
    cause="The first row of the position IDs is taken for all.",
    of="alibi_bias",
)
class OneSequences(BiasFormula):
    def places(self, query_ids, key_ids):
        return query_ids.view(-1, query_ids.shape[-1])[0], key_ids.view(-1, key_ids.shape[-1])[0]
