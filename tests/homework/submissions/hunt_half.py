# marks: hw03.hunt 2 wrong

import torch


def test_masked_attention(implementation):
    torch.manual_seed(1)
    query, key = torch.randn(2, 2, 3, 5, 4)
    value = torch.randn(2, 3, 5, 6)
    mask = torch.rand(2, 3, 5, 5) < 0.5
    mask[1, 2, 4] = False
    scores = (query @ key.mT / 4**0.5).masked_fill(~mask, -torch.inf)
    expected = scores.softmax(-1).nan_to_num() @ value
    assert torch.allclose(implementation(query, key, value, mask), expected, atol=1e-5)
