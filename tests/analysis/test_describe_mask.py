"""describe_mask: what it recognizes, what it warns of, what it refuses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tested_transformer import describe_mask
from tested_transformer.analysis.mask_patterns import INTENDED, recognize
from tested_transformer.functional.masks import (
    causal_mask,
    document_mask,
    padding_mask,
    prefix_mask,
    window_mask,
)

LENGTHS, IDS = torch.tensor([2, 3]), torch.tensor([[0, 0, 1, 1, 1, 2]])
ONES = torch.ones(4, 4, dtype=torch.bool)
MASKS = {
    "everything": ONES,
    "nothing": ~ONES,
    "empty": torch.ones(0, 3, dtype=torch.bool),
    "causal": causal_mask(2, 5),
    "causal, top-left": torch.ones(2, 5, dtype=torch.bool).tril(),
    "causal without the diagonal": ONES.tril(-1),
    "the future": ~causal_mask(4),
    "padding": padding_mask(LENGTHS, 5),
    "the last keys": ~padding_mask(LENGTHS, 5),
    "whole rows": (padding_mask(LENGTHS, 5).expand(-1, -1, 5, -1)).mT,
    "window": window_mask(6, window=2),
    "causal window": window_mask(2, 6, window=3) & causal_mask(2, 6),
    "prefix": prefix_mask(LENGTHS, 5),
    "documents": document_mask(IDS),
    "causal documents": document_mask(IDS) & causal_mask(6),
    "causal and padding": causal_mask(4) & padding_mask(LENGTHS, 4),
    "irregular": torch.tensor([[1, 0, 1], [1, 1, 0], [0, 1, 1]]).bool(),
}


@pytest.mark.parametrize("kind", MASKS)
def test_recognizes(kind):
    report = describe_mask(MASKS[kind])
    assert report.kind == kind
    assert repr(report).startswith(f"mask {tuple(MASKS[kind].shape)}, {kind}")


@pytest.mark.parametrize("kind", sorted(INTENDED))
def test_an_inverted_mask_is_noticed(kind):
    (warning, *_) = describe_mask(~MASKS[kind].reshape(-1, *MASKS[kind].shape[-2:])[0]).warnings
    assert "inverted" in warning
    assert kind in warning


def test_right_masks_give_no_warning():
    for kind in ("everything", "causal", "padding", "window", "causal window", "prefix", "documents",
                 "causal documents", "causal and padding"):  # fmt: skip
        assert describe_mask(MASKS[kind]).warnings == (), kind


@pytest.mark.parametrize(("mask", "words"), [
    (causal_mask(5, 3), "fully masked rows, queries that may attend to nothing (2): 0, 1"),
    (~causal_mask(3), "looks inverted: its opposite is causal"),
    (MASKS["causal, top-left"], "aligned top-left although 2 queries meet 5 keys"),
    (MASKS["whole rows"], "transposed padding mask"),
    (MASKS["the last keys"], "only the last keys are visible"),
    (ONES.tril(-1), "the diagonal is masked"),
    (~ONES, "fully masked rows, queries that may attend to nothing (4): 0, 1, 2, 3"),
])  # fmt: skip
def test_warnings(mask, words):
    report = describe_mask(mask)
    assert any(words in warning for warning in report.warnings), report.warnings
    assert "warning: " in repr(report)


def test_names_appear_in_warnings_and_drawing():
    report = describe_mask(~causal_mask(2), rows=["vier", "und"], columns=["four", "and"])
    assert any(warning.endswith("(1): und") for warning in report.warnings)
    assert "vier" in repr(report)
    assert "four and" in repr(report)


def test_says_which_samples_and_heads_differ():
    report = describe_mask(padding_mask(torch.tensor([2, 4]), 4))
    assert report.names == ("sample 0: ", "sample 1: ")
    assert report.kind == "padding"
    heads = torch.stack([causal_mask(3), ~causal_mask(3)])[None].expand(5, 2, 3, 3)
    report = describe_mask(heads)
    assert report.names == ("head 0: ", "head 1: ")
    assert report.kind == "mixed"
    assert report.warnings[0].startswith("head 1: looks inverted")
    assert describe_mask(ONES.expand(2, 3, 4, 4)).names == ("every sample and head alike: ",)
    many = describe_mask(padding_mask(torch.arange(1, 9), 9))
    assert "and 2 more that differ" in repr(many)


def test_drawing():
    lines = repr(describe_mask(causal_mask(3))).splitlines()
    assert lines[2:] == ["      0 1 2", "    0 ■ · ·", "    1 ■ ■ ·", "    2 ■ ■ ■"]
    assert "(the first 16 x 16 of (40, 40))" in repr(describe_mask(causal_mask(40)))
    wide = describe_mask(causal_mask(3), columns=["a" * 40] * 3)
    assert max(map(len, repr(wide).splitlines())) < 100


@settings(max_examples=60)
@given(st.integers(0, 2**31), st.integers(0, 5), st.integers(0, 5))
def test_any_mask_can_be_described(seed, length, keys):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(2, 2, length, keys, generator=generator) < 0.5
    report = describe_mask(mask)
    assert len(report.parts) == len(report.patterns) == len(report.names)
    assert recognize(mask[0, 0]).sentence.endswith(".")
    repr(report)


@pytest.mark.plain_types
@pytest.mark.parametrize(("mask", "options", "kind", "words"), [
    (ONES.byte(), {}, TypeError, "torch.uint8.*`mask != 0`.*`mask == 0`.*which"),
    (ONES.int(), {}, TypeError, "torch.int32.*may attend.*masked"),
    (ONES.float(), {}, TypeError, "torch.float32.*which of the two"),
    (torch.zeros(2, 2).log(), {}, TypeError, "penalty to add.*mask == 0"),
    ([[True]], {}, TypeError, "Tensor.*list"),
    (ONES[0], {}, ValueError, r"shape \(L, S\) or \(B, L, S\) or \(B, H, L, S\), got shape \(4,\)"),
    (ONES, {"rows": "abcd"}, TypeError, "rows: expected an iterable or None, got str"),
    (ONES, {"columns": 4}, TypeError, "columns: expected an iterable or None, got int"),
    (ONES, {"rows": ["a"]}, ValueError, "rows.*4.*1 labels"),
])  # fmt: skip
def test_complaints(mask, options, kind, words):
    with pytest.raises(kind, match=words):
        describe_mask(mask, **options)
