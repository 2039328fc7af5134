"""The famous mistakes with comparisons, with the best of n and with a browser that keeps no books."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from ...generation.browser import Browser, Quote
from ..mistakes import mistake

# --- Comparisons ----------------------------------------------------------------------------------


def bradley_terry(first, second, preference=None):
    """The right formula, by a softmax over the two answers."""
    preference = torch.ones_like(first) if preference is None else preference
    log_chances = torch.stack((first, second)).log_softmax(0)
    return -(preference * log_chances[0] + (1 - preference) * log_chances[1]).mean()


@mistake(
    "the preferred answer is pushed down",
    rejected_by="a clear winner costs nothing",
    symptom="The loss falls, and the best of n is the worst of n.",
    cause="The difference is second - first.",
    of="bradley_terry_loss",
)
def swapped(first, second, preference=None):
    """The wrong way round."""
    return bradley_terry(second, first, preference)


@mistake(
    "no logarithm of the sigmoid",
    rejected_by="equal scores cost ln 2",
    symptom="Clearly wrong comparisons have almost no gradient, so they are never corrected.",
    cause="The loss is minus the probability, not minus its logarithm.",
    seen="HarderThenHarder/transformers_tasks issue 15",
    of="bradley_terry_loss",
)
def no_logarithm(first, second, preference=None):
    """Minus the mean probability."""
    preference = torch.ones_like(first) if preference is None else preference
    chance = (first - second).sigmoid()
    return -(preference * chance + (1 - preference) * (1 - chance)).mean()


@mistake(
    "the logarithm after the sigmoid",
    rejected_by="a clear loser stays finite",
    symptom="An infinite loss as soon as one comparison is clearly wrong.",
    cause="sigmoid(-800) is 0 in floating point, and log 0 is minus infinity. logsigmoid computes both at once.",
    of="bradley_terry_loss",
)
def after_sigmoid(first, second, preference=None):
    """The formula as it is written."""
    preference = torch.ones_like(first) if preference is None else preference
    chance, other = (first - second).sigmoid(), (second - first).sigmoid()
    wins = torch.where(preference > 0, preference * chance.log(), 0.0)
    return -(wins + torch.where(preference < 1, (1 - preference) * other.log(), 0.0)).mean()


@mistake(
    "scores taken for strengths",
    rejected_by="scores have no zero",
    symptom="NaN for negative scores; a constant added to all scores changes the loss.",
    cause="a / (a + b) needs strengths above 0. Scores are their logarithms.",
    of="bradley_terry_loss",
)
def strengths(first, second, preference=None):
    """Bradley and Terry's own form, for scores."""
    preference = torch.ones_like(first) if preference is None else preference
    a, b = functional.softplus(first), functional.softplus(second)
    return -(preference * (a / (a + b)).log() + (1 - preference) * (b / (a + b)).log()).mean()


@mistake(
    "ties are wins",
    rejected_by="a tie pulls scores together",
    symptom="Whichever answer is stored first is preferred a little.",
    cause="The preference is not read: the first answer counts as the winner.",
    of="bradley_terry_loss",
)
def ties_are_wins(first, second, preference=None):
    """0.5 is rounded up."""
    rounded = None if preference is None else (preference >= 0.5).to(first)
    return bradley_terry(first, second, rounded) + (
        0.0 if preference is None else 0 * preference.sum()
    )


@mistake(
    "a sum over the comparisons",
    rejected_by="equal scores cost ln 2",
    symptom="The learning rate depends on the size of the batch.",
    cause="sum for mean.",
    of="bradley_terry_loss",
)
def summed(first, second, preference=None):
    """Not divided by their number."""
    return bradley_terry(first, second, preference) * len(first)


# --- The best of n --------------------------------------------------------------------------------


def by_ranks(scores, utilities, n, chance):
    """The utilities by rank, weighted."""
    total = scores.shape[-1]
    order = scores.argsort(dim=-1, descending=True, stable=True)
    weights = utilities.new_tensor([chance(rank, total, n) for rank in range(total)])
    return utilities.gather(-1, order) @ weights


def kept(rank, total, n):
    """How often the answer of a rank is the best of n."""
    return math.comb(total - 1 - rank, n - 1) / math.comb(total, n)


def best_of(scores, utilities, n):
    """The right formula."""
    return by_ranks(scores, utilities, n, kept)


@mistake(
    "the best by utility",
    rejected_by="a useless score is no better than chance",
    symptom="Best-of-n looks better the larger n is, even with a score that knows nothing.",
    cause="The answer with the highest utility is taken. Only the score is known when one is chosen.",
    of="best_of_n_mean",
)
def by_utility(scores, utilities, n):
    """What pass@k measures."""
    return by_ranks(utilities + 0 * scores, utilities, n, kept)


@mistake(
    "the lowest score is kept",
    rejected_by="all N answers: the best score is kept",
    symptom="The larger n is, the worse the answers are.",
    cause="Ascending order.",
    of="best_of_n_mean",
)
def lowest(scores, utilities, n):
    """argmin for argmax."""
    return best_of(-scores, utilities, n)


@mistake(
    "the first n answers only",
    rejected_by="the order of the answers does not matter",
    symptom="Noise: all other answers are wasted, and another order gives another number.",
    cause="The best of the first n, not the mean over all choices.",
    of="best_of_n_mean",
)
def first_n(scores, utilities, n):
    """One choice of many."""
    return utilities.gather(-1, scores[..., :n].argmax(-1, keepdim=True))[..., 0]


@mistake(
    "the mean of the n best",
    rejected_by="one of N answers: their mean",
    symptom="n = 1 is already the best answer, and quality falls with n.",
    cause="The n highest scores are averaged. One answer is kept of n that were sampled.",
    of="best_of_n_mean",
)
def mean_of_best(scores, utilities, n):
    """Over the n best of all."""
    return by_ranks(scores, utilities, n, lambda rank, total, n: float(rank < n) / n)


@mistake(
    "answers are put back",
    rejected_by="all N answers: the best score is kept",
    symptom="Close, and too low: with n = N the best answer is sometimes not among the n.",
    cause="n draws with replacement: ((N - r)^n - (N - r - 1)^n) / N^n.",
    of="best_of_n_mean",
)
def put_back(scores, utilities, n):
    """With replacement."""
    return by_ranks(
        scores, utilities, n,
        lambda rank, total, n: ((total - rank) ** n - (total - rank - 1) ** n) / total**n,
    )  # fmt: skip


# --- A browser ------------------------------------------------------------------------------------


@mistake(
    "an invented quote is accepted",
    rejected_by="an invented quote is refused",
    symptom="References look convincing and stand nowhere.",
    cause="quote() stores what it is given, without a look at the page.",
    of="browse",
)
class AcceptsAnything(Browser):
    def quote(self, text):
        self._check_unfinished()
        self._check_open("text", text)
        self.quotes.append(Quote(self.pages[self.page].title, text))
        self._count()


@mistake(
    "lines that are not visible can be quoted",
    rejected_by="only visible lines can be quoted",
    symptom="The policy quotes what it has not read.",
    cause="The text is looked for in the whole page.",
    of="browse",
)
class QuotesUnread(Browser):
    def quote(self, text):
        window, first = self.window, self.first
        self.window, self.first = 10**6, 0
        try:
            super().quote(text)
        finally:
            self.window, self.first = window, first


@mistake(
    "a new page keeps the scroll",
    rejected_by="a page opens at its top",
    symptom="The beginning of the second page is never read.",
    cause="open() does not set the first visible line to 0.",
    of="browse",
)
class KeepsScroll(Browser):
    def open(self, result):
        first = self.first
        super().open(result)
        self.first = min(first, self._last_first())

    def search(self, query):
        first = self.first
        super().search(query)
        self.first = first


@mistake(
    "scrolling beyond the page",
    rejected_by="a page has an end",
    symptom="An empty window, and a policy that scrolls until its actions are used up.",
    cause="The first visible line is not limited.",
    of="browse",
)
class BeyondTheEnd(Browser):
    def scroll(self, windows=1):
        first = self.first
        super().scroll(windows)
        self.first = max(first + windows * self.window, 0)


@mistake(
    "numbers of results taken for numbers of pages",
    rejected_by="open opens a result",
    symptom="Right while the results are all pages in their order.",
    cause="open(0) opens the first page, not the first result.",
    of="browse",
)
class OpensPages(Browser):
    def open(self, result):
        super().open(result)
        self.page = result


@mistake(
    "no limit on the actions",
    rejected_by="after the last action nothing happens",
    symptom="An episode that never ends.",
    cause="The actions are counted, and nobody looks at the count.",
    of="browse",
)
class NoLimit(Browser):
    def _count(self):
        self.actions_left -= 1


@mistake(
    "refused actions are counted",
    rejected_by="a refused action costs nothing",
    symptom="A policy that errs once runs out of actions.",
    cause="The count is lowered before the action is checked.",
    of="browse",
)
class CountsRefused(Browser):
    def quote(self, text):
        try:
            super().quote(text)
        except ValueError:
            self._count()
            raise
