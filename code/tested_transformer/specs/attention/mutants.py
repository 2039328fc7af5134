"""The famous mistakes in attention: the right formula with one step gone wrong."""

from __future__ import annotations

import math

import torch

from ..mistakes import Formula, Mutant, mistake


class AttentionFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, query, key, value, *, mask=None, bias=None, causal=False, window=None,
                 key_lengths=None, alibi_slopes=None, scale=None):  # fmt: skip
        """softmax(query key^T scale + bias, over the allowed keys) value."""
        key, value = self.share(query, key, value)
        scale = self.scale(query) if scale is None else scale
        scores = self.bias(self.scores(query, key) * scale, bias, alibi_slopes)
        allowed = self.allowed(scores, mask, causal, window, key_lengths)
        return self.weights(scores, allowed, mask) @ value

    def share(self, query, key, value):
        """Give each query head its key/value head."""
        if query.ndim != 4:
            return key, value
        groups = query.shape[1] // key.shape[1]
        return key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)

    def scale(self, query):
        """1/sqrt(d), d being the size of one head."""
        return query.shape[-1] ** -0.5

    def scores(self, query, key):
        """All dot products."""
        return query @ key.transpose(-2, -1)

    def bias(self, scores, bias, alibi_slopes):
        """Add what is to be added."""
        if alibi_slopes is not None:
            scores = scores - alibi_slopes[:, None, None] * self.back(scores).abs()
        return scores if bias is None else scores + bias

    def back(self, scores):
        """How many steps key j lies before query i, the last query standing at the last key."""
        length, keys = scores.shape[-2:]
        return torch.arange(length)[:, None] + keys - length - torch.arange(keys)

    def allowed(self, scores, mask, causal, window, key_lengths):
        """The intersection of everything that hides a key."""
        allowed = scores > -math.inf
        if mask is not None:
            allowed = allowed & mask
        if causal:
            allowed = allowed & self.past(scores)
        if window is not None:
            allowed = allowed & (self.back(scores).abs() < window)
        if key_lengths is not None:
            inside = torch.arange(scores.shape[-1]) < key_lengths[:, None]
            allowed = allowed & inside.view(len(inside), *[1] * (scores.ndim - 2), -1)
        return allowed

    def past(self, scores):
        """Which keys are not in the future."""
        return self.back(scores) >= 0

    def weights(self, scores, allowed, mask):
        """Softmax over the allowed keys; a fully masked row gives zeros."""
        empty = ~allowed.any(-1, keepdim=True)
        filled = scores.masked_fill(~allowed, -math.inf).masked_fill(empty, 0.0)
        return filled.softmax(-1).masked_fill(empty, 0.0)


@mistake(
    "no softmax",
    rejected_by="weights are a distribution",
    symptom="Some weights are negative and the rows sum to anything.",
    cause="The scores are used as weights: the softmax is missing.",
    seen="source notes, 001:1577",
    chapter=1,
)
class NoSoftmax(AttentionFormula):
    def weights(self, scores, allowed, mask):
        return scores.masked_fill(~allowed, 0.0)


@mistake(
    "softmax over the queries",
    rejected_by="weights are a distribution",
    symptom="Columns sum to 1, rows do not: each key divides itself among the queries.",
    cause="The softmax runs over the wrong axis: dim=-2 in place of dim=-1.",
    chapter=1,
)
class SoftmaxOverQueries(AttentionFormula):
    def weights(self, scores, allowed, mask):
        weights = scores.masked_fill(~allowed, -math.inf).softmax(-2)
        return weights.nan_to_num(0.0)


@mistake(
    "softmax without the maximum",
    rejected_by="no overflow",
    symptom="NaN for scores above 709 in float64, above 88 in float32, above 11 in float16.",
    cause="exp overflows: the row's maximum is not subtracted first.",
    seen="source notes, 002:28",
    chapter=3,
)
class NaiveSoftmax(AttentionFormula):
    def weights(self, scores, allowed, mask):
        exponentials = scores.exp() * allowed
        total = exponentials.sum(-1, keepdim=True)
        return exponentials / total.masked_fill(total == 0, 1.0)


@mistake(
    "K.T with a batch",
    rejected_by="RuntimeError",
    symptom="RuntimeError as soon as there is a batch axis (and a deprecation warning before).",
    cause="`.T` turns all axes round; with a batch only the last two may change: `.mT`.",
    seen="source notes, 001:748, 001:1314, 004:147",
    chapter=1,
)
class TransposeAll(AttentionFormula):
    def scores(self, query, key):
        return query @ key.permute(*reversed(range(key.ndim)))  # what key.T does


@mistake(
    "keys ask and queries answer",
    rejected_by="RuntimeError",
    symptom="RuntimeError where L and S differ; in self-attention the scores are transposed.",
    cause="K Q^T in place of Q K^T.",
    chapter=1,
)
class KeysAsk(AttentionFormula):
    def scores(self, query, key):
        return key @ query.transpose(-2, -1)


@mistake(
    "no scale",
    rejected_by="the scale is 1/sqrt(d)",
    symptom="The weights are too sharp, the more so the larger the head.",
    cause="The scores are not divided by sqrt(d).",
    seen="source notes, 001:1347",
    chapter=3,
)
class NoScale(AttentionFormula):
    def scale(self, query):
        return 1.0


@mistake(
    "the scale of the model",
    rejected_by="the scale is 1/sqrt(d)",
    symptom="The weights are too flat: with 8 heads the scores are sqrt(8) times too small.",
    cause="1/sqrt(d_model), where d is the size of one head: d_model / heads.",
    seen="source notes, 001:1562",
    chapter=3,
)
class ScaleOfTheModel(AttentionFormula):
    def scale(self, query):
        heads = query.shape[1] if query.ndim == 4 else 1
        return (query.shape[-1] * heads) ** -0.5


@mistake(
    "heads divided twice",
    rejected_by="ZeroDivisionError",
    symptom="A scale of 0.354 where 0.125 is right; ZeroDivisionError when heads outnumber d.",
    cause="The head size is divided by the number of heads once more.",
    seen="source notes, 001:832",
    chapter=3,
)
class ScaleDividedTwice(AttentionFormula):
    def scale(self, query):
        heads = query.shape[1] if query.ndim == 4 else 1
        return (query.shape[-1] // heads) ** -0.5


@mistake(
    "softmax before the scale",
    rejected_by="weights are a distribution",
    symptom="The rows sum to 1/sqrt(d).",
    cause="The softmax is taken first and its result divided by sqrt(d).",
    seen="source notes, 001:1292",
    chapter=3,
)
class ScaleAfterSoftmax(AttentionFormula):
    def __call__(self, query, key, value, **options):
        given = options.pop("scale", None)
        scale = self.scale(query) if given is None else given
        return super().__call__(query, key, value, scale=1.0, **options) * scale


@mistake(
    "the truth of a tensor",
    rejected_by="RuntimeError",
    symptom="RuntimeError: the truth value of a tensor with more than one element is ambiguous.",
    cause="`if mask:` where `if mask is not None:` is meant.",
    seen="source notes, 001:644, 001:829",
)
class TruthOfATensor(AttentionFormula):
    def allowed(self, scores, mask, causal, window, key_lengths):
        if mask:
            scores = scores.masked_fill(~mask, -math.inf)
        return super().allowed(scores, mask, causal, window, key_lengths)


@mistake(
    "the mask inverted",
    rejected_by="the mask decides",
    symptom="What should be seen is hidden, what should be hidden is seen.",
    cause="One side reads True as 'may attend', the other as 'hide'. PyTorch itself has both: "
    "scaled_dot_product_attention keeps True, nn.MultiheadAttention hides it.",
    seen="source notes, 001:1010 against 001:1017; rasbt/LLMs-from-scratch issue 1061; "
    "pytorch pull requests 170415 and 120668 (notes in the documentation on the two meanings)",
)
class Inverted(AttentionFormula):
    def allowed(self, scores, mask, causal, window, key_lengths):
        mask = None if mask is None else ~mask
        return super().allowed(scores, mask, causal, window, key_lengths)


@mistake(
    "the result thrown away",
    rejected_by="the mask decides",
    symptom="The mask has no effect: the future leaks, and training looks brilliant.",
    cause="`scores.masked_fill(...)` returns a new tensor, which nobody keeps.",
    seen="source notes, 001:1581",
)
class ResultThrownAway(AttentionFormula):
    def weights(self, scores, allowed, mask):
        scores.masked_fill(~allowed, -math.inf)
        return scores.softmax(-1)


@mistake(
    "masked after the softmax",
    rejected_by="the allowed weights sum to 1",
    symptom="The weights of a masked row sum to less than 1, and hidden keys still set the total.",
    cause="The mask multiplies the weights; it must act on the scores, before the softmax.",
)
class MaskAfterSoftmax(AttentionFormula):
    def weights(self, scores, allowed, mask):
        return scores.softmax(-1) * allowed


@mistake(
    "a finite constant for hidden scores",
    rejected_by="RuntimeError",
    symptom="Overflow in float16; a fully masked row becomes the mean of what it must not see.",
    cause="-1e6 or -1e9 in place of -inf.",
    seen="source notes, 000:137 and 003:38; annotated-transformer, UvA notebooks and d2l",
)
class FiniteFill(AttentionFormula):
    def weights(self, scores, allowed, mask):
        return scores.masked_fill(~allowed, -1e6).softmax(-1)


@mistake(
    "the lowest number for hidden scores",
    rejected_by="a fully masked row is zero",
    symptom="No overflow, but a fully masked row is still the mean of what it must not see.",
    cause="torch.finfo(dtype).min in place of -inf: equal scores give equal weights.",
    seen="pytorch issue 103963; d2l pull request 2423",
)
class LowestFill(AttentionFormula):
    def weights(self, scores, allowed, mask):
        return scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(-1)


@mistake(
    "an empty row is NaN",
    rejected_by="a fully masked row is zero",
    symptom="One sample without keys turns its output, then the loss, then every weight into NaN.",
    cause="The softmax of nothing but -inf is 0/0.",
    seen="pytorch issue 103963",
)
class EmptyIsNaN(AttentionFormula):
    def weights(self, scores, allowed, mask):
        return scores.masked_fill(~allowed, -math.inf).softmax(-1)


@mistake(
    "an empty row cleared too late",
    rejected_by="a fully masked row has no gradient",
    symptom="The output is right, the first step of training turns the weights into NaN.",
    cause="-inf is added and the NaN replaced after the softmax; its derivative is NaN all the same.",
    seen="pytorch issue 103963",
)
class ClearedTooLate(AttentionFormula):
    def weights(self, scores, allowed, mask):
        penalty = torch.zeros_like(scores).masked_fill(~allowed, -math.inf)
        weights = (scores + penalty).softmax(-1)
        return weights.masked_fill(~allowed.any(-1, keepdim=True), 0.0)


@mistake(
    "the past hidden",
    rejected_by="the future stays hidden",
    symptom="Each token sees only its future; the last row is empty.",
    cause="`tril == 1` used as the places to hide.",
    seen="source notes, 001:1568",
)
class HidesThePast(AttentionFormula):
    def past(self, scores):
        hide = torch.ones(scores.shape[-2:]).tril() == 1
        return ~hide


@mistake(
    "aligned top-left",
    rejected_by="the future stays hidden",
    symptom="With a cache, one new query sees only key 0: fluent training, nonsense generation.",
    cause="tril of an (L, S) matrix starts at the top left; the last query must see all keys.",
    seen="pytorch issues 144858 and 108108 (is_causal); x-transformers issue 187; "
    "pytorch/executorch pull request 21749",
)
class TopLeft(AttentionFormula):
    def past(self, scores):
        return torch.ones(scores.shape[-2:], dtype=torch.bool).tril()


@mistake(
    "a token hidden from itself",
    rejected_by="the future stays hidden",
    symptom="The first row is empty, and no token sees its own place.",
    cause="The diagonal is cut off: j < i where j <= i is meant.",
)
class HidesItself(AttentionFormula):
    def past(self, scores):
        return self.back(scores) > 0


@mistake(
    "masked only in training",
    rejected_by="the future stays hidden",
    symptom="The validation loss is usually far above the training loss.",
    cause="The causal mask is made under `if self.training`.",
    seen="d2l-en, the Transformer chapter",
)
class OnlyInTraining(AttentionFormula):
    training = False  # as after model.eval()

    def past(self, scores):
        return super().past(scores) if self.training else torch.ones_like(scores, dtype=torch.bool)


@mistake(
    "no mask with a cache",
    rejected_by="the future stays hidden",
    symptom="Right token by token, wrong when several tokens are fed to the cache at once.",
    cause="The causal mask is left out whenever the cache holds something.",
    seen="Mikyx-1/TinyLLM issue 17; huggingface/candle pull request 3743",
)
class NoMaskWithCache(AttentionFormula):
    def past(self, scores):
        if scores.shape[-2] != scores.shape[-1]:  # "with a cache there is no future"
            return torch.ones_like(scores, dtype=torch.bool)
        return super().past(scores)


@mistake(
    "a window one too wide",
    rejected_by="the window decides",
    symptom="w + 1 keys where w are meant, so a cache of w keys gives other numbers.",
    cause="<= in place of <: the query's own key is one of the w.",
)
class WindowOneTooWide(AttentionFormula):
    def allowed(self, scores, mask, causal, window, key_lengths):
        window = None if window is None else window + 1
        return super().allowed(scores, mask, causal, window, key_lengths)


@mistake(
    "the lengths cut the queries",
    rejected_by="the lengths decide",
    symptom="Real tokens attend to padding, and padded queries become fully masked rows.",
    cause="The padding mask stands on the query axis.",
    seen="source notes, 001:1491 (arguments reversed)",
)
class LengthsOfQueries(AttentionFormula):
    def allowed(self, scores, mask, causal, window, key_lengths):
        allowed = super().allowed(scores, mask, causal, window, None)
        if key_lengths is None:
            return allowed
        inside = torch.arange(scores.shape[-2]) < key_lengths[:, None]
        return allowed & inside.view(len(inside), *[1] * (scores.ndim - 3), -1, 1)


@mistake(
    "groups repeated",
    rejected_by="query heads read their group's KV head",
    symptom="Right shapes, right sums; converted weights give nonsense.",
    cause="repeat gives heads 0 1 2 0 1 2; grouped-query attention needs repeat_interleave: 0 0 1 1 2 2.",
    seen="fkodom/grouped-query-attention-pytorch issue 5; onnx/onnx pull request 7274; "
    "ekzhang/jax-js pull request 180; apple/axlearn pull request 842",
)
class RepeatedGroups(AttentionFormula):
    def share(self, query, key, value):
        if query.ndim != 4:
            return key, value
        groups = query.shape[1] // key.shape[1]
        return key.repeat(1, groups, 1, 1), value.repeat(1, groups, 1, 1)


@mistake(
    "dropout is a number",
    rejected_by="TypeError",
    symptom="TypeError: 'float' object is not callable.",
    cause="The default dropout=0.1 is called as if it were nn.Dropout(0.1).",
    seen="source notes, 000:117",
)
class DropoutIsANumber(AttentionFormula):
    dropout = 0.1

    def weights(self, scores, allowed, mask):
        return self.dropout(super().weights(scores, allowed, mask))


@mistake(
    "the caller's query scaled",
    rejected_by="the inputs stay as they were",
    symptom="The second call with the same query gives another answer.",
    cause="An operation in place (mul_) on an argument.",
    chapter=3,
)
class InPlace(AttentionFormula):
    def scores(self, query, key):
        return query.mul_(self.scale(query)) @ key.transpose(-2, -1) / self.scale(query)


COMPARISON_WITHOUT_ASSERT = Mutant(
    "a comparison without assert",
    None,
    rejected_by="gallery only",
    symptom="The test is green whatever the code does.",
    cause="`torch.allclose(a, b)` as a statement, a loop over an empty list, a test that only "
    "logs. No judge can see it: it is a mistake in the judge.",
    seen="LLMs-from-scratch test_ch03; Transformer-Puzzles pull request 1; labml's flash test",
    chapter=1,
)
