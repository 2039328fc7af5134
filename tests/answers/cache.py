"""The answers to cached decoding."""

from typing import ClassVar

import torch
from torch.nn.functional import scaled_dot_product_attention

from tested_transformer.layers.cache import KeyValueCache
from tested_transformer.specs.cache.mutants import Decoder
from tested_transformer.specs.cache.spec import PlainDecoder

from . import right, wrong

right("cache")(KeyValueCache)
right("cache")(Decoder)
right("cache")(PlainDecoder)


@right("cache")
class Lists:
    """A list of chunks, put together at each call."""

    def __init__(self):
        self.chunks = []

    def append(self, key, value):
        self.chunks.append((key, value))
        return tuple(torch.cat(all_of, dim=-2) for all_of in zip(*self.chunks, strict=True))

    def reorder(self, rows):
        self.chunks = [tuple(t.index_select(0, rows) for t in chunk) for chunk in self.chunks]


@right("cache")
class QueryByQuery(Decoder):
    """Each query on its own, with the keys up to its own."""

    def attend(self, query, keys, values, mask):
        outputs, first = [], keys.shape[2] - query.shape[2]
        for i in range(query.shape[2]):
            stop = first + i + 1
            own = torch.ones(1, stop, dtype=torch.bool) if mask is None else mask[..., :stop]
            none = ~own.any(-1, keepdim=True)
            output = scaled_dot_product_attention(
                query[:, :, i : i + 1], keys[:, :, :stop], values[:, :, :stop], attn_mask=own | none
            )
            outputs.append(output.masked_fill(none, 0.0))
        return torch.cat(outputs, 2)


# --- Wrong ----------------------------------------------------------------------------------------


@wrong("cache", "reorder moves the newest chunk alone")
class NewestMoves(Lists):
    def reorder(self, rows):
        self.chunks[-1] = tuple(t[rows] for t in self.chunks[-1])


@wrong("cache", "reorder in place")
class InPlace(Decoder):
    def reorder(self, rows):
        self.keys[:], self.values[:] = self.keys[rows].clone(), self.values[rows].clone()


@wrong("cache", "the last 16 keys alone")
class Ring(Decoder):
    def attend(self, query, keys, values, mask):
        keep = max(16, query.shape[2])
        mask = None if mask is None else mask[..., -keep:]
        return super().attend(query, keys[:, :, -keep:], values[:, :, -keep:], mask)


@wrong("cache", "the last 64 keys alone")
class LongerRing(Decoder):
    def append(self, key, value):
        keys, values = super().append(key, value)
        self.keys, self.values = keys[:, :, -64:], values[:, :, -64:]
        return self.keys, self.values


@wrong("cache", "one store for all objects")
class Shared(Decoder):
    store: ClassVar[dict] = {}

    def __init__(self):
        pass

    @property
    def keys(self):
        return self.store.get("keys")

    @keys.setter
    def keys(self, keys):
        self.store["keys"] = keys

    @property
    def values(self):
        return self.store.get("values")

    @values.setter
    def values(self, values):
        self.store["values"] = values


@wrong("cache", "values as wide as the keys")
class SameWidth(Decoder):
    def append(self, key, value):
        keys, values = super().append(key, value)
        return keys, values[..., : keys.shape[-1]]


@wrong("cache", "kept in float16")
class Half(Decoder):
    def append(self, key, value):
        keys, values = super().append(key.half(), value.half())
        return keys.to(key.dtype), values.to(key.dtype)


@wrong("cache", "padding in a later chunk is read")
class LaterPadding(Decoder):
    def attend(self, query, keys, values, mask):
        if mask is not None and keys.shape[2] > query.shape[2]:
            mask = mask.clone()
            mask[..., -query.shape[2] :] = True
        return super().attend(query, keys, values, mask)


@wrong("cache", "new keys before old ones")
class NewFirst(Decoder):
    def append(self, key, value):
        if self.keys is not None:
            key, value = torch.cat([key, self.keys], 2), torch.cat([value, self.values], 2)
        self.keys, self.values = key, value
        return key, value


@wrong("cache", "NaN throughout")
class Nan(Decoder):
    def attend(self, query, keys, values, mask):
        return super().attend(query, keys, values, mask) * torch.nan


@wrong("cache", "reorder keeps the number of rows")
class SameRows(Decoder):
    def reorder(self, rows):
        every = torch.arange(len(self.keys))
        every[: len(rows)] = rows[: len(every)]
        super().reorder(every)


@wrong("cache", "the keys scaled at every reorder")
class Scaled(Decoder):
    def reorder(self, rows):
        super().reorder(rows.sort().values)


@wrong("ch05.cached", "views of the memory")
class ByView(Decoder):
    def append(self, key, value):
        return super().append(*(t.view(-1).view(t.shape) for t in (key, value)))


@wrong("ch05.cached", "the last 16 keys alone")
class RingOfExercise(Ring):
    """As above."""
