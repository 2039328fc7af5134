"""The picture of the first page: a number in German and in English, and what each word looks at.

The lines are as thick as the weights of a shipped model, which tools/generate.py computes when the book
is built. book/_static/front.js makes the picture answer; without scripts it stands still, with all sentences.
"""

from html import escape

from tested_transformer.experiments.ch10_number_models import load_number_model
from tested_transformer.plotting.interactive.numbers import END, Look, called, look_at_numbers

NUMBER = 24
CHAPTER = "../chapters/10_training.html"  # where the model is trained
NEXT = "../chapters/00_first_ten_minutes.html"
WIDTH, BOX, TALL = 400, 92, 38  # of the drawing, and of the box around a word
READ, SAID = 24, 158  # where the two rows of boxes begin
HINT = "Choose a word: what does it look at?"


def look() -> Look:
    """The model's translation of the number, with the mean of the four heads of its last layer."""
    return look_at_numbers(*load_number_model(), [NUMBER])[0]


def page(look: Look) -> str:
    """The picture as a part of a page."""
    sentences = [said_looks(look, row) for row in range(len(look.said))]
    number = escape(" ".join(look.read[:-1]))
    return "\n".join([
        "````{raw} html", '<figure class="front-look">', drawing(look),
        f'<p class="front-says" data-hint="{escape(HINT)}"><noscript>',
        "; ".join(map(escape, sentences)) + ".</noscript></p>",
        f'<figcaption>The model of <a href="{CHAPTER}">chapter 10</a> turns <span lang="de">{number}</span> '
        f"into {escape(' '.join(look.said[:-1]))}. The thicker a line, the more attention. "
        f'A smaller model, on <a href="{NEXT}">the next page</a>, looks elsewhere.</figcaption>',
        "</figure>", "````",
    ]) + "\n"  # fmt: skip


def drawing(look: Look) -> str:
    """Two rows of words with a line for each weight of a hundredth or more."""
    read, said = places(len(look.read)), places(len(look.said))
    links = [
        link(read[j], said[i], level, i, j)
        for i, row in enumerate(look.levels.tolist())
        for j, level in enumerate(row)
        if level
    ]
    words = [word("read", j, x, look.read[j], read_seen(look, j)) for j, x in enumerate(read)]
    words += [word("said", i, x, look.said[i], said_looks(look, i)) for i, x in enumerate(said)]
    title = f"Above, the words {', '.join(look.read)}; below, {', '.join(look.said)}. "
    title += "; ".join(said_looks(look, row) for row in range(len(look.said))) + "."
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


def said_looks(look: Look, row: int) -> str:
    """What a word that the model says looks at, the strongest first."""
    order = ordered(look.levels[row])
    return f"{called(look.said[row])} looks at {named(look.read, order)}"


def read_seen(look: Look, column: int) -> str:
    """Which words look at a word that the model reads."""
    order = ordered(look.levels[:, column])
    by = named(look.said, order) if order else "no word"
    return f"{called(look.read[column])} is looked at by {by}"


def ordered(levels) -> list[tuple[int, int]]:
    """The levels above zero with their places, the largest first."""
    pairs = [(int(level), place) for place, level in enumerate(levels) if level]
    return sorted(pairs, key=lambda pair: (-pair[0], pair[1]))


def named(words: tuple[str, ...], order: list[tuple[int, int]]) -> str:
    """Words with their weights."""
    return ", ".join(f"{called(words[place])} ({level / 100:.2f})" for level, place in order)
