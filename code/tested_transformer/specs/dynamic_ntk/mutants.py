"""The famous mistakes with dynamic NTK: the right base with one step gone wrong."""

from __future__ import annotations

import torch

from ..mistakes import mistake


def dynamic_base(lengths, base, d, trained, factor):
    """The base for each text of a batch: the trained one until the text is longer than in training."""
    longer = lengths.clamp(min=trained).double()
    return base * (factor * longer / trained - (factor - 1)) ** (d / (d - 2))


def _powers(stretch, base, d):
    """A complex power where the stretch is negative, of which the real part is left."""
    return base * (stretch.to(torch.complex128) ** (d / (d - 2))).real


@mistake(
    "dynamic NTK that depends on no length",
    rejected_by="a longer text has a larger base",
    symptom="Every text, short or long, is read with the base for one length.",
    cause="The length is the largest one that the server allows: factor^2 - factor + 1, a constant.",
    seen="vllm-project/vllm issue 41236",
)
def constant(lengths, base, d, trained, factor):
    """Of the largest length."""
    stretch = factor * (trained * factor) / trained - (factor - 1)
    return torch.full(lengths.shape, base * stretch ** (d / (d - 2)), dtype=torch.float64)


@mistake(
    "dynamic NTK below the trained length",
    rejected_by="a short text keeps its base",
    symptom="Served with a smaller limit than it was trained for, a model returns NaN.",
    cause="The stretch falls below 1 and then below 0, where Python's power is a complex number.",
    seen="vllm-project/vllm issue 52665",
)
def below(lengths, base, d, trained, factor):
    """Without the condition."""
    stretch = factor * lengths.double() / trained - (factor - 1)
    return _powers(stretch, base, d)


@mistake(
    "the longest text's base for the whole batch",
    rejected_by="each text has its own base",
    symptom="A short text gives other answers when a long one is in its batch.",
    cause="One factor is computed from the length of the padded batch.",
    seen="transformers, dynamic_frequency_update; asked about in QwenLM/Qwen issue 401",
)
def longest(lengths, base, d, trained, factor):
    """Of the longest text."""
    return dynamic_base(lengths.max().expand(lengths.shape), base, d, trained, factor)


@mistake(
    "dynamic NTK without its exponent",
    rejected_by="the slowest pair is slowed by the stretch",
    symptom="Long texts are read with frequencies that are stretched too little.",
    cause="The base is raised to (d - 2)/d in the slowest pair: the stretch needs the inverse power.",
)
def no_exponent(lengths, base, d, trained, factor):
    """The stretch itself."""
    return base * (factor * lengths.clamp(min=trained).double() / trained - (factor - 1))


@mistake(
    "the length over the trained one alone",
    rejected_by="the slowest pair is slowed by the stretch",
    symptom="Texts near the trained length are stretched too little.",
    cause="The configuration's factor is left out: factor x length / trained - (factor - 1).",
)
def no_factor(lengths, base, d, trained, factor):
    """As with a factor of 1."""
    return dynamic_base(lengths, base, d, trained, 1.0)


@mistake(
    "a factor of 2 whatever the configuration says",
    rejected_by="the slowest pair is slowed by the stretch",
    symptom="Right for a configured factor of 2; with 6, the base of a long text is far too small.",
    cause="A default of 2 for another scaling is passed on, and the configuration's factor is never read.",
    seen="ml-explore/mlx-lm issue 1545 (InternLM3)",
)
def always_two(lengths, base, d, trained, factor):
    """Hard-coded."""
    return dynamic_base(lengths, base, d, trained, 2.0)
