# marks: hw03.mean_of_words 0 wrong


def mean_of_words(x, real):
    return x.mean(1)
