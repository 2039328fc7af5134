# marks: hw03.count_pairs 0 not found
# file: cell left out

def count_pairs(num_queries, num_keys, window)
    return 0
