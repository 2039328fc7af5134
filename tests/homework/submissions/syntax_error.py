# file: cell left out

def count_pairs(num_queries, num_keys, window)
    return 0
