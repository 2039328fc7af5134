"""Homework 8: generating, and what the cache makes of it (chapter 11)."""

from __future__ import annotations

import heapq
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import reference
from ...errors import argument_error
from ...specs.compare import Problem, brief, compare, unchanged
from ...specs.draw import attempts
from ...specs.mistakes import mistake, mistakes
from ...specs.spec import SHAPE, UNTOUCHED, Case, Check, Run, Spec
from ..checks import right_with
from ..tasks import Assignment, Hunt, Task, Written


def _whole_numbers(answer: Any, arguments: dict[str, Any]) -> Any:
    """A list or a tuple of whole numbers is as good as a tensor."""
    if isinstance(answer, list | tuple) and all(_is_whole(number) for number in answer):
        return torch.tensor([int(number) for number in answer], dtype=torch.int64)
    return answer


def _is_whole(number: Any) -> bool:
    if isinstance(number, Tensor):
        return number.ndim == 0 and not number.is_floating_point()
    return isinstance(number, int | np.integer)


# --- Min-p ----------------------------------------------------------------------------------------


def _min_p_reference(logits: np.ndarray, share: float) -> np.ndarray:
    """Word by word: is it likely enough beside the likeliest of its row?"""
    answer = np.full_like(logits, -np.inf)
    for row, scores in enumerate(logits):
        probabilities = reference.softmax(scores)
        for word, probability in enumerate(probabilities):
            if probability >= share * max(probabilities):
                answer[row, word] = scores[word]
    return answer


def _rule_out(logits: Tensor, gone: Tensor) -> Tensor:
    return logits.masked_fill(gone, float("-inf"))


@mistake(
    "an absolute threshold",
    rejected_by="the most probable tokens stay",
    cause="The threshold is share, not share times the largest probability.",
)
def min_p_absolute(logits, share):
    """Less likely than share, whatever the others are."""
    return _rule_out(logits, logits.softmax(-1) < share)


@mistake(
    "a share of the scores",
    rejected_by="the most probable tokens stay",
    cause="Logits have no natural zero: a fraction of a logit means nothing.",
)
def min_p_of_scores(logits, share):
    """A share of the largest score."""
    return _rule_out(logits, logits < share * logits.amax(-1, keepdim=True))


@mistake(
    "the most probable of the batch",
    rejected_by="the most probable tokens stay",
    cause="The maximum runs over the whole batch.",
)
def min_p_of_the_batch(logits, share):
    """The likeliest word of all rows."""
    p = logits.softmax(-1)
    return _rule_out(logits, p < share * p.max())


@mistake(
    "more than the share",
    rejected_by="the most probable tokens stay",
    cause="The threshold itself is filtered out.",
)
def min_p_strict(logits, share):
    """More than the share."""
    top = logits.amax(-1, keepdim=True)
    return _rule_out(logits, logits - top <= np.log(share))


@mistake(
    "a large negative number",
    rejected_by="ruled out is -inf",
    cause="-1e9, or another finite number, in place of -inf.",
)
def min_p_with_a_large_number(logits, share):
    """-1e9 in place of -inf."""
    p = logits.softmax(-1)
    return logits.masked_fill(p < share * p.amax(-1, keepdim=True), -1e9)


@mistake(
    "log-probabilities returned",
    rejected_by="what stays is what it was",
    cause="The log-probabilities are returned in place of the logits.",
)
def min_p_as_probabilities(logits, share):
    """Logarithms of what is left."""
    p = logits.softmax(-1)
    return _rule_out(p.log(), p < share * p.amax(-1, keepdim=True))


def _min_p_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, rows, vocab, share, shift=0.0, scale=2.0, dtype=torch.float64) -> Case:
        """No word so near to the threshold that rounding decides."""
        for _ in attempts():
            logits = scale * rng.normal(size=(rows, vocab)) + shift
            far = logits - logits.max(-1, keepdims=True) - np.log(share)
            if np.abs(far).min() > 1e-3:
                return Case(label, {"logits": logits, "share": share}, dtype)

    tied = np.log(np.array([[0.1, 0.3, 0.3, 0.3], [0.2, 0.1, 0.5, 0.2]]))
    return [
        case("three words", 1, 3, 0.3),
        case("all scores negative", 1, 5, 0.2, shift=-12.0),
        case("a sure row and an unsure one", 2, 6, 0.05, scale=np.array([[6.0], [0.3]])),
        case("three rows", 3, 9, 0.1),
        case("float32", 4, 17, 0.02, dtype=torch.float32),
        Case("the likeliest only, three of them tied", {"logits": tied, "share": 1.0}),
        case("large scores", 2, 12, 0.5, shift=3e3, scale=50.0),
    ]


def _likeliest_stay(run: Run, case: Case) -> Problem | None:
    logits, got = case.arrays()["logits"], run.value(case)
    for row, (scores, kept) in enumerate(zip(logits, got, strict=True)):
        likeliest = np.flatnonzero(scores == scores.max())
        if not np.isfinite(kept[likeliest]).all():
            return Problem(f"row {row}: words {likeliest.tolist()} stay", f"{kept[likeliest]}")
    return None


def _ruled_out(run: Run, case: Case) -> Problem | None:
    """No number but the word's own score, or -inf: where it must go, a number below all scores is a try."""
    expected, got = run.expected(case)[0], run.value(case)
    tried = np.isneginf(expected) & np.isfinite(got) & (got < case.arrays()["logits"].min())
    if not tried.any():
        return None
    row, word = np.argwhere(tried)[0]
    return Problem(f"-inf for word {word} of row {row}", brief(got[row, word]))


def _kept_as_they_were(run: Run, case: Case) -> Problem | None:
    got = run.value(case)
    stays = np.isfinite(got)
    logits = case.arrays()["logits"].astype(np.float64)
    return compare(np.where(stays, logits, 0.0), np.where(stays, got, 0.0), 0.0, "what stays")


def _kept_after_a_shift(run: Run, case: Case) -> Problem | None:
    here = np.isfinite(run.value(case))
    there = np.isfinite(run.value(case, logits=case.arguments["logits"] + 3.0))
    return unchanged(here, there, 0.0, "all scores are 3 higher", "who stays")


def _rows_alone(run: Run, case: Case) -> Problem | None:
    whole = run.value(case)
    for row, scores in enumerate(case.arguments["logits"]):
        alone = run.value(case, logits=scores[None])[0]
        problem = unchanged(
            np.isfinite(alone), np.isfinite(whole[row]), 0.0, "other rows are added",
            f"who stays in row {row}",
        )  # fmt: skip
        if problem:
            return problem
    return None


MIN_P = Spec(
    name="hw08.min_p",
    statement="min_p(logits, share): (B, V) -> (B, V), -inf for every token that is less "
    "probable than share times the most probable token of its row, 0 < share <= 1; the other "
    "logits stay as they are",
    required=("logits", "share"),
    reference=_min_p_reference,
    cases=_min_p_cases,
    checks=(
        replace(
            UNTOUCHED,
            explain="The function changes its caller's tensor. Assigning to a part of it, logits[...] = ..., "
            "does that, and so do operations whose name ends in _.",
        ),
        Check(
            "the most probable tokens stay",
            "The most probable token of a row is never filtered out, nor one that is exactly as "
            "probable.",
            _likeliest_stay,
        ),
        Check(
            "ruled out is -inf",
            "The logit of a token that is filtered out is -inf, and no other number.",
            _ruled_out,
        ),
        Check(
            "what stays is what it was",
            "The output holds logits: those of the tokens that stay, unchanged, and -inf.",
            _kept_as_they_were,
        ),
        Check(
            "a shift changes nothing",
            "The same number added to every logit gives the same distribution.",
            _kept_after_a_shift,
            when=lambda case: case.dtype == torch.float64,
        ),
        Check(
            "each row by itself",
            "Which tokens stay in a row does not depend on the other rows of the batch.",
            _rows_alone,
        ),
    ),
    mutants=mistakes(
        min_p_absolute, min_p_of_scores, min_p_of_the_batch, min_p_strict,
        min_p_with_a_large_number, min_p_as_probabilities
    ),
    chapter=11,
    points=2,
)  # fmt: skip

# --- A cache of fixed size ------------------------------------------------------------------------


def _slots_reference(fed: int, size: int, sinks: int) -> np.ndarray:
    """Feed token by token: fill up, then overwrite the oldest, the first ones excepted."""
    held = [-1] * size
    for token in range(fed):
        if -1 in held:
            slot = held.index(-1)
        else:
            slot = min(range(sinks, size), key=lambda s: held[s])
        held[slot] = token
    return np.array(held)


@mistake(
    "nothing stays for good",
    rejected_by="the first tokens stay for good",
    cause="All slots form one ring, but the sinks are not part of it.",
)
def slots_without_sinks(fed, size, sinks):
    """One ring for all."""
    return torch.from_numpy(_slots_reference(fed, size, 0))


@mistake(
    "sorted by age",
    rejected_by="a token stays in its slot",
    cause="The oldest token is dropped and all others move up.",
)
def slots_in_order(fed, size, sinks):
    """The right tokens, oldest first."""
    held = _slots_reference(fed, size, sinks)
    return torch.from_numpy(np.concatenate([np.sort(held[held >= 0]), held[held < 0]]))


@mistake(
    "counted around all slots",
    rejected_by="the newest are there, and no others",
    cause="token % size, but only size - sinks slots are overwritten in turn.",
)
def slots_modulo_size(fed, size, sinks):
    """token % size, past the first ones."""
    held = [-1] * size
    for token in range(fed):
        if token < sinks or token % size >= sinks:
            held[token % size] = token
    return torch.tensor(held)


@mistake(
    "empty slots hold token 0",
    rejected_by="empty slots hold -1",
    cause="0 stands for an empty slot and for the first token.",
)
def slots_empty_as_zero(fed, size, sinks):
    """An empty slot looks like one that holds token 0."""
    return torch.from_numpy(_slots_reference(fed, size, sinks)).clamp(min=0)


@mistake(
    "one token too many",
    rejected_by="empty slots hold -1",
    cause="After `fed` tokens the newest one has the number fed - 1.",
)
def slots_one_too_many(fed, size, sinks):
    """Token number `fed` is there already."""
    return torch.from_numpy(_slots_reference(fed + 1, size, sinks))


@mistake(
    "emptied when full",
    rejected_by="empty slots hold -1",
    cause="All slots are emptied, but only one has to be overwritten.",
)
def slots_refilled(fed, size, sinks):
    """When it is full, everything but the first tokens is thrown away."""
    held = [-1] * size
    for token in range(fed):
        if -1 not in held:
            held[sinks:] = [-1] * (size - sinks)
        held[held.index(-1)] = token
    return torch.tensor(held)


def _slots_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, fed, size, sinks) -> Case:
        return Case(label, {"fed": int(fed), "size": int(size), "sinks": int(sinks)})

    size = int(rng.integers(5, 12))
    sinks = int(rng.integers(2, size - 2))
    return [
        case("room left", 3, 5, 1),
        case("just full", 4, 4, 1),
        case("two overwritten", 6, 4, 1),
        case("no token is kept for good", 11, 4, 0),
        case("once around, and on", 23, 7, 3),
        case("other sizes", rng.integers(3 * size, 5 * size), size, sinks),
        case("one slot to turn over", 9, 5, 4),
        case("nothing fed", 0, 3, 1),
        case("a long text", 3000 + rng.integers(40), 61, 4),
    ]


def _empty_slots(run: Run, case: Case) -> Problem | None:
    a, got = case.arguments, run.value(case)
    empty = np.arange(a["size"]) >= a["fed"]
    wrong = np.flatnonzero(empty != (got == -1))
    if not len(wrong):
        return None
    slot = wrong[0]
    wanted = "-1, for it is empty" if empty[slot] else f"a token, for {a['fed']} were fed"
    return Problem(f"in slot {slot} {wanted}", f"{got[slot]}, in {brief(got)}")


def _first_tokens(run: Run, case: Case) -> Problem | None:
    a, got = case.arguments, run.value(case)
    kept = min(a["fed"], a["sinks"])
    return compare(np.arange(kept), got[:kept], 0.0, f"the first {kept} slots")


def _who_is_there(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    newest = range(max(a["sinks"], a["fed"] - (a["size"] - a["sinks"])), a["fed"])
    wanted = [*range(min(a["fed"], a["sinks"])), *newest]
    got = np.sort(run.value(case))
    return compare(np.array(wanted, dtype=got.dtype), got[got >= 0], 0.0, "the tokens held")


def _one_slot_a_token(run: Run, case: Case) -> Problem | None:
    before, after = run.value(case), run.value(case, fed=case.arguments["fed"] + 1)
    moved = np.flatnonzero(before != after).tolist()
    return None if len(moved) == 1 else Problem("one more token changes one slot", f"slots {moved}")


SLOTS = Spec(
    name="hw08.slots",
    statement="slots(fed, size, sinks): which token each slot of a cache holds after `fed` tokens, numbered "
    "from 0: (size), whole numbers, -1 for an empty slot. Slots are filled in order; when all are full, a new "
    "token takes the slot of the oldest, except that the first `sinks` tokens stay for good; 0 <= sinks < size",
    required=("fed", "size", "sinks"),
    reference=_slots_reference,
    read=_whole_numbers,
    cases=_slots_cases,
    usual=(SHAPE,),
    checks=(
        Check(
            "empty slots hold -1",
            "Slots are filled from the first to the last, and an empty one must differ from "
            "token 0.",
            _empty_slots,
        ),
        Check(
            "the first tokens stay for good",
            "Tokens 0 to sinks - 1 are never overwritten.",
            _first_tokens,
        ),
        Check(
            "the newest are there, and no others",
            "Besides the first tokens, the slots hold the newest tokens, as many as fit.",
            _who_is_there,
        ),
        Check(
            "a token stays in its slot",
            "Moving keys and values costs time: one more token overwrites one slot, and no other "
            "changes.",
            _one_slot_a_token,
        ),
    ),
    mutants=mistakes(
        slots_without_sinks, slots_in_order, slots_modulo_size, slots_empty_as_zero,
        slots_one_too_many, slots_refilled
    ),
    chapter=11,
    points=2,
)  # fmt: skip

# --- After some guesses ---------------------------------------------------------------------------


def _guesses_reference(
    p: np.ndarray, q: np.ndarray, drafted: np.ndarray, coins: np.ndarray
) -> np.ndarray:
    """Guess by guess, until one is refused."""
    for place, word in enumerate(drafted):
        if coins[place] >= min(1.0, p[place, word] / q[place, word]):
            rest = [max(0.0, a - b) for a, b in zip(p[place], q[place], strict=True)]
            return np.array([r / sum(rest) for r in rest], dtype=p.dtype)
    return p[len(drafted)]


def _accepted(p: Tensor, q: Tensor, drafted: Tensor, coins: Tensor) -> Tensor:
    places = torch.arange(len(drafted))
    return coins < p[places, drafted] / q[places, drafted]


def _after(p: Tensor, accepted: Tensor, other: Any) -> Tensor:
    """p of the next place, or what `other` makes of the place of the first refusal."""
    count = int(accepted.long().cumprod(0).sum())
    return p[count].clone() if count == len(accepted) else other(count)


def _residual(p: Tensor, q: Tensor, place: int) -> Tensor:
    rest = (p[place] - q[place]).clamp(min=0)
    return rest / rest.sum()


@mistake(
    "the rest not shared out",
    rejected_by="probabilities",
    cause="max(0, p - q) sums to less than 1.",
)
def guesses_not_shared_out(p, q, drafted, coins):
    """max(0, p - q), as it is."""
    return _after(p, _accepted(p, q, drafted, coins), lambda n: (p[n] - q[n]).clamp(min=0))


@mistake(
    "sampled from p after all",
    rejected_by="a rejected token is not sampled again",
    cause="After a rejection only what q proposes too rarely is left.",
)
def guesses_drawn_again(p, q, drafted, coins):
    """From p, although a guess was refused."""
    return _after(p, _accepted(p, q, drafted, coins), lambda n: p[n].clone())


@mistake(
    "accepted with p",
    rejected_by="accepted below p/q, rejected above",
    cause="The coin is compared with p, not with p/q.",
)
def guesses_by_p_alone(p, q, drafted, coins):
    """Accepted as often as the large model would say it."""
    accepted = coins < p[torch.arange(len(drafted)), drafted]
    return _after(p, accepted, lambda n: _residual(p, q, n))


@mistake(
    "the ratio upside down",
    rejected_by="accepted below p/q, rejected above",
    cause="q/p in place of p/q.",
)
def guesses_upside_down(p, q, drafted, coins):
    """q / p."""
    return _after(p, _accepted(q, p, drafted, coins), lambda n: _residual(p, q, n))


@mistake(
    "accepted ones counted",
    rejected_by="nothing after the first rejection counts",
    cause="accepted.sum() also counts proposals after a rejection.",
)
def guesses_counted(p, q, drafted, coins):
    """All accepted ones are counted, also those after a refusal."""
    accepted = _accepted(p, q, drafted, coins)
    count = int(accepted.sum())
    return p[count].clone() if count == len(accepted) else _residual(p, q, count)


@mistake(
    "the last position again",
    rejected_by="a proposal too many",
    cause="Row N - 1 of p in place of row N.",
)
def guesses_last_place_again(p, q, drafted, coins):
    """If all are accepted, the last one's place once more."""
    accepted = _accepted(p, q, drafted, coins)
    place = -1 if len(accepted) == 0 else len(accepted) - 1
    return p[place].clone() if accepted.all() else _after(p, accepted, lambda n: _residual(p, q, n))


@mistake(
    "accepted at p/q itself",
    rejected_by="a coin of exactly p/q rejects",
    cause="<= in place of <, or > in place of >=.",
)
def guesses_up_to_the_ratio(p, q, drafted, coins):
    """coin <= p/q."""
    places = torch.arange(len(drafted))
    accepted = coins <= p[places, drafted] / q[places, drafted]
    return _after(p, accepted, lambda n: _residual(p, q, n))


@mistake(
    "the distance of p and q",
    rejected_by="a rejected token is not sampled again",
    cause="The absolute value keeps what must be set to 0.",
)
def guesses_by_distance(p, q, drafted, coins):
    """|p - q|."""

    def rest(n: int) -> Tensor:
        far = (p[n] - q[n]).abs()
        return far / far.sum()

    return _after(p, _accepted(p, q, drafted, coins), rest)


def _guesses_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, guesses, vocab, refused=None, spread=1.0, dtype=torch.float64) -> Case:
        """Coins that refuse the guess at a place and accept those before it; after it, chance."""
        for _ in attempts():
            p = rng.dirichlet(np.full(vocab, spread), size=guesses + 1)
            q = rng.dirichlet(np.full(vocab, spread), size=guesses)
            words = [rng.choice(vocab, p=row) for row in q]
            drafted = np.array(words, dtype=np.int64)
            places = np.arange(guesses)
            ratio = np.minimum(1.0, p[places, drafted] / q[places, drafted])
            if refused is None or ratio[refused] < 0.9:
                break
        accepting = ratio * rng.uniform(0.1, 0.9, size=guesses)
        coins = rng.uniform(size=guesses)
        until = guesses if refused is None else refused
        coins[:until] = accepting[:until]
        if refused is not None:
            coins[refused] = ratio[refused] + (1 - ratio[refused]) * rng.uniform(0.1, 0.9)
            coins[refused + 1 :] = accepting[refused + 1 :]
        return Case(label, {"p": p, "q": q, "drafted": drafted, "coins": coins}, dtype)

    def exactly(label, first, coin) -> Case:
        """Word 0 is guessed, and its coin is p/q to the last bit."""
        p, q = np.array([first, [0.5, 0.25, 0.25]]), np.array([[0.5, 0.5, 0.0]])
        return Case(
            label, {"p": p, "q": q, "drafted": np.array([0]), "coins": np.array([float(coin)])}
        )

    hand = {"p": np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]), "q": np.array([[0.2, 0.7, 0.1]])}
    return [
        Case("by hand, refused", {**hand, "drafted": np.array([1]), "coins": np.array([0.6])}),
        Case("by hand, accepted", {**hand, "drafted": np.array([1]), "coins": np.array([0.4])}),
        case("two guesses, the second refused", 2, 4, refused=1),
        case("three guesses, all accepted", 3, 5),
        case("four guesses, the first refused", 4, 5, refused=0),
        case("five guesses, the third refused", 5, 7, refused=2),
        case("no guess", 0, 4),
        exactly("the large model never says it, and the coin is 0", [0.0, 1.0, 0.0], 0.0),
        exactly("the coin is exactly p/q", [0.25, 0.25, 0.5], 0.5),
        case("float32", 6, 9, refused=3, dtype=torch.float32),
    ]


def _a_distribution(run: Run, case: Case) -> Problem | None:
    got, (expected, tolerance) = run.value(case), run.expected(case)
    if got.min() >= 0 and abs(got.sum() - expected.sum()) <= len(expected) * tolerance:
        return None
    return Problem(
        "probabilities from 0 up with the sum 1", f"sum {got.sum():.4g}, least {got.min():.4g}"
    )


def _guessing(case: Case) -> bool:
    return len(case.arguments["drafted"]) > 0 and case.dtype == torch.float64


def _ratio(case: Case) -> np.ndarray:
    a = case.arguments
    places = np.arange(len(a["drafted"]))
    return np.minimum(1.0, a["p"][places, a["drafted"]] / a["q"][places, a["drafted"]])


def _exactly_at_it(case: Case) -> bool:
    return _guessing(case) and bool((case.arguments["coins"] == _ratio(case)).any())


def _equality_refuses(run: Run, case: Case) -> Problem | None:
    expected, tolerance = run.expected(case)
    return compare(expected, run.value(case), tolerance)


def _all_accepted(run: Run, case: Case) -> Problem | None:
    coins = np.zeros_like(case.arguments["coins"])
    return right_with(run, case, "with coins of 0 the answer", coins=coins)


def _edge_of_the_ratio(run: Run, case: Case) -> Problem | None:
    """Just below the ratio a guess is accepted; just above it is refused."""
    ratio, last, rounding = _ratio(case), case.arguments["p"][-1], run.expected(case)[1]
    what = "with coins a little below p/q the answer"
    problem = right_with(run, case, what, coins=0.999 * ratio)
    if problem or ratio[0] > 0.99:
        return problem
    coins = np.where(np.arange(len(ratio)) == 0, 1.001 * ratio, 0.0)
    expected = run.spec.expected(case, coins=coins)
    got = run.value(case, coins=coins)
    refused = np.abs(got - last).max() > rounding or np.abs(expected - last).max() <= rounding
    return None if refused else Problem("a coin a little above p/q refuses", "it accepts")


def _refused_at(case: Case) -> int | None:
    refused = np.flatnonzero(case.arguments["coins"] >= _ratio(case))
    return int(refused[0]) if len(refused) else None


def _nothing_after(run: Run, case: Case) -> Problem | None:
    """What stands after the first refusal is thrown away."""
    a, place = case.arguments, _refused_at(case)
    p, coins = a["p"].copy(), a["coins"].copy()
    p[place + 1 :] = p[place + 1 :][:, ::-1]
    coins[place + 1 :] = 0.0
    got, tolerance = run.value(case, p=p, coins=coins), 2 * run.expected(case)[1]
    when = "other numbers stand after the first refusal"
    return unchanged(run.value(case), got, tolerance, when)


def _not_again(run: Run, case: Case) -> Problem | None:
    word = int(case.arguments["drafted"][_refused_at(case)])
    got = float(run.value(case)[word])
    return None if got == 0 else Problem(f"0 for word {word}, which was refused", f"{got:.4g}")


def _has_refusal(case: Case) -> bool:
    return _guessing(case) and _refused_at(case) is not None and not _exactly_at_it(case)


AFTER_GUESSES = Spec(
    name="hw08.after_guesses",
    statement="after_guesses(p, q, drafted, coins): from which probabilities, (V), the next "
    "token is sampled after N proposals of speculative decoding. drafted (N): the tokens that "
    "the draft model sampled from q (N, V), one row each; p (N + 1, V): the target model's "
    "probabilities at these positions and one more. In order: a proposal is accepted if its "
    "coin, from 0 to below 1, is below min(1, p/q) of its token; at the first rejection the rest "
    "is discarded and the next token is sampled from max(0, p - q), divided by its sum; if none "
    "is rejected, from the last row of p",
    required=("p", "q", "drafted", "coins"),
    reference=_guesses_reference,
    baseline=lambda p, q, drafted, coins: _after(
        p, _accepted(p, q, drafted, coins), lambda n: _residual(p, q, n)
    ),
    differentiable=False,
    cases=_guesses_cases,
    checks=(
        Check(
            "probabilities",
            "Probabilities sum to 1 and are not below 0.",
            _a_distribution,
        ),
        Check(
            "a proposal too many",
            "If every proposal is accepted, the target model has computed one more position: the "
            "last row of p.",
            _all_accepted,
            when=lambda case: case.dtype == torch.float64 and bool((_ratio(case) > 0).all()),
        ),
        Check(
            "accepted below p/q, rejected above",
            "A proposal is judged by p/q of its own token. The draft model proposes it as often "
            "as q says.",
            _edge_of_the_ratio,
            when=lambda case: _guessing(case) and bool((_ratio(case) > 0).all()),
        ),
        Check(
            "nothing after the first rejection counts",
            "Proposals after a rejected one follow a token that was not generated.",
            _nothing_after,
            when=_has_refusal,
        ),
        Check(
            "a rejected token is not sampled again",
            "A token is rejected because the draft model proposes it too often: p - q is below 0 "
            "there.",
            _not_again,
            when=_has_refusal,
        ),
        Check(
            "a coin of exactly p/q rejects",
            "A proposal is accepted if its coin is below p/q. A coin may be 0, but a token with "
            "p = 0 must never be accepted.",
            _equality_refuses,
            when=_exactly_at_it,
        ),
    ),
    mutants=mistakes(
        guesses_not_shared_out, guesses_drawn_again, guesses_by_p_alone, guesses_upside_down,
        guesses_counted, guesses_last_place_again, guesses_up_to_the_ratio, guesses_by_distance
    ),
    chapter=11,
    points=2,
)  # fmt: skip

# --- The likeliest sentence of a chain ------------------------------------------------------------


def _logs(probabilities: Any) -> Any:
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(probabilities, dtype=np.float64))


def _likeliest(first: Any, after: Any, eos: int, longest: int) -> tuple[float, tuple[int, ...]]:
    """The best way to go on after each word, with so many words left: every next word is tried."""
    first, after = _logs(first), _logs(after)

    @cache
    def best(word: int | None, left: int) -> tuple[float, tuple[int, ...]]:
        if word == eos:
            return 0.0, ()
        if left == 0:
            return -np.inf, ()
        row, found = first if word is None else after[word], (-np.inf, ())
        for following, gain in enumerate(row):
            score, words = best(following, left - 1)
            found = max(found, (gain + score, (following, *words)), key=lambda way: way[0])
        return found

    return best(None, longest)


def _likeliest_reference(first, after, eos: int, longest: int) -> np.ndarray:
    return np.array(_likeliest(first, after, eos, longest)[1])


def _as_words(answer: Any, arguments: dict[str, Any]) -> Any:
    if answer is None:
        raise argument_error(ValueError, "the answer", "None", "a sentence")
    return _whole_numbers(answer, arguments)


@mistake(
    "greedy",
    rejected_by="a sentence that ends",
    cause="Each token is chosen without regard to what can follow it.",
)
def chain_greedy(first, after, eos, longest):
    """The likeliest next word, again and again."""
    words = [int(first.argmax())]
    while words[-1] != eos and len(words) < longest:
        words.append(int(after[words[-1]].argmax()))
    return torch.tensor(words)


def _chain(
    first: Tensor, after: Tensor, longest: int, join: Any
) -> tuple[list[Tensor], list[Tensor]]:
    """For each length and last word the best score, and the word before."""
    scores, came_from = [first], []
    for _ in range(longest - 1):
        best, word = join(scores[-1][:, None], after).max(0)
        scores.append(best)
        came_from.append(word)
    return scores, came_from


def _back(came_from: list[Tensor], length: int, eos: int) -> Tensor:
    words = [eos]
    for number in range(length - 2, -1, -1):
        words.append(int(came_from[number][words[-1]]))
    return torch.tensor(words[::-1])


def _sum(a: Tensor, b: Tensor) -> Tensor:
    return a + b


def _stopping(after: Tensor, eos: int) -> Tensor:
    """Nothing is said after EOS."""
    after = after.log().clone()
    after[eos] = float("-inf")
    return after


@mistake(
    "as long as allowed",
    rejected_by="a sentence that ends",
    cause="Only the scores of the last step are used.",
)
def chain_of_full_length(first, after, eos, longest):
    """EOS comes last, and `longest` words are said."""
    _, came_from = _chain(first.log(), _stopping(after, eos), longest, _sum)
    return _back(came_from, longest, eos)


@mistake(
    "the first end",
    rejected_by="no sequence is more probable",
    cause="The search stops as soon as a sequence can end.",
)
def chain_of_the_shortest(first, after, eos, longest):
    """The first length at which a sentence can end."""
    scores, came_from = _chain(first.log(), _stopping(after, eos), longest, _sum)
    length = next((n for n, s in enumerate(scores, 1) if torch.isfinite(s[eos])), longest)
    return _back(came_from, length, eos)


@mistake(
    "kept where p is reached exactly",
    rejected_by="a sentence that ends",
    cause="The first token is one of the `longest`: longest - 1 steps follow it.",
)
def chain_one_word_more(first, after, eos, longest):
    """One step for each of the `longest` words, after the first."""
    return torch.from_numpy(_likeliest_reference(first, after, eos, longest + 1))


@mistake(
    "each token settled once",
    rejected_by="no sequence is more probable",
    cause="A shortest-path search (Dijkstra) keeps one path to each token, whatever its length.",
)
def chain_settled_once(first, after, eos, longest):
    """Dijkstra: the likeliest way to each word, however long, and none after it."""
    ways = [(-float(_logs(p)), [word]) for word, p in enumerate(first.tolist()) if p > 0]
    settled = set()
    heapq.heapify(ways)
    while ways:
        cost, words = heapq.heappop(ways)
        if words[-1] == eos:
            return torch.tensor(words)
        if words[-1] in settled:
            continue
        settled.add(words[-1])
        if len(words) == longest:
            continue
        for word, p in enumerate(after[words[-1]].tolist()):
            if p > 0:
                heapq.heappush(ways, (cost - float(_logs(p)), [*words, word]))
    return None


@mistake(
    "a beam",
    rejected_by="no sequence is more probable",
    cause="Fifty prefixes are kept, whatever their last tokens are; one for each last token is "
    "enough, and necessary.",
)
def chain_by_beams(first, after, eos, longest):
    """The 50 likeliest beginnings of each length."""
    beams, rows = [(0.0, [])], [*_logs(after), _logs(first)]
    ended = [(-np.inf, [eos])]
    for _ in range(longest):
        beams = [(score + gain, [*words, word]) for score, words in beams
                 for word, gain in enumerate(rows[words[-1] if words else -1])]  # fmt: skip
        ended += [beam for beam in beams if beam[1][-1] == eos]
        open_ones = [beam for beam in beams if beam[1][-1] != eos and beam[0] > -np.inf]
        beams = heapq.nlargest(50, open_ones, key=lambda beam: beam[0])
    return torch.tensor(max(ended, key=lambda beam: beam[0])[1])


@mistake(
    "a little added to 0",
    rejected_by="it has a probability above 0",
    cause="0 is replaced by a small number, so that its logarithm is finite. It should be -inf.",
)
def chain_of_small_numbers(first, after, eos, longest):
    """1e-9 is added, so that no logarithm is infinite."""
    return torch.from_numpy(_likeliest_reference(first + 1e-9, after + 1e-9, eos, longest))


@mistake(
    "the best mean",
    rejected_by="no sequence is more probable",
    cause="The log-probability is divided by the length: the length penalty 1.",
)
def chain_by_the_mean(first, after, eos, longest):
    """The mean log-probability of a word."""
    scores, came_from = _chain(first.log(), _stopping(after, eos), longest, _sum)
    means = torch.stack([s[eos] / n for n, s in enumerate(scores, 1)])
    return _back(came_from, int(means.argmax()) + 1, eos)


@mistake(
    "a product of probabilities",
    rejected_by="it has a probability above 0",
    cause="The product underflows. Add logarithms.",
)
def chain_of_products(first, after, eos, longest):
    """Probabilities are multiplied."""
    stopping = after.clone()
    stopping[eos] = 0.0
    scores, came_from = _chain(first, stopping, longest, lambda a, b: a * b)
    ends = torch.stack([s[eos] for s in scores])
    return _back(came_from, int(ends.argmax()) + 1, eos)


@mistake(
    "going on after the end",
    rejected_by="a sentence that ends",
    cause="EOS must end a path, not continue it.",
)
def chain_through_the_end(first, after, eos, longest):
    """EOS is a word like any other, and the likeliest words of full length are cut at their end."""
    scores, came_from = _chain(first.log(), after.log(), longest, _sum)
    words = [int(scores[-1].argmax())]
    for word in reversed(came_from):
        words.append(int(word[words[-1]]))
    words = words[::-1]
    return torch.tensor(words[: words.index(eos) + 1] if eos in words else words)


def _detour() -> dict[str, np.ndarray]:
    """Word 3 is likelier by way of 1 and 2, and then too late: 3 4 5 0 is right, 1 0 can be said."""
    after = np.zeros((6, 6))
    after[1, [0, 2]] = 0.01, 0.99
    after[[0, 2, 3, 4, 5], [0, 3, 4, 5, 0]] = 1.0
    return {"first": np.array([0.0, 0.9, 0.0, 0.1, 0.0, 0.0]), "after": after}


def _rare_words() -> dict[str, np.ndarray]:
    """One sentence, 1 2 3 0, with the probability 1e-36; all else leads to word 4, which never ends."""
    after = np.zeros((5, 5))
    after[[1, 2, 3], [2, 3, 0]] = 1e-9
    after[:, 4] = 1 - after.sum(1)
    return {"first": np.array([0.0, 1e-9, 0.0, 0.0, 1 - 1e-9]), "after": after}


def _many_beginnings() -> dict[str, np.ndarray]:
    """20 words that follow each other and hardly ever end, and a rare one, 21, that leads to the end.

    21 22 23 0 has the probability 1e-6. 400 beginnings of two words, 8,000 of three, are likelier.
    """
    count = 24
    after = np.zeros((count, count))
    often = slice(1, 21)
    after[often, 0] = 1e-9 * np.arange(1, 21)
    after[often, often] = (1 - after[often, :1]) / 20
    after[[0, 21, 22, 23], [0, 22, 23, 0]] = 1.0
    first = np.zeros(count)
    first[often], first[21] = (1 - 1e-6) / 20, 1e-6
    return {"first": first, "after": after}


def _chain_cases(rng: np.random.Generator) -> list[Case]:

    def drawn(label, vocab, eos, longest, length, dtype=torch.float64) -> Case:
        """The first chain in which ends are rare and the likeliest sentence has so many words."""
        for _ in attempts():
            weights = rng.dirichlet(np.full(vocab, 0.4), size=vocab + 1)
            weights[:, eos] *= rng.choice([0.0, 0.1, 1.0], size=vocab + 1, p=[0.5, 0.3, 0.2])
            weights[0, eos] = 0.0
            weights /= weights.sum(-1, keepdims=True)
            arguments = {"first": weights[0], "after": weights[1:], "eos": eos, "longest": longest}
            score, words = _likeliest(*arguments.values())
            greedy = chain_greedy(torch.tensor(weights[0]), torch.tensor(weights[1:]), eos, longest)
            mean = chain_by_the_mean(
                torch.tensor(weights[0]), torch.tensor(weights[1:]), eos, longest
            )
            others = {tuple(greedy.tolist()), tuple(mean.tolist())}
            if np.isfinite(score) and len(words) == length and words not in others:
                return Case(label, arguments, dtype)

    three = {"first": np.array([0.0, 0.4, 0.6, 0.0]), "after": np.array([
        [1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.6, 0.4, 0.0, 0.0]])}  # fmt: skip
    count = 24  # a path with dead ends beside it: 1, 2, 3, ... and from the last word to the end
    path = np.zeros((count, count))
    path[np.arange(1, count - 2), np.arange(2, count - 1)] = 0.005
    path[count - 2, 0] = 0.005
    path[:, count - 1] = 1 - path.sum(1)
    start = np.eye(count)[1]
    chain = {"first": np.array([0.0, 0.4, 0.6, 0.0]), "after": np.array([
        [1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]])}  # fmt: skip
    return [
        Case("four words", {**three, "eos": 0, "longest": 4}),
        Case("four words, at most three said", {**three, "eos": 0, "longest": 3}),
        Case("four words, at most two said", {**chain, "eos": 0, "longest": 2}),
        Case("a detour that is too long", {**_detour(), "eos": 0, "longest": 4}),
        Case("rare words", {**_rare_words(), "eos": 0, "longest": 8}),
        drawn("five words", 5, 0, 6, 3),
        drawn("six words, EOS is 4", 6, 4, 7, 4),
        drawn("nine words", 9, 2, 12, 4),
        Case("many likely beginnings", {**_many_beginnings(), "eos": 0, "longest": 6}),
        Case("a long way", {"first": start, "after": path, "eos": 0, "longest": 30}, torch.float32),
    ]  # fmt: skip


def _ends_once(run: Run, case: Case) -> Problem | None:
    a, got = case.arguments, run.value(case)
    longest, eos, vocab = a["longest"], a["eos"], len(a["first"])
    if got.ndim != 1 or got.dtype.kind not in "iu":
        return Problem("whole numbers, (N)", f"shape {got.shape}, {got.dtype}")
    if not 1 <= len(got) <= longest:
        return Problem(f"1 to {longest} words", f"{len(got)} words: {got.tolist()[:12]}")
    if ((got < 0) | (got >= vocab)).any():
        return Problem(f"words from 0 to {vocab - 1}", str(got.tolist()))
    if got[-1] != eos or (got[:-1] == eos).any():
        return Problem(f"EOS ({eos}) at the end and only there", str(got.tolist()[-12:]))
    return None


def _score(case: Case, words: np.ndarray) -> float:
    a, total = case.arguments, 0.0
    rows = [a["first"], *(a["after"][word] for word in words[:-1])]
    for row, word in zip(rows, words, strict=True):
        total += float(_logs(row[word]))
    return total


def _can_be_said(run: Run, case: Case) -> Problem | None:
    words = run.value(case)
    if np.isfinite(_score(case, words)):
        return None
    return Problem("a sentence with a probability above 0", str(words.tolist()[:12]))


def _no_likelier(run: Run, case: Case) -> Problem | None:
    a, words = case.arguments, run.value(case)
    best, got = _likeliest(a["first"], a["after"], a["eos"], a["longest"])[0], _score(case, words)
    if got >= best - case.rounding(a["longest"]) * abs(best):
        return None
    return Problem(f"log-probability {best:.4f}", f"{got:.4f}, {words.tolist()[:12]}")


LIKELIEST = Spec(
    name="hw08.likeliest",
    statement="likeliest(first, after, eos, longest): the tokens, EOS included, of the most "
    "probable sequence of at most `longest` tokens that ends; (N), integers. first (V): the "
    "probability of each first token; after (V, V): after[i, j] is that of j after i; a sequence "
    "ends with its first eos. Probabilities may be 0; some sequence can end, and exactly one is "
    "the most probable",
    required=("first", "after", "eos", "longest"),
    reference=_likeliest_reference,
    read=_as_words,
    cases=_chain_cases,
    usual=(UNTOUCHED,),
    checks=(
        Check(
            "a sentence that ends",
            "At most `longest` tokens, the last of them EOS, and no EOS before.",
            _ends_once,
        ),
        UNTOUCHED,
        Check(
            "it has a probability above 0",
            "Every token must have a probability above 0 after the one before it.",
            _can_be_said,
        ),
        Check(
            "no sequence is more probable",
            "Another sequence that ends in time is more probable.",
            _no_likelier,
        ),
    ),
    mutants=mistakes(
        chain_greedy, chain_of_full_length, chain_of_the_shortest, chain_by_the_mean,
        chain_one_word_more, chain_settled_once, chain_by_beams, chain_of_small_numbers,
        chain_of_products, chain_through_the_end
    ),
    chapter=11,
    points=3,
)  # fmt: skip

# --- The hunt: top-p ------------------------------------------------------------------------------


def _keep(probabilities: Tensor, kept: Tensor) -> Tensor:
    left = probabilities * kept
    return left / left.sum(-1, keepdim=True)


def _sorted(probabilities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities downward, their words, and what the likelier words have together."""
    ordered, words = probabilities.sort(dim=-1, descending=True, stable=True)
    return ordered, words, ordered.cumsum(-1)


def _where(words: Tensor, kept: Tensor) -> Tensor:
    return torch.zeros_like(kept).scatter(-1, words, kept)


def top_p_sorted(probabilities, p):
    """Sort, add up, look at the sum before each word."""
    _, words, total = _sorted(probabilities)
    before = torch.cat([torch.zeros_like(total[:, :1]), total[:, :-1]], dim=-1)
    return _keep(probabilities, _where(words, before < p))


def top_p_in_a_loop(probabilities, p):
    """Row by row, the likeliest word that is left, until p is reached."""
    answer = torch.zeros_like(probabilities)
    for row, chances in enumerate(probabilities.tolist()):
        total, left = 0.0, sorted(range(len(chances)), key=lambda word: -chances[word])
        while total < p and left:
            word = left.pop(0)
            answer[row, word] = probabilities[row, word]
            total += chances[word]
        answer[row] = answer[row] / total
    return answer


def top_p_counted(probabilities, p):
    """Count the words that are not enough, and rank every word."""
    order = probabilities.argsort(dim=-1, descending=True, stable=True)
    needed = 1 + (probabilities.gather(-1, order).cumsum(-1) < p).sum(-1, keepdim=True)
    kept = order.argsort(-1) < needed
    left = torch.where(kept, probabilities, 0.0)
    return torch.einsum("bv,b->bv", left, 1 / left.sum(-1))


@mistake(
    "without the token that crosses",
    rejected_by="a sum below p",
    symptom="The tokens that stay have less than p together.",
    cause="The test uses the sum with the token; it should use the sum before it.",
)
def hunted_without_the_crossing(probabilities, p):
    """Words as long as their sum stays below p; the first in any case."""
    _, words, total = _sorted(probabilities)
    kept = total < p
    kept[:, 0] = True
    return _keep(probabilities, _where(words, kept))


@mistake(
    "a certain token lost",
    rejected_by="a word that has p alone",
    symptom="Where the model is most confident, nothing is left.",
    cause="The rule is shifted by one position, and the first token is not exempted.",
)
def hunted_sure_word_lost(probabilities, p):
    """The rule is moved by one place, and the first place keeps its own."""
    _, words, total = _sorted(probabilities)
    gone = total >= p
    gone[:, 1:] = gone[:, :-1].clone()
    left = probabilities * _where(words, ~gone)
    return left / left.sum(-1, keepdim=True).clamp(min=1e-12)


@mistake(
    "one more than needed",
    rejected_by="a sum of exactly p",
    symptom="One token too many where p is reached exactly.",
    cause="<= in place of <.",
)
def hunted_one_more(probabilities, p):
    """Where p is reached exactly, one word more."""
    _, words, total = _sorted(probabilities)
    before = torch.cat([torch.zeros_like(total[:, :1]), total[:, :-1]], dim=-1)
    return _keep(probabilities, _where(words, before <= p))


@mistake(
    "sorted, and left so",
    rejected_by="words in another order",
    symptom="Token 0 is always the most probable.",
    cause="The output is not restored to the order of the token IDs.",
)
def hunted_sorted_answer(probabilities, p):
    """The order of the probabilities, not of the words."""
    ordered, _, total = _sorted(probabilities)
    return _keep(ordered, total - ordered < p)


@mistake(
    "not shared out",
    rejected_by="the sum of a row",
    symptom="The rows sum to less than 1.",
    cause="The kept probabilities are not divided by their sum.",
)
def hunted_not_shared_out(probabilities, p):
    """What is ruled out is missing."""
    return probabilities * (top_p_sorted(probabilities, p) > 0)


@mistake(
    "the first row for all",
    rejected_by="rows that need different numbers",
    symptom="The tokens of one prompt depend on the first prompt of the batch.",
    cause="The number of tokens is counted in row 0.",
)
def hunted_first_row(probabilities, p):
    """As many words in every row as in the first."""
    order = probabilities.argsort(dim=-1, descending=True, stable=True)
    needed = 1 + int((probabilities[0].sort(descending=True).values.cumsum(0) < p).sum())
    return _keep(probabilities, order.argsort(-1) < needed)


@mistake(
    "ties stay",
    rejected_by="equally likely words",
    symptom="Of many equally probable tokens all stay, whatever p is.",
    cause="A threshold cannot separate equal numbers.",
)
def hunted_ties(probabilities, p):
    """Every word as likely as the last that is needed."""
    kept = top_p_sorted(probabilities, p) > 0
    least = probabilities.masked_fill(~kept, 2.0).amin(-1, keepdim=True)
    return _keep(probabilities, probabilities >= least)


@mistake(
    "the input changed",
    rejected_by="compare the input before and after",
    symptom="The output is right, but the caller's probabilities now contain zeros.",
    cause="mul_ works in place, on the caller's tensor.",
)
def hunted_in_place(probabilities, p):
    """Zeros are written into the caller's tensor."""
    kept = top_p_sorted(probabilities, p) > 0
    return _keep(probabilities.mul_(kept), kept)


@mistake(
    "softmax again",
    rejected_by="any example",
    symptom="The tokens that stay are almost equally probable.",
    cause="Probabilities are treated as logits.",
)
def hunted_softmax_again(probabilities, p):
    """Probabilities are taken for scores."""
    kept = top_p_sorted(probabilities, p) > 0
    return probabilities.masked_fill(~kept, float("-inf")).softmax(-1)


HUNT = Hunt(
    name="hw08.hunt",
    function="test_top_p",
    statement="test_top_p(top_p): assert that top_p(probabilities, p) keeps, in each row, the "
    "smallest set of most probable tokens that together have p or more, sets all others to 0 and "
    "divides by the sum; of equally probable tokens the one with the smaller ID comes first; "
    "probabilities (B, V) in float32 or float64, rows with the sum 1, 0 < p < 1 -> (B, V), in "
    "the order of the token IDs; the input is unchanged",
    right={"sorted": top_p_sorted, "a loop": top_p_in_a_loop, "counted": top_p_counted},
    mutants=mistakes(
        hunted_without_the_crossing, hunted_sure_word_lost, hunted_one_more, hunted_sorted_answer,
        hunted_not_shared_out, hunted_first_row, hunted_ties, hunted_in_place, hunted_softmax_again
    ),
    points=4,
    minutes=60,
    difficulty="core",
    chapter=11,
)  # fmt: skip

ASSIGNMENT = Assignment(
    name="hw08",
    title="From logits to text",
    weeks="8",
    chapters=(11,),
    parts=(
        Task(spec=MIN_P, function="min_p", minutes=15, difficulty="warm-up"),
        Task(spec=SLOTS, function="slots", minutes=25, difficulty="core"),
        Task(spec=AFTER_GUESSES, function="after_guesses", minutes=25, difficulty="core"),
        Task(spec=LIKELIEST, function="likeliest", minutes=45, difficulty="challenge"),
        HUNT,
        Written(
            name="hw08-window",
            kind="explanation",
            points=2,
            minutes=20,
            rubric="0.5: in the first layer keys and values are computed from a token's own "
            "embedding and position, so with one layer nothing is left of the dropped token, and "
            "both programs agree. 1: from the second layer on, the hidden state of a later token "
            "already contains what it attended to in the dropped one, so its key and value still "
            "carry it; recomputed from the last tokens alone they would differ. 0.5: a "
            "measurement that shows it (change the dropped token, keep all others, and compare "
            "the logits of both programs), or the reach of several layers, about N times the "
            "window.",
        ),
        Written(
            name="hw08-again",
            kind="explanation",
            points=2,
            minutes=20,
            rubric="1: the calculation: accepted min(p, q) = 0.5 and 0.1, rejected 0.4 in all; "
            "the right rule gives the 0.4 to the second token (0.5, 0.5), the wrong one gives "
            "0.4 p = 0.2 to each: 0.7 and 0.3. 0.5: in general min(p, q) + r p with r = 1 - a "
            "and a = sum min(p, q), so p times min(1, q/p) + 1 - a: the tokens that come out too "
            "often are exactly those with min(1, q/p) > a, those with q >= p among them, and too "
            "rarely those that the draft model proposes much too rarely; a quarter for q >= p "
            "alone. 0.5: what q influences: how many proposals are accepted, hence the speed and "
            "never the distribution of the output; with q = p all are accepted.",
        ),
        Written(
            name="hw08-experiment",
            kind="experiment",
            points=3,
            minutes=50,
            rubric="1: the code runs, the counts come from other sequences than those measured, "
            "padding is left out, and the acceptance is the mean over positions of sum min(p, "
            "q). 1: the finding with numbers (measured: uniform 0.25, token frequencies 0.32, "
            "pairs 0.84; with 4 proposals about 1.3, 1.5 and 3.6 tokens per pass). 1: a careful "
            "conclusion: a table of pairs costs nearly nothing, so most tokens of this language "
            "could be proposed cheaply; the formula assumes that proposals are accepted "
            "independently and equally often, which they are not (positions differ); a pass over "
            "several tokens costs more than one; the language is tiny and regular. Two of these "
            "are enough.",
        ),
    ),
)  # fmt: skip
