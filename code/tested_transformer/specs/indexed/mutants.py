"""The famous mistakes with DeepSeek sparse attention: what is scored, what may be selected, what is learned."""

from __future__ import annotations

import torch
from torch.nn import functional

from ...positions.rotary import apply_rotary
from ..mistakes import Formula, mistake

# --- Attention over the keys that an indexer selects ----------------------------------------------


class IndexedFormula(Formula):
    """The right formula under a mask, cut into the steps that the mutants replace one at a time."""

    def __call__(
        self, query, key, value, index_query, index_key, index_weights, *, num_keys, causal=True,
        key_mask=None, mask=None, scale=None, chunk_size=None,
    ):  # fmt: skip
        """Score, select, attend to what is selected."""
        allowed = self.allowed(query, key, causal, key_mask, mask)
        scores = self.scores(index_query, index_key, index_weights)  # B 1 L S
        selected = self.selected(scores, allowed, num_keys)
        repeats = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(repeats, 1) for each in (key, value))
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return self.weights(query @ key.mT * scale, selected) @ value

    def allowed(self, query, key, causal, key_mask, mask):
        """The keys that may be read: (B, 1, L, S)."""
        length, total = query.shape[2], key.shape[2]
        allowed = torch.ones(length, total, dtype=torch.bool)
        allowed = self.past(allowed) if causal else allowed
        allowed = allowed.expand(len(query), 1, length, total)
        if key_mask is not None:
            allowed = allowed & key_mask[:, None, None]
        return allowed if mask is None else allowed & mask[:, None]

    def past(self, allowed):
        """No key after the query, aligned at the last of both."""
        return allowed.tril(allowed.shape[1] - allowed.shape[0])

    def matches(self, dots):
        """How well a key matches, head by head."""
        return dots.relu()

    def scores(self, query, key, weights):
        """The indexer's score: (B, 1, L, S)."""
        matches = self.matches(query @ key[:, None].mT)
        return (weights[..., None] * matches).sum(1, keepdim=True)

    def selected(self, scores, allowed, num_keys):
        """The keys that are read."""
        return best(scores.masked_fill(~allowed, -torch.inf), num_keys) & allowed

    def weights(self, scores, selected):
        """The attention weights: a softmax over the selected keys, zeros where there is none."""
        weights = scores.masked_fill(~selected, -torch.inf).softmax(-1)
        return weights.masked_fill(~selected.any(-1, keepdim=True), 0.0)


def best(scores, num_keys):
    """True at the largest scores of each query."""
    indices = scores.topk(min(num_keys, scores.shape[-1]), -1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, indices, True)


@mistake(
    "no mask in the indexer or after it",
    rejected_by="a token does not depend on later ones",
    symptom="The loss falls below what is possible, and generated text does not show why.",
    cause="What is selected is what is read: the indexer's scores of later tokens are not masked.",
    seen="huggingface/transformers issue 45820: the indexer of DeepSeek-V4, which selects compressed blocks",
    of="indexed_attention",
)
class Leak(IndexedFormula):
    def past(self, allowed):
        return torch.ones_like(allowed)


@mistake(
    "the best keys before the causal mask",
    rejected_by="a query reads num_keys of the keys that it may read",
    symptom="Early tokens read far fewer keys than num_keys, some of them none.",
    cause="The top k are taken among all keys, the later ones are masked afterwards, and nobody takes their "
    "place.",
    of="indexed_attention",
)
class SelectThenMask(IndexedFormula):
    def selected(self, scores, allowed, num_keys):
        real = allowed.any(2, keepdim=True)  # keys that some query may read
        return best(scores.masked_fill(~real, -torch.inf), num_keys) & allowed


@mistake(
    "a boolean mask is added to the scores",
    rejected_by="padding changes nothing",
    symptom="With padding on the left and a sequence longer than num_keys the text is garbage, and only with the "
    "kernel that makes boolean masks.",
    cause="Scores plus a boolean mask: a permitted key gets 1 more, a masked one is not excluded.",
    seen="huggingface/transformers PR 48363",
    of="indexed_attention",
)
class AddsBooleanMask(IndexedFormula):
    def selected(self, scores, allowed, num_keys):
        return best(scores + allowed, num_keys) & allowed


@mistake(
    "padding is selected",
    rejected_by="padding changes nothing",
    symptom="An example's answer depends on how long its neighbors in the batch are.",
    cause="The padding mask is given to the attention and not to the indexer.",
    seen="huggingface/transformers PR 48363",
    of="indexed_attention",
)
class SelectsPadding(IndexedFormula):
    def __call__(self, query, key, *others, key_mask=None, **options):
        """The keys are real to the indexer, and only to it."""
        real = self.allowed(query, key, False, key_mask, None)
        return HiddenAfterwards(real)(query, key, *others, **options)


class HiddenAfterwards(IndexedFormula):
    """Selects among all keys, then masks those that are not real."""

    def __init__(self, real):
        self.real = real

    def selected(self, scores, allowed, num_keys):
        return super().selected(scores, allowed, num_keys) & self.real


@mistake(
    "the ReLU is forgotten",
    rejected_by="a negative match counts as none",
    symptom="Generated text repeats itself as soon as the context is longer than num_keys.",
    cause="Negative dot products take from the score, and with a negative weight they add to it.",
    seen="ml-explore/mlx-lm PR 531",
    of="indexed_attention",
)
class NoReLU(IndexedFormula):
    def matches(self, dots):
        return dots


@mistake(
    "each head selects keys of its own",
    rejected_by="all heads read the same keys",
    symptom="Repetitive text in long contexts, and a gather for every head where one would do.",
    cause="The indexer's scores are not summed over its heads: head h of the attention takes the best keys of "
    "one of the indexer's.",
    seen="ml-explore/mlx-lm PR 531",
    of="indexed_attention",
)
class KeysPerHead(IndexedFormula):
    def scores(self, query, key, weights):
        return weights[..., None] * self.matches(query @ key[:, None].mT)  # B I L S

    def weights(self, scores, selected):
        heads = torch.arange(scores.shape[1]) % selected.shape[1]
        return super().weights(scores, selected[:, heads])


@mistake(
    "the weights of the heads are made positive",
    rejected_by="a head with a negative weight votes against a key",
    symptom="Wrong keys are selected, most of all where heads disagree.",
    cause="A softmax over the heads, as in a router, where the weights are plain numbers of both signs.",
    of="indexed_attention",
)
class SoftmaxWeights(IndexedFormula):
    def scores(self, query, key, weights):
        return super().scores(query, key, weights.softmax(1))


@mistake(
    "keys that are not selected get a score of 0",
    rejected_by="only the selected keys have a weight",
    symptom="The output is pulled toward the mean of all values, more so the longer the context.",
    cause="The scores are multiplied by the mask before the softmax, where exp(0) = 1 and not 0.",
    of="indexed_attention",
)
class ZeroScores(IndexedFormula):
    def weights(self, scores, selected):
        weights = (scores * selected).softmax(-1)
        return weights.masked_fill(~selected.any(-1, keepdim=True), 0.0)


@mistake(
    "num_keys must not be more than there are keys",
    rejected_by="RuntimeError",
    symptom="Every text shorter than num_keys is an error: the first token of a generation already is.",
    cause="topk is asked for num_keys keys, however many there are.",
    of="indexed_attention",
)
class TooManyKeys(IndexedFormula):
    def selected(self, scores, allowed, num_keys):
        indices = scores.masked_fill(~allowed, -torch.inf).topk(num_keys, -1).indices
        return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, indices, True) & allowed


@mistake(
    "the causal mask is aligned top-left",
    rejected_by="the last query may read every key",
    symptom="Right without a cache; with one, new tokens read only the oldest keys.",
    cause="Query i may read the keys 0 to i, where its position is i + S - L.",
    of="indexed_attention",
)
class TopLeft(IndexedFormula):
    def past(self, allowed):
        return allowed.tril()


@mistake(
    "the mean of all values where there is no key",
    rejected_by="a query that may read no key gets zeros",
    symptom="Rows of padding have outputs, and their gradients reach real weights.",
    cause="The most negative finite number in place of -inf: a softmax over equal numbers is uniform.",
    of="indexed_attention",
)
class FiniteMask(IndexedFormula):
    def weights(self, scores, selected):
        return scores.masked_fill(~selected, torch.finfo(scores.dtype).min).softmax(-1)


# --- The indexer of DeepSeek-V3.2 -----------------------------------------------------------------


class IndexerFormula(Formula):
    """Rotate, score, select, cut into the steps that the mutants replace."""

    def __call__(self, query, key, weights, *, num_keys, rotary_dim, base=10000.0):
        """True where a key is selected."""
        query, key = (
            self.rotated(each, torch.arange(key.shape[1]), rotary_dim, base)
            for each in (query, key[:, None])
        )
        matches = (query @ key.mT).relu()  # B I L L
        scores = (weights[..., None] * matches).sum(1)
        past = torch.ones_like(scores, dtype=torch.bool).tril()
        return best(scores.masked_fill(~past, -torch.inf), num_keys) & past

    def rotated(self, x, ids, rotary_dim, base):
        """The first features turned by the position."""
        return apply_rotary(x, ids, layout="halves", rotary_dim=rotary_dim, base=base)


@mistake(
    "the indexer rotates neighboring features",
    rejected_by="feature i is rotated with feature i + rotary_dim / 2",
    symptom="Nothing shows while num_keys covers the text; beyond it the wrong keys are read. SGLang measured "
    "0.931 in place of 0.955 on GSM8K.",
    cause="The layout of the attention beside it, interleaved, where the weights of this indexer were trained with "
    "halves.",
    seen="deepseek-ai/DeepSeek-V3.2-Exp until commit 8631a81; sgl-project/sglang PR 30342; ml-explore/mlx-lm PR "
    "512. GLM's indexer is interleaved: huggingface/transformers PR 46842",
    of="lightning_indexer",
)
class InterleavedIndexer(IndexerFormula):
    def rotated(self, x, ids, rotary_dim, base):
        return apply_rotary(x, ids, layout="interleaved", rotary_dim=rotary_dim, base=base)


@mistake(
    "the indexer rotates nothing",
    rejected_by="an indexer's score knows the distance",
    symptom="Nothing shows while num_keys covers the text; beyond it near and far keys look alike.",
    cause="The queries and keys of the indexer are used as the linear layers make them.",
    seen="d9d-project/d9d PR 38, a review",
    of="lightning_indexer",
)
class NoRotation(IndexerFormula):
    def rotated(self, x, ids, rotary_dim, base):
        return x


@mistake(
    "the last features are rotated",
    rejected_by="the features after the first rotary_dim stay",
    symptom="Loaded weights select other keys.",
    cause="In the attention the rotary part of a query comes last, in the indexer it comes first.",
    of="lightning_indexer",
)
class RotatesLast(IndexerFormula):
    def rotated(self, x, ids, rotary_dim, base):
        rest, last = x.split((x.shape[-1] - rotary_dim, rotary_dim), -1)
        return torch.cat((rest, apply_rotary(last, ids, layout="halves", base=base)), -1)


# --- How the indexer is trained -------------------------------------------------------------------


class LossFormula(Formula):
    """The right loss, cut into the steps that the mutants replace."""

    def __call__(self, scores, attention_weights, *, mask=None):
        """The mean over queries of KL(p || q)."""
        if mask is None:
            mask = torch.ones_like(scores, dtype=torch.bool)
        target = self.summed(attention_weights) * mask  # B L S
        counts = target.sum(-1) > 0
        target, logs = target[counts], self.log_softmax(scores, mask)[counts]
        return self.divergence(self.normalized(target), logs)

    def summed(self, weights):
        """What the heads attend to, together, as numbers without a gradient."""
        return weights.detach().sum(1)

    def normalized(self, target):
        """A distribution over the keys."""
        return target / target.sum(-1, keepdim=True)

    def log_softmax(self, scores, mask):
        """Of the keys of the mask."""
        mask = mask.expand_as(scores) | ~mask.any(-1, keepdim=True)
        return scores.masked_fill(~mask, -torch.inf).log_softmax(-1)

    def divergence(self, target, logs):
        """From the target to the softmax."""
        logs = logs.masked_fill(target == 0, 0.0)
        return functional.kl_div(logs, target, reduction="sum") / max(len(target), 1)


@mistake(
    "the heads' weights are not normalized",
    rejected_by="equal distributions have a loss of 0",
    symptom="The loss cannot reach 0, and grows with the number of heads.",
    cause="The sum over H heads sums to H over the keys, not to 1.",
    of="indexer_loss",
)
class NotNormalized(LossFormula):
    def normalized(self, target):
        return target


@mistake(
    "the divergence the other way around",
    rejected_by="a key that the heads do not attend to costs little",
    symptom="The indexer learns one of the keys that the heads attend to and drops the others.",
    cause="KL(q || p) in place of KL(p || q).",
    of="indexer_loss",
)
class Reversed(LossFormula):
    def divergence(self, target, logs):
        terms = logs.exp() * (logs - target.clamp_min(1e-30).log())
        return terms.masked_fill(logs.exp() == 0, 0.0).sum() / max(len(target), 1)


@mistake(
    "the loss reaches the attention",
    rejected_by="the gradients are right",
    symptom="The attention learns to be easy to predict, at the cost of the language model.",
    cause="The attention weights are not detached.",
    of="indexer_loss",
)
class NotDetached(LossFormula):
    def summed(self, weights):
        return weights.sum(1)


@mistake(
    "a softmax over all keys",
    rejected_by="keys outside the mask change nothing",
    symptom="In the sparse stage the loss cannot reach 0: keys that were not selected have a part of q.",
    cause="The mask is applied to the target alone.",
    of="indexer_loss",
)
class SoftmaxOverAll(LossFormula):
    def log_softmax(self, scores, mask):
        return scores.log_softmax(-1)


@mistake(
    "0 times the logarithm of 0",
    rejected_by="finite where an attention weight is 0",
    symptom="NaN at the first step: under a causal mask most weights are 0.",
    cause="p log p is written out, and is NaN at p = 0.",
    of="indexer_loss",
)
class LogOfZero(LossFormula):
    def divergence(self, target, logs):
        return (target * (target.log() - logs)).sum() / max(len(target), 1)
