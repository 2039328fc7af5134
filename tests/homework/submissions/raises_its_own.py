# marks: hw03.count_pairs 0 wrong


class Confused(Exception):
    pass


def count_pairs(num_queries, num_keys, window):
    raise Confused('too many keys')
