# marks: hw03.count_pairs 0 wrong


import tempfile


def right(num_queries, num_keys, window):
    counts = [i + num_keys - num_queries + 1 for i in range(num_queries)]
    return sum(min(max(count, 0), window) for count in counts)


def count_pairs(num_queries, num_keys, window):
    with tempfile.TemporaryFile() as file:
        for _ in range(10_000):
            file.write(bytes(1 << 20))
            file.flush()
    return right(num_queries, num_keys, window)
