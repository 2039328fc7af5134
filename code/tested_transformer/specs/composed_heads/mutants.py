"""The famous mistakes with composed heads: a side too few, a transposed base, a mask too early."""

from __future__ import annotations

import torch

from ..mistakes import Formula, mistake


class ComposeFormula(Formula):
    """The right composition, cut into the branches that the mutants replace one at a time."""

    def __call__(
        self, scores, base, query_down, query_up, query_gate, key_down, key_up, key_gate
    ):  # fmt: skip
        """The base, two low ranks, two gates."""
        mixed = self.base(scores, base)
        mixed = mixed + self.low_rank(scores, query_down, query_up, "l")
        mixed = mixed + self.low_rank(scores, *self.key_side(key_down, key_up), "s")
        return mixed + scores * self.gates(query_gate.mT[..., :, None], key_gate.mT[..., None, :])

    def base(self, scores, base):
        """The same matrix for all pairs."""
        return torch.einsum("bmls,mn->bnls", scores, base)

    def key_side(self, down, up):
        """By the key's token."""
        return down, up

    def low_rank(self, scores, down, up, token):
        """(a . down) up, for each of the ranks."""
        read = torch.einsum(f"bmls,b{token}rm->brls", scores, down)
        return torch.einsum(f"brls,b{token}rn->bnls", read, up)

    def gates(self, query, key):
        """Both."""
        return query + key


@mistake(
    "the base transposed",
    rejected_by="the base mixes the heads of all pairs",
    symptom="Right for a new model, whose base is the identity, and wrong for a trained one.",
    cause="base[n, m] in place of base[m, n]: heads are a row vector here.",
    of="compose_heads",
)
class BaseTransposed(ComposeFormula):
    def base(self, scores, base):
        return super().base(scores, base.T)


@mistake(
    "no low rank of the keys",
    rejected_by="queries and keys do the same",
    symptom="The query-wise variant: faster, and not the model that was trained.",
    cause="Only the query's side mixes; a switch of the official code, `query_wise`, does so too.",
    seen="Caiyun-AI/DCFormer, pytorch/dcpythia/modeling_dcpythia.py",
    of="compose_heads",
)
class QueryWise(ComposeFormula):
    def key_side(self, down, up):
        return 0 * down, up


@mistake(
    "down and up exchanged",
    rejected_by="equals the reference",
    symptom="The wrong one of two low rank factors is normalized.",
    cause="What reads the heads writes them, and the other way around.",
    of="compose_heads",
)
class Exchanged(ComposeFormula):
    def low_rank(self, scores, down, up, token):
        return super().low_rank(scores, up, down, token)


@mistake(
    "a product of the two gates",
    rejected_by="gates act on their own head",
    symptom="One gate of 0 closes both.",
    cause="The branches are added up; gates of the query and of the key are two of them.",
    of="compose_heads",
)
class GatesMultiplied(ComposeFormula):
    def gates(self, query, key):
        return query * key


@mistake(
    "every rank reads every head alike",
    rejected_by="equals the reference",
    symptom="Right with rank 1.",
    cause="The ranks are summed before they are multiplied: (sum of down) times (sum of up).",
    of="compose_heads",
)
class RanksSummed(ComposeFormula):
    def low_rank(self, scores, down, up, token):
        return super().low_rank(scores, down.sum(2, keepdim=True), up.sum(2, keepdim=True), token)


# --- The attention --------------------------------------------------------------------------------


class ComposedFormula(Formula):
    """The right attention, cut into the steps that the mutants replace one at a time."""

    hidden = -torch.inf

    def __call__(self, query, key, value, before, after, *, causal=False):
        """Compose, mask, softmax, compose."""
        scores = query @ key.mT * query.shape[-1] ** -0.5
        scores = self.scores(scores, before, self.future(scores) if causal else None)
        return self.composed(scores.softmax(-1), after) @ value

    def future(self, scores):
        """True where a key comes later than the query."""
        length, keys = scores.shape[-2:]
        return torch.ones(length, keys, dtype=torch.bool).triu(1 + keys - length)

    def composed(self, scores, composition):
        """By the formula above."""
        base, query, key = composition
        return ComposeFormula()(scores, base, *query, *key)

    def scores(self, scores, before, future):
        """Composed first, masked second."""
        scores = self.composed(scores, before)
        return scores if future is None else scores.masked_fill(future, self.hidden)


def composed_plainly(**given):
    """The right formula, called with the arrays of a case."""
    names = (
        "base",
        *(f"{side}_{part}" for side in ("query", "key") for part in ("down", "up", "gate")),
    )
    compositions = []
    for where in ("before", "after"):
        base, *sides = (given.pop(f"{where}_{name}") for name in names)
        compositions.append((base, sides[:3], sides[3:]))
    return ComposedFormula()(
        given.pop("query"), given.pop("key"), given.pop("value"), *compositions, **given
    )


@mistake(
    "masked before the heads are composed",
    rejected_by="nothing flows back from the future",
    symptom="The loss falls to nothing in training, and the model cannot generate.",
    cause="-1e9 times a negative weight is a large score: the future gets all the attention. (-inf gives NaN.)",
    of="composed_attention",
)
class MaskedTooEarly(ComposedFormula):
    hidden = -1e9

    def scores(self, scores, before, future):
        filled = scores if future is None else scores.masked_fill(future, self.hidden)
        return self.composed(filled, before)


@mistake(
    "weights normalized after the composition",
    rejected_by="equals the reference",
    symptom="No head can take something off: that is what negative weights are for.",
    cause="The composed weights are divided by their sum, as if they were a softmax.",
    of="composed_attention",
)
class NormalizedAgain(ComposedFormula):
    def __call__(self, query, key, value, before, after, *, causal=False):
        ones = torch.cat((value, torch.ones_like(value[..., :1])), -1)
        found = super().__call__(query, key, ones, before, after, causal=causal)
        return found[..., :-1] / found[..., -1:]


@mistake(
    "composed before the softmax alone",
    rejected_by="equals the reference",
    symptom="Half of the mechanism: heads share where they attend, not what they return.",
    cause="The second composition, on the weights, is left out.",
    of="composed_attention",
)
class BeforeAlone(ComposedFormula):
    def __call__(self, query, key, value, before, after, *, causal=False):
        scores = query @ key.mT * query.shape[-1] ** -0.5
        scores = self.scores(scores, before, self.future(scores) if causal else None)
        return scores.softmax(-1) @ value + 0 * self.composed(scores.softmax(-1), after) @ value


@mistake(
    "unscaled scores are composed",
    rejected_by="with nothing composed it is multi-head attention",
    symptom="Attention that is too sharp where it was trained with the scale.",
    cause="1 / sqrt(d) is left out in front of the composition.",
    of="composed_attention",
)
class Unscaled(ComposedFormula):
    def __call__(self, query, key, value, before, after, *, causal=False):
        query = query * query.shape[-1] ** 0.5
        return super().__call__(query, key, value, before, after, causal=causal)
