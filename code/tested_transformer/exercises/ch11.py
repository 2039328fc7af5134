"""Exercises of chapter 11: generating."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data import EOS, PAD
from ..specs.checks import as_expected, stays, varied
from ..specs.compare import Problem, compare
from ..specs.generation.spec import TOP_P
from ..specs.mistakes import mistake, mistakes
from ..specs.spec import Case, Check, Run, Spec

FLOAT32 = torch.finfo(torch.float32).eps

# --- A temperature for two words ------------------------------------------------------------------


def _temperature_reference(gap: float, p: float) -> float:
    """Cool down until the likelier word has p: by bisection, not by the formula."""
    low, high = math.log(1e-9), math.log(1e9)
    for _ in range(200):
        middle = (low + high) / 2
        found = 1 / (1 + math.exp(-min(gap / math.exp(middle), 700)))
        low, high = (middle, high) if found > p else (low, middle)
    return math.exp(middle)


@mistake(
    "a probability for the odds",
    rejected_by="the likelier word gets p",
    cause="log p in place of log(p / (1 - p)): the other word has a probability too.",
)
def temperature_from_the_logarithm(gap, p):
    """As if the other word had probability 1."""
    return -gap / math.log(p)


@mistake(
    "the temperature upside down",
    rejected_by="twice the gap, twice the temperature",
    cause="1/temperature, the number that multiplies the scores.",
)
def temperature_upside_down(gap, p):
    """The scale for the temperature."""
    return math.log(p / (1 - p)) / gap


@mistake(
    "odds without a logarithm",
    rejected_by="the likelier word gets p",
    cause="The softmax is an exponential: undo it with a logarithm.",
)
def temperature_without_logarithm(gap, p):
    """Odds where log-odds are meant."""
    return gap / (p / (1 - p))


def _temperature_cases(rng: np.random.Generator) -> list[Case]:
    pairs = [(2.0, 0.75), (1.0, 0.9), (math.log(3), 0.75), (0.1, 0.51), (5.0, 0.999)]
    pairs += [(40.0, 0.9), (1e-3, 0.6), (300.0, 0.51)]
    pairs += [(float(rng.uniform(0.2, 6)), float(rng.uniform(0.55, 0.98))) for _ in range(3)]
    return [Case(f"gap {gap:.3g}, p {p:.3g}", {"gap": gap, "p": p}) for gap, p in pairs]


def _odds(run: Run, case: Case) -> Problem | None:
    gap, p = case.arguments["gap"], case.arguments["p"]
    temperature = float(run.value(case))
    if not temperature > 0:
        return Problem("a temperature above 0", f"{temperature:.4g}")
    found = 1 / (1 + math.exp(-min(gap / temperature, 700)))
    what = f"at temperature {temperature:.4g}, the likelier word's probability"
    share = run.expected(case)[1] / float(
        run.expected(case)[0]
    )  # by which the temperature may be off
    slack = 2 * p * (1 - p) * math.log(p / (1 - p)) * share  # dp/dT = p (1 - p) log-odds / T
    return compare(np.array(p), np.array(found), slack, what)


def _doubles(run: Run, case: Case) -> Problem | None:
    twice = varied(case, "twice", gap=2 * case.arguments["gap"])
    slack = 2 * run.expected(case)[1] + run.expected(twice)[1]
    what = "the change from twice the temperature to that for twice the gap"
    return compare(np.array(0.0), run.value(twice) - 2 * run.value(case), slack, what)


def _by_bisection(case: Case) -> float:
    """The reference searches in float64, and an answer may search too: six digits are enough."""
    return 1e-6 * _temperature_reference(**case.arguments)


TEMPERATURE_FOR = Spec(
    name="ch11.temperature_for",
    statement="temperature_for(gap, p): the temperature at which the likelier of two words has "
    "probability p; its score is larger by gap > 0, and 1/2 < p < 1",
    required=("gap", "p"),
    reference=_temperature_reference,
    slack=_by_bisection,
    cases=_temperature_cases,
    checks=(
        Check(
            "twice the gap, twice the temperature",
            "Only gap / temperature counts.",
            _doubles,
        ),
        Check(
            "the likelier word gets p",
            "With two words, p / (1 - p) = exp(gap / temperature).",
            _odds,
        ),
    ),
    mutants=mistakes(
        temperature_from_the_logarithm, temperature_upside_down, temperature_without_logarithm
    ),
    chapter=11,
    points=1,
)  # fmt: skip

# --- The log-probability of a sentence ------------------------------------------------------------


def _log_probability_reference(logits: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Word by word, up to EOS."""
    totals = np.zeros(len(words), dtype=logits.dtype)
    for b, row in enumerate(words):
        for place, word in enumerate(row):
            if word == PAD:
                break
            totals[b] += _log_softmax(logits[b, place])[word]
            if word == EOS:
                break
    return totals


def _gained(logits: Tensor, words: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(2, words[..., None])[..., 0]


@mistake(
    "the logarithm of a product",
    rejected_by="even scores cost log V a word",
    cause="A thousand probabilities multiplied are 0 in any format: add logarithms.",
)
def product_of_probabilities(logits, words):
    """Multiplied, then the logarithm."""
    probability = logits.softmax(-1).gather(2, words[..., None])[..., 0]
    return probability.masked_fill(words == PAD, 1.0).prod(-1).log()


@mistake(
    "padding scored as a word",
    rejected_by="padding costs nothing",
    cause="The sum runs over all places.",
)
def padding_counted(logits, words):
    """All places."""
    return _gained(logits, words).sum(-1)


@mistake(
    "the end is free",
    rejected_by="even scores cost log V a word",
    cause="EOS is left out like padding; but stopping there has a probability.",
)
def end_not_counted(logits, words):
    """Words alone."""
    return _gained(logits, words).masked_fill((words == PAD) | (words == EOS), 0.0).sum(-1)


@mistake(
    "a mean of logarithms",
    rejected_by="even scores cost log V a word",
    cause="Divided by the number of words.",
)
def mean_for_sum(logits, words):
    """Divided by the number of words."""
    real = words != PAD
    return _gained(logits, words).masked_fill(~real, 0.0).sum(-1) / real.sum(-1)


@mistake(
    "scores for log-probabilities",
    rejected_by="a number added to all scores changes nothing",
    cause="log_softmax is missing.",
)
def scores_as_they_come(logits, words):
    """No softmax."""
    found = logits.gather(2, words[..., None])[..., 0]
    return found.masked_fill(words == PAD, 0.0).sum(-1)


@mistake(
    "shifted once too often",
    rejected_by="even scores cost log V a word",
    cause="Here logits[n] scores words[n]; the shift belongs to the model's input.",
)
def one_place_late(logits, words):
    """The scores after a word for the word itself."""
    later = _gained(logits[:, :-1], words[:, 1:])
    return later.masked_fill(words[:, 1:] == PAD, 0.0).sum(-1)


def _log_probability_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, lengths, width, vocab, dtype=torch.float64, scale=2.0) -> Case:
        """lengths: with EOS; a row as long as the width has no EOS."""
        words = rng.integers(3, vocab, size=(len(lengths), width))
        for row, length in zip(words, lengths, strict=True):
            row[length:] = PAD
            if 0 < length < width:
                row[length - 1] = EOS
        logits = scale * rng.normal(size=(*words.shape, vocab))
        return Case(label, {"logits": logits, "words": words}, dtype)

    filtered = case("words ruled out", [3, 2], 3, 6)
    filtered.arguments["logits"][..., :2] = -np.inf  # neither EOS nor a word of the sentences
    filtered.arguments["logits"][1, 2, 0] = 0.0  # padding's own
    return [
        case("two words", [2], 2, 5),
        case("a sentence that ends", [3], 4, 6),
        case("three lengths", [4, 1, 2], 4, 7),
        case("a batch", [5, 6, 3, 2], 6, 9),
        case("a thousand words", [1000, 999], 1000, 8),
        case("large scores", [3, 4], 4, 6, scale=500.0),
        case("float32", [3, 4, 1], 4, 6, torch.float32),
        case("large scores in float32", [3, 4], 4, 6, torch.float32, 60.0),
        case("nothing but padding", [2, 0], 3, 5),
        case("one word of a large vocabulary", [1, 1], 2, 900),
        filtered,
    ]


def _likelier_is_more(run: Run, case: Case) -> Problem | None:
    """One score for all words of a place, added, changes no probability."""
    shifted = varied(case, "shifted", logits=case.arguments["logits"] + 3.0)
    return stays(run, case, shifted, "3 is added to all scores", "the sums")


def _padding_is_nothing(run: Run, case: Case) -> Problem | None:
    padding = (case.arguments["words"] == PAD)[..., None]
    logits = np.where(padding, -case.arguments["logits"], case.arguments["logits"])
    other = varied(case, "other", logits=logits)
    return stays(run, case, other, "scores change where padding stands", "the sums")


def _coin(run: Run, case: Case) -> Problem | None:
    """With even scores each word, EOS included, costs log V."""
    even = varied(case, "even", logits=0 * case.arguments["logits"])
    return as_expected(run, even, "with all scores 0, the sums")


def _plain_log_probability(logits: Tensor, words: Tensor) -> Tensor:
    return _gained(logits, words).masked_fill(words == PAD, 0.0).sum(-1)


def _in_any_order(case: Case) -> float:
    """N terms added one by one round up to N times, each time by eps of at most their sum."""
    longest = case.arguments["logits"].shape[1]
    total = float(np.abs(_log_probability_reference(**case.arrays())).max())
    return torch.finfo(case.dtype).eps * longest * total


def _of_usual_size(case: Case) -> bool:
    """Scores whose exponentials overflow in no formula, and a word in each row."""
    small = float(np.abs(case.arguments["logits"]).max()) < 50
    return small and bool((case.arguments["words"] != PAD).any(-1).all())


LOG_PROBABILITY = Spec(
    name="ch11.log_probability",
    statement="log_probability(logits, words): the log-probability of each sentence, (B); logits "
    "(B, N, V), words (B, N): logits[b, n] scores words[b, n]. EOS (2) counts, padding (0) after it "
    "does not",
    required=("logits", "words"),
    reference=_log_probability_reference,
    baseline=_plain_log_probability,
    slack=_in_any_order,
    cases=_log_probability_cases,
    checks=(
        Check(
            "a number added to all scores changes nothing",
            "Scores mean something only after the softmax over the words.",
            _likelier_is_more,
            when=_of_usual_size,
        ),
        Check(
            "padding costs nothing",
            "What stands after EOS is no word.",
            _padding_is_nothing,
            when=_of_usual_size,
        ),
        Check(
            "even scores cost log V a word",
            "With V words equally likely each one costs log V, EOS like any other.",
            _coin,
            when=lambda case: bool(np.isfinite(case.arguments["logits"]).all()),
        ),
    ),
    mutants=mistakes(
        product_of_probabilities, padding_counted, end_not_counted, mean_for_sum,
        scores_as_they_come, one_place_late
    ),
    chapter=11,
    points=2,
)  # fmt: skip

# --- Where greedy fails ---------------------------------------------------------------------------


def _tree(answer: Any, arguments: dict[str, Any]) -> Any:
    """What greedy finds and what there is: [rows that sum to 1, likelier by the ratio]."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        return answer
    first, second = (torch.as_tensor(part, dtype=torch.float64) for part in answer)
    vocab = arguments["vocab"]
    if first.shape != (vocab,) or second.shape != (vocab, vocab):
        return torch.zeros(0, dtype=torch.bool)
    return torch.tensor([_fair(first) and _fair(second), _misses(first, second, arguments)])


def _fair(rows: Tensor) -> bool:
    return bool((rows >= 0).all() and ((rows.sum(-1) - 1).abs() < rows.shape[-1] * FLOAT32).all())


def _greedy_and_best(first: Tensor, second: Tensor) -> tuple[float, float]:
    """The probability of the sentence that greedy finds, and that of the likeliest."""
    sentences = first[:, None] * second
    likeliest = first >= first.max() * (1 - FLOAT32)  # of equally likely words it may take any
    return float(sentences[likeliest].max()), float(sentences.max())


def _misses(first: Tensor, second: Tensor, arguments: dict[str, Any]) -> bool:
    greedy, best = _greedy_and_best(first, second)
    return best >= _least(arguments["ratio"]) * greedy


def _least(ratio: float) -> float:
    """The ratio, but for what float32 does to two products of two probabilities."""
    return ratio * (1 - 4 * FLOAT32)


@mistake(
    "a first word that is certain",
    rejected_by="greedy misses the likeliest sentence",
    cause="Greedy fails where the first words are nearly even.",
)
def sure_then_unsure(vocab, ratio):
    """The likeliest first word is certain: then no other sentence can be likelier."""
    first = torch.zeros(vocab)
    first[0] = 1.0
    return first, torch.full((vocab, vocab), 1 / vocab)


@mistake(
    "more than certain",
    rejected_by="rows are probabilities",
    cause="A row is one distribution: what one word gets the others lose.",
)
def weights_that_do_not_sum(vocab, ratio):
    """A second word more certain than certain."""
    first = torch.full((vocab,), 1 / vocab)
    first[0] += 0.01
    second = torch.full((vocab, vocab), 1 / vocab)
    second[1, 0] = ratio + 1
    return first, second


@mistake(
    "0.6 and 0.4 for every ratio",
    rejected_by="greedy misses the likeliest sentence",
    cause="The gap between the first words costs a factor: make it as small as needed.",
)
def a_fixed_gap(vocab, ratio):
    """0.6 and 0.4: enough for small ratios only."""
    first = torch.zeros(vocab)
    first[:2] = torch.tensor([0.6, 0.4])
    second = torch.full((vocab, vocab), 1 / vocab)
    second[1] = 0.0
    second[1, 0] = 1.0
    return first, second


def _greedy_fails_cases(rng: np.random.Generator) -> list[Case]:
    sizes = [(2, 1.2), (2, 1.9), (3, 2.5), (5, 4.8), (10, 9.0), (50, 49.0), (2, 1.995), (30, 1.01)]
    vocab = int(rng.integers(3, 40))
    sizes += [(vocab, float(rng.uniform(1.1, 0.99 * vocab)))]
    return [Case(f"{v} words, {r:g} times", {"vocab": v, "ratio": r}) for v, r in sizes]


def _probabilities(run: Run, case: Case) -> Problem | None:
    tables = (torch.as_tensor(t, dtype=torch.float64) for t in run.answer(case.tensors()))
    for name, rows in zip(("first", "each row of second"), tables, strict=True):
        if not _fair(rows):
            sums = [round(total, 4) for total in rows.sum(-1).flatten().tolist()]
            return Problem(f"{name}: numbers from 0 up with the sum 1", f"sums {sums[:5]}")
    return None


def _likelier(run: Run, case: Case) -> Problem | None:
    tables = (torch.as_tensor(t, dtype=torch.float64) for t in run.answer(case.tensors()))
    greedy, best = _greedy_and_best(*tables)
    if best >= _least(case.arguments["ratio"]) * greedy:
        return None
    expected = f"a sentence {case.arguments['ratio']:g} times as likely as greedy's"
    return Problem(expected, f"greedy's {greedy:.4g}, the likeliest {best:.4g}")


GREEDY_FAILS = Spec(
    name="ch11.greedy_fails",
    statement="greedy_fails(vocab, ratio): probabilities of sentences of two words, first (V) and second "
    "(V, V), second[i, j] being that of j after i, such that the likeliest sentence is at least ratio "
    "times as likely as the one that greedy finds; 1 < ratio < V = vocab",
    required=("vocab", "ratio"),
    reference=lambda vocab, ratio: np.array([True, True]),
    cases=_greedy_fails_cases,
    read=_tree,
    checks=(
        Check(
            "rows are probabilities",
            "No number is below 0, and first and each row of second have the sum 1.",
            _probabilities,
        ),
        Check(
            "greedy misses the likeliest sentence",
            "Greedy takes the likeliest first word (of equally likely ones it may take any), then "
            "the best second one; another sentence must be likelier by the ratio.",
            _likelier,
        ),
    ),
    mutants=mistakes(sure_then_unsure, weights_that_do_not_sum, a_fixed_gap),
    chapter=11,
    points=3,
)  # fmt: skip

# --- One step of beam search ----------------------------------------------------------------------


def _log_softmax(row: np.ndarray) -> np.ndarray:
    shifted = row - row.max()
    return shifted - np.log(np.exp(shifted).sum())


def _step_reference(scores: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Every beam with every word, sorted."""
    steps = [
        (score + gain, beam, word)
        for beam, score in enumerate(scores)
        for word, gain in enumerate(_log_softmax(logits[beam]))
    ]
    best = sorted(steps, key=lambda step: -step[0])[: len(scores)]
    return np.array([[beam, word, score] for score, beam, word in best])


def _plain_step(scores: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The scores of the steps that the reference takes."""
    steps = _step_reference(scores.numpy(), logits.numpy())
    beams, words = torch.from_numpy(steps[:, :2]).long().T
    return beams, words, (scores[:, None] + logits.log_softmax(-1))[beams, words]


def _three_rows(answer: Any, arguments: dict[str, Any]) -> Any:
    """Beams, words and scores as columns."""
    if not isinstance(answer, tuple) or len(answer) != 3:
        return answer
    return torch.stack([torch.as_tensor(part, dtype=torch.float64) for part in answer], dim=-1)


def _step(total: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    best, places = total.flatten().topk(len(total))
    return places // total.shape[1], places % total.shape[1], best


@mistake(
    "a step without its past",
    rejected_by="a step costs its word",
    cause="The scores of the beams are not added.",
)
def step_without_the_past(scores, logits):
    """Only the new word counts."""
    return _step(logits.log_softmax(-1))


@mistake(
    "a step by raw scores",
    rejected_by="a step costs its word",
    cause="log_softmax is missing.",
)
def step_of_raw_scores(scores, logits):
    """No softmax."""
    return _step(scores[:, None] + logits)


@mistake(
    "a probability added to a logarithm",
    rejected_by="a step costs its word",
    cause="softmax in place of log_softmax.",
)
def step_of_probabilities(scores, logits):
    """Probabilities added to logarithms."""
    return _step(scores[:, None] + logits.softmax(-1))


@mistake(
    "one step for each beam",
    rejected_by="no better step is left out",
    cause="The maximum is taken within each beam, not over all.",
)
def step_of_each_beam(scores, logits):
    """Every beam keeps its own best word."""
    best, words = (scores[:, None] + logits.log_softmax(-1)).max(-1)
    order = best.argsort(descending=True)
    return order, words[order], best[order]


@mistake(
    "places counted in beams",
    rejected_by="a step costs its word",
    cause="place // K and place % K; a row of the table is V long.",
)
def step_numbered_wrong(scores, logits):
    """The number of beams where the number of words is meant."""
    best, places = (scores[:, None] + logits.log_softmax(-1)).flatten().topk(len(scores))
    return places // len(scores), places % len(scores), best


@mistake(
    "one softmax over all beams",
    rejected_by="a step costs its word",
    cause="The table is flattened before the softmax, not after it.",
)
def step_softmax_of_all(scores, logits):
    """One softmax over all beams."""
    flat = logits.flatten().log_softmax(0).view_as(logits)
    return _step(scores[:, None] + flat)


def _step_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, beams, vocab, near=1.0, scale=1.0, size=0.0) -> Case:
        scores = -np.sort(near * rng.exponential(size=beams))
        shift = size + rng.normal(size=(beams, 1))  # no softmax sees it
        logits = scale * rng.normal(size=(beams, vocab)) + shift
        return Case(label, {"scores": scores, "logits": logits})

    first = case("only the first beam has begun", 3, 6)
    first.arguments["scores"][1:] = -np.inf
    filtered = case("words ruled out", 2, 6)
    filtered.arguments["logits"][:, [0, 3]] = -np.inf

    return [
        case("one beam", 1, 4),
        case("two beams", 2, 5),
        case("two beams, nearly even", 2, 5, 0.01),
        case("three beams, one far ahead", 3, 6, 9.0),
        case("five beams", 5, 8),
        case("eight beams, nearly even", 8, 30, 0.01),
        case("more beams than words", 5, 3, 0.1),
        case("large scores", 3, 6, size=1000.0),
        case("scores far apart", 3, 6, scale=400.0),
        case("long sentences", 3, 6, near=300.0),
        first,
        filtered,
    ]


def _steps_cost(run: Run, case: Case) -> Problem | None:
    logits = case.arguments["logits"]
    shifted = logits - logits.max(-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    for beam, word, score in run.value(case).tolist():
        if beam not in range(len(logits)) or word not in range(logits.shape[1]):
            wanted = f"beams below {len(logits)} and words below {logits.shape[1]}"
            return Problem(wanted, f"beam {beam:g}, word {word:g}")
        expected = case.arguments["scores"][int(beam)] + logs[int(beam), int(word)]
        if expected != score and not abs(expected - score) <= 2 * run.expected(case)[1]:
            place = f"the score of word {word:g} of beam {beam:g} = "
            return Problem(f"{place}{expected:.4g}", f"{place}{score:.4g}")
    return None


def _none_better(run: Run, case: Case) -> Problem | None:
    expected, got = run.expected(case)[0][:, 2], run.value(case)[:, 2]
    return compare(expected, got, run.expected(case)[1], "the scores, best first,")


BEAM_STEP = Spec(
    name="ch11.beam_step",
    statement="beam_step(scores, logits): scores (K), the log-probability of each beam; logits (K, V) of "
    "its next word -> beams (K), words (K), scores (K): the K likeliest steps, best first",
    required=("scores", "logits"),
    reference=_step_reference,
    baseline=_plain_step,
    differentiable=False,
    cases=_step_cases,
    read=_three_rows,
    checks=(
        Check(
            "a step costs its word",
            "The score of a step is that of its beam plus the log-probability of its word.",
            _steps_cost,
        ),
        Check(
            "no better step is left out",
            "Of all K V steps the best K, wherever they come from, best first.",
            _none_better,
        ),
    ),
    mutants=mistakes(
        step_without_the_past, step_of_raw_scores, step_of_probabilities, step_of_each_beam,
        step_numbered_wrong, step_softmax_of_all
    ),
    chapter=11,
    points=3,
)  # fmt: skip

# --- The memory of a cache ------------------------------------------------------------------------


def _bytes_reference(num_layers, d_model, num_heads, num_kv_heads, tokens, batch, bits) -> int:
    """A key and a value for each layer, head, token and sentence."""
    numbers = 0
    for _ in range(num_layers):
        for _ in ("keys", "values"):
            numbers += batch * num_kv_heads * tokens * (d_model // num_heads)
    return numbers * bits // 8


@mistake(
    "only the keys",
    rejected_by="equals the reference",
    cause="There are two tensors in each layer.",
)
def bytes_of_keys(num_layers, d_model, num_heads, num_kv_heads, tokens, batch, bits):
    """Keys only."""
    return num_layers * num_kv_heads * d_model // num_heads * tokens * batch * bits // 8


@mistake(
    "as many heads as queries",
    rejected_by="only heads of keys and values are kept",
    cause="With grouped queries several heads read the same keys and values.",
)
def bytes_of_every_head(num_layers, d_model, num_heads, num_kv_heads, tokens, batch, bits):
    """As many heads as queries have."""
    return 2 * num_layers * d_model * tokens * batch * bits // 8


@mistake(
    "one sentence for the batch",
    rejected_by="in proportion to all but the width of a head",
    cause="Each sentence of a batch, and each beam, has its own keys and values.",
)
def bytes_of_one_sentence(num_layers, d_model, num_heads, num_kv_heads, tokens, batch, bits):
    """The batch is forgotten."""
    return 2 * num_layers * num_kv_heads * d_model // num_heads * tokens * bits // 8


@mistake(
    "bits for bytes",
    rejected_by="equals the reference",
    cause="A byte has eight bits.",
)
def bits_for_bytes(num_layers, d_model, num_heads, num_kv_heads, tokens, batch, bits):
    """Not divided by 8."""
    return 2 * num_layers * num_kv_heads * d_model // num_heads * tokens * batch * bits


@mistake(
    "the table of scores",
    rejected_by="in proportion to all but the width of a head",
    cause="Scores are computed and thrown away; keys and values are what is kept.",
)
def bytes_of_the_scores(num_layers, d_model, num_heads, num_kv_heads, tokens, batch, bits):
    """A table of all pairs of tokens."""
    return num_layers * num_heads * tokens * tokens * batch * bits // 8


SIZES = ("num_layers", "d_model", "num_heads", "num_kv_heads", "tokens", "batch", "bits")


def _bytes_cases(rng: np.random.Generator) -> list[Case]:
    named = {
        "one layer, one head": (1, 4, 1, 1, 1, 1, 32),
        "grouped-query attention": (2, 8, 4, 2, 3, 1, 32),
        "a batch": (2, 8, 2, 2, 5, 3, 16),
        "LLaMA-13B": (40, 5120, 40, 40, 2048, 1, 16),
        "Llama-2-70B": (80, 8192, 64, 8, 4096, 1, 16),
        "one head for all queries, 8 bits": (6, 512, 8, 1, 100, 7, 8),
        "4 bits": (3, 64, 4, 2, 10, 2, 4),
        "a long text": (48, 12_288, 96, 8, 1_000_000, 4, 16),
    }
    groups, d = (int(n) for n in rng.integers(1, 5, size=2))
    heads = groups * int(rng.integers(1, 5))
    more = tuple(map(int, rng.integers(2, 40, size=3)))
    named["other sizes"] = (more[0], heads * d, heads, groups, *more[1:], 16)
    return [Case(label, dict(zip(SIZES, sizes, strict=True))) for label, sizes in named.items()]


def _in_proportion(*names: str) -> Any:
    def test(run: Run, case: Case) -> Problem | None:
        for name in names:
            before = float(run.value(case))
            ratio = (
                float(run.value(case, **{name: 2 * case.arguments[name]})) / before if before else 0
            )
            if ratio != 2:
                return Problem(f"2 times the bytes with twice the {name}", f"{ratio:.4g} times")
        return None

    return test


def _fewer_heads(run: Run, case: Case) -> Problem | None:
    count = case.arguments["num_kv_heads"]
    ratio = float(run.value(case)) / max(float(run.value(case, num_kv_heads=1)), 1.0)
    wanted = f"{count} times the bytes of one KV head"
    return None if ratio == count else Problem(wanted, f"{ratio:.4g} times")


def _whole(answer: Any, arguments: dict[str, Any]) -> Any:
    """A whole number may come as 64.0, from a division."""
    return int(answer) if isinstance(answer, float) and answer.is_integer() else answer


CACHE_BYTES = Spec(
    name="ch11.cache_bytes",
    statement="cache_bytes(num_layers, d_model, num_heads, num_kv_heads, tokens, batch, bits): bytes that "
    "the cache of a decoder-only model takes; num_heads heads for queries, num_kv_heads for keys and "
    "values, each d_model / num_heads wide; bits for one number",
    required=SIZES,
    reference=_bytes_reference,
    cases=_bytes_cases,
    read=_whole,
    checks=(
        Check(
            "in proportion to all but the width of a head",
            "Twice the layers, tokens, sentences or bits take twice the memory.",
            _in_proportion("num_layers", "tokens", "batch", "bits"),
        ),
        Check(
            "only heads of keys and values are kept",
            "A query is asked once and forgotten: with one KV head the cache is that much smaller.",
            _fewer_heads,
        ),
    ),
    mutants=mistakes(
        bytes_of_keys, bytes_of_every_head, bytes_of_one_sentence, bits_for_bytes,
        bytes_of_the_scores
    ),
    chapter=11,
    points=1,
)  # fmt: skip


def _few_words(case: Case) -> bool:
    """Among thousands the cumulative sum rounds to 1 before the last: that is the package's to mend."""
    return case.arguments["logits"].shape[-1] < 1000


EXERCISES = (
    TEMPERATURE_FOR,
    TOP_P.narrowed(_few_words, name="ch11.top_p", points=2),
    LOG_PROBABILITY,
    GREEDY_FAILS,
    BEAM_STEP,
    CACHE_BYTES,
)
