"""The famous mistakes with rotary positions: the right formula with one step gone wrong."""

from __future__ import annotations

import torch

from ..mistakes import Formula, mistake
from ..rounding import in_at_least


class RotaryFormula(Formula):
    """The right rotation, cut into the steps that the mutants replace one at a time."""

    def __call__(self, x, position_ids, *, base=10000.0, layout="interleaved", rotary_dim=None):
        """(a cos - b sin, a sin + b cos) for each pair (a, b)."""
        d_head = x.shape[-1]
        size = self.size(d_head, rotary_dim)
        with in_at_least(torch.float32):
            angles = self.angles(self.places(position_ids, x), size, d_head, base, x.dtype)
            cos, sin = angles.unsqueeze(-3).cos(), angles.unsqueeze(-3).sin()  # *B 1 L r/2
        wide = torch.promote_types(x.dtype, torch.float32)
        a, b = self.split(x[..., :size].to(wide), layout)
        rotated = self.join(*self.turn(a, b, cos.to(wide), sin.to(wide)), layout)
        return torch.cat((rotated.to(x.dtype), x[..., size:]), -1)

    def size(self, d_head, rotary_dim):
        """How many features rotate."""
        return d_head if rotary_dim is None else rotary_dim

    def places(self, position_ids, x):
        """The positions of the tokens."""
        return position_ids

    def angles(self, places, size, d_head, base, dtype):
        """One angle per position and pair."""
        return places.double()[..., None] * self.frequencies(size, d_head, base)

    def frequencies(self, size, d_head, base):
        """1 / base^(2i/r)."""
        return base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)

    def split(self, x, layout):
        """The first and the second member of every pair."""
        return (x[..., 0::2], x[..., 1::2]) if layout == "interleaved" else x.chunk(2, -1)

    def join(self, a, b, layout):
        """The members back where they were."""
        if layout == "interleaved":
            return torch.stack((a, b), -1).flatten(-2)
        return torch.cat((a, b), -1)

    def turn(self, a, b, cos, sin):
        """A rotation of the plane."""
        return a * cos - b * sin, a * sin + b * cos


@mistake(
    "rotated backwards",
    rejected_by="each pair turns at its own speed",
    symptom="None alone: scores depend on q - p in place of p - q. Loaded weights do not fit.",
    cause="The minus is at the other sine: a rotation by the negative angle.",
    of="apply_rotary",
)
class TurnedBackwards(RotaryFormula):
    def turn(self, a, b, cos, sin):
        return a * cos + b * sin, b * cos - a * sin


@mistake(
    "a rotation without its minus",
    rejected_by="each pair keeps its norm",
    symptom="Norms grow and shrink with the position.",
    cause="rotate_half gives (b, a) in place of (-b, a): this matrix is no rotation.",
    of="apply_rotary",
)
class NoMinus(RotaryFormula):
    def turn(self, a, b, cos, sin):
        return a * cos + b * sin, b * cos + a * sin


@mistake(
    "the first feature overwritten too early",
    rejected_by="each pair keeps its norm",
    symptom="As above; in code that works in place it is one line that looks right.",
    cause="The second feature of a pair is computed from the first one's new value.",
    of="apply_rotary",
)
class OverwrittenTooEarly(RotaryFormula):
    def turn(self, a, b, cos, sin):
        a = a * cos - b * sin
        return a, a * sin + b * cos


@mistake(
    "the other pairing of features",
    rejected_by="each pair keeps its norm",
    symptom="About 20 tokens are fine, then the text becomes gibberish: angles are small at first.",
    cause="Pairs (2i, 2i + 1) and (i, i + r/2) are two conventions; weights fit only one of them.",
    seen="karpathy/llama2.c pull request 286; jzhang38/TinyLlama issue 24",
    of="apply_rotary",
)
class OtherLayout(RotaryFormula):
    def split(self, x, layout):
        return super().split(x, "halves" if layout == "interleaved" else "interleaved")

    def join(self, a, b, layout):
        return super().join(a, b, "halves" if layout == "interleaved" else "interleaved")


@mistake(
    "rotated features not interleaved again",
    rejected_by="position 0 is the identity",
    symptom="Even position 0, where nothing should turn, has its features rearranged.",
    cause="Members are taken as evens and odds, and come back as two halves.",
    seen="vllm-project/vllm-metal pull request 44",
    of="apply_rotary",
)
class NotPutBack(RotaryFormula):
    def join(self, a, b, layout):
        return super().join(a, b, "halves" if layout == "interleaved" else "interleaved")


@mistake(
    "two angles in a pair",
    rejected_by="each pair keeps its norm",
    symptom="Norms change with the position, and scores do not depend on the distance alone.",
    cause="Angles are laid out for one pairing, features for the other.",
    seen="baidu/ERNIE-Image issue 6; raiyanyahya/how-to-train-your-gpt issue 6",
    of="apply_rotary",
)
class TwoAnglesInAPair(RotaryFormula):
    """The angles are laid out for the other layout, so that the members of a pair differ in theirs."""

    def __call__(self, x, position_ids, *, base=10000.0, layout="interleaved", rotary_dim=None):
        d_head = x.shape[-1]
        size = self.size(d_head, rotary_dim)
        angles = self.angles(position_ids, size, d_head, base, x.dtype).unsqueeze(-3)
        wide = torch.promote_types(x.dtype, torch.float32)
        if layout == "interleaved":
            angles = torch.cat((angles, angles), -1)  # *B 1 L r
        else:
            angles = angles.repeat_interleave(2, -1)
        a, b = self.split(x[..., :size].to(wide), layout)
        other = self.join(-b, a, layout)
        rotated = x[..., :size] * angles.cos().to(wide) + other * angles.sin().to(wide)
        return torch.cat((rotated.to(x.dtype), x[..., size:]), -1)


@mistake(
    "rotary position IDs ignored",
    rejected_by="position IDs decide",
    symptom="Right for whole sequences; with a cache every new token is rotated as position 0.",
    cause="Positions are counted along the input, whatever its position IDs are.",
    seen="Blaizzy/mlx-vlm issue 1983",
    of="apply_rotary",
)
class IgnoresThePositions(RotaryFormula):
    def places(self, position_ids, x):
        return torch.arange(x.shape[2])


@mistake(
    "one sequence's position IDs for the whole batch",
    rejected_by="position IDs decide",
    symptom="A batch padded on the left generates something else than each sequence alone.",
    cause="One vector of positions is shared by sequences of different lengths.",
    seen="unslothai/unsloth pull request 4078",
    of="apply_rotary",
)
class OneSequencesPositions(RotaryFormula):
    def places(self, position_ids, x):
        return position_ids[:1] if position_ids.ndim == 2 else position_ids


@mistake(
    "rotary positions counted from 1",
    rejected_by="position 0 is the identity",
    symptom="None alone: scores depend on distances. With a cache of other keys they do not fit.",
    cause="The first token is at position 0.",
    of="apply_rotary",
)
class CountsFromOne(RotaryFormula):
    def places(self, position_ids, x):
        return position_ids + 1


@mistake(
    "angles in half precision",
    rejected_by="equals the reference",
    symptom="Far positions share their angles; in bfloat16 training losses diverge early.",
    cause="bfloat16 has 8 bits: above 256 not even every position is a number of its own.",
    seen="huggingface/transformers pull request 29285",
    of="apply_rotary",
)
class AnglesInTheDtype(RotaryFormula):
    def angles(self, places, size, d_head, base, dtype):
        return places.to(dtype)[..., None] * self.frequencies(size, d_head, base).to(dtype)


@mistake(
    "rotary exponent i in place of 2i",
    rejected_by="each pair turns at its own speed",
    symptom="The slowest pair turns 100 times too fast for a base of 10,000.",
    cause="i/r where i counts pairs: the exponents stop at 1/2.",
    of="apply_rotary",
)
class HalfTheExponent(RotaryFormula):
    def frequencies(self, size, d_head, base):
        return base ** (-torch.arange(size // 2, dtype=torch.float64) / size)


@mistake(
    "rotary exponent without its minus",
    rejected_by="each pair turns at its own speed",
    symptom="Later pairs turn by thousands of radians per position: noise.",
    cause="base^(2i/r), where the angle is p / base^(2i/r).",
    seen="labmlai/annotated_deep_learning_paper_implementations issue 313, in the text",
    of="apply_rotary",
)
class ExponentWithoutMinus(RotaryFormula):
    def frequencies(self, size, d_head, base):
        return base ** (torch.arange(0, size, 2, dtype=torch.float64) / size)


@mistake(
    "a base of 10,000 whatever was asked",
    rejected_by="each pair turns at its own speed",
    symptom="Long texts fail with weights that were trained with a base of 500,000.",
    cause="The base of the configuration is not passed on.",
    of="apply_rotary",
)
class AlwaysTenThousand(RotaryFormula):
    def frequencies(self, size, d_head, base):
        return super().frequencies(size, d_head, 10000.0)


@mistake(
    "frequencies of the whole head",
    rejected_by="each pair turns at its own speed",
    symptom="Right for full rotation; with partial rotation all pairs but the first are wrong.",
    cause="The exponent is 2i/d, where 2i/rotary_dim belongs.",
    of="apply_rotary",
)
class FrequenciesOfTheWholeHead(RotaryFormula):
    def frequencies(self, size, d_head, base):
        return base ** (-torch.arange(0, size, 2, dtype=torch.float64) / d_head)


@mistake(
    "the whole head rotated",
    rejected_by="features past rotary_dim stay",
    symptom="Weights of a model with partial rotation give nonsense.",
    cause="rotary_dim is ignored: GPT-J and GPT-NeoX rotate the first quarter of each head only.",
    of="apply_rotary",
)
class RotatesTheWholeHead(RotaryFormula):
    def size(self, d_head, rotary_dim):
        return d_head - d_head % 2


# --- Decoding with a cache ------------------------------------------------------------------------


class RotaryDecoder:
    """Causal attention of chunks with a cache, cut into the steps that the mutants replace."""

    def __init__(self):
        self.key = self.value = None
        self.steps = 0

    def __call__(self, query, key, value):
        """Rotate the chunk, append it to the cache, attend."""
        offset = self.offset(key)
        query, key, value = self.rotated(query, key, value, offset)
        past = self.key is not None
        self.key = torch.cat((self.key, key), 2) if past else key
        self.value = torch.cat((self.value, value), 2) if past else value
        self.steps += 1
        keys = self.all_keys(self.key)
        scores = query @ keys.mT * query.shape[-1] ** -0.5
        length, total = scores.shape[-2:]
        future = torch.ones(length, total, dtype=torch.bool).triu(1 + total - length)
        return scores.masked_fill(future, float("-inf")).softmax(-1) @ self.value

    def offset(self, key):
        """The position of the chunk's first token."""
        return 0 if self.key is None else self.key.shape[2]

    def rotated(self, query, key, value, offset):
        """Queries and keys, not values."""
        return self.turn(query, offset), self.turn(key, offset), value

    def turn(self, x, offset):
        """Tokens at offset, offset + 1, ..."""
        return RotaryFormula()(x, torch.arange(offset, offset + x.shape[2]))

    def all_keys(self, keys):
        """The keys of the cache, rotated before they came in."""
        return keys


@mistake(
    "the cache's length forgotten",
    rejected_by="chunks equal one pass",
    symptom="Without a cache all is right; with one, every chunk starts at position 0 again.",
    cause="Positions are counted from 0 in each call.",
    seen="Blaizzy/mlx-vlm issue 1983",
    of="rotary_attention",
)
class OffsetIgnored(RotaryDecoder):
    def offset(self, key):
        return 0


@mistake(
    "the prompt counted twice",
    rejected_by="chunks equal one pass",
    symptom="Offsets 6, 12, 13, ...: the first token after the prompt is a prompt's length too far.",
    cause="The counter moves by the prompt's length once more after the first step.",
    seen="skyzh/tiny-llm pull request 46",
    of="rotary_attention",
)
class PromptCountedTwice(RotaryDecoder):
    def __init__(self):
        super().__init__()
        self.next = 0

    def offset(self, key):
        here, length = self.next, key.shape[2]
        self.next += length if self.steps else 2 * length
        return here


@mistake(
    "queries rotated from 0 beside a cache",
    rejected_by="chunks equal one pass",
    symptom="Token by token every query is rotated as position 0; whole sequences are right.",
    cause="The query's offset is read before the cached keys are joined.",
    seen="RobertCsordas/moeut pull request 6",
    of="rotary_attention",
)
class QueryWithoutOffset(RotaryDecoder):
    def rotated(self, query, key, value, offset):
        return self.turn(query, 0), self.turn(key, offset), value


@mistake(
    "queries rotated, keys not",
    rejected_by="order is seen",
    symptom="A token has the same score at every position: the order of the past is invisible.",
    cause="The keys are left out.",
    of="rotary_attention",
)
class QueriesAlone(RotaryDecoder):
    def rotated(self, query, key, value, offset):
        return self.turn(query, offset), key, value


@mistake(
    "keys rotated, queries not",
    rejected_by="scores depend on the distance alone",
    symptom="A score depends on where the key is, not on how far away it is.",
    cause="The queries are left out.",
    of="rotary_attention",
)
class KeysAlone(RotaryDecoder):
    def rotated(self, query, key, value, offset):
        return query, self.turn(key, offset), value


@mistake(
    "values rotated as well",
    rejected_by="values are not rotated",
    symptom="What a token contributes depends on where it is; trained weights do not fit.",
    cause="Query, key and value are rotated alike; only scores should depend on positions.",
    of="rotary_attention",
)
class ValuesToo(RotaryDecoder):
    def rotated(self, query, key, value, offset):
        return *super().rotated(query, key, value, offset)[:2], self.turn(value, offset)


@mistake(
    "cached keys rotated again",
    rejected_by="chunks equal one pass",
    symptom="The first step is right; later ones rotate the old keys once more.",
    cause="Keys are rotated when they enter the cache and again when they leave it.",
    seen="NeuraLegion/shainet pull request 110 (review)",
    of="rotary_attention",
)
class CacheRotatedAgain(RotaryDecoder):
    def all_keys(self, keys):
        return self.turn(keys, 0) if self.steps > 1 else keys
