# marks: hw03.chunk_mask 2 right

import torch


class Mask(torch.Tensor):
    pass


def chunk_mask(pads, num_cached, num_new):
    key = torch.arange(num_cached + num_new)
    place = key[num_cached:, None]
    words = (key <= place) & (key >= pads[:, None, None])
    return (words | (key == place))[:, None].as_subclass(Mask)
