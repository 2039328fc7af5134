# marks: hw03.count_pairs 0 not found
# cell: count-pairs
def count_pair(num_queries, num_keys, window):
    counts = [i + num_keys - num_queries + 1 for i in range(num_queries)]
    return sum(min(max(count, 0), window) for count in counts)
