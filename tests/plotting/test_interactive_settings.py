"""The pictures with settings: for every setting they show what the package computes."""

import itertools
import json
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.autograd.functional import jacobian

import interactive_figures as figures
from tested_transformer.generation.sampling import Sampling
from tested_transformer.plotting.interactive import (
    Setting,
    SettingsPicture,
    mask_switches,
    sampling_sliders,
    scale_slider,
)
from tested_transformer.plotting.interactive.sampling import TEMPERATURES, TOP_K, TOP_P

CHAPTERS = Path(__file__).resolve().parents[2] / "chapters"


@pytest.fixture(scope="module", params=figures.FIGURES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def made():
    return {name: figure() for name, figure in figures.FIGURES.items()}


@pytest.fixture(scope="module")
def figure(made, name):
    return made[name]


def script_reads(data: dict) -> dict[tuple, list[str]]:
    """For each choice the string of every slot, read as the script reads them, written once more."""

    def numbers(text):
        pairs = zip(text[::2], text[1::2], strict=True)
        return [64 * data["digits"].index(a) + data["digits"].index(b) for a, b in pairs]

    groups = [
        (group["axes"], group["slots"], numbers(group["which"]), numbers(group["fillings"]))
        for group in data["groups"]
    ]
    read = {}
    for choice in itertools.product(*(range(len(labels)) for labels in data["labels"])):
        found = {}
        for axes, slots, which, fillings in groups:
            place = 0
            for axis in axes:
                place = place * len(data["labels"][axis]) + choice[axis]
            for n, slot in enumerate(slots):
                found[slot] = data["texts"][fillings[which[place] * len(slots) + n]]
        read[choice] = [found[slot] for slot in range(len(found))]
    return read


def test_every_choice_is_found_again(figure):
    read = script_reads(json.loads(json.dumps(figure.data)))
    assert read == {choice: list(shown.values()) for choice, shown in figure.filled.items()}
    assert len(read) == math.prod(len(setting.labels) for setting in figure.settings)


def close(text: str, value: float) -> bool:
    """Is this the number, rounded to the digits that are written?"""
    digits = len(text.partition(".")[2])
    return abs(float(text) - value) <= 0.5 * 10**-digits + 1e-9


def test_scale(made):
    """Every head size and query, against torch's softmax and autograd's Jacobian."""
    figure, (queries, keys) = made["deeper/03_saturation"], figures.scale_inputs()
    assert figure.settings[0].labels == tuple(str(2**n) for n in range(10))
    for (at, row), shown in figure.filled.items():
        size = 2**at
        bare = keys[:, :size] @ queries[row, :size]
        for way, scores in (("bare", bare), ("scaled", bare / math.sqrt(size))):
            weights = torch.softmax(scores, -1)
            norm = jacobian(lambda s: torch.softmax(s, -1), scores).square().sum().sqrt().item()
            assert all(close(shown[f"{way} {j}"], w) for j, w in enumerate(weights.tolist()))
            assert close(shown[f"{way} norm"], norm)
            seen = math.prod(w**-w for w in weights.tolist() if w > 0)
            assert close(shown[f"{way} seen"], seen)
            x, y = 40 + at * 296 / 9, 276 + 84 * (1 - norm / 0.5)  # y: 0.5 above, 0 below
            points = shown[f"{way} curve"].split()
            for place in (points[2 * at : 2 * at + 2], re.findall(r"[\d.]+", shown[f"{way} dot"])):
                assert close(place[0], x)
                assert close(place[1], y)
        assert shown["query"] == figures.MORPHEMES[row]
        assert shown["size"] == str(size)


def test_scale_says_what_the_chapter_says(made):
    """It saturates without the division, and never with it."""
    filled = made["deeper/03_saturation"].filled
    assert all(0.2 < float(shown["scaled norm"]) < 0.41 for shown in filled.values())
    for row in range(9):
        assert min(float(filled[at, row]["bare norm"]) for at in range(10)) == 0


def test_masks(made):
    """Every combination, against loops in float64."""
    figure, scores = made["deeper/04_more_masks"], figures.mask_inputs().numpy()
    words = ["vier", "und", "zwanzig", "end", "pad 1", "pad 2"]
    assert len(figure.filled) == 2 * 2 * 2 * 5
    for (padding, causal, window, width), shown in figure.filled.items():
        pairs = empty = 0
        for i in range(6):
            may = [
                (not padding or j < 4)
                and (not causal or j <= i)
                and (not window or abs(i - j) <= width)
                for j in range(6)
            ]
            shares = np.exp([scores[i, j] if may[j] else -np.inf for j in range(6)])
            weights = shares / shares.sum() if any(may) else shares
            pairs, empty = pairs + sum(may), empty + (not any(may))
            for j in range(6):
                text = shown[f"{i} {j}"]
                assert close(text, weights[j]) if may[j] else text == ""
            assert shown[f"sum {i}"] == ("1.00" if any(may) else "0.00")
            assert ("tt-empty" in shown[f"ring {i}"]) == (not any(may))
            seen = ", ".join(f"{words[j]} ({shown[f'{i} {j}']})" for j in range(6) if may[j])
            said = seen or "nothing: a fully masked row, all weights are 0"
            assert shown[f"says {i}"] == f"{words[i]} may attend to {said}."
        assert shown["pairs"] == str(pairs)
        opening = {0: "Every query has", 1: "One row is fully", 2: "2 rows are fully"}[empty]
        assert shown["empty"].startswith(opening)


def test_sampling(made):
    """Every temperature, top-k and top-p, against the package's Sampling on the scores as they come."""
    figure, (logits, words) = made["11_generating"], figures.sampling_inputs()
    order = logits.argsort(descending=True)
    assert len(figure.filled) == len(TEMPERATURES) * len(TOP_K) * len(TOP_P)
    said = torch.zeros(1, 1, dtype=torch.long)
    for (t, k, p), shown in figure.filled.items():
        warm = Sampling(TEMPERATURES[t]).shape(logits[None], said).softmax(-1)[0]
        cut = Sampling(TEMPERATURES[t], top_k=TOP_K[k], top_p=TOP_P[p])
        now = cut.shape(logits[None], said).softmax(-1)[0]
        if t == 0:  # a temperature of 0 is greedy
            warm = now = torch.zeros_like(logits).index_fill(0, logits.argmax(), 1.0)
        assert shown["stay"] == str(int((now > 0).sum()))
        assert close(shown["had"], warm[now > 0].sum())
        groups = [order[j : j + 1] for j in range(12)] + [order[12:]]
        for j, group in enumerate(groups):
            assert close(shown[f"before {j}"], warm[group].sum())
            text = shown[f"after {j}"]
            assert close(text, now[group].sum()) if (now[group] > 0).any() else text == "cut"
    assert f">{words[order[0]]}<" in figure.html


def test_sampling_by_hand():
    """ln 4, ln 2, ln 1: the numbers of the chapter's pencil."""
    figure = sampling_sliders(torch.tensor([2.0, 4.0, 1.0]).log(), ["b", "a", "c"], shown=2)
    half, one, two = map(TEMPERATURES.index, (0.5, 1.0, 2.0))
    k_off, p_off = TOP_K.index(None), TOP_P.index(None)

    def after(*choice):
        return [figure.at(*choice)[f"after {j}"] for j in range(3)]

    assert after(one, k_off, p_off) == ["0.571", "0.286", "0.143"]
    assert after(half, k_off, p_off) == ["0.762", "0.190", "0.048"]
    assert after(two, k_off, p_off) == ["0.453", "0.320", "0.227"]
    assert after(one, TOP_K.index(2), p_off) == ["0.667", "0.333", "cut"]
    assert after(one, k_off, TOP_P.index(0.5)) == ["1.000", "cut", "cut"]
    assert after(one, k_off, TOP_P.index(0.6)) == ["0.667", "0.333", "cut"]
    assert after(0, k_off, p_off) == ["1.000", "cut", "cut"]


def test_the_chapter_shows_this_figure(figure, name):
    cells = json.loads((CHAPTERS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    stored = [
        "".join(output["data"]["text/html"])
        for cell in cells
        for output in cell.get("outputs", [])
        if "text/html" in output.get("data", {})
    ]
    assert [html for html in stored if "<script" in html] == [figure.html]


@pytest.mark.parametrize("noise", [1e-11, -1e-11])
def test_no_number_is_at_an_edge(figure, name, noise):
    """Rounding must not depend on the last bits, which differ between machines."""
    assert figures.FIGURES[name](noise).filled == figure.filled


def test_the_output_is_small_whole_and_its_own(figure):
    html = figure.html
    assert len(html.encode()) < 30_000
    assert not re.search(r"http|\bid=|url\(", html)
    assert html.count("<script>") == html.count("</script>") == 1
    data = json.loads(re.search(r"\)\((\{.*\})\)</script>", html)[1])
    assert data == json.loads(json.dumps(figure.data))


def test_without_scripts_there_is_a_figure(figure):
    still = figure.html.partition("<script>")[0]
    drawing = ET.fromstring(re.search(r"<svg.*?</svg>", still, re.DOTALL)[0])
    assert drawing.get("role") == "img"
    assert drawing.get("aria-label") == f"{figure.title}. {figure.said}"
    assert '<div class="tt-controls" hidden>' in still
    assert figure.chosen in still
    start, names = figure.filled[figure.start], list(figure.filled[figure.start])
    shown = [part for part in drawing.iter() if part.get("data-slot")]
    assert len(shown) > 20
    for part in shown:
        text, to = start[names[int(part.get("data-slot"))]], part.get("data-to")
        if part.get("data-by"):
            wide = float(part.get("data-by")) * (float(text) if text[:1].isdigit() else 0)
            assert float(part.get(to)) == pytest.approx(wide, abs=0.005)
        else:
            assert (part.get(to) if to else "".join(part.itertext())) == text
    texts = re.findall(r'<td data-slot="(\d+)">(.*?)</td>', still)
    assert len(texts) > 20
    assert all(text == start[names[int(slot)]] for slot, text in texts)


def test_a_terminal_gets_words(figure):
    bundle = figure._repr_mimebundle_()
    assert bundle["text/plain"] == repr(figure)
    assert repr(figure).splitlines() == [f"{figure.title} ({figure.chosen})", figure.said]


def test_words_are_no_markup():
    """Whatever the words are, they stand in the page as text and do not end the script."""
    odd = ['<b>"&amp;', "</script>", "x"]
    for figure in (
        mask_switches(torch.zeros(3, 3), odd, length=1),
        scale_slider(torch.zeros(3, 2), torch.zeros(3, 2), odd, odd),
        sampling_sliders(torch.zeros(3), odd, shown=2),
    ):
        still, _, script = figure.html.partition("<script>")
        assert script.count("</script>") == 1
        assert "</script" not in still
        assert "<b>" not in re.sub(r"<label.*?</label>", "", still)  # which shows a value in bold
        assert "&lt;b&gt;&quot;&amp;amp;" in still
        assert json.loads(re.search(r"\)\((\{.*\})\)</script>", script)[1])["texts"]


@pytest.mark.plain_types
def test_malformed_calls():
    q, k, w = torch.zeros(2, 4), torch.zeros(3, 4), list("abc")
    for error, match, call in (
        (TypeError, "query: expected a torch.Tensor", lambda: scale_slider([1], k, w, w)),
        (TypeError, "key: expected a floating", lambda: scale_slider(q, k.long(), w[:2], w)),
        (ValueError, "query: expected 2 axes", lambda: scale_slider(q[0], k, w, w)),
        (ValueError, "queries: expected 2, at least 1, got 3", lambda: scale_slider(q, k, w, w)),
        (ValueError, "keys: expected 3", lambda: scale_slider(q, k, w[:2], w[:2])),
        (ValueError, r"key: expected shape \(S, d\) = \(S, 4\) as in query", lambda: scale_slider(q, k[:, :3], w[:2], w)),
        (ValueError, "at least 2", lambda: scale_slider(q[:, :1], k[:, :1], w[:2], w)),
        (ValueError, "start: expected a number below 3", lambda: scale_slider(q, k, w[:2], w, start=(3, 0))),
        (TypeError, "scores: expected a torch", lambda: mask_switches(0, w, length=1)),
        (ValueError, "scores: expected 2 axes", lambda: mask_switches(q[0], w, length=1)),
        (ValueError, r"scores: expected shape \(L, L\), got shape \(3, 4\)", lambda: mask_switches(k, w, length=1)),
        (ValueError, "length: expected at most 3", lambda: mask_switches(k[:, :3], w, length=4)),
        (ValueError, "length: expected at least 1", lambda: mask_switches(k[:, :3], w, length=0)),
        (TypeError, "length: expected an int", lambda: mask_switches(k[:, :3], w, length=1.0)),
        (TypeError, "logits: expected a torch", lambda: sampling_sliders([1.0], w)),
        (ValueError, "logits: expected 1 axis", lambda: sampling_sliders(q, w)),
        (ValueError, "words: expected 4", lambda: sampling_sliders(q[0], w)),
        (ValueError, "shown: expected fewer", lambda: sampling_sliders(q[0], list("abcd"), shown=4)),
        (ValueError, "shown: expected at least 1", lambda: sampling_sliders(q[0], list("abcd"), shown=0)),
        (ValueError, 'kind: expected one of "slider"', lambda: Setting("n", ("a", "b"), kind="knob")),
        (ValueError, "labels: expected at least 2", lambda: Setting("n", ("a",))),
        (ValueError, "labels: expected 2 labels", lambda: Setting("n", ("a", "b", "c"), kind="switch")),
        (ValueError, "start: expected a number below 2", lambda: Setting("n", ("a", "b"), start=2)),
        (ValueError, "choice: expected", lambda: mask_switches(k[:, :3], w, length=1).at(0, 0, 0, 2)),
    ):  # fmt: skip
        with pytest.raises(error, match=match):
            call()


@pytest.mark.plain_types
def test_more_strings_than_two_digits_count():
    many = tuple(map(str, range(4097)))
    figure = SettingsPicture(
        "", [Setting("n", many)], lambda choice: {"n": many[choice[0]]}, name="scale",
        size=(1, 1), draw=str, words=str, table=str,
    )  # fmt: skip
    with pytest.raises(ValueError, match="fill: expected at most 4096"):
        figure.data  # noqa: B018
