# marks: hw03.chunk_mask 2 right

import torch


def chunk_mask(pads, num_cached, num_new):
    key = torch.arange(num_cached + num_new)
    place = key[num_cached:, None]
    words = (key <= place) & (key >= pads[:, None, None])
    mask = (words | (key == place))[:, None]
    return mask.flip(2).numpy()[:, :, ::-1]  # its strides are negative
