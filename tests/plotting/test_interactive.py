"""The picture that answers: what it holds is what the model computed, for every number."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch

from tested_transformer import plotting
from tested_transformer.analysis.translation import find_mistakes, translate
from tested_transformer.data import EOS, make_batch, number_pair
from tested_transformer.data.number_words import german_words
from tested_transformer.experiments.ch10_number_models import (
    first_numbers,
    first_trainer,
    load_first_model,
)
from tested_transformer.plotting.interactive.numbers import (
    END,
    LEVELS,
    RUNS,
    NumberTranslation,
    number_picture,
    shortened,
    translate_numbers,
)
from tested_transformer.training.trainer import Recipe

NUMBERS = range(1, 1000)


@pytest.fixture(scope="module")
def loaded():
    return load_first_model()


@pytest.fixture(scope="module")
def looks(loaded):
    return translate_numbers(*loaded, NUMBERS)


@pytest.fixture(scope="module")
def picture(looks):
    return number_picture(looks, shown=[1, 24])


def decoded(record: str, data: dict) -> tuple:
    """What the script reads from a record, written once more."""
    german, english, weights, *right = record.split(" ")
    weights = "".join("0" * (2 + RUNS.index(c)) if c in RUNS else c for c in weights)
    levels = np.array([LEVELS.index(c) for c in weights])
    read = tuple(data["german"][LEVELS.index(c)] for c in german[1:])
    said = tuple(data["english"][LEVELS.index(c)] for c in english)
    return german[0], read, said, levels.reshape(len(said), len(read)), right


def test_every_number_decodes(picture, looks):
    data = picture.data
    records = data["numbers"].split("|")
    assert len(records) == 999
    for look, record in zip(looks, records, strict=True):
        shown, read, said, levels, right = decoded(record, data)
        assert shown == ("+" if look.number in (1, 24) else "-")
        assert read == (*german_words(look.number), END)
        assert said == look.generated
        assert np.abs(levels / 100 - look.weights).max() <= 0.005 + 1e-12
        assert bool(right) == (look.generated != look.expected)


def test_the_model_is_right_on_every_number(loaded, looks):
    assert [look.number for look in looks if look.generated != look.expected] == []
    assert find_mistakes(loaded[0], first_numbers().test, *loaded[1:]) == []


@pytest.mark.parametrize("number", [1, 24, 113, 302, 999])
def test_weights_are_the_models(loaded, looks, number):
    """Alone, in float32, told the right words: the same weights as in the batch of all numbers."""
    model, source, target = loaded
    batch = make_batch([number_pair([number])], source, target)
    with torch.no_grad():
        _, weights = model(batch.source, batch.target, return_weights=True)
    expected = weights.cross[-1].mean(1)[0].numpy()
    np.testing.assert_allclose(looks[number - 1].weights, expected, atol=1e-4)
    assert batch.expected[0, -1] == EOS


def test_words_are_those_of_translate(loaded, looks):
    some = [7, 42, 640]
    said = translate(loaded[0], [german_words(n) for n in some], *loaded[1:])
    assert [[*words, END] for words in said] == [list(looks[n - 1].generated) for n in some]


def test_rows_sum_to_one_and_no_weight_is_at_an_edge(looks):
    """Rounding in hundredths must not depend on the last bits, which differ between machines."""
    for look in looks:
        np.testing.assert_allclose(look.weights.sum(1), 1)
    cells = np.concatenate([100 * look.weights.ravel() for look in looks])
    assert np.abs(cells % 1 - 0.5).min() > 1e-6


def test_the_model_is_left_as_it_was(loaded):
    model = loaded[0].train()
    translate_numbers(*loaded, [24])
    assert model.training
    assert next(model.parameters()).dtype == torch.float32
    model.eval()


def test_a_wrong_answer_is_marked(looks):
    wrong = NumberTranslation(2, looks[1].source, ("three", END), np.full((2, 2), 0.5))
    bent = number_picture([looks[0], wrong], start=2, examples=(1,))
    assert "Output: “three” ✗ wrong, it should be “two”" in bent.html
    *_, right = decoded(bent.data["numbers"].split("|")[1], bent.data)
    assert [bent.data["english"][LEVELS.index(c)] for c in right[0]] == ["two"]
    endless = NumberTranslation(2, looks[1].source, ("two", "two"), np.full((2, 2), 0.5))
    assert "✗ wrong" in number_picture([looks[0], endless], start=2, examples=()).html


def test_levels_are_safe_and_runs_are_undone():
    assert len(set(LEVELS)) == len(LEVELS) == 101
    assert not set(LEVELS) & set(RUNS + ' |<>\\"\n')
    for zeros in range(14):
        text = "x" + "0" * zeros + "y"
        mended = "".join("0" * (2 + RUNS.index(c)) if c in RUNS else c for c in shortened(text))
        assert mended == text


def test_the_page_is_small_whole_and_its_own(picture):
    html = picture.html
    assert len(html.encode()) < 60_000
    assert html == number_picture(picture.translations, shown=[1, 24]).html
    assert "http" not in html
    assert html.count("<script>") == html.count("</script>") == 1
    data = json.loads(re.search(r"\)\((\{.*\})\)</script>", html)[1])
    assert data == picture.data


def test_without_scripts_there_is_a_figure(picture):
    drawing = re.search(r"<svg.*?</svg>", picture.html, re.DOTALL)[0]
    root = ET.fromstring(drawing)
    assert root.get("role") == "img"
    assert "twenty attends most to" in root.get("aria-label")
    assert {"vier", "und", "zwanzig", "twenty", "four"} <= set(root.itertext())
    assert '<div class="tt-controls" hidden>' in picture.html
    still = picture.html.partition("<script>")[0]
    assert still.count("<td>") == picture.first.weights.size + 1  # and the empty corner


def test_a_terminal_gets_a_table(picture):
    bundle = picture._repr_mimebundle_()
    assert bundle["text/plain"] == repr(picture)
    lines = repr(picture).splitlines()
    assert lines[1] == "Output: “twenty four” ✓ right"
    assert lines[3].split() == ["vier", "und", "zwanzig", END]
    assert lines[4].split() == ["twenty", *(f"{w:.2f}" for w in picture.first.levels[0] / 100)]


def test_styles_and_scripts_come_with_the_package():
    folder = Path(plotting.__file__).parent
    project = (folder.parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    for suffix in ("css", "js"):
        assert list(folder.rglob(f"*.{suffix}"))
        assert {path.parent.name for path in folder.rglob(f"*.{suffix}")} == {"interactive"}
        assert f'"plotting/interactive/*.{suffix}"' in project


def test_how_a_script_starts_is_said_once():
    folder = Path(plotting.__file__).parent / "interactive"
    texts = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.js")}
    assert [name for name, text in texts.items() if "currentScript" in text] == ["page.js"]
    assert [name for name, text in texts.items() if "dataset.live" in text] == ["page.js"]
    for name in set(texts) - {"page.js"}:
        assert texts[name].startswith("(root, data) => {\n")


@pytest.mark.plain_types
def test_malformed_calls(loaded, looks):
    with pytest.raises(ValueError, match="numbers: expected at least one number, got none"):
        translate_numbers(*loaded, [])
    with pytest.raises(ValueError, match="number"):
        translate_numbers(*loaded, [0])
    with pytest.raises(ValueError, match="translations"):
        number_picture([])
    with pytest.raises(ValueError, match="translations"):
        number_picture(looks[1:])
    with pytest.raises(TypeError, match="translations"):
        number_picture([24])
    with pytest.raises(ValueError, match="start"):
        number_picture(looks[:10])
    with pytest.raises(ValueError, match="examples"):
        number_picture(looks[:30], examples=(31,))
    with pytest.raises(ValueError, match="start"):
        number_picture(looks, start=0)


@pytest.mark.plain_types
def test_first_numbers():
    split = first_numbers()
    assert len(split.train) == 699
    assert len(split.test) == 300
    assert not set(split.train) & set(split.test)
    assert {number_pair([n]) for n in range(1, 21)} <= set(split.train)
    assert split == first_numbers()
    assert len(first_numbers(unseen=0).train) == 999
    for bad in (-1, 980):
        with pytest.raises(ValueError, match="unseen"):
            first_numbers(unseen=bad)


def test_the_shipped_model_has_the_sizes_of_its_trainer(loaded):
    trainer = first_trainer(Recipe(steps=1))
    assert trainer.model.config == loaded[0].config
    assert trainer.source.words == loaded[1].words
    assert trainer.target.words == loaded[2].words
