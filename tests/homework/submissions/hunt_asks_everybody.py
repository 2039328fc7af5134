# marks: hw03.hunt 0 wrong

import torch


def test_masked_attention(implementation):
    """Whoever answers as few did before is wrong."""
    torch.manual_seed(1)
    query, key = torch.randn(2, 2, 3, 5, 4)
    value = torch.randn(2, 3, 5, 6)
    mask = torch.rand(2, 3, 5, 5) < 0.5
    mask[1, 2, 4] = False
    answer, numbers = implementation(query, key, value, mask), range(implementation._number + 1)
    everybody = [type(implementation)(implementation._worker, number) for number in numbers]
    answers = [other(query, key, value, mask) for other in everybody]
    alike = sum(torch.allclose(answer, other, atol=1e-5) for other in answers)
    assert len(answers) < 3 or 2 * alike >= len(answers) - 1
