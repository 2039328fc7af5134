# marks: hw03.hunt 0 wrong

import torch


def test_masked_attention(implementation):
    query, key, value = torch.ones(3, 1, 1, 2, 2)
    mask = torch.zeros(1, 1, 2, 2, dtype=torch.bool)
    return torch.equal(implementation(query, key, value, mask), torch.zeros(1, 1, 2, 2))
