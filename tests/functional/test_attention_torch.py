"""attention() inside torch's machinery: export, torch.func, autocast, meta; and at the ends of numbers."""

import sys

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from tested_transformer import BackendError, attention, packed_attention, window_mask
from tested_transformer.functional.backends import BACKENDS

pytestmark = pytest.mark.plain_types  # a symbolic size is no int to a checker of types

ON_CPU = ["auto", *sorted({*BACKENDS} - {"flash"})]  # tests/gpu has flash
each = pytest.mark.parametrize("backend", ON_CPU)


def tensors(*, dtype=torch.float32, queries=5):
    """Random query (2 4 L 8), key (2 4 7 8), value (2 4 7 6)."""
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 4, queries, 8), (2, 4, 7, 8), (2, 4, 7, 6)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def bound(dtype, size):
    """Two roundings of the output, and the softmax's own error in float32."""
    return (torch.finfo(dtype).eps + 64 * torch.finfo(torch.float32).eps) * size


# --- The ends of numbers --------------------------------------------------------------------------


@each
@pytest.mark.parametrize("window", [12, sys.maxsize, 2**63, 2**64, 10**19])
def test_a_window_wider_than_all_places_hides_nothing(backend, window):
    query, key, value = tensors()
    everything = attention(query, key, value, backend="plain")
    ours = attention(query, key, value, window=window, backend=backend)
    torch.testing.assert_close(ours, everything)
    assert window_mask(5, 7, window=window).all()
    packed = [t[0].transpose(0, 1) for t in (query, key, value)]
    starts = {"cu_seqlens": torch.tensor([0, 5]), "cu_seqlens_k": torch.tensor([0, 7])}
    ours = packed_attention(*packed, **starts, window=window, backend=backend)
    torch.testing.assert_close(ours.transpose(0, 1), everything[0])


@each
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("slopes", [False, True])
@pytest.mark.parametrize("start", [100.0, 70_000.0])
def test_a_wide_bias_is_not_rounded_to_the_querys_dtype(backend, dtype, slopes, start):
    """Scores in float32 err by eps x their size, and a weight by as much as its score."""
    query, key, value = tensors(dtype=dtype)
    bias = start + 3 * torch.rand(5, 7, generator=torch.Generator().manual_seed(1))
    options = {"alibi_slopes": torch.full((4,), 40.0)} if slopes else {}
    ours = attention(query, key, value, bias=bias, **options, backend=backend)
    exact = [tensor.double() for tensor in (query, key, value)]
    options = {name: tensor.double() for name, tensor in options.items()}
    truth = attention(*exact, bias=bias.double(), **options, backend="plain")
    assert ours.dtype == dtype
    scores = 4 * torch.finfo(torch.float32).eps * (start + 3)
    largest = float(value.abs().max())
    assert float((ours - truth).abs().max()) <= bound(dtype, largest) + scores * largest


@each
def test_a_bias_wider_than_float32_is_served(backend):
    query, key, value = tensors()
    bias = torch.rand(5, 7, dtype=torch.float64)
    ours = attention(query, key, value, bias=bias, backend=backend)
    torch.testing.assert_close(ours, attention(query, key, value, bias=bias.float()))


# --- Export ---------------------------------------------------------------------------------------


class Causal(torch.nn.Module):
    def __init__(self, backend, window=None):
        super().__init__()
        self.options = {"causal": True, "window": window, "backend": backend}

    def forward(self, query, key, value):
        return attention(query, key, value, **self.options)


@each
@pytest.mark.parametrize(("strict", "window"), [(False, None), (False, 2**63), (True, None)])
def test_exports_with_dynamic_sizes(backend, strict, window):
    batch, length, keys = (torch.export.Dim(name) for name in ("batch", "length", "keys"))
    dynamic = {0: batch, 2: length}, {0: batch, 2: keys}, {0: batch, 2: keys}
    layer, inputs = Causal(backend, window), tuple(tensors())
    if backend == "tiled":
        with pytest.raises(Exception, match=r'"tiled": it cannot be exported'):
            torch.export.export(layer, inputs, dynamic_shapes=dynamic, strict=strict)
        return
    program = torch.export.export(layer, inputs, dynamic_shapes=dynamic, strict=strict).module()
    for queries in (1, 3, 7, 9):  # 7 is as many as keys: SDPA's own is_causal would be right
        others = [tensor[:1] for tensor in tensors(queries=queries)]
        torch.testing.assert_close(program(*others), layer(*others))


@pytest.mark.parametrize("backend", ["auto", "plain", "fused"])
def test_traces_with_symbolic_sizes(backend):
    layer = Causal(backend)
    traced = make_fx(lambda q, k, v: layer(q, k, v), tracing_mode="symbolic")(*tensors())
    others = tensors(queries=3)
    torch.testing.assert_close(traced(*others), layer(*others))


@each
def test_compiles_with_dynamic_sizes(backend):
    compiled = torch.compile(Causal(backend), backend="eager", fullgraph=True, dynamic=True)
    for queries in (5, 7, 3):
        inputs = tensors(queries=queries)
        torch.testing.assert_close(compiled(*inputs), Causal(backend)(*inputs))


# --- torch.func and second derivatives ------------------------------------------------------------


def transformed(backend):
    """What torch.func makes of attention, by name."""
    query, key, value = tensors(dtype=torch.float64)

    def answer(query):
        return attention(query, key, value, causal=True, backend=backend)

    def loss(query):
        return answer(query).square().sum()

    lengths = torch.tensor([[1, 7], [0, 3], [2, 2]])
    return {
        "vmap": lambda: torch.vmap(
            lambda n: attention(query, key, value, key_lengths=n, backend=backend)
        )(lengths),
        "grad": lambda: torch.func.grad(loss)(query),
        "per sample": lambda: torch.vmap(
            torch.func.grad(lambda q, k, v: attention(q, k, v, backend=backend).sum())
        )(query, key, value),
        "jacrev": lambda: torch.func.jacrev(answer)(query),
        "jvp": lambda: torch.func.jvp(answer, (query,), (query,))[1],
        "jacfwd": lambda: torch.func.jacfwd(answer)(query),
        "hessian": lambda: torch.func.hessian(loss)(query),
        "grad of grad": lambda: torch.func.grad(lambda q: torch.func.grad(loss)(q).square().sum())(
            query
        ),
        "forward mode": lambda: forward(answer, query),
    }


def forward(function, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(x, x))).tangent


SERVED_BY_FUSED = {"vmap", "grad", "per sample", "jacrev"}


@each
@pytest.mark.parametrize("name", transformed("plain"))
def test_transforms_of_torch_func(backend, name):
    """auto and plain serve all of them; a backend that cannot says so."""
    call = transformed(backend)[name]
    if backend == "tiled" or (backend == "fused" and name not in SERVED_BY_FUSED):
        with pytest.raises(BackendError, match=f'backend "{backend}": .*(transforms|derivative)'):
            call()
    else:
        torch.testing.assert_close(call(), transformed("plain")[name]())


@each
def test_double_backward(backend):
    """The plain formula has every derivative; a kernel's has one, and says where to go."""
    query, key, value = (t.requires_grad_() for t in tensors(dtype=torch.float64))
    output = attention(query, key, value, backend=backend)
    if backend == "plain":
        (slope,) = torch.autograd.grad(output.square().sum(), query, create_graph=True)
        assert torch.autograd.grad(slope.sum(), key)[0].abs().sum() > 0
    else:
        with pytest.raises(BackendError, match=r'differentiated again .*backend="plain" can'):
            torch.autograd.grad(output.square().sum(), query, create_graph=True)
        torch.autograd.grad(output.square().sum(), query)  # the first derivative is there


# --- Devices and precision ------------------------------------------------------------------------


@each
def test_meta_tensors_have_the_right_shape(backend):
    inputs = [tensor.to("meta").requires_grad_() for tensor in tensors()]
    slopes = torch.ones(4, device="meta")
    output = attention(*inputs, causal=True, window=3, alibi_slopes=slopes, backend=backend)
    assert output.shape == (2, 4, 5, 6)
    assert output.is_meta


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_autocast_changes_nothing(backend, dtype):
    """Neither the dtype of the output nor its bits: attention() decides its precision itself."""
    inputs = [t.requires_grad_() for t in tensors(dtype=dtype)]
    results = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            output = attention(*inputs, causal=True, backend=backend)
        assert output.dtype == dtype
        results.append([output, *torch.autograd.grad(output.sum(), inputs)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
