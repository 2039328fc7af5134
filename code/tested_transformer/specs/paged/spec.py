"""The Specs of paging: attention to pages is attention, and a table gives each sequence what it wrote."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from ... import reference
from ...reference.paged import next_state, picture
from ..checks import any_dtype, larger, transposed
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..run import Run
from ..spec import Case, Check, Spec
from . import mutants

# --- Attention by block table ---------------------------------------------------------------------

NAMES = ("query", "key_pages", "value_pages", "block_table", "lengths")


def _arguments(rng: np.random.Generator, lengths, queries, sizes, *, size=4, spare=3) -> dict:
    """Pages in no order; the blocks of no sequence, and what a last block does not use, hold numbers too."""
    heads, groups, d, dv = sizes
    needed = [-(-length // size) for length in lengths]
    blocks = sum(needed) + spare
    order = rng.permutation(blocks) if spare < 100 else np.arange(blocks)[::-1]  # large IDs first
    table = np.zeros((len(lengths), max([1, *needed])), dtype=np.int64)
    for row, count in enumerate(needed):
        table[row, :count], order = order[:count], order[count:]
    return {
        "query": rng.normal(size=(len(lengths), heads, queries, d)),
        "key_pages": rng.normal(size=(blocks, size, groups, d)),
        "value_pages": rng.normal(size=(blocks, size, groups, dv)),
        "block_table": table,
        "lengths": np.array(lengths, dtype=np.int64),
    }


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, **options) -> Case:
        return Case(label, _arguments(rng, *sizes, **options), dtype)

    small = (2, 2, 3, 2)
    shared = _arguments(rng, (7, 6, 9), 1, small)
    shared["block_table"][1:, 0] = shared["block_table"][0, 0]  # all begin with the same block
    diverged = _arguments(rng, (10, 10), 2, small)
    diverged["block_table"][1, :2] = diverged["block_table"][0, :2]
    return [
        case("two blocks of two", (3,), 1, (1, 1, 2, 2), size=2),
        case("every residue of the block size", (5, 6, 7, 8), 1, small),
        case("one token in the last block", (9, 1, 5), 1, small),
        case("last blocks full", (8, 4), 1, small),
        case("a chunk of two", (6, 9, 2), 2, small),
        case("a whole prompt", (5,), 5, (4, 2, 3, 5), size=2),
        case("a chunk longer than a sequence", (2, 5), 3, small, size=2),
        Case("a shared prefix, then three ways", shared),
        Case("two shared blocks, a chunk of two", diverged),
        case("fewer KV heads", (6, 3), 1, (6, 2, 4, 3), size=3),
        case("one token per block", (3, 2), 1, small, size=1),
        case("a pool of 300 blocks", (5, 3), 1, (1, 1, 2, 2), size=2, spare=295),
        case("a sequence without tokens", (0, 3), 1, small),
        larger(case("float32", (7, 4), 2, small, dtype=torch.float32), key_pages=100.0),
        Case("transposed tensors", transposed(_arguments(rng, (6, 3), 1, small))),
        case("no sequences", (), 1, small),
    ]


def _by_chance(draw: Draw) -> Case:
    size, queries = draw.one_of(2, 1, 3, 16), draw.one_of(1, 2, 3)
    lengths = tuple(draw.one_of(*range(1, 2 * size + 2)) for _ in range(draw.one_of(1, 2, 3)))
    heads, groups = draw.one_of((1, 1), (2, 1), (4, 2), (3, 3))
    sizes = heads, groups, draw.one_of(3, 1, 4), draw.one_of(2, 1, 5)
    found = _arguments(draw.numbers, lengths, queries, sizes, size=size)
    return Case("sizes by chance", found, any_dtype(draw))


def _used(case: Case) -> np.ndarray:
    """Which slots of the pool hold a token of a sequence, (N, P)."""
    a = case.arguments
    used = np.zeros(a["key_pages"].shape[:2], dtype=bool)
    for row, length in zip(a["block_table"], a["lengths"], strict=True):
        for t in range(length):
            used[row[t // used.shape[1]], t % used.shape[1]] = True
    return used


def _shuffled(run: Run, case: Case) -> Problem | None:
    """The same blocks at other places of the pool, and the table says where."""
    a = case.arguments
    order = np.roll(np.arange(len(a["key_pages"])), 1)
    moved = {name: a[name][order] for name in ("key_pages", "value_pages")}
    table = np.argsort(order)[a["block_table"]]
    after = run.value(case, **moved, block_table=table)
    slack, when = (
        2 * run.expected(case)[1],
        "the blocks stand in another order, and the table says so",
    )
    return unchanged(run.value(case), after, slack, when)


def _others(run: Run, case: Case) -> Problem | None:
    used = _used(case)[..., None, None]
    changed = {
        name: np.where(used, case.arguments[name], 50.0) for name in ("key_pages", "value_pages")
    }
    slack, when = (
        2 * run.expected(case)[1],
        "slots without a token of these sequences hold other numbers",
    )
    return unchanged(run.value(case), run.value(case, **changed), slack, when)


def _every_token(run: Run, case: Case) -> Problem | None:
    """The last query attends to each token of its sequence, the newest included."""
    a, slack = case.arguments, run.expected(case)[1]
    before = run.value(case)[:, :, -1]
    for row, length in enumerate(a["lengths"]):
        for t in {0, length - 1} if length else ():
            value = a["value_pages"].copy()
            value[a["block_table"][row, t // value.shape[1]], t % value.shape[1]] += 10
            after = run.value(case, value_pages=value)[:, :, -1]
            if np.abs(after - before)[row].max() <= slack:
                what = f"another output of sequence {row} when its token {t} of {length} changes"
                return Problem(what, "the same output")
    return None


def _future(run: Run, case: Case) -> Problem | None:
    a, slack = case.arguments, 2 * run.expected(case)[1]
    for row, length in enumerate(a["lengths"]):
        changed = {name: a[name].copy() for name in ("key_pages", "value_pages")}
        block, slot = a["block_table"][row, (length - 1) // a["key_pages"].shape[1]], (length - 1)
        for pages in changed.values():
            pages[block, slot % pages.shape[1]] += 10
        before, after = run.value(case)[row, :, :-1], run.value(case, **changed)[row, :, :-1]
        what = f"what earlier queries of sequence {row} get"
        if problem := unchanged(before, after, slack, "its last token changes", what):
            return problem
    return None


def _has_tokens(case: Case) -> bool:
    return bool(len(case.arguments["lengths"])) and bool(case.arguments["lengths"].all())


PAGED_ATTENTION = Spec(
    name="paged_attention",
    statement="paged_attention(query, key_pages, value_pages, block_table, lengths): causal attention of the "
    "last L tokens of each sequence to all of its tokens. Token t of sequence b stands in the pages at "
    "[block_table[b, t // P], t % P]; a query before the first token gets zeros. query (B, H, L, d), "
    "key_pages (N, P, G, d), value_pages (N, P, G, dv), block_table (B, T), lengths (B) -> (B, H, L, dv)",
    required=NAMES,
    reference=reference.paged_attention,
    baseline=mutants.PagedFormula(),
    cases=_cases,
    combine=_by_chance,
    num_drawn=5,
    checks=(
        Check(
            "shuffled pages change nothing",
            "Where a block stands in the pool is nobody's business but the table's.",
            _shuffled,
        ),
        Check(
            "every token counts",
            "The last query attends to the first token and to the newest, however full the last block is.",
            _every_token,
            when=_has_tokens,
        ),
        Check(
            "only the sequence's own slots are read",
            "Other blocks, and what the last block has left, hold other sequences' keys or old ones.",
            _others,
        ),
        Check(
            "the future stays hidden",
            "The last query belongs to the last token of its own sequence, not of the longest.",
            _future,
            when=lambda case: _has_tokens(case) and case.arguments["query"].shape[2] > 1,
        ),
    ),
    mutants=mistakes_in(mutants, of="paged_attention"),
    chapter=16,
)

# --- The tables -----------------------------------------------------------------------------------


def play(candidate: Any, num_blocks: int, block_size: int, steps: tuple) -> np.ndarray | None:
    """Let a manager keep the tables while sequences write to a memory of whole numbers; see the reference."""
    memory = np.zeros((num_blocks, block_size), dtype=np.int64)

    def copy(old, new):
        memory[new] = memory[old]

    manager = candidate(num_blocks, block_size, copy=copy)
    texts, tables, pictures = [], [], []

    def reads(table):
        return [
            int(memory[table.blocks[t // block_size], t % block_size]) for t in range(table.length)
        ]

    def write(table, text, tokens):
        start = table.length
        manager.grow([table], [len(tokens)])
        states = reads(table)[:start]
        for t, token in enumerate(tokens, start):
            states.append(next_state(states[-1] if states else 0, token))
            memory[table.blocks[t // block_size], t % block_size] = states[-1]
        text.extend(tokens)

    for name, *rest in steps:
        if name == "start":
            tables.append(manager.start(list(rest[0])))
            if tables[-1] is None:  # an exercise not written yet
                return None
            texts.append(list(rest[0][: tables[-1].length]))
            write(tables[-1], texts[-1], rest[0][tables[-1].length :])
        elif name == "write":
            write(tables[rest[0]], texts[rest[0]], rest[1])
        elif name == "remember":
            manager.remember(tables[rest[0]], texts[rest[0]])
        elif name == "fork":
            tables.append(manager.fork(tables[rest[0]]))
            texts.append(list(texts[rest[0]]))
        else:
            manager.truncate(tables[rest[0]], rest[1])
            del texts[rest[0]][rest[1] :]
        pictures.append(([reads(table) for table in tables], len(manager.pool.free)))
    return picture(pictures)


PROMPT = (5, 6, 7, 8, 9, 4)  # blocks of 2: three full ones


def _scripts() -> list[tuple[str, int, int, tuple]]:
    start = ("start", PROMPT)
    other = ("start", (1, 1, 7, 8, 9, 4, 3))
    return [
        ("one sequence, token by token", 5, 2, (("start", (5,)), *[("write", 0, (t,)) for t in PROMPT])),
        ("a fork in the middle of a block", 6, 4, (start, ("fork", 0), ("write", 0, (2,)), ("write", 1, (3,)))),
        ("a fork at the end of a block", 9, 2, (start, ("fork", 0), ("write", 1, (3, 3)), ("write", 0, (2,)))),
        ("three forks", 8, 4, (start, ("fork", 0), ("fork", 1), *[("write", s, (s, s, s)) for s in range(3)])),
        ("a fork ends, the other goes on", 9, 4,
         (start, ("fork", 0), ("truncate", 0, 0), ("start", (2, 2, 2)), ("write", 1, (3, 3, 3)))),
        ("a prefix is shared", 9, 2, (start, ("remember", 0), ("start", (*PROMPT, 3)), ("write", 1, (1, 1)))),
        ("one block is shared", 9, 2, (("start", PROMPT[:3]), ("remember", 0), ("start", PROMPT[:3]))),
        ("the same prompt: a token is left", 9, 2, (start, ("remember", 0), start, ("write", 0, (1,)))),
        ("the same block after another prefix", 12, 2, (start, ("remember", 0), other, ("write", 1, (2,)))),
        ("a known prefix ends", 12, 2,
         (start, ("remember", 0), ("truncate", 0, 0), ("start", (1, 2, 3)), ("start", PROMPT[:3]))),
        ("a known prefix is rolled back and goes on differently", 9, 2,
         (start, ("remember", 0), ("truncate", 0, 3), ("write", 0, (1, 1)), ("start", (*PROMPT, 2)))),
        ("rolled back into a shared block", 9, 2,
         (start, ("fork", 0), ("truncate", 1, 3), ("write", 1, (1,)), ("truncate", 0, 1), ("write", 0, (2, 2)))),
        ("blocks come back", 20, 2,
         tuple(step for _ in range(4) for step in (("start", PROMPT[:5]), ("truncate", _, 0)))),
    ]  # fmt: skip


def _script_cases(rng: np.random.Generator) -> list[Case]:
    return [
        Case(label, {"num_blocks": blocks, "block_size": size, "steps": steps})
        for label, blocks, size, steps in _scripts()
    ]


def _script_by_chance(draw: Draw) -> Case:
    """Steps by chance with few tokens, so that prefixes often agree."""
    rng, steps, lengths = draw.numbers, [], []
    for _ in range(draw.one_of(3, 6, 12)):
        names = ("start", "write", "remember", "fork", "truncate") if lengths else ("start",)
        name = names[rng.integers(len(names))]
        tokens = tuple(int(t) for t in rng.integers(1, 3, size=rng.integers(1, 7)))
        one = int(rng.integers(len(lengths))) if lengths else 0
        if name == "start":
            steps.append((name, tokens))
            lengths.append(len(tokens))
        elif name == "write":
            steps.append((name, one, tokens))
            lengths[one] += len(tokens)
        elif name == "truncate":
            lengths[one] = int(rng.integers(lengths[one] + 1))
            steps.append((name, one, lengths[one]))
        else:
            steps.append((name, one))
            lengths += [lengths[one]] if name == "fork" else []
    arguments = {"num_blocks": 80, "block_size": draw.one_of(2, 1, 3, 4), "steps": tuple(steps)}
    return Case("steps by chance", arguments)


def _own_tokens(run: Run, case: Case) -> Problem | None:
    expected, got = run.expected(case)[0][:, :-1], run.value(case)[:, :-1]
    return compare(expected, got, 0.0, "what the sequences read")


def _free_blocks(run: Run, case: Case) -> Problem | None:
    expected, got = run.expected(case)[0][:, -1, 0], run.value(case)[:, -1, 0]
    return compare(expected, got, 0.0, "free blocks after each step")


BLOCK_TABLES = Spec(
    name="block_tables",
    statement="""A class with the methods of BlockManager; object = candidate(num_blocks, block_size, copy=copy).
start(tokens) -> a table, which shares the full blocks that are known to hold the first of these tokens;
grow(tables, new), fork(table) -> a table, remember(table, tokens), truncate(table, length). A table has
`blocks` and `length`. copy(old, new) copies a block; object.pool.free lists the free ones.""",
    required=("num_blocks", "block_size", "steps"),
    reference=reference.block_tables,
    cases=_script_cases,
    combine=_script_by_chance,
    differentiable=False,
    build=lambda candidate, arguments: partial(play, candidate),
    checks=(
        Check(
            "a sequence reads what was written for it",
            "Whatever is shared, copied, freed or used again: each sequence reads its own tokens.",
            _own_tokens,
        ),
        Check(
            "blocks that nobody reads are free",
            "A block is free when its last reader lets go of it, neither before nor never.",
            _free_blocks,
        ),
    ),
    mutants=mistakes_in(mutants, of="block_tables"),
    chapter=16,
)
