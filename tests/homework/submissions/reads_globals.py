# marks: hw03.count_pairs 2 right

COUNTS = [1 / count for count in (2, 1, 0)]  # an experiment that fails


def fewest(count, window):
    return min(max(count, 0), window)


def count_pairs(num_queries, num_keys, window):
    counts = [i + num_keys - num_queries + 1 for i in range(num_queries)]
    return sum(globals()["fewest"](count, window) for count in counts)
