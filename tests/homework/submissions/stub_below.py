# marks: hw03.count_pairs 0 not written; two definitions


def count_pairs(num_queries, num_keys, window):
    counts = [i + num_keys - num_queries + 1 for i in range(num_queries)]
    return sum(min(max(count, 0), window) for count in counts)


def count_pairs(num_queries, num_keys, window):
    """Three ints -> an int: the number of pairs under a causal window, bottom-right."""
    # your code here
    ...
