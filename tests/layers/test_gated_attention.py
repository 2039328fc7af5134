"""Gated attention: equal to Qwen3-Next's with copied weights, in values and gradients; what gates do; caches."""

import pytest
import torch

from tested_transformer.functional.gated_heads import gated_heads
from tested_transformer.layers.cache import KeyValueCache
from tested_transformer.layers.gated_attention import GatedAttention
from tested_transformer.layers.multi_head import MultiHeadAttention
from tested_transformer.layers.qk_norm import QKNormAttention
from tested_transformer.positions.rotary import RotaryPositions

EPS = torch.finfo(torch.float32).eps


class QwenAttention(GatedAttention, QKNormAttention):
    """A gate, and norms of queries and keys."""


def test_equal_to_qwen3_next_in_values_and_gradients():
    modeling = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    config = modeling.Qwen3NextConfig(
        hidden_size=12, num_attention_heads=4, num_key_value_heads=2, head_dim=8, attention_bias=False,
        max_position_embeddings=20, attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    )  # fmt: skip
    torch.manual_seed(0)
    positions = RotaryPositions(8, layout="halves", rotary_dim=4)
    ours = QwenAttention(12, 4, num_kv_heads=2, d_head=8, bias=False, positions=positions)
    theirs = modeling.Qwen3NextAttention(config, 0)
    copy_weights(ours, theirs)
    ours.query_norm.eps = ours.key_norm.eps = config.rms_norm_eps
    x = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(1))
    mask = torch.full((7, 7), -torch.inf).triu(1)[None, None]
    rotation = modeling.Qwen3NextRotaryEmbedding(config)(x, torch.arange(7)[None])
    found = []
    for call in (lambda x: ours(x, causal=True), lambda x: theirs(x, rotation, mask)[0]):
        own = x.clone().requires_grad_()
        output = call(own)
        output.square().sum().backward()
        found.append([output.detach(), own.grad])
    rows = theirs.q_proj.weight.grad.unflatten(0, (4, 2, 8))
    found[0] += [ours.query.weight.grad, ours.gate.weight.grad]
    found[1] += [rows[:, 0].flatten(0, 1), rows[:, 1].flatten(0, 1)]
    for got, wanted in zip(*found, strict=True):
        largest = float(wanted.abs().max())
        assert largest > 0
        torch.testing.assert_close(got, wanted, rtol=0, atol=2 * 80 * EPS * largest)


@torch.no_grad()
def copy_weights(ours, theirs):
    """q_proj holds, head by head, d rows of the query and then d rows of the gate; norms are stored minus 1."""
    rows = (part.weight.unflatten(0, (4, 8)) for part in (ours.query, ours.gate))
    theirs.q_proj.weight.copy_(torch.stack(tuple(rows), 1).flatten(0, 2))
    for name, part in (("k", ours.key), ("v", ours.value), ("o", ours.output)):
        getattr(theirs, f"{name}_proj").weight.copy_(part.weight)
    for name in ("query", "key"):
        norm = getattr(ours, f"{name}_norm")
        norm.weight.normal_()
        getattr(theirs, f"{name[0]}_norm").weight.copy_(norm.weight - 1)


@torch.no_grad()
def test_an_open_gate_is_multi_head_attention_and_a_closed_one_returns_nothing():
    torch.manual_seed(0)
    ours, x = GatedAttention(12, 3), torch.randn(2, 5, 12)
    plain = MultiHeadAttention(12, 3)
    plain.load_state_dict({n: w for n, w in ours.state_dict().items() if not n.startswith("gate")})
    ours.gate.weight.zero_()
    ours.gate.bias.fill_(40.0)  # the sigmoid is 1 in float32
    torch.testing.assert_close(ours(x, causal=True), plain(x, causal=True), rtol=0, atol=0)
    ours.gate.bias.fill_(-200.0)
    torch.testing.assert_close(ours(x), ours.output.bias.expand(2, 5, 12), rtol=0, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("chunk", [1, 3])
def test_with_a_cache_in_chunks_as_in_one_pass(chunk):
    torch.manual_seed(0)
    ours, x, cache = GatedAttention(12, 3).double(), torch.randn(2, 7, 12).double(), KeyValueCache()
    pieces = [ours(piece, causal=True, cache=cache) for piece in x.split(chunk, 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), ours(x, causal=True))


@torch.no_grad()
def test_the_layer_gates_as_the_formula_says():
    torch.manual_seed(0)
    ours, x = GatedAttention(8, 2, bias=False).double(), torch.randn(1, 4, 8).double()
    plain = MultiHeadAttention(8, 2, bias=False).double()
    plain.load_state_dict({n: w for n, w in ours.state_dict().items() if not n.startswith("gate")})
    plain.output = torch.nn.Identity()
    wanted = gated_heads(plain(x), x, ours.gate.weight, ours.output.weight)
    torch.testing.assert_close(ours(x), wanted)


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="x: expected"):
        GatedAttention(12, 3)(torch.zeros(1, 2, 11))
    with pytest.raises(ValueError, match="gate: expected"):
        gated_heads(torch.zeros(2, 4), torch.zeros(2, 3), torch.zeros(4, 4), torch.zeros(3, 4))
