"""The picture of the first page shows the weights that the package computes, and is light."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import front_picture
from tested_transformer.data import BOS, EOS
from tested_transformer.experiments.ch10_number_models import load_number_model
from tested_transformer.plotting.interactive import NumberTranslation

ROOT = Path(__file__).resolve().parents[2]
FRONT_RULES = re.compile(r"^[^{}\n]*\.(?:front|map|chapters-in-words)\b[^\n]*$", re.MULTILINE)


@pytest.fixture(scope="module")
def look():
    return front_picture.look()


@pytest.fixture(scope="module")
def root(look):
    return ElementTree.fromstring(front_picture.drawing(look))


def of_class(root, name: str) -> list:
    return [one for one in root.iter() if name in one.get("class", "").split()]


def drawn(root, shape: tuple[int, int]) -> np.ndarray:
    """The weights that the lines of a drawing carry."""
    weights = np.zeros(shape)
    for link in of_class(root, "front-link"):
        weights[int(link.get("data-said")), int(link.get("data-read"))] = link.get("data-weight")
    return weights


def test_lines_carry_the_weights_of_the_model(root):
    """Computed once more, in one forward pass over the right words."""
    model, german, english = load_number_model()
    model = model.double()
    read, said = ["vier", "und", "zwanzig"], ["twenty", "four"]
    ids = [*german.encode(read), EOS], [BOS, *english.encode(said)]
    _, weights = model(*(torch.tensor([row]) for row in ids), return_weights=True)
    mean = weights.cross[-1].mean(1)[0].detach().numpy()
    np.testing.assert_allclose(drawn(root, mean.shape), mean, atol=0.0051)
    assert len(of_class(root, "front-link")) == (mean >= 0.005).sum()
    names = [word.text for word in of_class(root, "front-name")]
    assert names == [*read, "EOS", *said, "EOS"]


def test_thickness_is_the_weight(root):
    for link in of_class(root, "front-link"):
        weight, line = float(link.get("data-weight")), link.find("path")
        assert float(line.get("stroke-width")) == pytest.approx(1 + 11 * weight, abs=0.01)
        assert float(line.get("opacity")) == pytest.approx(0.3 + 0.7 * weight, abs=0.01)


def test_a_line_leads_from_word_to_word(root):
    boxes = {
        (word.get("data-row"), word.get("data-place")): word.find("rect")
        for word in of_class(root, "front-word")
    }
    for link in of_class(root, "front-link"):
        numbers = [float(n) for n in re.findall(r"[\d.]+", link.find("path").get("d"))]
        for row, x in (("read", numbers[0]), ("said", numbers[-2])):
            box = boxes[row, link.get(f"data-{row}")]
            assert float(box.get("x")) < x < float(box.get("x")) + float(box.get("width"))


@pytest.fixture
def made_up():
    weights = np.array([[0.5, 0.5, 0.0], [0.07, 0.004, 0.926]])
    return NumberTranslation(1, ("ein", "s", "EOS"), ("one", "EOS"), weights)


def test_sentences_name_the_strongest_first(made_up):
    assert front_picture.said_looks(made_up, 0) == "one attends to ein (0.50), s (0.50)"
    assert front_picture.said_looks(made_up, 1) == "EOS attends to EOS (0.93), ein (0.07)"
    assert front_picture.read_seen(made_up, 0) == ("ein is attended to by one (0.50), EOS (0.07)")
    made_up.weights[:, 1] = 0
    assert front_picture.read_seen(made_up, 1) == "s is attended to by no token"


def test_the_words_for_those_who_do_not_see_it(look, root):
    label = root.get("aria-label")
    for row, word in enumerate(look.generated):
        assert front_picture.said_looks(look, row) in label, word
    page = front_picture.page(look)
    assert "twenty attends to zwanzig" in re.sub(r"<svg.*</svg>", "", page, flags=re.DOTALL)


def test_it_costs_under_30_kb(look):
    """Drawing, script and style together."""
    style = (ROOT / "book" / "_static" / "custom.css").read_text(encoding="utf-8")
    rules = "".join(FRONT_RULES.findall(style))
    script = (ROOT / "book" / "_static" / "front.js").read_text(encoding="utf-8")
    assert len(rules) > 2000
    assert len((front_picture.page(look) + rules + script).encode()) < 30_000
