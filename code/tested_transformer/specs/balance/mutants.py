"""The famous mistakes with balance among experts: losses that balance nothing, padding that counts, lost room."""

from __future__ import annotations

import torch

from ..mistakes import Formula, mistake

# --- The balance loss -----------------------------------------------------------------------------


class BalanceFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, logits, num_chosen, *, real=None):
        """Probabilities, choices, how often and how probable, their product."""
        real = torch.ones(logits.shape[:-1], dtype=torch.bool) if real is None else real
        scores = self.scores(logits)
        chosen = self.chosen(scores, num_chosen)  # *tokens E, 0 or 1
        weight = self.counted(real)[..., None].to(logits)
        frequency = self.mean(chosen * weight, weight) / self.per_token(num_chosen)
        probability = self.mean(self.probability(scores, chosen) * weight, weight)
        return self.total(frequency, probability)

    def scores(self, logits):
        """Probabilities of all experts."""
        return logits.softmax(-1)

    def chosen(self, scores, num_chosen):
        """1 for the experts that a token chose."""
        experts = scores.topk(num_chosen, -1).indices
        return torch.zeros_like(scores).scatter(-1, experts, 1.0)

    def counted(self, real):
        """Which tokens count."""
        return real

    def per_token(self, num_chosen):
        """The frequencies sum to the number of choices."""
        return 1

    def probability(self, scores, chosen):
        """What P is the mean of."""
        return scores

    def mean(self, numbers, weight):
        """Over all tokens that count."""
        return numbers.flatten(0, -2).sum(0) / weight.sum()

    def total(self, frequency, probability):
        """N sum f P."""
        return frequency.shape[-1] * (frequency * probability).sum()


@mistake(
    "a softmax of probabilities",
    rejected_by="a router that collapsed costs the most",
    symptom="The loss hardly differs between balance and collapse, and so does not balance.",
    cause="The router already returned probabilities, and the loss takes their softmax once more.",
    seen="huggingface/transformers pull request 45111",
    of="balance_loss",
)
class SoftmaxOfSoftmax(BalanceFormula):
    def scores(self, logits):
        return logits.softmax(-1).softmax(-1)


@mistake(
    "the mean probability of the chosen experts alone",
    rejected_by="flat probabilities cost k",
    symptom="An expert that nobody chooses is not pulled up: no gradient reaches its logit but through the sum.",
    cause="P_i is the mean over all tokens of the probability of expert i, chosen or not.",
    seen="paiml/aprender pull request 2162",
    of="balance_loss",
)
class OverTheChosen(BalanceFormula):
    def probability(self, scores, chosen):
        return scores * chosen


@mistake(
    "frequencies that sum to 1",
    rejected_by="flat probabilities cost k",
    symptom="Half the loss with two experts per token: the coefficient of a paper is half as strong.",
    cause="The counts are divided by tokens times k. Other libraries do so on purpose: compare at balance.",
    seen="huggingface/transformers issue 43688",
    of="balance_loss",
)
class SharesOfOne(BalanceFormula):
    def per_token(self, num_chosen):
        return num_chosen


@mistake(
    "the number of experts forgotten",
    rejected_by="flat probabilities cost k",
    symptom="The more experts, the weaker the loss.",
    cause="The sum of f_i P_i is 1 / N at balance with one expert per token; times N it is 1.",
    of="balance_loss",
)
class NotTimesExperts(BalanceFormula):
    def total(self, frequency, probability):
        return (frequency * probability).sum()


@mistake(
    "padding counts as tokens",
    rejected_by="padding does not count",
    symptom="All padding chooses the same experts: the loss drives real tokens away from them.",
    cause="The router's logits of the whole batch go into the loss without the attention mask.",
    of="balance_loss",
)
class PaddingCounts(BalanceFormula):
    def counted(self, real):
        return torch.ones_like(real)


@mistake(
    "a mean over the padded length",
    rejected_by="flat probabilities cost k",
    symptom="The more padding in a batch, the smaller the loss.",
    cause="The sums leave padding out, and the number that divides them does not.",
    of="balance_loss",
)
class DividedByLength(BalanceFormula):
    def mean(self, numbers, weight):
        return numbers.flatten(0, -2).mean(0)


@mistake(
    "each sequence balanced by itself",
    rejected_by="tokens have no order",
    symptom="Experts cannot specialize: a sequence about one thing must still use them all.",
    cause="The loss is computed per sequence and averaged, where the product of the batch's means is meant.",
    of="balance_loss",
)
class PerSequence(BalanceFormula):
    def mean(self, numbers, weight):
        return numbers.sum(-2) / weight.sum(-2)

    def total(self, frequency, probability):
        return frequency.shape[-1] * (frequency * probability).sum(-1).mean()


# --- The z-loss -----------------------------------------------------------------------------------


def z_formula(logits, *, real=None):
    """The mean square of the log-sum-exp."""
    real = torch.ones(logits.shape[:-1], dtype=torch.bool) if real is None else real
    return logits[real].logsumexp(-1).square().mean()


@mistake(
    "the log-sum-exp is not squared",
    rejected_by="logits of zero cost the squared logarithm",
    symptom="Logits drift to minus infinity: the more negative, the smaller the loss.",
    cause="Only the square has its minimum at a log-sum-exp of 0.",
    of="router_z_loss",
)
def not_squared(logits, *, real=None):
    real = torch.ones(logits.shape[:-1], dtype=torch.bool) if real is None else real
    return logits[real].logsumexp(-1).mean()


@mistake(
    "the mean is squared",
    rejected_by="equals the reference",
    symptom="Tokens with large positive and large negative log-sum-exp cancel.",
    cause="The square is taken after the mean over tokens.",
    of="router_z_loss",
)
def squared_mean(logits, *, real=None):
    real = torch.ones(logits.shape[:-1], dtype=torch.bool) if real is None else real
    return logits[real].logsumexp(-1).mean().square()


@mistake(
    "the z-loss of padding",
    rejected_by="padding does not count",
    symptom="The loss depends on how much padding a batch has.",
    cause="All positions go into the mean, padding included.",
    of="router_z_loss",
)
def z_of_padding(logits, *, real=None):
    return logits.logsumexp(-1).square().mean()


@mistake(
    "the logarithm of the sum without a shift",
    rejected_by="large logits stay finite",
    symptom="Infinity as soon as a logit is above 88 in float32.",
    cause="exp overflows before the logarithm is taken; logsumexp subtracts the maximum first.",
    of="router_z_loss",
)
def unshifted(logits, *, real=None):
    real = torch.ones(logits.shape[:-1], dtype=torch.bool) if real is None else real
    return logits[real].exp().sum(-1).log().square().mean()


# --- The step of the bias -------------------------------------------------------------------------


def step_formula(bias, counts, rate):
    """By the sign of how far an expert is below the mean."""
    return bias + rate * (counts.double().mean() - counts.double()).sign().to(bias)


@mistake(
    "the bias moves the wrong way",
    rejected_by="idle experts rise, crowded ones sink",
    symptom="The router collapses faster than without any balancing.",
    cause="The sign of count minus mean, in place of mean minus count.",
    of="balance_bias_step",
)
def wrong_way(bias, counts, rate):
    return bias - rate * (counts.double().mean() - counts.double()).sign().to(bias)


@mistake(
    "a step as large as the imbalance",
    rejected_by="every step has one size",
    symptom="The bias jumps by thousands at the first batch, and all tokens change experts at once.",
    cause="The difference from the mean itself, without its sign.",
    of="balance_bias_step",
)
def proportional(bias, counts, rate):
    return bias + rate * (counts.double().mean() - counts.double()).to(bias)


@mistake(
    "the mean of the used experts",
    rejected_by="idle experts rise, crowded ones sink",
    symptom="With many idle experts even those above their share rise.",
    cause="Experts that nobody chose are left out of the mean.",
    of="balance_bias_step",
)
def mean_of_used(bias, counts, rate):
    mean = counts.double().sum() / (counts > 0).sum().clamp(min=1)
    return bias + rate * (mean - counts.double()).sign().to(bias)


# --- Capacity -------------------------------------------------------------------------------------


def taken_in(order, experts, capacity, slack=0):
    """Take choices in an order of (token, rank) pairs while their experts have room."""
    taken, used = torch.zeros_like(experts, dtype=torch.bool), {}
    for token, rank in order:
        expert = int(experts[token, rank])
        if used.get(expert, 0) < capacity + slack:
            used[expert] = used.get(expert, 0) + 1
            taken[token, rank] = True
    return taken


def capacity_formula(experts, capacity):
    """Rank by rank, token by token."""
    tokens, ranks = experts.shape
    return taken_in(((t, r) for r in range(ranks) for t in range(tokens)), experts, capacity)


@mistake(
    "second choices before others' first ones",
    rejected_by="first choices come first",
    symptom="Late tokens of a batch lose their best expert to early tokens' second choice.",
    cause="Choices are taken token by token, where all first choices come before any second one.",
    of="within_capacity",
)
def token_by_token(experts, capacity):
    tokens, ranks = experts.shape
    return taken_in(((t, r) for t in range(tokens) for r in range(ranks)), experts, capacity)


@mistake(
    "one token too many",
    rejected_by="no expert has more than its capacity",
    symptom="Index out of range in the expert's buffer, or another expert's first row overwritten.",
    cause="The first choice is number 0: it must be below the capacity, not at most equal to it.",
    of="within_capacity",
)
def one_too_many(experts, capacity):
    tokens, ranks = experts.shape
    order = ((t, r) for r in range(ranks) for t in range(tokens))
    return taken_in(order, experts, capacity, slack=1)


@mistake(
    "room counted anew for second choices",
    rejected_by="no expert has more than its capacity",
    symptom="Experts get up to k times their capacity.",
    cause="The running count starts at 0 for each rank: first choices already in the expert are forgotten.",
    of="within_capacity",
)
def counted_anew(experts, capacity):
    columns = [capacity_formula(experts[:, r : r + 1], capacity) for r in range(experts.shape[1])]
    return torch.cat(columns, 1) if columns else torch.zeros_like(experts, dtype=torch.bool)


@mistake(
    "a token dropped altogether",
    rejected_by="first choices come first",
    symptom="Tokens lose both experts although one of them had room.",
    cause="A token is kept only where all its experts have room; each choice stands by itself.",
    of="within_capacity",
)
def all_or_nothing(experts, capacity):
    taken = capacity_formula(experts, capacity)
    return taken & taken.all(-1, keepdim=True)
