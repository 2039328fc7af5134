"""The answers to the loss."""

from functools import partial

import torch
from torch.nn import functional

from tested_transformer.training.losses import cross_entropy

from . import right, wrong

right("cross_entropy")(cross_entropy)
right("cross_entropy", "partial")(partial(cross_entropy, label_smoothing=0.0))


@right("cross_entropy")
def of_torch(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    """torch's mean of no words is 0 / 0."""
    total = functional.cross_entropy(
        logits.flatten(0, -2), expected.flatten(), ignore_index=ignore,
        label_smoothing=label_smoothing, reduction="sum",
    )  # fmt: skip
    words = (expected != ignore).sum().clamp(min=1)
    return total if reduction == "sum" else total / words


@right("cross_entropy")
def any_options(logits, expected, **options):
    return of_torch(logits, expected, **options)


@right("cross_entropy")
def by_targets(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    """The divergence from the smoothed target, and the target's entropy on top."""
    logits, expected = logits[expected != ignore], expected[expected != ignore]
    vocab = logits.shape[-1]
    one_hot = functional.one_hot(expected, vocab).to(logits.dtype)
    target = one_hot * (1 - label_smoothing) + label_smoothing / vocab
    divergence = functional.kl_div(logits.log_softmax(-1), target, reduction="sum")
    total = divergence + torch.special.entr(target).sum()
    return total if reduction == "sum" else total / max(len(expected), 1)


@right("cross_entropy")
def masked_by_where(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    """logsumexp minus the right logit; padding keeps its place and counts 0."""
    real = expected != ignore
    norm = torch.logsumexp(logits, dim=-1)
    found = logits.gather(-1, expected.where(real, 0)[..., None]).squeeze(-1)
    loss = norm - (1 - label_smoothing) * found - label_smoothing * logits.mean(-1)
    total = torch.where(real, loss, torch.zeros_like(loss)).sum()
    return total / real.sum().clamp(min=1) if reduction == "mean" else total


@right("cross_entropy")
def word_by_word(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    total, words = (0.0 * logits).sum(), 0
    vocab = logits.shape[-1]
    for row, word in zip(logits.reshape(-1, vocab), expected.flatten().tolist(), strict=True):
        if word == ignore:
            continue
        shifted = row - row.max().detach()
        log_p = shifted - shifted.exp().sum().log()
        target = torch.full_like(row, label_smoothing / vocab)
        target[word] += 1 - label_smoothing
        total, words = total - target @ log_p, words + 1
    return total / max(words, 1) if reduction == "mean" else total


# --- Wrong ----------------------------------------------------------------------------------------


class Loss:
    """A right loss in steps: a wrong one replaces one of them."""

    def __call__(self, logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
        real = self.real(expected, ignore, label_smoothing)
        logits, expected = logits[real], expected[real]
        log_p = self.log_p(logits)
        loss = self.smoothed(log_p, expected, label_smoothing, reduction)
        return self.reduced(loss, reduction, label_smoothing)

    def real(self, expected, ignore, smoothing):
        return expected != ignore

    def log_p(self, logits):
        return logits.log_softmax(-1)

    def smoothed(self, log_p, expected, smoothing, reduction):
        right = log_p.gather(-1, expected[:, None])[:, 0]
        return -(1 - smoothing) * right - smoothing * log_p.mean(-1)

    def reduced(self, loss, reduction, smoothing):
        return loss.sum() / (max(len(loss), 1) if reduction == "mean" else 1)


@right("cross_entropy", "in steps")
def in_steps(logits, expected, **options):
    return Loss()(logits, expected, **options)


def wrong_loss(name):
    """Judge an object of the class below."""

    def note(cls):
        wrong("cross_entropy", name)(cls())
        return cls

    return note


@wrong_loss("the gradient is wrong in float32 only")
class GradientInFloat32(Loss):
    def log_p(self, logits):
        log_p = super().log_p(logits)
        return log_p if logits.dtype == torch.float64 else log_p + 0.5 * (logits - logits.detach())


@wrong_loss("the logits are detached in half precision")
class DetachedInHalf(Loss):
    def log_p(self, logits):
        half = logits.dtype in (torch.bfloat16, torch.float16)
        return (logits.detach() + 0 * logits if half else logits).log_softmax(-1)


@wrong_loss("the normalizer is detached")
class NormalizerDetached(Loss):
    def log_p(self, logits):
        return logits - logits.logsumexp(-1, keepdim=True).detach()


@wrong_loss("no maximum subtracted in float32")
class NaiveInFloat32(Loss):
    def log_p(self, logits):
        if logits.dtype == torch.float64:
            return super().log_p(logits)
        return logits - logits.exp().sum(-1, keepdim=True).log()


@wrong_loss("no maximum subtracted in float16")
class NaiveInFloat16(Loss):
    def log_p(self, logits):
        if logits.dtype != torch.float16:
            return super().log_p(logits)
        return logits - logits.exp().sum(-1, keepdim=True).log()


@wrong_loss("logits clamped at 1,000")
class Clamped(Loss):
    def log_p(self, logits):
        return logits.clamp(-1e3, 1e3).log_softmax(-1)


@wrong_loss("a batch of padding is NaN")
class PaddingIsNan(Loss):
    def reduced(self, loss, reduction, smoothing):
        return loss.mean() if reduction == "mean" else loss.sum()


@wrong_loss("smoothing leaves out row 0 in place of `ignore`")
class SmoothingIgnoresZero(Loss):
    def real(self, expected, ignore, smoothing):
        return expected != (0 if smoothing and ignore >= 0 else ignore)


@wrong_loss("padding is 0 whatever `ignore` says")
class IgnoreIsZero(Loss):
    def real(self, expected, ignore, smoothing):
        return expected != 0


@wrong_loss("negative words alone are padding where ignore is negative, else all above it count")
class Above(Loss):
    def real(self, expected, ignore, smoothing):
        return expected > ignore


@wrong_loss("smoothing is forgotten in a sum")
class UnsmoothedSum(Loss):
    def smoothed(self, log_p, expected, smoothing, reduction):
        return super().smoothed(log_p, expected, smoothing if reduction == "mean" else 0, reduction)


@wrong_loss("the sum is a mean where it is smoothed")
class SmoothedSumIsMean(Loss):
    def reduced(self, loss, reduction, smoothing):
        return super().reduced(loss, "mean" if smoothing else reduction, smoothing)


@wrong_loss("smoothing is at most one half")
class AtMostHalf(Loss):
    def smoothed(self, log_p, expected, smoothing, reduction):
        return super().smoothed(log_p, expected, min(smoothing, 0.5), reduction)


@wrong_loss("smoothing over 512 words at most")
class FewWords(Loss):
    def smoothed(self, log_p, expected, smoothing, reduction):
        few = log_p[:, :512]
        right = log_p.gather(-1, expected[:, None])[:, 0]
        return -(1 - smoothing) * right - smoothing * few.mean(-1)


@wrong_loss("a focal weight, detached")
class Focal(Loss):
    def reduced(self, loss, reduction, smoothing):
        return super().reduced(loss * (1 + 1e-4 * loss.detach()), reduction, smoothing)


@wrong("cross_entropy", "three axes raise")
def two_axes(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    rows, words, vocab = logits.shape if logits.ndim > 2 else (1, *logits.shape)
    return of_torch(logits.view(rows * words, vocab), expected.view(-1), ignore=ignore,
                    label_smoothing=label_smoothing, reduction=reduction)  # fmt: skip


@wrong("cross_entropy", "padding overwritten in the caller's words")
def overwrites(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    expected[expected == ignore] = -100
    return of_torch(logits, expected, ignore=-100, label_smoothing=label_smoothing,
                    reduction=reduction)  # fmt: skip


@wrong("cross_entropy", "a NumPy number, without a past")
def of_numpy(logits, expected, **options):
    return cross_entropy(logits, expected, **options).detach().numpy()
