"""The Specs of masked tokens, of next-sentence pairs, and of two sentences as one text.

What is drawn at random cannot equal the reference number by number: it is held to it in distribution,
by bounds that a right answer exceeds once in 10^9 calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import reference
from ...data.masked_tokens import IGNORE
from ..compare import Problem, brief, compare
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import EQUAL, Case, Check, Run, Spec
from . import mutants

RISK = 1e-9  # that a right answer fails
TO_MASK, TO_RANDOM = 0.8, 0.1  # of the tokens that are chosen


def deviation(share: float, count: int, questions: int = 1) -> float:
    """How far a frequency of `count` draws may be from its probability, for each of several questions.

    Bernstein's inequality, P(|f - p| >= t) <= 2 exp(-n t^2 / (2 p (1 - p) + 2 t / 3)), solved for t.
    """
    logarithm = math.log(2 * questions / RISK) / count
    variance = share * (1 - share)
    return logarithm / 3 + math.sqrt(logarithm**2 / 9 + 2 * logarithm * variance)


def off(found: float, share: float, count: int, what: str, questions: int = 1) -> Problem | None:
    """A Problem if a frequency is farther from its probability than chance explains."""
    allowed = deviation(share, count, questions)
    if abs(found - share) <= allowed:
        return None
    return Problem(f"{what}: {brief(share)}, within {brief(allowed)}", f"{brief(found)} of {count}")


def seeded(candidate: Callable[..., Any], arguments: dict[str, Any]) -> Callable[..., Any]:
    """The candidate as a function of a seed where it takes a generator."""
    *_, first = [name for name in ("documents", "ids") if name in arguments]
    if first == "documents":
        return lambda documents, seed: candidate(documents, torch.Generator().manual_seed(seed))
    return lambda ids, special, seed, **options: candidate(
        ids, special, torch.Generator().manual_seed(seed), **options
    )


# --- Masked tokens --------------------------------------------------------------------------------


def _text_case(
    rng: np.random.Generator, label: str, shape: tuple[int, int], vocab: int, *, least: int = 5,
    padded: int = 0, **options: Any,
) -> Case:  # fmt: skip
    """[CLS] ... [SEP], later texts a little shorter; least: the lowest ID that is no special token."""
    ids = rng.integers(least, vocab, shape)
    special = np.zeros(shape, dtype=bool)
    for row in range(shape[0] if shape[1] > 1 else 0):
        end = shape[1] - 1 - row * padded % shape[1]
        special[row, 0] = special[row, end:] = True
    ids[special] = least - 1 if least else vocab - 1
    mask_id = 4 if least else vocab - 2
    arguments = {"ids": ids, "special": special, "seed": int(rng.integers(1000))}
    return Case(label, arguments | {"mask_id": mask_id, "vocab_size": vocab, **options})


def _text_cases(rng: np.random.Generator) -> list[Case]:

    def case(label: str, shape: tuple[int, int], vocab: int, **options: Any) -> Case:
        return _text_case(rng, label, shape, vocab, **options)

    nothing = case("special tokens alone", (2, 4), 9)
    nothing.arguments["special"][:] = True
    long = case("190 tokens, where 0.15 n is 28.5 in float64 and more in float32", (1, 190), 12)
    long.arguments["special"][:] = False
    return [
        case("one text", (1, 6), 11),
        case("one token", (1, 1), 9),
        case("ten texts of three tokens", (10, 5), 12),
        case("padding", (3, 9), 14, padded=2),
        case("any ID is a token", (4, 30), 8, least=0),
        case("token 0 alone", (3, 12), 3, least=0),
        case("a large batch", (200, 60), 12),
        case("a large batch of any ID, padded", (150, 70), 15, least=0, padded=1),
        case("half of them", (100, 40), 20, rate=0.5),
        nothing,
        case("texts without tokens", (2, 0), 9),
        case("no text", (0, 5), 9),
        long,
    ]


def _drawn_texts(draw: Draw) -> Case:
    """Any size, vocabulary, padding and rate together."""
    shape = (draw.one_of(1, 3, 40), draw.one_of(4, 9, 33))
    rate = draw.one_of(None, 0.3, 0.05)
    return _text_case(
        draw.numbers, "drawn", shape, draw.one_of(9, 40), least=draw.one_of(5, 0),
        padded=draw.one_of(0, 1), **({} if rate is None else {"rate": rate}),
    )  # fmt: skip


def _wanted(case: Case) -> np.ndarray:
    """How many tokens of each text are to be chosen."""
    rate = case.arguments.get("rate", 0.15)
    available = [int(each) for each in (~case.arguments["special"]).sum(1)]
    return np.array([min(max(1, round(rate * each)), each) for each in available], dtype=int)


def _many(case: Case) -> bool:
    """Whether enough tokens are chosen for their frequencies to mean something."""
    return int(_wanted(case).sum()) >= 1000


def _labels(run: Run, case: Case) -> Problem | None:
    ids, labels = case.arguments["ids"], run.value(case)[1]
    return compare(np.where(labels == IGNORE, IGNORE, ids), labels, 0.0, "the labels")


def _count(run: Run, case: Case) -> Problem | None:
    found = (run.value(case)[1] != IGNORE).sum(1)
    return compare(_wanted(case), found, 0.0, "how many tokens of each text have a label")


def _special(run: Run, case: Case) -> Problem | None:
    special, (inputs, labels) = case.arguments["special"], run.value(case)
    kept = np.where(special, case.arguments["ids"], inputs)
    problem = compare(kept, inputs, 0.0, "the special tokens")
    wanted = np.where(special, IGNORE, labels)
    return problem or compare(wanted, labels, 0.0, "the labels of special tokens")


def _others(run: Run, case: Case) -> Problem | None:
    inputs, labels = run.value(case)
    kept = np.where(labels == IGNORE, case.arguments["ids"], inputs)
    return compare(kept, inputs, 0.0, "the tokens without a label")


def _own_choice(run: Run, case: Case) -> Problem | None:
    """Two texts of 58 tokens agree once in C(58, 9), which is more than 10^9; all of a batch never do."""
    chosen = run.value(case)[1] != IGNORE
    alike = (chosen[1:] == chosen[:-1]).all(1) & chosen[1:].any(1)
    return Problem("other tokens in each text", "the same in all of them") if alike.all() else None


def _another_seed(run: Run, case: Case) -> Problem | None:
    """Two seeds agree on a large batch with less than one chance in 10^100."""
    before, after = run.value(case), run.value(case, seed=case.arguments["seed"] + 1)
    return Problem("another answer", "the same one") if np.array_equal(before, after) else None


def _kinds(answer: np.ndarray, case: Case) -> np.ndarray:
    """What became of each token: 0 not chosen, 1 [MASK], 2 as it was, 3 another token; (B, L)."""
    (inputs, labels), ids = answer, case.arguments["ids"]
    masked = inputs == case.arguments["mask_id"]
    changed = np.where(masked, 1, np.where(inputs == ids, 2, 3))
    return np.where(labels == IGNORE, 0, changed)


def _share_masked(run: Run, case: Case) -> Problem | None:
    """A token that is [MASK] itself is left out; a random one is [MASK] once in V times."""
    kinds = _kinds(run.value(case), case)[case.arguments["ids"] != case.arguments["mask_id"]]
    chosen = int((kinds > 0).sum())
    share = TO_MASK + TO_RANDOM / case.arguments["vocab_size"]
    return off(float((kinds == 1).sum()) / chosen, share, chosen, "the share of [MASK]")


def _share_random(run: Run, case: Case) -> Problem | None:
    """A random token is [MASK], or the token that stood there, once in V times each."""
    kinds = _kinds(run.value(case), case)[case.arguments["ids"] != case.arguments["mask_id"]]
    chosen = int((kinds > 0).sum())
    share = TO_RANDOM * (1 - 2 / case.arguments["vocab_size"])
    return off(float((kinds == 3).sum()) / chosen, share, chosen, "the share of random tokens")


def _seeded(case: Case) -> list[Case]:
    """The case with each of 20 seeds; two checks look at the same answers."""
    return [case.changed(seed=seed) for seed in range(20)]


def _any_token(run: Run, case: Case) -> Problem | None:
    """The random tokens of so many seeds that each one is missing with a chance below the risk."""
    vocab, found = case.arguments["vocab_size"], set()
    drawn = 0
    for each in _seeded(case):
        answer = run.value(each)
        another = _kinds(answer, case) == 3
        found |= set(answer[0][another].tolist())
        drawn += int(another.sum())
    missing = set(range(vocab)) - found - {case.arguments["mask_id"]}
    if missing and vocab * (1 - 1 / vocab) ** drawn < RISK:
        return Problem("every token at times", f"never {min(missing)} among {drawn}")
    return None


def _like_the_reference(run: Run, case: Case) -> Problem | None:
    """What becomes of a token at each position, in 20 batches of each; Hoeffding's bound for both."""
    positions, seeded = case.arguments["ids"].shape[1], _seeded(case)
    shares = []
    for answer in (run.value, lambda each: run.expected(each)[0]):
        kinds = np.concatenate([_kinds(answer(each), case) for each in seeded])
        shares.append(np.stack([(kinds == kind).mean(0) for kind in range(4)]))
    count = len(case.arguments["ids"]) * len(seeded)
    allowed = 2 * math.sqrt(math.log(2 * 2 * 4 * positions / RISK) / (2 * count))
    return compare(shares[1], shares[0], allowed, "the share of each kind at each position")


MASK_TOKENS = Spec(
    name="mask_tokens",
    statement="""mask_tokens(ids, special, generator, *, mask_id, vocab_size, rate=0.15) -> inputs and labels, both (B, L).
Of the n tokens of a text that are not special, round(rate n) are chosen, at least one; their labels are the
tokens, all others -100. 80 % of the chosen become mask_id, 10 % any token of the vocabulary, 10 % stay. All
random numbers come from the torch.Generator.""",
    required=("ids", "special", "seed"),
    reference=reference.mask_tokens,
    cases=_text_cases,
    combine=_drawn_texts,
    build=seeded,
    read=lambda answer, arguments: torch.stack(list(answer)),
    checks=(
        Check(
            "labels are the tokens that stood there",
            "The label of a chosen token is its ID before masking; all other labels are -100.",
            _labels,
        ),
        Check(
            "15 % of each text, and at least one",
            "Of n tokens that are not special round(0.15 n) have a label, at least one, token 0 like any other.",
            _count,
        ),
        Check(
            "special tokens are left alone",
            "[CLS], [SEP] and padding are never chosen: they stay and have no label.",
            _special,
        ),
        Check(
            "what has no label stays",
            "Only chosen tokens may change: the loss counts no others.",
            _others,
        ),
        Check(
            "each text has a choice of its own",
            "The texts of a batch are masked at the same positions: one draw was broadcast to all.",
            _own_choice,
            when=_many,
        ),
        Check(
            "another seed, another choice",
            "The result does not depend on the generator: use it for every random number.",
            _another_seed,
            when=_many,
        ),
        Check(
            "80 % become [MASK]",
            "Of the chosen tokens 80 % must become [MASK].",
            _share_masked,
            when=_many,
        ),
        Check(
            "10 % become a random token",
            "Of the chosen tokens, not of those that are left, 10 % must become a random token.",
            _share_random,
            when=_many,
        ),
        Check(
            "any token can be the random one",
            "The random token is any of the vocabulary, the first and the last one too.",
            _any_token,
            when=_many,
        ),
        Check(
            EQUAL.name,
            "How many tokens are masked, random or unchanged differs from the slow reference by more than chance.",
            _like_the_reference,
            when=_many,
        ),
    ),
    mutants=mistakes_in(mutants, of="mask_tokens"),
    chapter=12,
)  # fmt: skip

# --- Is it the next sentence? ---------------------------------------------------------------------


def _table(answer: Any, arguments: dict[str, Any]) -> np.ndarray:
    """Pairs and labels as one array: a label, then both sentences filled up with -1."""
    pairs, labels = answer
    width = max(len(sentence) for document in arguments["documents"] for sentence in document)
    rows = np.full((len(pairs), 1 + 2 * width), -1)
    for row, (pair, label) in enumerate(zip(pairs, [int(each) for each in labels], strict=True)):
        rows[row, 0] = label
        for start, sentence in zip((1, 1 + width), pair, strict=True):
            rows[row, start : start + len(sentence)] = list(sentence)
    return rows


def _document_case(
    rng: np.random.Generator, label: str, *lengths: int, vocab: int = 50, words: int = 4
) -> Case:
    """Documents of so many sentences; with a small vocabulary and short sentences many are the same."""
    documents = [
        [rng.integers(5, 5 + vocab, rng.integers(1, words + 1)).tolist() for _ in range(length)]
        for length in lengths
    ]
    return Case(label, {"documents": documents, "seed": int(rng.integers(1000))})


def _document_cases(rng: np.random.Generator) -> list[Case]:

    def case(label: str, *lengths: int, **options: Any) -> Case:
        return _document_case(rng, label, *lengths, **options)

    return [
        case("two documents", 3, 2),
        case("a long and a short one", 40, 3),
        case("three documents, one of a single sentence", 4, 1, 5),
        case("sentences that many documents share", 20, 20, 20, vocab=3, words=1),
        case("many documents", *[6] * 30),
        case("many sentences", 220, 200, 180),
    ]


def _drawn_documents(draw: Draw) -> Case:
    """Any number and length of documents, of many or few sentences."""
    lengths = [draw.one_of(2, 9, 30) for _ in range(draw.one_of(2, 5))]
    size = {"vocab": 3, "words": 1} if draw.one_of(False, True) else {}
    case = _document_case(draw.numbers, "drawn", *lengths, **size)
    case.arguments["documents"][-1].append(
        [60, 61, 62]
    )  # which no document has: one is always left
    case.arguments["documents"][0].append([63, 64, 65])
    return case


def _read_pairs(run: Run, case: Case) -> list[tuple[int, list[int], list[int], list[int], int]]:
    """Each pair: its label, both sentences, the sentence that follows, and the document."""
    rows = run.value(case)
    width = (rows.shape[1] - 1) // 2
    follow = [
        (first, second, number)
        for number, document in enumerate(case.arguments["documents"])
        for first, second in pairwise(document)
    ]
    pairs = []
    for row, (_, true, number) in zip(rows.tolist(), follow, strict=True):
        first, second = (
            [n for n in part if n >= 0] for part in (row[1 : 1 + width], row[1 + width :])
        )
        pairs.append((row[0], first, second, true, number))
    return pairs


def _in_order(run: Run, case: Case) -> Problem | None:
    firsts = [list(first) for document in case.arguments["documents"] for first in document[:-1]]
    for wanted, (_, first, *_) in zip(firsts, _read_pairs(run, case), strict=True):
        if wanted != first:
            return Problem(f"a pair that begins with {wanted}", f"{first}")
    return None


def _true_pairs(run: Run, case: Case) -> Problem | None:
    for label, first, second, true, _ in _read_pairs(run, case):
        if label == 0 and second != list(true):
            return Problem(f"{true} after {first}, as its label is 0", f"{second}")
    return None


def _false_pairs(run: Run, case: Case) -> Problem | None:
    for label, first, second, true, _ in _read_pairs(run, case):
        if label != 0 and second == list(true):
            return Problem(f"not {true} after {first}, as its label is {label}", f"{second}")
    return None


def _elsewhere(run: Run, case: Case) -> Problem | None:
    documents = case.arguments["documents"]
    for label, first, second, _, number in _read_pairs(run, case):
        others = [list(each) for n, one in enumerate(documents) if n != number for each in one]
        if label != 0 and second not in others:
            return Problem(f"a sentence of another document after {first}", f"{second}")
    return None


def _many_pairs(case: Case) -> bool:
    return sum(len(document) - 1 for document in case.arguments["documents"]) >= 100


def _half(run: Run, case: Case) -> Problem | None:
    labels = run.value(case)[:, 0]
    return off(float((labels == 0).mean()), 0.5, len(labels), "the share of true pairs")


def _other_pairs(run: Run, case: Case) -> Problem | None:
    """100 coins fall the same way twice with a chance of 10^-30."""
    before, after = run.value(case), run.value(case, seed=case.arguments["seed"] + 1)
    return Problem("other pairs", "the same ones") if np.array_equal(before, after) else None


def _some_pairs(case: Case) -> bool:
    """Few enough for the slow reference, twenty times."""
    return 100 <= sum(len(document) - 1 for document in case.arguments["documents"]) < 300


def _as_often(run: Run, case: Case) -> Problem | None:
    """Where in its document a random sentence stands, in 20 draws each; Hoeffding's bound for both."""
    standing: dict[tuple[int, ...], int] = {}
    for document in case.arguments["documents"]:
        for position, sentence in enumerate(document):
            standing.setdefault(tuple(sentence), position)
    slow, shares, counts = Run(run.spec, None), [], []
    for rows_of in (
        lambda seed: run.value(case, seed=seed),
        lambda seed: slow.expected(case, seed=seed)[0],
    ):
        rows = np.concatenate([rows_of(seed) for seed in range(20)])
        width = (rows.shape[1] - 1) // 2
        false = rows[rows[:, 0] == 1, 1 + width :].tolist()
        found = [standing[tuple(n for n in row if n >= 0)] for row in false]
        shares.append(np.bincount(found, minlength=max(standing.values()) + 1) / len(found))
        counts.append(len(found))
    questions = 2 * len(shares[0])
    allowed = 2 * math.sqrt(math.log(2 * questions / RISK) / (2 * min(counts)))
    return compare(shares[1], shares[0], allowed, "how often a sentence of each position is drawn")


NEXT_SENTENCE_PAIRS = Spec(
    name="next_sentence_pairs",
    statement="""next_sentence_pairs(documents, generator) -> pairs and labels (P); a document is a list of sentences, a
sentence a list of IDs. Each sentence but a document's last begins a pair: with probability 1/2 the next one
follows (label 0), otherwise a random sentence of another document with other tokens (label 1). All random
numbers come from the torch.Generator.""",
    required=("documents", "seed"),
    reference=lambda documents, seed: _table(
        reference.next_sentence_pairs(documents, seed), {"documents": documents}
    ),
    cases=_document_cases,
    combine=_drawn_documents,
    build=seeded,
    read=_table,
    checks=(
        Check(
            "each sentence but the last begins a pair",
            "The first sentences are those of the documents in their order, without the last of each.",
            _in_order,
        ),
        Check(
            "a pair of label 0 is a true one",
            "0 means that the second sentence follows the first, in BERT and in transformers.",
            _true_pairs,
        ),
        Check(
            "a pair of label 1 is a false one",
            "The random sentence is the one that follows, so its label is wrong.",
            _false_pairs,
        ),
        Check(
            "a random sentence comes from another document",
            "A random second sentence must come from another document.",
            _elsewhere,
        ),
        Check(
            "half of the pairs are true",
            "The second sentence follows in half of the pairs.",
            _half,
            when=_many_pairs,
        ),
        Check(
            "another seed, other pairs",
            "The result does not depend on the generator: use it for every random number.",
            _other_pairs,
            when=_many_pairs,
        ),
        Check(
            EQUAL.name,
            "Sentences at some positions are drawn more often than chance explains.",
            _as_often,
            when=_some_pairs,
        ),
    ),
    mutants=mistakes_in(mutants, of="next_sentence_pairs"),
    chapter=12,
)  # fmt: skip

# --- Two sentences as one text --------------------------------------------------------------------


def _stacked(answer: Any, arguments: dict[str, Any]) -> Tensor:
    """IDs, mask and segments, (3, B, L)."""
    return torch.stack([part.long() for part in answer])


def _pair_cases(rng: np.random.Generator) -> list[Case]:

    def case(label: str, *lengths: tuple[int, int], **options: Any) -> Case:
        pairs = [tuple(rng.integers(5, 40, n).tolist() for n in both) for both in lengths]
        return Case(label, {"pairs": pairs, "cls_id": 2, "sep_id": 3, **options})

    return [
        case("one pair", (2, 3)),
        case("two pairs of one length", (1, 4), (3, 2)),
        case("a short and a long pair", (2, 2), (5, 3)),
        case("three pairs", (4, 1), (1, 1), (2, 6)),
        case("padding is 1", (3, 3), (1, 2), pad_id=1),
        case("an empty sentence", (0, 3), (2, 0)),
        case("other special tokens", (2, 5), (4, 1), cls_id=101, sep_id=102),
        case("no pair"),
    ]


def _part(number: int, what: str) -> Callable[[Run, Case], Problem | None]:
    """A test of the IDs, the mask or the segments where no padding is."""

    def test(run: Run, case: Case) -> Problem | None:
        expected = run.expected(case)[0]
        found = np.where(expected[1] == 1, run.value(case)[number], expected[number])
        return compare(expected[number], found, 0.0, what)

    return test


def _padding(number: int, what: str) -> Callable[[Run, Case], Problem | None]:
    """The same where padding is."""

    def test(run: Run, case: Case) -> Problem | None:
        expected = run.expected(case)[0]
        found = np.where(expected[1] == 0, run.value(case)[number], expected[number])
        return compare(expected[number], found, 0.0, what)

    return test


def _mask(run: Run, case: Case) -> Problem | None:
    return compare(run.expected(case)[0][1], run.value(case)[1], 0.0, "the mask")


JOIN_PAIRS = Spec(
    name="join_pairs",
    statement="""join_pairs(pairs, *, cls_id, sep_id, pad_id=0) -> input_ids, attention_mask and token_type_ids, each (B, L):
[CLS] first [SEP] second [SEP], padded on the right. The mask is True, or 1, for all tokens that are not padding. Up to the
first [SEP], itself included, a token is in segment 0, from there on in segment 1; padding is in 0.""",
    required=("pairs",),
    reference=reference.join_pairs,
    cases=_pair_cases,
    read=_stacked,
    checks=(
        Check(
            "[CLS] first [SEP] second [SEP]",
            "The tokens are [CLS], the first sentence, [SEP], the second sentence, [SEP].",
            _part(0, "the tokens"),
        ),
        Check(
            "padding is pad_id",
            "The padding after the text is pad_id, which need not be 0.",
            _padding(0, "the padding"),
        ),
        Check(
            "the mask is True for all that is no padding",
            "The attention mask is True for every token that is not padding, in both sentences.",
            _mask,
        ),
        Check(
            "the first separator ends segment 0",
            "[CLS], the first sentence and its [SEP] are segment 0; all that follows is segment 1.",
            _part(2, "the segments"),
        ),
        Check(
            "padding is in segment 0",
            "BERT has two segments, and padding belongs to the first.",
            _padding(2, "the segments of padding"),
        ),
    ),
    mutants=mistakes_in(mutants, of="join_pairs"),
    chapter=12,
)  # fmt: skip
