"""The famous mistakes in a language model's loss: one shift too many, too few, or over the wrong rows."""

from __future__ import annotations

from ...training.losses import cross_entropy
from ..mistakes import mistake


@mistake(
    "labels shifted twice",
    rejected_by="a model that knows the next token has a loss of zero",
    symptom="The loss falls as ever; the model generates the token after the next one.",
    cause="The labels were shifted before they came to a loss that shifts them itself: position t learns t + 2.",
    seen="huggingface/transformers issue 47394 (GIT); pull request 46898 (Florence2)",
)
def shifted_twice(logits, labels, *, ignore=-100):
    return cross_entropy(logits[:, :-2], labels[:, 2:], ignore=ignore)


@mistake(
    "labels not shifted",
    rejected_by="a model that knows the next token has a loss of zero",
    symptom="The loss is near 0 within minutes: the model learns to copy its input.",
    cause="The logits at a position are compared with the token that was read there.",
    seen="huggingface/transformers issue 27517 (MBart)",
)
def not_shifted(logits, labels, *, ignore=-100):
    return cross_entropy(logits, labels, ignore=ignore)


@mistake(
    "labels shifted backwards",
    rejected_by="a model that knows the next token has a loss of zero",
    symptom="A low loss: the token before is no secret. Generation repeats what was there.",
    cause="logits[:, 1:] and labels[:, :-1]: the slices are exchanged.",
)
def shifted_backwards(logits, labels, *, ignore=-100):
    return cross_entropy(logits[:, 1:], labels[:, :-1], ignore=ignore)


@mistake(
    "the last target from the next sequence",
    rejected_by="a model that knows the next token has a loss of zero",
    symptom="A slightly higher loss that nobody notices; targets depend on the neighbors in the batch.",
    cause="All sequences are flattened into one before the shift, so each one's last token predicts the "
    "first token of the next.",
    seen="huggingface/transformers issue 47394 (GIT)",
)
def flattened_before_the_shift(logits, labels, *, ignore=-100):
    return cross_entropy(logits.flatten(0, 1)[:-1], labels.flatten()[1:], ignore=ignore)


@mistake(
    "the mask of the token that is read",
    rejected_by="a model that knows the next token has a loss of zero",
    symptom="The first padding token is predicted, and the last real one is not.",
    cause="What counts is taken from labels[:, :-1], the tokens read, in place of labels[:, 1:].",
)
def mask_of_the_input(logits, labels, *, ignore=-100):
    real, targets = labels[:, :-1] != ignore, labels[:, 1:].clamp(min=0)
    total = cross_entropy(logits[:, :-1][real], targets[real], ignore=None, reduction="sum")
    return total / max(int(real.sum()), 1)


@mistake(
    "a mean of each sequence's mean",
    rejected_by="a batch is the mean over its tokens",
    symptom="A token of a short sequence weighs more than one of a long sequence.",
    cause="The mean is taken within each sequence, then over the sequences.",
)
def mean_of_means(logits, labels, *, ignore=-100):
    rows = zip(logits[:, :-1], labels[:, 1:], strict=True)
    return sum(cross_entropy(row, label, ignore=ignore) for row, label in rows) / max(
        len(labels), 1
    )


@mistake(
    "padding in the denominator",
    rejected_by="a batch is the mean over its tokens",
    symptom="The more padding, the smaller the loss and the gradients.",
    cause="The sum is divided by the number of positions, ignored ones included.",
)
def divided_by_positions(logits, labels, *, ignore=-100):
    total = cross_entropy(logits[:, :-1], labels[:, 1:], ignore=ignore, reduction="sum")
    return total / max(labels[:, 1:].numel(), 1)


@mistake(
    "token 0 taken for padding",
    rejected_by="a batch is the mean over its tokens",
    symptom="The first token of the vocabulary is never learned.",
    cause="labels > 0 in place of labels != ignore.",
    seen="mosaicml/examples issue 457",
)
def token_zero_ignored(logits, labels, *, ignore=-100):
    labels = labels.masked_fill(labels == 0, ignore)
    return cross_entropy(logits[:, :-1], labels[:, 1:], ignore=ignore)
