"""The key/value cache: any chunking equals one pass, padded or not; growing, moving, forgetting."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tested_transformer import (
    DecoderCache,
    KeyValueCache,
    MultiHeadAttention,
    WindowCache,
    attention,
    judge,
)
from tested_transformer.layers.cache import AttentionCache
from tested_transformer.specs.cache.mutants import Decoder
from tested_transformer.specs.cache.spec import CACHE, PlainDecoder


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def layer_of(width=12, heads=4, groups=2, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    return MultiHeadAttention(width, heads, num_kv_heads=groups).to(dtype).eval()


@st.composite
def chunkings(draw):
    """Chunk sizes, and which tokens are real: padded left, right, or anywhere."""
    chunks = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    batch, length = draw(st.integers(1, 3)), sum(chunks)
    kind = draw(st.sampled_from(["none", "left", "right", "holes"]))
    if kind == "holes":
        rows = st.lists(st.booleans(), min_size=length, max_size=length)
        real = torch.tensor([draw(rows) for _ in range(batch)])
    else:
        least = length if kind == "none" else 0
        lengths = torch.tensor([draw(st.integers(least, length)) for _ in range(batch)])
        real = torch.arange(length) < lengths[:, None]
        real = real.flip(1) if kind == "left" else real
    return chunks, real


# --- The Spec ------------------------------------------------------------------------------------


@pytest.mark.parametrize("right", [KeyValueCache, Decoder, PlainDecoder])
def test_right_implementations_pass(right):
    verdict = judge(CACHE, right)
    assert verdict.passed, verdict
    assert not verdict.skipped


def test_a_layer_with_a_cache_passes():
    class Layer:
        """MultiHeadAttention whose four matrices are the identity: what comes in is projected."""

        def __init__(self):
            self.cache = KeyValueCache(capacity=2)

        def __call__(self, query, key, value, mask):
            heads, d = query.shape[1], query.shape[3]
            layer = MultiHeadAttention(heads * d, heads, d_context=2 * heads * d, bias=False)
            eye, none = torch.eye(heads * d), torch.zeros(heads * d, heads * d)
            with torch.no_grad():
                layer.query.weight.copy_(eye)
                layer.output.weight.copy_(eye)
                layer.key.weight.copy_(torch.cat([eye, none], 1))
                layer.value.weight.copy_(torch.cat([none, eye], 1))
                x, k, v = (t.transpose(1, 2).flatten(2) for t in (query, key, value))
                both = torch.cat([k, v], -1)
                options = {"mask": mask, "causal": True, "cache": self.cache}
                output = layer.to(query.dtype)(x, both, **options)
            return output.unflatten(-1, (heads, d)).transpose(1, 2)

        def reorder(self, rows):
            self.cache.reorder(rows)

    def has_one_size(case):
        return case.arguments["key"].shape == case.arguments["value"].shape

    assert judge(CACHE.narrowed(has_one_size), Layer).passed


def test_a_class_without_select_is_judged_on_the_rest():
    class Short:
        def __init__(self):
            self.kept = []

        def append(self, key, value):
            self.kept.append((key, value))
            return tuple(torch.cat(part, 2) for part in zip(*self.kept, strict=True))

    verdict = judge(CACHE, Short)
    assert verdict.passed, verdict
    assert verdict.skipped == {"a row takes its keys along": "has no `reorder`"}


# --- Chunks equal one pass -----------------------------------------------------------------------


@settings(max_examples=60)
@given(chunkings(), st.integers(1, 9), st.sampled_from([1, 2, 4]))
def test_any_chunks_equal_one_pass(chunking, capacity, groups):
    chunks, real = chunking
    layer = layer_of(groups=groups)
    x, mask = normal(*real.shape, 12), real[:, None, None]
    cache, outputs, start = KeyValueCache(capacity=capacity), [], 0
    with torch.no_grad():
        whole = layer(x, mask=mask, causal=True)
        for size in chunks:
            stop = start + size
            options = {"mask": mask[..., :stop], "causal": True, "cache": cache}
            outputs.append(layer(x[:, start:stop], **options))
            start = stop
    torch.testing.assert_close(torch.cat(outputs, 1), whole)
    assert cache.length == start


def test_padding_changes_nothing_left_or_right():
    """A short sentence alone, and in a batch with padding on either side, cached."""
    layer, words = layer_of(), normal(1, 5, 12)
    with torch.no_grad():
        alone = layer(words, causal=True)
        for left in (0, 1, 3):
            x = torch.full((1, 8, 12), 50.0, dtype=torch.float64)
            x[:, left : left + 5] = words
            real = (torch.arange(8) >= left) & (torch.arange(8) < left + 5)
            cache, outputs = KeyValueCache(capacity=2), []
            for start, stop in ((0, 4), (4, 6), (6, 8)):
                mask = real[None, None, None, :stop]
                options = {"mask": mask, "causal": True, "cache": cache}
                outputs.append(layer(x[:, start:stop], **options))
            torch.testing.assert_close(torch.cat(outputs, 1)[:, left : left + 5], alone)


def test_cross_attention_reads_its_context_once():
    layer, x, context = layer_of(), normal(2, 3, 12), normal(2, 5, 12, seed=1)
    cache = KeyValueCache(fixed=True)
    with torch.no_grad():
        first = layer(x, context, cache=cache)
        torch.testing.assert_close(first, layer(x, context))
        assert torch.equal(layer(x, torch.full_like(context, 9.0), cache=cache), first)
        assert torch.equal(layer(x, context[:, :1], cache=cache), first)
    assert cache.length == cache.capacity == 5


# --- The store -----------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 16))
def test_growing_keeps_everything_and_copies_at_most_twice(chunks, capacity):
    cache, seen, copied = KeyValueCache(capacity=capacity), [], 0
    for number, size in enumerate(chunks):
        key = torch.full((1, 1, size, 1), float(number))
        before = cache.capacity, cache.length
        keys, values = cache.append(key, -key)
        seen += [float(number)] * size
        if before[1] and cache.capacity != before[0]:
            copied += before[1]
        assert keys.flatten().tolist() == seen
        assert torch.equal(values, -keys)
        assert cache.length == len(seen) <= cache.capacity
    assert copied < 2 * len(seen)


def test_bytes_are_those_set_aside():
    cache = KeyValueCache(capacity=4)
    assert cache.nbytes == 0
    cache.append(normal(2, 3, 4, 5), normal(2, 3, 4, 7))
    assert cache.nbytes == 2 * 3 * 4 * (5 + 7) * 8
    cache.append(normal(2, 3, 1, 5), normal(2, 3, 1, 7))
    assert (cache.capacity, cache.nbytes) == (8, 2 * 3 * 8 * (5 + 7) * 8)


def test_what_comes_in_is_copied():
    cache, key = KeyValueCache(), normal(1, 1, 2, 3)
    keys, _ = cache.append(key, key)
    before = keys.clone()
    key.zero_()
    assert torch.equal(cache.keys, before)


@pytest.mark.parametrize("rows", [[0, 1, 2], [2, 0, 0], [1], [1, 1, 2, 0, 0], []])
def test_rows(rows):
    cache, key, value = KeyValueCache(capacity=2), normal(3, 2, 5, 4), normal(3, 2, 5, 6)
    cache.append(key, value)
    cache.reorder(torch.tensor(rows, dtype=torch.long))
    assert torch.equal(cache.keys, key[rows])
    more = normal(len(rows), 2, 2, 4)
    keys, _ = cache.append(more, normal(len(rows), 2, 2, 6))
    assert torch.equal(keys, torch.cat([key[rows], more], 2))


def test_truncating_and_going_on():
    cache, key = KeyValueCache(capacity=3), normal(2, 1, 5, 4)
    cache.append(key, key)
    cache.truncate(2)
    assert torch.equal(cache.keys, key[:, :, :2])
    keys, values = cache.append(key[:, :, 4:], key[:, :, :1])
    assert torch.equal(keys, key[:, :, [0, 1, 4]])
    assert torch.equal(values, key[:, :, [0, 1, 0]])
    cache.truncate(0)
    assert cache.length == 0


def test_gradients_are_refused_only_where_they_would_be_lost():
    cache, key = KeyValueCache(), normal(1, 1, 2, 3).requires_grad_()
    with pytest.raises(ValueError, match="no_grad"):
        cache.append(key, key)
    with torch.no_grad():
        cache.append(key, key)
    cache.append(key.detach(), key.detach())
    assert cache.length == 4


def test_inference_mode():
    layer, x = layer_of(), normal(2, 5, 12)
    with torch.inference_mode():
        cache = KeyValueCache(capacity=1)
        parts = [layer(x[:, i : i + 1], causal=True, cache=cache) for i in range(5)]
        torch.testing.assert_close(torch.cat(parts, 1), layer(x, causal=True))


# --- The last keys only --------------------------------------------------------------------------


def test_both_caches_follow_the_protocol():
    for cache in (KeyValueCache(), WindowCache(3)):
        assert isinstance(cache, AttentionCache)
        assert cache.num_keys(2) == 2
        cache.append(normal(1, 1, 5, 2), normal(1, 1, 5, 2))
        keys, _ = cache.append(normal(1, 1, 2, 2), normal(1, 1, 2, 2))
        assert cache.length == 7
    assert keys.shape[2] == 3 + 2  # the window before the chunk, and the chunk
    assert not isinstance(DecoderCache(1), AttentionCache)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(1, 5))
def test_a_window_in_any_chunks_is_the_window_in_one_pass(chunks, window):
    """However many keys were dropped: the chunk's queries are aligned with the last key."""
    query, key, value = (normal(2, 4, sum(chunks), 3, seed=seed) for seed in range(3))
    key, value = key[:, :2], value[:, :2]
    options = {"causal": True, "window": window}
    whole, cache, start = attention(query, key, value, **options), WindowCache(window), 0
    for size in chunks:
        new = slice(start, start + size)
        expected = cache.num_keys(size)
        keys, values = cache.append(key[:, :, new], value[:, :, new])
        assert keys.shape[2] == expected == min(start, window) + size
        output = attention(query[:, :, new], keys, values, **options)
        torch.testing.assert_close(output, whole[:, :, new])
        start += size
    assert cache.length == start
    assert torch.equal(cache.keys, key[:, :, -window:])
    assert torch.equal(cache.values, value[:, :, -window:])


def test_the_bytes_of_a_window_do_not_grow():
    cache, key = WindowCache(4), normal(2, 3, 6, 5)
    for _ in range(3):
        cache.append(key, key)
        assert cache.nbytes == 2 * (2 * 3 * 4 * 5) * 8
        assert cache.keys.untyped_storage().nbytes() == 2 * 3 * 4 * 5 * 8
    cache.reorder(torch.tensor([1, 1, 0]))
    assert torch.equal(cache.keys, key[[1, 1, 0], :, -4:])


def test_a_window_takes_back_what_it_can():
    cache, key = WindowCache(3), normal(1, 1, 6, 2)
    cache.append(key[:, :, :2], key[:, :, :2])
    cache.truncate(1)  # the window is not full yet: nothing is gone
    cache.append(key[:, :, 1:], key[:, :, 1:])
    cache.truncate(5)  # the next query needs two keys before it: they are here
    assert torch.equal(cache.keys, key[:, :, 3:5])
    with pytest.raises(ValueError, match="length: expected 5 to 5: older keys are gone, got 4"):
        cache.truncate(4)
    keys, _ = cache.append(key[:, :, 5:], key[:, :, 5:])
    assert torch.equal(keys, key[:, :, 3:])
    assert cache.length == 6


# --- The caches of a decoder ---------------------------------------------------------------------


def test_a_decoder_cache_keeps_everything_in_step():
    cache = DecoderCache(2, capacity=4)
    assert (cache.length, cache.nbytes) == (0, 0)
    key, context = normal(3, 2, 5, 4), normal(3, 2, 6, 4)
    real = torch.rand(3, 5, generator=torch.Generator().manual_seed(0)) < 0.7
    for layer in cache.layers:
        layer.own.append(key, key)
        layer.cross.append(context, context)
    assert torch.equal(cache.extend(real[:, :2]), real[:, :2])
    assert torch.equal(cache.extend(real[:, 2:]), real)
    assert cache.length == 5
    assert cache.nbytes == 2 * 2 * (3 * 2 * 5 * 4 + 3 * 2 * 6 * 4) * 8
    cache.reorder(torch.tensor([2, 2]))
    assert torch.equal(cache.real, real[[2, 2]])
    for layer in cache.layers:
        assert torch.equal(layer.own.keys, key[[2, 2]])
        assert torch.equal(layer.cross.keys, context[[2, 2]])
    cache.truncate(3)
    assert cache.length == 3
    assert [layer.own.length for layer in cache.layers] == [3, 3]
    assert [layer.cross.length for layer in cache.layers] == [6, 6]


# --- Malformed calls -----------------------------------------------------------------------------

KEY = torch.ones(2, 3, 4, 5)


def full(**options):
    cache = KeyValueCache(**options)
    cache.append(KEY, KEY)
    return cache


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: KeyValueCache(capacity=0), ValueError, ["capacity", "at least 1"]),
        (lambda: KeyValueCache(capacity=2.0), TypeError, ["capacity", "float"]),
        (lambda: KeyValueCache(fixed=1), TypeError, ["fixed", "True or False"]),
        (lambda: KeyValueCache().keys, RuntimeError, ["empty"]),
        (lambda: KeyValueCache().values, RuntimeError, ["empty"]),
        (lambda: KeyValueCache().append(KEY[0], KEY[0]), ValueError, ["key", "4 axes"]),
        (lambda: KeyValueCache().append(KEY.int(), KEY), TypeError, ["key", "int32"]),
        (
            lambda: KeyValueCache().append(KEY, KEY[:, :, :3]),
            ValueError,
            ["value", "(2, 3, 4, dv) as in key"],
        ),
        (lambda: full().append(KEY.double(), KEY), TypeError, ["key", "float64", "float32"]),
        (
            lambda: full().append(KEY[:1], KEY[:1]),
            ValueError,
            ["key", "(2, 3, L, 5) as in self.keys"],
        ),
        (
            lambda: full().append(KEY, KEY[..., :2]),
            ValueError,
            ["value", "(2, 3, 4, 5)", "self.values"],
        ),
        (lambda: full(fixed=True).append(KEY, KEY), ValueError, ["key", "fixed"]),
        (
            lambda: full().reorder(torch.tensor([2])),
            ValueError,
            ["rows", "at least 0 and a number below self.batch = 2"],
        ),
        (
            lambda: full().reorder(torch.tensor([-1])),
            ValueError,
            ["rows", "at least 0 and a number below self.batch = 2"],
        ),
        (lambda: full().reorder(torch.tensor([[0]])), ValueError, ["rows", "1 axis"]),
        (lambda: full().reorder(torch.tensor([0.0])), TypeError, ["rows", "integer"]),
        (lambda: full().reorder([0]), TypeError, ["rows", "list"]),
        (lambda: full().truncate(5), ValueError, ["length", "5", "at most self.length = 4"]),
        (lambda: full().truncate(-1), ValueError, ["length", "at least 0"]),
        (lambda: full().truncate(1.0), TypeError, ["length", "float"]),
        (lambda: WindowCache(0), ValueError, ["window", "at least 1"]),
        (lambda: WindowCache(2).truncate(1), ValueError, ["length", "0 to 0"]),
        (lambda: WindowCache(2).keys, RuntimeError, ["empty"]),
        (lambda: DecoderCache(0), ValueError, ["num_layers", "at least 1"]),
        (lambda: DecoderCache(1, capacity=0), ValueError, ["capacity", "at least 1"]),
        (lambda: DecoderCache(1).reorder(torch.tensor([0])), RuntimeError, ["empty"]),
    ],
)
def test_malformed(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.plain_types
def test_a_refused_chunk_changes_nothing():
    cache = full()
    with pytest.raises(ValueError, match="value"):
        cache.append(KEY, KEY[..., :2])
    assert cache.length == 4
    assert torch.equal(cache.keys, KEY)


@pytest.mark.plain_types
def test_rows_of_a_decoder_cache_must_agree():
    cache = DecoderCache(1)
    cache.extend(torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"real: .*\(2, L\) as in self.real, got shape \(3, 1\)"):
        cache.extend(torch.ones(3, 1, dtype=torch.bool))
