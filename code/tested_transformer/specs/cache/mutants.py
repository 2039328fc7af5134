"""The famous mistakes in decoding with a cache: of the store, and of the mask that goes with it."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from ...functional.attention import attention
from ...layers.cache import KeyValueCache
from ..mistakes import mistake


@mistake(
    "old keys lost at growing",
    rejected_by="the first token is never forgotten",
    symptom="Right up to the capacity, 64 or 2048 tokens, and nonsense from the next on.",
    cause="New memory is taken, and what was in the old is not copied.",
)
class LosesOldKeys(KeyValueCache):
    def _grow(self, needed):
        self.capacity = max(needed, 2 * self.capacity)
        for name in ("_keys", "_values"):
            old = getattr(self, name)
            setattr(self, name, old.new_zeros(*old.shape[:2], self.capacity, old.shape[3]))


@mistake(
    "the cache stays with its rows",
    rejected_by="a row takes its keys along",
    symptom="Greedy decoding is right; beam search continues one sentence with another's past.",
    cause="The batch is rearranged and the cache is not.",
)
class StaysWithItsRows(KeyValueCache):
    def reorder(self, rows):
        pass


@mistake(
    "values move, keys stay",
    rejected_by="a row takes its keys along",
    symptom="As above, and harder to see: one beam's words weighted by another's.",
    cause="Of the two tensors only one is indexed.",
)
class MovesValuesOnly(KeyValueCache):
    def reorder(self, rows):
        self._values = self._values[rows]


class Decoder:
    """The right thing in few lines: append, then attend under a mask aligned with the last key."""

    def __init__(self):
        self.keys = self.values = None

    def __call__(self, query, key, value, mask=None):
        """Causal attention of a chunk to everything so far, itself included."""
        keys, values = self.append(key, value)
        return self.attend(query, keys, values, mask)

    def append(self, key, value):
        """Everything so far, in two tensors."""
        new = self.keys is None
        self.keys = key if new else torch.cat([self.keys, key], dim=2)
        self.values = value if new else torch.cat([self.values, value], dim=2)
        return self.keys, self.values

    def attend(self, query, keys, values, mask):
        """The last query stands at the last key."""
        return attention(query, keys, values, mask=mask, causal=True)

    def reorder(self, rows):
        """Keep these rows of the batch."""
        self.keys, self.values = self.keys[rows], self.values[rows]


@mistake(
    "no mask while there is a cache",
    rejected_by="one by one equals one pass",
    symptom="The prompt, fed at once, reads its own future: every key that follows is wrong.",
    cause="`if cache is None:` around the causal mask.",
    seen="Mikyx-1/TinyLLM pull request 18",
)
class NoMaskAtAll(Decoder):
    def attend(self, query, keys, values, mask):
        return attention(query, keys, values, mask=mask)


@mistake(
    "a mask for the first chunk only",
    rejected_by="several at once equal one pass",
    symptom="Right for a prompt and then single tokens; wrong for any later chunk of several.",
    cause="causal only if there are as many queries as keys.",
    seen="mlx-node/mlx-node pull request 24",
)
class CausalIfSquare(Decoder):
    def attend(self, query, keys, values, mask):
        square = query.shape[2] == keys.shape[2]
        return attention(query, keys, values, mask=mask, causal=square)


@mistake(
    "aligned top-left with a cache",
    rejected_by="one by one equals one pass",
    symptom="Training is right; in cached decoding the new query sees key 0 and nothing else.",
    cause="is_causal counts from the first key, where query 0 is not at place 0.",
    seen="pytorch issues 144858 and 108108, x-transformers issue 187",
)
class TopLeft(Decoder):
    def attend(self, query, keys, values, mask):
        allowed = torch.ones(query.shape[2], keys.shape[2], dtype=torch.bool).tril()
        allowed = allowed if mask is None else allowed & mask
        return scaled_dot_product_attention(query, keys, values, attn_mask=allowed)


@mistake(
    "looks before it appends",
    rejected_by="one by one equals one pass",
    symptom="A token never sees itself, and the first sees nothing.",
    cause="The chunk's keys are stored after its queries were answered.",
)
class LooksBeforeItAppends(Decoder):
    def __call__(self, query, key, value, mask=None):
        """Attend to the past, then remember the present."""
        past = (key[:, :, :0], value[:, :, :0]) if self.keys is None else (self.keys, self.values)
        mask = None if mask is None else mask[..., : past[0].shape[2]]
        output = attention(query, *past, mask=mask)
        self.append(key, value)
        return output


@mistake(
    "new keys before old ones",
    rejected_by="several at once equal one pass",
    symptom="Right without a mask; with one, the newest queries see the oldest keys as their future.",
    cause="cat([new, old]) in place of cat([old, new]): attention is a set, the causal mask is not.",
)
class NewBeforeOld(Decoder):
    def append(self, key, value):
        new = self.keys is None
        self.keys = key if new else torch.cat([key, self.keys], dim=2)
        self.values = value if new else torch.cat([value, self.values], dim=2)
        return self.keys, self.values


@mistake(
    "padding forgotten after its chunk",
    rejected_by="padding changes nothing",
    symptom="Padded prompts are right; the first generated token reads the padding.",
    cause="The padding mask of the new tokens alone, with True for everything before them.",
)
class ForgetsThePadding(Decoder):
    def attend(self, query, keys, values, mask):
        if mask is not None:
            mask = mask.clone()
            mask[..., : -query.shape[2]] = True
        return super().attend(query, keys, values, mask)
