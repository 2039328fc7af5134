# marks: hw03.mean_of_words 0 wrong


def mean_of_words(x, real):
    x[~real] = 0.0
    return x.sum(1) / real.sum(1).clamp(min=1)[:, None]
