"""The Specs of generating: how a word is chosen, how a sentence grows, what a session remembers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import reference
from ...data import BOS, EOS, PAD
from ...models.language_model import LanguageModel, LanguageModelConfig
from ...models.transformer import Transformer, TransformerConfig
from ..checks import as_expected, stays, varied
from ..compare import Problem, compare, unchanged
from ..draw import Draw, attempts
from ..mistakes import mistakes_in
from ..spec import EQUAL, GRADIENTS, SHAPE, UNTOUCHED, Case, Check, Run, Spec
from ..surroundings import seeded
from . import mutants as mutants

NEVER = -30.0  # the score of a word that is never said

# --- The choice of a word -------------------------------------------------------------------------


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def _logits(rng: np.random.Generator, **choices: list[Any]) -> list[Case]:
    """Scores of different sizes, each with one of the choices; some negative throughout."""
    sizes = [(1, 3, 0), (1, 4, -9), (2, 5, 0), (3, 6, 0), (4, 9, -9), (2, 40, 3), (3, 7, 0)]
    cases = []
    for number, (rows, vocab, shift) in enumerate(sizes):
        dtype = torch.float32 if number == len(sizes) - 1 else torch.float64
        arguments = {"logits": 2 * rng.normal(size=(rows, vocab)) + shift}
        for name, values in choices.items():
            value = values[number % len(values)]
            arguments[name] = value(rng, rows, vocab) if callable(value) else value
        label = f"{rows} of {vocab} words" + (", all scores negative" if shift < 0 else "")
        cases.append(Case(label, arguments, dtype))
    return cases


def _sums(run: Run, case: Case) -> Problem | None:
    got = run.value(case)
    vocab = got.shape[-1]
    slack = vocab * run.expected(case)[1] + case.rounding(vocab)  # of each number, and of the sum
    return compare(np.ones(len(got)), got.sum(-1), slack, "the sums of the rows")


def _neutral(**changes: Any) -> Callable[[Run, Case], Problem | None]:
    """With the neutral choice, what comes is what the scores say anyway."""
    return lambda run, case: as_expected(run, varied(case, "neutral", **changes))


def _entropy(probability: np.ndarray) -> np.ndarray:
    logs = np.log(probability, where=probability > 0, out=np.zeros_like(probability))
    return -(probability * logs).sum(-1)


def _flatter(run: Run, case: Case) -> Problem | None:
    cool, hot = (_entropy(run.value(case, temperature=t)) for t in (0.5, 2.0))
    if (hot > cool).all():
        return None
    row = int(np.argmin(hot - cool))
    return Problem(
        f"row {row}: more entropy at temperature 2 than at 0.5",
        f"{cool[row]:.4g} at 0.5, {hot[row]:.4g} at 2",
    )


def _plain_temperature(logits: Tensor, temperature: float) -> Tensor:
    """By logarithms: of all ways to write a softmax the one that rounds most."""
    scaled = logits / temperature
    return (scaled - scaled.logsumexp(-1, keepdim=True)).exp()


def _large_scores(rng: np.random.Generator) -> list[Case]:
    """Scores whose exponentials overflow, before or after they are divided."""
    sizes = {torch.float64: 1000.0, torch.float32: 100.0, torch.bfloat16: 100.0}
    cases = []
    for dtype, size in sizes.items():
        for temperature in (1.0, 0.25):
            logits = size + rng.normal(size=(2, 5))
            arguments = {"logits": logits, "temperature": temperature}
            cases.append(Case("large scores", arguments, dtype))
    return cases


def _drawn_temperature(draw: Draw) -> Case:
    """Any size, temperature and dtype; words that cannot be said."""
    shape = (draw.one_of(2, 1, 5), draw.one_of(4, 1, 300))
    logits = draw.numbers.normal(size=shape) * draw.one_of(1.0, 30.0)
    if shape[1] > 1 and draw.one_of(False, True):
        logits[:, 1] = -np.inf
    temperature = draw.one_of(2.0, 0.1, 0.3, 50.0)
    dtype = draw.one_of(torch.float64, torch.float32, torch.bfloat16, torch.float16)
    return Case("drawn", {"logits": logits, "temperature": temperature}, dtype)


def _can_be_flatter(case: Case) -> bool:
    """Large or half-precision probabilities are 0 and 1 at both temperatures."""
    logits = case.arguments["logits"]
    usual = case.dtype in (torch.float64, torch.float32) and logits.shape[-1] > 1
    return usual and bool(np.isfinite(logits).all()) and float(np.ptp(logits, -1).max()) < 20


TEMPERATURE = Spec(
    name="temperature",
    statement="temperature(logits, temperature): the probabilities of the next word, (B, V) -> (B, V); "
    "the scores are divided by the temperature, which is above 0",
    required=("logits", "temperature"),
    reference=lambda logits, temperature: reference.tempered_softmax(
        logits, temperature=temperature
    ),
    baseline=_plain_temperature,
    cases=lambda rng: [*_logits(rng, temperature=[0.5, 2.0, 0.7, 1.0, 3.0]), *_large_scores(rng)],
    combine=_drawn_temperature,
    num_drawn=6,
    checks=(
        Check("probabilities sum to 1", "Each row is one distribution over the words.", _sums),
        Check(
            "a temperature of 1 changes nothing",
            "At 1 the probabilities are the softmax of the scores.",
            _neutral(temperature=1.0),
        ),
        Check(
            "a higher temperature is flatter",
            "The entropy of the probabilities rises with the temperature.",
            _flatter,
            when=_can_be_flatter,
        ),
    ),
    mutants=mistakes_in(mutants, of="temperature"),
    chapter=11,
)


def _likeliest_stays(run: Run, case: Case) -> Problem | None:
    logits, got = case.tensors()["logits"].double().numpy(), run.value(case)
    for row, scores in enumerate(logits):
        likeliest = np.flatnonzero(scores == scores.max())
        if not (got[row, likeliest] == scores.max()).any():
            wanted = f"row {row}: word {likeliest[0]} with its score, {scores.max():.4g}"
            return Problem(wanted, f"{got[row, likeliest[0]]:.4g}")
    return None


def _exactly_k(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    for row, (scores, got) in enumerate(zip(a["logits"], run.value(case), strict=True)):
        least = np.sort(scores)[::-1][min(a["k"], len(scores)) - 1]
        wanted, kept = (scores >= least) & np.isfinite(scores), np.isfinite(got)
        if (wanted != kept).any():
            return Problem(f"row {row}: words {_words(wanted)}", f"words {_words(kept)}")
    return None


def _words(kept: np.ndarray) -> list[int]:
    return np.flatnonzero(kept).tolist()


def _with_ties(cases: list[Case], **choice: Any) -> list[Case]:
    logits = np.log(np.array([[0.1, 0.3, 0.3, 0.3], [0.3, 0.3, 0.1, 0.3]]))
    return [*cases, Case("words equally likely", {"logits": logits, **choice})]


def kept_scores(logits: Tensor, kept: np.ndarray) -> Tensor:
    """The plain formula of a filter, where it is known which words stay."""
    return logits.masked_fill(~torch.from_numpy(kept), -torch.inf)


def _plain_top_k(logits: Tensor, k: int) -> Tensor:
    scores = logits.detach().numpy()
    least = np.sort(scores, -1)[:, -min(k, scores.shape[1]), None]
    return kept_scores(logits, scores >= least)


def _drawn_top_k(draw: Draw) -> Case:
    """Any size, k and dtype; words that were filtered out before; ties."""
    rows, vocab = draw.one_of(2, 1, 4), draw.one_of(5, 1, 60)
    logits = 3 * draw.numbers.normal(size=(rows, vocab))
    if vocab > 1 and draw.one_of(False, True):
        logits[:, draw.one_of(0, -1)] = -np.inf
    if draw.one_of(False, True):
        logits = np.round(logits)
    dtype = draw.one_of(torch.float64, torch.float32, torch.bfloat16)
    logits = torch.as_tensor(logits).to(dtype).double().numpy()  # what the candidate gets
    return Case("drawn", {"logits": logits, "k": draw.one_of(2, 1, vocab, 1000)}, dtype)


TOP_K = Spec(
    name="top-k",
    statement="top_k(logits, k): (B, V) -> (B, V), -inf for all but the k likeliest words of each row; "
    "words as likely as the k-th stay, and k may be larger than V",
    required=("logits", "k"),
    reference=reference.top_k,
    baseline=_plain_top_k,
    combine=_drawn_top_k,
    num_drawn=8,
    cases=lambda rng: [
        *_with_ties(_logits(rng, k=[1, 2, 3, 1, 4, 50, 2]), k=2),
        Case("scores nearly alike", {"logits": 1 + 1e-4 * rng.normal(size=(2, 12)), "k": 3}),
    ],
    checks=(
        Check(
            "the likeliest word stays",
            "The likeliest word of every row is kept, with its score.",
            _likeliest_stays,
        ),
        Check(
            "exactly the k likeliest",
            "The k likeliest words keep a finite score, and those that tie with the last of them.",
            _exactly_k,
        ),
    ),
    mutants=mistakes_in(mutants, of="top-k"),
    chapter=11,
)


def _kept_probability(run: Run, case: Case) -> Iterator[np.ndarray]:
    """For each row the probabilities of the words that stay."""
    logits = case.tensors()["logits"].double().numpy()
    for row, got in zip(_softmax(logits), run.value(case), strict=True):
        yield row[np.isfinite(got)]


def _enough(run: Run, case: Case) -> Problem | None:
    p = case.arguments["p"]
    for row, kept in enumerate(_kept_probability(run, case)):
        if kept.sum() < p - case.rounding(case.arguments["logits"].shape[-1]):
            return Problem(f"row {row}: words with at least {p}", f"with {kept.sum():.4g}")
    return None


def _smallest(run: Run, case: Case) -> Problem | None:
    logits, p = case.arguments["logits"], case.arguments["p"]
    for row, kept in enumerate(_kept_probability(run, case)):
        needed = _needed(logits[row], p)
        if len(kept) != needed:
            return Problem(f"row {row}: {needed} words", f"{len(kept)}")
    return None


def _needed(scores: np.ndarray, p: float) -> int:
    """How many of the likeliest words have probability p together."""
    if p == 1:
        return int(np.isfinite(scores).sum())
    total = np.sort(_softmax(scores.astype(np.longdouble)))[::-1].cumsum()
    return 1 + int((total < p - np.finfo(np.float64).eps).sum())


def _no_ties(case: Case) -> bool:
    rows = case.tensors()["logits"].tolist()  # as the candidate gets them
    return all(len(set(row)) == len(row) for row in rows)


def _is_clear(case: Case) -> bool:
    """Whether rounding leaves no doubt where a sum crosses p: a right answer may add in any order."""
    logits, p = case.tensors()["logits"].double().numpy(), case.arguments["p"]
    sums = np.sort(_softmax(logits), -1)[:, ::-1].cumsum(-1)
    near = np.abs(sums - p) < 2 * case.rounding(logits.shape[-1])
    return p == 1 or not near.any()


def _clear_cases(rng: np.random.Generator) -> list[Case]:
    """Cases in which it is clear which words stay."""
    choices = [0.3, 0.9, 0.6, 1.0, 0.8, 0.95, 0.75]
    for _ in attempts():
        if all(map(_is_clear, drawn := _logits(rng, p=choices))):
            break
    even = [
        Case("exactly p", {"logits": np.zeros((1, words)), "p": p})
        for words, p in ((4, 0.5), (2, 0.5), (8, 0.75), (4, 0.25))
    ]
    ruled_out = np.array([[2.0, 1.0, -np.inf, 0.0], [-np.inf, 0.0, 3.0, -np.inf]])
    return [
        *_with_ties(drawn, p=0.5),
        *even,
        Case("words ruled out before", {"logits": ruled_out, "p": 0.9}),
        Case("one word of one", {"logits": np.array([[0.3]]), "p": 0.4}),
        *(Case("half precision", {"logits": np.array([[4.0, 2.0, 0.0, -2.0]]), "p": 0.93}, dtype)
          for dtype in (torch.bfloat16, torch.float16)),
        Case("large scores", {"logits": 1000 + rng.normal(size=(2, 5)), "p": 1.0}, torch.float32),
        Case("p = 1 beside a nearly certain word", {"logits": np.array([[20.0, 0.0, -1.0, -2.0]]), "p": 1.0},
             torch.float32),
        Case("all words of many", {"logits": 5 * rng.normal(size=(1, 2000)), "p": 1.0}),
        Case("all words of many", {"logits": 2 * rng.normal(size=(1, 3000)), "p": 1.0}, torch.float32),
    ]  # fmt: skip


def _plain_top_p(logits: Tensor, p: float) -> Tensor:
    return kept_scores(logits, np.isfinite(_slow_top_p(logits.detach().numpy(), p)))


def _slow_top_p(logits: np.ndarray, p: float) -> np.ndarray:
    """p = 1 keeps every word that can be said: no sum below it rounds to 1."""
    return logits if p == 1 else reference.top_p(logits, p)


TOP_P = Spec(
    name="top-p",
    statement="top_p(logits, p): (B, V) -> (B, V), -inf for all but the smallest set of likeliest words "
    "that together have probability p or more; of equally likely words any may stay; 0 < p <= 1",
    required=("logits", "p"),
    reference=_slow_top_p,
    baseline=_plain_top_p,
    cases=_clear_cases,
    checks=(
        Check(
            "the likeliest word stays",
            "The likeliest word of every row is kept, with its score, even if it alone has more.",
            _likeliest_stays,
        ),
        Check(
            "together at least p",
            "The words that stay have at least p: the one that crosses p belongs to them.",
            _enough,
        ),
        Check(
            "p = 1 keeps every word",
            "A rounded sum can reach 1 before the last word: with p = 1 return the scores as they are.",
            _smallest,
            when=lambda case: case.arguments["p"] == 1,
        ),
        Check(
            "no smaller set is enough",
            "Count from the likeliest down and stop as soon as p is reached.",
            _smallest,
        ),
        replace(EQUAL, when=_no_ties),
        replace(GRADIENTS, when=_no_ties),
    ),
    mutants=mistakes_in(mutants, of="top-p"),
    chapter=11,
)


def _said(rng: np.random.Generator, rows: int, vocab: int) -> np.ndarray:
    """Four words for each row; the last comes twice, and not at the end."""
    words = rng.integers(0, vocab, size=(rows, 4))
    words[:, 1] = words[:, 2]
    return words


def _falls(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    wanted, slack = run.expected(case)
    before, after, wanted = (
        np.take_along_axis(s, a["prefix_ids"], 1) for s in (a["logits"], run.value(case), wanted)
    )
    rose = np.argwhere((after - before) * (a["penalty"] - 1) > slack)
    if not len(rose):
        still = np.argwhere(
            (np.abs(after - before) <= slack) & (np.abs(wanted - before) > 2 * slack)
        )
        rose = still if a["penalty"] != 1 else still[:0]
    if not len(rose):
        return None
    place = tuple(rose[0])
    way = "a lower" if a["penalty"] > 1 else "a higher"
    wanted = (
        f"{way} score than {before[place]:.4g} for word {a['prefix_ids'][place]} of row {place[0]}"
    )
    return Problem(wanted, f"{after[place]:.4g}")


def _others(run: Run, case: Case) -> Problem | None:
    a, expected, got = case.arguments, case.arguments["logits"].copy(), run.value(case).copy()
    np.put_along_axis(expected, a["prefix_ids"], 0.0, 1)
    np.put_along_axis(got, a["prefix_ids"], 0.0, 1)
    rounded = torch.from_numpy(expected).to(case.dtype).double().numpy()
    return compare(rounded, got, run.expected(case)[1], "with 0 for what was said, the scores")


def _once(run: Run, case: Case) -> Problem | None:
    twice = np.concatenate([case.arguments["prefix_ids"]] * 2, axis=1)
    return stays(run, case, varied(case, "twice", prefix_ids=twice), "all is said twice")


def _more_prefixes(rng: np.random.Generator) -> list[Case]:
    """Nothing said yet, a long prefix, scores of 0, words that cannot be said, float16."""

    def case(label, length, penalty, rows=2, vocab=6, dtype=torch.float64) -> Case:
        said = rng.integers(0, vocab, size=(rows, length))
        logits = 2 * rng.normal(size=(rows, vocab))
        arguments = {"logits": logits, "prefix_ids": said, "penalty": penalty}
        return Case(label, arguments, dtype)

    special = case("scores of 0 and -inf", 3, 1.5, vocab=8)
    special.arguments["logits"][0, special.arguments["prefix_ids"][0, 0]] = 0.0
    special.arguments["logits"][1, special.arguments["prefix_ids"][1, 0]] = -np.inf
    return [
        case("a long prefix", 40, 1.3, vocab=60),
        case("one word", 1, 2.0, rows=1),
        case("all words", 12, 0.5, vocab=3),
        case("in float16", 5, 1.5, dtype=torch.float16),
        case("in bfloat16", 5, 1.5, dtype=torch.bfloat16),
        special,
        case("nothing said", 0, 1.5),
    ]


def _finite(case: Case) -> bool:
    return bool(np.isfinite(case.arguments["logits"]).all())


REPETITION = Spec(
    name="repetition",
    statement="repetition(logits, said, penalty): (B, V) -> (B, V); the score of each word that stands "
    "in its row of prefix_ids (B, L) is divided by the penalty if it is positive, else multiplied, once",
    required=("logits", "prefix_ids", "penalty"),
    reference=reference.repetition,
    cases=lambda rng: [
        *_logits(rng, prefix_ids=[_said], penalty=[1.5, 2.0, 1.2, 0.8, 1.3, 3.0]),
        *_more_prefixes(rng),
    ],
    checks=(
        Check(
            "a penalty of 1 changes nothing",
            "Where the penalty is 1 the scores are what they were.",
            _neutral(penalty=1.0),
        ),
        Check(
            "words that were not said stay",
            "Only words of the row itself pay, and all others keep their score.",
            _others,
        ),
        Check(
            "a word that was said gets rarer",
            "Above 1 the penalty lowers every score it touches, negative ones too; below 1 it raises.",
            _falls,
            when=_finite,
        ),
        Check(
            "said once or often is the same",
            "The penalty asks whether a word was said, not how often.",
            _once,
            when=_finite,
        ),
    ),
    mutants=mistakes_in(mutants, of="repetition"),
    chapter=11,
)

# --- Greedy decoding of a batch -------------------------------------------------------------------


PASTS = 3  # the scores of the next word depend on all words, by one of so many remainders


def drawn_table(
    rng: np.random.Generator, vocab: int, *places: int, spread: float = 2.0, padding: int = PAD
) -> np.ndarray:
    """Scores of the next word, (*places, PASTS, V, V); padding and BOS are never said."""
    table = spread * rng.normal(size=(*places, PASTS, vocab, vocab))
    table[..., [padding, BOS]] = NEVER
    return table


def scores_after(table: Any, prefix_ids: Any) -> Any:
    """The scores that follow each prefix: by its last word, and by all words in their order."""
    length = prefix_ids.shape[1]
    weights = (
        torch.arange(1, length + 1) if isinstance(prefix_ids, Tensor) else range(1, length + 1)
    )
    past = (prefix_ids * (weights if isinstance(weights, Tensor) else np.array(weights))).sum(1)
    return table[past % PASTS, prefix_ids[:, -1]]


def slow_greedy(table, start, max_new, eos, padding) -> np.ndarray:
    """Row by row: after all words so far the likeliest next, until eos."""
    rows = []
    for prefix in start:
        words: list[int] = []
        while len(words) < max_new and eos not in words:
            prefix_ids = np.array([[*prefix, *words]])
            words.append(int(np.argmax(scores_after(table, prefix_ids)[0])))
        rows.append(words + [padding] * (max_new - len(words)))
    return np.array(rows, dtype=int)


def made(candidate: Any) -> Any:
    """A class stands for its objects."""
    return candidate() if isinstance(candidate, type) else candidate


def _build_greedy(candidate: Any, arguments: dict[str, Any]) -> Callable[..., Tensor]:
    def call(table: Tensor, start: Tensor, max_new: int, eos: int, padding: int) -> Tensor:
        return made(candidate)(
            lambda prefix_ids: scores_after(table, prefix_ids), start, max_new, eos, padding
        )

    return call


def _to_full_length(answer: Any, arguments: dict[str, Any]) -> Any:
    """Padded on the right to max_new words: where all rows ended early, both are right."""
    if not isinstance(answer, Tensor) or answer.ndim != 2:
        return answer
    missing = arguments["max_new"] - answer.shape[1]
    padding = arguments["padding"]
    return torch.nn.functional.pad(answer, (0, missing), value=padding) if missing > 0 else answer


def _greedy_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, rows, length, max_new, vocab, ends, eos=EOS, padding=PAD, ended=False) -> Case:
        """The first table drawn whose rows end after so many different numbers of words.

        ended: the prompt holds sentences that have ended.
        """
        for _ in range(1000):
            table = drawn_table(rng, vocab, padding=padding)
            start = rng.integers(3, vocab, size=(rows, length))
            start[(start == eos) | (start == padding)] = 3
            if ended:
                start[:, 0], start[-1, -1] = eos, eos
            tokens = slow_greedy(table, start, max_new, eos, padding)
            lengths = (tokens != padding).sum(1).tolist()
            if len(set(lengths)) == ends and (tokens == eos).any(1).sum() >= min(ends, rows - 1):
                break
        choices = {"max_new": max_new, "eos": eos, "padding": padding}
        return Case(label, {"table": table, "start": start, **choices})

    return [
        case("one sentence", 1, 1, 4, 6, 1),
        case("two sentences, one ends first", 2, 1, 6, 6, 2),
        case("a start of several words", 2, 3, 7, 7, 2),
        case("five sentences", 5, 1, 9, 8, 3),
        case("one word each", 3, 2, 1, 6, 1),
        case("a large vocabulary", 4, 2, 12, 20, 3),
        case("another end", 3, 2, 8, 8, 2, eos=5),
        case("another padding", 3, 1, 8, 8, 2, eos=4, padding=6),
        case("no word", 2, 3, 0, 6, 1),
        case("an end in the prompt", 2, 3, 6, 7, 2, ended=True),
    ]


def _upto_end(row: np.ndarray, eos: int = EOS) -> np.ndarray:
    """The words of a row, EOS included, if there is one."""
    ends = np.flatnonzero(row == eos)
    return row[: ends[0] + 1] if len(ends) else row


def _each_likeliest(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    for number, row in enumerate(run.value(case)):
        prefix = a["start"][number].tolist()
        for word in itertools.takewhile(lambda w: w != a["padding"], _upto_end(row, a["eos"])):
            best = int(scores_after(a["table"], np.array([prefix])).argmax())
            if word != best:
                return Problem(f"row {number}: {best} after {prefix}", f"{word}")
            prefix.append(int(word))
    return None


def _only_padding(run: Run, case: Case) -> Problem | None:
    eos, padding = case.arguments["eos"], case.arguments["padding"]
    for number, row in enumerate(run.value(case)):
        rest = row[len(_upto_end(row, eos)) :]
        if (rest != padding).any():
            return Problem(
                f"row {number}: padding ({padding}) after EOS ({eos})", str(row.tolist())
            )
    return None


def _own_end(run: Run, case: Case) -> Problem | None:
    eos, padding = case.arguments["eos"], case.arguments["padding"]
    for number, row in enumerate(run.value(case)):
        if eos not in row and padding in row:
            wanted = (
                f"row {number}: words up to EOS ({eos}), or {case.arguments['max_new']} of them"
            )
            return Problem(wanted, str(row.tolist()))
    return None


GREEDY_DECODING = Spec(
    name="greedy",
    statement="greedy(next_scores, start, max_new, eos, padding): the new words (B, N) of sentences that "
    "begin with start (B, L); next_scores(said) gives scores (B, V) for all that was said, (B, L'). A row "
    "ends with eos, then only padding follows; N is at most max_new. What start holds ends nothing",
    required=("table", "start", "max_new", "eos", "padding"),
    reference=slow_greedy,
    cases=_greedy_cases,
    build=_build_greedy,
    read=_to_full_length,
    checks=(
        Check(
            "every word is the likeliest",
            "Each row says the word with its own highest score, again and again.",
            _each_likeliest,
        ),
        Check(
            "after the end only padding",
            "A row that said EOS says nothing more, however long the others go on.",
            _only_padding,
        ),
        Check(
            "each row goes on to its own end",
            "A row ends with its own EOS, which is part of it, or at max_new words.",
            _own_end,
        ),
    ),
    mutants=mistakes_in(mutants, of="greedy"),
    chapter=11,
)

# --- Beam search ----------------------------------------------------------------------------------


def _build_beam(candidate: Any, arguments: dict[str, Any]) -> Callable[..., Any]:
    def call(table: Tensor, start: int, num_beams: int, max_new: int, length_penalty: float) -> Any:
        def next_scores(prefix_ids: Tensor) -> Tensor:
            return scores_after(table[prefix_ids.shape[1] - 1], prefix_ids)

        return made(candidate)(next_scores, start, num_beams, max_new, length_penalty)

    return call


def _read_beam(answer: Any, arguments: dict[str, Any]) -> Any:
    """Words, padded to max_new, and the score, in one row."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        return answer
    words, score = (torch.as_tensor(part, dtype=torch.float64).flatten() for part in answer)
    missing = max(0, arguments["max_new"] - len(words))
    return torch.cat([torch.nn.functional.pad(words, (0, missing), value=PAD), score])


def _slow_beam(table, start, num_beams, max_new, length_penalty) -> np.ndarray:
    """It never stops early, and forgets no sentence that ended among the num_beams best steps."""
    running, ended = [(0.0, [])], []
    for length in range(1, max_new + 1):
        steps = []
        for score, words in running:
            scores = scores_after(table[length - 1], np.array([[start, *words]]))[0]
            gains = np.log(reference.softmax(scores))
            steps += [(score + gain, [*words, word]) for word, gain in enumerate(gains)]
        steps.sort(key=lambda step: -step[0])
        for score, words in steps[:num_beams]:
            if words[-1] == EOS or length == max_new:
                ended.append((score / length**length_penalty, words))
        running = [step for step in steps if step[1][-1] != EOS][:num_beams]
    score, words = max(ended)
    return np.array([*words, *[PAD] * (max_new - len(words)), score], dtype=np.float64)


def _plain_beam(table, start, num_beams, max_new, length_penalty) -> Any:
    """The baseline: the same search in the dtype of the case."""
    call = _build_beam(mutants.Beams, {})
    return call(table, start, num_beams, max_new, length_penalty)


def _beam_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, num_beams, max_new, penalty, vocab=8, only=None, spread=1.0) -> Case:
        """A table for each place, so that no two sentences have the same score."""
        table = drawn_table(rng, vocab, max_new, spread=spread)
        if only is not None:
            table[..., [w for w in range(vocab) if w not in only]] = NEVER
        start = int(rng.choice([w for w in only or range(3, vocab) if w != EOS]))
        arguments = {"table": table, "start": start, "num_beams": num_beams, "max_new": max_new}
        return Case(label, {**arguments, "length_penalty": penalty}, torch.float32)

    def garden_path(penalty) -> Case:
        """The likelier second word leads nowhere: after 4 all are even, after 5 the end is near."""
        found = case("as wide as the tree", 13, 3, penalty, 26, few)
        table = found.arguments["table"]
        table[..., few] = 0.1 * rng.normal(size=(3, PASTS, 26, len(few)))
        table[0, :, BOS, 3], table[1, :, 3, 4], table[1, :, 3, 5] = 6.0, 4.0, 3.5
        table[2, :, 5, EOS] = 5.0
        return Case(found.label, {**found.arguments, "start": BOS}, found.dtype)

    few = (EOS, 3, 4, 5)
    return [
        *(case("one beam", 1, 5, 0.0, only=few) for _ in range(3)),
        case("two beams", 2, 3, 1.0),
        *(case("as wide as the tree", 13, 3, p, 26, few) for p in (0.0, 1.0, 2.0, 1.0)),
        garden_path(0.0),
        case("three beams", 3, 6, 1.0),
        case("long ones favored", 4, 8, 2.0),
        case("short ones favored", 4, 6, -1.0),
        case("no penalty", 4, 6, 0.0),
        case("one word", 3, 1, 1.0),
        *(case("many beams, nearly even", 8, 7, p, 16, spread=0.4) for p in (0.5, 1.0, 1.0, 1.5)),
    ]


def _said_and_score(run: Run, case: Case) -> tuple[list[int], float]:
    *words, score = run.value(case).tolist()
    return _upto_end(np.array(words, dtype=int)).tolist(), score


def _log_probability(table: np.ndarray, start: int, words: list[int]) -> float:
    total, prefix = 0.0, [start]
    for place, word in enumerate(words):
        scores = scores_after(table[place], np.array([prefix]))[0]
        total += float(np.log(_softmax(scores)[word]))
        prefix.append(word)
    return total


def _score_of(case: Case, words: list[int]) -> float:
    a = case.arguments
    return _log_probability(a["table"], a["start"], words) / len(words) ** a["length_penalty"]


def _ends_at_end(run: Run, case: Case) -> Problem | None:
    every = run.value(case)[:-1].astype(int)
    prefix_ids = _upto_end(every)
    if (every[len(prefix_ids) :] != PAD).any() or (prefix_ids[-1] != EOS and PAD in prefix_ids):
        return Problem("words up to EOS, or max_new of them", str(every.tolist()))
    return None


def _own_score(run: Run, case: Case) -> Problem | None:
    words, score = _said_and_score(run, case)
    return compare(
        np.array(_score_of(case, words)),
        np.array(score),
        run.expected(case)[1],
        f"score of {words}",
    )


def _as_good_as_greedy(run: Run, case: Case) -> Problem | None:
    greedy = [case.arguments["start"]]
    for scores in case.arguments["table"]:
        greedy.append(int(scores_after(scores, np.array([greedy])).argmax()))
    greedy = _upto_end(np.array(greedy[1:])).tolist()
    least, score = _score_of(case, greedy), _said_and_score(run, case)[1]
    if score >= least - run.expected(case)[1]:
        return None
    return Problem(f"at least greedy's {least:.4g}", f"{score:.4g}")


def _every_sentence(case: Case) -> Iterator[list[int]]:
    """All sentences of words that can be said, ended or of full length."""
    table, longest = case.arguments["table"], case.arguments["max_new"]
    words = [w for w in np.flatnonzero((table > NEVER).any((0, 1, 2))).tolist() if w != EOS]
    for length in range(1, longest + 1):
        for prefix_ids in itertools.product(words, repeat=length - 1):
            for end in [EOS] if length < longest else [EOS, *words]:
                yield [*prefix_ids, end]


def _misses_nothing(run: Run, case: Case) -> Problem | None:
    best = max(_every_sentence(case), key=lambda words: _score_of(case, words))
    words, score = _said_and_score(run, case)
    if score >= _score_of(case, best) - run.expected(case)[1]:
        return None
    return Problem(f"{best}, {_score_of(case, best):.4g}", f"{words}, {score:.4g}")


BEAM_SEARCH = Spec(
    name="beam search",
    statement="beam_search(next_scores, start, num_beams, max_new, length_penalty): the best sentence "
    "after the word start, its words without start, and its score; next_scores(said) gives scores (K, V) "
    "for K beginnings (K, L). A sentence of n words ends with EOS (2) or has max_new words; its score is "
    "its log-probability / n^length_penalty. At each length the num_beams likeliest steps count",
    required=("table", "start", "num_beams", "max_new", "length_penalty"),
    reference=_slow_beam,
    baseline=_plain_beam,
    differentiable=False,
    cases=_beam_cases,
    build=_build_beam,
    read=_read_beam,
    checks=(
        Check(
            "a sentence ends at its end",
            "EOS ends a sentence: it leaves the beam, and nothing is said after it.",
            _ends_at_end,
        ),
        Check(
            "the score is the sentence's",
            "Add up the log-probabilities of the words, and divide by n^length_penalty.",
            _own_score,
        ),
        Check(
            "one beam is never worse than greedy",
            "Without a length penalty one beam meets greedy's sentence: it must remember it.",
            _as_good_as_greedy,
            when=lambda case: case.label == "one beam",
        ),
        Check(
            "a beam as wide as the tree misses nothing",
            "A beam with room for every beginning must find the best sentence of all.",
            _misses_nothing,
            when=lambda case: case.label == "as wide as the tree",
        ),
    ),
    mutants=mistakes_in(mutants, of="beam search"),
    chapter=11,
)

# --- Sessions: a model with a memory --------------------------------------------------------------


@cache
def tiny_model(kind: type[nn.Module], config: TransformerConfig, seed: int) -> nn.Module:
    """A model in evaluation; the seed decides its weights."""
    with seeded(seed):
        model = kind(config).double().eval()
        for name, weight in model.named_parameters():
            if "positions" in name:  # drawn small: here they must count
                nn.init.normal_(weight)
    return model


def _model_for(source: Any, config: TransformerConfig, seed: int) -> nn.Module:
    return tiny_model(LanguageModel if source is None else Transformer, config, seed)


def _build_session(candidate: Any, arguments: dict[str, Any]) -> Callable[..., Tensor | None]:
    """Feed the chunks to a new session, rearrange the rows in between, put the scores together."""

    @torch.no_grad()
    def call(source, config, seed, chunks, moves) -> Tensor | None:
        model, found = _model_for(source, config, seed), []
        state = candidate(model) if source is None else candidate(model, source)
        for chunk, rows in zip(chunks, (*moves, None), strict=True):
            found.append(state.feed(torch.tensor(chunk)))
            if found[-1] is None:  # an exercise not written yet
                return None
            if rows is not None:
                state.reorder(torch.tensor(rows))
        return torch.cat(found)

    return call


def histories(source, chunks, moves) -> Iterator[tuple[Any, np.ndarray]]:
    """After each chunk: every row's source, and all that was said on its way."""
    prefix_ids = np.zeros((len(chunks[0]), 0), dtype=int)
    for chunk, rows in zip(chunks, (*moves, None), strict=True):
        prefix_ids = np.concatenate([prefix_ids, chunk], axis=1)
        yield source, prefix_ids
        if rows is not None:
            prefix_ids = prefix_ids[list(rows)]
            source = source if source is None else source[list(rows)]


@torch.no_grad()
def plain_pass(source, config, seed, chunks, moves) -> Tensor:
    """The model without a cache, asked anew for each chunk."""
    model, found = _model_for(source, config, seed), []
    for read, prefix_ids in histories(source, chunks, moves):
        asked = [torch.as_tensor(ids) for ids in (read, prefix_ids) if ids is not None]
        found.append(model(*asked)[:, -1])
    return torch.cat(found)


def one_pass(**arguments: Any) -> np.ndarray:
    """The reference. It rounds in float64 as a session does."""
    return plain_pass(**arguments).numpy()


def _decoding_cases(rng: np.random.Generator) -> list[Case]:
    small = {
        "d_model": 6, "num_heads": 2, "d_ff": 8, "dropout": 0.2, "max_length": 16,
    }  # fmt: skip

    seed = int(rng.integers(2**31))

    def case(label, lengths, sizes, *, source=None, moves=None, same=False, gaps=(), **changes):
        """lengths: of the first chunk's rows, padded on the left. source: lengths, padded right."""
        config = LanguageModelConfig(11, num_layers=2, **small | changes)
        if source is not None:
            layers = {"num_encoder_layers": 1, "num_decoder_layers": 2}
            config = TransformerConfig(11, **layers, **small | changes)
        first = rng.integers(3, 11, size=(len(lengths), sizes[0]))
        for row, length in zip(first, lengths, strict=True):
            row[: sizes[0] - length] = PAD
        counts = [len(lengths)]  # of rows, which a move may change
        for rows in moves or [None] * (len(sizes) - 1):
            counts.append(counts[-1] if rows is None else len(rows))
        rest = [rng.integers(3, 11, size=size) for size in zip(counts[1:], sizes[1:], strict=True)]
        for place in gaps:
            rest[place - 1][0, 0] = PAD
        chunks = [first[:1].repeat(len(first), 0) if same else first, *rest]
        ids = None if source is None else rng.integers(3, 11, size=(len(source), max(source)))
        for row, length in zip(ids if source else (), source or (), strict=True):
            row[length:] = PAD
        return Case(label, {
            "source": ids, "config": config, "seed": seed,
            "chunks": tuple(chunk.tolist() for chunk in chunks),
            "moves": tuple(moves or [None] * (len(chunks) - 1)),
        })  # fmt: skip

    learned, swap = {"positions": "learned", "norm_placement": "pre"}, [1, 0]
    return [
        case("one by one", [1], (1, 1, 1)),
        case("one by one, learned positions", [1, 1], (1, 1, 1, 1), **learned),
        case("one by one, a translation", [1, 1], (1, 1, 1), source=[4, 2]),
        case("a prompt, then chunks", [3, 3], (3, 1, 2), **learned),
        case("chunks of a translation", [2], (2, 3), source=[3]),
        case("prompts of three lengths", [4, 1, 2], (4, 1, 1)),
        case("prompts of two lengths, learned positions", [1, 3], (3, 1, 2), **learned),
        case("starts of two lengths, a translation", [1, 3], (3, 1), source=[2, 3]),
        case("rows rearranged", [2, 2, 2], (2, 1, 1), moves=([1, 1, 0], [2, 0, 1])),
        case("rows of a translation", [1, 1], (1, 2), source=[3, 3], moves=(swap,)),
        case("two sources, one beginning", [1, 1], (1, 1, 1), source=[4, 2], moves=(swap, swap),
             same=True),
        case("padded rows rearranged", [3, 1, 2], (3, 1, 1), moves=([2, 2, 0], [0, 2, 1]),
             source=[2, 4, 1], **learned),
        case("fewer rows, then more", [2, 2, 2], (2, 1, 1, 1), moves=([2, 0], [1, 1, 0, 1], None)),
        case("more rows, then fewer, a translation", [1, 2], (2, 1, 1), source=[3, 1],
             moves=([1, 0, 1], [2])),
        case("padding in a later chunk", [2, 2], (2, 2, 2), gaps=(1,)),
        case("a long text", [9, 7], (9, 8, 1, 2), max_length=32, **learned),
    ]  # fmt: skip


def _moved(case: Case) -> bool:
    return any(rows is not None for rows in case.arguments["moves"])


def _padded(case: Case) -> bool:
    return any(PAD in row for chunk in case.arguments["chunks"] for row in chunk)


def _several(case: Case) -> bool:
    return max(len(chunk[0]) for chunk in case.arguments["chunks"]) > 1


def _each_alone(run: Run, case: Case) -> Problem | None:
    """A row without its padding, and without the others, gets the scores that it gets in the batch."""
    a, got = case.arguments, run.value(case)
    rows = len(a["chunks"][0])
    for row in range(rows):
        own = [[[w for w in chunk[row] if w != PAD]] for chunk in a["chunks"]]
        source = a["source"] if a["source"] is None else a["source"][row : row + 1]
        alone = run.value(case, chunks=tuple(own), source=source)
        when, tolerance = f"row {row} stands alone", 2 * run.expected(case)[1]
        problem = unchanged(got[row::rows], alone, tolerance, when, f"scores of row {row}")
        if problem:
            return problem
    return None


def _rows_stay(case: Case) -> bool:
    """As many as before, whatever the moves."""
    return len({len(chunk) for chunk in case.arguments["chunks"]}) == 1


def _beside(run: Run, case: Case) -> Problem | None:
    """Another state of the same model is fed other tokens in between."""

    class Beside:
        def __init__(self, *given: Any) -> None:
            self.one, self.other = run.candidate(*given), run.candidate(*given)

        def reorder(self, rows: Tensor) -> None:
            self.one.reorder(rows)

        def feed(self, tokens: Tensor) -> Any:
            if len(tokens) == len(case.arguments["chunks"][0]):
                self.other.feed(torch.where(tokens == PAD, PAD, 13 - tokens))
            return self.one.feed(tokens)

    before, after = run.value(case), Run(run.spec, Beside).value(case)
    when = "another state of the same model is fed in between"
    return unchanged(before, after, 2 * run.expected(case)[1], when, "the scores")


def _same_beginning(case: Case) -> bool:
    return case.label == "two sources, one beginning"


DECODING = Spec(
    name="decoding",
    statement="A class Session(model), or Session(model, source) for a Transformer, source (B, S): "
    "feed(tokens) takes the next tokens (B, L) and gives the scores (B, V) of the word after the last; "
    f"reorder(rows) keeps these rows, in this order. What was said before is remembered; {PAD} is no word",
    required=("source", "config", "seed", "chunks", "moves"),
    reference=one_pass,
    baseline=plain_pass,
    differentiable=False,
    cases=_decoding_cases,
    build=_build_session,
    usual=(replace(SHAPE, when=_rows_stay), UNTOUCHED),
    checks=(
        Check(
            "one by one equals one pass",
            "A word's place is that in the whole text, and it reads everything before it.",
            EQUAL.test,
            when=lambda case: not (_moved(case) or _padded(case) or _several(case)),
        ),
        Check(
            "several at once equal one pass",
            "Of a chunk of several words, the scores after the last are asked for.",
            EQUAL.test,
            when=lambda case: _several(case) and not (_moved(case) or _padded(case)),
        ),
        Check(
            "padding changes nothing",
            "A padded row goes on as it would alone: padding is hidden, and is no word to count.",
            _each_alone,
            when=lambda case: _padded(case) and not _moved(case),
        ),
        Check(
            "a row takes its past along",
            "When beams are rearranged, keys and values of what was said move with them.",
            EQUAL.test,
            when=lambda case: _moved(case) and case.arguments["source"] is None,
        ),
        Check(
            "a row takes its source along",
            "When beams are rearranged, what was read of the source moves with them.",
            EQUAL.test,
            when=_same_beginning,
        ),
        Check(
            "each state remembers for itself",
            "Two texts are written side by side with one model: what was said belongs to a state, not to "
            "the model or the class.",
            _beside,
            when=lambda case: not _moved(case) and len(case.arguments["chunks"]) > 2,
        ),
    ),
    mutants=mistakes_in(mutants, of="decoding"),
    chapter=11,
)  # fmt: skip
