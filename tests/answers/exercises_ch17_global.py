"""Global tokens, the exercise: by dense masks and query by query, and two answers that are wrong."""

import torch

from answers import right, wrong
from tested_transformer.functional.attention import attention
from tested_transformer.mixers.longformer import longformer_attention

right("ch17.global_tokens", "the package's")(longformer_attention)


@right("ch17.global_tokens", "query by query")
def by_query(query, key, value, global_query, global_key, global_value, is_global, *, window):
    rows = []
    for b in range(len(query)):
        for i in range(query.shape[2]):
            if is_global[b, i]:
                row = attention(global_query[b, :, i, None], global_key[b], global_value[b])
            else:
                near = (torch.arange(query.shape[2]) - i).abs() < window
                keys = near | is_global[b]
                row = attention(query[b, :, i, None], key[b][:, keys], value[b][:, keys])
            rows.append(row)
    return torch.cat(rows, 1).unflatten(1, (len(query), -1)).transpose(0, 1)


@wrong("ch17.global_tokens", "a global token is read by its global key")
def global_keys_for_all(
    query, key, value, global_query, global_key, global_value, is_global, *, window
):
    chosen = is_global[:, None, :, None]
    return longformer_attention(
        query, global_key.where(chosen, key), global_value.where(chosen, value),
        global_query, global_key, global_value, is_global, window=window,
    )  # fmt: skip


@wrong("ch17.global_tokens", "global tokens are read, and read nothing but their window")
def one_way(query, key, value, *of_global, window):
    *_, is_global = of_global
    ids = torch.arange(query.shape[2])
    near = (ids[:, None] - ids).abs() < window
    return attention(query, key, value, mask=(near | is_global[:, None])[:, None])
