"""Comparisons by a softmax and by SciPy, the best of n by all choices and by sorting, browsers in other words."""

from itertools import combinations

import torch
from scipy.special import comb
from torch.nn import functional

from answers import right, wrong
from tested_transformer.generation.best_of import best_of_n_mean
from tested_transformer.generation.browser import Browser
from tested_transformer.training.preferences import bradley_terry_loss

right("bradley_terry_loss", "the package's")(bradley_terry_loss)
right("best_of_n_mean", "the package's")(best_of_n_mean)
right("browse", "the package's")(Browser)


@right("bradley_terry_loss", "torch's binary cross-entropy with logits")
def by_bce(first, second, preference=None):
    target = torch.ones_like(first) if preference is None else preference
    return functional.binary_cross_entropy_with_logits(first - second, target)


@right("bradley_terry_loss", "softplus of the difference")
def by_softplus(first, second, preference=None):
    margin = second - first
    loser = 0.0 if preference is None else 1 - preference
    # above torch's own threshold of 20 it returns its argument, which is off by exp(-20)
    return (functional.softplus(margin, threshold=50) - loser * margin).mean()


@wrong("bradley_terry_loss", "a hinge")
def hinge(first, second, preference=None):
    return functional.relu(1 - (first - second)).mean() + (
        0.0 if preference is None else 0 * preference.sum()
    )


@wrong("bradley_terry_loss", "no gradient for the second answer")
def detached(first, second, preference=None):
    return bradley_terry_loss(first, second.detach(), preference) + 0 * second.sum()


@right("best_of_n_mean", "all choices")
def by_choices(scores, utilities, n):
    kept = []
    for chosen in combinations(range(scores.shape[-1]), n):
        best = scores[..., chosen].argmax(-1, keepdim=True)
        kept.append(utilities[..., chosen].gather(-1, best)[..., 0])
    return torch.stack(kept).mean(0)


@right("best_of_n_mean", "counting the answers that rank lower")
def by_counting(scores, utilities, n):
    total, place = scores.shape[-1], torch.arange(scores.shape[-1])
    lower = scores[..., :, None] > scores[..., None, :]
    lower |= (scores[..., :, None] == scores[..., None, :]) & (place[:, None] < place)
    ways = torch.from_numpy(comb(lower.sum(-1).numpy(), n - 1)) / comb(total, n)
    return (ways.to(utilities) * utilities).sum(-1)


@wrong("best_of_n_mean", "the score of the best, not its utility")
def score_itself(scores, utilities, n):
    return best_of_n_mean(scores, scores, n) + 0 * utilities.sum(-1)


@wrong("best_of_n_mean", "among equals the last one")
def last_of_equals(scores, utilities, n):
    return best_of_n_mean(scores.flip(-1), utilities.flip(-1), n)


@right("browse", "its own lists of what is visible")
class Lists(Browser):
    def open(self, result):
        if self.finished or result not in range(len(self.results)):
            raise ValueError("result: none of that number")
        self.page, self.first = list(self.results)[result], 0
        self.actions_left -= 1
        self.finished |= not self.actions_left

    def scroll(self, windows=1):
        if self.finished or self.page is None:
            raise ValueError("windows: no page")
        tops = range(max(len(self.pages[self.page].lines) - self.window, 0) + 1)
        self.first = sorted((0, self.first + windows * self.window, tops[-1]))[1]
        self.actions_left -= 1
        self.finished |= not self.actions_left


@wrong("browse", "a search leaves the page open")
class LeavesOpen(Browser):
    def search(self, query):
        page, first = self.page, self.first
        super().search(query)
        self.page, self.first = page, first


@wrong("browse", "an answer does not finish")
class GoesOn(Browser):
    def answer(self):
        self._count()
        return self.quotes
