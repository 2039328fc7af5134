# marks: hw03.count_pairs 2 right

import torch

torch.set_default_dtype(torch.float64)


def count_pairs(num_queries, num_keys, window):
    total = torch.zeros(())  # exact in float64, and beyond 2**24 in float32 it is not
    for i in range(num_queries):
        total = total + min(max(i + num_keys - num_queries + 1, 0), window) + 2**24
    return int((total - num_queries * 2**24).item())
