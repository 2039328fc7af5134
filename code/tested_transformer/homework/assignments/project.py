"""The project: a translator of Roman numerals, from its data to the report."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from ... import reference
from ...data.vocabulary import BOS, EOS, PAD
from ...specs.compare import Problem, compare, unchanged
from ...specs.mistakes import Mutant, mistake, mistakes
from ...specs.spec import Case, Check, Run, Spec
from ..checks import right_with, same_with
from ..tasks import Assignment, Hunt, Task, Written

LETTERS = "IVXLCDM"  # numbered from 4 on, as Vocabulary(LETTERS) does
VALUES = (1, 5, 10, 50, 100, 500, 1000)
LARGEST = 3999
FIRST = 4  # the number of I
EPS = 1e-6


def _not_rounded(run: Run, case: Case) -> Problem | None:
    """Numbers that are right but for a rounding in float32."""
    (expected, tolerance), got = run.expected(case), run.value(case)
    if expected.shape != got.shape:
        return None  # the shape has its own check
    far = np.abs(expected - got).max(initial=0.0)
    if tolerance < far <= 4 * torch.finfo(torch.float32).eps * np.abs(expected).max(initial=0.0):
        return Problem(
            f"an error below {tolerance:.0e}, as in float64", f"one of {far:.0e}, as in float32"
        )
    return None


IN_FLOAT64 = Check(
    "computed in float64",
    "The numbers are right to seven digits: at least part of the computation was in float32. "
    "Python's own numbers are float64; a tensor of floats is float32 unless you write "
    "dtype=torch.float64.",
    _not_rounded,
)

# --- Writing a number -----------------------------------------------------------------------------


def _write_reference(number: int, long: bool) -> np.ndarray:
    """Take away the largest piece that still fits, again and again."""
    pieces = dict(zip(LETTERS, VALUES, strict=True))
    if not long:
        pieces |= {"IV": 4, "IX": 9, "XL": 40, "XC": 90, "CD": 400, "CM": 900}
    text = ""
    while number:
        piece = max((p for p in pieces if pieces[p] <= number), key=lambda p: pieces[p])
        text, number = text + piece, number - pieces[piece]
    return np.array([LETTERS.index(letter) + FIRST for letter in text])


def _ids(text: str) -> Tensor:
    return torch.tensor([LETTERS.index(letter) + FIRST for letter in text])


def _numeral(number: int, fours: tuple[str, ...], nines: tuple[str, ...]) -> str:
    """Digit by digit; fours and nines are how units, tens and hundreds write these digits."""
    text = "M" * (number // 1000)
    for place in (2, 1, 0):
        digit, one, five = number // 10**place % 10, LETTERS[2 * place], LETTERS[2 * place + 1]
        plain = five * (digit >= 5) + one * (digit % 5)
        text += {4: fours[place], 9: nines[place]}.get(digit, plain)
    return text


SHORT_FOURS, SHORT_NINES = ("IV", "XL", "CD"), ("IX", "XC", "CM")
LONG_FOURS, LONG_NINES = ("IIII", "XXXX", "CCCC"), ("VIIII", "LXXXX", "DCCCC")


def _both_ways(number: int, long: bool) -> str:
    if long:
        return _numeral(number, LONG_FOURS, LONG_NINES)
    return _numeral(number, SHORT_FOURS, SHORT_NINES)


@mistake(
    "IX in the long form",
    rejected_by="nothing is subtracted in the long form",
    cause="The switch covers the fours, but the nines were forgotten.",
)
def write_short_nines(number, long):
    """IIII, but IX."""
    return _ids(_numeral(number, LONG_FOURS if long else SHORT_FOURS, SHORT_NINES))


@mistake(
    "nine as five and four",
    rejected_by="a five stands once",
    cause="A digit above four is written as five and the rest, even if the rest is four.",
)
def write_nine_as_four_more(number, long):
    """VIV: the five, then the four."""
    doubled = ("VIV", "LXL", "DCD")
    return _ids(_numeral(number, LONG_FOURS, LONG_NINES) if long
                else _numeral(number, SHORT_FOURS, doubled))  # fmt: skip


@mistake(
    "anything taken away from anything",
    rejected_by="equals the reference",
    cause="Each digit is written separately: 99 is XC and IX.",
)
def write_any_subtraction(number, long):
    """99 is IC."""
    text = _both_ways(number, long)
    for clumsy, bold in (("XCIX", "IC"), ("XLIX", "IL"), ("CMXC", "XM"), ("CDXC", "XD")):
        text = text.replace(clumsy, bold)
    return _ids(text)


@mistake(
    "units first",
    rejected_by="the letters sum to the number",
    cause="The digits are taken from the end and concatenated in that order.",
)
def write_backwards(number, long):
    """Units first."""
    return _ids(_both_ways(number, long)[::-1])


@mistake(
    "thousands forgotten",
    rejected_by="the letters sum to the number",
    cause="There are no letters for 5,000 and 10,000, so the loop over the decimal places leaves "
    "M out.",
)
def write_three_digits(number, long):
    """No thousands."""
    return _ids(_both_ways(number, long).lstrip("M") or "M")


def _write_cases(rng: np.random.Generator) -> list[Case]:
    numbers = [1, 4, 6, 9, 10, 14, 20, 49, 99, 120, 444, 1994, 2020, 3888, LARGEST]
    numbers += [int(n) for n in rng.integers(1, LARGEST + 1, size=12)]
    return [
        Case(f"{number}, {'long' if long else 'short'}", {"number": number, "long": long})
        for number in numbers for long in (False, True)
    ]  # fmt: skip


def _letters(run: Run, case: Case) -> str:
    """What the answer spells.

    Raises: ValueError for what are no letters.
    """
    got = run.value(case)
    if got.ndim != 1 or got.dtype.kind not in "iu" or not all(4 <= n <= 10 for n in got):
        raise ValueError("not one row of whole numbers from 4 to 10")
    return "".join(LETTERS[n - FIRST] for n in got)


def _value(text: str) -> int:
    """A letter before a larger one is taken away."""
    values = [VALUES[LETTERS.index(letter)] for letter in text]
    return sum(-a if a < b else a for a, b in zip(values, [*values[1:], 0], strict=True))


def _means_the_number(run: Run, case: Case) -> Problem | None:
    text, number = _letters(run, case), case.arguments["number"]
    got = _value(text)
    return None if got == number else Problem(f"letters worth {number}", f"{text}, worth {got}")


def _falls(run: Run, case: Case) -> Problem | None:
    text = _letters(run, case)
    rises = [a + b for a, b in pairwise(text)
             if LETTERS.index(a) < LETTERS.index(b)]  # fmt: skip
    return Problem("no letter before a larger one", f"{rises[0]} in {text}") if rises else None


def _fives_once(run: Run, case: Case) -> Problem | None:
    text = _letters(run, case)
    twice = [five for five in "VLD" if text.count(five) > 1]
    return Problem("V, L and D once at most", f"{text}") if twice else None


WRITE = Spec(
    name="project.write",
    statement="write(number, long): the Roman numeral of a number from 1 to 3999 as token IDs, "
    "integers (S); I, V, X, L, C, D, M are 4, 5, 6, 7, 8, 9, 10. long = False: IV, IX, XL, XC, "
    "CD, CM; long = True: IIII, VIIII, XXXX, LXXXX, CCCC, DCCCC",
    required=("number", "long"),
    reference=_write_reference,
    cases=_write_cases,
    usual=(),
    checks=(
        Check(
            "the letters sum to the number",
            "Add the letters up, and subtract each that precedes a larger one.",
            _means_the_number,
        ),
        Check(
            "nothing is subtracted in the long form",
            "In the long form the letters never increase: four is IIII, nine is VIIII.",
            _falls,
            when=lambda case: case.arguments["long"],
        ),
        Check(
            "a five stands once",
            "Two fives are a ten, so V, L and D occur once at most.",
            _fives_once,
        ),
    ),
    mutants=mistakes(
        write_short_nines, write_nine_as_four_more, write_any_subtraction, write_backwards,
        write_three_digits
    ),
    chapter=1,
    points=2,
)  # fmt: skip

# --- Reading it back ------------------------------------------------------------------------------


@cache
def _all_numerals() -> dict[tuple[int, ...], int]:
    return {
        tuple(_write_reference(number, long).tolist()): number
        for number in range(1, LARGEST + 1) for long in (False, True)
    }  # fmt: skip


def _read_reference(ids: np.ndarray) -> int:
    """Look it up among all 3999 numbers in both writings."""
    row = ids.tolist()
    row = row[: row.index(EOS)] if EOS in row else row
    return _all_numerals().get(tuple(row), 0)


def _spelled(ids: Tensor) -> str | None:
    """The letters before EOS; None if something else stands there."""
    row = ids.tolist()
    row = row[: row.index(EOS)] if EOS in row else row
    return "".join(LETTERS[n - FIRST] for n in row) if all(4 <= n <= 10 for n in row) else None


@mistake(
    "any sum is a number",
    rejected_by="what no number is written as gives 0",
    cause="A value is computed, but not whether the number is written in this way.",
)
def read_sum(ids):
    """The sum, whatever the letters spell."""
    text = _spelled(ids)
    return _value(text) if text else 0


@mistake(
    "the short form only",
    rejected_by="what was written is read",
    cause="The value is written again and compared, but in one of the two forms only.",
)
def read_short_only(ids):
    """IIII is none."""
    text = _spelled(ids)
    number = _value(text) if text else 0
    good = 0 < number <= LARGEST and text == _both_ways(number, False)
    return number if good else 0


@mistake(
    "nothing is taken away",
    rejected_by="what was written is read",
    cause="All letters are added up.",
)
def read_without_taking_away(ids):
    """IV is six, and six is VI: so IV is none."""
    text = _spelled(ids) or ""
    number = sum(VALUES[LETTERS.index(letter)] for letter in text)
    good = 0 < number <= LARGEST and text in (_both_ways(number, w) for w in (False, True))
    return number if good else 0


@mistake(
    "EOS is not the end",
    rejected_by="a sequence ends at EOS",
    cause="The sequence is read to its last position, past EOS.",
)
def read_past_the_end(ids):
    """EOS is a sign like any other."""
    return 0 if EOS in ids.tolist() else _read_reference(ids.numpy())


@mistake(
    "other signs passed over",
    rejected_by="what no number is written as gives 0",
    cause="PAD and UNK are filtered out instead of rejected.",
)
def read_what_is_known(ids):
    """Signs that are no letters are passed over."""
    row = ids.tolist()
    row = row[: row.index(EOS)] if EOS in row else row
    return _read_reference(np.array([n for n in row if n >= FIRST], dtype=int))


def _read_cases(rng: np.random.Generator) -> list[Case]:

    def case(text: str, after: tuple[int, ...] = ()) -> Case:
        ids = np.array([*(LETTERS.index(letter) + FIRST for letter in text), *after], dtype=int)
        return Case(f"{text or 'nothing'}{' and more' if after else ''}", {"ids": ids})

    cases = [case(text) for text in ("I", "IV", "VI", "IIII", "IX", "VIIII", "MCMXCIV")]
    for number in rng.integers(1, LARGEST + 1, size=6).tolist():
        cases += [case(_both_ways(number, long)) for long in (False, True)]
    cases += [case("XIV", (EOS,)), case("XIIII", (EOS, PAD, PAD)), case("XL", (EOS, 6, 4, EOS))]
    cases += [case(text) for text in ("IIX", "VV", "IC", "VIV", "IVI", "IXIIII", "MMMM", "XIIIII")]
    cases += [case("XIVIIII"), case("XLVIIII"), case("X", (PAD, 4)), case("V", (3, EOS))]
    cases += [case("VIIII", (PAD,)), Case("BOS and XIV", {"ids": np.array([BOS, 6, 4, 5])})]
    return [*cases, case("", (EOS, 4)), case("")]


def _is_numeral(case: Case) -> bool:
    return _read_reference(case.arguments["ids"]) > 0


def _bare(case: Case) -> bool:
    return _is_numeral(case) and EOS not in case.arguments["ids"]


def _same_number(run: Run, case: Case) -> Problem | None:
    return compare(run.expected(case)[0], run.value(case), 0.0, "the number")


READ = Spec(
    name="project.read",
    statement="read(ids): the number whose numeral this is, in either form, or 0 if there is "
    "none; an integer. ids (S): I, V, X, L, C, D, M are 4 to 10, EOS is 2; the numeral ends "
    "before the first EOS, or with the sequence, and what follows EOS does not count",
    required=("ids",),
    reference=_read_reference,
    cases=_read_cases,
    checks=(
        Check(
            "what was written is read",
            "read(write(n, long)) is n, in both forms.",
            _same_number,
            when=_bare,
        ),
        Check(
            "a sequence ends at EOS",
            "The numeral is what precedes the first EOS; what follows does not count.",
            _same_number,
            when=lambda case: _is_numeral(case) and EOS in case.arguments["ids"],
        ),
        Check(
            "what no number is written as gives 0",
            "Whatever differs from both forms of every number is no numeral, even if its letters "
            "have a sum.",
            _same_number,
            when=lambda case: not _is_numeral(case),
        ),
    ),
    mutants=mistakes(
        read_sum, read_short_only, read_without_taking_away, read_past_the_end, read_what_is_known
    ),
    chapter=10,
    points=2,
)  # fmt: skip

# --- A split without leak -------------------------------------------------------------------------


def _hold_out_reference(numbers: np.ndarray, order: np.ndarray, count: int) -> np.ndarray:
    """Pair by pair in the given order; a number takes all of its pairs along."""
    held = np.zeros(len(numbers), dtype=bool)
    for place in order:
        if held.sum() < count:
            for other in range(len(numbers)):
                if numbers[other] == numbers[place]:
                    held[other] = True
    return held


@mistake(
    "pairs held out one by one",
    rejected_by="no number on both sides",
    cause="Pairs are sampled, not numbers.",
)
def hold_out_pairs(numbers, order, count):
    """Each pair for itself."""
    held = torch.zeros(len(numbers), dtype=torch.bool)
    held[order[:count]] = True
    return held


@mistake(
    "numbers counted, not pairs",
    rejected_by="as many as asked for",
    cause="`count` numbers are taken, but each may have two pairs.",
)
def hold_out_count_numbers(numbers, order, count):
    """So many numbers, however many pairs they have."""
    chosen = list(dict.fromkeys(numbers[order].tolist()))[:count]
    return torch.tensor([n in chosen for n in numbers.tolist()], dtype=torch.bool)


@mistake(
    "the beginning of the list",
    rejected_by="equals the reference",
    cause="The order is not used.",
)
def hold_out_first(numbers, order, count):
    """From the beginning of the list."""
    return hold_out_in(numbers, range(len(numbers)), count)


@mistake(
    "the partners not counted",
    rejected_by="as many as asked for",
    cause="The partners that are held out too are not counted.",
)
def hold_out_numbers_of_first(numbers, order, count):
    """The numbers of the first `count` pairs, which may bring more along."""
    return torch.isin(numbers, numbers[order[:count]])


def hold_out_in(numbers, order, count):
    """Right, where order is a range or a list."""
    held = torch.zeros(len(numbers), dtype=torch.bool)
    for place in order:
        if held.sum() >= count:
            break
        held |= numbers == numbers[place]
    return held


@mistake(
    "the order inside out",
    rejected_by="equals the reference",
    cause="order[0] is the index of the first pair to take, not the rank of pair 0.",
)
def hold_out_ranks(numbers, order, count):
    """order[i] taken for the place of pair i in the queue."""
    return hold_out_in(numbers, order.argsort().tolist(), count)


def _hold_out_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, numbers, order, count) -> Case:
        return Case(
            label,
            {"numbers": np.array(numbers), "order": np.array(order), "count": count},
        )

    def drawn(label, pairs, names, count) -> Case:
        return case(label, rng.integers(1, names, size=pairs), rng.permutation(pairs), count)

    return [
        case("one pair", [7], [0], 1),
        case("two numbers, two pairs each", [4, 4, 9, 9], [2, 1, 3, 0], 1),
        case("three numbers", [6, 4, 9, 4, 9], [3, 4, 0, 2, 1], 3),
        case("each number once", [1, 2, 3, 4], [2, 0, 3, 1], 1),
        drawn("twelve pairs", 12, 7, 5),
        drawn("forty pairs", 40, 24, 13),
        drawn("all", 9, 5, 9),
        drawn("none", 8, 5, 0),
    ]


def _one_side(run: Run, case: Case) -> Problem | None:
    held, numbers = run.value(case), case.arguments["numbers"]
    both = set(numbers[held].tolist()) & set(numbers[~held].tolist())
    return Problem("each number on one side", f"{min(both)} on both") if both else None


def _so_many(run: Run, case: Case) -> Problem | None:
    held, count, numbers = run.value(case), case.arguments["count"], case.arguments["numbers"]
    sizes = [int((numbers == n).sum()) for n in set(numbers[held].tolist())]
    if held.sum() < count:
        return Problem(f"at least {count} pairs", f"{held.sum()}")
    if sizes and held.sum() - max(sizes) >= count:
        return Problem(f"no number more than is needed for {count} pairs", f"{held.sum()} pairs")
    return None


HOLD_OUT = Spec(
    name="project.hold_out",
    statement="hold_out(numbers, order, count): boolean (N), True for pairs that are held out; "
    "numbers (N), the number that each pair means, several pairs may mean the same; order (N), "
    "the indices 0 to N - 1, shuffled. Go through the pairs in this order: pair order[0] first; "
    "each one that comes up is held out together with all pairs of its number. Stop as soon as "
    "at least `count` pairs are held out",
    required=("numbers", "order", "count"),
    reference=_hold_out_reference,
    cases=_hold_out_cases,
    checks=(
        Check(
            "no number on both sides",
            "All pairs that mean the same number are held out together, or none of them is.",
            _one_side,
        ),
        Check(
            "as many as asked for",
            "At least `count` pairs are held out, and no further number after that.",
            _so_many,
        ),
    ),
    mutants=mistakes(
        hold_out_pairs, hold_out_count_numbers, hold_out_first, hold_out_numbers_of_first,
        hold_out_ranks
    ),
    chapter=10,
    points=2,
)  # fmt: skip

# --- What a bag of letters can tell ---------------------------------------------------------------


def _ceiling_reference(source: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """For each pair its bag; of each bag the answer that is right most often."""
    bags: dict[tuple[int, ...], list[int]] = {}
    for row, answer in zip(source.tolist(), answers.tolist(), strict=True):
        bags.setdefault(tuple(sorted(n for n in row if n != PAD)), []).append(answer)
    right = sum(max(Counter(found).values()) for found in bags.values())
    return np.asarray(right / len(answers))


def _of_keys(keys: list, answers: Tensor) -> float:
    counts: dict[Any, Counter] = {}
    for key, answer in zip(keys, answers.tolist(), strict=True):
        counts.setdefault(key, Counter())[answer] += 1
    return sum(max(found.values()) for found in counts.values()) / len(answers)


@mistake(
    "a set for a bag",
    rejected_by="how often a letter stands is known",
    cause="A set does not count how often a letter occurs.",
)
def ceiling_of_sets(source, answers):
    """Which letters, not how many."""
    return _of_keys([frozenset(row) - {PAD} for row in source.tolist()], answers)


@mistake(
    "the order kept",
    rejected_by="the order of the letters is nothing",
    cause="The sources are compared with their order.",
)
def ceiling_of_rows(source, answers):
    """The rows in their order."""
    return _of_keys([tuple(row) for row in source.tolist()], answers)


@mistake(
    "doubtful bags given up",
    rejected_by="of each bag one output is right",
    cause="A bag with two meanings counts as wrong for both.",
)
def ceiling_of_clear_bags(source, answers):
    """A bag with two meanings is given up."""
    bags: dict[Any, list[int]] = {}
    for row, answer in zip(source.tolist(), answers.tolist(), strict=True):
        bags.setdefault(tuple(sorted(row)), []).append(answer)
    return sum(len(found) for found in bags.values() if len(set(found)) == 1) / len(answers)


@mistake(
    "one pair of each bag",
    rejected_by="equals the reference",
    cause="The bags are counted, not the pairs that the best output gets right.",
)
def ceiling_of_one_each(source, answers):
    """One pair of each bag."""
    return len({tuple(sorted(row)) for row in source.tolist()}) / len(source)


@mistake(
    "a sum for a bag",
    rejected_by="equals the reference",
    cause="The sum of the token IDs does not determine the letters.",
)
def ceiling_of_sums(source, answers):
    """The sum of the numbers of the letters for the bag."""
    return _of_keys(source.sum(1).tolist(), answers)


@mistake(
    "a share in float32",
    rejected_by="computed in float64",
    cause="The fraction is computed in a float32 tensor and becomes a Python number only "
    "afterward.",
)
def ceiling_in_float32(source, answers):
    """The right share, rounded to float32."""
    share = _of_keys([tuple(sorted(row)) for row in source.tolist()], answers)
    return torch.tensor(share).item()


def _ceiling_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, texts, answers) -> Case:
        rows = [[LETTERS.index(letter) + FIRST for letter in text] for text in texts]
        wide = max(map(len, rows))
        source = [row + [PAD] * (wide - len(row)) for row in rows]
        return Case(label, {"source": np.array(source), "answers": np.array(answers)})

    def drawn(label, most, size) -> Case:
        some = (rng.permutation(most)[:size] + 1).tolist()
        pairs = [(_both_ways(n, long), n) for n in some for long in (False, True)]
        pairs = [pairs[i] for i in rng.permutation(len(pairs))]
        return case(label, *zip(*pairs, strict=True))

    return [
        case("one pair", ["IV"], [4]),
        case("IV and VI", ["IV", "VI"], [4, 6]),
        case("I and II", ["I", "II", "III"], [1, 2, 3]),
        case("a bag that is one thing twice", ["XI", "IX", "XI", "V"], [11, 9, 11, 5]),
        case("letters of one sum", ["VV", "IX"], [10, 9]),
        drawn("the numbers below 30", 29, 29),
        drawn("sixty pairs below 100", 99, 30),
        drawn("fifty pairs", LARGEST, 25),
    ]


def _order_is_nothing(run: Run, case: Case) -> Problem | None:
    """The letters of each row sorted: the same bags."""
    source = np.sort(case.arguments["source"], axis=1)[:, ::-1].copy()
    return same_with(run, case, "the letters are sorted", "the ceiling", source=source)


def _no_doubt(run: Run, case: Case) -> Problem | None:
    """Rows of one letter, once, twice, three times: every bag is clear."""
    counts = np.arange(1, 5)
    source = np.where(np.arange(4) < counts[:, None], 4, PAD)
    got = float(run.value(case, source=source, answers=counts))
    return None if got == 1 else Problem("1 for I, II, III, IIII", f"{got:.4g}")


def _always_something(run: Run, case: Case) -> Problem | None:
    """All rows alike, all answers different: one of N is right."""
    num = len(case.arguments["answers"])
    source = np.full((num, 3), 5)
    given = {"source": source, "answers": np.arange(num)}
    return right_with(run, case, "with one bag and N answers", **given)


CEILING = Spec(
    name="project.ceiling",
    statement="ceiling(source, answers): the largest fraction of pairs that a reader can get "
    "right that has memorized all pairs, knows of each source only the bag of its letters (which "
    "ones, and how often each, PAD = 0 left out) and gives one output for each bag; a Python "
    "number, or a float64 tensor. source (N, S), answers (N), integers",
    required=("source", "answers"),
    reference=_ceiling_reference,
    cases=_ceiling_cases,
    checks=(
        IN_FLOAT64,
        Check(
            "the order of the letters is nothing",
            "A bag has no order: if the letters of each source are sorted, nothing changes.",
            _order_is_nothing,
        ),
        Check(
            "how often a letter stands is known",
            "A bag counts how often each letter occurs: I, II and III are three bags.",
            _no_doubt,
        ),
        Check(
            "of each bag one output is right",
            "If a bag means several numbers, the best output is the most frequent one.",
            _always_something,
        ),
    ),
    mutants=mistakes(
        ceiling_of_sets, ceiling_of_rows, ceiling_of_clear_bags, ceiling_of_one_each,
        ceiling_of_sums, ceiling_in_float32
    ),
    chapter=6,
    points=2,
)  # fmt: skip

# --- A decoder layer ------------------------------------------------------------------------------


def _rms(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """Token by token: divided by the root of its mean square, times the gain."""
    answer = np.zeros_like(x)
    for place in np.ndindex(x.shape[:-1]):
        square = sum(number * number for number in x[place]) / x.dtype.type(x.shape[-1])
        answer[place] = x[place] / np.sqrt(square + EPS) * gain
    return answer


def _layer_reference(
    x, memory, target_real, source_real, own, cross, up_proj, down_proj, gains, num_heads
):
    """Three sublayers, each from the norm of the stream and added to the stream."""
    past = target_real[:, None, None, :] & np.tri(x.shape[1], dtype=bool)
    x = x + reference.multi_head(_rms(x, gains[0]), *own, num_heads, mask=past)
    seen = source_real[:, None, None, :]
    x = x + reference.multi_head(
        _rms(x, gains[1]), *cross, num_heads, context=memory, mask=seen
    )  # fmt: skip
    wide = np.maximum(_rms(x, gains[2]) @ up_proj, 0)
    return x + wide @ down_proj


def _norm(x: Tensor, gain: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * gain


def _attend(
    x: Tensor, context: Tensor, weights: Tensor, num_heads: int, mask: Tensor, *,
    scale: float | None = None, empty: float = 0.0,
) -> Tensor:  # fmt: skip
    """Multi-head attention; `empty`: the weights of a query that sees nothing."""
    query, key, value = (
        (t @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2)
        for t, w in zip((x, context, context), weights[:3], strict=True)
    )
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query @ key.mT * scale).masked_fill(~mask, -torch.inf)
    shares = scores.softmax(-1).masked_fill(~mask.any(-1, keepdim=True), empty)
    return (shares @ value).transpose(1, 2).flatten(2) @ weights[3]


def _masks(x: Tensor, target_real: Tensor, source_real: Tensor) -> tuple[Tensor, Tensor]:
    order = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    return order & target_real[:, None, None, :], source_real[:, None, None, :]


def layer_plain(
    x, memory, target_real, source_real, own, cross, up_proj, down_proj, gains, num_heads, *,
    post=False, causal=True, target_padding=True, source_padding=True, scale=None, empty=0.0,
):  # fmt: skip
    """Right without options; each of them makes a mistake."""
    past, seen = _masks(x, target_real, source_real)
    if not causal:
        past = target_real[:, None, None, :].expand(-1, 1, x.shape[1], -1)
    if not target_padding:
        past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    if not source_padding:
        seen = torch.ones_like(seen)
    options = {"scale": scale, "empty": empty}
    for gain, sublayer in zip(
        gains,
        (
            lambda t: _attend(t, t, own, num_heads, past, **options),
            lambda t: _attend(t, memory, cross, num_heads, seen, **options),
            lambda t: (t @ up_proj).relu() @ down_proj,
        ),
        strict=True,
    ):
        x = _norm(x + sublayer(x), gain) if post else x + sublayer(_norm(x, gain))
    return x


@mistake(
    "the norm on the residual stream",
    rejected_by="the direct way is free",
    cause="norm(x + f(x)), the norm placement of 2017, in place of x + f(norm(x)).",
)
def layer_post_norm(*given):
    """The norm placement of 2017."""
    return layer_plain(*given, post=True)


@mistake(
    "a decoder without order",
    rejected_by="the future is masked",
    cause="The causal mask is missing in the self-attention.",
)
def layer_without_order(*given):
    """Padding only."""
    return layer_plain(*given, causal=False)


@mistake(
    "padding left in the target",
    rejected_by="padding of the target is masked",
    cause="The causal mask excludes padding on the right only.",
)
def layer_without_target_padding(*given):
    """The order is enough, or so it seems."""
    return layer_plain(*given, target_padding=False)


@mistake(
    "padding left in the source",
    rejected_by="padding of the source is masked",
    cause="The cross-attention has no mask.",
)
def layer_without_source_padding(*given):
    """The memory as it is."""
    return layer_plain(*given, source_padding=False)


@mistake(
    "a softmax over nothing",
    rejected_by="a fully masked query gives 0",
    cause="All scores of a row are -inf, and the softmax divides 0 by 0.",
)
def layer_with_nan(*given):
    """A softmax over nothing."""
    return layer_plain(*given, empty=float("nan"))


@mistake(
    "scaled by the model dimension",
    rejected_by="equals the reference",
    cause="Each head has d = D / H features: the scale is the root of d.",
)
def layer_scaled_by_width(*given):
    """One over the root of D."""
    return layer_plain(*given, scale=given[0].shape[-1] ** -0.5)


LAYER_ARGUMENTS = (
    "x", "memory", "target_real", "source_real", "own", "cross", "up_proj", "down_proj", "gains",
    "num_heads",
)  # fmt: skip


def _layer_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, batch, length, keys, num_heads, d, hidden, target=(), source=()) -> Case:
        """target and source: places (row, column) of padding."""
        width = num_heads * d
        real = [np.ones(shape, dtype=bool) for shape in ((batch, length), (batch, keys))]
        for table, places in zip(real, (target, source), strict=True):
            for place in places:
                table[place] = False
        own, cross = rng.normal(size=(2, 4, width, width)) / math.sqrt(width)
        values = [
            rng.normal(size=(batch, length, width)), rng.normal(size=(batch, keys, width)), *real,
            own, cross, rng.normal(size=(width, hidden)) / math.sqrt(width),
            rng.normal(size=(hidden, width)) / math.sqrt(hidden),
            rng.uniform(0.5, 1.5, size=(3, width)), num_heads,
        ]  # fmt: skip
        return Case(label, dict(zip(LAYER_ARGUMENTS, values, strict=True)))

    return [
        case("one token, one letter", 1, 1, 1, 1, 4, 3),
        case("one sentence, one head", 1, 3, 5, 1, 4, 7),
        case("two heads", 1, 4, 3, 2, 3, 5),
        case("padding on the right", 2, 4, 3, 2, 2, 5, [(0, 3)], [(1, 2)]),
        case("padding on the left", 2, 3, 4, 2, 3, 5, [(1, 0)], [(0, 0), (0, 1)]),
        case("a source of padding", 3, 3, 2, 3, 2, 4, [(2, 2)], [(1, 0), (1, 1)]),
        case("three of each", 3, 5, 4, 2, 4, 9, [(0, 4), (1, 0), (1, 1)], [(2, 3), (0, 0)]),
    ]


def _direct_way(run: Run, case: Case) -> Problem | None:
    """Sublayers that find nothing leave the stream as it is."""
    zeros = {n: np.zeros_like(case.arguments[n]) for n in ("own", "cross", "down_proj")}
    return right_with(run, case, "with weights of zeros", **zeros)


def _finite(run: Run, case: Case) -> Problem | None:
    got = run.value(case)
    bad = int((~np.isfinite(got)).sum())
    return Problem("numbers everywhere", f"{bad} that are NaN or infinite") if bad else None


def _past_only(run: Run, case: Case) -> Problem | None:
    x = case.arguments["x"].copy()
    x[:, -1] += 1.0
    before, after = (a[:, :-1] for a in (run.value(case), run.value(case, x=x)))
    when, what = "the last token is another", "the tokens before it"
    return unchanged(before, after, 2 * run.expected(case)[1], when, what)


def _target_padding(run: Run, case: Case) -> Problem | None:
    real = case.arguments["target_real"]
    x = np.where(real[..., None], case.arguments["x"], case.arguments["x"] + 1.0)
    before, after = (a[real] for a in (run.value(case), run.value(case, x=x)))
    when = "the padding of the target is other"
    return unchanged(before, after, 2 * run.expected(case)[1], when, "the real tokens")


def _source_padding(run: Run, case: Case) -> Problem | None:
    memory, real = case.arguments["memory"], case.arguments["source_real"]
    memory = np.where(real[..., None], memory, memory + 1.0)
    return same_with(run, case, "the padding of the source is other", memory=memory)


def _memory_read(run: Run, case: Case) -> Problem | None:
    other = run.value(case, memory=case.arguments["memory"] * 2.0 + 1.0)
    if np.abs(other - run.value(case)).max() > 2 * run.expected(case)[1]:
        return None
    return Problem("another output for another memory", "the same output")


DECODER_LAYER = Spec(
    name="project.decoder_layer",
    statement="decoder_layer(x, memory, target_real, source_real, own, cross, up_proj, "
    "down_proj, gains, num_heads) -> (B, L, D), pre-norm: x + sublayer(norm(x)) three times. x "
    "(B, L, D), memory (B, S, D), target_real (B, L) and source_real (B, S) True for real "
    "tokens. own and cross (4, D, D): the matrices of query, key, value, output, applied as t @ "
    "w; head h has columns h d to (h + 1) d. up_proj (D, F), down_proj (F, D) with a ReLU "
    "between. norm: t / sqrt(mean(t^2) + 1e-6) times gains[k], gains (3, D). A fully masked "
    "query gives 0. Gradients reach every tensor",
    required=LAYER_ARGUMENTS,
    reference=_layer_reference,
    baseline=layer_plain,
    cases=_layer_cases,
    checks=(
        Check(
            "a fully masked query gives 0",
            "A query all of whose keys are masked gets 0 from the attention, not NaN.",
            _finite,
        ),
        Check(
            "the direct way is free",
            "With matrices of zeros each sublayer adds 0, so the output must equal x: the norm "
            "is in front of the sublayer, not on the residual stream.",
            _direct_way,
        ),
        Check("the memory is read", "The second sublayer attends to the source.", _memory_read),
        Check(
            "the future is masked",
            "A token of the target must not depend on a later one.",
            _past_only,
            when=lambda case: case.arguments["x"].shape[1] > 1,
        ),
        Check(
            "padding of the target is masked",
            "With padding on the left the causal mask does not exclude it.",
            _target_padding,
            when=lambda case: not case.arguments["target_real"].all(),
        ),
        Check(
            "padding of the source is masked",
            "What the memory holds at padding must not change the output.",
            _source_padding,
            when=lambda case: not case.arguments["source_real"].all(),
        ),
    ),
    mutants=mistakes(
        layer_post_norm, layer_without_order, layer_without_target_padding,
        layer_without_source_padding, layer_with_nan, layer_scaled_by_width
    ),
    chapter=9,
    points=5,
)  # fmt: skip

# --- The score ------------------------------------------------------------------------------------


def _words(row: list[int]) -> list[int]:
    return row[: row.index(EOS)] if EOS in row else row


def _distance_table(a: list[int], b: list[int]) -> int:
    """Entry (i, j): edits that make the first j of b out of the first i of a."""
    table = np.zeros((len(a) + 1, len(b) + 1), dtype=int)
    table[:, 0], table[0] = range(len(a) + 1), range(len(b) + 1)
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            change = table[i - 1, j - 1] + (a[i - 1] != b[j - 1])
            table[i, j] = min(change, table[i - 1, j] + 1, table[i, j - 1] + 1)
    return int(table[-1, -1])


def _report_reference(prefix_ids, expected, group, num_groups):
    """Group by group."""
    table = np.zeros((num_groups, 3))
    for k in range(num_groups):
        rows = [i for i in range(len(group)) if group[i] == k]
        if not rows:
            continue
        right = edits = digits = 0
        for i in rows:
            a, b = prefix_ids[i].tolist(), expected[i].tolist()
            right += EOS in a and _words(a) == _words(b)
            edits += _distance_table(_words(a), _words(b))
            digits += len(_words(b))
        table[k] = len(rows), right / len(rows), edits / digits
    return table


def _report(prefix_ids, expected, group, num_groups, *, distance=_distance_table, words=_words,
            is_right=None, mean_of_rates=False, by_said=False) -> Tensor:  # fmt: skip
    """Right without options; each of them makes a mistake."""
    table = torch.zeros(num_groups, 3, dtype=torch.float64)
    for k in range(num_groups):
        rows = [(a, b) for a, b, g in zip(prefix_ids.tolist(), expected.tolist(), group.tolist(),
                                          strict=True) if g == k]  # fmt: skip
        if not rows:
            continue
        right = [EOS in a and _words(a) == _words(b) if is_right is None else is_right(a, b)
                 for a, b in rows]  # fmt: skip
        edits = [distance(words(a), words(b)) for a, b in rows]
        digits = [max(1, len(words(a if by_said else b))) for a, b in rows]
        rate = sum(edits) / sum(digits)
        if mean_of_rates:
            rate = sum(e / d for e, d in zip(edits, digits, strict=True)) / len(rows)
        for column, number in enumerate((len(rows), sum(right) / len(rows), rate)):
            table[k, column] = number
    return table


def _place_by_place(a: list[int], b: list[int]) -> int:
    return sum(x != y for x, y in zip(a, b, strict=False)) + abs(len(a) - len(b))


@mistake(
    "position by position",
    rejected_by="equals the reference",
    cause="Digits are compared position by position, but a missing digit shifts the rest.",
)
def report_place_by_place(prefix_ids, expected, group, num_groups):
    """Digits that stand elsewhere are wrong."""
    return _report(prefix_ids, expected, group, num_groups, distance=_place_by_place)


@mistake(
    "a mean of rates",
    rejected_by="equals the reference",
    cause="Each sample is divided by its own length before the mean.",
)
def report_mean_of_rates(prefix_ids, expected, group, num_groups):
    """Each sentence's own rate."""
    return _report(prefix_ids, expected, group, num_groups, mean_of_rates=True)


@mistake(
    "a fraction of what was generated",
    rejected_by="equals the reference",
    cause="The edits are divided by the number of generated digits, not of expected ones.",
)
def report_by_what_was_said(prefix_ids, expected, group, num_groups):
    """A share of what was said."""
    return _report(prefix_ids, expected, group, num_groups, by_said=True)


@mistake(
    "EOS not required",
    rejected_by="exactly right, to the end",
    cause="The digits are compared without checking that the sequence has an EOS.",
)
def report_without_end(prefix_ids, expected, group, num_groups):
    """The digits agree, and that is enough."""
    is_right = lambda a, b: _words(a) == _words(b)  # noqa: E731
    return _report(prefix_ids, expected, group, num_groups, is_right=is_right)


@mistake(
    "talk after the end",
    rejected_by="after the end nothing counts",
    cause="PAD and EOS are filtered out, but what follows EOS stays.",
)
def report_with_noise(prefix_ids, expected, group, num_groups):
    """The whole rows."""
    return _report(prefix_ids, expected, group, num_groups,
                   words=lambda row: [n for n in row if n not in (PAD, EOS)])  # fmt: skip


@mistake(
    "divided in float32",
    rejected_by="computed in float64",
    cause="The counts are divided in float32, and converted to float64 afterward or not at all.",
)
def report_in_float32(prefix_ids, expected, group, num_groups):
    """Divided in float32, widened afterwards."""
    return _report(prefix_ids, expected, group, num_groups).float().double()


@mistake(
    "up to the last EOS",
    rejected_by="after the end nothing counts",
    cause="The sequence is cut at its last EOS, not at its first.",
)
def report_to_the_last_end(prefix_ids, expected, group, num_groups):
    """The last EOS ends a row."""
    words = lambda row: row[: len(row) - 1 - row[::-1].index(EOS)] if EOS in row else row  # noqa: E731
    is_right = lambda a, b: EOS in a and words(a) == _words(b)  # noqa: E731
    return _report(prefix_ids, expected, group, num_groups, words=words, is_right=is_right)


@mistake(
    "a rate of at most 1",
    rejected_by="equals the reference",
    cause="The rate is clamped at 1, but it may exceed 1.",
)
def report_at_most_one(prefix_ids, expected, group, num_groups):
    """No rate above 1."""
    return _report(prefix_ids, expected, group, num_groups).clamp(
        max=torch.tensor([torch.inf, 1, 1])
    )


@mistake(
    "padding left out",
    rejected_by="exactly right, to the end",
    cause="PAD is removed, but before EOS it was generated like any other token.",
)
def report_without_padding(prefix_ids, expected, group, num_groups):
    """PAD is no digit, wherever it stands."""
    words = lambda row: [n for n in _words(row) if n != PAD]  # noqa: E731
    is_right = lambda a, b: EOS in a and words(a) == _words(b)  # noqa: E731
    return _report(prefix_ids, expected, group, num_groups, words=words, is_right=is_right)


def _report_cases(rng: np.random.Generator) -> list[Case]:

    def table(rows: list[list[int]], wide: int, noise: bool) -> np.ndarray:
        full = np.zeros((len(rows), wide), dtype=int)
        for place, row in enumerate(rows):
            rest = wide - len(row)
            full[place] = row + (rng.integers(4, 14, size=rest).tolist() if noise else [PAD] * rest)
        return full

    def case(label, pairs, group, num_groups, *, extra=0, noise=False) -> Case:
        """pairs: what was said and what was expected, as digits; a final ! for no EOS."""
        prefix_ids, expected = (
            [[int(c) + 4 for c in text.rstrip("!")] + [EOS] * (not text.endswith("!"))
             for text in texts] for texts in zip(*pairs, strict=True)
        )  # fmt: skip
        wide = [max(map(len, rows)) for rows in (prefix_ids, expected)]
        prefix_ids = table(prefix_ids, wide[0] + extra, noise)
        arguments = {"prefix_ids": prefix_ids, "expected": table(expected, wide[1], False)}
        return Case(label, arguments | {"group": np.array(group), "num_groups": num_groups})

    def drawn(label, count, num_groups, extra) -> Case:
        pairs = []
        for _ in range(count):
            right = str(rng.integers(1, 4000))
            prefix_ids = "".join(c for c in right if rng.random() < 0.8)
            prefix_ids += str(rng.integers(0, 10)) * (rng.random() < 0.3)
            pairs.append((right if rng.random() < 0.4 else prefix_ids, right))
        group = rng.integers(0, num_groups, size=count).tolist()
        return case(label, pairs, group, num_groups, extra=extra, noise=extra > 0)

    def signs(label, prefix_ids, expected) -> Case:
        arguments = {"prefix_ids": np.array([prefix_ids]), "expected": np.array([expected])}
        return Case(label, arguments | {"group": np.array([0]), "num_groups": 1})

    return [
        case("one right", [("24", "24")], [0], 1),
        case("one digit wrong", [("29", "24")], [0], 1),
        case("a digit missing in front", [("994", "1994")], [0], 1),
        case("a short one and a long one", [("7", "9"), ("1994", "1994")], [0, 0], 1),
        case("nothing said", [("", "24"), ("3", "3")], [0, 0], 1, extra=2, noise=True),
        case("one without end", [("24!", "24"), ("1", "13")], [0, 0], 1),
        case("two groups, one empty", [("40", "44"), ("6", "6"), ("416", "46")], [2, 0, 2], 3),
        case("more said than asked", [("2424", "24"), ("9", "9")], [1, 1], 2, extra=1, noise=True),
        case("three times as many edits as digits", [("123", "7")], [0], 1),
        signs("a second EOS", [6, 8, EOS, 5, EOS], [6, 8, EOS]),
        signs("PAD before the digits", [PAD, 6, 8, EOS], [6, 8, EOS]),
        drawn("twenty", 20, 3, 0),
        drawn("forty, and talk after the end", 40, 4, 2),
    ]


def _column(number: int, what: str):
    def test(run: Run, case: Case) -> Problem | None:
        (expected, tolerance), got = run.expected(case), run.value(case)
        return compare(expected[:, number], got[:, number], tolerance, what)

    return test


def _perfect(run: Run, case: Case) -> Problem | None:
    table = run.value(case, prefix_ids=case.arguments["expected"])
    wanted = run.expected(case)[0].copy()
    wanted[:, 1], wanted[:, 2] = wanted[:, 0] > 0, 0
    return compare(wanted, table, run.expected(case)[1], "with the right answers for all")


def _talk_after(run: Run, case: Case) -> Problem | None:
    prefix_ids = case.arguments["prefix_ids"].copy()
    for row in prefix_ids:
        if EOS in row:
            row[row.tolist().index(EOS) + 1 :] = 9
    return same_with(run, case, "talk follows EOS", "the report", prefix_ids=prefix_ids)


REPORT = Spec(
    name="project.report",
    statement="report(prefix_ids, expected, group, num_groups): float64 (K, 3), for each group 0 "
    "to K - 1: how many samples it has, the fraction of them that is exactly right, and its "
    "digit error rate: the sum of the edit distances of its samples, divided by the number of "
    "expected digits in them; it may exceed 1. prefix_ids (B, L), expected (B, M), group (B). "
    "The digits of a sequence are what precedes its first EOS = 2, or all of it without one; "
    "each sequence of expected has an EOS. A sequence of prefix_ids without EOS is never exactly "
    "right. A group without samples gets three zeros",
    required=("prefix_ids", "expected", "group", "num_groups"),
    reference=_report_reference,
    cases=_report_cases,
    checks=(
        IN_FLOAT64,
        Check(
            "expected outputs are right",
            "If the expected digits are generated, the fraction is 1 and the error rate 0 in "
            "each group with samples.",
            _perfect,
        ),
        Check(
            "after the end nothing counts",
            "What follows EOS does not count.",
            _talk_after,
        ),
        Check("rows are counted", "The first column counts the samples of a group.", _column(0, "rows")),
        Check(
            "exactly right, to the end",
            "A sequence is right if its digits are all right and EOS follows them.",
            _column(1, "shares"),
        ),
    ),
    mutants=mistakes(
        report_place_by_place, report_mean_of_rates, report_by_what_was_said, report_without_end,
        report_with_noise, report_to_the_last_end, report_at_most_one, report_without_padding,
        report_in_float32
    ),
    chapter=10,
    points=3,
)  # fmt: skip

# --- The hunt: a decoder and its loss -------------------------------------------------------------


def _heads(x: Tensor, num_heads: int) -> Tensor:
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def loss_plain(
    target, table, memory, source_real, num_heads, *, shift=True, causal=True, ignore=PAD,
    keys="memory", padding="each", axis=-1, scale=None, hidden=-torch.inf, mean="words", split=_heads,
):  # fmt: skip
    """Right without options; each of them makes a mistake."""
    read, say = (target[:, :-1], target[:, 1:]) if shift else (target[:, :-1], target[:, :-1])
    x = table[read]
    order = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    real = source_real[:1].expand_as(source_real) if padding == "first" else source_real
    root = (x.shape[-1] // num_heads) ** -0.5 if scale is None else scale(x.shape[-1])

    def attend(x, context, mask, axis=-1):
        query, key = split(x, num_heads), split(context, num_heads)
        shares = (query @ key.mT * root).masked_fill(~mask, hidden).softmax(axis)
        return x + (shares.nan_to_num(0.0) @ key).transpose(1, 2).reshape(x.shape)

    x = attend(x, x, order if causal else torch.ones_like(order))
    if keys == "memory":
        x = attend(x, memory, real[:, None, None, :], axis)
    else:
        x = attend(x, x, order)
    logits = x @ table.mT
    if mean == "sentences":
        rows = [
            F.cross_entropy(a, b, ignore_index=ignore) for a, b in zip(logits, say, strict=True)
        ]
        return torch.stack(rows).mean()
    return F.cross_entropy(logits.flatten(0, 1), say.flatten(), ignore_index=ignore)


def loss_by_loops(target, table, memory, source_real, num_heads):
    """Sentence by sentence, head by head, word by word; no padding is ever touched."""
    d, total, count = table.shape[1] // num_heads, 0.0, 0
    for ids, notes, real in zip(target.tolist(), memory, source_real, strict=True):
        ids = [n for n in ids if n != PAD]
        notes, x = notes[real], table[ids[:-1]]
        for own in (True, False):
            found = []
            for i in range(len(x)):
                context = x[: i + 1] if own else notes
                heads = []
                for h in range(num_heads):
                    some = context[:, h * d : (h + 1) * d]
                    shares = (some @ x[i, h * d : (h + 1) * d] / d**0.5).softmax(0)
                    heads.append(shares @ some)
                found.append(torch.cat(heads))
            x = x + torch.stack(found)
        for row, word in zip(x @ table.T, ids[1:], strict=True):
            total = total + row.logsumexp(0) - row[word]
            count += 1
    return total / count


def loss_by_torch(target, table, memory, source_real, num_heads):
    """PyTorch's own attention."""
    x = table[target[:, :-1]]
    for context, mask in ((None, None), (memory, source_real[:, None, None, :])):
        query = _heads(x, num_heads)
        key = query if context is None else _heads(context, num_heads)
        found = F.scaled_dot_product_attention(query, key, key, mask, is_causal=mask is None)
        x = x + found.transpose(1, 2).flatten(2)
    logits = torch.einsum("bld,vd->bvl", x, table)
    return F.cross_entropy(logits, target[:, 1:], ignore_index=PAD)


def loss_by_einsum(target, table, memory, source_real, num_heads):
    """The heads as an axis of einsum; the mean as a product with weights."""
    read, say = target[:, :-1], target[:, 1:]
    x = table[read]
    order = torch.arange(read.shape[1])
    sees = (order[None, :] <= order[:, None])[None, None]
    for own, mask in ((True, sees), (False, source_real[:, None, None])):
        q, k = (t.unflatten(-1, (num_heads, -1)) for t in (x, x if own else memory))
        scores = torch.einsum("blhd,bshd->bhls", q, k) / q.shape[-1] ** 0.5
        scores = torch.where(mask, scores, -torch.inf)
        shares = (scores - scores.logsumexp(-1, keepdim=True)).exp()
        x = x + torch.einsum("bhls,bshd->blhd", shares, k).flatten(2)
    logits = torch.einsum("bld,vd->blv", x, table)
    surprise = logits.logsumexp(-1) - logits.gather(-1, say[..., None])[..., 0]
    counts = (say != PAD).to(surprise.dtype)
    return (surprise * counts).sum() / counts.sum()


def _wrong(**option: Any):
    """The loss with one mistake."""
    return lambda *given: loss_plain(*given, **option)


def _split_by_view(x: Tensor, num_heads: int) -> Tensor:
    return x.reshape(len(x), num_heads, x.shape[1], -1)


HUNT = Hunt(
    name="project.hunt",
    function="test_decoder_loss",
    statement="decoder_loss(target, table, memory, source_real, num_heads): the loss of a small decoder. "
    "target (B, T), BOS = 1, digits, EOS = 2, then PAD = 0; table (V, D); memory (B, S, D); source_real (B, S), "
    "at least one True in each row",
    right={
        "plain": loss_plain,
        "loops": loss_by_loops,
        "torch": loss_by_torch,
        "einsum": loss_by_einsum,
    },
    mutants=(
        Mutant(
            "teacher forcing not shifted", _wrong(shift=False), rejected_by="a test",
            symptom="The loss decreases to nearly nothing; the model generates the token that it "
            "has just read.",
            cause="The token that is read is also the target.",
        ),
        Mutant(
            "padding counted", _wrong(ignore=-100), rejected_by="a test",
            symptom="The loss depends on how long the longest sentence of the batch is.",
            cause="PAD is a target like any other token.",
        ),
        Mutant(
            "no causal mask", _wrong(causal=False), rejected_by="a test",
            symptom="A later token changes what is predicted before it.",
            cause="The causal mask is missing in the self-attention.",
        ),
        Mutant(
            "cross-attention to itself", _wrong(keys="own"), rejected_by="a test",
            symptom="Another source gives the same loss.",
            cause="Keys and values of the second attention come from the decoder.",
        ),
        Mutant(
            "the first row's padding for all", _wrong(padding="first"), rejected_by="a test",
            symptom="A sample's loss depends on the first sample of its batch.",
            cause="The mask lacks its batch axis.",
        ),
        Mutant(
            "softmax over the queries", _wrong(axis=-2), rejected_by="a test",
            symptom="The weights of one key sum to 1, not those of one query.",
            cause="The softmax runs over the wrong axis, in the cross-attention.",
        ),
        Mutant(
            "scaled by the model dimension", _wrong(scale=lambda width: width**-0.5),
            rejected_by="a test",
            symptom="Right with one head, too uniform with several.",
            cause="The root of D in place of the root of d = D / H.",
        ),
        Mutant(
            "hidden scores are 0", _wrong(hidden=0.0), rejected_by="a test",
            symptom="What is masked still gets weight.",
            cause="Scores are multiplied by the mask or filled with 0, and exp(0) is 1.",
        ),
        Mutant(
            "a mean of means", _wrong(mean="sentences"), rejected_by="a test",
            symptom="Right if all sequences have the same length; otherwise short ones count too "
            "much.",
            cause="The mean is taken in each sequence, then over the sequences.",
        ),
        Mutant(
            "heads cut from the tokens", _wrong(split=_split_by_view), rejected_by="a test",
            symptom="Right with one head; with several, a head contains parts of other tokens.",
            cause="view(B, H, L, d) without a transpose.",
        ),
    ),
    points=6,
    minutes=60,
    difficulty="challenge",
    chapter=10,
)  # fmt: skip

# --- All of it ------------------------------------------------------------------------------------

ASSIGNMENT = Assignment(
    name="project",
    title="Roman numerals",
    weeks="9-10",
    chapters=tuple(range(1, 12)),
    parts=(
        Task(WRITE, "write", minutes=25, difficulty="warm-up"),
        Task(READ, "read", minutes=35, difficulty="core"),
        Task(HOLD_OUT, "hold_out", minutes=25, difficulty="core"),
        Written(
            "project-leak",
            "explanation",
            points=4,
            minutes=30,
            rubric="1: XIV and XIIII, or another such pair, have the same target, so a pair that "
            "is held out alone may be answered from its partner in the training set. 1: the "
            "count is right: of the numbers, 1,952 have two forms, so 3,904 pairs have a "
            "partner; if pairs are sampled independently, 59 percent of the 600 have it in the "
            "training set (58 to 60 is right). 1: the score would be too high, or could not tell "
            "reading from memorizing, and more pairs sampled in the same way do not help: the "
            "same fraction has its partner there. 1: a property that all 5,951 pairs share: one "
            "form throughout, or nothing above 3999, or no letter beyond M, or at most three M. "
            "What is merely rare, such as short numerals, does not qualify.",
        ),
        Task(CEILING, "ceiling", minutes=25, difficulty="core"),
        Task(
            DECODER_LAYER,
            "decoder_layer",
            minutes=70,
            difficulty="challenge",
            forbidden=(
                "F.scaled_dot_product_attention",
                "F.multi_head_attention_forward",
                "nn.MultiheadAttention",
                "nn.TransformerDecoderLayer",
            ),
        ),
        HUNT,
        Task(REPORT, "report", minutes=50, difficulty="core"),
        Written(
            "project-training",
            "experiment",
            points=5,
            minutes=95,
            rubric="1: the model is trained on pairs made by write and hold_out, with the seed "
            "and the number of steps, and no number is in both sets. 1: a curve of the loss. 1: "
            "the table of report for short and long numerals that were held out. 1: what the "
            "table shows is said in words, with at least one mistake explained (or, if there is "
            "none, a shorter training in which there are some). 1: decoder_layer is compared "
            "with the trained layer, and the largest difference is stated and judged against the "
            "rounding of float32.",
        ),
        Written(
            "project-ablation",
            "experiment",
            points=5,
            minutes=90,
            rubric="1: a prediction, written before the runs: for both changes a number for each "
            "of the three groups, with a reason; whether it came true does not count. 1: a table "
            "or bars of the three runs, which differ in one thing each, for each of the three "
            "groups, with steps and seeds. 1: without positions in the encoder the exact match "
            "over all pairs is compared with the ceiling, and is not above it, and it is "
            "explained why the ceiling of the held-out pairs is higher and cannot be reached: it "
            "knows the held-out targets, and the other number of a bag is mostly not among them. "
            "1: a plot of the cross-attention of one numeral, rows and columns labeled, and a "
            "sentence about it that the plot supports. 1: honest about chance: one seed is "
            "enough if it is said what it cannot show, and nothing more is claimed.",
        ),
        Written(
            "project-report",
            "explanation",
            points=4,
            minutes=60,
            rubric="250 to 350 words; under 200 or over 400 costs one point. 1: question, data "
            "and split, so that somebody could repeat it: sizes, steps, seed, time. 1: the "
            "results as numbers that are in the notebook, for both forms, and what changed in "
            "the ablation. 1: why: why a bag of letters is not enough, with two numerals that "
            "have the same one, and what order the positions provide. 1: limits and a next step: "
            "what the score does not show, and an experiment that would show it.",
        ),
    ),
)
