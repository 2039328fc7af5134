"""The famous mistakes with latent attention: a part of the score lost, the wrong scale, mixed heads."""

from __future__ import annotations

import torch

from ..masks.spec import textbook as masked_softmax
from ..mistakes import Formula, mistake


class LatentFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(
        self, query, rotary_query, latent, rotary_key, up_key, up_value, *, causal=False, mask=None
    ):
        """Keys and values of every head, two parts of a score, softmax, mean."""
        scores = self.own(query, latent, up_key) + self.rotary(rotary_query, rotary_key)
        scores = scores * self.scale(query, rotary_query, latent)  # B H L S
        allowed = torch.ones_like(scores, dtype=torch.bool)
        if causal:
            allowed = allowed.tril(self.diagonal(scores))
        weights = masked_softmax(scores, allowed if mask is None else allowed & mask)
        return self.heads(weights, latent, up_value)

    def own(self, query, latent, up_key):
        """The part of the head's own keys."""
        return query @ (latent[:, None] @ up_key.mT).mT  # B H L S

    def rotary(self, rotary_query, rotary_key):
        """The part that all heads share."""
        return rotary_query @ rotary_key[:, None].mT  # B H L S

    def scale(self, query, rotary_query, latent):
        """One over the root of both widths."""
        return (query.shape[-1] + rotary_query.shape[-1]) ** -0.5

    def diagonal(self, scores):
        """Where the causal mask ends: at the last key."""
        return scores.shape[-1] - scores.shape[-2]

    def heads(self, weights, latent, up_value):
        """The mean of the head's values."""
        return weights @ (latent[:, None] @ up_value.mT)  # B H L dv


@mistake(
    "latent attention without its rotary part",
    rejected_by="the rotary key counts",
    symptom="The model does not know the order of the tokens and looks worse than ordinary attention.",
    cause="Without the decoupled rotary key no part of a score depends on positions.",
    seen="deepseek-ai/DeepSeek-V2 issue 23",
)
class NoRotaryPart(LatentFormula):
    def rotary(self, rotary_query, rotary_key):
        return 0.0 * rotary_query.sum(-1, keepdim=True) * rotary_key[:, None, :, 0].unsqueeze(-2)


@mistake(
    "the scale of one part",
    rejected_by="equals the reference",
    symptom="Scores are too large by a constant factor, and no shape says so.",
    cause="A key has d + r features, those of the rotary part too, so the root is of both.",
)
class ScaleOfOnePart(LatentFormula):
    def scale(self, query, rotary_query, latent):
        return query.shape[-1] ** -0.5


@mistake(
    "the scale of the absorbed width",
    rejected_by="equals the reference",
    symptom="Generation differs from training: only the absorbed form has this scale.",
    cause="An absorbed query has c + r features, but the score is still that of d + r.",
    seen="ollama/ollama pull request 13893",
)
class ScaleOfLatent(LatentFormula):
    def scale(self, query, rotary_query, latent):
        return (latent.shape[-1] + rotary_query.shape[-1]) ** -0.5


@mistake(
    "heads of the up-projection out of order",
    rejected_by="a head has matrices of its own",
    symptom="Loaded weights give fluent nonsense; a model trained with the bug is fine.",
    cause="The rows of the up-projection are grouped by head, and were read as if grouped by feature.",
)
class HeadsOutOfOrder(LatentFormula):
    def own(self, query, latent, up_key):
        heads, width, _ = up_key.shape
        return super().own(query, latent, up_key.reshape(width, heads, -1).transpose(0, 1))


@mistake(
    "one head's values for all",
    rejected_by="a head has matrices of its own",
    symptom="Heads differ in their weights and agree in what they read.",
    cause="The absorbed form has one value for all heads, the latent; each head still has its own matrix.",
)
class OneHeadsValues(LatentFormula):
    def heads(self, weights, latent, up_value):
        return super().heads(weights, latent, up_value[:1].expand_as(up_value))


@mistake(
    "latents masked from the top left",
    rejected_by="the last query may attend to every key",
    symptom="Right in training; with a cache the newest query reads the oldest token alone.",
    cause="With fewer queries than keys the mask must end at the last key.",
)
class MaskedTopLeft(LatentFormula):
    def diagonal(self, scores):
        return 0
