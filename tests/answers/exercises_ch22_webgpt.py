"""The answers to the exercises on chapter 22's pages about a browser and the best of n."""

import torch

from tested_transformer.generation.browser import Browser
from tested_transformer.training.preferences import bradley_terry_loss

from . import right, wrong

right("ch22.bradley_terry_loss", "the package's")(bradley_terry_loss)


@right("ch22.bradley_terry_loss", "logaddexp")
def by_logaddexp(first, second, preference=None):
    both = torch.logaddexp(first, second)
    preference = torch.ones_like(first) if preference is None else preference
    return (both - preference * first - (1 - preference) * second).mean()


@wrong("ch22.bradley_terry_loss", "the preference is turned round")
def turned(first, second, preference=None):
    return bradley_terry_loss(first, second, None if preference is None else 1 - preference)


right("ch22.browser", "the package's")(Browser)


@wrong("ch22.browser", "it scrolls a line, not a window")
class ByLines(Browser):
    def scroll(self, windows=1):
        window, self.window = self.window, 1
        super().scroll(windows)
        self.window = window
