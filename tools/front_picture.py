"""The picture of the first page: a number in German and in English, and the attention between them.

The lines are as thick as the weights of a shipped model, which tools/generate.py computes when the book
is built. book/_static/front.js makes the picture answer; without scripts it stands still, with all sentences.
"""

from html import escape

from tested_transformer.experiments.ch10_number_models import load_number_model
from tested_transformer.plotting.interactive.numbers import (
    END,
    NumberTranslation,
    translate_numbers,
)

NUMBER = 24
CHAPTER = "../chapters/10_training.html"  # where the model is trained
NEXT = "../chapters/00_first_ten_minutes.html"
WIDTH, BOX, TALL = 400, 92, 38  # of the drawing, and of the box around a word
READ, SAID = 24, 158  # where the two rows of boxes begin
HINT = "Choose a token to see its attention weights."


def look() -> NumberTranslation:
    """The model's translation of the number, with the mean of the four heads of its last layer."""
    return translate_numbers(*load_number_model(), [NUMBER])[0]


def page(look: NumberTranslation) -> str:
    """The picture as a part of a page."""
    sentences = [said_looks(look, row) for row in range(len(look.generated))]
    number = escape(" ".join(look.source[:-1]))
    return "\n".join([
        "````{raw} html", '<figure class="front-look">', drawing(look),
        f'<p class="front-says" data-hint="{escape(HINT)}"><noscript>',
        "; ".join(map(escape, sentences)) + ".</noscript></p>",
        f'<figcaption>The model of <a href="{CHAPTER}">chapter 10</a> turns <span lang="de">{number}</span> '
        f"into {escape(' '.join(look.generated[:-1]))}. The thicker a line, the larger the attention weight. "
        f'A smaller model, on <a href="{NEXT}">the next page</a>, attends to other tokens.</figcaption>',
        "</figure>", "````",
    ]) + "\n"  # fmt: skip


def drawing(look: NumberTranslation) -> str:
    """Two rows of words with a line for each weight of a hundredth or more."""
    read, said = places(len(look.source)), places(len(look.generated))
    links = [
        link(read[j], said[i], level, i, j)
        for i, row in enumerate(look.levels.tolist())
        for j, level in enumerate(row)
        if level
    ]
    words = [word("read", j, x, look.source[j], read_seen(look, j)) for j, x in enumerate(read)]
    words += [
        word("said", i, x, look.generated[i], said_looks(look, i)) for i, x in enumerate(said)
    ]
    title = f"Above, the tokens {', '.join(look.source)}; below, {', '.join(look.generated)}. "
    title += "; ".join(said_looks(look, row) for row in range(len(look.generated))) + "."
    return "\n".join([
        f'<svg viewBox="0 0 {WIDTH} {SAID + TALL + READ}" role="img" aria-label="{escape(title)}">',
        '<defs><linearGradient id="front-fade" gradientUnits="userSpaceOnUse" x1="0" x2="0" '
        f'y1="{READ + TALL}" y2="{SAID}"><stop class="front-key"/>'
        '<stop class="front-query" offset="1"/></linearGradient></defs>',
        *links, *words, "</svg>",
    ])  # fmt: skip


def places(count: int) -> list[float]:
    """Spread words over the width of the drawing."""
    return [WIDTH / count * (k + 0.5) for k in range(count)]


def link(above: float, below: float, level: int, row: int, column: int) -> str:
    """A line between two words, as thick as the weight in hundredths, and what runs along it."""
    top, bottom = READ + TALL, SAID
    middle = (top + bottom) / 2
    way = f"M{above:g} {top}C{above:g} {middle:g} {below:g} {middle:g} {below:g} {bottom}"
    thick = 1 + 0.11 * level
    return (
        f'<g class="front-link" data-said="{row}" data-read="{column}" data-weight="{level / 100:.2f}">'
        f'<path d="{way}" stroke-width="{thick:.2f}" opacity="{0.3 + 0.007 * level:.2f}"/>'
        f'<path class="front-flow" d="{way}" stroke-width="{min(2.5, thick / 3):.2f}"/></g>'
    )


def word(row: str, place: int, x: float, text: str, sentence: str) -> str:
    """A word in its box, what is said of it, and room for a weight."""
    top, weight = (READ, READ - 8) if row == "read" else (SAID, SAID + TALL + 17)
    kind = f"front-word front-{row}" + (" front-end" if text == END else "")
    language = ' lang="de"' if row == "read" and text != END else ""
    return (
        f'<g class="{kind}" data-row="{row}" data-place="{place}" data-says="{escape(sentence)}.">'
        f'<rect x="{x - BOX / 2:g}" y="{top}" width="{BOX}" height="{TALL}" rx="9"/>'
        f'<text class="front-name" x="{x:g}" y="{top + 25}"{language}>{escape(text)}</text>'
        f'<text class="front-weight" x="{x:g}" y="{weight}"></text></g>'
    )


def said_looks(look: NumberTranslation, row: int) -> str:
    """The tokens that a generated token attends to, the largest weight first."""
    order = ordered(look.levels[row])
    return f"{look.generated[row]} attends to {named(look.source, order)}"


def read_seen(look: NumberTranslation, column: int) -> str:
    """The generated tokens that attend to a source token."""
    order = ordered(look.levels[:, column])
    by = named(look.generated, order) if order else "no token"
    return f"{look.source[column]} is attended to by {by}"


def ordered(levels) -> list[tuple[int, int]]:
    """The levels above zero with their positions, the largest first."""
    pairs = [(int(level), place) for place, level in enumerate(levels) if level]
    return sorted(pairs, key=lambda pair: (-pair[0], pair[1]))


def named(words: tuple[str, ...], order: list[tuple[int, int]]) -> str:
    """Words with their weights."""
    return ", ".join(f"{words[place]} ({level / 100:.2f})" for level, place in order)
