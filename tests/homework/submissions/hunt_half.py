# marks: hw03.hunt 2 wrong

import torch


def test_masked_attention(implementation):
    torch.manual_seed(1)
    query, key, value = torch.randn(3, 1, 1, 5, 5)
    mask = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
    mask[..., 4, :] = False
    scores = (query @ key.mT / 5**0.5).masked_fill(~mask, -torch.inf)
    expected = scores.softmax(-1).nan_to_num() @ value
    assert torch.allclose(implementation(query, key, value, mask), expected, atol=1e-5)
