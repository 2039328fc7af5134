"""The famous mistakes in multi-head attention: the right formula with one step gone wrong."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from ..mistakes import Formula, mistake


class HeadsFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, x, w_query, w_key, w_value, w_output, num_heads, *, context=None, mask=None,
                 causal=False, num_kv_heads=None):  # fmt: skip
        """Project, split, attend, join, mix."""
        context = x if context is None else context
        query, key, value = self.project(x, context, w_query, w_key, w_value)
        groups = num_heads if num_kv_heads is None else num_kv_heads
        query, key, value = (
            self.split(*pair) for pair in ((query, num_heads), (key, groups), (value, groups))
        )
        key, value = (t.repeat_interleave(num_heads // groups, dim=1) for t in (key, value))
        scores = query @ key.transpose(-2, -1) * self.scale(query, num_heads)
        weights = self.weights(scores, self.allowed(scores, mask, causal))
        return self.output(self.join(weights @ value), w_output)

    def project(self, x, context, w_query, w_key, w_value):
        """x asks, the context answers."""
        return x @ w_query, context @ w_key, context @ w_value

    def split(self, x, num_heads):
        """(B, L, D) -> (B, H, L, d): cut the width, then turn."""
        return x.reshape(*x.shape[:2], num_heads, -1).transpose(1, 2)

    def scale(self, query, num_heads):
        """1/sqrt(d), d being the width of a head."""
        return query.shape[-1] ** -0.5

    def allowed(self, scores, mask, causal):
        """Who may attend to whom."""
        allowed = torch.ones_like(scores, dtype=torch.bool)
        if causal:
            allowed = allowed.tril(scores.shape[-1] - scores.shape[-2])
        return allowed if mask is None else allowed & mask

    def weights(self, scores, allowed):
        """Softmax over the allowed keys; a fully masked row gives zeros."""
        empty = ~allowed.any(-1, keepdim=True)
        filled = scores.masked_fill(~allowed, -math.inf).masked_fill(empty, 0.0)
        return filled.softmax(-1).masked_fill(empty, 0.0)

    def join(self, heads):
        """(B, H, L, d) -> (B, L, D): turn back, then join."""
        return heads.transpose(1, 2).flatten(2)

    def output(self, joined, w_output):
        """Mix the heads."""
        return joined @ w_output


@mistake(
    "heads cut straight",
    rejected_by="a head is blind to the others",
    symptom="Copy and reverse train to 100 %; with a mask, padding and the future leak.",
    cause="reshape(B, H, L, d) in place of reshape(B, L, H, d).transpose(1, 2).",
)
class CutStraight(HeadsFormula):
    def split(self, x, num_heads):
        return x.reshape(x.shape[0], num_heads, x.shape[1], -1)


@mistake(
    "heads joined straight",
    rejected_by="a head is blind to the others",
    symptom="Copy and reverse train to 100 %; each output mixes places that depend on the length.",
    cause="The axes (B, H, L, d) are joined without turning back to (B, L, H, d).",
    seen="meta-pytorch/opacus pull request 825",
)
class JoinedStraight(HeadsFormula):
    def join(self, heads):
        return heads.reshape(heads.shape[0], heads.shape[2], -1)


@mistake(
    "heads split and joined by view",
    rejected_by="every token reaches every token",
    symptom="Copying trains to 100 %. A token sees only its own block of the sequence, one of H.",
    cause="view(B H, L, d) with no transpose: a head gets whole tokens, not a part of each.",
    seen="source notes, 001:826",
)
class Views(CutStraight, JoinedStraight):
    """Neither the way there nor the way back turns the axes."""


@mistake(
    "heads cut across the batch",
    rejected_by="every token reaches every token",
    symptom="As above; and padding masks hide tokens of other samples.",
    cause="reshape(-1, B, L, d) puts the heads first without a transpose.",
    seen="source notes, 001:1342, 001:1573",
)
class AcrossTheBatch(JoinedStraight):
    def __call__(self, x, w_query, w_key, w_value, w_output, num_heads, *, context=None, mask=None,
                 causal=False):  # fmt: skip
        """Without groups, as in the notes."""
        options = {"context": context, "mask": mask, "causal": causal}
        return super().__call__(x, w_query, w_key, w_value, w_output, num_heads, **options)

    def split(self, x, num_heads):
        return x.reshape(num_heads, *x.shape[:2], -1)

    def allowed(self, scores, mask, causal):
        per_sample = mask is not None and mask.ndim == 4
        return super().allowed(scores, mask.transpose(0, 1) if per_sample else mask, causal)

    def join(self, heads):
        return heads.reshape(heads.shape[1], heads.shape[2], -1)


@mistake(
    "every H-th number",
    rejected_by="a head is blind to the others",
    symptom="Trains well, but weights copied from any other library give nonsense.",
    cause="view(B, L, d, H) where (B, L, H, d) is meant: a head takes every H-th column.",
    seen="source notes, 001:1369",
)
class EveryHthNumber(HeadsFormula):
    def split(self, x, num_heads):
        return x.unflatten(-1, (-1, num_heads)).permute(0, 3, 1, 2)

    def join(self, heads):
        return heads.permute(0, 2, 3, 1).flatten(2)


@mistake(
    "heads never split",
    rejected_by="a head is blind to the others",
    symptom="Right shapes, right sums, and one pattern of weights, whatever num_heads says.",
    cause="num_heads is stored and not used.",
)
class NeverSplit(HeadsFormula):
    def __call__(self, x, w_query, w_key, w_value, w_output, num_heads, *, context=None, mask=None,
                 causal=False):  # fmt: skip
        """One head of the whole width."""
        mask = mask[:, :1] if mask is not None and mask.ndim == 4 else mask
        options = {"context": context, "mask": mask, "causal": causal}
        return super().__call__(x, w_query, w_key, w_value, w_output, 1, **options)


@mistake(
    "softmax over the heads",
    rejected_by="a head is blind to the others",
    symptom="Heads compete for each pair of tokens; a row sums to anything.",
    cause="softmax(dim=1), right for (B, S), on scores (B, H, L, S): dim=-1.",
)
class SoftmaxOverHeads(HeadsFormula):
    def weights(self, scores, allowed):
        return scores.softmax(1) * allowed


@mistake(
    "the mask repeated head-major",
    rejected_by="padding changes nothing",
    symptom="Right for one sample; in a batch, samples get each other's padding.",
    cause="mask.repeat(H, 1, 1) gives samples 0 1 0 1; (B H) wants 0 0 1 1.",
    seen="source notes, 001:830",
)
class HeadMajorMask(HeadsFormula):
    def allowed(self, scores, mask, causal):
        if mask is not None and mask.ndim == 4 and mask.shape[1] == 1:
            heads = scores.shape[1]
            mask = mask[:, 0].repeat(heads, 1, 1).unflatten(0, (-1, heads))
        return super().allowed(scores, mask, causal)


@mistake(
    "keys ask in every head",
    rejected_by="rows ask, columns answer",
    symptom="Rows still sum to 1; with another number of keys than queries the shapes do not fit.",
    cause="K Q^T in place of Q K^T.",
)
class KeysAsk(HeadsFormula):
    def __call__(self, x, w_query, w_key, w_value, w_output, num_heads, *, mask=None, causal=False):
        """For self-attention, where it goes unnoticed."""
        options = {"mask": mask, "causal": causal}
        return super().__call__(x, w_key, w_query, w_value, w_output, num_heads, **options)


@mistake(
    "True hides, as in torch's module",
    rejected_by="the mask decides",
    symptom="The words are hidden and the padding is read.",
    cause="nn.MultiheadAttention's polarity in a function where True means may attend.",
    seen="rasbt/LLMs-from-scratch issue 1061",
)
class TrueHides(HeadsFormula):
    def allowed(self, scores, mask, causal):
        return super().allowed(scores, None if mask is None else ~mask, causal)


@mistake(
    "the head divided by the heads",
    rejected_by="ZeroDivisionError",
    symptom="0.354 where 0.125 is right (d = 64, H = 8); with d < H it raises.",
    cause="(d // H)^-0.5, where d is already the width of a head.",
    seen="source notes, 001:832",
)
class DividedAgain(HeadsFormula):
    def scale(self, query, num_heads):
        return (query.shape[-1] // num_heads) ** -0.5


@mistake(
    "the scale of the whole width",
    rejected_by="each head has its own scale",
    symptom="Weights flatter than they should be, more so with more heads.",
    cause="1/sqrt(D) where the scores sum d = D / H products: 1/sqrt(d).",
    seen="source notes, 001:1562",
)
class WholeWidth(HeadsFormula):
    def scale(self, query, num_heads):
        return (query.shape[-1] * num_heads) ** -0.5


@mistake(
    "the scale computed and not used",
    rejected_by="each head has its own scale",
    symptom="Weights sharper than they should be; training saturates.",
    cause="The factor is stored in __init__ and missing in forward.",
    seen="source notes, 001:1347",
)
class NeverUsed(HeadsFormula):
    def scale(self, query, num_heads):
        return 1.0


@mistake(
    "keys from the asking side",
    rejected_by="RuntimeError",
    symptom="Fails unless both sequences are equally long; then weights ignore the context.",
    cause="Cross-attention with Q and K from the decoder: K and V belong to the context.",
    seen="source notes, 001:1573, 001:1637",
)
class AsksAndAnswersItself(HeadsFormula):
    def project(self, x, context, w_query, w_key, w_value):
        return x @ w_query, x @ w_key, context @ w_value


@mistake(
    "no output layer",
    rejected_by="the output layer mixes the heads",
    symptom="Head h can write to its own d columns only; a quarter of the parameters idles.",
    cause="Concat(heads) is returned without W_O.",
    seen="source notes, 001:1325",
)
class NoOutputLayer(HeadsFormula):
    def output(self, joined, w_output):
        return joined


@mistake(
    "batch_first forgotten",
    rejected_by="a sample sees only itself",
    symptom="No error; each token attends to the same place in the other samples.",
    cause="nn.MultiheadAttention expects (L, B, D) unless batch_first=True.",
    seen="om-ai-lab/OmDet issue 19",
)
class OverTheBatch(HeadsFormula):
    def __call__(self, x, w_query, w_key, w_value, w_output, num_heads, mask=None):
        """As if the first axis were the length; a mask of the batch has no place there."""
        turned = super().__call__(x.transpose(0, 1), w_query, w_key, w_value, w_output, num_heads)
        return turned.transpose(0, 1)


class Layers(nn.Module):
    """The right module: four layers, and the formula."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.query, self.key, self.value, self.output = self.make(d_model)
        self.num_heads = num_heads

    def make(self, d_model):
        """Four layers, each with random numbers of its own."""
        return [nn.Linear(d_model, d_model, bias=False) for _ in range(4)]

    def forward(self, x, context=None, *, mask=None, causal=False):
        layers = (self.query, self.key, self.value, self.output)
        matrices = [layer.weight.T for layer in layers]
        options = {"context": context, "mask": mask, "causal": causal}
        return HeadsFormula()(x, *matrices, self.num_heads, **options)


@mistake(
    "layers copied from one layer",
    rejected_by="the layers start apart",
    symptom="At the start every head's scores are symmetric and tokens look at themselves.",
    cause="copy.deepcopy copies the random numbers, and nothing initializes the copies again.",
    seen="source notes, 001:1366, 000:64",
)
class CopiedLayers(Layers):
    def make(self, d_model):
        layer = nn.Linear(d_model, d_model, bias=False)
        return [copy.deepcopy(layer) for _ in range(4)]


@mistake(
    "the context never read",
    rejected_by="the context answers",
    symptom="A translator that ignores the source: fluent, and about nothing.",
    cause="Self-attention where cross-attention belongs.",
)
class ContextUnread(Layers):
    def forward(self, x, context=None, *, mask=None, causal=False):
        return super().forward(x, mask=mask if context is None else None, causal=causal)
