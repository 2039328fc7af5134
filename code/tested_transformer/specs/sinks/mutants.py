"""The famous mistakes with learned sinks: dropped, moved into the numerator, masked, counted twice."""

from __future__ import annotations

import torch

from ..masks.spec import textbook as masked_softmax
from ..mistakes import Formula, mistake


class SinkFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(
        self, query, key, value, sinks, *, mask=None, bias=None, causal=False, window=None, scale=None
    ):  # fmt: skip
        """Scores and a sink, one softmax, the sink's weight left out."""
        key, value = (
            each.repeat_interleave(len(sinks) // each.shape[1], 1) for each in (key, value)
        )
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        scores = query @ key.mT * scale + (0.0 if bias is None else bias)  # B H L S
        length, keys = scores.shape[-2:]
        back = torch.arange(length)[:, None] + keys - length - torch.arange(keys)
        allowed = torch.ones_like(scores, dtype=torch.bool)
        allowed = allowed & (back >= 0) if causal else allowed
        allowed = allowed & (back.abs() < window) if window else allowed
        allowed = allowed if mask is None else allowed & mask
        sink = self.sink(sinks, scale)[:, None, None].expand(*scores.shape[:-1], 1)  # B H L 1
        return self.heads(scores, sink, allowed, value)

    def sink(self, sinks, scale):
        """The logit of each head, as it was learned."""
        return sinks

    def heads(self, scores, sink, allowed, value):
        """The weighted sum of the values, the sink's being 0."""
        return self.weights(scores, sink, allowed) @ value  # B H L dv

    def weights(self, scores, sink, allowed):
        """The weights of the keys, which sum to less than 1."""
        return with_sink(scores, sink, allowed)[..., 1:]  # B H L S


def with_sink(scores, sink, allowed):
    """The weight of the sink, which is never masked, then those of the keys."""
    shown = torch.ones_like(allowed[..., :1]) if allowed.shape[-1] else sink == sink
    return masked_softmax(torch.cat((sink, scores), -1), torch.cat((shown, allowed), -1))


@mistake(
    "the sink is dropped",
    rejected_by="a large sink silences its head",
    symptom="Outputs look right while the sinks are small; their gradient is exactly 0, so they stay where "
    "they began.",
    cause="The sinks are accepted and never reach the kernel, which computes the plain softmax.",
    seen="NVIDIA/TransformerEngine pull request 3551; vllm-project/vllm-metal pull request 550",
)
class SinkDropped(SinkFormula):
    def weights(self, scores, sink, allowed):
        return masked_softmax(scores, allowed)


@mistake(
    "the sink in the numerator",
    rejected_by="a large sink silences its head",
    symptom="A head that should attend to nothing returns a value instead: here that of the first key.",
    cause="The sink is taken for a token with a value. It has none: its weight goes nowhere.",
    seen="demanded by a review of sgl-project/sgl-kernel-npu pull request 216, wrongly",
)
class SinkInNumerator(SinkFormula):
    def heads(self, scores, sink, allowed, value):
        if not value.shape[2]:
            return super().heads(scores, sink, allowed, value)
        return with_sink(scores, sink, allowed) @ torch.cat((value[:, :, :1], value), 2)


@mistake(
    "the sink inside each score",
    rejected_by="a large sink silences its head",
    symptom="The weights sum to 1 again, and are close to uniform.",
    cause="A function of one score cannot know the others. Here each score is normalized with the sink "
    "alone, and then comes the softmax.",
    seen="huggingface/transformers issue 41026",
)
class SinkInsideScores(SinkFormula):
    def weights(self, scores, sink, allowed):
        return masked_softmax((scores - sink).sigmoid(), allowed)


@mistake(
    "the window hides the sink",
    rejected_by="a large sink silences its head",
    symptom="Right for the first tokens; once the text is longer than the window the sink is gone.",
    cause="The sink was put in front as a key of its own, and then masked like any other key.",
)
class WindowHidesSink(SinkFormula):
    def weights(self, scores, sink, allowed):
        if not allowed.shape[-1]:
            return super().weights(scores, sink, allowed)
        allowed = torch.cat((allowed[..., :1], allowed), -1)
        return masked_softmax(torch.cat((sink, scores), -1), allowed)[..., 1:]


@mistake(
    "one sink for all heads",
    rejected_by="a sink is that of its head",
    symptom="Small differences in every head but the first.",
    cause="The vector of sinks is read at its first number only.",
)
class OneSinkForAll(SinkFormula):
    def sink(self, sinks, scale):
        return sinks[:1].expand_as(sinks)


@mistake(
    "off by one instead of a sink",
    rejected_by="a large sink silences its head",
    symptom="Right while the sinks are 0, where they begin.",
    cause="The denominator has 1 more, which is a sink of 0 that cannot be learned.",
)
class OffByOne(SinkFormula):
    def sink(self, sinks, scale):
        return 0 * sinks


@mistake(
    "the sink is scaled",
    rejected_by="a constant on all scores and on the sink changes nothing",
    symptom="The sink counts too little where it is large, and too much where it is negative.",
    cause="The sink is added before the scores are scaled, so that it is multiplied by the scale, too.",
    seen="ROCm/rocm-libraries issue 12227",
)
class SinkScaled(SinkFormula):
    def sink(self, sinks, scale):
        return scale * sinks


@mistake(
    "the sink counted once per block",
    rejected_by="among equal scores a sink counts as one key",
    symptom="Right for short texts; wrong as soon as the keys are split into two blocks.",
    cause="Each block adds the sink to its own sum, and the sums are added.",
    seen="ROCm/rocm-libraries issue 12227",
)
class SinkPerBlock(SinkFormula):
    def weights(self, scores, sink, allowed):
        if scores.shape[-1] < 2:
            return super().weights(scores, sink, allowed)
        return super().weights(scores, sink + torch.tensor(2.0).log().to(sink), allowed)
