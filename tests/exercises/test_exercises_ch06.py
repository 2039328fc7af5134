"""What is special to the exercises of chapter 6."""

import torch

from tested_transformer import check


def test_angles_in_float32_are_good_enough_for_a_reader():
    def in_float32(positions, d_model):
        columns = torch.arange(0, d_model, 2)
        angles = positions.float()[..., None] * torch.exp(
            -columns.float() * torch.log(torch.tensor(10000.0)) / d_model
        )
        return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)[..., :d_model]

    assert check("ch06.sinusoids", in_float32).passed
