"""Exercises of chapter 9: the full model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..specs.block.spec import EPS_TAKES
from ..specs.checks import as_expected, largest, stays, varied
from ..specs.compare import Problem, compare
from ..specs.mistakes import mistake, mistakes
from ..specs.spec import SHAPE, Case, Check, Run, Spec

# --- The embedding --------------------------------------------------------------------------------


def _embed_reference(ids: np.ndarray, table: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Token by token: its row, times the root of the width, plus the row of its place."""
    root = np.sqrt(np.asarray(table.shape[1], dtype=table.dtype))
    answer = np.zeros((*ids.shape, table.shape[1]), dtype=table.dtype)
    for b, place in np.ndindex(ids.shape):
        answer[b, place] = table[ids[b, place]] * root + positions[place]
    return answer


def embedded(ids, table, positions):
    """The baseline."""
    return table[ids] * table.shape[1] ** 0.5 + positions[: ids.shape[1]]


@mistake(
    "the embedding without its factor",
    rejected_by="rows are scaled by the root of the width",
    cause="The factor sqrt(D) is missing.",
)
def embed_unscaled(ids, table, positions):
    """The row as it is."""
    return table[ids] + positions[: ids.shape[1]]


@mistake(
    "the factor on word and position",
    rejected_by="positions are added as they are",
    cause="The sum is multiplied: a bracket too many.",
)
def embed_sum_scaled(ids, table, positions):
    """The root times row and position together."""
    return (table[ids] + positions[: ids.shape[1]]) * table.shape[1] ** 0.5


@mistake(
    "divided by the root, as scores are",
    rejected_by="rows are scaled by the root of the width",
    cause="Scores are divided by sqrt(d), embeddings are multiplied by sqrt(D).",
)
def embed_divided(ids, table, positions):
    """Divided by the root, as scores are."""
    return table[ids] / table.shape[1] ** 0.5 + positions[: ids.shape[1]]


@mistake(
    "multiplied by the width",
    rejected_by="rows are scaled by the root of the width",
    cause="The width itself where its root is meant.",
)
def embed_scaled_by_width(ids, table, positions):
    """The width, not its root."""
    return table[ids] * table.shape[1] + positions[: ids.shape[1]]


def _embed_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, batch, length, vocab, width, rows) -> Case:
        ids = rng.integers(0, vocab, size=(batch, length))
        table = rng.normal(size=(vocab, width)) / width**0.5
        return Case(
            label, {"ids": ids, "table": table, "positions": rng.normal(size=(rows, width))}
        )

    return [
        case("one token", 1, 1, 3, 4, 1),
        case("a sentence", 1, 3, 5, 6, 3),
        case("more positions than tokens", 2, 3, 7, 8, 9),
        case("no token", 2, 0, 4, 6, 5),
        case("two sentences", 2, 5, 11, 12, 7),
    ]


def _position_alone(run: Run, case: Case) -> Problem | None:
    """With an empty table the positions are left."""
    alone = varied(case, "positions", table=np.zeros_like(case.arguments["table"]))
    return as_expected(run, alone, "with a table of zeros")


def _row_alone(run: Run, case: Case) -> Problem | None:
    """Without positions the length of a row grows by the root of the width."""
    alone = varied(case, "rows", positions=np.zeros_like(case.arguments["positions"]))
    return as_expected(run, alone, "without positions")


EMBED = Spec(
    name="ch09.embed",
    statement="embed(ids, table, positions): row of the table times sqrt(D), plus the position; ids "
    "(B, L), table (V, D), positions (at least L, D) -> (B, L, D)",
    required=("ids", "table", "positions"),
    reference=_embed_reference,
    baseline=embedded,
    cases=_embed_cases,
    checks=(
        Check(
            "positions are added as they are",
            "The root scales the table's row, not the position: add after scaling.",
            _position_alone,
        ),
        Check(
            "rows are scaled by the root of the width",
            "A row of the table is multiplied by sqrt(D), D being the table's second size.",
            _row_alone,
        ),
    ),
    mutants=mistakes(embed_unscaled, embed_sum_scaled, embed_divided, embed_scaled_by_width),
    chapter=9,
    points=1,
)  # fmt: skip

# --- The masks of a translation -------------------------------------------------------------------


def _masks_reference(source: np.ndarray, target: np.ndarray, pad_id: int) -> np.ndarray:
    """Own and cross mask side by side: (B, 1, L, L + S)."""
    (batch, length), keys = target.shape, source.shape[1]
    seen = np.zeros((batch, 1, length, length + keys), dtype=bool)
    for b in range(batch):
        for i in range(length):
            for j in range(i + 1):
                seen[b, 0, i, j] = target[b, j] != pad_id
            for j in range(keys):
                seen[b, 0, i, length + j] = source[b, j] != pad_id
    return seen


def _join(answer: Any, arguments: dict[str, Any]) -> Tensor:
    """The two masks as one table, (B, 1, L, L + S)."""
    own, cross = answer
    batch, length = arguments["target"].shape
    return torch.cat([mask.expand(batch, 1, length, -1) for mask in (own, cross)], dim=-1)


def _real(ids: Tensor, pad_id: int) -> Tensor:
    return (ids != pad_id)[:, None, None, :]


@mistake(
    "a decoder without order",
    rejected_by="the target's future is hidden",
    cause="The causal mask is missing from the target's own attention.",
)
def masks_without_order(source, target, pad_id):
    """Padding only."""
    return _real(target, pad_id), _real(source, pad_id)


@mistake(
    "padding left in the target",
    rejected_by="the target's past is seen, its padding not",
    cause="The order hides padding on the right only.",
)
def masks_without_target_padding(source, target, pad_id):
    """The order is enough for the target, or so it seems."""
    length = target.shape[1]
    return torch.ones(length, length, dtype=torch.bool).tril(), _real(source, pad_id)


@mistake(
    "the cross mask from the target",
    rejected_by="the right shape and dtype",
    cause="padding_mask(target, source) with its arguments the other way round.",
)
def masks_with_arguments_reversed(source, target, pad_id):
    """The cross mask from the target's padding."""
    return _real(target, pad_id) & _past(target), _real(target, pad_id)


@mistake(
    "the source in order",
    rejected_by="the source is seen, its padding not",
    cause="A causal mask on the cross-attention, where nothing has to be hidden but padding.",
)
def masks_in_order_throughout(source, target, pad_id):
    """The source, too, is hidden word by word."""
    shape = target.shape[1], source.shape[1]
    past = torch.ones(shape, dtype=torch.bool).tril(source.shape[1] - target.shape[1])
    return _real(target, pad_id) & _past(target), _real(source, pad_id) & past


@mistake(
    "masks for hiding",
    rejected_by="the target's past is seen, its padding not",
    cause="True means hide in nn.MultiheadAttention; here it means may attend.",
)
def masks_for_hiding(source, target, pad_id):
    """True = hide."""
    return ~(_real(target, pad_id) & _past(target)), ~_real(source, pad_id)


def _past(target: Tensor) -> Tensor:
    return torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()


def _masks_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, source, target, pad_id) -> Case:
        rows = [np.asarray(ids) for ids in (source, target)]
        return Case(label, {"source": rows[0], "target": rows[1], "pad_id": pad_id})

    def padded(lengths, longest, pad_id, lowest=1) -> np.ndarray:
        ids = rng.integers(lowest, 8, size=(len(lengths), longest)) + pad_id
        ids[ids == pad_id] += 1
        for row, length in zip(ids, lengths, strict=True):
            row[length:] = pad_id
        return ids

    return [
        case("one word", [[5]], [[6]], 0),
        case("equal lengths, padded source", [[5, 6, 0]], [[1, 3, 4]], 0),
        case("equal lengths, padded target", [[5, 6, 7]], [[1, 3, 0]], 0),
        case("two sentences", padded((2, 4), 4, 0), padded((3, 2), 3, 0), 0),
        case("padding is number 3", padded((5, 1, 3), 5, 3), padded((1, 4, 2), 4, 3), 3),
        case("words below the padding", padded((5, 2), 5, 6, -6), padded((3, 4), 4, 6, -6), 6),
        case("padding on the left", [[0, 5, 6], [3, 4, 7]], [[0, 0, 1, 3], [0, 2, 1, 4]], 0),
    ]


def _own(rows: Callable[[np.ndarray], np.ndarray]):
    def test(run: Run, case: Case) -> Problem | None:
        length = case.arguments["target"].shape[1]
        expected, got = (m[..., :length] for m in (run.expected(case)[0], run.value(case)))
        region = rows(np.tri(length, dtype=bool))
        return compare(expected & region, got & region, 0.0, "the target's own mask")

    return test


def _cross(run: Run, case: Case) -> Problem | None:
    length = case.arguments["target"].shape[1]
    expected, got = (m[..., length:] for m in (run.expected(case)[0], run.value(case)))
    return compare(expected, got, 0.0, "the cross mask")


MASKS = Spec(
    name="ch09.masks",
    statement="masks(source, target, pad_id): two boolean masks, True = may attend: own, which broadcasts "
    "to (B, 1, L, L), and cross, which broadcasts to (B, 1, L, S); source (B, S), target (B, L); "
    "padding may stand on either side",
    required=("source", "target", "pad_id"),
    reference=_masks_reference,
    read=_join,
    cases=_masks_cases,
    checks=(
        Check(
            "the target's past is seen, its padding not",
            "A target token sees itself and the real tokens before it.",
            _own(lambda past: past),
        ),
        Check(
            "the target's future is hidden",
            "What stands to the right of a target token is what it has to guess.",
            _own(lambda past: ~past),
        ),
        Check(
            "the source is seen, its padding not",
            "Every target token sees all real tokens of the source, and no padding.",
            _cross,
        ),
    ),
    mutants=mistakes(
        masks_without_order, masks_without_target_padding, masks_with_arguments_reversed,
        masks_in_order_throughout, masks_for_hiding
    ),
    chapter=9,
    points=2,
)  # fmt: skip

# --- A decoder layer ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sublayer:
    """A stand-in for a sublayer that works on arrays and on tensors, with a name for people."""

    name: str
    function: Callable[..., Any]

    def __call__(self, *inputs: Any) -> Any:
        """Shapes: (B, L, D) [and (B, S, D)] -> (B, L, D)."""
        return self.function(*inputs)

    def __repr__(self) -> str:
        return self.name


def _mean_of_past(x: Any) -> Any:
    return 0.3 * x.cumsum(axis=1)


def _look_up(x: Any, memory: Any) -> Any:
    return 0.5 * x * memory.mean(axis=1, keepdims=True) - memory.sum(axis=1, keepdims=True)


def _think(x: Any) -> Any:
    return 0.7 * x * x - x


def _normalize(x: Any) -> Any:
    centered = x - x.mean(axis=-1, keepdims=True)
    return centered / ((centered**2).mean(axis=-1, keepdims=True) + 1e-5) ** 0.5


PARTS = {
    "own": Sublayer("own(x)", _mean_of_past),
    "cross": Sublayer("cross(x, memory)", _look_up),
    "think": Sublayer("think(x)", _think),
    "norm": Sublayer("norm(x)", _normalize),
}


def _layer_reference(x, memory, own, cross, think, norm):
    """Three sublayers, each added to what came before it, then normalized."""
    for sublayer in (own, lambda x: cross(x, memory), think):
        x = norm(x + sublayer(x))
    return x


@mistake(
    "keys and values from the target itself",
    rejected_by="the memory is read",
    cause="cross(x, x): the memory is not passed on.",
)
def layer_without_memory(x, memory, own, cross, think, norm):
    """Keys and values from the target."""
    x = norm(x + own(x))
    x = norm(x + cross(x, x))
    return norm(x + think(x))


@mistake(
    "the first answer thrown away",
    rejected_by="what is there is kept",
    cause="The second sublayer takes the layer's input, not the first one's output.",
)
def layer_that_forgets(x, memory, own, cross, think, norm):
    """The second sublayer starts again from the layer's input."""
    norm(x + own(x))  # thrown away
    x = norm(x + cross(x, memory))
    return norm(x + think(x))


@mistake(
    "no residual connection",
    rejected_by="what is there is kept",
    cause="norm(f(x)) where norm(x + f(x)) is meant.",
)
def layer_without_residual(x, memory, own, cross, think, norm):
    """Each answer replaces what was there."""
    return norm(think(norm(cross(norm(own(x)), memory))))


@mistake(
    "the norm first",
    rejected_by="each token ends normalized",
    cause="Pre-norm: x + f(norm(x)).",
)
def layer_norm_first(x, memory, own, cross, think, norm):
    """Pre-norm."""
    x = x + own(norm(x))
    x = x + cross(norm(x), memory)
    return x + think(norm(x))


@mistake(
    "the source before the past",
    rejected_by="equals the reference",
    cause="Cross-attention is the second sublayer, not the first.",
)
def layer_memory_first(x, memory, own, cross, think, norm):
    """The source before the own past."""
    x = norm(x + cross(x, memory))
    x = norm(x + own(x))
    return norm(x + think(x))


def _layer_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, batch, length, keys, width) -> Case:
        x, memory = rng.normal(size=(batch, length, width)), rng.normal(size=(batch, keys, width))
        return Case(label, {"x": x, "memory": memory, **PARTS})

    return [
        case("one token, one source token", 1, 1, 1, 4),
        case("a longer source", 1, 2, 3, 4),
        case("two sentences", 2, 4, 3, 6),
    ]


def _reads_memory(run: Run, case: Case) -> Problem | None:
    other = varied(case, "another memory", memory=case.arguments["memory"] + 1.0)
    far = run.expected(case)[1] + run.expected(other)[1]
    if np.abs(run.value(other) - run.value(case)).max() > far:
        return None
    return Problem("another output for another memory", "the same output")


def _is_normalized(run: Run, case: Case) -> Problem | None:
    """Mean 0 and mean square 1, but for what the norm's eps takes."""
    expected, far = run.expected(case)
    got, ones = run.value(case), np.ones(expected.shape[:-1])
    problem = compare(0 * ones, got.mean(axis=-1), far, "means")
    far = EPS_TAKES + far * (far + 2 * largest(expected))
    return problem or compare(ones, (got**2).mean(axis=-1), far, "mean squares")


def _keeps_past(run: Run, case: Case) -> Problem | None:
    """A sublayer that finds nothing changes nothing but by its norm."""
    zero = Sublayer("zero", lambda x, *memory: 0 * x)
    silent = varied(case, "silent", own=zero, cross=zero, think=zero)
    return as_expected(run, silent, "with sublayers that find nothing")


DECODER_LAYER = Spec(
    name="ch09.decoder_layer",
    statement="decoder_layer(x, memory, own, cross, think, norm): the post-norm decoder layer of 2017, wired "
    "from functions own(x), cross(x, memory), think(x), norm(x); x (B, L, D), memory (B, S, D) -> (B, L, D)",
    required=("x", "memory", "own", "cross", "think", "norm"),
    reference=_layer_reference,
    baseline=_layer_reference,
    cases=_layer_cases,
    checks=(
        Check(
            "the memory is read",
            "cross takes x, which asks, and memory, which answers.",
            _reads_memory,
        ),
        Check(
            "each token ends normalized",
            "In the paper of 2017 the norm is the last step of each sublayer: norm(x + f(x)).",
            _is_normalized,
        ),
        Check(
            "what is there is kept",
            "Each answer is added to what came before it. Sublayers that find nothing must let x pass.",
            _keeps_past,
        ),
    ),
    mutants=mistakes(
        layer_without_memory, layer_that_forgets, layer_without_residual, layer_norm_first,
        layer_memory_first
    ),
    chapter=9,
    points=2,
)  # fmt: skip

# --- Counting -------------------------------------------------------------------------------------


def _count_reference(
    vocab: int, d_model: int, d_ff: int, encoder_layers: int, decoder_layers: int
) -> int:
    """Shape by shape."""
    square, wide = [(d_model, d_model), (d_model,)], [(d_ff, d_model), (d_ff,)]
    attention, norm = 4 * square, [(d_model,), (d_model,)]
    feed_forward = [*wide, (d_model, d_ff), (d_model,)]
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    shapes = [(vocab, d_model)] + encoder_layers * encoder + decoder_layers * decoder
    return sum(math.prod(shape) for shape in shapes)


def _counted(v, d, f, n, m, *, tables=1, bias=1, cross=1, last=0):
    """The total with one thing changed."""
    attention = 4 * (d * d + bias * d)
    feed_forward = 2 * d * f + bias * (f + d)
    encoder = attention + feed_forward + 2 * 2 * d
    decoder = (1 + cross) * attention + feed_forward + (2 + cross) * 2 * d
    return tables * v * d + n * encoder + m * decoder + last * 2 * d * ((n > 0) + (m > 0))


@mistake(
    "the output layer counted although it is tied",
    rejected_by="the shared table counts once",
    cause="Embedding and output layer are one matrix.",
)
def count_table_twice(vocab, d_model, d_ff, encoder_layers, decoder_layers):
    """The output layer counted, though it is the table."""
    return _counted(vocab, d_model, d_ff, encoder_layers, decoder_layers, tables=2)


@mistake(
    "biases not counted",
    rejected_by="an encoder layer",
    cause="Every linear map of the layers has a bias.",
)
def count_without_biases(vocab, d_model, d_ff, encoder_layers, decoder_layers):
    """Matrices only."""
    return _counted(vocab, d_model, d_ff, encoder_layers, decoder_layers, bias=0)


@mistake(
    "a decoder layer counted as an encoder layer",
    rejected_by="a decoder layer",
    cause="The cross-attention and its norm are missing.",
)
def count_without_cross(vocab, d_model, d_ff, encoder_layers, decoder_layers):
    """A decoder layer like an encoder layer."""
    return _counted(vocab, d_model, d_ff, encoder_layers, decoder_layers, cross=0)


@mistake(
    "a norm at the end of each stack",
    rejected_by="an encoder layer",
    cause="Post-norm layers end in a norm already; torch's class adds one more.",
)
def count_final_norms(vocab, d_model, d_ff, encoder_layers, decoder_layers):
    """As torch's class."""
    return _counted(vocab, d_model, d_ff, encoder_layers, decoder_layers, last=1)


def _count_cases(rng: np.random.Generator) -> list[Case]:
    names = ("vocab", "d_model", "d_ff", "encoder_layers", "decoder_layers")
    sizes = {
        "no layers": (10, 3, 5, 0, 0),
        "one encoder layer": (10, 3, 5, 1, 0),
        "two decoder layers": (7, 4, 6, 0, 2),
        "three and two layers": (11, 6, 10, 3, 2),
        "base": (37_000, 512, 2048, 6, 6),
        "big": (37_000, 1024, 4096, 6, 6),
    }
    return [Case(label, dict(zip(names, each, strict=True))) for label, each in sizes.items()]


def _layers(encoder: bool, decoder: bool) -> Callable[[Case], bool]:
    def when(case: Case) -> bool:
        have = (case.arguments["encoder_layers"] > 0, case.arguments["decoder_layers"] > 0)
        return have == (encoder, decoder)

    return when


def _right_number(run: Run, case: Case) -> Problem | None:
    return compare(run.expected(case)[0], run.value(case), 0.0)


COUNT = Spec(
    name="ch09.count_parameters",
    statement="count(vocab, d_model, d_ff, encoder_layers, decoder_layers): how many parameters the post-norm "
    "Transformer of 2017 has, one table for both languages and the output, biases included; an int",
    required=("vocab", "d_model", "d_ff", "encoder_layers", "decoder_layers"),
    reference=_count_reference,
    cases=_count_cases,
    usual=(SHAPE,),
    checks=(
        Check(
            "the shared table counts once",
            "Without layers only the table is left: vocab x d_model.",
            _right_number,
            when=_layers(False, False),
        ),
        Check(
            "an encoder layer",
            "Four square maps, two maps of the network, all with biases, and two norms of 2 d_model.",
            _right_number,
            when=_layers(True, False),
        ),
        Check(
            "a decoder layer",
            "It has a second attention, with four maps of its own, and a third norm.",
            _right_number,
            when=_layers(False, True),
        ),
    ),
    mutants=mistakes(
        count_table_twice, count_without_biases, count_without_cross, count_final_norms
    ),
    chapter=9,
    points=2,
)  # fmt: skip

# --- The loss -------------------------------------------------------------------------------------


def _loss_reference(logits: np.ndarray, answers: np.ndarray, pad_id: int) -> np.ndarray:
    """The mean over real tokens of log(sum of exponentials) less the right logit."""
    losses = []
    for b, place in np.ndindex(answers.shape):
        if answers[b, place] != pad_id:
            row = logits[b, place]
            top = row.max()
            losses.append(top + np.log(np.exp(row - top).sum()) - row[answers[b, place]])
    return np.asarray(sum(losses) / len(losses))


def through_log_sum(logits, answers, pad_id):
    """The baseline: of log(sum of exponentials) large logits leave the fewest digits."""
    real = answers != pad_id
    right = logits.gather(-1, (answers * real)[..., None])[..., 0]
    return ((logits.logsumexp(-1) - right) * real).sum() / real.sum()


def _plain_loss(logits, answers, pad_id):
    return cross_entropy(logits.flatten(0, 1), answers.flatten(), ignore_index=pad_id)


@mistake(
    "probabilities taken for logits",
    rejected_by="a sure and right guess costs nothing",
    cause="A softmax before a cross-entropy that applies one itself.",
)
def loss_of_probabilities(logits, answers, pad_id):
    """Softmax, then a loss that takes logits."""
    return _plain_loss(logits.softmax(-1), answers, pad_id)


@mistake(
    "padding to be guessed",
    rejected_by="padding costs nothing",
    cause="ignore_index is missing.",
)
def loss_of_everything(logits, answers, pad_id):
    """Padding is a word to be guessed."""
    return cross_entropy(logits.flatten(0, 1), answers.flatten())


@mistake(
    "padding counted in the mean",
    rejected_by="a mean over real tokens",
    cause="The sum over real tokens is divided by all places.",
)
def loss_over_all_places(logits, answers, pad_id):
    """Padding costs nothing, and is counted in the mean."""
    each = cross_entropy(
        logits.flatten(0, 1), answers.flatten(), ignore_index=pad_id, reduction="none"
    )
    return each.mean()


@mistake(
    "a sum instead of a mean",
    rejected_by="a mean over real tokens",
    cause='reduction="sum".',
)
def loss_as_a_sum(logits, answers, pad_id):
    """No mean."""
    return cross_entropy(
        logits.flatten(0, 1), answers.flatten(), ignore_index=pad_id, reduction="sum"
    )


def _loss_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, vocab, answers, pad_id, spread=2.0) -> Case:
        answers = np.asarray(answers)
        logits = spread * rng.normal(size=(*answers.shape, vocab))
        return Case(label, {"logits": logits, "answers": answers, "pad_id": pad_id})

    return [
        case("one word", 5, [[2]], 0),
        case("two words", 5, [[2, 4]], 0),
        case("padding", 6, [[3, 1, 0, 0]], 0),
        case("two sentences", 7, [[3, 1, 6, 2], [5, 2, 0, 0]], 0),
        case("padding is number 4", 7, [[4, 1, 6], [5, 4, 4]], 4),
        case("pad_id -100, as in PyTorch", 6, [[3, 1, -100], [0, -100, -100]], -100),
        case("logits in the thousands", 6, [[3, 1, 0], [2, 5, 4]], 0, 2000.0),
    ]


def _sure(run: Run, case: Case) -> Problem | None:
    """Logits that put everything on the right word."""
    arguments = case.arguments
    logits = 60.0 * np.eye(arguments["logits"].shape[-1])[arguments["answers"]]
    return as_expected(run, varied(case, "sure", logits=logits), "where every guess is sure")


def _padding_is_free(run: Run, case: Case) -> Problem | None:
    arguments = case.arguments
    padded = (arguments["answers"] == arguments["pad_id"])[..., None]
    sure = np.where(padded, -3.0 * arguments["logits"], arguments["logits"])
    other = varied(case, "other padding", logits=sure)
    return stays(run, case, other, "the logits of padding change", "the loss")


def _mean(run: Run, case: Case) -> Problem | None:
    """The same sentences twice, and with more padding, cost the same."""
    arguments = case.arguments
    answers = np.pad(arguments["answers"], ((0, 0), (0, 2)), constant_values=arguments["pad_id"])
    logits = np.pad(arguments["logits"], ((0, 0), (0, 2), (0, 0)))
    twice = {"logits": np.repeat(logits, 2, axis=0), "answers": np.repeat(answers, 2, axis=0)}
    when = "every sentence comes twice, with more padding"
    return stays(run, case, varied(case, "twice", **twice), when, "the loss")


LOSS = Spec(
    name="ch09.loss",
    statement="loss(logits, answers, pad_id): mean over real tokens of the cross-entropy; logits (B, L, V), "
    "answers (B, L), positions where the answer is pad_id do not count; pad_id need not be a token, as "
    "-100; one number",
    required=("logits", "answers", "pad_id"),
    reference=_loss_reference,
    baseline=through_log_sum,
    cases=_loss_cases,
    checks=(
        Check(
            "a sure and right guess costs nothing",
            "With all probability on the right word the loss is 0. Cross-entropy takes logits: a "
            "softmax before it is one too many.",
            _sure,
            when=lambda case: bool((case.arguments["answers"] != case.arguments["pad_id"]).all()),
        ),
        Check(
            "padding costs nothing",
            "What the model says where there is no word must not matter.",
            _padding_is_free,
        ),
        Check(
            "a mean over real tokens",
            "The same sentences twice, or with more padding, must give the same loss.",
            _mean,
        ),
    ),
    mutants=mistakes(
        loss_of_probabilities, loss_of_everything, loss_over_all_places, loss_as_a_sum
    ),
    chapter=9,
    points=2,
)  # fmt: skip

EXERCISES = (EMBED, MASKS, DECODER_LAYER, COUNT, LOSS)
