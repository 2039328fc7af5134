"""The exercises of chapter 6: a right answer passes; test_specs.py holds the usual mistakes."""

import torch

from tested_transformer import check


def sinusoids(positions, d_model):
    columns = torch.arange(d_model)
    angles = positions[..., None] / 10000 ** (columns // 2 * 2 / d_model)
    return torch.where(columns % 2 == 0, angles.sin(), angles.cos())


def shift(offset, d_model):
    speeds = offset / 10000 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    blocks = [torch.tensor([[a.cos(), a.sin()], [-a.sin(), a.cos()]]) for a in speeds]
    return torch.block_diag(*blocks).float()


def relative_rows(num_queries, num_keys, max_distance):
    places = torch.arange(num_keys)
    distance = places - places[num_keys - num_queries :, None]
    return distance.clamp(-max_distance, max_distance) + max_distance


def places(real):
    return (real.cumsum(1) - 1).clamp(min=0) * real


def to_halves(weight):
    return torch.cat((weight[0::2], weight[1::2]))


SOLUTIONS = {
    "ch06.sinusoids": sinusoids,
    "ch06.shift": shift,
    "ch06.relative_rows": relative_rows,
    "ch06.places": places,
    "ch06.to_halves": to_halves,
}


def test_angles_in_float32_are_good_enough_for_a_reader():
    def in_float32(positions, d_model):
        columns = torch.arange(0, d_model, 2)
        angles = positions.float()[..., None] * torch.exp(
            -columns.float() * torch.log(torch.tensor(10000.0)) / d_model
        )
        return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)[..., :d_model]

    assert check("ch06.sinusoids", in_float32).passed
