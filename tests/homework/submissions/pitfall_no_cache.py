# marks: hw03.count_pairs 0 wrong


def count_pairs(num_queries, num_keys, window):
    return sum(min(i + 1, window, num_keys) for i in range(num_queries))
