"""The famous mistakes with positions: the right formula with one step gone wrong."""

from __future__ import annotations

import math

import torch
from torch import nn

from ..mistakes import Formula, mistake
from ..rounding import in_at_least


class SinusoidFormula(Formula):
    """The right table, cut into the steps that the mutants replace one at a time."""

    least = torch.float64  # of the angles

    def __call__(self, positions, d_model, *, base=10000.0, layout="interleaved", dtype=None):
        """sin and cos of pos / base^(2i/D)."""
        with in_at_least(self.least):
            angles = self.angles(self.places(positions), d_model, base)  # *batch ceil(D/2)
            sines, cosines = angles.sin(), angles.cos()
        table = self.arrange(sines, cosines, layout)[..., :d_model]
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


@mistake(
    "positions counted from 1",
    rejected_by="position 0 has sines of 0 and cosines of 1",
    symptom="Every token has its neighbor's vector.",
    cause="The first token stands at 0 in the paper and in every common checkpoint.",
    seen="source notes, 001:1196, where row 0 is kept for padding",
    of="sinusoidal_positions",
)
class CountsFromOne(SinusoidFormula):
    def places(self, positions):
        return positions.double() + 1


@mistake(
    "the positions given are ignored",
    rejected_by="one position, one vector",
    symptom="Right for whole sequences; with a cache each new token stands at 0.",
    cause="The length of the input is counted, whatever positions it has.",
    of="sinusoidal_positions",
)
class IgnoresThePositions(SinusoidFormula):
    def places(self, positions):
        if not positions.ndim:
            return positions.double() * 0
        return torch.arange(positions.shape[-1]).double().expand(positions.shape)


@mistake(
    "positions as shares of the longest",
    rejected_by="one position, one vector",
    symptom="The same place has another vector in a longer text.",
    cause="Positions are divided by the length before the sinusoid.",
    seen="source notes, 001:1103",
    of="sinusoidal_positions",
)
class SharesOfTheLongest(SinusoidFormula):
    def places(self, positions):
        return positions.double() / max(float(positions.max()), 1.0)


@mistake(
    "sines and cosines swapped",
    rejected_by="position 0 has sines of 0 and cosines of 1",
    symptom="Nothing goes wrong in training; another implementation's weights give nonsense.",
    cause="The cosine stands in the sine's column.",
    of="sinusoidal_positions",
)
class CosinesFirst(SinusoidFormula):
    def arrange(self, sines, cosines, layout):
        return super().arrange(cosines, sines, layout)


@mistake(
    "the other layout of the sinusoids",
    rejected_by="position 0 has sines of 0 and cosines of 1",
    symptom="Every number is there, in another column; loaded weights give nonsense.",
    cause="[sin cos sin cos ...] and [sin ... sin cos ... cos] are two conventions.",
    seen="Tensor2Tensor, Marian and Whisper have halves, where the paper interleaves",
    of="sinusoidal_positions",
)
class OtherLayout(SinusoidFormula):
    def arrange(self, sines, cosines, layout):
        return super().arrange(sines, cosines, "halves" if layout == "interleaved" else "")


@mistake(
    "an angle for each column",
    rejected_by="a sine and its cosine share an angle",
    symptom="No rotation carries a position to the next: sine and cosine turn at two speeds.",
    cause="Exponent c/D for column c, where the pair's 2 (c // 2) / D belongs.",
    of="sinusoidal_positions",
)
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


@mistake(
    "exponent 2i with the column as i",
    rejected_by="a sine and its cosine share an angle",
    symptom="Right in column 0 only; half of the columns hardly move at all.",
    cause="In 2i the i counts pairs; a column c belongs to pair c // 2.",
    seen="source notes, 001:1550",
    of="sinusoidal_positions",
)
class TwiceTheColumn(ByTheColumn):
    def exponent(self, columns):
        return 2 * columns


@mistake(
    "exponent i in place of 2i",
    rejected_by="each pair turns at its own speed",
    symptom="The slowest wave has a length of 2 pi sqrt(base), 628 positions for 10,000.",
    cause="i/D where i counts pairs: the exponents stop at 1/2.",
    of="sinusoidal_positions",
)
class HalfTheExponent(SinusoidFormula):
    def frequencies(self, d_model, base):
        return base ** (-torch.arange((d_model + 1) // 2, dtype=torch.float64) / d_model)


@mistake(
    "another base",
    rejected_by="each pair turns at its own speed",
    symptom="The slow waves are ten times too short; loaded weights give nonsense.",
    cause="The base is another number than was asked for.",
    of="sinusoidal_positions",
)
class BaseOfAThousand(SinusoidFormula):
    def frequencies(self, d_model, base):
        return super().frequencies(d_model, base / 10)


@mistake(
    "the slowest wave first",
    rejected_by="each pair turns at its own speed",
    symptom="Every number is there, in another column.",
    cause="The exponents run from 1 down to 0: the sign in base^(-2i/D) or the order is wrong.",
    seen="source notes, 001:903, as a sentence: wavelengths grow as the position shrinks",
    of="sinusoidal_positions",
)
class SlowestFirst(SinusoidFormula):
    def frequencies(self, d_model, base):
        return super().frequencies(d_model, base).flip(0)


@mistake(
    "the last pair at the base itself",
    rejected_by="each pair turns at its own speed",
    symptom="Differs a little in every column but the first pair's.",
    cause="i / (D/2 - 1) in the exponent, as in Whisper, where the paper has 2i / D.",
    seen="openai/whisper and tensor2tensor, on purpose",
    of="sinusoidal_positions",
)
class EndsAtTheLastPair(SinusoidFormula):
    def frequencies(self, d_model, base):
        pairs = (d_model + 1) // 2
        return base ** (-torch.arange(pairs, dtype=torch.float64) / max(pairs - 1, 1))


@mistake(
    "angles in float32",
    rejected_by="equals the reference",
    symptom="Far positions are wrong from the third decimal on.",
    cause="Around 100,000 the numbers of float32 lie 1/128 apart, and a sine needs them finer.",
    of="sinusoidal_positions",
)
class AnglesInFloat32(SinusoidFormula):
    def angles(self, places, d_model, base):
        return places.float()[..., None] * self.frequencies(d_model, base).float()


@mistake(
    "even widths only",
    rejected_by="RuntimeError",
    symptom="RuntimeError as soon as d_model is odd.",
    cause="There is one cosine fewer than sines.",
    seen="BERT-pytorch issue 78",
    of="sinusoidal_positions",
)
class EvenWidthsOnly(SinusoidFormula):
    def __call__(self, positions, d_model, *, base=10000.0, layout="interleaved", dtype=None):
        table = torch.zeros(*positions.shape, d_model, dtype=torch.float64)
        angles = self.angles(self.places(positions), d_model, base)
        table[..., 0::2] = angles.sin()
        table[..., 1::2] = angles.cos()  # one column too few when d_model is odd
        if layout == "halves":
            table = torch.cat((table[..., ::2], table[..., 1::2]), -1)
        return table.to(torch.float32 if dtype is None else dtype)


@mistake(
    "a table of 1,000 sinusoids",
    rejected_by="IndexError",
    symptom="IndexError at position 1,000, though the formula has no end.",
    cause="The table is made once, to a length.",
    of="sinusoidal_positions",
)
class TableOfAThousand(SinusoidFormula):
    def __call__(self, positions, d_model, **options):
        table = super().__call__(torch.arange(1000), d_model, **options)
        return table[positions]


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


@mistake(
    "positions that never learn",
    rejected_by="every table learns",
    symptom="Training runs; the positions stay the noise that they were at the start.",
    cause="`.data` cuts the parameter out of the graph: no gradient reaches it.",
    seen="source notes, 001:1241",
    of="segmented_embedding",
)
class PositionsAsData(BertInput):
    def positions(self, tokens):
        return self.position.weight.data[: tokens.shape[1]]


@mistake(
    "no positions at all",
    rejected_by="every table learns",
    symptom="The model cannot tell the order of its tokens.",
    cause="The table is made and not added.",
    of="segmented_embedding",
)
class NoPositions(BertInput):
    def positions(self, tokens):
        return 0.0


@mistake(
    "positions by the sample",
    rejected_by="order is seen",
    symptom="Each sample has one position for all its tokens, or the shapes do not fit.",
    cause="The first axis is the batch, not the length.",
    of="segmented_embedding",
)
class PositionsOfTheBatch(BertInput):
    def positions(self, tokens):
        return self.position.weight[: tokens.shape[0], None]


@mistake(
    "segments forgotten",
    rejected_by="every table learns",
    symptom="Question and answer look like one text.",
    cause="The segment table is made and not added.",
    of="segmented_embedding",
)
class NoSegments(BertInput):
    def segments(self, segments):
        return 0.0


@mistake(
    "padding learned as a word",
    rejected_by="padding does not learn",
    symptom="The row of padding moves with training like any word's.",
    cause="No padding_idx, or padding with another id than padding_idx.",
    seen="source notes, 001:1537",
    of="segmented_embedding",
)
class PaddingLearned(BertInput):
    padding_idx = None


@mistake(
    "embeddings not normalized",
    rejected_by="a fresh module normalizes",
    symptom="Vectors of another size reach the first layer; loaded weights give nonsense.",
    cause="BERT normalizes the sum of its three embeddings.",
    seen="source notes, 001:1238, and the book that it copies (BERTEncoder)",
    of="segmented_embedding",
)
class NotNormalized(BertInput):
    def normalize(self, x):
        return x


@mistake(
    "normalized before the positions",
    rejected_by="a fresh module normalizes",
    symptom="As above, smaller.",
    cause="The position is added after the LayerNorm.",
    of="segmented_embedding",
)
class NormalizedBeforePositions(BertInput):
    def forward(self, tokens, segments):
        x = self.normalize(self.token(tokens) + self.segments(segments))
        return x + self.positions(tokens)


# --- Relative -------------------------------------------------------------------------------------


class RelativeFormula(Formula):
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


@mistake(
    "distances not clipped",
    rejected_by="IndexError",
    symptom="IndexError beyond K to the right; to the left, negative indices read other rows.",
    cause="j - i + K is an index only for |j - i| <= K.",
    of="relative_attention",
)
class NotClipped(RelativeFormula):
    def clipped(self, distances, clip):
        return distances


@mistake(
    "clipped one step short",
    rejected_by="scores know the distance",
    symptom="The first and the last row of the tables are never used, and never learn.",
    cause="Clipped to K - 1: 2K - 1 rows are used of 2K + 1.",
    of="relative_attention",
)
class ClippedOneShort(RelativeFormula):
    def clipped(self, distances, clip):
        return distances.clamp(-max(clip - 1, 0), max(clip - 1, 0))


@mistake(
    "the distance reversed",
    rejected_by="scores know the distance",
    symptom="Training is as good; loaded weights look to the wrong side.",
    cause="i - j, where the paper has j - i.",
    of="relative_attention",
)
class SignReversed(RelativeFormula):
    def clipped(self, distances, clip):
        return (-distances).clamp(-clip, clip)


@mistake(
    "distance without direction",
    rejected_by="scores know the distance",
    symptom="Before and after are the same: reversed, a text gives the reversed answer.",
    cause="|j - i| in place of j - i.",
    seen="source notes, 001:1128, as a claim about relative positions",
    of="relative_attention",
)
class NoDirection(RelativeFormula):
    def clipped(self, distances, clip):
        return distances.abs().clamp(max=clip)


@mistake(
    "distances from the top left",
    rejected_by="scores know the distance",
    symptom="Training is right; with a cache each new token believes that it stands at 0.",
    cause="Query i stands at i + S - L, not at i.",
    of="relative_attention",
)
class FromTheTopLeft(RelativeFormula):
    def clipped(self, distances, clip):
        length, keys = distances.shape
        return (distances + keys - length).clamp(-clip, clip)


@mistake(
    "the values' table forgotten",
    rejected_by="values know the distance",
    symptom="Half of equation 3 is missing; loaded weights give other numbers.",
    cause="The distance is added to the keys only.",
    of="relative_attention",
)
class KeysAlone(RelativeFormula):
    def value_vectors(self, table, rows):
        return torch.zeros_like(table[rows])


@mistake(
    "the keys' table forgotten",
    rejected_by="scores know the distance",
    symptom="Nobody can look to the left on purpose.",
    cause="The distance is added to the values only.",
    of="relative_attention",
)
class ValuesAlone(RelativeFormula):
    def key_vectors(self, table, rows):
        return torch.zeros_like(table[rows])


@mistake(
    "the distance's score unscaled",
    rejected_by="scores know the distance",
    symptom="Distance counts sqrt(d) times as much as content.",
    cause="The bias is added after the division by sqrt(d) and not divided itself.",
    of="relative_attention",
)
class DistanceUnscaled(RelativeFormula):
    def total(self, own, distance, d):
        return own * d**-0.5 + distance


# --- Shift ----------------------------------------------------------------------------------------


def shift(offset, d_model, *, base=10000.0, layout="interleaved", direction=1.0, one_speed=False):
    """Rotations along the diagonal; the mutants turn the wrong way or all at one speed."""
    with in_at_least(torch.float64):
        angles = offset * SinusoidFormula().frequencies(d_model, base)
    angles = direction * (torch.full_like(angles, offset) if one_speed else angles)
    pair = torch.arange(d_model // 2)
    step = 1 if layout == "halves" else 2
    sine, cosine = pair * step, pair * step + (d_model // 2 if layout == "halves" else 1)
    turn = torch.zeros(d_model, d_model, dtype=torch.float64)
    turn[sine, sine] = turn[cosine, cosine] = angles.cos()
    turn[sine, cosine], turn[cosine, sine] = angles.sin(), -angles.sin()
    return turn.float()


@mistake(
    "the shift turned backwards",
    rejected_by="it carries each position forward",
    symptom="R PE(pos) is PE(pos - offset).",
    cause="The minus sign of the sine stands in the other corner.",
    of="shift_matrix",
)
def turned_back(offset, d_model, *, base=10000.0, layout="interleaved"):
    return shift(offset, d_model, base=base, layout=layout, direction=-1.0)


@mistake(
    "one speed for all pairs",
    rejected_by="it carries each position forward",
    symptom="Right for D = 2 only.",
    cause="The angle of pair i is offset / base^(2i/D).",
    of="shift_matrix",
)
def turned_at_one_speed(offset, d_model, *, base=10000.0, layout="interleaved"):
    return shift(offset, d_model, base=base, layout=layout, one_speed=True)


@mistake(
    "the shift in the other layout",
    rejected_by="it carries each position forward",
    symptom="Mixes sines with sines.",
    cause="The cosine of a sine stands beside it, or half a vector away.",
    of="shift_matrix",
)
def turned_in_the_other_layout(offset, d_model, *, base=10000.0, layout="interleaved"):
    other = "halves" if layout == "interleaved" else "interleaved"
    return shift(offset, d_model, base=base, layout=other)


@mistake(
    "no sines in the rotation",
    rejected_by="it keeps lengths",
    symptom="Vectors shrink with each shift.",
    cause="A rotation mixes the two numbers of a pair.",
    of="shift_matrix",
)
def cosines_only(offset, d_model, *, base=10000.0, layout="interleaved"):
    return torch.diag(shift(offset, d_model, base=base, layout=layout).diagonal())
