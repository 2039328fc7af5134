# marks: hw03.count_pairs 0 wrong; raised

import a_module_that_nobody_has


def count_pairs(num_queries, num_keys, window):
    return a_module_that_nobody_has.count(num_queries, num_keys, window)
