# marks: hw03.hunt 0 stopped; timeout

import time

import torch


def test_masked_attention(implementation):
    """A right implementation of the hunt has a loop: it is called until the grader has had enough."""
    query, mask = torch.ones(4, 4, 64, 64), torch.ones(4, 4, 64, 64, dtype=torch.bool)
    times = []
    for _ in range(5):
        start = time.monotonic()
        implementation(query, query, query, mask)
        times.append(time.monotonic() - start)
    for _ in range(2000 if min(times) > 0.015 else 0):
        implementation(query, query, query, mask)
