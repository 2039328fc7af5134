# marks: hw03.count_pairs 2 right; slow

import time


def right(num_queries, num_keys, window):
    counts = [i + num_keys - num_queries + 1 for i in range(num_queries)]
    return sum(min(max(count, 0), window) for count in counts)


def count_pairs(num_queries, num_keys, window):
    time.sleep(0.4)
    return right(num_queries, num_keys, window)
