"""The famous mistakes with positions: the right formula with one step gone wrong."""

from __future__ import annotations

import math

import torch
from torch import nn

from ..judge import Mutant


class SinusoidFormula:
    """The right table, cut into the steps that the mutants replace one at a time."""

    def __call__(self, positions, d_model, *, base=10000.0, layout="interleaved", dtype=None):
        """sin and cos of pos / base^(2i/D)."""
        angles = self.angles(self.places(positions), d_model, base)  # *batch ceil(D/2)
        table = self.arrange(angles.sin(), angles.cos(), layout)[..., :d_model]
        return table.to(torch.float32 if dtype is None else dtype)

    def places(self, positions):
        """The positions, in float64."""
        return positions.double()

    def angles(self, places, d_model, base):
        """One angle a pair."""
        return places[..., None] * self.frequencies(d_model, base)

    def frequencies(self, d_model, base):
        """1 / base^(2i/D)."""
        return base ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)

    def arrange(self, sines, cosines, layout):
        """Side by side, or one half after the other."""
        if layout == "halves":
            return torch.cat((sines, cosines), -1)
        return torch.stack((sines, cosines), -1).flatten(-2)


class CountsFromOne(SinusoidFormula):
    def places(self, positions):
        return positions.double() + 1


class IgnoresThePositions(SinusoidFormula):
    def places(self, positions):
        length = positions.shape[-1] if positions.ndim else 1
        return torch.arange(length).double().expand(positions.shape)


class SharesOfTheLongest(SinusoidFormula):
    def places(self, positions):
        return positions.double() / max(float(positions.max()), 1.0)


class CosinesFirst(SinusoidFormula):
    def arrange(self, sines, cosines, layout):
        return super().arrange(cosines, sines, layout)


class OtherLayout(SinusoidFormula):
    def arrange(self, sines, cosines, layout):
        return super().arrange(sines, cosines, "halves" if layout == "interleaved" else "")


class ByTheColumn(SinusoidFormula):
    """Every column has an angle of its own, of which it takes the sine or the cosine."""

    def __call__(self, positions, d_model, *, base=10000.0, layout="interleaved", dtype=None):
        columns = torch.arange(d_model, dtype=torch.float64)
        angles = positions.double()[..., None] / base ** (self.exponent(columns) / d_model)
        table = angles.sin()
        table[..., 1::2] = angles[..., 1::2].cos()
        if layout == "halves":
            table = torch.cat((table[..., ::2], table[..., 1::2]), -1)
        return table.to(torch.float32 if dtype is None else dtype)

    def exponent(self, columns):
        return columns


class TwiceTheColumn(ByTheColumn):
    def exponent(self, columns):
        return 2 * columns


class HalfTheExponent(SinusoidFormula):
    def frequencies(self, d_model, base):
        return base ** (-torch.arange((d_model + 1) // 2, dtype=torch.float64) / d_model)


class BaseOfAThousand(SinusoidFormula):
    def frequencies(self, d_model, base):
        return super().frequencies(d_model, base / 10)


class SlowestFirst(SinusoidFormula):
    def frequencies(self, d_model, base):
        return super().frequencies(d_model, base).flip(0)


class EndsAtTheLastPair(SinusoidFormula):
    def frequencies(self, d_model, base):
        pairs = (d_model + 1) // 2
        return base ** (-torch.arange(pairs, dtype=torch.float64) / max(pairs - 1, 1))


class AnglesInFloat32(SinusoidFormula):
    def angles(self, places, d_model, base):
        return places.float()[..., None] * self.frequencies(d_model, base).float()


class EvenWidthsOnly(SinusoidFormula):
    def __call__(self, positions, d_model, *, base=10000.0, layout="interleaved", dtype=None):
        table = torch.zeros(*positions.shape, d_model, dtype=torch.float64)
        angles = self.angles(self.places(positions), d_model, base)
        table[..., 0::2] = angles.sin()
        table[..., 1::2] = angles.cos()  # one column too few when d_model is odd
        if layout == "halves":
            table = torch.cat((table[..., ::2], table[..., 1::2]), -1)
        return table.to(torch.float32 if dtype is None else dtype)


class TableOfAThousand(SinusoidFormula):
    def __call__(self, positions, d_model, **options):
        table = super().__call__(torch.arange(1000), d_model, **options)
        return table[positions]


SINUSOID_MUTANTS = (
    Mutant(
        "sines and cosines swapped", CosinesFirst(), "position 0 has sines of 0 and cosines of 1",
        symptom="Nothing goes wrong in training; another implementation's weights give nonsense.",
        cause="The cosine stands in the sine's column.",
        seen="made for this book", chapter=6,
    ),
    Mutant(
        "the other layout of the sinusoids", OtherLayout(),
        "position 0 has sines of 0 and cosines of 1",
        symptom="Every number is there, in another column; loaded weights give nonsense.",
        cause="[sin cos sin cos ...] and [sin ... sin cos ... cos] are two conventions.",
        seen="Marian and Whisper have halves, the paper and torchtext-style code interleave",
        chapter=6,
    ),
    Mutant(
        "positions counted from 1", CountsFromOne(), "position 0 has sines of 0 and cosines of 1",
        symptom="Every token has its neighbor's vector.",
        cause="The first token stands at 0 in the paper and in every common checkpoint.",
        seen="source notes, 001:1196, where row 0 is kept for padding", chapter=6,
    ),
    Mutant(
        "the positions given are ignored", IgnoresThePositions(),
        "one position, one vector",
        symptom="Right for whole sequences; with a cache each new token stands at 0.",
        cause="The length of the input is counted, whatever positions it has.",
        seen="made for this book", chapter=6,
    ),
    Mutant(
        "positions as shares of the longest", SharesOfTheLongest(), "one position, one vector",
        symptom="The same place has another vector in a longer text.",
        cause="Positions are divided by the length before the sinusoid.",
        seen="source notes, 001:1103", chapter=6,
    ),
    Mutant(
        "exponent 2i with the column as i", TwiceTheColumn(), "a sine and its cosine share an angle",
        symptom="Right in column 0 only; half of the columns hardly move at all.",
        cause="In 2i the i counts pairs; a column c belongs to pair c // 2.",
        seen="source notes, 001:1550", chapter=6,
    ),
    Mutant(
        "an angle for each column", ByTheColumn(), "a sine and its cosine share an angle",
        symptom="No rotation carries a position to the next: sine and cosine turn at two speeds.",
        cause="Exponent c/D for column c, where the pair's 2 (c // 2) / D belongs.",
        seen="made for this book", chapter=6,
    ),
    Mutant(
        "exponent i in place of 2i", HalfTheExponent(), "each pair turns at its own speed",
        symptom="The slowest wave has a length of 2 pi sqrt(base), 628 positions for 10,000.",
        cause="i/D where i counts pairs: the exponents stop at 1/2.",
        seen="made for this book", chapter=6,
    ),
    Mutant(
        "another base", BaseOfAThousand(), "each pair turns at its own speed",
        symptom="The slow waves are ten times too short; loaded weights give nonsense.",
        cause="The base is another number than was asked for.",
        seen="made for this book", chapter=6,
    ),
    Mutant(
        "the slowest wave first", SlowestFirst(), "each pair turns at its own speed",
        symptom="Every number is there, in another column.",
        cause="The exponents run from 1 down to 0: the sign in base^(-2i/D) or the order is wrong.",
        seen="source notes, 001:903, as a sentence: wavelengths grow as the position shrinks",
        chapter=6,
    ),
    Mutant(
        "the last pair at the base itself", EndsAtTheLastPair(), "each pair turns at its own speed",
        symptom="Differs a little in every column but the first pair's.",
        cause="i / (D/2 - 1) in the exponent, as in Whisper, where the paper has 2i / D.",
        seen="openai/whisper and tensor2tensor, on purpose", chapter=6,
    ),
    Mutant(
        "even widths only", EvenWidthsOnly(), "RuntimeError",
        symptom="RuntimeError as soon as d_model is odd.",
        cause="There is one cosine fewer than sines.",
        seen="BERT-pytorch issue 78", chapter=6,
    ),
    Mutant(
        "a table of 1,000 sinusoids", TableOfAThousand(), "IndexError",
        symptom="IndexError at position 1,000, though the formula has no end.",
        cause="The table is made once, to a length.",
        seen="made for this book", chapter=6,
    ),
    Mutant(
        "angles in float32", AnglesInFloat32(), "equals the reference",
        symptom="Far positions are wrong from the third decimal on.",
        cause="Around 100,000 the numbers of float32 lie 1/128 apart, and a sine needs them finer.",
        seen="made for this book", chapter=6,
    ),
)  # fmt: skip


# --- Segments -------------------------------------------------------------------------------------


class BertInput(nn.Module):
    """The right module, cut into the steps that the mutants replace one at a time."""

    def __init__(self, vocab_size, d_model, *, max_length, num_segments):
        super().__init__()
        self.token = nn.Embedding(vocab_size, d_model, padding_idx=self.padding_idx)
        self.segment = nn.Embedding(num_segments, d_model)
        self.position = nn.Embedding(max_length, d_model)
        self.norm = nn.LayerNorm(d_model, eps=1e-12)

    padding_idx = 0

    def forward(self, tokens, segments):
        """token + segment + position, normalized."""
        x = self.token(tokens) + self.segments(segments) + self.positions(tokens)
        return self.normalize(x)

    def positions(self, tokens):
        """The rows of the places."""
        return self.position.weight[: tokens.shape[1]]

    def segments(self, segments):
        """The rows of the segments."""
        return self.segment(segments)

    def normalize(self, x):
        """LayerNorm."""
        return self.norm(x)


class PositionsAsData(BertInput):
    def positions(self, tokens):
        return self.position.weight.data[: tokens.shape[1]]


class NoPositions(BertInput):
    def positions(self, tokens):
        return 0.0


class PositionsOfTheBatch(BertInput):
    def positions(self, tokens):
        return self.position.weight[: tokens.shape[0], None]


class NoSegments(BertInput):
    def segments(self, segments):
        return 0.0


class PaddingLearned(BertInput):
    padding_idx = None


class NotNormalized(BertInput):
    def normalize(self, x):
        return x


class NormalizedBeforePositions(BertInput):
    def forward(self, tokens, segments):
        x = self.normalize(self.token(tokens) + self.segments(segments))
        return x + self.positions(tokens)


SEGMENT_MUTANTS = (
    Mutant(
        "positions that never learn", PositionsAsData, "every table learns",
        symptom="Training runs; the positions stay the noise that they were at the start.",
        cause="`.data` cuts the parameter out of the graph: no gradient reaches it.",
        seen="source notes, 001:1241", chapter=6,
    ),
    Mutant(
        "no positions at all", NoPositions, "every table learns",
        symptom="The model can not tell the order of its tokens.",
        cause="The table is made and not added.",
        seen="made for this book", chapter=6,
    ),
    Mutant(
        "positions by the sample", PositionsOfTheBatch, "order is seen",
        symptom="Each sample has one position for all its tokens, or the shapes do not fit.",
        cause="The first axis is the batch, not the length.",
        seen="made for this book", chapter=6,
    ),
    Mutant(
        "segments forgotten", NoSegments, "every table learns",
        symptom="Question and answer look like one text.",
        cause="The segment table is made and not added.",
        seen="made for this book", chapter=6,
    ),
    Mutant(
        "padding learned as a word", PaddingLearned, "padding does not learn",
        symptom="The row of padding moves with training like any word's.",
        cause="No padding_idx, or padding with another id than padding_idx.",
        seen="source notes, 001:1537", chapter=6,
    ),
    Mutant(
        "embeddings not normalized", NotNormalized, "equals the reference",
        symptom="Vectors of another size reach the first layer; loaded weights give nonsense.",
        cause="BERT normalizes the sum of its three embeddings.",
        seen="source notes, 001:1238, and the book that it copies (BERTEncoder)", chapter=6,
    ),
    Mutant(
        "normalized before the positions", NormalizedBeforePositions, "equals the reference",
        symptom="As above, smaller.",
        cause="The position is added after the LayerNorm.",
        seen="made for this book", chapter=6,
    ),
)  # fmt: skip


# --- Relative -------------------------------------------------------------------------------------


class RelativeFormula:
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, query, key, value, key_table, value_table, *, mask=None, causal=False):
        """softmax(q (k + a) / sqrt(d)) (v + b)."""
        length, keys = query.shape[-2], key.shape[-2]
        clip = len(key_table) // 2
        rows = self.clipped(self.distances(length, keys), clip) + clip
        a, b = self.key_vectors(key_table, rows), self.value_vectors(value_table, rows)  # L S d
        own, distance = query @ key.mT, (query[..., None, :] * a).sum(-1)
        scores = self.total(own, distance, query.shape[-1])
        hidden = self.hidden(length, keys, mask, causal)
        empty = hidden.all(-1, keepdim=True)
        weights = scores.masked_fill(hidden & ~empty, -math.inf).softmax(-1)
        weights = weights.masked_fill(empty, 0.0)
        return weights @ value + (weights[..., None] * b).sum(-2)

    def distances(self, length, keys):
        """Key's place less query's; the last query stands at the last key."""
        return torch.arange(keys) - (torch.arange(length) + keys - length)[:, None]

    def clipped(self, distances, clip):
        """At most K in either direction."""
        return distances.clamp(-clip, clip)

    def key_vectors(self, table, rows):
        """One for each pair."""
        return table[rows]

    def value_vectors(self, table, rows):
        """One for each pair."""
        return table[rows]

    def total(self, own, distance, d):
        """(q k + q a) / sqrt(d)."""
        return (own + distance) * d**-0.5

    def hidden(self, length, keys, mask, causal):
        """True where a query must not look."""
        hidden = torch.zeros(length, keys, dtype=torch.bool)
        if causal:
            hidden = self.distances(length, keys) > 0
        return hidden if mask is None else hidden | ~mask


class NotClipped(RelativeFormula):
    def clipped(self, distances, clip):
        return distances


class ClippedOneShort(RelativeFormula):
    def clipped(self, distances, clip):
        return distances.clamp(-max(clip - 1, 0), max(clip - 1, 0))


class SignReversed(RelativeFormula):
    def clipped(self, distances, clip):
        return (-distances).clamp(-clip, clip)


class NoDirection(RelativeFormula):
    def clipped(self, distances, clip):
        return distances.abs().clamp(max=clip)


class FromTheTopLeft(RelativeFormula):
    def clipped(self, distances, clip):
        length, keys = distances.shape
        return (distances + keys - length).clamp(-clip, clip)


class KeysAlone(RelativeFormula):
    def value_vectors(self, table, rows):
        return torch.zeros_like(table[rows])


class ValuesAlone(RelativeFormula):
    def key_vectors(self, table, rows):
        return torch.zeros_like(table[rows])


class DistanceUnscaled(RelativeFormula):
    def total(self, own, distance, d):
        return own * d**-0.5 + distance


RELATIVE_MUTANTS = (
    Mutant(
        "distances not clipped", NotClipped(), "IndexError",
        symptom="IndexError beyond K to the right; to the left, negative indices read other rows.",
        cause="j - i + K is an index only for |j - i| <= K.",
        seen="made for this book", chapter=6,
    ),
    Mutant(
        "clipped one step short", ClippedOneShort(), "scores know the distance",
        symptom="The first and the last row of the tables are never used, and never learn.",
        cause="Clipped to K - 1: 2K - 1 rows are used of 2K + 1.",
        seen="made for this book", chapter=6,
    ),
    Mutant(
        "the distance reversed", SignReversed(), "scores know the distance",
        symptom="Training is as good; loaded weights look to the wrong side.",
        cause="i - j, where the paper has j - i.",
        seen="made for this book", chapter=6,
    ),
    Mutant(
        "distance without direction", NoDirection(), "scores know the distance",
        symptom="Before and after are the same: reversed, a text gives the reversed answer.",
        cause="|j - i| in place of j - i.",
        seen="source notes, 001:1128, as a claim about relative positions", chapter=6,
    ),
    Mutant(
        "distances from the top left", FromTheTopLeft(), "scores know the distance",
        symptom="Training is right; with a cache each new token believes that it stands at 0.",
        cause="Query i stands at i + S - L, not at i.",
        seen="made for this book", chapter=6,
    ),
    Mutant(
        "the values' table forgotten", KeysAlone(), "values know the distance",
        symptom="Half of equation 3 is missing; loaded weights give other numbers.",
        cause="The distance is added to the keys only.",
        seen="made for this book", chapter=6,
    ),
    Mutant(
        "the keys' table forgotten", ValuesAlone(), "scores know the distance",
        symptom="Nobody can look to the left on purpose.",
        cause="The distance is added to the values only.",
        seen="made for this book", chapter=6,
    ),
    Mutant(
        "the distance's score unscaled", DistanceUnscaled(), "scores know the distance",
        symptom="Distance counts sqrt(d) times as much as content.",
        cause="The bias is added after the division by sqrt(d) and not divided itself.",
        seen="made for this book", chapter=6,
    ),
)  # fmt: skip

# --- Shift ----------------------------------------------------------------------------------------


def shift(offset, d_model, *, base=10000.0, layout="interleaved", direction=1.0, one_speed=False):
    """Rotations along the diagonal; the mutants turn the wrong way or all at one speed."""
    angles = offset * SinusoidFormula().frequencies(d_model, base)
    angles = direction * (torch.full_like(angles, offset) if one_speed else angles)
    pair = torch.arange(d_model // 2)
    step = 1 if layout == "halves" else 2
    sine, cosine = pair * step, pair * step + (d_model // 2 if layout == "halves" else 1)
    turn = torch.zeros(d_model, d_model, dtype=torch.float64)
    turn[sine, sine] = turn[cosine, cosine] = angles.cos()
    turn[sine, cosine], turn[cosine, sine] = angles.sin(), -angles.sin()
    return turn.float()


def turned_back(offset, d_model, *, base=10000.0, layout="interleaved"):
    return shift(offset, d_model, base=base, layout=layout, direction=-1.0)


def turned_at_one_speed(offset, d_model, *, base=10000.0, layout="interleaved"):
    return shift(offset, d_model, base=base, layout=layout, one_speed=True)


def turned_in_the_other_layout(offset, d_model, *, base=10000.0, layout="interleaved"):
    other = "halves" if layout == "interleaved" else "interleaved"
    return shift(offset, d_model, base=base, layout=other)


def cosines_only(offset, d_model, *, base=10000.0, layout="interleaved"):
    return torch.diag(shift(offset, d_model, base=base, layout=layout).diagonal())


SHIFT_MUTANTS = (
    Mutant(
        "the shift turned backwards", turned_back, "it carries each position forward",
        symptom="R PE(pos) is PE(pos - offset).",
        cause="The minus sign of the sine stands in the other corner.",
        seen="made for this book", chapter=6,
    ),
    Mutant(
        "one speed for all pairs", turned_at_one_speed, "it carries each position forward",
        symptom="Right for D = 2 only.",
        cause="The angle of pair i is offset / base^(2i/D).",
        seen="made for this book", chapter=6,
    ),
    Mutant(
        "the shift in the other layout", turned_in_the_other_layout,
        "it carries each position forward",
        symptom="Mixes sines with sines.",
        cause="The cosine of a sine stands beside it, or half a vector away.",
        seen="made for this book", chapter=6,
    ),
    Mutant(
        "no sines in the rotation", cosines_only, "it keeps lengths",
        symptom="Vectors shrink with each shift.",
        cause="A rotation mixes the two numbers of a pair.",
        seen="made for this book", chapter=6,
    ),
)  # fmt: skip
