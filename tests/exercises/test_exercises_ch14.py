"""What is special to the exercises of chapter 14."""

import torch

from tested_transformer.exercises.ch14 import IMAGE_PATCHES, PATCH_OF_PIXEL
from tested_transformer.models.vit import image_patches
from tested_transformer.specs.judge import judge


def test_a_list_of_two_numbers_is_a_pair():
    def listed(row, column, width, patch):
        pixels = torch.arange(4 * patch * width).view(1, 1, 4 * patch, width).double()
        every = image_patches(pixels, (patch, patch))[0].long()
        return (every == row * width + column).nonzero()[0]  # a tensor of two

    assert judge(PATCH_OF_PIXEL, listed).passed


def test_colors_are_needed_to_find_channels_left_in_front():
    """With one channel the mistake is none, so that only a case of several finds it."""
    [wrong] = [
        m for m in IMAGE_PATCHES.mutants if m.name == "channels left in front of the patches"
    ]
    gray, colored = torch.randn(2, 1, 4, 4), torch.randn(2, 3, 4, 4)
    assert torch.equal(wrong.candidate(gray, (2, 2)), image_patches(gray, (2, 2)))
    assert not torch.equal(wrong.candidate(colored, (2, 2)), image_patches(colored, (2, 2)))
