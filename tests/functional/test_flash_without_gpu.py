"""The flash backend and packed attention on a machine without a GPU: what is said, what still works."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from tested_transformer import BackendError, attention, packed_attention, reference
from tested_transformer.functional.backends import flash, flash_configs
from tested_transformer.functional.backends.flash_configs import Config, choose, key_of, rule
from tested_transformer.functional.inputs import AttentionInputs

pytestmark = [
    pytest.mark.plain_types,
    pytest.mark.skipif(
        flash.INTERPRETED or torch.cuda.is_available(), reason="the kernels run here"
    ),
]
X = torch.randn(1, 2, 32, 16, generator=torch.Generator().manual_seed(0))


def call_of(query=X, key=X, value=X, **options):
    """A packed call."""
    return AttentionInputs(query, key, value, **{"scale": query.shape[-1] ** -0.5, **options})


def test_the_backend_says_in_one_sentence_what_is_missing():
    with pytest.raises(BackendError, match="flash.*(no CUDA device|Triton is not installed)"):
        attention(X, X, X, backend="flash")


def test_without_triton(monkeypatch):
    monkeypatch.setattr(flash, "HAS_TRITON", False)
    with pytest.raises(BackendError, match="Triton is not installed"):
        attention(X, X, X, backend="flash")
    assert attention(X, X, X).shape == X.shape


def test_nothing_imports_triton_before_it_is_needed():
    code = (
        "import sys, torch; import tested_transformer as t; x = torch.ones(1, 1, 16, 4); "
        "t.attention(x, x, x); assert 'tested_transformer.functional.backends.flash_kernels' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


REFUSED = {
    "weights": ({"return_weights": True}, "cannot return them"),
    "few queries": ({"query": X[:, :, :8]}, "fewer than 16 queries"),
    "float64": (
        {"query": X.double(), "key": X.double(), "value": X.double()},
        "float64 is none of",
    ),
    "wide": (dict.fromkeys(("query", "key", "value"), X.repeat(1, 1, 1, 17)), "head size 272"),
    "three axes": (dict.fromkeys(("query", "key", "value"), X[0]), "3 axes, not 4"),
    "other values": ({"value": X[..., :8]}, "different head sizes"),
    "bias": ({"bias": torch.zeros(32, 32, requires_grad=True)}, "gradient of bias"),
    "slopes": ({"alibi_slopes": torch.ones(2, requires_grad=True)}, "gradient of alibi_slopes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_kernels_do_not_serve(name, monkeypatch):
    monkeypatch.setattr(flash, "missing", lambda: None)
    monkeypatch.setattr(flash, "INTERPRETED", True)
    assert flash.unsupported_reason(call_of()) is None
    changes, words = REFUSED[name]
    assert words in flash.unsupported_reason(call_of(**changes))


def test_auto_takes_flash_only_where_it_is_tuned(monkeypatch):
    half = X.half()
    assert not flash.is_tuned_for(call_of(half, half, half))  # not on CUDA
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    assert flash.is_tuned_for(call_of(half, half, half, causal=True, window=3))
    assert not flash.is_tuned_for(call_of())
    assert not flash.is_tuned_for(call_of(half, half, half, dropout_p=0.1))
    assert not flash.is_tuned_for(call_of(half, half, half, bias=torch.zeros(32, 32)))


# --- Configurations -------------------------------------------------------------------------------


def test_a_key_tells_calls_apart():
    base = ("forward", "sm90", torch.float16, 64, 2048, False, [])
    others = [
        ("query", *base[1:]), ("forward", "sm80", *base[2:]), (*base[:2], torch.bfloat16, *base[3:]),
        (*base[:3], 128, *base[4:]), (*base[:4], 2049, *base[5:]), (*base[:4], 9000, *base[5:]),
        (*base[:5], True, []), (*base[:6], ["gqa"]), (*base[:6], ["window"]),
    ]  # fmt: skip
    assert len({key_of(*each) for each in (base, *others)}) == 10
    assert key_of(*base[:6], ["gqa", "window"]) == key_of(*base[:6], ["window", "gqa"])


def test_the_table_goes_before_the_rule(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    half, best = X.half(), Config(64, 64, 4, 7)
    key = key_of("forward", "sm90", torch.float16, 16, 100, True, ["gqa"])
    monkeypatch.setattr(flash_configs, "measured", lambda: {key: best})
    assert choose("forward", half, 100, True, ["gqa"]) == best
    assert choose("forward", half, 100, False, ["gqa"]) == rule(
        "forward", "sm90", torch.float16, 16
    )
    packed = choose("forward", half, 100, False, ["packed"])
    assert not packed.tma


# --- Packed documents -----------------------------------------------------------------------------

STARTS = torch.tensor([0, 3, 3, 10])


def packed_tensors(dtype=torch.float64):
    """query (10, 4, 6), key and value (10, 2, 6)."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(10, n, 6, generator=generator, dtype=dtype) for n in (4, 2, 2)]


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"causal": True, "window": 2}, {"scale": 0.3}], ids=str
)
@pytest.mark.parametrize("backend", ["auto", "plain", "tiled", "fused"])
def test_packed_is_the_document_mask(backend, options):
    query, key, value = packed_tensors()
    got = packed_attention(query, key, value, cu_seqlens=STARTS, backend=backend, **options)
    documents = torch.repeat_interleave(torch.arange(3), STARTS.diff())
    same = documents[:, None] == documents
    batched = [t.transpose(0, 1)[None] for t in (query, key, value)]
    plain = attention(*batched, mask=same, backend="plain", **options)[0].transpose(0, 1)
    exact = [t.numpy().astype(np.longdouble) for t in batched]
    right = reference.attention(*exact, mask=same.numpy(), **options)[0].swapaxes(0, 1)
    error, plain_error = (np.abs(t.numpy() - right).max() for t in (got, plain))
    assert error <= 2 * plain_error + 4 * np.finfo(np.float64).eps * np.abs(right).max()


def test_packed_keys_of_their_own():
    query, key, value = packed_tensors()
    starts = torch.tensor([0, 5, 9, 10])
    got = packed_attention(query, key, value, cu_seqlens=STARTS, cu_seqlens_k=starts, causal=True)
    last = attention(
        *(t[a:].transpose(0, 1)[None] for t, a in ((query, 3), (key, 9), (value, 9))), causal=True
    )
    assert torch.equal(got[3:], last[0].transpose(0, 1))
    assert packed_attention(query[:0], key[:0], value[:0], cu_seqlens=STARTS[:1]).shape == (0, 4, 6)


BAD = {
    "two axes": ({"query": torch.ones(10, 6)}, ValueError, "query"),
    "dtype": ({"key": torch.ones(10, 2, 6)}, TypeError, "key"),
    "heads": ({"key": torch.ones(10, 3, 6).double(), "value": torch.ones(10, 3, 6).double()}, ValueError, "key"),
    "float starts": ({"cu_seqlens": STARTS.float()}, TypeError, "cu_seqlens"),
    "no start": ({"cu_seqlens": STARTS[:0]}, ValueError, "cu_seqlens"),
    "not from 0": ({"cu_seqlens": STARTS + 1}, ValueError, "cu_seqlens.*from 0 to 10"),
    "not to the end": ({"cu_seqlens": STARTS[:3]}, ValueError, "cu_seqlens.*from 0 to 10"),
    "falling": ({"cu_seqlens": torch.tensor([0, 7, 3, 10])}, ValueError, "rising"),
    "other documents": ({"cu_seqlens_k": torch.tensor([0, 10])}, ValueError, "cu_seqlens_k.*4.*got shape .2,"),
    "max_length": ({"max_length": -1}, ValueError, "max_length"),
    "window": ({"window": 0}, ValueError, "window"),
    "backend": ({"backend": "magic"}, ValueError, "backend"),
    "flash": ({"backend": "flash"}, BackendError, "flash"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_malformed_packed_calls(name):
    changes, error, words = BAD[name]
    tensors = dict(zip(("query", "key", "value"), packed_tensors(), strict=True))
    with pytest.raises(error, match=words):
        packed_attention(**{**tensors, "cu_seqlens": STARTS, **changes})
