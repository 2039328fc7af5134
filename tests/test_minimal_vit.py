"""minimal_vit.py: a Vision Transformer in at most 40 lines, equal to transformers' and to the package's."""

from pathlib import Path

import pytest
import torch

from tested_transformer import from_pretrained, minimal_vit
from tested_transformer.experiments.ch14_digits import plain_vit
from tested_transformer.models import vit

pytestmark = pytest.mark.plain_types


def test_it_fits_on_a_page():
    assert len(Path(minimal_vit.__file__).read_text(encoding="utf-8").splitlines()) <= 40


@pytest.mark.parametrize(
    ("shape", "patch"), [((2, 3, 4, 8), (2, 2)), ((1, 1, 6, 4), (3, 2)), ((0, 2, 2, 2), (2, 2))]
)
def test_patches_equal_the_package(shape, patch):
    images = torch.randn(shape)
    assert torch.equal(minimal_vit.image_patches(images, patch), vit.image_patches(images, patch))


def test_it_equals_transformers_and_the_package(tmp_path):
    hf = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = hf.ViTConfig(
        image_size=(9, 6), patch_size=(3, 3), num_channels=2, hidden_size=12, num_attention_heads=3,
        intermediate_size=20, num_hidden_layers=2, num_labels=5,
    )  # fmt: skip
    theirs = hf.ViTForImageClassification(config).double().eval()
    with torch.no_grad():  # biases and scales too, which begin as zeros and ones
        for weight in theirs.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    theirs.save_pretrained(tmp_path)
    package = from_pretrained(tmp_path).double().eval()
    images = torch.randn(2, 2, 9, 6).double()
    wanted = theirs(images).logits
    for model in (package, plain_vit(package)):
        torch.testing.assert_close(model(images), wanted)
