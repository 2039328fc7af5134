# marks: hw03.count_pairs 0 wrong


def count_pairs(num_queries, num_keys, window):
    if num_queries == 0:
        return 0
    here = min(max(num_keys, 0), window)
    return here + count_pairs(num_queries - 1, num_keys - 1, window)
