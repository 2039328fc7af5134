"""Pages equal one piece: attention, models, beam search, rollback; blocks shared, copied and freed."""

import pytest
import torch
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tested_transformer import (
    BlockManager,
    BlockPool,
    CausalState,
    DecoderCache,
    LanguageModel,
    LanguageModelConfig,
    MultiHeadAttention,
    PagedCache,
    PoolExhausted,
    Transformer,
    TransformerConfig,
    attention,
    beam_search,
    judge,
    paged_attention,
    token_slots,
)
from tested_transformer.functional.paged import aligned_token_ids, gather_pages
from tested_transformer.layers.cache import AttentionCache
from tested_transformer.specs.cache.spec import CACHE
from tested_transformer.specs.paged.spec import BLOCK_TABLES, PAGED_ATTENTION

EPS = torch.finfo(torch.float64).eps


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def model(positions="rotary", pad_id=None, **changes):
    torch.manual_seed(4)
    config = LanguageModelConfig(
        23, d_model=12, num_heads=4, num_kv_heads=2, d_head=6, num_layers=2, positions=positions,
        max_length=40, pad_id=pad_id, dropout=0.0, **changes,
    )  # fmt: skip
    found = LanguageModel(config).eval().double()
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.copy_(0.4 * torch.randn_like(parameter))
    return found


IDS = torch.randint(3, 23, (2, 11), generator=torch.Generator().manual_seed(2))


class Store:
    """The pages of one layer as a store of chunks."""

    def __init__(self):
        self.cache = PagedCache(1, num_blocks=60, block_size=3)

    def append(self, key, value):
        return self.cache.layers[0].own.append(key, value)

    def reorder(self, rows):
        self.cache.layers[0].own.reorder(rows)


# --- The Specs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "right"),
    [(PAGED_ATTENTION, paged_attention), (BLOCK_TABLES, BlockManager), (CACHE, Store)],
    ids=lambda given: getattr(given, "name", getattr(given, "__name__", "")),
)
def test_right_implementations_pass(spec, right):
    verdict = judge(spec, right)
    assert verdict.passed, verdict


# --- Attention to pages ---------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("chunk", [1, 3])
def test_equal_to_torch_paged_attention(chunk):
    """Torch keeps pages (1, G, N P, d) and takes a table as a mask that flex_attention converts."""
    lengths, size, pages = [9, 4, 6], 4, 8
    theirs = PagedAttention(pages, size, 3, device="cpu")
    key_cache, value_cache = normal(2, 1, 2, pages * size, 5)
    position = torch.arange(12)
    for row in (2, 0, 1):  # not in the order of the batch, so that the table is not the identity
        theirs.reserve(torch.tensor(row), torch.tensor(lengths[row]))
        at = position[None, : lengths[row]]
        new = normal(2, 1, 2, lengths[row], 5, seed=row)
        theirs.assign(torch.tensor([row]), at, *new, key_cache, value_cache)
    query, ends = normal(3, 4, chunk, 5, seed=9), torch.tensor(lengths)

    def allowed(b, h, q, k):
        return k <= ends[b] - chunk + q

    mask = create_block_mask(allowed, 3, 1, chunk, 12, device="cpu", BLOCK_SIZE=(chunk, size))
    paged = theirs.convert_logical_block_mask(mask)
    wanted = flex_attention(query, key_cache, value_cache, block_mask=paged, enable_gqa=True)
    in_ours = (
        c[0].unflatten(1, (pages, size)).permute(1, 2, 0, 3) for c in (key_cache, value_cache)
    )
    table = theirs.page_table[:, :3].clamp(min=0)
    found = paged_attention(query, *in_ours, table, ends)
    # A value is at most 4, a score some 10 before the softmax: 2 (d + S + 10) roundings each side
    torch.testing.assert_close(found, wanted, rtol=0, atol=2 * 4 * (5 + 9 + 10) * EPS)


@pytest.mark.parametrize("length", range(1, 34))
def test_every_residue_of_a_block_of_16(length):
    """Bitwise: the same keys in the same order go through the same front door."""
    key, value, query = normal(3, 1, 2, length, 6, seed=length)
    count = -(-length // 16)
    table = torch.randperm(5, generator=torch.Generator().manual_seed(length))[None, :count]
    pages = [normal(5, 16, 2, 6, seed=s) for s in (7, 8)]
    slots = token_slots(table, torch.arange(length)[None], 16)[0]
    for memory, new in zip(pages, (key, value), strict=True):
        memory.flatten(0, 1)[slots] = new[0].transpose(0, 1)
    found = paged_attention(query[:, :, -1:], *pages, table, torch.tensor([length]))
    wanted = attention(
        query[:, :, -1:], key, value, mask=torch.ones(1, length, dtype=torch.bool), causal=True
    )
    assert torch.equal(found, wanted)


def test_options_and_weights():
    lengths, table = torch.tensor([3, 2]), torch.tensor([[1, 0], [2, 2]])
    query, pages = normal(2, 2, 1, 4), normal(3, 2, 2, 4, seed=1)
    _, weights = paged_attention(
        query, pages, pages, table, lengths, return_weights=True, scale=2.0
    )
    assert weights.shape == (2, 2, 1, 3)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 1, dtype=torch.float64))
    assert not weights[1, :, :, 0].any()  # the shorter one stands on the right
    _, last = paged_attention(query, pages, pages, table, lengths, return_weights=True, window=1)
    assert (last[..., -1] == 1).all()


# --- The cache in models --------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "none", "rotary", "alibi"])
@pytest.mark.parametrize("chunk", [1, 3, 4, 5])
@pytest.mark.parametrize("pad_id", [None, 0])
def test_in_chunks(positions, chunk, pad_id):
    ours = model(positions, pad_id)
    cache = PagedCache(2, num_blocks=6, block_size=4)
    found = torch.cat([ours(ids, cache=cache) for ids in IDS.split(chunk, dim=1)], dim=1)
    torch.testing.assert_close(found, ours(IDS))
    assert cache.length == 11
    assert not cache.manager.pool.free


@torch.no_grad()
def test_with_a_window():
    ours, cache = model(window=3), PagedCache(2, num_blocks=6, block_size=4)
    found = torch.cat([ours(ids, cache=cache) for ids in IDS.split(2, dim=1)], dim=1)
    torch.testing.assert_close(found, ours(IDS))


@torch.no_grad()
def test_sequences_of_several_lengths():
    """Padded on the left in every chunk, and no padding is stored."""
    ours, cache = model("learned", 0), PagedCache(2, num_blocks=7, block_size=4)
    first = torch.tensor([[0, 0, 5, 6, 7], [8, 9, 10, 11, 12], [0, 0, 0, 0, 13]])
    second = torch.tensor([[14, 15], [0, 16], [17, 18]])
    ours(first, cache=cache)
    found = ours(second, cache=cache)[:, -1]
    assert cache.lengths == [5, 6, 3]
    assert len(cache.manager.pool.free) == 7 - (2 + 2 + 1)
    for row, ids in enumerate(zip(first, second, strict=True)):
        ids = torch.cat(ids)
        torch.testing.assert_close(found[row], ours(ids[ids != 0][None])[0, -1])


@torch.no_grad()
def test_beam_search_shares_blocks():
    """The same beams as with a contiguous cache, in less memory than a copy per beam."""
    ours, cache = model(), PagedCache(2, num_blocks=40, block_size=2)
    state = CausalState(ours)
    state.cache, least = cache, [40]
    plain = cache.manager.grow

    def counted(tables, new):
        plain(tables, new)
        least[0] = min(least[0], len(cache.manager.pool.free))

    cache.manager.grow = counted
    found = beam_search(state, IDS[:, :8], num_beams=3, max_new=4, eos=1)
    wanted = beam_search(CausalState(ours), IDS[:, :8], num_beams=3, max_new=4, eos=1)
    assert torch.equal(found.tokens, wanted.tokens)
    torch.testing.assert_close(found.scores, wanted.scores)
    assert 40 - least[0] <= 2 * (4 + 3 * 2)  # prompts once, and two blocks per beam; not 2 * 3 * 6


@torch.no_grad()
@pytest.mark.parametrize("length", range(1, 11))
def test_rolled_back_it_goes_on_as_if_nothing_had_been(length):
    ours, cache = model(), PagedCache(2, num_blocks=8, block_size=4)
    ours(IDS, cache=cache)
    cache.truncate(length)
    assert cache.lengths == [length] * 2
    assert len(cache.manager.pool.free) == 8 - 2 * -(-length // 4)
    found = ours(IDS[:, length:].flip(1), cache=cache)
    other = torch.cat([IDS[:, :length], IDS[:, length:].flip(1)], dim=1)
    torch.testing.assert_close(found, ours(other)[:, length:])


@torch.no_grad()
def test_a_shared_prefix_is_not_fed_again():
    ours, cache = model(pad_id=0), PagedCache(2, num_blocks=8, block_size=4)
    first, second = IDS[0].tolist(), [*IDS[0, :9].tolist(), 3, 4]
    assert cache.add(first) == 0
    ours(IDS[:1], cache=cache)
    cache.manager.remember(cache.tables[0], first)
    assert cache.add(second) == 8
    assert cache.tables[1].blocks == cache.tables[0].blocks[:2]
    chunk = torch.tensor([[0, 0, 5], [second[8], 3, 4]])
    found = ours(chunk, cache=cache)[:, -1]
    assert len(cache.manager.pool.free) == 8 - 4  # 3 and 3, of which 2 are shared
    torch.testing.assert_close(found[0], ours(torch.tensor([[*first, 5]]))[0, -1])
    torch.testing.assert_close(found[1], ours(torch.tensor([second]))[0, -1])


@torch.no_grad()
def test_in_an_encoder_decoder():
    config = TransformerConfig(
        11,
        11,
        d_model=8,
        num_heads=2,
        d_ff=16,
        num_encoder_layers=1,
        num_decoder_layers=2,
        dropout=0.0,
    )
    torch.manual_seed(0)
    ours, ids, memory = Transformer(config).double().eval(), IDS[:, :6] % 8 + 3, normal(2, 5, 8)
    cache = PagedCache(2, num_blocks=8, block_size=2)
    found = torch.cat([ours.decode(part, memory, cache=cache) for part in ids.split(2, 1)], 1)
    torch.testing.assert_close(found, ours.decode(ids, memory))
    cache.reorder(torch.tensor([1]))
    again = ours.decode(ids[1:, :1], memory[1:], cache=cache)
    wanted = ours.decode(torch.cat([ids[1:], ids[1:, :1]], 1), memory[1:])
    torch.testing.assert_close(again, wanted[:, -1:])


@torch.no_grad()
def test_one_layer_alone():
    """Without a model, a layer's append finds room by itself."""
    torch.manual_seed(1)
    layer, x = MultiHeadAttention(12, 3).double(), normal(2, 7, 12)
    own = PagedCache(1, num_blocks=6, block_size=3).layers[0].own
    assert isinstance(own, AttentionCache)
    assert own.num_keys(4) == 4
    found = torch.cat([layer(part, causal=True, cache=own) for part in x.split(3, 1)], 1)
    torch.testing.assert_close(found, layer(x, causal=True))
    assert (own.length, own.num_keys(0)) == (7, 7)
    assert own.nbytes == 2 * 6 * 3 * 12 * 8  # keys and values: N P D, float64


def test_memory_is_that_of_the_pool():
    ours = model()
    cache, contiguous = PagedCache(2, num_blocks=5, block_size=4), DecoderCache(2, capacity=20)
    with torch.no_grad():
        ours(IDS[:1], cache=cache)
        ours(IDS[:1], cache=contiguous)
    assert cache.nbytes == contiguous.nbytes
    assert cache.batch == 1


# --- Errors ---------------------------------------------------------------------------------------


@torch.no_grad()
def test_an_exhausted_pool_says_so_and_nothing_has_changed():
    ours, cache = model(), PagedCache(2, num_blocks=5, block_size=4)
    ours(IDS[:, :8], cache=cache)
    tables = [list(table.blocks) for table in cache.tables]
    with pytest.raises(PoolExhausted, match="2 blocks of 4 tokens needed, 1 of 5 blocks are free"):
        ours(IDS[:, 8:], cache=cache)
    assert [table.blocks for table in cache.tables] == tables
    assert cache.lengths == [8, 8]
    cache.reorder(torch.tensor([0]))
    found = ours(IDS[:1, 8:], cache=cache)
    torch.testing.assert_close(found, ours(IDS[:1])[:, 8:])
    with pytest.raises(PoolExhausted, match="3 blocks of 4 tokens needed"):
        PagedCache(1, num_blocks=2, block_size=4).extend(torch.ones(1, 9, dtype=torch.bool))


def test_blocks_for_a_copy_are_counted_exactly():
    manager = BlockManager(4, 4, copy=lambda old, new: None)
    one = manager.start()
    manager.grow([one], [6])
    two = manager.fork(one)
    assert manager.num_needed([one], [1]) == manager.num_needed([two], [1]) == 1
    assert (
        manager.num_needed([one, two], [1, 1]) == 1
    )  # the second to write is the only reader left
    assert manager.num_needed([one, two], [1, 0]) == 1
    assert manager.num_needed([one, two], [3, 3]) == 3
    manager.grow([one, two], [1, 1])
    assert one.blocks[0] == two.blocks[0] != one.blocks[1]
    assert len(manager.pool.free) == 1


def test_a_block_is_freed_once():
    pool = BlockPool(2)
    block = pool.allocate()
    pool.share(block)
    assert not pool.release(block)
    assert pool.release(block)
    for action in (pool.release, pool.share):
        with pytest.raises(ValueError, match=f"block: expected a block in use, got {block}"):
            action(block)
    with pytest.raises(ValueError, match="block: expected a block in use, got 7"):
        pool.release(7)
    assert [pool.allocate(), pool.allocate()] == [0, 1]
    with pytest.raises(PoolExhausted, match="all 2 blocks are in use"):
        pool.allocate()


@pytest.mark.plain_types
def test_bad_input_is_refused():
    pages, query = normal(3, 4, 2, 5), normal(1, 2, 1, 5)
    table, length = torch.tensor([[0, 2]]), torch.tensor([8])
    with pytest.raises(
        ValueError, match="block_table: expected at least 0 and a number below N = 3"
    ):
        paged_attention(query, pages, pages, table + 1, length)
    with pytest.raises(ValueError, match="token_ids: expected tokens below 8"):
        paged_attention(query, pages, pages, table, length + 1)
    with pytest.raises(ValueError, match="slots: expected"):
        gather_pages(pages, torch.zeros(3, dtype=torch.long))
    with pytest.raises(TypeError, match="lengths: expected"):
        aligned_token_ids(torch.ones(2), 3)
    cache = PagedCache(2, num_blocks=4, block_size=4)
    with pytest.raises(ValueError, match="real: expected it on the left only, got padding after"):
        cache.extend(torch.tensor([[True, False]]))
    with pytest.raises(RuntimeError, match="the cache is empty"):
        cache.reorder(torch.tensor([0]))
    with pytest.raises(ValueError, match="key: expected no gradient"):
        cache.layers[0].own.append(*normal(2, 1, 2, 3, 4).requires_grad_())
    cache.extend(torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="key: expected"):
        cache.layers[0].own.append(*normal(2, 1, 2, 2, 4))  # two tokens, where three were announced
    with pytest.raises(ValueError, match="num_blocks: expected at least 1"):
        PagedCache(2, num_blocks=0)
    with pytest.raises(ValueError, match="length: expected at most 3, got 4"):
        cache.manager.truncate(cache.tables[0], 4)
