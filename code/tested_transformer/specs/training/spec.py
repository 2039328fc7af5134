"""The Specs of training: teacher forcing, one step, evaluation, and the two learning rates.

A step and an evaluation are judged on a model so small that its gradient can be written down: a
decoder without attention, which adds up what was asked and what was read so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import reference
from ...data.batches import Batch
from ...data.vocabulary import BOS, EOS, PAD
from ...training.losses import cross_entropy, token_accuracy
from ..checks import as_expected, varied
from ..compare import Problem, compare, unchanged
from ..mistakes import mistakes_in
from ..spec import EQUAL, SHAPE, UNTOUCHED, Case, Check, Run, Spec
from . import mutants


def _same(run: Run, case: Case, when: str, what: str, **changes: Any) -> Problem | None:
    """The same words are added up, so that both answers round as the formula does on these."""
    before, tolerance = run.value(case), 2 * run.expected(case)[1]
    return unchanged(before, run.value(case, **changes), tolerance, when, what)


# --- Teacher forcing ------------------------------------------------------------------------------


def slow_teacher_forcing(sentences: Sequence[Sequence[int]]) -> np.ndarray:
    """Word by word: what is read and what is to be said, (2, B, L)."""
    rows = np.full((2, len(sentences), max(map(len, sentences)) + 1), PAD)
    for b, words in enumerate(sentences):
        for place, word in enumerate((*words, EOS)):
            rows[1, b, place] = word
            rows[0, b, place] = words[place - 1] if place else BOS
    return rows


def read_pair(answer: Any, arguments: dict[str, Any]) -> Tensor:
    """Both as one tensor (2, B, L); what is read where nothing is to be said is nobody's business."""
    target, expected = answer
    return torch.stack([target.masked_fill(expected == PAD, PAD), expected])


def _sentence_cases(rng: np.random.Generator) -> list[Case]:

    def case(label: str, *lengths: int, vocab: int = 20) -> Case:
        rows = [(rng.integers(vocab, size=n) + 4).tolist() for n in lengths]
        return Case(label, {"sentences": rows})

    return [
        case("one word", 1),
        case("one sentence", 3),
        case("two of a length", 2, 2),
        case("a short and a long one", 2, 4),
        case("an empty one", 3, 0, 1),
        case("five sentences", *(int(n) for n in rng.integers(1, 7, size=5))),
        case("nothing to say", 0, 0),
        case("one word again and again", 4, 3, vocab=1),
        case("a long one", 600, 2),
        case("a large vocabulary", 4, 3, vocab=200_000),
    ]


def _both(run: Run, case: Case) -> tuple[list[list[int]], list[list[int]]]:
    """What is read and what is said, row by row, without padding."""
    target, expected = run.value(case)
    said = [[int(n) for n in row if n != PAD] for row in expected]
    return [[int(n) for n in row[: len(s)]] for row, s in zip(target, said, strict=True)], said


def _reads_behind(run: Run, case: Case) -> Problem | None:
    for read, said in zip(*_both(run, case), strict=True):
        if read[1:] != said[:-1]:
            return Problem(f"after the first word, {said[:-1]} is read", f"{read[1:]}")
    return None


def _says_first(run: Run, case: Case) -> Problem | None:
    for words, said in zip(case.arguments["sentences"], _both(run, case)[1], strict=True):
        if words and said[:1] != [words[0]]:
            return Problem(f"{words[0]} is said first", f"{said[:1]}")
    return None


def _says_end(run: Run, case: Case) -> Problem | None:
    for words, said in zip(case.arguments["sentences"], _both(run, case)[1], strict=True):
        if said[len(words) : len(words) + 1] != [EOS]:
            return Problem(f"{[*words, EOS]} is said", f"{said}")
    return None


def _padded(run: Run, case: Case) -> Problem | None:
    lengths = np.array([len(words) + 1 for words in case.arguments["sentences"]])
    expected = run.value(case)[1]
    after = np.arange(expected.shape[1]) >= lengths[:, None]
    return compare(np.where(after, PAD, expected), expected, 0.0, "the expected words")


def _int64(run: Run, case: Case) -> Problem | None:
    dtypes = {str(part.dtype) for part in run.answer(case.tensors())}
    return None if dtypes == {"torch.int64"} else Problem("torch.int64", ", ".join(sorted(dtypes)))


TEACHER_FORCING = Spec(
    name="teacher_forcing",
    statement="teacher_forcing(sentences) -> (target, expected), what the decoder reads and what it "
    "should say, both (B, L), int64: B lists of token IDs, L the longest and one more; "
    f"BOS = {BOS}, EOS = {EOS}, filled up with PAD = {PAD}",
    required=("sentences",),
    reference=slow_teacher_forcing,
    cases=_sentence_cases,
    read=read_pair,
    usual=(UNTOUCHED,),
    checks=(
        Check(
            "the first word is said first",
            "BOS is read, never said: the first word to say is the sentence's own.",
            _says_first,
        ),
        Check(
            "the end is said",
            "After the last word EOS is to be said, or the model never learns to stop.",
            _says_end,
        ),
        Check(
            "padding is PAD",
            "After EOS nothing is to be said: PAD, which the loss ignores.",
            _padded,
        ),
        Check(
            "what is read ends before what is said",
            "At each position the decoder reads the word before the one that it should say.",
            _reads_behind,
        ),
        SHAPE,
        Check(
            "token IDs are int64",
            "torch's losses take no other whole numbers: F.cross_entropy raises for int32.",
            _int64,
        ),
    ),
    mutants=mistakes_in(mutants, of="teacher_forcing"),
    chapter=10,
)

# --- A model whose gradient can be written down ---------------------------------------------------

TABLES = ("source_table", "target_table", "output")
DATA = ("source", "target", "expected")


class TinyModel(nn.Module):
    """Logits from the mean of what was asked plus the mean of what was read so far.

    It has a dropout that is on in training, and remembers whether it ever ran with gradients on
    (`had_graph`) or in evaluation mode (`rested`), and how often it ran. Shapes: tables (V, D), output (D, V); source (B, S), target (B, L) -> (B, L, V).
    """

    def __init__(self, source_table: Tensor, target_table: Tensor, output: Tensor, dropout: float):
        super().__init__()
        self.source_table = nn.Parameter(source_table.clone(memory_format=torch.contiguous_format))
        self.target_table = nn.Parameter(target_table.clone(memory_format=torch.contiguous_format))
        self.output = nn.Parameter(output.clone(memory_format=torch.contiguous_format))
        self.dropout, self.had_graph, self.rested = nn.Dropout(dropout), False, False
        self.num_calls = 0

    def forward(self, source: Tensor, target: Tensor, causal: bool = True) -> Tensor:
        """Logits for each word to say; without `causal` the whole target is read at every position."""
        self.had_graph |= torch.is_grad_enabled()
        self.rested |= not self.training
        self.num_calls += 1
        places = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool)
        seen = (target != PAD)[:, None] & (places.tril() if causal else places)
        asked = self._mean(source != PAD, self.source_table[source])
        return (
            self.dropout(asked[:, None] + self._mean(seen, self.target_table[target])) @ self.output
        )

    @staticmethod
    def _mean(seen: Tensor, rows: Tensor) -> Tensor:
        share = seen.to(rows.dtype) / seen.sum(-1, keepdim=True).clamp(min=1)
        return share @ rows if seen.ndim == 3 else (share[:, None] @ rows)[:, 0]


def slow_word(source, read, source_table, target_table, output):
    """The logits of one word and the sum before the last map, from what was asked and read."""
    asked = source_table[source[source != PAD]].mean(axis=0)
    hidden = asked + target_table[read[read != PAD]].mean(axis=0)
    return hidden @ output, hidden


def words_of(target: np.ndarray, expected: np.ndarray) -> list[tuple[int, int]]:
    """The places where a word is to be said."""
    return [(b, place) for b, place in np.ndindex(expected.shape) if expected[b, place] != PAD]


def _tiny(rng: np.random.Generator, rows: int, length: int, vocab: int) -> dict[str, Any]:
    """Data of several lengths and weights: the arguments that both Specs share."""
    lengths = rng.permutation(np.resize(np.arange(length, 0, -1), rows))
    lengths[rng.integers(rows)] = length
    words = [rng.integers(4, vocab, size=n) for n in lengths - 1]
    target, expected = slow_teacher_forcing([w.tolist() for w in words])
    source = rng.integers(4, vocab, size=(rows, 3))
    source[0, 2] = PAD
    shapes = {"source_table": (vocab, 3), "target_table": (vocab, 3), "output": (3, vocab)}
    tables = {name: 1.5 * rng.normal(size=shape) for name, shape in shapes.items()}
    return {"source": source, "target": target, "expected": expected, **tables}


def batches_of(source: Tensor, target: Tensor, expected: Tensor, sizes) -> list[Batch]:
    """The rows cut into batches of these sizes."""
    cut = zip(*(data.split(list(sizes)) for data in (source, target, expected)), strict=True)
    return [Batch(*parts) for parts in cut]


# --- One training step ----------------------------------------------------------------------------


def take_steps(
    candidate, source, target, expected, cuts, clip, source_table, target_table, output, rate, momentum
):  # fmt: skip
    """After each step of gradient descent all weights; 1 if the model was and is in training; 1 if no batch
    was read twice."""
    model = TinyModel(source_table, target_table, output, dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    after, start = [], 0
    for sizes in cuts:
        rows = slice(start, start := start + sum(sizes))
        batches = batches_of(source[rows], target[rows], expected[rows], sizes)
        model.num_calls = 0
        candidate(model, optimizer, batches, clip)
        weights = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        facts = [model.training and not model.rested, model.num_calls <= len(batches)]
        after.append(torch.cat([weights, weights.new_tensor(facts)]))
    return torch.stack(after)


def slow_steps(
    source, target, expected, cuts, clip, source_table, target_table, output, rate, momentum
):
    """The gradient word by word, as it is on paper: (p - target) back through two sums."""
    tables = [table.copy() for table in (source_table, target_table, output)]
    moving = [np.zeros_like(table) for table in tables]
    after, start = [], 0
    for sizes in cuts:
        rows = slice(start, start := start + sum(sizes))
        slopes = slow_gradient(source[rows], target[rows], expected[rows], *tables)
        norm = np.sqrt(sum((slope**2).sum() for slope in slopes))
        share = 1.0 if clip is None else min(1.0, clip / norm)
        moving = [momentum * m + share * slope for m, slope in zip(moving, slopes, strict=True)]
        tables = [table - rate * m for table, m in zip(tables, moving, strict=True)]
        after.append(np.concatenate([*(table.ravel() for table in tables), [1.0, 1.0]]))
    return np.stack(after)


def slow_gradient(source, target, expected, *tables):
    """The gradient of the mean loss per word by each of the three tables."""
    slopes = [np.zeros_like(table) for table in tables]
    words = words_of(target, expected)
    for b, place in words:
        asked, read = (row[row != PAD] for row in (source[b], target[b, : place + 1]))
        logits, hidden = slow_word(source[b], target[b, : place + 1], *tables)
        error = reference.softmax(logits)
        error[expected[b, place]] -= 1
        error = error / len(words)
        back = tables[2] @ error
        np.add.at(slopes[0], asked, back / len(asked))
        np.add.at(slopes[1], read, back / len(read))
        slopes[2] += np.outer(hidden, error)
    return slopes


def plain_step(model, optimizer, batches, clip) -> None:
    """The sum over all words, divided by their number; clipped as one; cleared."""
    words = sum(batch.num_tokens for batch in batches)
    for batch in batches:
        logits = model(batch.source, batch.target)
        (cross_entropy(logits, batch.expected, reduction="sum") / words).backward()
    if clip is not None:
        norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        for parameter in model.parameters():
            parameter.grad *= min(1.0, clip / norm)
    optimizer.step()
    optimizer.zero_grad()


def _as_torch_clips(case: Case) -> float:
    """clip_grad_norm_ divides by norm + 1e-6: the step, clip < norm long, is up to 1e-6 shorter. Three times that."""
    return 0.0 if case.arguments["clip"] is None else 3e-6 * len(case.arguments["cuts"])


def _step_cases(rng: np.random.Generator) -> list[Case]:

    def case(
        label, cuts, *, length=3, vocab=7, clip=None, dtype=torch.float64, rate=1.0, momentum=0.0
    ) -> Case:
        data = _tiny(rng, sum(map(sum, cuts)), length, vocab)
        return Case(
            label, {**data, "cuts": cuts, "clip": clip, "rate": rate, "momentum": momentum}, dtype
        )

    without_words = case("a batch without words", ((2, 1),))
    without_words.arguments["expected"][2] = PAD
    without_words.arguments["expected"][0, 0] = EOS

    return [
        case("one sentence", ((1,),)),
        case("two batches", ((1, 2),)),
        case("two steps", ((2,), (2,))),
        case("two steps of unlike batches", ((1, 2), (3, 1)), length=4),
        case("clipped", ((2,),), clip=0.1),
        case("two batches clipped", ((2, 1),), clip=0.05),
        case("too short to be clipped", ((2,),), clip=50.0),
        case("float32", ((1, 2),), dtype=torch.float32),
        case("another rate", ((2, 1),), rate=0.25),
        case("an optimizer with momentum", ((2,), (1, 2)), rate=0.5, momentum=0.9),
        case("clipped, with momentum", ((2,), (2,)), clip=0.1, rate=0.5, momentum=0.5),
        without_words,
    ]


def _precise(case: Case) -> bool:
    return case.dtype == torch.float64


def _plain_descent(case: Case) -> bool:
    """By the gradient itself: the step is as long as it."""
    return case.arguments["rate"] == 1 and case.arguments["momentum"] == 0


def _trains(run: Run, case: Case) -> Problem | None:
    trains = bool(run.value(case)[:, -2].all())
    return None if trains else Problem("a model in training mode", "one in evaluation mode")


def _once(run: Run, case: Case) -> Problem | None:
    once = bool(run.value(case)[..., -1].all())
    return None if once else Problem("the model called once for each batch", "more often")


def _as_one(run: Run, case: Case) -> Problem | None:
    whole = tuple((sum(sizes),) for sizes in case.arguments["cuts"])
    return _same(run, case, "its batches become one", "the weights", cuts=whole)


def _twice(run: Run, case: Case) -> Problem | None:
    data = {name: np.repeat(case.arguments[name], 2, axis=0) for name in DATA}
    cuts = tuple(tuple(2 * size for size in sizes) for sizes in case.arguments["cuts"])
    return _same(run, case, "every sentence is given twice", "the weights", **data, cuts=cuts)


def _padded_more(run: Run, case: Case) -> Problem | None:
    wider = {name: np.pad(case.arguments[name], ((0, 0), (0, 2))) for name in DATA}
    return _same(run, case, "two columns of padding are added", "the weights", **wider)


def _clipped(run: Run, case: Case) -> Problem | None:
    a, slack = case.arguments, run.expected(case)[1]
    before = np.concatenate([a[name].ravel() for name in TABLES])
    step = run.value(case, clip=None)[0, :-2] - before
    wanted = step * min(1.0, a["clip"] / np.linalg.norm(step))
    got = run.value(case)[0, :-2] - before
    if np.linalg.norm(got) > a["clip"] + slack * np.sqrt(got.size):
        return Problem(f"at most {a['clip']:.4g} long", f"{np.linalg.norm(got):.4g} long")
    return compare(wanted, got, 2 * slack, "the step")


def _from_nothing(run: Run, case: Case) -> Problem | None:
    """The second step, taken as the first from where the first step ended."""
    a, tables, start = case.arguments, {}, 0
    first, second = run.value(case)
    for name in TABLES:
        tables[name] = first[start : start + a[name].size].reshape(a[name].shape)
        start += a[name].size
    data = {name: a[name][sum(a["cuts"][0]) :] for name in DATA}
    alone = run.value(case, **data, **tables, cuts=a["cuts"][1:])[0]
    when, tolerance = "it is the first step, from the same weights", 2 * run.expected(case)[1]
    return unchanged(second, alone, tolerance, when, "the second step's end")


TRAINING_STEP = Spec(
    name="training_step",
    statement="take_step(model, optimizer, batches, clip): one step down the gradient of the mean loss "
    "over all words of all batches. model(batch.source, batch.target) gives the logits, batch.expected "
    f"the words, {PAD} where there is none. The norm of the whole gradient is at most clip, unless clip "
    "is None. Nothing of the gradient is left for the next step, and the model stays in training mode",
    required=(*DATA, "cuts", "clip", *TABLES, "rate", "momentum"),
    reference=slow_steps,
    baseline=partial(take_steps, plain_step),
    differentiable=False,
    slack=_as_torch_clips,
    cases=_step_cases,
    build=lambda candidate, arguments: partial(take_steps, candidate),
    checks=(
        Check(
            "the model trains",
            "Dropout belongs to a step: the model runs in training mode and is left in it.",
            _trains,
        ),
        Check(
            "twice the sentences, the same step",
            "The loss is a mean over words: every sentence given twice changes nothing.",
            _twice,
            when=_precise,
        ),
        Check(
            "however the words are cut",
            "Several batches must give the step of one large batch: sum over all words, divide once.",
            _as_one,
            when=lambda case: _precise(case) and max(map(len, case.arguments["cuts"])) > 1,
        ),
        Check(
            "padding teaches nothing",
            "The loss is over words: more places without one must not change the step.",
            _padded_more,
            when=_precise,
        ),
        Check(
            "no step is longer than clip",
            "The gradient of all weights together keeps its direction and is at most clip long.",
            _clipped,
            needs=("clip",),
            when=_plain_descent,
        ),
        Check(
            "each step starts from nothing",
            "The second step must be the one that a fresh start from the same weights would take.",
            _from_nothing,
            when=lambda case: _plain_descent(case) and len(case.arguments["cuts"]) > 1,
        ),
        Check(
            "each batch is run once",
            "A second pass through the model takes as long as the first, and teaches nothing more.",
            _once,
        ),
        Check(
            "the optimizer takes the step",
            "Rate and momentum are the optimizer's own: one optimizer.step(), and none beside it.",
            EQUAL.test,
            when=lambda case: not _plain_descent(case),
        ),
    ),
    mutants=mistakes_in(mutants, of="training_step"),
    chapter=10,
)

# --- Evaluation -----------------------------------------------------------------------------------


def rate(candidate, source, target, expected, sizes, training, source_table, target_table, output):
    """Loss, accuracy, the mode afterwards (1 for training), was a graph kept, do all weights still learn,
    was no batch read twice."""
    model = TinyModel(source_table, target_table, output, dropout=0.5).train(training)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)  # accumulated so far
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    answer = candidate(model, batches_of(source, target, expected, sizes))
    if answer is None or answer is ...:  # an exercise not written yet
        return None
    loss, accuracy = (answer.loss, answer.accuracy) if hasattr(answer, "loss") else answer
    after = nn.utils.parameters_to_vector(model.parameters()).detach()
    kept = torch.equal(before, after) and all(
        p.requires_grad and p.grad is not None and bool((p.grad == 1).all())
        for p in model.parameters()
    )
    facts = (model.training, model.had_graph, kept, model.num_calls <= len(sizes))
    numbers = [float(n) for n in (loss, accuracy, *facts)]
    return torch.tensor(numbers, dtype=model.output.dtype)


def slow_evaluation(source, target, expected, sizes, training, source_table, target_table, output):
    """Word by word: its surprise, and whether it is the likeliest."""
    loss = right = 0
    words = words_of(target, expected)
    for b, place in words:
        read = target[b, : place + 1]
        logits, _ = slow_word(source[b], read, source_table, target_table, output)
        word = expected[b, place]
        loss += reference.cross_entropy(logits[None], np.array([word]), ignore=None)
        right += logits.argmax() == word
    numbers = [loss / len(words), right / len(words), training, 0.0, 1.0, 1.0]
    return np.array(numbers, dtype=output.dtype)


def plain_evaluation(model, batches) -> tuple[float, float]:
    """Sums over words, divided once."""
    was_training, words = model.training, sum(batch.num_tokens for batch in batches)
    model.eval()
    loss = right = 0.0
    with torch.no_grad():
        for batch in batches:
            logits = model(batch.source, batch.target)
            loss += cross_entropy(logits, batch.expected, reduction="sum").item()
            right += token_accuracy(logits, batch.expected) * batch.num_tokens
    model.train(was_training)
    return loss / words, right / words


def _evaluation_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, sizes, *, length=3, vocab=7, training=True, dtype=torch.float64) -> Case:
        data = _tiny(rng, sum(sizes), length, vocab)
        return Case(label, {**data, "sizes": sizes, "training": training}, dtype)

    without_words = case("a batch without words", (2, 1))
    without_words.arguments["expected"][2] = PAD
    without_words.arguments["expected"][0, 0] = EOS

    return [
        case("one sentence", (1,)),
        case("one batch", (3,)),
        case("two batches", (2, 2), length=4),
        case("a small last batch", (4, 1), length=4),
        case("a model in use", (2, 1), training=False),
        case("float32", (2, 2), dtype=torch.float32),
        case("five batches", (1, 2, 1, 3, 2), length=5, vocab=9),
        without_words,
    ]


RATED = "loss and accuracy"


def _no_words(case: Case) -> bool:
    """A batch has none."""
    ends = np.cumsum(case.arguments["sizes"])[:-1]
    return any(not (part != PAD).any() for part in np.split(case.arguments["expected"], ends))


def _all_count(case: Case) -> bool:
    return _precise(case) and not _no_words(case)


def _one_of_both(place: int, what: str) -> Any:
    def test(run: Run, case: Case) -> Problem | None:
        expected, tolerance = run.expected(case)
        return compare(expected[place], run.value(case)[place], tolerance, what)

    return test


def _rated(run: Run, case: Case, when: str, **changes: Any) -> Problem | None:
    before, tolerance = run.value(case)[:2], 2 * run.expected(case)[1]
    return unchanged(before, run.value(case, **changes)[:2], tolerance, when, RATED)


def _any_mode(run: Run, case: Case) -> Problem | None:
    other = not case.arguments["training"]
    return _rated(run, case, "the model comes in the other mode", training=other)


def _no_future(run: Run, case: Case) -> Problem | None:
    """With nothing to say at the last place, it does not matter what is read there."""
    expected, target = (case.arguments[name].copy() for name in ("expected", "target"))
    expected[:, -1] = PAD
    short = varied(case, "short", expected=expected)
    target[:, -1] = np.where(target[:, -1] == 4, 5, 4)
    return _rated(run, short, "the word that is read last changes", target=target)


def _one_batch(run: Run, case: Case) -> Problem | None:
    whole = (sum(case.arguments["sizes"]),)
    return _rated(run, case, "its batches become one", sizes=whole)


def _padding(run: Run, case: Case) -> Problem | None:
    wider = {
        name: np.pad(case.arguments[name], ((0, 0), (0, 2))) for name in ("target", "expected")
    }
    return _rated(run, case, "two columns of padding are added", **wider)


def _left_alone(run: Run, case: Case) -> Problem | None:
    kept = run.value(case)[4]
    wanted = "weights that are as before, learn, and have their gradients"
    return None if kept else Problem(wanted, "some are changed, frozen or without")


def _in_float32(case: Case) -> float:
    """A whole number divided by a whole number is float32 in torch: a right share, less precise."""
    return torch.finfo(torch.float32).eps


def _mode_kept(run: Run, case: Case) -> Problem | None:
    names = {True: "training mode", False: "evaluation mode"}
    before, after = bool(case.arguments["training"]), bool(run.value(case)[2])
    return None if before == after else Problem(names[before], names[after])


def _no_graph(run: Run, case: Case) -> Problem | None:
    kept = run.value(case)[3]
    return Problem("the model called under torch.no_grad()", "with gradients on") if kept else None


EVALUATION = Spec(
    name="evaluation",
    statement="evaluate(model, batches) -> (loss, accuracy), both means over all words, as the model is "
    "when it is used: without dropout, without gradients, without the future. model(batch.source, "
    f"batch.target) gives the logits, batch.expected the words, {PAD} where there is none. The model is "
    "left as it came: its mode, its weights and their gradients",
    required=(*DATA, "sizes", "training", *TABLES),
    reference=slow_evaluation,
    baseline=partial(rate, plain_evaluation),
    differentiable=False,
    slack=_in_float32,
    cases=_evaluation_cases,
    build=lambda candidate, arguments: partial(rate, candidate),
    checks=(
        Check(
            "the mode does not matter",
            "A model in training must get the same numbers: call model.eval() before.",
            _any_mode,
            when=_all_count,
        ),
        Check(
            "padding costs nothing",
            "More places without a word must change neither loss nor accuracy.",
            _padding,
            when=_all_count,
        ),
        Check(
            "the future stays hidden",
            "A word that is read later must not change the loss of an earlier one.",
            _no_future,
            when=lambda case: (
                _all_count(case) and (case.arguments["expected"][:, :-1] != PAD).any()
            ),
        ),
        Check(
            "however the words are cut",
            "The mean is over words: one large batch must give the same.",
            _one_batch,
            when=_all_count,
        ),
        Check(
            "the model comes back as it came",
            "Evaluation between two training steps must leave the mode alone, and so after training.",
            _mode_kept,
        ),
        Check(
            "no graph is kept",
            "Nothing is learned here: under torch.no_grad() no graph uses memory.",
            _no_graph,
        ),
        Check(
            "each batch is run once",
            "Loss and accuracy come from the same logits: a second pass takes as long as the first.",
            _once,
        ),
        Check(
            "a batch without words counts for nothing",
            "The mean of no words is 0 / 0: add up sums, and divide once.",
            EQUAL.test,
            when=_no_words,
        ),
        Check(
            "the loss is the mean surprise",
            "-log p of each word, in nats, without smoothing, over all words.",
            _one_of_both(0, "the loss"),
        ),
        Check(
            "the accuracy is a share of words",
            "Of all words, those that are the model's likeliest.",
            _one_of_both(1, "the accuracy"),
        ),
        Check(
            "the weights are left alone",
            "Evaluation between two steps must not freeze weights, or clear gradients added up so far.",
            _left_alone,
        ),
    ),
    mutants=mistakes_in(mutants, of="evaluation"),
    chapter=10,
)

# --- The paper's rate -----------------------------------------------------------------------------


def _numbers(*values: float) -> tuple[Tensor, ...]:
    """Numbers as tensors, whose operations can be watched."""
    return tuple(torch.tensor(float(value), dtype=torch.float64) for value in values)


def plain_paper_rate(step, d_model, warmup=4000, factor=1.0) -> Tensor:
    """By logarithms: of all ways to write a power the one that rounds most."""
    late = step > warmup
    step, d_model, warmup, factor = (n.log() for n in _numbers(step, d_model, warmup, factor))
    return (factor - d_model / 2 + (-step / 2 if late else step - 1.5 * warmup)).exp()


def _paper_cases(rng: np.random.Generator) -> list[Case]:
    sizes = [(1, 8, 4), (2, 8, 4), (4, 8, 4), (16, 8, 4), (7, 20, 30), (4000, 512, 4000)]
    sizes += [(1, 1, 1), (123_456, 512, 4000), (1_000_000, 1024, 10_000), (1, 4096, 100_000)]
    sizes += [tuple(int(n) for n in rng.integers(1, 500, size=3)) for _ in range(4)]
    cases = [
        Case(f"step {step}", {"step": step, "d_model": d_model, "warmup": warmup})
        for step, d_model, warmup in sizes
    ]
    whole = {"step": 50, "d_model": 32, "warmup": 40, "factor": 2.5}
    return [
        *cases,
        Case("with a factor", whole),
        Case("a factor while it warms up", {**whole, "step": 7, "factor": 0.5}),
        Case("the paper's 4,000", {"step": 9, "d_model": 4}),
        Case("after the paper's 4,000", {"step": 5000, "d_model": 512}),
        Case("a factor alone", {"step": 4001, "d_model": 64, "factor": 2.0}),
    ]


def _ratio(run: Run, case: Case, over: Case, wanted: float, what: str) -> Problem | None:
    """The rate of the one case divided by that of the other; both round."""
    (first, one), (second, two) = run.expected(case), run.expected(over)
    tolerance = wanted * (one / float(first) + two / float(second))
    numerator, denominator = float(run.value(case)), float(run.value(over))
    got = numerator / denominator if denominator else math.inf
    return compare(np.array(wanted), np.array(got), tolerance, what)


def _warming(run: Run, case: Case) -> Problem | None:
    warmup = case.arguments["warmup"]
    top = varied(case, "top", warmup=2 * warmup, step=2 * warmup)
    half = varied(case, "half", warmup=2 * warmup, step=warmup)
    rates = [run.value(case, step=step) for step in (2 * warmup, warmup)]
    return _ratio(run, half, top, 0.5, "rate at half the warm-up to the rate at its end") or (
        None if rates[0] < rates[1] else Problem("less after the warm-up", "more")
    )


def _cooling(run: Run, case: Case) -> Problem | None:
    late, early = (varied(case, f"{n} warm-ups", step=n * case.arguments["warmup"]) for n in (8, 2))
    return _ratio(run, late, early, 0.5, "the share of the rate at four times the step")


def _wide(run: Run, case: Case) -> Problem | None:
    wide = varied(case, "wide", d_model=4 * case.arguments["d_model"])
    return _ratio(run, wide, case, 0.5, "the share of the rate at four times the width")


def _twice_the_factor(run: Run, case: Case) -> Problem | None:
    twice = varied(case, "twice", factor=2 * case.arguments.get("factor", 1.0))
    return _ratio(run, twice, case, 2.0, "the ratio of the rates at twice the factor")


PAPER_RATE = Spec(
    name="paper_rate",
    statement="paper_rate(step, *, d_model, warmup=4000, factor=1.0) -> the learning rate of a step, the "
    "first is 1: factor x d_model^-0.5 x min(step^-0.5, step x warmup^-1.5)",
    required=("step",),
    reference=reference.paper_rate,
    baseline=plain_paper_rate,
    differentiable=False,
    cases=_paper_cases,
    checks=(
        Check(
            "a line at first",
            "While it warms up the rate grows in step with the number of steps, then it falls.",
            _warming,
            needs=("warmup",),
        ),
        Check(
            "a root at last",
            "After the warm-up the rate falls as 1 / sqrt(step): half at four times the step.",
            _cooling,
            needs=("warmup",),
        ),
        Check(
            "four times as wide, half the rate",
            "The rate goes with 1 / sqrt(d_model).",
            _wide,
        ),
        Check(
            "twice the factor, twice the rate",
            "The factor multiplies the rate of every step, whatever else is given.",
            _twice_the_factor,
        ),
    ),
    mutants=mistakes_in(mutants, of="paper_rate"),
    chapter=10,
)

# --- One cycle ------------------------------------------------------------------------------------


def plain_one_cycle(
    step, total, peak, warmup=0.3, start_ratio=25.0, end_ratio=1e4
) -> Tensor:  # fmt: skip
    """The middle of two rates and half their distance: near the end they all but cancel."""
    rises = step <= warmup * total
    step, total, peak, warmup, start, end = _numbers(
        step, total, peak, warmup, start_ratio, end_ratio
    )
    low, turn = peak / start, warmup * total
    if rises:
        share = (turn - step) / (turn - 1)
    else:
        low, share = low / end, (step - turn) / (total - turn)
    return (low + peak) / 2 + (peak - low) / 2 * torch.cos(torch.pi * share)


def _cycle_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, step, total, peak, **options) -> Case:
        return Case(label, {"step": step, "total": total, "peak": peak, **options})

    total = int(rng.integers(20, 400))
    warmup = float(rng.uniform(0.1, 0.9))
    return [
        case("step 1", 1, 10, 1.0),
        case("the peak", 3, 10, 1.0),
        case("the last step", 10, 10, 0.5),
        case("warming up", 4, 60, 2e-3, warmup=0.15),
        case("cooling down", 40, 60, 2e-3, warmup=0.15),
        case("a peak between two steps", 4, 11, 1.0, warmup=0.35),
        case("somewhere", int(rng.integers(1, total)), total, 0.1),
        case("other ends", 1, 20, 1.0, start_ratio=10.0, end_ratio=50.0),
        case("the other end", 20, 20, 1.0, start_ratio=10.0, end_ratio=50.0),
        case("no warm-up, step 1", 1, 20, 1.0, warmup=0.0),
        case("no warm-up, later", 7, 20, 1.0, warmup=0.0),
        case("nothing but warm-up", 9, 20, 1.0, warmup=1.0),
        case("the end of nothing but warm-up", 20, 20, 1.0, warmup=1.0),
        case("a long run", int(rng.integers(1, 100_000)), 100_000, 3e-4, warmup=0.02),
        case("all options", int(rng.integers(1, total)), total, 0.05, warmup=warmup,
             start_ratio=4.0, end_ratio=3.0),
        case("all options, the end", total, total, 0.05, warmup=warmup, start_ratio=4.0,
             end_ratio=3.0),
    ]  # fmt: skip


def _cold(case: Case) -> bool:
    """Without a warm-up the first step has left the peak, which lies at step 0."""
    return case.arguments.get("warmup") == 0


def _starts(run: Run, case: Case) -> Problem | None:
    return as_expected(run, varied(case, "first", step=1), "the first step's rate")


def _ends(run: Run, case: Case) -> Problem | None:
    last = varied(case, "last", step=case.arguments["total"])
    return as_expected(run, last, "the last step's rate")


def _level(run: Run, case: Case) -> Problem | None:
    """Close to the top a cosine falls with the square: its second step down is the larger."""
    top, *later = (
        varied(case, f"step {step}", total=1000, warmup=0.5, step=step) for step in (500, 501, 502)
    )
    problem = as_expected(run, top, "the rate at the end of the warm-up")
    if problem is not None:
        return problem
    rates = [float(run.value(each)) for each in (top, *later)]
    first, second = rates[0] - rates[1], rates[1] - rates[2]
    return None if 0 < 2 * first < second else Problem("it falls slowly at first", "at once")


ONE_CYCLE_RATE = Spec(
    name="one_cycle_rate",
    statement="one_cycle_rate(step, *, total, peak, warmup=0.3, start_ratio=25.0, end_ratio=1e4) -> the "
    "learning rate of a step, 1 to total: from peak / start_ratio along half a cosine to the peak at step "
    "warmup x total, and along another to peak / start_ratio / end_ratio at the last",
    required=("step",),
    reference=reference.one_cycle_rate,
    baseline=plain_one_cycle,
    differentiable=False,
    cases=_cycle_cases,
    checks=(
        Check(
            "the first step is peak / start_ratio",
            "The cycle starts at a share of the peak, 1/25 if nothing is said.",
            _starts,
            when=lambda case: not _cold(case),
        ),
        Check(
            "the last step is nearly nothing",
            "At step `total` the rate is that of the first step divided by end_ratio.",
            _ends,
            when=lambda case: case.arguments.get("warmup") != 1,
        ),
        Check(
            "level at the peak",
            "At the end of the warm-up the rate is the peak, and a cosine leaves it slowly.",
            _level,
        ),
        Check(
            "the warm-up is as long as asked",
            "The peak lies at step warmup x total: between two steps, before the first, at the last.",
            EQUAL.test,
            needs=("warmup",),
        ),
    ),
    mutants=mistakes_in(mutants, of="one_cycle_rate"),
    chapter=10,
)
