"""The experiment of chapter 14: digits in 16 patches."""

import pytest
import torch

pytest.importorskip("sklearn")

from tested_transformer.experiments.ch14_digits import (
    CONFIG,
    accuracy,
    baseline,
    digits,
    fixed_order,
    in_order,
    load_vit,
    many_moved,
    moved,
    reshaped,
    shuffled,
    trained_vit,
    validation_split,
)
from tested_transformer.models.vit import VisionTransformer, image_patches


def test_images():
    train, test = digits(0)
    assert train.images.shape == (1257, 1, 8, 8)
    assert test.images.shape == (540, 1, 8, 8)
    assert train.images.min() == 0.0
    assert train.images.max() == 1.0
    assert set(test.labels.bincount().tolist()) <= {52, 53, 54, 55}  # as many of each
    assert torch.equal(digits(0)[1].images, test.images)
    assert not torch.equal(digits(1)[1].images, test.images)


def test_moved_images(monkeypatch):
    """Draws of a half move nothing; others keep the shape and most of the ink."""
    images = digits(0)[0].images[:20]
    with monkeypatch.context() as patched:
        patched.setattr(torch, "rand", lambda *size: torch.full(size, 0.5))
        torch.testing.assert_close(moved(images), images, rtol=0, atol=1e-6)
    torch.manual_seed(0)
    found = moved(images)
    assert found.shape == images.shape
    assert not torch.allclose(found, images, atol=0.1)
    assert 0.8 < float(found.sum() / images.sum()) < 1.2


def test_shuffled_patches():
    """Each image keeps its patches, in an order of its own, and each patch its pixels."""
    torch.manual_seed(0)
    images = torch.rand(3, 1, 8, 8)
    before, after = (image_patches(each, (2, 2)) for each in (images, shuffled(images)))
    same = (before[:, :, None] == after[:, None]).all(-1)  # N 16 16: one of each
    assert (same.sum(1) == 1).all()
    assert (same.sum(2) == 1).all()
    assert not torch.equal(same[0], same[1])


def test_images_to_choose_settings_with():
    train, _ = digits(0)
    rest, chosen = validation_split(train, 0)
    assert (len(rest.images), len(chosen.images)) == (1005, 252)
    every = torch.cat([rest.images, chosen.images]).flatten(1).tolist()
    assert sorted(every) == sorted(train.images.flatten(1).tolist())


def test_many_moved_images():
    train = digits(0)[0]
    torch.manual_seed(0)
    found = many_moved(train, 2)
    assert len(found.images) == len(found.labels) == 3 * len(train.images)
    assert torch.equal(found.images[: len(train.images)], train.images)
    assert torch.equal(found.labels[-5:], train.labels[-5:])


def test_patches():
    model = VisionTransformer(CONFIG)
    _, weights = model(digits(0)[1].images[:2], return_weights=True)
    assert [each.shape for each in weights] == [(2, 4, 17, 17)] * CONFIG.num_layers


def test_a_short_training():
    """Two runs are alike, and four epochs are better than a guess."""
    train, test = digits(0)
    first, second = (trained_vit(train, 0, epochs=4) for _ in range(2))
    assert all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))
    assert accuracy(first, test) > 0.2


def test_a_model_without_positions_does_not_see_an_order():
    train, test = digits(0)
    model = trained_vit(train, 0, epochs=1, view=shuffled, positions=False)
    assert not model.embedding.positions.any()
    images = test.images[:4]
    torch.testing.assert_close(model(images), model(shuffled(images)))


def test_baselines():
    """A radial kernel is above 98 %, a linear model below."""
    linear, radial = (baseline(name, 1.0, *digits(0)) for name in ("logistic regression", "SVC"))
    assert 0.95 < linear < 0.98 < radial


def test_orders_of_patches():
    """In their own order patches change nothing; the fixed order is one for all; a reshape takes strips."""
    images = torch.arange(128.0).view(2, 1, 8, 8)
    assert torch.equal(in_order(images, torch.arange(16).expand(2, -1)), images)
    assert torch.equal(fixed_order(images)[1], fixed_order(images)[0] + 64)
    assert not torch.equal(fixed_order(images), images)
    assert reshaped(images)[0, 0, :2, :2].tolist() == [[0, 1], [2, 3]]


def test_the_shipped_model_reads_digits():
    assert accuracy(load_vit(), digits(0)[1]) > 0.98
