"""Hyper-connections: at first a pre-norm model, in values and gradients; later what the formula says; caches."""

import copy

import pytest
import torch
from torch import nn

from tested_transformer.functional.hyper_connections import hyper_connection
from tested_transformer.layers.hyper_connections import HyperConnection, use_hyper_connections
from tested_transformer.layers.residual import Residual
from tested_transformer.layers.stack import Stack
from tested_transformer.models.language_model import LanguageModel, LanguageModelConfig

F64 = torch.float64
EPS = torch.finfo(F64).eps
SIZES = {
    "d_model": 12, "num_heads": 2, "num_layers": 2, "norm_placement": "pre", "norm": "rms", "d_ff": 20,
    "positions": "rotary", "pad_id": None, "dropout": 0.0,
}  # fmt: skip


def tokens(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def models(num_streams, *, dynamic=True, moved=False):
    torch.manual_seed(0)
    plain = LanguageModel(LanguageModelConfig(11, **SIZES)).double().eval()
    hyper = copy.deepcopy(plain)
    hyper.layers = use_hyper_connections(hyper.layers, num_streams, dynamic=dynamic).double().eval()
    if moved:
        for name, weight in hyper.named_parameters():
            if "alpha" in name or "beta" in name:
                nn.init.normal_(weight, std=0.5)
    return plain, hyper


@pytest.mark.plain_types  # between its ends, a HyperStack gives its layers x with an axis of streams
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("num_streams", [1, 2, 4])
def test_a_new_model_is_pre_norm_in_logits_and_gradients(num_streams, dynamic):
    ids = torch.randint(11, (2, 7), generator=torch.Generator().manual_seed(1))
    plain, hyper = models(num_streams, dynamic=dynamic)
    found = []
    for model in (plain, hyper):
        logits = model(ids)
        logits.square().sum().backward()
        layer = model.layers[0]
        weights = layer.attention.query.weight, layer.feed_forward.up_proj.weight
        found.append((logits.detach(), *(weight.grad for weight in weights)))
    for got, wanted in zip(*found, strict=True):
        bound = 1e3 * EPS * float(wanted.abs().max())  # two layers of some hundred roundings
        torch.testing.assert_close(got, wanted, rtol=0, atol=bound)


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_connection_is_what_the_formula_says(dynamic):
    torch.manual_seed(0)
    made = HyperConnection(nn.LayerNorm(6), 6, 3, number=1, dynamic=dynamic).double()
    for weight in made.parameters():
        nn.init.normal_(weight)
    x, sublayer = tokens(2, 4, 3, 6), nn.Linear(6, 6, dtype=F64)
    alpha, beta = made.alpha_static, made.beta_static
    if dynamic:
        normed = made.weight_norm(x)
        alpha = alpha + made.alpha_scale * (normed @ made.alpha_dynamic).tanh()
        beta = beta + made.beta_scale * (normed @ made.beta_dynamic).tanh()
    wanted = hyper_connection(x, lambda h: sublayer(made.norm(h)), alpha, beta[..., 0])
    torch.testing.assert_close(made(x, sublayer), wanted)


def test_sublayer_k_reads_stream_k():
    for number in range(5):
        made = HyperConnection(nn.Identity(), 2, 3, number=number).double()
        x = tokens(1, 3, 2)
        torch.testing.assert_close(made.inputs(x), x[:, number % 3])


@torch.no_grad()
@pytest.mark.plain_types  # between its ends, a HyperStack gives its layers x with an axis of streams
@pytest.mark.parametrize("chunk", [1, 3])
def test_with_a_cache_in_chunks_as_in_one_pass(chunk):
    _, hyper = models(3, moved=True)
    ids, cache = (
        torch.randint(11, (2, 7), generator=torch.Generator().manual_seed(2)),
        hyper.new_cache(),
    )
    pieces = [hyper(piece, cache=cache) for piece in ids.split(chunk, 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), hyper(ids))


@pytest.mark.plain_types  # between its ends, a HyperStack gives its layers x with an axis of streams
def test_all_of_it_learns_after_one_step():
    """tanh(0) is 0, so the scales get their first gradient once the dynamic weights have moved."""
    _, hyper = models(2)
    optimizer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        hyper(torch.tensor([[1, 2, 3, 4]])).square().sum().backward()
        optimizer.step()
    for name, weight in hyper.layers.named_parameters():
        if "alpha" in name or "beta" in name:
            assert weight.grad.abs().sum() > 0, name


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: HyperConnection(nn.Identity(), 4, 0), "num_streams: expected at least 1"),
        (
            lambda: HyperConnection(nn.Identity(), 4, 2)(torch.zeros(1, 3, 4), nn.Identity()),
            "x: expected",
        ),
        (
            lambda: HyperConnection(nn.Identity(), 4, 2)(
                torch.zeros(1, 2, 4), lambda h: h[..., :1]
            ),
            "sublayer: expected an output",
        ),
        (
            lambda: hyper_connection(
                torch.zeros(2, 4), nn.Identity(), torch.zeros(2, 4), torch.zeros(2)
            ),
            "alpha: expected 3 columns, one more than there are streams",
        ),
        (
            lambda: use_hyper_connections(Stack([layer_with(Residual(nn.LayerNorm(4)))]), 2),
            "stack: expected pre-norm layers",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def layer_with(residual):
    layer = nn.Module()
    layer.residuals = nn.ModuleList([residual])
    return layer
