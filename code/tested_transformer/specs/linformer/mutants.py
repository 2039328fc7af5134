"""The famous mistakes with Linformer: masks that come too late or mask nothing, and projections mixed up."""

from __future__ import annotations

import torch

from ..mistakes import Formula, mistake


class LinformerFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(
        self, query, key, value, key_projection, value_projection, *, key_mask=None, scale=None
    ):
        """Zero the padding, project, attend."""
        if key_mask is not None:
            key, value = self.unpadded(key, value, key_mask[:, None, :, None])
        value_projection = self.of_values(key_projection, value_projection)
        keys, values = key_projection @ key, value_projection @ value  # B H k d, B H k dv
        scores = query @ keys.mT * self.scale(query, keys, scale)  # B H L k
        return self.weights(scores, key_mask) @ values

    def unpadded(self, key, value, real):
        """Padding counts for nothing in the projected keys and values."""
        return key * real, value * real

    def of_values(self, key_projection, value_projection):
        """Values have a projection of their own."""
        return value_projection

    def scale(self, query, keys, scale):
        """By the head dimension."""
        return query.shape[-1] ** -0.5 if scale is None else scale

    def weights(self, scores, key_mask):
        """Every query reads all projected keys."""
        return scores.softmax(-1)


@mistake(
    "a causal mask over the projected keys",
    rejected_by="the queries are alike",
    symptom="The loss of a language model is too good to be true, and what it generates is not.",
    cause="Column c of the n x k scores is no token: every projected key may contain every token, the later "
    "ones included. A triangle over the columns hides nothing of the future.",
    seen="tatp22/linformer-pytorch issues 16 and 11",
    of="linformer_attention",
)
class CausalOverProjected(LinformerFormula):
    def weights(self, scores, key_mask):
        length, projected = scores.shape[-2:]
        future = torch.ones(length, projected, dtype=torch.bool).triu(1)
        return scores.masked_fill(future, -torch.inf).softmax(-1)


@mistake(
    "the padding mask is not used",
    rejected_by="padding does nothing",
    symptom="A text gets other outputs in a padded batch than alone.",
    cause="The layer takes a mask, and no line of it reads the mask.",
    seen="facebookresearch/pytext issue 1436",
    of="linformer_attention",
)
class MaskNotUsed(LinformerFormula):
    def unpadded(self, key, value, real):
        return key, value


@mistake(
    "the padding mask over the projected keys",
    rejected_by="padding does nothing",
    symptom="Padding still counts, and projected keys that are needed are masked.",
    cause="The first k entries of the mask are laid over the k projected keys, which are no tokens.",
    of="linformer_attention",
)
class MaskOverProjected(MaskNotUsed):
    def weights(self, scores, key_mask):
        if key_mask is None:
            return scores.softmax(-1)
        number = torch.arange(scores.shape[-1]).clamp(max=key_mask.shape[1] - 1)
        hidden = ~key_mask[:, None, None, number]  # the last entry stands for those that it lacks
        return scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)


@mistake(
    "padding is zeroed in the keys alone",
    rejected_by="padding does nothing",
    symptom="Other padding, other outputs, by a little.",
    cause="The values are projected along the sequence like the keys, and padding enters their sums as well.",
    of="linformer_attention",
)
class KeysAlone(LinformerFormula):
    def unpadded(self, key, value, real):
        return key * real, value


@mistake(
    "the keys' projection for the values",
    rejected_by="values have a projection of their own",
    symptom="The projection of the values gets no gradient.",
    cause="One matrix is applied to both. That is one of the paper's ways to share, and not this model.",
    of="linformer_attention",
)
class OneProjection(LinformerFormula):
    def of_values(self, key_projection, value_projection):
        return key_projection


@mistake(
    "scaled by the number of projected keys",
    rejected_by="the scale is that of the head dimension",
    symptom="Loaded weights give flatter or sharper attention than they were trained with.",
    cause="1 / sqrt(k) for 1 / sqrt(d): in the paper d_k is the head dimension, and k the projected length.",
    of="linformer_attention",
)
class ScaledByLength(LinformerFormula):
    def scale(self, query, keys, scale):
        return keys.shape[-2] ** -0.5 if scale is None else scale
