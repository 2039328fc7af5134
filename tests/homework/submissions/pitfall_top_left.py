# marks: hw03.chunk_mask 0 wrong

import torch


def chunk_mask(pads, num_cached, num_new):
    mask = torch.ones(len(pads), 1, num_new, num_cached + num_new, dtype=torch.bool)
    return mask.tril()
