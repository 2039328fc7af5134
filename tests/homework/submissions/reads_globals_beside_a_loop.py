# marks: hw03.count_pairs 2 right

NAME = "fewest"


def fewest(count, window):
    return min(max(count, 0), window)


def count_pairs(num_queries, num_keys, window):
    counts = [i + num_keys - num_queries + 1 for i in range(num_queries)]
    return sum(globals()[NAME](count, window) for count in counts)


COUNTS = []
while True:  # an experiment that never ends
    COUNTS.append(count_pairs(2, 3, 1))
