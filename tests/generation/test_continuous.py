"""Continuous batching: the tokens of each request alone, in fewer steps, whoever joins and leaves."""

import pytest
import torch

from tested_transformer import (
    CausalState,
    ContinuousBatch,
    LanguageModel,
    LanguageModelConfig,
    PagedCache,
    PoolExhausted,
    Request,
    Sampling,
    generate,
)


def model(positions="rotary", pad_id=None, **changes):
    torch.manual_seed(4)
    config = LanguageModelConfig(
        23, d_model=12, num_heads=2, num_layers=2, positions=positions, max_length=60, pad_id=pad_id,
        dropout=0.0, norm_placement="pre", **changes,
    )  # fmt: skip
    found = LanguageModel(config).eval().double()
    with torch.no_grad():
        for parameter in found.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter))
        found.output.weight[0] = 0.0  # never the largest logit: padding is not generated
    return found


def requests(seed=1, count=11, common=8, **options):
    """Prompts of 1 to 19 tokens, of which a third begin alike, for 1 to 13 new tokens."""
    random = torch.Generator().manual_seed(seed)

    def number(low, high):
        return int(torch.randint(low, high, (1,), generator=random))

    prefix = [number(3, 23) for _ in range(common)]
    found = []
    for i in range(count):
        prompt = [number(3, 23) for _ in range(number(1, 12))]
        prompt = prefix + prompt if i % 3 == 0 else prompt
        found.append(Request(prompt, max_new=number(1, 14), arrival=number(0, 9), **options))
    return found


def alone(ours, request, **options):
    state, start = CausalState(ours), torch.tensor([request.prompt])
    return generate(state, start, max_new=request.max_new, **options).tokens[0].tolist()


def batch(ours, *, num_blocks=60, block_size=4, max_batch=4, **options):
    cache = PagedCache(len(ours.layers), num_blocks=num_blocks, block_size=block_size)
    return ContinuousBatch(ours, cache, max_batch=max_batch, **options)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "none", "rotary", "alibi"])
@pytest.mark.parametrize("pad_id", [None, 0])
@pytest.mark.parametrize(
    "num_blocks", [60, 9]
)  # enough for all, and so few that some must wait again
def test_as_each_request_alone(positions, pad_id, num_blocks):
    ours, given = model(positions, pad_id), requests()
    wanted = [alone(ours, request) for request in given]
    assert len({token for tokens in wanted for token in tokens}) >= 5
    server = batch(ours, num_blocks=num_blocks)
    assert server.run(given) == wanted
    assert len(server.cache.manager.pool.free) == num_blocks
    assert not server.cache.manager.known


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_other_blocks_and_requests(seed, block_size):
    ours, given = model(), requests(seed)
    found = batch(ours, block_size=block_size, num_blocks=240 // block_size).run(given)
    assert found == [alone(ours, request) for request in given]


def test_equal_to_transformers():
    """A Llama of transformers, whose own generate continues each prompt alone."""
    copies = pytest.importorskip("hf_copies")
    theirs = copies.small_llama().eval()
    ours = copies.loaded(theirs).eval()
    size, given = theirs.config.vocab_size, requests(common=4)
    for request in given:
        request.prompt = [token % size for token in request.prompt]
    found = batch(ours, eos=None).run(given)
    for request, tokens in zip(given, found, strict=True):
        ids = torch.tensor([request.prompt])
        options = {"max_new_tokens": request.max_new, "do_sample": False, "eos_token_id": None}
        wanted = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options
        )
        assert tokens == wanted[0, len(request.prompt) :].tolist()


def test_fewer_steps_than_static_batches():
    """A row is never empty while a request waits: the bound is that of a busy server."""
    ours, given = (
        model(),
        [Request([3 + i], max_new=n) for i, n in enumerate((9, 1, 2, 1, 9, 1, 2, 7))],
    )
    server = batch(ours, max_batch=2, eos=None)
    server.run(given)
    longest = [max(r.max_new for r in given[i : i + 2]) for i in range(0, 8, 2)]
    total = sum(request.max_new for request in given)
    assert sum(longest) == 9 + 2 + 9 + 7
    assert total / 2 <= server.num_steps <= total / 2 + 9 < sum(longest)
    assert server.num_steps == 19


def test_a_request_ends_at_eos():
    ours = model()
    for request in requests():
        request.max_new, request.arrival = 13, 0
        free = alone(ours, request, eos=None)
        eos = free[4]
        (found,) = batch(ours, eos=eos).run([request])
        assert found == free[: free.index(eos) + 1]


def test_sampling_with_a_generator_of_its_own():
    """Whoever is in the batch, a request's samples are its own."""
    ours = model()
    for num_blocks in (60, 9):
        given = requests()
        for seed, request in enumerate(given):
            random = torch.Generator().manual_seed(seed)
            request.sampling = Sampling(temperature=0.8, top_k=9, generator=random)
        found = batch(ours, num_blocks=num_blocks).run(given)
        for seed, (request, tokens) in enumerate(zip(given, found, strict=True)):
            random = torch.Generator().manual_seed(seed)
            sampling = Sampling(temperature=0.8, top_k=9, generator=random)
            assert tokens == alone(ours, request, sampling=sampling)


def test_a_shared_prefix_is_fed_once():
    ours, fed = model(), []
    prefix = list(range(3, 15))
    given = [Request([*prefix, 15 + i], max_new=3, arrival=i) for i in range(3)]
    server = batch(ours, eos=None)
    plain = server._new

    def counted():
        fed.append(plain())
        return plain()

    server._new = counted
    server.run(given)
    assert max(new[0] for new in fed) == 13
    assert all(
        new <= 1 for each in fed if len(each) > 1 for new in each
    )  # 12 of 13 tokens are there


def test_nobody_joins_before_it_arrives():
    ours, late = model(), Request([5], max_new=2, arrival=6)
    server = batch(ours, eos=None)
    server.run([late, Request([6], max_new=2)])
    assert server.num_steps == 8


def test_a_request_that_no_pool_can_hold():
    with pytest.raises(PoolExhausted, match="needed, 0 of 2 blocks are free"):
        batch(model(), num_blocks=2, eos=None).run([Request([5] * 7, max_new=9)])


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="prompt: expected at least one token"):
        Request([], max_new=2)
    with pytest.raises(ValueError, match="max_new: expected at least 1, got 0"):
        Request([3], max_new=0)
    with pytest.raises(ValueError, match="max_batch: expected at least 1"):
        batch(model(), max_batch=0)
    with pytest.raises(TypeError, match="cache: expected"):
        ContinuousBatch(model(), model().new_cache(), max_batch=2)
