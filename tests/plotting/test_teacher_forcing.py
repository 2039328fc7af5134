"""The drawing of teacher forcing: the same words above and below, one place apart."""

import itertools

import pytest

from tested_transformer.data import number_pair
from tested_transformer.plotting.style import text_width
from tested_transformer.plotting.teacher_forcing import teacher_forcing


def drawn(source, target, **signs):
    picture = teacher_forcing(source, target, **signs)
    texts = [text.get_text() for axes in picture.figure.axes for text in axes.texts]
    return picture, texts


def test_each_place_reads_what_the_one_before_should_say():
    picture, texts = drawn(*number_pair([24]))
    reads, says = picture.data["reads"], picture.data["says"]
    assert reads[0] == "<bos>"
    assert says[-1] == "<eos>"
    assert reads[1:] == says[:-1] == ["twenty", "four"]
    assert texts.count("twenty") == texts.count("four") == 2
    assert "encoder reads: vier und zwanzig" in texts


def test_it_is_the_same_on_every_run():
    pair = number_pair([5024])
    assert teacher_forcing(*pair).svg == teacher_forcing(*pair).svg


def test_other_signs():
    picture, _ = drawn(["ja"], ["yes"], start="<s>", end="</s>")
    assert (picture.data["reads"], picture.data["says"]) == (["<s>", "yes"], ["yes", "</s>"])


def test_words_do_not_touch():
    picture, _ = drawn(*number_pair([777_777]))
    axes = picture.figure.axes[0]
    rows: dict[float, list] = {}
    for text in axes.texts:
        if text.get_text() in picture.data["says"] and not text.get_text().startswith("encoder"):
            rows.setdefault(text.get_position()[1], []).append(text)
    for row in rows.values():
        row.sort(key=lambda text: text.get_position()[0])
        for left, right in itertools.pairwise(row):
            gap = right.get_position()[0] - left.get_position()[0]  # inches
            half = (text_width(left.get_text(), 10.5) + text_width(right.get_text(), 10.5)) / 2
            assert gap > half


@pytest.mark.plain_types
def test_what_are_no_words_is_refused():
    with pytest.raises(TypeError, match="target: expected a list of labels, got int"):
        teacher_forcing(["ja"], 3)
    with pytest.raises(ValueError, match="source: expected at least one label"):
        teacher_forcing([], ["yes"])
