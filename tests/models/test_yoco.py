"""YOCO: the whole-model contract, one shared cache, its bytes, and a prefill that stops at the cache."""

from dataclasses import replace

import pytest
import torch

from same_numbers import shake
from tested_transformer.analysis.cache_sizes import CachedModel, cache_bytes
from tested_transformer.data import pad
from tested_transformer.generation.beam_search import beam_search
from tested_transformer.generation.decoding_state import CausalState
from tested_transformer.generation.generate import generate
from tested_transformer.generation.masked_state import MaskedCausalState
from tested_transformer.models.yoco import RetentionLayer, WindowLayer, Yoco, YocoConfig
from tested_transformer.specs.contract import contract
from tested_transformer.specs.judge import judge
from tested_transformer.specs.yoco.spec import YOCO

CONFIG = YocoConfig(
    13, d_model=24, num_heads=6, num_kv_heads=2, num_layers=4, d_ff=20, dropout=0.0, chunk_size=2,
    temperature=4.0,
)  # fmt: skip
KINDS = {"retention": {}, "window": {"window": 3}}
EACH = pytest.mark.parametrize("kind", KINDS)
IDS = torch.randint(1, 13, (2, 9), generator=torch.Generator().manual_seed(0))


def small(kind, seed=0, **changes):
    return shake(Yoco(replace(CONFIG, **KINDS[kind] | changes)), seed).double().eval()


def test_the_spec():
    verdict = judge(YOCO, Yoco)
    assert verdict.passed, verdict


@pytest.mark.slow
@EACH
@pytest.mark.parametrize("pad_id", [0, None])
@pytest.mark.plain_types
def test_the_contract_is_kept(kind, pad_id):
    report = contract(small(kind, pad_id=pad_id))
    assert report, report
    held = {each.name for each in report.results if each.outcome == "holds"}
    assert {"cached = uncached", "the cache follows its rows", "batch = single"} <= held, report
    assert {"cached = uncached, with padding", "position IDs have an effect"} <= held, report


# --- One cache ------------------------------------------------------------------------------------


@torch.no_grad()
@EACH
@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 9])
def test_in_chunks(kind, chunk):
    model, cache = small(kind), small(kind).new_cache(capacity=1)
    pieces = [model(part, cache=cache) for part in IDS.split(chunk, 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), model(IDS))


@torch.no_grad()
@EACH
def test_the_cache_grows_in_one_layer_alone(kind):
    """The bytes of the lower half stay, those of a token are a quarter of what four layers would take."""
    model, tokens = small(kind), []
    for length in (5, 9):
        cache = model.new_cache(capacity=length)
        model(IDS[:, :length], cache=cache)
        tokens.append(cache.nbytes)
        assert len(cache.layers) == 3  # two lower layers, and all the upper ones together
    sizes = CachedModel(4, 6, 4, kv_heads=2, caching=1)
    assert tokens[1] - tokens[0] == 2 * 4 * cache_bytes(sizes, item=8)  # 2 texts, 4 tokens more
    assert cache_bytes(replace(sizes, caching=None)) == 4 * cache_bytes(sizes)
    fixed = {"retention": 2 * 6 * 4 * 4, "window": 2 * 2 * 2 * 3 * 4}[kind]  # B H d d; B, K and V
    assert tokens[0] == 2 * cache_bytes(sizes, 5, item=8) + 2 * fixed * 8


def test_the_upper_layers_have_no_keys():
    model = small("retention")
    names = {name for name, _ in model.layers[2:].named_parameters() if "attention" in name}
    assert names == {
        f"{n}.attention.{part}.weight" for n in range(2) for part in ("query", "output")
    }
    assert [type(layer) for layer in model.layers[:2]] == [RetentionLayer] * 2
    assert [type(layer) for layer in small("window").layers[:2]] == [WindowLayer] * 2


def test_the_shared_matrices_begin_as_all_others_do():
    """Within sqrt(6 / (24 + 8)), as Glorot and Bengio have it; torch's own beginning would end at 0.2."""
    torch.manual_seed(0)
    model = Yoco(CONFIG)
    for again in (False, True):
        if again:
            torch.nn.init.constant_(model.shared.key.weight, 7.0)
            model.reset_parameters()
        largest = float(model.shared.key.weight.detach().abs().max())
        assert 0.3 < largest < (6 / 32) ** 0.5


@torch.no_grad()
@EACH
def test_the_upper_half_attends_to_every_token(kind):
    """The weights are those of the upper layers; the last token's are all above 0, also beyond a window."""
    _, weights = small(kind)(IDS, return_weights=True)
    assert [each.shape for each in weights] == [(2, 6, 9, 9)] * 2
    for each in weights:
        torch.testing.assert_close(each.sum(-1), torch.ones_like(each[..., 0]))
        assert bool((each[:, :, -1] > 0).all())


# --- A prefill that stops at the cache ------------------------------------------------------------


@torch.no_grad()
@EACH
@pytest.mark.parametrize("pieces", [(9,), (4, 5), (1, 7, 1)])
def test_prefill_is_the_full_computation(kind, pieces):
    model = small(kind)
    short, full = model.new_cache(), model.new_cache()
    for part in IDS.split(pieces, 1):
        found = model.prefill(part, cache=short)
        torch.testing.assert_close(found, model(part, cache=full)[:, -1])
    assert short.nbytes == full.nbytes
    more = torch.tensor([[3], [4]])
    torch.testing.assert_close(model(more, cache=short), model(more, cache=full))


@torch.no_grad()
@EACH
def test_prefill_with_padding(kind):
    prompts = pad([[5, 6, 7, 8], [9], [10, 11]], left=True, value=0)
    by_id, by_mask = small(kind), small(kind, pad_id=None)
    by_mask.load_state_dict(by_id.state_dict())
    wanted = torch.cat([by_id(torch.tensor([row]))[:, -1] for row in ([5, 6, 7, 8], [9], [10, 11])])
    torch.testing.assert_close(by_id.prefill(prompts, cache=by_id.new_cache()), wanted)
    found = by_mask.prefill(prompts, prompts != 0, cache=by_mask.new_cache())
    if (
        kind == "retention"
    ):  # without pad_id positions count padding, and rotations only see distances
        torch.testing.assert_close(found, wanted)


@torch.no_grad()
@EACH
def test_prefill_runs_the_upper_half_for_one_token(kind):
    model, lengths = small(kind), []
    for layer in model.layers:
        layer.feed_forward.register_forward_hook(lambda m, x, y: lengths.append(y.shape[1]))
    model.prefill(IDS, cache=model.new_cache())
    assert lengths == [9, 9, 1, 1]


# --- Generation -----------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("pad_id", [0, None])
def test_generation_with_and_without_a_cache(kind, pad_id):
    model = small(kind, pad_id=pad_id)
    prompts = pad([[5, 6, 7, 8], [9], [10, 11]], left=True, value=0)
    made = []
    for cache in (True, False):
        state = CausalState(model, cache=cache)
        if pad_id is None:
            state = MaskedCausalState(model, prompts != 0, cache=cache)
        made.append(generate(state, prompts, max_new=6, eos=None).tokens)
    assert torch.equal(*made)
    alone = generate(CausalState(model), torch.tensor([[10, 11]]), max_new=6, eos=None).tokens
    assert torch.equal(made[0][2:], alone)


@EACH
def test_beam_search_reorders_the_states(kind):
    model, start = small(kind), IDS[:, :4]
    found = [
        beam_search(CausalState(model, cache=cache), start, num_beams=3, max_new=4).tokens
        for cache in (True, False)
    ]
    assert torch.equal(*found)


@pytest.mark.plain_types
def test_bad_input_is_refused():
    for changes, message in (
        ({"num_layers": 3}, "num_layers: expected at least 2 and an even number, got 3"),
        ({"norm_placement": "post"}, 'norm_placement: expected "pre"'),
        ({"positions": "alibi"}, "positions: expected one of"),
        ({"window": 0}, "window: expected at least 1"),
        ({"temperature": 0.0}, "temperature: expected a number above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(CONFIG, **changes)
    model = small("retention")
    with pytest.raises(ValueError, match="ids: expected"):
        model(IDS + 100)
    with pytest.raises(ValueError, match="ids: expected .*at least 1"):
        model.prefill(IDS[:, :0], cache=model.new_cache())
    with torch.no_grad():
        cache = model.new_cache()
        model(IDS, cache=cache)
        with pytest.raises(ValueError, match="length: expected 0 or 9"):
            cache.truncate(5)
