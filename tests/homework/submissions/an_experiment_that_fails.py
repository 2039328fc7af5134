# marks: hw03.count_pairs 2 right

import time

from tested_transformer import Transformer


def right(num_queries, num_keys, window):
    counts = [i + num_keys - num_queries + 1 for i in range(num_queries)]
    return sum(min(max(count, 0), window) for count in counts)


def count_pairs(num_queries, num_keys, window):
    return right(num_queries, num_keys, window)


MODEL = Transformer(1, 2, 3)
SLEPT = time.sleep(10**6)
