"""DCMHA: torch's attention where nothing is composed, loops where all is; causal, cached, padded."""

import pytest
import torch
from torch import nn

from tested_transformer import reference
from tested_transformer.functional.composed_heads import compose_heads
from tested_transformer.layers.cache import KeyValueCache
from tested_transformer.layers.composed_attention import ComposedAttention, HeadMixingWeights
from tested_transformer.positions.rotary import RotaryPositions

F64 = torch.float64
EPS = torch.finfo(F64).eps


def tokens(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def layer(seed=0, *, composed=True, **options):
    torch.manual_seed(seed)
    made = ComposedAttention(12, 3, **options).double().eval()
    if composed:
        for name, weight in made.named_parameters():
            if "sides" in name or "base" in name:
                nn.init.normal_(weight, std=0.5)
    return made


@pytest.mark.parametrize("causal", [False, True])
def test_a_new_layer_is_torchs_multi_head_attention_in_values_and_gradients(causal):
    ours = layer(composed=False)
    theirs = nn.MultiheadAttention(12, 3, batch_first=True, dtype=F64)
    with torch.no_grad():
        parts = [ours.query, ours.key, ours.value]
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.load_state_dict(ours.output.state_dict())
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    found = []
    for call in (
        lambda x: ours(x, causal=causal),
        lambda x: theirs(x, x, x, attn_mask=mask, need_weights=False)[0],
    ):
        x = tokens(2, 5, 12, seed=1).requires_grad_()
        output = call(x)
        output.square().sum().backward()
        found.append((output.detach(), x.grad))
    weights = ours.value.weight.grad, theirs.in_proj_weight.grad[-12:]
    for got, wanted in (*zip(*found, strict=True), weights):
        torch.testing.assert_close(
            got, wanted, rtol=0, atol=64 * 17 * EPS * float(wanted.abs().max())
        )


@torch.no_grad()
@pytest.mark.parametrize("causal", [False, True])
def test_equal_to_the_loops(causal):
    made, x = layer(), tokens(2, 4, 12, seed=2)
    query, key, value = (
        part(x).unflatten(-1, (3, 4)).transpose(1, 2).numpy()
        for part in (made.query, made.key, made.value)
    )
    compositions = [
        [base, *own(x), *other(x)]
        for base, own, other in zip(made.base, made.query_sides, made.key_sides, strict=True)
    ]
    arrays = [[part.numpy() for part in parts] for parts in compositions]
    heads = reference.composed_attention(query, key, value, *arrays, causal=causal)
    wanted = made.output(torch.from_numpy(heads).transpose(1, 2).flatten(2))
    bound = 1e3 * EPS * float(wanted.abs().max())  # some hundred operations on numbers of this size
    torch.testing.assert_close(made(x, causal=causal), wanted, rtol=0, atol=bound)


@torch.no_grad()
@pytest.mark.parametrize("chunk", [1, 2, 3])
@pytest.mark.parametrize("rotary", [False, True])
def test_with_a_cache_in_chunks_as_in_one_pass(chunk, rotary):
    made = layer(positions=RotaryPositions(4) if rotary else None)
    x, cache = tokens(2, 7, 12, seed=3), KeyValueCache()
    pieces = [made(piece, causal=True, cache=cache) for piece in x.split(chunk, 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), made(x, causal=True))
    assert cache.values.shape[-1] == 4 + 2 * (2 * made.rank + 1)


@torch.no_grad()
def test_padding_left_and_right_and_the_future_change_nothing():
    made, x, filled = layer(), tokens(1, 4, 12), tokens(1, 2, 12, seed=5)
    alone = made(x, causal=True)
    left = torch.tensor([False] * 2 + [True] * 4)[None, None, None]
    right = torch.tensor([True] * 4 + [False] * 2)[None, None, None]
    torch.testing.assert_close(
        made(torch.cat((filled, x), 1), causal=True, mask=left)[:, 2:], alone
    )
    torch.testing.assert_close(
        made(torch.cat((x, filled), 1), causal=True, mask=right)[:, :4], alone
    )
    torch.testing.assert_close(made(torch.cat((x, filled), 1), causal=True)[:, :4], alone)


@torch.no_grad()
def test_composed_weights_need_not_sum_to_1_and_none_is_above_the_diagonal():
    made, x = layer(), tokens(1, 4, 12)
    _, weights = made(x, causal=True, return_weights=True)
    assert (weights.sum(-1) - 1).abs().max() > 0.1
    assert (weights < 0).any()
    assert not weights.triu(1).any()


def test_down_is_normalized_over_the_heads_and_gates_are_bounded():
    torch.manual_seed(0)
    made = HeadMixingWeights(12, 3).double()
    nn.init.normal_(made.gate.weight, std=5.0)
    x = tokens(2, 4, 12)
    down, up, gate = made(x)
    before = made.mixing(nn.functional.gelu(made.hidden(x)))[..., :6].unflatten(-1, (2, 3))
    square = before.square().mean(-1, keepdim=True)
    torch.testing.assert_close(down, before / (square + made.norm_eps).sqrt())
    assert not up.any()
    assert gate.abs().max() <= 1


def test_all_of_it_learns_after_one_step():
    """At first up is 0, so down gets its first gradient once up has moved."""
    made = layer(composed=False).train()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        made(tokens(2, 5, 12), causal=True).square().sum().backward()
        optimizer.step()
    # a softmax does not change if a constant is added to all scores, and so the key's bias has no part
    named = made.named_parameters()
    assert all(p.grad.abs().sum() > 0 for name, p in named if name != "key.bias")


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ComposedAttention(12, 5), "num_heads: expected at least 1 and a number that divides"),
        (lambda: ComposedAttention(12, 3, rank=0), "rank: expected at least 1"),
        (lambda: layer()(tokens(1, 2, 11)), "x: expected"),
        (
            lambda: compose_heads(
                torch.zeros(1, 2, 3, 4), torch.eye(3), *[torch.zeros(1, 3, 1, 2)] * 2,
                torch.zeros(1, 3, 2), *[torch.zeros(1, 4, 1, 2)] * 2, torch.zeros(1, 4, 2),
            ),
            "base: expected",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
