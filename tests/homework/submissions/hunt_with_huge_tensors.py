# marks: hw03.hunt 0 wrong

import torch


def test_masked_attention(implementation):
    query, key, value = torch.zeros(3, 1, 1, 100, 64)
    implementation(query, key, value, torch.ones(1, 1, 100, 100, dtype=torch.bool))
