# marks: hw03.count_pairs 2 right
# cell: none
# next cell
by_query = lambda i, num_queries, num_keys, window: min(max(i + num_keys - num_queries + 1, 0), window)
count_pairs = lambda *given: sum(by_query(i, *given) for i in range(given[0]))
