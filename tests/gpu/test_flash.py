"""The flash kernels against the formula in float64: every feature, forward and gradients.

error <= 2 x (the textbook formula's error in that dtype) + 4 eps x max |truth|. On a GPU with real
sizes, in Triton's interpreter with small ones.
"""

import itertools

import pytest
import torch

from tested_transformer import attention, packed_attention
from tested_transformer.functional.backends import flash
from tested_transformer.functional.backends.flash_configs import Config
from tested_transformer.functional.inputs import AttentionInputs
from tested_transformer.specs.attention.spec import textbook

SMALL = flash.INTERPRETED
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LENGTHS = ((33, 47), (50, 33)) if SMALL else ((97, 97), (257, 1025), (1025, 257), (4096, 4096))
SIZES = (16, 20) if SMALL else (64, 80, 128)
NAMES = ("output", "query", "key", "value")


def tensors(
    lengths, size, *, heads=2, groups=1, batch=1, dtype=torch.float32, device="cpu", seed=0
):
    """Random query (B, H, L, d), key and value (B, G, S, d), rounded to the dtype."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [
        (batch, n, length, size)
        for n, length in zip(
            (heads, groups, groups), (lengths[0], lengths[1], lengths[1]), strict=True
        )
    ]
    return [torch.randn(s, generator=generator).to(dtype).to(device) for s in shapes]


def options_for(names, lengths, *, heads=2, batch=1, device="cpu", seed=0):
    """The options named, drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    rows, cols = lengths
    every = {
        "causal": True,
        "window": max(2, cols // 3),
        "key_lengths": torch.randint(0, cols + 1, (batch,), generator=generator),
        "alibi_slopes": torch.rand(heads, generator=generator),
        "mask": torch.rand(batch, 1, rows, cols, generator=generator) < 0.7,
        "key mask": torch.rand(batch, 1, 1, cols, generator=generator) < 0.7,
        "bias": torch.randn(rows, cols, generator=generator),
        "scale": -0.3,
    }
    chosen = {name.split()[-1]: every[name] for name in names}
    return {k: v.to(device) if torch.is_tensor(v) else v for k, v in chosen.items()}


def with_gradients(function, inputs, gradient):
    """The output, and the gradients of the inputs for this gradient of the output."""
    inputs = [t.detach().requires_grad_() for t in inputs]
    with torch.device(inputs[0].device):  # the textbook formula makes tensors of its own
        output = function(*inputs)
    return [output.detach(), *torch.autograd.grad(output, inputs, gradient.to(output.dtype))]


def to_dtype(options, dtype):
    """The floating point options in another dtype."""
    return {
        k: v.to(dtype) if torch.is_tensor(v) and v.is_floating_point() else v
        for k, v in options.items()
    }


def bounds(inputs, gradient, options):
    """How far off each of output and gradients may be, and the truth."""
    exact = [t.double() for t in inputs]
    wide = to_dtype(options, torch.float64)
    truth = with_gradients(
        lambda *a: attention(*a, backend="plain", **wide), exact, gradient.double()
    )
    # The textbook formula has NaN gradients at fully masked rows: in its own problem they see the first key.
    call = AttentionInputs(*inputs, **{"scale": inputs[0].shape[-1] ** -0.5, **options})
    shown = {k: v for k, v in options.items() if k in ("bias", "alibi_slopes", "scale")}
    allowed = call.allowed()
    if allowed is not None:
        allowed = allowed.expand(call.scores_shape).clone()
        allowed[..., 0] |= ~allowed.any(-1)
        shown["mask"] = allowed
    rough = with_gradients(
        lambda *a: textbook(*a, **to_dtype(shown, inputs[0].dtype)), inputs, gradient
    )
    fine = with_gradients(
        lambda *a: textbook(*a, **to_dtype(shown, torch.float64)), exact, gradient.double()
    )
    eps = torch.finfo(inputs[0].dtype).eps
    errors = [float((r.double() - f).abs().max()) for r, f in zip(rough, fine, strict=True)]
    largest = [float(t.abs().max()) for t in truth]
    return truth, [2 * e + 4 * eps * m for e, m in zip(errors, largest, strict=True)]


def assert_within(found, truth, rough):
    """In float32: at most 2 x the plain formula's error + 4 eps x max |truth|, each by itself."""
    eps = torch.finfo(torch.float32).eps
    for got, right, plain in zip(found, truth, rough, strict=True):
        error, plain_error = (float((x.double() - right).abs().max()) for x in (got, plain))
        assert error <= 2 * plain_error + 4 * eps * float(right.abs().max())


def assert_right(inputs, options):
    """The kernels' output and gradients are within the bounds."""
    generator = torch.Generator().manual_seed(9)
    gradient = torch.randn(inputs[0].shape, generator=generator).to(inputs[0])
    truth, allowed = bounds(inputs, gradient, options)
    got = with_gradients(lambda *a: attention(*a, backend="flash", **options), inputs, gradient)
    for name, right, most, found in zip(NAMES, truth, allowed, got, strict=True):
        assert found.isfinite().all(), name
        error = float((found.double() - right).abs().max())
        assert error <= most, f"{name}: off by {error:.3g}, allowed {most:.3g}"


FEATURES = (
    (), ("causal",), ("window",), ("causal", "window"), ("key_lengths",), ("alibi_slopes",),
    ("mask",), ("key mask",), ("bias",), ("mask", "bias"), ("scale",),
    ("causal", "window", "key_lengths", "alibi_slopes", "mask", "bias", "scale"),
)  # fmt: skip


@pytest.mark.parametrize("names", FEATURES, ids="+".join)
def test_every_feature(names, device):
    lengths = LENGTHS[0]
    for dtype in (torch.float32,) if SMALL else DTYPES:
        inputs = tensors(lengths, SIZES[0], batch=2, dtype=dtype, device=device)
        assert_right(inputs, options_for(names, lengths, batch=2, device=device))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_sizes_and_dtypes(lengths, size, dtype, device):
    for causal in (True,) if SMALL else (False, True):
        inputs = tensors(lengths, size, dtype=dtype, device=device)
        assert_right(inputs, {"causal": causal})


def test_empty_rows_are_zero_with_their_gradients(device):
    lengths = (50, 33)  # causal: the first 17 rows see nothing
    query, key, value = tensors(lengths, SIZES[0], device=device)
    found = with_gradients(
        lambda *a: attention(*a, causal=True, backend="flash"),
        (query, key, value),
        torch.ones_like(query),
    )
    assert (found[0][:, :, :17] == 0).all()
    assert (found[1][:, :, :17] == 0).all()
    hidden = torch.zeros(1, dtype=torch.int64, device=device)
    found = with_gradients(
        lambda *a: attention(*a, key_lengths=hidden, backend="flash"), (query, key, value),
        torch.ones_like(query),
    )  # fmt: skip
    assert all((t == 0).all() for t in found)


def test_any_strides(device):
    """(B, L, H, d) turned round, a slice of a fused projection, one key for all samples."""
    lengths = LENGTHS[0]
    query, key, value = tensors(lengths, SIZES[0], batch=2, groups=2, device=device)
    turned = query.transpose(1, 2).contiguous().transpose(1, 2)
    padded = torch.cat([key, key * float("nan")], dim=-1)[..., : SIZES[0]]
    columns = value.mT.contiguous().mT
    shared = key[:1].expand(2, -1, -1, -1)
    for inputs in ((turned, padded, columns), (query, shared, value)):
        assert_right(list(inputs), {"causal": True})


@pytest.mark.parametrize("size", (16, 24) if SMALL else (64, 80))
def test_descriptors_give_the_same_numbers(size, device, monkeypatch):
    """TMA where strides allow it; a gradient that is one number for all, and odd strides, do not."""
    lengths, seen = (20, 33) if SMALL else LENGTHS[1], []
    inputs = tensors(lengths, size, dtype=torch.float16, device=device)
    odd = [torch.cat([t, t[..., :1]], dim=-1)[..., :size] for t in inputs]

    def constants(self, config, *, tma):
        seen.append(tma)
        return kept(self, config, tma=tma)

    kept = flash._Options.constants
    monkeypatch.setattr(flash._Options, "constants", constants)
    answers = []
    for tma in (True, False):
        monkeypatch.setattr(flash, "choose", lambda *_, tma=tma: Config(32, 32, 4, 1, tma=tma))
        for tensors_, gradient in ((inputs, torch.ones_like(inputs[0])), (odd, None)):
            if gradient is None:
                gradient = torch.ones((), dtype=torch.float16, device=device).expand(odd[0].shape)
            answers.append(
                with_gradients(
                    lambda *a: attention(*a, causal=True, backend="flash"), tensors_, gradient
                )
            )
    assert seen == [True] * 3 + [False] * 9
    assert all(
        torch.equal(a, b) for other in answers[1:] for a, b in zip(answers[0], other, strict=True)
    )


def test_the_same_numbers_every_time(device):
    inputs = tensors(LENGTHS[0], SIZES[0], groups=1, heads=4, dtype=torch.float16, device=device)
    gradient = torch.ones_like(inputs[0])
    twice = [
        with_gradients(lambda *a: attention(*a, causal=True, backend="flash"), inputs, gradient)
        for _ in range(2)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*twice, strict=True))


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window": 9}], ids=str)
def test_packed_documents(options, device):
    """Documents of 1, 40, 0 and 33 tokens: as one call each. A NaN neighbor is never read."""
    lengths = [1, 21, 0, 35] if SMALL else [1, 700, 0, 1033, 128]
    starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
    total, size = sum(lengths), SIZES[0]
    query, key, value = (
        t[0].transpose(0, 1) for t in tensors((total, total), size, heads=2, device=device)
    )
    gradient = torch.randn(query.shape, generator=torch.Generator().manual_seed(1)).to(query)

    def packed(*a):
        return packed_attention(*a, cu_seqlens=starts, backend="flash", **options)

    def one_by_one(*a):
        return packed_attention(*a, cu_seqlens=starts, backend="plain", **options)

    found = with_gradients(packed, (query, key, value), gradient)
    exact = [t.double() for t in (query, key, value)]
    truth = with_gradients(one_by_one, exact, gradient.double())
    rough = with_gradients(one_by_one, (query, key, value), gradient)
    assert_within(found, truth, rough)

    first, last = int(starts[1]), int(starts[2])  # the second document, between NaN neighbors
    poisoned = [torch.full_like(t, float("nan")) for t in (query, key, value)]
    for clean, bad in zip((query, key, value), poisoned, strict=True):
        bad[first:last] = clean[first:last]
    alone = with_gradients(packed, poisoned, torch.where(poisoned[0].isnan(), 0.0, gradient))
    assert all(torch.equal(a[first:last], b[first:last]) for a, b in zip(alone, found, strict=True))


def test_dropout_is_the_mask_that_the_kernel_writes_down(device):
    lengths, size, p = LENGTHS[0], SIZES[0], 0.3
    inputs = tensors(lengths, size, heads=2, batch=2, device=device)
    torch.manual_seed(3)
    seed = int(torch.randint(2**62, (1,)))
    kept = kept_weights(seed, p, 4, *lengths, device).view(2, 2, *lengths)
    assert abs(float(kept.float().mean()) - (1 - p)) < 4 * (p * (1 - p) / kept.numel()) ** 0.5

    def by_hand(query, key, value):
        key, value = (t.repeat_interleave(2, 1) for t in (key, value))
        weights = (query @ key.mT * size**-0.5).softmax(-1)
        return (weights * kept / (1 - p)) @ value

    def ours(*a):
        torch.manual_seed(3)
        return attention(*a, dropout_p=p, backend="flash")

    gradient = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1)).to(
        inputs[0]
    )
    truth = with_gradients(by_hand, [t.double() for t in inputs], gradient.double())
    rough = with_gradients(by_hand, inputs, gradient)
    assert_within(with_gradients(ours, inputs, gradient), truth, rough)


def kept_weights(seed, dropout, heads, rows, cols, device):
    """What `keep` decides, (heads, rows, cols)."""
    from tested_transformer.functional.backends.flash_kernels import dropout_kernel

    mask = torch.empty(heads, rows, cols, dtype=torch.int8, device=device)
    grid = (-(-rows // 16), -(-cols // 16), heads)
    dropout_kernel[grid](mask, seed, dropout, rows, cols, ROWS=16, COLS=16)
    return mask.bool()


def test_dropout_differs_between_heads_and_calls(device):
    one, two = (kept_weights(seed, 0.5, 2, 32, 32, device) for seed in (1, 2))
    assert not torch.equal(one[0], one[1])
    assert not torch.equal(one, two)


def test_the_operators_keep_their_promises(device):
    query, key, value = (t.requires_grad_() for t in tensors((20, 24), 16, device=device))
    options = (None, None, None, None, None, None, True, None, 0.25, 0.0, 20, 24)
    torch.library.opcheck(flash.flash_forward, (query, key, value, *options))
    output, lse = flash.flash_forward(query, key, value, *options)
    saved = [t.detach() for t in (query, key, value, output, lse)]
    torch.library.opcheck(flash.flash_backward, (torch.ones_like(saved[3]), *saved, *options))


def test_log_sum_exp(device):
    """The natural one; +inf where a row sees nothing."""
    query, key, value = tensors((47, 33), 16, groups=2, device=device)
    options = (None, None, None, None, None, None, True, None, 0.25, 0.0, 47, 33)
    _, lse = flash.flash_forward(query, key, value, *options)
    assert (lse[..., :14] == torch.inf).all()
    hidden = torch.ones(47, 33, dtype=torch.bool, device=device).triu(33 - 47 + 1)
    plain, right = (
        (q @ k.mT * 0.25).masked_fill(hidden, -torch.inf).logsumexp(-1)[..., 14:]
        for q, k in ((query, key), (query.double(), key.double()))
    )
    assert_within([lse[..., 14:]], [right], [plain])


def test_torch_compile_sees_one_graph(device):
    inputs = [t.requires_grad_() for t in tensors((33, 47), 16, device=device)]

    def double(query, key, value):
        return 2 * attention(query, key, value, causal=True, backend="flash")

    compiled = torch.compile(double, fullgraph=True, backend="aot_eager" if SMALL else "inductor")
    ours, theirs = (f(*inputs) for f in (double, compiled))
    assert torch.equal(ours, theirs)
    pairs = (torch.autograd.grad(o.sum(), inputs) for o in (ours, theirs))
    assert all(torch.equal(a, b) for a, b in zip(*pairs, strict=True))


def test_autocast(device):
    inputs = tensors((33, 47), 16, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        output = attention(*inputs, backend="flash")
    assert output.dtype == torch.float32  # whatever the backend, the output has the query's dtype
    assert torch.equal(output, attention(*inputs, backend="flash"))


def test_nothing_to_do(device):
    query, key, value = tensors((32, 32), 16, device=device)
    for few in ((query[:0], key[:0], value[:0]), (query, key[:, :, :0], value[:, :, :0])):
        output = attention(*few, backend="flash")
        assert output.shape == few[0].shape
        assert (output == 0).all()


@pytest.mark.cuda
def test_tensors_of_more_than_2_31_numbers(device):
    """The last head of a tensor of 2^32 numbers and the last rows of a long one are read right."""
    size, heads, length = 64, 64, 2**20
    query = torch.zeros(1, heads, length, size, dtype=torch.float16, device=device)
    few = torch.randn(1, 1, 64, size, device=device).half()
    query[:, -1, -64:] = torch.randn(64, size, device=device).half()
    output = attention(query, few, few, backend="flash")
    right = attention(query[:, -1:, -64:].float(), few.float(), few.float(), backend="plain")
    assert torch.allclose(output[:, -1:, -64:].float(), right, atol=4e-3)
    assert torch.allclose(output[0, 0, 0].float(), few[0, 0].float().mean(0), atol=4e-3)
