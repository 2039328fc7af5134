"""The famous mistakes in the loss: what counts as a word, and what counts as its probability."""

from __future__ import annotations

import torch
from torch.nn import functional

from ..mistakes import mistake


def of_log_p(log_p, expected, ignore, smoothing, reduction):
    """The right loss from log-probabilities: padding thrown out, then the mean or the sum."""
    log_p, expected = log_p[expected != ignore], expected[expected != ignore]
    surprise = -log_p.gather(-1, expected[:, None])[:, 0]
    if smoothing:
        surprise = (1 - smoothing) * surprise - smoothing * log_p.mean(-1)
    return surprise.mean() if reduction == "mean" else surprise.sum()


@mistake(
    "softmax before the loss",
    rejected_by="a sure and right guess costs nothing",
    symptom="Training is slow, and the loss cannot fall under 0.905 for 5 classes.",
    cause="The model returns probabilities, and cross-entropy applies a softmax of its own.",
    seen="source notes, 001:1496",
)
def after_softmax(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    """Probabilities are taken for logits."""
    log_p = logits.softmax(-1).log_softmax(-1)
    return of_log_p(log_p, expected, ignore, label_smoothing, reduction)


@mistake(
    "logits for log-probabilities",
    rejected_by="a shift changes nothing",
    symptom="The loss falls below 0 and on without end.",
    cause="nll_loss expects log-probabilities and does not look.",
)
def without_log_softmax(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    """Logits are taken for log-probabilities."""
    return of_log_p(logits, expected, ignore, label_smoothing, reduction)


@mistake(
    "log of softmax without the maximum",
    rejected_by="large logits stay finite",
    symptom="NaN after some hundred steps, when the logits have grown.",
    cause="exp overflows: at 89 in float32. Subtract the largest logit first.",
    seen="source notes, 002:28",
)
def without_maximum(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    """log(exp(x) / sum of exp(x)), as it stands in the formula."""
    raised = logits.exp()
    log_p = (raised / raised.sum(-1, keepdim=True)).log()
    return of_log_p(log_p, expected, ignore, label_smoothing, reduction)


@mistake(
    "the logarithm of an underflow",
    rejected_by="large logits stay finite",
    symptom="An infinite loss for a word that the model finds very unlikely.",
    cause="softmax gives 0 and its logarithm is -inf: take log_softmax in one step.",
)
def log_of_underflow(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    """A safe softmax, and then a logarithm of its zeros."""
    return of_log_p(logits.softmax(-1).log(), expected, ignore, label_smoothing, reduction)


@mistake(
    "a small number inside the logarithm",
    rejected_by="a sure and right guess costs nothing",
    symptom="The loss never rises over 27.6, and the worst mistakes teach nothing.",
    cause="log(p + 1e-12) hides the underflow: its slope is 0 where p is.",
)
def log_with_eps(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    """The same, with a small number against log 0."""
    log_p = (logits.softmax(-1) + 1e-12).log()
    return of_log_p(log_p, expected, ignore, label_smoothing, reduction)


@mistake(
    "bits for nats",
    rejected_by="equal logits cost log V",
    symptom="All losses are 1.44 times too large, and so is each step.",
    cause="log2 in place of log.",
)
def in_bits(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    """The logarithm to base 2."""
    log_p = logits.log_softmax(-1) / torch.tensor(2.0).log()
    return of_log_p(log_p, expected, ignore, label_smoothing, reduction)


@mistake(
    "loss over padding",
    rejected_by="padding costs nothing",
    symptom="The loss falls fast: the model learns to write padding.",
    cause="ignore_index is missing, or names another word than the one that pads.",
    seen="source notes, 001:1537",
)
def over_padding(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    """Padding is a word like any other."""
    expected = expected.clamp(min=0)
    return of_log_p(logits.log_softmax(-1), expected, -1, label_smoothing, reduction)


@mistake(
    "the mean over all places",
    rejected_by="twice the padding, the same loss",
    symptom="The more padding a batch has, the less its words count.",
    cause="The sum over words is divided by the number of places.",
)
def over_all_places(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    """Padding costs nothing, and is counted in the mean."""
    total = of_log_p(logits.log_softmax(-1), expected, ignore, label_smoothing, "sum")
    return total / expected.numel() if reduction == "mean" else total


@mistake(
    "every sentence counts alike",
    rejected_by="words count, not sentences",
    symptom="A word of a short sentence weighs more than one of a long sentence.",
    cause="A mean for each sentence, and the mean of these.",
)
def by_sentence(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    """A mean for each sentence, and then the mean of these."""
    log_p = logits.log_softmax(-1)
    rows = [(log_p, expected)] if expected.ndim < 2 else zip(log_p, expected, strict=True)
    losses = [of_log_p(*row, ignore, label_smoothing, reduction) for row in rows]
    losses = torch.stack(losses)
    return losses.mean() if reduction == "mean" else losses.sum()


@mistake(
    "a sum where a mean was asked",
    rejected_by="equal logits cost log V",
    symptom="Twice the batch, twice the step: the rate fits one batch size only.",
    cause="reduction is not looked at.",
)
def always_sum(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    """The sum, whatever was asked for."""
    return of_log_p(logits.log_softmax(-1), expected, ignore, label_smoothing, "sum")


@mistake(
    "smoothing over padding",
    rejected_by="padding costs nothing",
    symptom="With smoothing, sentences in padded batches cost more.",
    cause="The loss of the words is masked, the smoothing term is not.",
)
def smoothed_over_padding(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    """The smoothing term is not masked."""
    log_p, counts = logits.log_softmax(-1), (expected != ignore)
    right = of_log_p(log_p, expected, ignore, 0.0, reduction)
    spread = -log_p.mean(-1)
    spread = spread.sum() / counts.sum() if reduction == "mean" else spread.sum()
    return (1 - label_smoothing) * right + label_smoothing * spread


def smoothed_with(share_of_others, log_p, expected, ignore, smoothing, reduction):
    """1 - e for the right word, and for each other what is said."""
    target = torch.full_like(log_p, share_of_others)
    target.scatter_(-1, expected.clamp(min=0)[..., None], 1 - smoothing)
    surprise = -(target * log_p).sum(-1)[expected != ignore]
    return surprise.mean() if reduction == "mean" else surprise.sum()


@mistake(
    "smoothing without the right word's share",
    rejected_by="equal logits cost log V",
    symptom="The target sums to 1 - e/V; all losses are a little too small.",
    cause="The right word gets 1 - e and no e/V of its own.",
)
def right_word_short(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    """e / V for every word but the right one, which keeps 1 - e: together less than 1."""
    share = label_smoothing / logits.shape[-1]
    log_p = logits.log_softmax(-1)
    return smoothed_with(share, log_p, expected, ignore, label_smoothing, reduction)


@mistake(
    "label smoothing spread over the wrong words only",
    rejected_by="lowest at the smoothed target",
    symptom="Not the loss of the formula: with V = 2 and e = 0.5 nothing can be learned.",
    cause="1 - e for the right word and e/(V - 1) for each other: the e of another convention.",
    seen="google/flax, examples/wmt/train.py, where it is meant so",
)
def wrong_words_only(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    """e is spread over the V - 1 wrong words."""
    share = label_smoothing / (logits.shape[-1] - 1)
    log_p = logits.log_softmax(-1)
    return smoothed_with(share, log_p, expected, ignore, label_smoothing, reduction)


@mistake(
    "a loss without a past",
    rejected_by="backward reaches the logits",
    symptom="The number is right and backward says that nothing requires a gradient.",
    cause="torch.tensor(loss.item()) is a new number that remembers nothing.",
)
def without_graph(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    """The right number, and nothing that leads back from it."""
    loss = functional.cross_entropy(
        logits.flatten(0, -2), expected.flatten(), ignore_index=ignore,
        label_smoothing=label_smoothing, reduction=reduction,
    )  # fmt: skip
    return torch.tensor(loss.item(), dtype=logits.dtype)
