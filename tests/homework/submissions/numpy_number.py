# marks: hw03.count_pairs 2 right

import numpy as np


def count_pairs(num_queries, num_keys, window):
    counts = np.arange(num_queries) + num_keys - num_queries + 1
    return np.minimum(np.maximum(counts, 0), window).sum()
