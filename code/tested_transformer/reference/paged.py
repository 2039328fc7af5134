"""The slow truth of paging: each token is looked up in its block, one by one; blocks are shared by being the same list."""

from __future__ import annotations

import numpy as np

from .attention import attention


def paged_attention(query, key_pages, value_pages, block_table, lengths, *, scale=None):
    """Causal attention of the last L tokens of each sequence to its tokens, copied out of the pages.

    Shapes: query (B, H, L, d), key_pages (N, P, G, d), value_pages (N, P, G, dv), block_table (B, T),
    lengths (B) -> (B, H, L, dv). Source: Kwon et al. 2023, section 4.1.
    """
    size, groups = key_pages.shape[1:3]
    output = np.zeros((*query.shape[:3], value_pages.shape[3]), query.dtype)
    for b, length in enumerate(lengths):
        key = np.zeros((1, groups, length, key_pages.shape[3]), query.dtype)
        value = np.zeros((1, groups, length, value_pages.shape[3]), query.dtype)
        for t in range(length):
            block = block_table[b, t // size]
            key[0, :, t], value[0, :, t] = key_pages[block, t % size], value_pages[block, t % size]
        output[b] = attention(query[b : b + 1], key, value, causal=True, scale=scale)[0]
    return output


def next_state(state, token):
    """What stands in the cache for a token: a number that depends on all tokens so far, as a key does."""
    return (31 * state + token + 1) % 997


class Block:
    """Tokens of one block, and the prefix that ends with it, if it is known to others."""

    def __init__(self, states=()):
        self.states, self.prefix = list(states), None


def block_tables(num_blocks, block_size, steps):
    """After each step: what each sequence reads, and in the last row how many blocks are free.

    steps: ("start", tokens), ("write", sequence, tokens), ("remember", sequence), ("fork", sequence),
    ("truncate", sequence, length); start and fork make the next sequence. A block is shared by being in
    the lists of several sequences, and nobody counts how many they are.

    Shapes: -> (steps, sequences + 1, most tokens). Source: Kwon et al. 2023, section 4.
    """
    texts, lists, pictures = [], [], []
    for name, *rest in steps:
        if name == "start":
            texts.append([])
            lists.append([])
            share(lists, rest[0], block_size)
            texts[-1] = list(rest[0][: block_size * len(lists[-1])])
            write(texts, lists, -1, rest[0][len(texts[-1]) :], block_size)
        elif name == "write":
            write(texts, lists, *rest, block_size)
        elif name == "remember":
            remember(texts[rest[0]], lists, rest[0], block_size)
        elif name == "fork":
            texts.append(list(texts[rest[0]]))
            lists.append(list(lists[rest[0]]))
        else:
            sequence, length = rest
            texts[sequence] = texts[sequence][:length]
            lists[sequence] = lists[sequence][: -(-length // block_size)]
        reads = [
            [state for block in own for state in block.states][: len(text)]
            for own, text in zip(lists, texts, strict=True)
        ]
        alive = {id(block) for own in lists for block in own}
        pictures.append((reads, num_blocks - len(alive)))
    return picture(pictures)


def share(lists, tokens, size):
    """Give the last sequence all full blocks that are known to hold the start of these tokens."""
    for stop in range(size, len(tokens), size):
        every = [block for own in lists for block in own if block.prefix == tuple(tokens[:stop])]
        if not every:
            return
        lists[-1].append(every[0])


def remember(text, lists, sequence, size):
    """The full blocks of a sequence are known from now on, unless others hold the same prefix."""
    for number, block in enumerate(lists[sequence][: len(text) // size]):
        prefix = tuple(text[: (number + 1) * size])
        known = {other.prefix for own in lists for other in own}
        if prefix not in known and block.prefix is None:
            block.prefix = prefix


def write(texts, lists, sequence, tokens, size):
    """Append tokens, one by one; a block that others have too is copied first."""
    own, text = lists[sequence], texts[sequence]
    states = [state for block in own for state in block.states][: len(text)]
    for token in tokens:
        states.append(next_state(states[-1] if states else 0, token))
        if len(text) % size == 0:
            own.append(Block())
        elif sum(block is own[-1] for other in lists for block in other) > 1:
            own[-1] = Block(own[-1].states)
        else:
            own[-1].prefix = None
        own[-1].states[len(text) % size :] = [states[-1]]
        text.append(token)


def picture(pictures):
    """All of it in one array of whole numbers; 0 where there is nothing."""
    most = max(len(states) for reads, _ in pictures for states in reads)
    array = np.zeros((len(pictures), len(pictures[-1][0]) + 1, max(1, most)), dtype=np.int64)
    for step, (reads, free) in enumerate(pictures):
        for sequence, states in enumerate(reads):
            array[step, sequence, : len(states)] = states
        array[step, -1, 0] = free
    return array
