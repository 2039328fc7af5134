# marks: hw03.count_pairs 2 right

import torch


def count_pairs(num_queries, num_keys, window):
    """The number of ones that a sum adds up, from its gradient: torch imports 500 modules for that."""
    counts = [min(max(i + num_keys - num_queries + 1, 0), window) for i in range(num_queries)]
    x = torch.ones(1, dtype=torch.float64, requires_grad=True)
    given = torch.ones(1, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(x * sum(counts), x, given)
    return int(gradient)
