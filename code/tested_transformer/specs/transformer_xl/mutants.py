"""The famous mistakes with Transformer-XL: distances of other rows, a memory that is off by one, a gradient too many."""

from __future__ import annotations

import torch
from torch.nn import functional

from ..masks.spec import textbook as masked_softmax
from ..mistakes import Formula, mistake

# --- The relative shift ---------------------------------------------------------------------------


class ShiftFormula(Formula):
    """The right formula, by looking each entry up."""

    def __call__(self, by_distance, num_keys):
        """Each row at the columns of its distances, 0 where there are none."""
        length, columns = by_distance.shape[-2:]
        place = self.columns(length, num_keys)
        known = (place >= 0) & (place < columns)
        index = place.clamp(0, max(columns - 1, 0)).expand(*by_distance.shape[:-1], num_keys)
        return torch.where(known, by_distance.gather(-1, index), 0.0)

    def columns(self, length, num_keys):
        """Row i, column j: the column of their distance."""
        return torch.arange(num_keys) + length - 1 - torch.arange(length)[:, None]


def slipped(by_distance, num_keys, *, left, first):
    """Pad a column on one side, read the flat tensor row by row, drop entries on one side."""
    length, columns = by_distance.shape[-2:]
    padded = functional.pad(by_distance, (1, 0) if left else (0, 1)).flatten(-2)
    kept = padded[..., length:] if first else padded[..., : length * columns]
    return kept.unflatten(-1, (length, columns))[..., :num_keys]


def no_future(shifted, by_distance, num_keys):
    """0 where the causal form has no column."""
    alike = by_distance.shape[-1] == num_keys
    return shifted.tril(num_keys - by_distance.shape[-2]) if alike else shifted


@mistake(
    "the wrong end is kept",
    rejected_by="a query reads its own row",
    symptom="The shapes are right, and each query has the scores of other queries' distances.",
    cause="After the reshape the last row is dropped where it should be the first, which holds the padding.",
    seen="labmlai/annotated_deep_learning_paper_implementations issue 185",
    of="relative_shift",
)
def wrong_end(by_distance, num_keys):
    return no_future(slipped(by_distance, num_keys, left=True, first=False), by_distance, num_keys)


@mistake(
    "the causal shift in both directions",
    rejected_by="a query reads its own row",
    symptom="An encoder of speech trains, a little worse; later frames get distances from other rows.",
    cause="Only distances to the past are encoded, and the upper triangle, which a causal mask would cover, "
    "is read all the same: there the next row has slipped in.",
    seen="espnet/espnet pull request 2816; ZhengkunTian/OpenTransformer pull request 28",
    of="relative_shift",
)
def other_rows(by_distance, num_keys):
    return slipped(by_distance, num_keys, left=True, first=True)


@mistake(
    "the padding is on the right",
    rejected_by="the distance of a pair is its own",
    symptom="Every query takes itself for its neighbor.",
    cause="The column of zeros is appended, not put in front: all distances are off by one.",
    of="relative_shift",
)
class PaddedRight(ShiftFormula):
    def columns(self, length, num_keys):
        return super().columns(length, num_keys) + 1


@mistake(
    "the memory does not count",
    rejected_by="the distance of a pair is its own",
    symptom="Right without a memory; with one, the first slot of the memory is taken for the present.",
    cause="Distances are i - j, where j counts from the beginning of the memory and i from that of the segment: they "
    "must be shifted by the memory's length.",
    seen="lucidrains/x-transformers pull request 103",
    of="relative_shift",
)
class MemoryNotCounted(ShiftFormula):
    def columns(self, length, num_keys):
        return super().columns(length, num_keys) + num_keys - length


@mistake(
    "no shift",
    rejected_by="the distance of a pair is its own",
    symptom="Only the last query is right.",
    cause="The scores by distance are added to those by key as they are.",
    of="relative_shift",
)
class NoShift(ShiftFormula):
    def columns(self, length, num_keys):
        return torch.arange(num_keys).expand(length, -1)


@mistake(
    "the distances rise from left to right",
    rejected_by="the distance of a pair is its own",
    symptom="Far keys get the scores of near ones.",
    cause="The encodings begin with the smallest distance, and the shift expects the largest.",
    of="relative_shift",
)
def rising(by_distance, num_keys):
    return ShiftFormula()(by_distance.flip(-1), num_keys)


# --- Its attention --------------------------------------------------------------------------------


class AttentionFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(
        self, query, key, value, position_key, content_bias, position_bias, *, mask=None,
        causal=False, window=None,
    ):  # fmt: skip
        """Both terms of the scores, what may be attended to, the weighted sum of the values."""
        u, v = self.biases(content_bias[:, None], position_bias[:, None])
        num_keys = key.shape[2]
        position = ShiftFormula()((query + v) @ self.encodings(position_key).mT, num_keys)
        scores = self.content(query, u, key) * self.scale(query) + position * self.position_scale(
            query
        )
        allowed = self.allowed(*scores.shape[2:], causal, window)
        allowed = allowed if mask is None else allowed & mask
        return masked_softmax(scores, allowed.expand(scores.shape)) @ value

    def biases(self, u, v):
        """The bias of the content term and that of the position term."""
        return u, v

    def encodings(self, position_key):
        """The keys of the distances."""
        return position_key

    def content(self, query, u, key):
        """The content term."""
        return (query + u) @ key.mT

    def scale(self, query):
        """Of the content term."""
        return query.shape[-1] ** -0.5

    def position_scale(self, query):
        """Of the position term."""
        return query.shape[-1] ** -0.5

    def allowed(self, length, num_keys, causal, window):
        """What each query may attend to."""
        back = self.back(length, num_keys)
        past = back >= 0 if causal else torch.ones_like(back, dtype=torch.bool)
        return past if window is None else past & (back.abs() < self.window(window))

    def back(self, length, num_keys):
        """How many tokens key j is before query i."""
        return torch.arange(length)[:, None] + num_keys - length - torch.arange(num_keys)

    def window(self, window):
        """How many keys a query attends to in a window."""
        return window


@mistake(
    "one bias for both terms",
    rejected_by="each term has a bias of its own",
    symptom="A loaded model gives other numbers; trained from the beginning, it is only a little worse.",
    cause="u, which is for the content, is added to the query once for both terms; v gets no gradient.",
    of="transformer_xl_attention",
)
class OneBias(AttentionFormula):
    def biases(self, u, v):
        return u, u


@mistake(
    "u and v are exchanged",
    rejected_by="each term has a bias of its own",
    symptom="A loaded model gives other numbers.",
    cause="The bias of the content is added in the position term, and the other way round.",
    of="transformer_xl_attention",
)
class Exchanged(AttentionFormula):
    def biases(self, u, v):
        return v, u


@mistake(
    "the content bias is added to the key",
    rejected_by="each term has a bias of its own",
    symptom="u changes nothing: the same number is added to all scores of a query.",
    cause="q . (k + u) has q . u in the score of every key, and the softmax does not see it.",
    of="transformer_xl_attention",
)
class BiasOfKey(AttentionFormula):
    def content(self, query, u, key):
        return query @ (key + u).mT


@mistake(
    "the position term is not scaled",
    rejected_by="both terms are scaled",
    symptom="The larger the heads, the more distances count, and the less the words.",
    cause="The content term alone is divided by sqrt(d).",
    of="transformer_xl_attention",
)
class PositionNotScaled(AttentionFormula):
    def position_scale(self, query):
        return 1.0


@mistake(
    "the first memory slot is never seen",
    rejected_by="a query reaches as far back as it should",
    symptom="With as much memory as the segment is long, the oldest state gets no attention and no gradient.",
    cause="The lower triangle that is masked includes the diagonal: its shift is 0 where it should be -1, and "
    "each window is one key too short.",
    seen="huggingface/transformers pull request 14832",
    of="transformer_xl_attention",
)
class FirstSlotMasked(AttentionFormula):
    def window(self, window):
        return window - 1


@mistake(
    "the causal mask does not count the memory",
    rejected_by="a query attends to its own key",
    symptom="Longer memories change nothing, and the first tokens of a segment attend to almost nothing.",
    cause="The triangle is aligned top-left: query i attends to keys 0 to i, which are memory.",
    of="transformer_xl_attention",
)
class TopLeft(AttentionFormula):
    def back(self, length, num_keys):
        return torch.arange(length)[:, None] - torch.arange(num_keys)


# --- Its memory -----------------------------------------------------------------------------------


class MemoryFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, memory, hidden, memory_length):
        """The last states of both."""
        states = self.states(memory, hidden)
        return self.stopped(self.last(states, memory_length, hidden.shape[1]))

    def states(self, memory, hidden):
        """All states so far."""
        return hidden if memory is None else torch.cat((memory, hidden), 1)

    def last(self, states, memory_length, new):
        """The last of them."""
        return states[:, max(states.shape[1] - memory_length, 0) :]

    def stopped(self, states):
        """No gradient goes back from segment to segment."""
        return states.detach()


@mistake(
    "the first states are kept",
    rejected_by="the newest state comes last",
    symptom="The model remembers the beginning of the text, forever.",
    cause="The slice takes memory_length states from the wrong end.",
    of="extend_memory",
)
class FirstKept(MemoryFormula):
    def last(self, states, memory_length, new):
        return states[:, :memory_length]


@mistake(
    "the slice begins at the wrong state",
    rejected_by="the memory is as long as it should be",
    symptom="The memory never grows: it stays empty if it was empty at first.",
    cause="The beginning of the slice is counted with the length of the present memory, where it should be the length "
    "that a memory may have.",
    seen="dhruvramani/Transformers-RL issue 7",
    of="extend_memory",
)
class PresentLength(MemoryFormula):
    def last(self, states, memory_length, new):
        return states[:, new:]


@mistake(
    "a memory of 0 keeps all",
    rejected_by="the memory is as long as it should be",
    symptom="Memory fills up in a run without a memory, and the text is not cut into segments at all.",
    cause="states[:, -0:] is all of them.",
    of="extend_memory",
)
class MinusZero(MemoryFormula):
    def last(self, states, memory_length, new):
        return states[:, -memory_length:]


@mistake(
    "the old memory is dropped",
    rejected_by="the memory is as long as it should be",
    symptom="In generation, token by token, the model remembers one token.",
    cause="The new memory is made of the segment alone, which may be shorter than the memory.",
    of="extend_memory",
)
class OldDropped(MemoryFormula):
    def states(self, memory, hidden):
        return hidden


@mistake(
    "one state too few",
    rejected_by="the memory is as long as it should be",
    symptom="Segment by segment is not the whole text: the oldest key is missing.",
    cause="The slice begins one state too late.",
    of="extend_memory",
)
class OneTooFew(MemoryFormula):
    def last(self, states, memory_length, new):
        return states[:, max(states.shape[1] - memory_length + 1, 0) :]


@mistake(
    "the memory is not detached",
    rejected_by="no gradient goes back",
    symptom="The second backward() raises an error, or memory and time grow with every segment.",
    cause="The states of the segment before are kept with their graph.",
    of="extend_memory",
)
class NotDetached(MemoryFormula):
    def stopped(self, states):
        return states
