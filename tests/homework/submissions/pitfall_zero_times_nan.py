# marks: hw03.mean_of_words 0 wrong


def mean_of_words(x, real):
    real = real[:, :, None]
    return (x * real).sum(1) / real.sum(1).clamp(min=1)
