"""The famous mistakes with RWKV-4's WKV: exponentials that overflow, and a bonus or a decay in the wrong place."""

from __future__ import annotations

import torch

from ..mistakes import Formula, mistake


class WkvFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(
        self, key, value, log_decay, bonus, *, state=None, real=None, chunk_size=None
    ):  # fmt: skip
        """Token by token: numerator, denominator, and the largest score so far."""
        if state is None:
            sums = key.new_zeros(len(key), 2, key.shape[2])
            state = torch.cat([sums, torch.full_like(sums[:, :1], -1e30)], 1)
        state, outputs = self.begun(state), [value[:, :0]]
        for t in range(key.shape[1]):
            own = self.single(key[:, t] + bonus, value[:, t])
            sums = self.added(self.read(state, log_decay), own)
            outputs.append(self.mean(sums)[:, None])
            new = self.added(
                self.faded(state, log_decay), self.stored(key[:, t], value[:, t], bonus)
            )
            state = self.kept(state, new, None if real is None else real[:, t, None, None])
        return torch.cat(outputs, 1), self.ended(state)

    def begun(self, state):
        """The state as it is handed on."""
        return state

    def ended(self, state):
        """The way back."""
        return state

    def single(self, score, value):
        """The sums over one token."""
        return torch.stack([value, torch.ones_like(value), score], 1)

    def stored(self, key, value, bonus):
        """What enters the state: without the bonus."""
        return self.single(key, value)

    def read(self, state, log_decay):
        """What the output reads of the tokens before."""
        return state

    def faded(self, state, log_decay):
        """One token later."""
        return torch.stack([state[:, 0], state[:, 1], state[:, 2] + log_decay], 1)

    def added(self, one, other):
        """Two sums, both to the larger maximum."""
        top = torch.maximum(one[:, 2], other[:, 2])[:, None]
        sums = (one[:, 2:] - top).exp() * one[:, :2] + (other[:, 2:] - top).exp() * other[:, :2]
        return torch.cat([sums, top], 1)

    def mean(self, sums):
        """A weighted mean."""
        return sums[:, 0] / sums[:, 1]

    def kept(self, old, new, real):
        """Padding enters no state."""
        return new if real is None else torch.where(real, new, old)


@mistake(
    "exponentials of the keys as they are",
    rejected_by="large keys stay finite",
    symptom="The loss is NaN after some tokens, as soon as a key is large.",
    cause="exp(key) is summed as it is. Only exp(key - the largest key so far) is safe.",
    seen="tensorpro/tpu_rwkv issue 1",
    of="wkv",
)
class NoMaximum(WkvFormula):
    def begun(self, state):
        return torch.cat([state[:, :2] * state[:, 2:].exp(), torch.zeros_like(state[:, 2:])], 1)

    def single(self, score, value):
        return torch.stack([value * score.exp(), score.exp(), torch.zeros_like(score)], 1)

    def faded(self, state, log_decay):
        return torch.cat([state[:, :2] * log_decay.exp(), state[:, 2:]], 1)


@mistake(
    "the bonus enters the state",
    rejected_by="the bonus is for the newest token alone",
    symptom="Loaded weights give other numbers; the first token's output is right.",
    cause="exp(key + bonus) is added to the sums that are handed on, and not to the output alone.",
    of="wkv",
)
class BonusStored(WkvFormula):
    def stored(self, key, value, bonus):
        return self.single(key + bonus, value)


@mistake(
    "the token before is faded already",
    rejected_by="the token before counts in full",
    symptom="Loaded weights give other numbers, from the second token on.",
    cause="The state decays before the output reads it: i - j times where it is i - 1 - j times.",
    of="wkv",
)
class FadedBeforeRead(WkvFormula):
    def read(self, state, log_decay):
        return self.faded(state, log_decay)


@mistake(
    "the maximum is faded, the sums are not",
    rejected_by="old tokens fade",
    symptom="Nothing is ever forgotten.",
    cause="The decay is added to the maximum for the comparison, and left out of the factor of the old sums: "
    "exp(maximum - top) where it is exp(maximum + log_decay - top).",
    of="wkv",
)
class NothingFades(WkvFormula):
    def faded(self, state, log_decay):
        return state


@mistake(
    "the numerator alone",
    rejected_by="it is a mean of the values",
    symptom="Outputs grow with the length of the text.",
    cause="The numerator alone is returned.",
    of="wkv",
)
class NoDenominator(WkvFormula):
    def mean(self, sums):
        return sums[:, 0] * sums[:, 2].exp()


@mistake(
    "padding enters the sums",
    rejected_by="padding does nothing",
    symptom="A text gets other logits beside a longer one than alone.",
    cause="The attention mask is accepted and ignored.",
    seen="huggingface/transformers 5.23.0, RwkvModel: `attention_mask` is unused there, which it says in a warning",
    of="wkv",
)
class PaddingSummed(WkvFormula):
    def kept(self, old, new, real):
        return new
