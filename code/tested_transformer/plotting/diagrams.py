"""The book's diagrams. Numbers and shapes in them come from the code that they explain, run here."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..errors import argument_error, shape_of
from ..functional.attention import attention
from ..layers.cache import KeyValueCache
from ..layers.multi_head import MultiHeadAttention, concat_heads, split_heads
from ..layers.residual import Residual
from .diagram import LINE, TINT, Diagram, Matrix, Place, arrow, box, note, notes, shape, sizes


def check_room(name: str, tensor: Tensor, *limits: tuple[int, int]) -> None:
    """Raise unless a tensor has an axis for each pair of limits, and fits between them."""
    fits = tensor.ndim == len(limits) and all(
        least <= size <= most for size, (least, most) in zip(tensor.shape, limits, strict=True)
    )
    if not fits:
        wanted = ", ".join(f"{least} to {most}" for least, most in limits)
        raise argument_error(ValueError, name, f"shape {shape_of(tensor)}", f"sizes of {wanted}")


def numbers(tensor: Tensor, decimals: int = 0) -> list[list[str]]:
    """The entries of a matrix as text, without a negative zero."""
    return [[f"{round(x, decimals) + 0.0:.{decimals}f}" for x in row] for row in tensor.tolist()]


def beside(matrix: Matrix, words: Sequence[str]) -> list[str]:
    """A word on the left of each row."""
    step = matrix.cell[1]
    return [
        note(matrix.left - 6, matrix.top + step * (i + 0.5) + 5, word, at="end")
        for i, word in enumerate(words)
    ]


def above(matrix: Matrix, words: Sequence[str]) -> list[str]:
    """A word over each column."""
    step = matrix.cell[0]
    return [
        note(matrix.left + step * (j + 0.5), matrix.top - 6, word, at="middle")
        for j, word in enumerate(words)
    ]


# --- Chapter 1: queries, keys and values ----------------------------------------------------------


def queries_keys_values(
    x: Float[Tensor, "L D"],
    w_query: Float[Tensor, "D d"],
    w_key: Float[Tensor, "D d"],
    w_value: Float[Tensor, "D 1"],
    *,
    words: Sequence[str],
) -> Diagram:
    """Draw how each word gets a query, a key and a value, and how the first word is answered.

    Shapes: x (L, D), w_query and w_key (D, d), w_value (D, 1), with L up to 3, D to 5, d to 3.
    Raises: ValueError for more than fits, or another number of words.
    Source: Vaswani et al. 2017, section 3.2.1.
    """
    check_room("x", x, (1, 3), (1, 5))
    for name, weights in {"w_query": w_query, "w_key": w_key, "w_value": w_value}.items():
        check_room(name, weights, (1, 5), (1, 1 if name == "w_value" else 3))
    if len(words) != len(x):
        raise argument_error(
            ValueError, "words", f"{len(words)}", f"{len(x)}, one for each row of x"
        )
    source = Matrix(200 - 17 * x.shape[1], 26, x.shape, "plain", cell=(34, 24))
    parts = [note(200, 16, f"x, one row per token: {shape('L D', x.shape)}", at="middle")]
    parts += [*source.draw(words=numbers(x)), *beside(source, words)]
    views = {"query": x @ w_query, "key": x @ w_key, "value": x @ w_value}
    drawn, lines = _views(source, views)
    answered, said, height = _answer(drawn, *views.values(), words)
    told = (
        f"Above, the words {', '.join(words)}: a row of {x.shape[1]} numbers each. Three arrows lead "
        f"from them to three matrices, the queries, the keys and the values, each through a matrix "
        f"of weights. Below, the query of {words[0]} meets every key: {said}"
    )
    parts += [*lines, *beside(drawn[0], words), *answered]
    return Diagram("Queries, keys and values", told, height, parts)


def _views(source: Matrix, views: dict[str, Tensor]) -> tuple[list[Matrix], list[str]]:
    """The three matrices that are made of the words, side by side."""
    top, drawn, parts = source.bottom + 84, [], []
    for (name, view), left, wide in zip(views.items(), (64, 200, 324), (30, 30, 44), strict=True):
        at = Matrix(left, top, view.shape, name, cell=(wide, 24))
        parts += arrow((200, source.bottom), (at.center, top - 44))
        parts.append(note(at.center, top - 28, f"x @ w_{name}", at="middle"))
        text = f"{name} {sizes(view.shape)}"
        parts.append(note(at.center, top - 7, text, at="middle", kind=f"word {name}"))
        parts += at.draw(words=numbers(view))
        drawn.append(at)
    return drawn, parts


def _answer(
    drawn: list[Matrix], query: Tensor, key: Tensor, value: Tensor, words: Sequence[str]
) -> tuple[list[str], str, float]:
    """The first word's scores, weights and output, under the matrices; in words; and where it ends."""
    q, k, v = drawn
    scores = query[:1] @ key.mT / query.shape[-1] ** 0.5
    output, weights = attention(query[:1], key, value, return_weights=True)
    rows = [Matrix(102, q.bottom + top, weights.shape, "plain", cell=(56, 24)) for top in (66, 136)]
    end = Matrix(v.center - 26, rows[1].top, output.shape, "output", cell=(52, 24))
    parts = [q.part(slice(0, 1)).frame("chosen edge query"), *above(rows[0], words)]
    for row, name, shown in zip(rows, ("scores", "weights"), (scores, weights), strict=True):
        parts += row.draw(words=numbers(shown, 2 if name == "weights" else 1))
        parts.append(note(row.left - 8, row.middle + 5, name, at="end"))
    between, size = (q.center + k.center) / 2, query.shape[-1]
    for at, side in ((q, -36), (k, 36)):  # they meet in the product
        parts += arrow((at.center, at.bottom), (between + side, q.bottom + 22))
    parts += arrow((between, q.bottom + 31), (between, rows[0].top - 22))
    parts.append(note(between, q.bottom + 26, f"q · k / √{size}", at="middle"))
    parts += arrow((rows[0].center, rows[0].bottom), (rows[0].center, rows[1].top))
    parts.append(note(rows[0].center + 8, rows[0].bottom + 28, "softmax"))
    parts += end.draw(words=numbers(output, 2))
    parts += arrow((rows[1].right, rows[1].middle), (end.left, rows[1].middle))
    parts += arrow((v.center, v.bottom), (v.center, end.top))
    parts.append(note(end.center, end.bottom + 18, "output", at="middle", kind="word output"))
    pairs = zip(words, weights[0].tolist(), strict=True)
    said = ", ".join(f"{word} {weight:.2f}" for word, weight in pairs)
    told = (
        f"the softmax of its scores gives the weights {said}. The mean of the values with these "
        f"weights is its output, {output.item():.2f}."
    )
    return parts, told, end.bottom + 26


# --- Chapter 1: the formula as matrices -----------------------------------------------------------


def scaled_dot_product(
    query: Float[Tensor, "L d"], key: Float[Tensor, "S d"], value: Float[Tensor, "S dv"]
) -> Diagram:
    """Draw attention as products of matrices: each stands where its left and upper factors meet.

    Shapes: query (L, d), key (S, d), value (S, dv), with L and d 2 to 4, S 4 or 5, dv 1 or 2.
    Raises: ValueError for more than fits.
    Source: Vaswani et al. 2017, equation 1.
    """
    check_room("query", query, (2, 4), (2, 4))
    check_room("key", key, (4, 5), (2, 4))
    check_room("value", value, (4, 5), (1, 2))
    output, weights = attention(query, key, value, return_weights=True)
    k = Matrix(106, 4, key.mT.shape, "key", cell=21)
    scores = Matrix(106, k.bottom + 14, (query @ key.mT).shape, "plain", cell=21)
    q = Matrix(92 - 21 * query.shape[1], scores.top, query.shape, "query", cell=21)
    a = Matrix(106, scores.bottom + 96, weights.shape, "plain", cell=21)
    o = Matrix(a.right + 30, a.top, output.shape, "output", cell=21)
    v = Matrix(o.left, o.top - 14 - 21 * len(value), value.shape, "value", cell=21)
    parts = [*k.draw(), *q.draw(), *scores.draw(), *v.draw(), *o.draw()]
    parts += a.draw(strengths=weights.clamp(max=1).tolist())
    parts += _factors(q, k, scores) + _factors(a, v, o)
    parts += _names(q, k, v, scores, a, o)
    told = (
        f"The queries, {q.rows} rows of {q.columns}, stand left of the scores, and the keys, transposed "
        f"to {k.rows} rows of {k.columns}, above them: a score is a row of the left times a column "
        f"of the upper. Divided by the root of {q.columns}, the softmax makes weights of them, of the "
        f"same shape, {a.rows} by {a.columns}. They stand left of the output, {o.rows} by {o.columns}, "
        f"and the values, {v.rows} by {v.columns}, stand above it."
    )
    return Diagram("Scaled dot product attention", told, o.bottom + 46, parts)


def _factors(left: Matrix, upper: Matrix, product: Matrix) -> list[str]:
    """Frames around one entry of a product and what it is made of: a row and a column."""
    row, column = slice(1, 2), slice(-1, None)
    return [
        left.part(row).frame("chosen"),
        upper.part(columns=column).frame("chosen"),
        product.part(row, column).frame("chosen"),
    ]


def _names(q: Matrix, k: Matrix, v: Matrix, scores: Matrix, a: Matrix, o: Matrix) -> list[str]:
    """What each matrix is called, its shape, and the step from scores to weights."""
    named = [
        (k.left - 8, k.middle - 4, "end", "keysᵀ", "key", "d S", k),
        (q.left, q.bottom + 18, "start", "queries", "query", "L d", q),
        (v.right + 7, v.middle - 4, "start", "values", "value", "S dv", v),
        (a.left - 8, a.middle - 4, "end", "weights", "plain", "L S", a),
        (o.left, o.bottom + 18, "start", "output", "output", "L dv", o),
        (scores.right + 10, scores.top + 12, "start", "scores", "plain", "L S", scores),
    ]
    parts = []
    for x, y, at, name, kind, letters, matrix in named:
        parts.append(note(x, y, name, at=at, kind=f"word {kind}"))
        parts.append(note(x, y + LINE, shape(letters, (matrix.rows, matrix.columns)), at=at))
    parts += arrow((scores.center, scores.bottom), (a.center, a.top))
    return [*parts, *notes(scores.center + 8, scores.bottom + 42, f"/ √{q.columns}", "softmax")]


# --- Chapter 4: the three masks of a translator ---------------------------------------------------


def masks_by_use(
    masks: dict[str, Bool[Tensor, "1 1 L S"]], *, source: Sequence[str], target: Sequence[str]
) -> Diagram:
    """Draw the masks of encoder, decoder and cross-attention, each with its queries and keys.

    Shapes: masks "encoder" (1, 1, 1 or S, S), "decoder" (1, 1, L, L), "cross" (1, 1, L, S), with L
        and S up to 4.
    Raises: ValueError for other shapes or names, or for more than fits.
    Source: Vaswani et al. 2017, section 3.2.3.
    """
    asked = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
    if list(masks) != list(asked):
        raise argument_error(ValueError, "masks", ", ".join(masks), ", ".join(asked))
    sizes = {"encoder": "S S", "decoder": "L L", "cross": "L S"}
    parts, told, y = [], [], 0.0
    for (name, mask), (queries, keys) in zip(masks.items(), asked.values(), strict=True):
        size = (len(queries), len(keys))
        check_room(name, mask, (1, 1), (1, 1), (1, 4), (1, 4))
        if mask.shape[2] not in (1, size[0]) or mask.shape[3] != size[1]:
            raise argument_error(
                ValueError, name, f"shape {shape_of(mask)}", f"(1, 1, {size[0]}, {size[1]})"
            )
        at = Matrix(84, y + 44, size, "plain", cell=(62, 24))
        allowed = mask.expand(1, 1, *size)[0, 0]
        parts += [note(4, y + 16, name, kind="strong"), *above(at, keys), *beside(at, queries)]
        parts += at.draw(strengths=(0.5 * allowed).tolist())
        parts.append(note(84, y + 16, shape(sizes[name], size)))
        told.append(f"{name}: {_who_sees_whom(allowed, queries, keys)}")
        y = at.bottom + 16
    lead = "Three tables, a row for each word that asks, a column for each that answers. "
    return Diagram("Three masks of a translator", f"{lead}{'; '.join(told)}.", y - 8, parts)


def _who_sees_whom(allowed: Tensor, queries: Sequence[str], keys: Sequence[str]) -> str:
    """A mask in words, a part for each query."""
    return ", ".join(
        f"{query} sees {' '.join(key for key, seen in zip(keys, row, strict=True) if seen) or 'nothing'}"
        for query, row in zip(queries, allowed.tolist(), strict=True)
    )


# --- Chapter 5: heads -----------------------------------------------------------------------------


def heads_split_and_joined(layer: MultiHeadAttention, x: Float[Tensor, "1 L D"]) -> Diagram:
    """Draw the way of a sequence through a layer of two heads, with the shape after each step.

    Shapes: x (1, L, D), with L up to 5 and D up to 8.
    Raises: ValueError for more than fits, or another number of heads than two.
    Source: Vaswani et al. 2017, section 3.2.2.
    """
    check_room("x", x, (1, 1), (1, 5), (2, 8))
    if (layer.num_heads, layer.num_kv_heads) != (2, 2):
        raise argument_error(
            ValueError, "layer", f"{layer.num_heads} heads", "two heads, not grouped"
        )
    whole = {name: getattr(layer, name)(x) for name in ("query", "key", "value")}
    heads = {name: split_heads(part, 2) for name, part in whole.items()}
    found, weights = attention(*heads.values(), return_weights=True)
    joined = concat_heads(found)
    parts, y = _whole_width(whole)
    more, y = _step(y, "split_heads", "B H L d", heads["query"])
    parts += (
        more + _head(100, y, 0, heads, weights, found) + _head(300, y, 1, heads, weights, found)
    )
    y += 98 + 18 * x.shape[1]
    parts.append(note(200, y, f"weights: {shape('B H L S', weights.shape)}", at="middle"))
    more, y = _step(y + 6, "concat_heads", "B L D", joined)
    parts += more + _by_head(Matrix(52, y, joined.shape[1:], "output", cell=(11, 14)))
    last = Matrix(260, y, layer.output(joined).shape[1:], "output", cell=(11, 14))
    parts += [*last.draw(), note(200, last.middle - 8, "w_output", at="middle")]
    parts += arrow((148, last.middle), (252, last.middle))
    told = (
        f"Above, the queries, keys and values of all heads, {whole['query'].shape[2]} numbers for each "
        f"of {x.shape[1]} tokens. The left half of the columns goes to head 0, the right half to head "
        f"1. In each head, queries and keys give the attention weights, and weights and values an output "
        f"of {found.shape[3]} features per token. Below, the two outputs are concatenated, and the "
        f"output projection combines them."
    )
    return Diagram("Heads split and joined", told, last.bottom + 24, parts)


def _whole_width(whole: dict[str, Tensor]) -> tuple[list[str], float]:
    """Queries, keys and values of all heads, and the place below them."""
    size = next(iter(whole.values())).shape
    parts = [note(200, 16, f"x through three matrices: {shape('B L D', size)}", at="middle")]
    for (name, part), center in zip(whole.items(), (72, 200, 328), strict=True):
        at = Matrix(center - 5.5 * size[2], 46, part.shape[1:], name, cell=(11, 14))
        parts += [note(center, 39, name, at="middle", kind=f"word {name}"), *_by_head(at)]
    return parts, at.bottom + 24


def owners(width: int) -> Int[Tensor, "2 d"]:
    """Which columns each of two heads gets, as `split_heads` deals them out.

    >>> owners(4).tolist()
    [[0, 1], [2, 3]]
    """
    return split_heads(torch.arange(width).expand(1, 1, -1).double(), 2)[0, :, 0].int()


def _by_head(matrix: Matrix) -> list[str]:
    """A matrix with each column in the shade, and over the number, of the head that gets it."""
    shades, parts = [0.0] * matrix.columns, []
    for head, mine in enumerate(owners(matrix.columns).tolist()):
        for column in mine:
            shades[column] = (0.5, TINT)[head]
        own = matrix.part(columns=slice(mine[0], mine[-1] + 1))
        parts += [own.frame(), note(own.center, own.bottom + 16, str(head), at="middle")]
    return [*matrix.draw(strengths=[shades] * matrix.rows), *parts]


def _step(y: float, name: str, letters: str, result: Tensor) -> tuple[list[str], float]:
    """An arrow down to the name of a function and the shape of what it returned."""
    text = f"{name}: {shape(letters, result.shape)}"
    return [*arrow((200, y), (200, y + 16)), note(200, y + 32, text, at="middle")], y + 44


def _head(
    center: float, top: float, head: int, heads: dict[str, Tensor], weights: Tensor, found: Tensor
) -> list[str]:
    """What happens in one head, in a frame."""
    tall = 9 * found.shape[2]
    parts = [Place(center - 92, top, 184, 80 + 2 * tall).frame("dashed")]
    parts.append(note(center, top + 18, f"head {head}", at="middle", kind=""))
    places = {}
    for (name, part), left in zip(heads.items(), (-76, -18, 40), strict=True):
        places[name] = Matrix(center + left, top + 28, part.shape[2:], name, cell=9)
        parts += places[name].draw(strengths=[[(0.5, TINT)[head]] * part.shape[3]] * part.shape[2])
    low = top + 28 + tall + 24
    between = (places["query"].center + places["key"].center) / 2
    rows = Matrix(between - 4.5 * weights.shape[3], low, weights.shape[2:], "plain", cell=9)
    out = Matrix(places["value"].left, low, found.shape[2:], "output", cell=9)
    parts += rows.draw(strengths=weights[0, head].tolist())
    parts += out.draw(strengths=[[(0.5, TINT)[head]] * out.columns] * out.rows)
    for asked, to in (("query", rows.center - 8), ("key", rows.center + 8)):
        parts += arrow((places[asked].center, places[asked].bottom), (to, rows.top))
    parts += arrow((out.center, places["value"].bottom), (out.center, out.top))
    parts += arrow((rows.right, rows.middle), (out.left, rows.middle))
    parts.append(note(rows.center, rows.bottom + 18, "weights", at="middle"))
    return [
        *parts,
        note(out.center, out.bottom + 18, "output", at="middle", kind="word output small"),
    ]


# --- Chapter 7: where the norm goes ---------------------------------------------------------------


def norm_places() -> Diagram:
    """Draw one layer wired post-norm beside one wired pre-norm; where the norms are, `Residual` says.

    Source: Vaswani et al. 2017, figure 1; Xiong et al. 2020, figure 1.
    """
    parts, ends = [], []
    for left, norm_placement in ((4, "post"), (206, "pre")):
        lane, start, y = left + 36, 64, 82
        formula = "x + f(norm(x))" if norm_first(norm_placement) else "norm(x + f(x))"
        parts.append(note(left + 96, 16, f"{norm_placement}-norm", at="middle", kind="strong"))
        parts += [note(left + 96, 36, formula, at="middle"), note(lane, 58, "x", at="middle")]
        for sublayer in ("attention", "feed-forward"):
            more, start, y = _wired(lane, start, y, sublayer, norm_first(norm_placement))
            parts += more
        parts += arrow((lane, start), (lane, y + 10), kind="line thick")
        if norm_first(norm_placement):
            parts += _norm(lane, y + 10)
            parts.append(note(lane + 38, y + 30, "once, at the end"))
            parts += arrow((lane, y + 40), (lane, y + 62), kind="line thick")
        ends.append(y + 62)
    told = (
        "Two columns, read from above, with a thick line for the skip path of x. Left, post-norm: "
        "attention stands beside the line, its output is added, and a norm stands on the line; "
        "then the same with the feed-forward network. Right, pre-norm: the norms stand beside the "
        "line, each before its sublayer; the line itself meets only the two sums, and at the very "
        "end of the stack one norm."
    )
    return Diagram("Post-norm and pre-norm", told, max(ends) + 8, parts)


def norm_first(norm_placement: str) -> bool:
    """Whether a `Residual` calls its norm before the sublayer: it is run once, and watched.

    Raises: ValueError for a norm_placement that there is not.

    >>> norm_first("pre"), norm_first("post")
    (True, False)
    """
    called = []
    norm, sublayer = nn.Identity(), nn.Identity()
    norm.register_forward_hook(lambda *_: called.append("norm"))
    sublayer.register_forward_hook(lambda *_: called.append("sublayer"))
    Residual(norm, norm_placement=norm_placement)(torch.zeros(1, 1), sublayer)
    return called[0] == "norm"


def _norm(lane: float, top: float) -> list[str]:
    """A norm on the skip path."""
    return box(Place(lane - 30, top, 60, 30), "norm", "box edge value")


def _wired(
    lane: float, start: float, y: float, sublayer: str, first: bool
) -> tuple[list[str], float, float]:
    """One sublayer and its norm beside the skip path, or its norm upon it."""
    side = Place(lane + 44, y + 10, 108, 30)
    boxes = [(side, "norm", "box edge value")] if first else []
    place = Place(side.left, side.top + 46 * first, 108, 30)
    boxes.append((place, sublayer, f"box edge {'query' if sublayer == 'attention' else 'key'}"))
    plus = place.bottom + 24
    parts = arrow((lane, start), (lane, plus - 9), kind="line thick")
    parts += arrow((lane, y - 4), (side.center, y - 4), (side.center, side.top))
    for at, name, kind in boxes:
        parts += box(at, name, kind)
    if first:
        parts += arrow((side.center, side.bottom), (side.center, place.top))
    parts += arrow((side.center, place.bottom), (side.center, plus), (lane + 9, plus))
    parts.append(f'<circle class="line" cx="{lane:g}" cy="{plus:g}" r="9"/>')
    parts += arrow((lane - 5, plus), (lane + 5, plus), head=False)
    parts += arrow((lane, plus - 5), (lane, plus + 5), head=False)
    if first:
        return parts, plus + 9, plus + 28
    parts += arrow((lane, plus + 9), (lane, plus + 24), kind="line thick")
    return parts + _norm(lane, plus + 24), plus + 54, plus + 74


# --- Chapter 11: the key/value cache --------------------------------------------------------------


def cache_steps(chunks: Sequence[Sequence[str]], *, capacity: int) -> Diagram:
    """Draw what a key/value cache holds after each chunk of words, and what the chunk costs.

    Raises: ValueError for more than four chunks, or more than eight places in the cache.
    Source: Shazeer 2019, section 2.4.
    """
    cache, width = KeyValueCache(capacity=capacity), 2
    if not 1 <= len(chunks) <= 4:
        raise argument_error(
            ValueError, "chunks", f"{len(chunks)}", "1 to 4, to fit in the picture"
        )
    parts, told, y = [], [], 8.0
    for step, words in enumerate(chunks, start=1):
        query, new = torch.zeros(2, 1, 1, len(words), width)
        before, (keys, values) = cache.length, cache.append(new, new)
        if cache.capacity > 8:
            wanted = "at most 8 places, to fit in the picture"
            raise argument_error(
                ValueError, "capacity", f"{cache.capacity} after {step} steps", wanted
            )
        _, weights = attention(query, keys, values, causal=True, return_weights=True)
        scores = f"scores {sizes(weights.shape[2:])}"
        parts.append(note(4, y + 14, f"step {step}: “{' '.join(words)}”", kind="strong"))
        parts += _kept(y + 24, before, cache.length, cache.capacity)
        parts += notes(
            284, y + 38, f"projected: {cache.length - before}", f"from the cache: {before}", scores
        )
        told.append(
            f"Step {step} reads {' '.join(words)}: {cache.length - before} new, {before} from the cache, room "
            f"for {cache.capacity}, {scores.replace('×', 'by')}."
        )
        y += 118
    lead = "For each step a row of queries, of keys and of values. Strong: computed in this step, "
    lead += "pale: from the cache, dashed: reserved. "
    return Diagram("The key/value cache, step by step", lead + " ".join(told), y - 8, parts)


def _kept(top: float, before: int, length: int, capacity: int) -> list[str]:
    """Queries of the new words, and keys and values of all so far: a cell for each word."""
    new, parts = [0.6] * (length - before), []
    for line, name in enumerate(("query", "key", "value")):
        y = top + 27 * line
        parts.append(note(4, y + 16, name, kind=f"word {name}"))
        if name == "query":
            at = Matrix(56 + 26 * before, y, (1, len(new)), name, cell=(26, 22))
            parts += at.draw(strengths=[new])
            continue
        room = Matrix(56, y, (1, capacity), "plain", cell=(26, 22))
        empty = [slice(n, n + 1) for n in range(length, capacity)]
        parts += [room.part(columns=place).frame("dashed") for place in empty]
        at = Matrix(56, y, (1, length), name, cell=(26, 22))
        parts += at.draw(strengths=[[TINT] * before + new])
    return parts
