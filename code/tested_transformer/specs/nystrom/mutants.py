"""The famous mistakes with Nystrom attention: landmarks of the wrong tokens, and a bad start of the inverse."""

from __future__ import annotations

import torch
from torch.nn import functional

from ...functional.masks import masked_softmax
from ..mistakes import Formula, mistake
from ..rounding import in_at_least


class NystromFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(
        self, query, key, value, num_landmarks, *, iterations=6, key_mask=None, scale=None
    ):
        """Landmarks, three softmaxes, the iteration."""
        with in_at_least(torch.float32):
            scale = query.shape[-1] ** -0.5 if scale is None else scale
            if key_mask is None:
                key_mask = torch.ones(query.shape[0], query.shape[2], dtype=torch.bool)
            query_means, key_means, used = self.landmarks(query, key, key_mask, num_landmarks)
            columns = self.softmax(query @ key_means.mT * scale, self.of_landmarks(used, key_mask))
            core = self.softmax(query_means @ key_means.mT * scale, used & used.mT)
            rows = self.softmax(query_means @ key.mT * scale, key_mask[:, None, None] & used.mT)
            return columns @ (self.inverse(core, iterations) @ (rows @ value))

    def softmax(self, scores, allowed):
        """Over the allowed columns; a row without any is 0."""
        return masked_softmax(scores, allowed)

    def landmarks(self, query, key, real, number):
        """Means of the segments' real tokens, and which segments have one: B 1 1 m."""
        member = self.members(real, number)  # B m L
        counts = self.counts(member, real)
        means = (member / counts.clamp(min=1.0)).to(query.dtype)[:, None]
        return means @ query, means @ key, (counts > 0)[:, None].mT

    def members(self, real, number):
        """Which tokens belong to each segment."""
        count = real.sum(-1, keepdim=True).clamp(min=1)
        segment = (real.cumsum(-1) - 1) * number // count
        return ((segment[:, None] == torch.arange(number)[:, None]) & real[:, None]).double()

    def counts(self, member, real):
        """How many tokens a mean is over: B m 1."""
        return member.sum(-1, keepdim=True)

    def of_landmarks(self, used, real):
        """Which landmarks a query reads."""
        return used

    def inverse(self, core, iterations):
        """The iteration from its start."""
        inverse, one = self.start(core), torch.eye(core.shape[-1], dtype=core.dtype)
        for _ in range(iterations):
            product = core @ inverse
            inverse = inverse @ self.step(product, one) / 4
        return inverse

    def start(self, core):
        """The transpose over both norms of the matrix."""
        columns, rows = (core.abs().sum(axis).max(-1).values for axis in (-2, -1))
        return core.mT / (columns * rows).clamp(min=1e-300)[..., None, None]

    def step(self, product, one):
        """What the inverse is multiplied by, times 4."""
        return 13 * one - product @ (15 * one - product @ (7 * one - product))


@mistake(
    "one start for all matrices",
    rejected_by="a sample in a batch is that sample alone",
    symptom="A sample's output depends on the other samples of its batch, and one head's on the other heads.",
    cause="The largest column sum is taken over the whole tensor, batch and heads included. Matrices with "
    "smaller sums start too small and have not converged after six iterations.",
    seen="mlpen/Nystromformer issue 3; transformers, NystromformerSelfAttention.iterative_inv, by default",
    of="nystrom_attention",
)
class OneStart(NystromFormula):
    def start(self, core):
        columns, rows = (core.abs().sum(axis).max(-1).values for axis in (-2, -1))
        return core.mT / (columns * rows).amax().clamp(min=1e-300)


@mistake(
    "pads in front, trims at the end",
    rejected_by="a length that the landmarks do not divide",
    symptom="Lengths that are multiples of the number of landmarks are right. All others are shifted.",
    cause="The sequence is padded on the left to a multiple, and the output is cut on the right.",
    seen="lucidrains/nystrom-attention issue 5",
    of="nystrom_attention",
)
class PadsInFront(NystromFormula):
    def __call__(self, query, key, value, num_landmarks, *, key_mask=None, **options):
        length = query.shape[2]
        more = -length % num_landmarks
        if key_mask is None:
            key_mask = torch.ones(query.shape[0], length, dtype=torch.bool)
        padded = [functional.pad(each, (0, 0, more, 0)) for each in (query, key, value)]
        mask = functional.pad(key_mask, (more, 0))
        return super().__call__(*padded, num_landmarks, key_mask=mask, **options)[:, :, :length]


@mistake(
    "padding in the means",
    rejected_by="padding does nothing",
    symptom="A text gets other outputs in a padded batch, and what the padding holds matters.",
    cause="The segments are cut from the padded sequence, and each mean is over all of its tokens. Only the "
    "last softmax masks the padding.",
    seen="transformers, NystromformerSelfAttention.forward",
    of="nystrom_attention",
)
class PaddingInMeans(NystromFormula):
    def members(self, real, number):
        return super().members(torch.ones_like(real), number)


@mistake(
    "padding counts in the means",
    rejected_by="padding is no token",
    symptom="A text gets other outputs in a padded batch than alone.",
    cause="Padded queries and keys are set to 0 before the means are taken: they add nothing to the sums, and "
    "still count in the division. Segments of padding alone become landmarks of zeros.",
    seen="facebookresearch/xformers pull request 366",
    of="nystrom_attention",
)
class PaddingCounts(NystromFormula):
    def members(self, real, number):
        return super().members(torch.ones_like(real), number) * real[:, None]

    def counts(self, member, real):
        return super().members(torch.ones_like(real), member.shape[1]).sum(-1, keepdim=True)


@mistake(
    "the padding mask over the landmarks",
    rejected_by="padding is no token",
    symptom="NaN where the mask leaves a query no landmark, wrong weights elsewhere.",
    cause="The mask of the tokens is laid over the landmarks, which are means of segments and no tokens.",
    seen="facebookresearch/xformers issue 360",
    of="nystrom_attention",
)
class MaskOverLandmarks(NystromFormula):
    def of_landmarks(self, used, real):
        number = torch.arange(used.shape[-1]).clamp(max=max(real.shape[1] - 1, 0))
        return used & real[:, number][:, None, None] if real.shape[1] else used


@mistake(
    "causal masks over the landmarks",
    rejected_by="tokens of a segment are alike",
    symptom="The loss of a language model is too good to be true, and what it generates is not.",
    cause="Triangles over the three matrices, though every landmark of a segment contains its last tokens: the "
    "future is already in the means.",
    seen="facebookresearch/xformers issues 107 and 751; mlpen/Nystromformer issue 7",
    of="nystrom_attention",
)
class CausalMasks(NystromFormula):
    def softmax(self, scores, allowed):
        past = (
            torch.arange(scores.shape[-1]) / max(scores.shape[-1], 1)
            <= (torch.arange(scores.shape[-2]) / max(scores.shape[-2], 1))[:, None]
        )
        return masked_softmax(scores, allowed & past)


@mistake(
    "the first token of each segment",
    rejected_by="tokens of a segment are alike",
    symptom="Shapes and costs are right; loaded weights give other outputs.",
    cause="A landmark is the mean of its segment. A strided slice takes one token of it and ignores the rest.",
    of="nystrom_attention",
)
class FirstOfSegment(NystromFormula):
    def members(self, real, number):
        member = super().members(real, number)
        return member * (member.cumsum(-1) == 1)


@mistake(
    "it is full attention",
    rejected_by="equals the reference",
    symptom="Everything works, and time and memory still grow with the square of the length.",
    cause="Where the configured length equals the number of landmarks, the shortcut computes all scores; in "
    "transformers both are 64 by default, whatever the length of the text.",
    seen="transformers issue 21755",
    of="nystrom_attention",
)
class FullAttention(NystromFormula):
    def __call__(
        self, query, key, value, num_landmarks, *, iterations=6, key_mask=None, scale=None
    ):
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        real = None if key_mask is None else key_mask[:, None, None]
        return masked_softmax(query @ key.mT * scale, real) @ value
