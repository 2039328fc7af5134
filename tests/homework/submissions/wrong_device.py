# marks: hw03.mean_of_words 0 wrong; not a tensor


def mean_of_words(x, real):
    words = x.masked_fill(~real[:, :, None], 0.0)
    return (words / real.sum(1).clamp(min=1)[:, None, None]).sum(1).to("meta")
