"""The Specs of Longformer's attention with global tokens and of BigBird's with random blocks."""

from __future__ import annotations

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype, transposed
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants

# --- Both -----------------------------------------------------------------------------------------


def _heads(rng: np.random.Generator, names, batch, heads, length, widths) -> dict:
    """Queries and keys of widths[0] features and values of widths[1], by name."""
    return {
        name: rng.normal(size=(batch, heads, length, widths["value" in name])) for name in names
    }


def _real(case: Case) -> np.ndarray:
    """Which tokens are no padding. Shapes: (B, L)."""
    batch, _, length, _ = case.arguments["query"].shape
    return case.arguments.get("key_mask", np.ones((batch, length), bool))


def _plain_mean(run: Run, case: Case, counted: np.ndarray) -> Problem | None:
    """With queries of 0, the output is the mean of the values that are read: each counts once.

    counted: (B, H, L, L), True where a query reads a key.
    """
    read = run.value(case, query=np.zeros_like(case.arguments["query"]))
    weights = counted / np.maximum(1, counted.sum(-1, keepdims=True))
    mean = weights @ case.arrays()["value"]
    return compare(mean, read, _slack(run, case), "with queries of 0, the output")


def _slack(run: Run, case: Case) -> float:
    """The tolerance of the case, and the rounding of a mean over its keys."""
    size = np.abs(case.arguments["value"]).max(initial=1.0)
    return run.expected(case)[1] + size * case.rounding(case.arguments["query"].shape[2])


def _sums(run: Run, case: Case) -> Problem | None:
    """With values of 1 every output is 1, if there is a key, else 0."""
    ones = {name: np.ones_like(a) for name, a in case.arguments.items() if "value" in name}
    expected = np.ones_like(ones["value"]) * _real(case).any(-1)[:, None, None, None]
    for_real = _real(case)[:, None, :, None]  # a padded query may have no key
    got = run.value(case, **ones)
    slack = case.rounding(case.arguments["query"].shape[2]) + run.expected(case)[1]
    return compare(expected * for_real, got * for_real, slack, "with values of 1, the output")


SUMS = Check(
    "the weights sum to 1",
    "There is one softmax over all keys that a query reads, and none over anything else.",
    _sums,
    when=lambda case: not case.is_empty,
)


def _padding(run: Run, case: Case) -> Problem | None:
    """Other keys and values where there is padding."""
    padded = ~_real(case)[:, None, :, None]
    changed = {
        name: np.where(padded, 9.0, a)
        for name, a in case.arguments.items()
        if name.endswith(("key", "value"))
    }
    before, after = run.value(case), run.value(case, **changed)
    slack = run.expected(case)[1] + run.expected(case.changed(**changed))[1]
    return unchanged(before, after, slack, "padding has other keys and values", "an output")


PADDING = Check(
    "padding does nothing",
    "Where key_mask is False there is no key, for local and for global queries.",
    _padding,
    when=lambda case: "key_mask" in case.arguments and not case.is_empty,
)


def _alone(run: Run, case: Case) -> Problem | None:
    """The last sequence as a batch of one."""
    last = {
        name: a[-1:]
        for name, a in case.arguments.items()
        if isinstance(a, np.ndarray) and name != "random_blocks"
    }
    together, alone = run.value(case)[-1:], run.value(case, **last)
    slack = run.expected(case)[1] + run.expected(case.changed(**last))[1]
    return unchanged(together, alone, slack, "a sequence is alone in its batch", "its output")


ALONE = Check(
    "a sequence is the same alone",
    "Each sequence has global tokens of its own, and their number may differ in a batch.",
    _alone,
    when=lambda case: len(case.arguments["query"]) > 1 and not case.is_empty,
)

# --- Longformer -----------------------------------------------------------------------------------

LOCAL, GLOBAL = ("query", "key", "value"), ("global_query", "global_key", "global_value")


def _longformer(rng: np.random.Generator, batch, heads, length, widths, number=None) -> dict:
    """The last sequence has `number` global tokens, the one before it one more, and so on."""
    made = _heads(rng, (*LOCAL, *GLOBAL), batch, heads, length, widths)
    is_global = np.zeros((batch, length), bool)
    for row in range(batch):
        many = min(length, max(0, (length // 4 if number is None else number) + (batch - 1 - row)))
        is_global[row, rng.permutation(length)[:many]] = True
    return made | {"is_global": is_global}


def _longformer_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, number=None, **options) -> Case:
        return Case(label, _longformer(rng, *sizes, number) | options, dtype)

    small = (2, 2, 9, (3, 4))
    real = np.array([[True] * 9, [True] * 6 + [False] * 3])
    padded = _longformer(rng, *small, 3) | {"key_mask": real, "window": 2}
    padded["is_global"][:, [1, 7]] = True  # 7 is padding in the second sequence
    near = _longformer(rng, *small, 0) | {"window": 3}
    near["is_global"][:, 4] = True
    near["is_global"][1, 0] = True
    return [
        case("one token", 1, 1, 1, (2, 3), window=1),
        case("no global token", 1, 2, 6, (3, 2), number=0, window=2),
        case("one global token in six", 1, 1, 6, (2, 3), number=1, window=2),
        Case("a global token inside the window", near),
        case("different numbers of global tokens", 3, 2, 8, (3, 2), number=3, window=2),
        Case("padding", padded),
        case("padding first", *small, number=2, window=3, key_mask=real[:, ::-1].copy()),
        case("every token is global", 2, 1, 5, (2, 3), number=6, window=1),
        case("a window longer than the text", 1, 2, 4, (3, 3), number=1, window=7),
        case(
            "padding, and a scale of its own", *small, number=2, window=2, scale=0.3, key_mask=real
        ),
        case("float32", 2, 2, 7, (4, 3), number=2, window=3, dtype=torch.float32),
        Case("transposed tensors", transposed(_longformer(rng, *small, 2)) | {"window": 4}),
        case("all padding", 1, 1, 4, (2, 3), number=1, window=2, key_mask=np.zeros((1, 4), bool)),
        case("no tokens", 2, 2, 0, (3, 2), window=2),
    ]


def _longformer_by_chance(draw: Draw) -> Case:
    length = draw.one_of(5, 1, 8, 11)
    widths = draw.one_of(3, 1, 4), draw.one_of(2, 3)
    sizes = draw.one_of(2, 1, 3), draw.one_of(1, 2), length, widths, draw.one_of(2, 0, 4)
    arguments = _longformer(draw.numbers, *sizes) | {"window": draw.one_of(2, 1, 3, 20)}
    if draw.one_of(False, True):
        real = draw.numbers.random((sizes[0], length)) < 0.7
        arguments["key_mask"] = real
    return Case("sizes by chance", arguments, any_dtype(draw))


def _chosen(case: Case) -> np.ndarray:
    """The global tokens. Shapes: (B, L)."""
    return case.arguments["is_global"] & _real(case)


def _own_projections(run: Run, case: Case) -> Problem | None:
    """Other local queries, keys and values: a global token's output stays."""
    changed = {name: 2 - case.arguments[name] for name in LOCAL}
    rows = _chosen(case)[:, None, :, None]
    before, after = run.value(case), run.value(case, **changed)
    slack = run.expected(case)[1] + run.expected(case.changed(**changed))[1]
    return unchanged(
        before * rows, after * rows, slack, "the local queries, keys and values change",
        "a global token's output",
    )  # fmt: skip


def _reads_all(run: Run, case: Case) -> Problem | None:
    """With global queries of 0, a global token returns the mean of all global values."""
    real, rows = _real(case), _chosen(case)[:, None, :, None]
    got = run.value(case, global_query=np.zeros_like(case.arguments["query"]))
    weights = real / np.maximum(1, real.sum(-1, keepdims=True))  # B L
    mean = np.einsum("bl,bhld->bhd", weights, case.arrays()["global_value"].astype(float))
    expected = np.broadcast_to(mean[:, :, None], got.shape)
    size = np.abs(case.arguments["global_value"]).max(initial=1.0)
    slack = run.expected(case)[1] + size * case.rounding(real.shape[1])
    return compare(expected * rows, got * rows, slack, "with global queries of 0, its output")


def _once(run: Run, case: Case) -> Problem | None:
    """Local queries of 0: the mean of the window and the global tokens."""
    length, chosen = case.arguments["query"].shape[2], _chosen(case)
    ids = np.arange(length)
    near = np.abs(ids[:, None] - ids) < case.arguments["window"]
    counted = (near | chosen[:, None]) & _real(case)[:, None]  # B L L
    weights = counted / np.maximum(1, counted.sum(-1, keepdims=True))
    mean = weights[:, None] @ case.arrays()["value"].astype(float)
    got = run.value(case, query=np.zeros_like(case.arguments["query"]))
    rows = ~chosen[:, None, :, None]
    return compare(mean * rows, got * rows, _slack(run, case), "with queries of 0, a local output")


def _has_global(case: Case) -> bool:
    return not case.is_empty and bool(_chosen(case).any())


LONGFORMER_ATTENTION = Spec(
    name="longformer_attention",
    statement="longformer_attention(query, key, value, global_query, global_key, global_value, is_global, *, window, "
    "key_mask, scale): where is_global is False, a query attends to the keys fewer than `window` steps away and to "
    "all global tokens, in one softmax, each key once. Where it is True, the global query attends to the global keys "
    "of all tokens and returns global values. Where key_mask is False there is no key, and no global token. queries "
    "and keys (B, H, L, d), values (B, H, L, dv), is_global and key_mask (B, L) -> (B, H, L, dv)",
    required=(*LOCAL, *GLOBAL, "is_global"),
    reference=reference.longformer_attention,
    baseline=mutants.LongformerFormula(),
    cases=_longformer_cases,
    combine=_longformer_by_chance,
    num_drawn=5,
    checks=(
        ALONE,
        Check(
            "a global token reads by its own projections",
            "A global token's output is made of global queries, keys and values alone.",
            _own_projections,
            when=_has_global,
        ),
        Check(
            "a global token reads every token",
            "With equal scores it returns the mean of all global values; no window, no other mask.",
            _reads_all,
            when=lambda case: _has_global(case) and bool(_real(case).all()),
        ),
        PADDING,
        SUMS,
        Check(
            "among equal scores each key counts once",
            "A local query reads the keys fewer than `window` steps away and the global tokens. One that is both "
            "is one key.",
            _once,
            when=lambda case: not case.is_empty,
        ),
    ),
    mutants=mistakes_in(mutants, of="longformer_attention"),
    chapter=17,
)  # fmt: skip

# --- BigBird --------------------------------------------------------------------------------------


def _big_bird(rng: np.random.Generator, batch, heads, length, widths, block_size, r) -> dict:
    """Random blocks are any: global ones, neighbors, the same one twice, and none."""
    rows, last = max(0, -(-length // block_size) - 2), -(-length // block_size) - 1
    blocks = rng.integers(-1, max(1, last + 1), size=(heads, rows, r))
    made = _heads(rng, LOCAL, batch, heads, length, widths)
    return made | {"random_blocks": blocks, "block_size": block_size}


def _far_blocks(num_blocks: int, heads: int) -> np.ndarray:
    """For each head another block that is far from the row's own."""
    rows = np.arange(1, num_blocks - 1)
    far = [[j for j in range(1, num_blocks - 1) if abs(j - row) > 1] for row in rows]
    return np.array([[[each[h % len(each)]] for each in far] for h in range(heads)])


def _big_bird_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, **options) -> Case:
        return Case(label, _big_bird(rng, *sizes) | options, dtype)

    real = np.array([[True] * 13, [True] * 9 + [False] * 4])
    return [
        case("one block", 1, 1, 2, (2, 3), 2, 1),
        case("two blocks", 1, 2, 4, (3, 2), 2, 1),
        case("three blocks", 2, 1, 6, (2, 3), 2, 1),
        case("far random blocks", 1, 2, 12, (3, 2), 2, 1, random_blocks=_far_blocks(6, 2)),
        case("seven blocks, the last one short", 1, 2, 13, (2, 3), 2, 2),
        case("padding", 2, 1, 13, (3, 3), 2, 1, key_mask=real),
        case("blocks of one token", 1, 1, 7, (2, 2), 1, 1),
        case("no random blocks", 2, 1, 10, (3, 2), 2, 0),
        case("a scale of its own", 1, 2, 8, (3, 4), 2, 1, scale=0.3),
        case("float32", 2, 2, 11, (4, 3), 2, 1, dtype=torch.float32),
        Case(
            "all options at once, transposed tensors",
            transposed(_big_bird(rng, 2, 1, 9, (3, 4), 2, 1))
            | {"key_mask": real[:, 4:], "scale": 0.3},
        ),
        case("no tokens", 2, 2, 0, (3, 2), 2, 1),
    ]


def _big_bird_by_chance(draw: Draw) -> Case:
    length, block_size = draw.one_of(9, 1, 4, 14), draw.one_of(2, 1, 3)
    widths = draw.one_of(3, 1, 4), draw.one_of(2, 3)
    sizes = draw.one_of(1, 2), draw.one_of(2, 1), length, widths, block_size, draw.one_of(1, 2)
    return Case("sizes by chance", _big_bird(draw.numbers, *sizes), any_dtype(draw))


def _read_blocks(case: Case) -> np.ndarray:
    """Which keys each query reads, padding aside. Shapes: (H, L, L)."""
    length, given = case.arguments["query"].shape[2], case.arguments["random_blocks"]
    of_token = np.arange(length) // case.arguments["block_size"]
    own, other, last = of_token[:, None], of_token[None], of_token.max(initial=0)
    fixed = (own % max(last, 1) == 0) | (np.abs(own - other) <= 1) | (other % max(last, 1) == 0)
    read = np.repeat(fixed[None], len(given), 0)
    for h, i in np.ndindex(given.shape[:2]):
        read[h] |= (own == i + 1) & np.isin(other, given[h, i])
    return read


def _block_once(run: Run, case: Case) -> Problem | None:
    """Queries of 0: the mean of all blocks that are read."""
    counted = _read_blocks(case)[None] & _real(case)[:, None, None]  # B H L L
    return _plain_mean(run, case, counted)


def _ends_read_all(run: Run, case: Case) -> Problem | None:
    """Queries of 0: the first and the last block return the mean of all values."""
    size, length = case.arguments["block_size"], case.arguments["query"].shape[2]
    of_token = np.arange(length) // size
    rows = (of_token == 0) | (of_token == of_token.max())
    real = _real(case)
    got = run.value(case, query=np.zeros_like(case.arguments["query"]))[:, :, rows]
    weights = real / np.maximum(1, real.sum(-1, keepdims=True))
    mean = np.einsum("bl,bhld->bhd", weights, case.arrays()["value"].astype(float))
    expected = np.broadcast_to(mean[:, :, None], got.shape)
    return compare(expected, got, _slack(run, case), "with queries of 0, a global token's output")


def _random_is_read(run: Run, case: Case) -> Problem | None:
    """A larger value in each random block, one after the other: the block that reads it changes."""
    given, size = case.arguments["random_blocks"], case.arguments["block_size"]
    zeros = np.zeros_like(case.arguments["query"])
    before = run.value(case, query=zeros)
    for h, i in np.ndindex(given.shape[:2]):
        value = case.arguments["value"].copy()
        block = given[h, i, 0]
        value[:, h, block * size : (block + 1) * size] += 10.0
        after = run.value(case, query=zeros, value=value)
        row = (i + 1) * size
        if np.abs(after - before)[:, h, row].max() < 1e-3:
            what = f"head {h}, block {i + 1}: an output that depends on its random block {block}"
            return Problem(what, "the same output when the values of that block change")
    return None


def _is_far(case: Case) -> bool:
    """Whether each random block is far from the block that reads it, and no global one."""
    given = case.arguments["random_blocks"]
    rows = np.arange(1, given.shape[1] + 1)[None, :, None]
    inner = (given > 0) & (given <= given.shape[1]) & (np.abs(given - rows) > 1)
    return bool(given.size) and bool(inner.all()) and not case.is_empty


BIG_BIRD_ATTENTION = Spec(
    name="big_bird_attention",
    statement="big_bird_attention(query, key, value, random_blocks, *, block_size, key_mask, scale): attention in "
    "blocks of block_size tokens. The first and the last block read all keys. Another one reads these two, itself, "
    "the blocks on both sides, and its random blocks: those of block i are random_blocks[h, i - 1], where -1 is "
    "none. Each key counts once, however often its block is listed. query and key (B, H, L, d), value "
    "(B, H, L, dv), random_blocks (H, number of blocks - 2, r), key_mask (B, L) -> (B, H, L, dv)",
    required=(*LOCAL, "random_blocks"),
    reference=reference.big_bird_attention,
    baseline=mutants.BigBirdFormula(),
    cases=_big_bird_cases,
    combine=_big_bird_by_chance,
    num_drawn=5,
    checks=(
        SUMS,
        PADDING,
        ALONE,
        Check(
            "the first and the last block read every token",
            "Both are global: with equal scores they return the mean of all values.",
            _ends_read_all,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "a random block is read",
            "Block i of head h reads the blocks in random_blocks[h, i - 1].",
            _random_is_read,
            when=_is_far,
        ),
        Check(
            "among equal scores each key counts once",
            "A block may be a neighbor, global and random: its keys stand in the softmax once.",
            _block_once,
            when=lambda case: not case.is_empty,
        ),
    ),
    mutants=mistakes_in(mutants, of="big_bird_attention"),
    chapter=17,
)  # fmt: skip
