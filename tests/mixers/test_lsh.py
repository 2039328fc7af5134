"""LSH attention: equal to transformers' Reformer and to full attention with counts, linear in memory."""

import itertools

import numpy as np
import pytest
import torch

from same_numbers import assert_float32_same, assert_same_numbers
from tested_transformer import attention, reference
from tested_transformer.mixers.lsh import lsh_attention, lsh_buckets, lsh_keys, lsh_read_counts
from tested_transformer.specs.judge import judge
from tested_transformer.specs.lsh.spec import LSH_ATTENTION, LSH_BUCKETS

EPS = torch.finfo(torch.float64).eps
FORMS = pytest.mark.parametrize("form", ["paper", "trax"])


def numbers(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


QUERY, VALUE, ROTATIONS = (
    numbers(2, 3, 20, 8),
    numbers(2, 3, 20, 5, seed=2),
    numbers(3, 8, 2, 3, seed=3),
)
BUCKETS = lsh_buckets(QUERY, ROTATIONS)
LENGTHS = torch.tensor([20, 13])
REAL = torch.arange(20) < LENGTHS[:, None]


@pytest.mark.parametrize("seed", range(1))
def test_the_specs(seed):
    for spec, function in ((LSH_BUCKETS, lsh_buckets), (LSH_ATTENTION, lsh_attention)):
        verdict = judge(spec, function, seed=seed)
        assert verdict.passed, verdict


# --- Equal to full attention ----------------------------------------------------------------------


def dense(query, value, buckets, *, causal=False, key_mask=None, **options):
    """Full attention: the counts as a bias, and -1e5 for a token with itself."""
    counts = lsh_read_counts(buckets, **options)
    bias = counts.to(query.dtype).log()
    scores = query @ lsh_keys(query).mT / query.shape[-1] ** 0.5
    own = torch.eye(query.shape[2], dtype=torch.bool)
    bias = torch.where(own, -1e5 - scores + bias, bias)
    mask = None if key_mask is None else key_mask[:, None, None]
    return attention(query, lsh_keys(query), value, bias=bias, mask=mask, causal=causal)


@FORMS
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("reach", [(1, 0), (0, 2)])
@pytest.mark.parametrize(("length", "chunk_size"), [(20, 4), (7, 3), (1, 4)])
def test_it_is_full_attention_with_counts(form, causal, reach, length, chunk_size):
    query, value, buckets = QUERY[:, :, :length], VALUE[:, :, :length], BUCKETS[..., :length]
    options = {
        "chunk_size": chunk_size, "chunks_before": reach[0], "chunks_after": reach[1], "form": form,
        "causal": causal,
    }  # fmt: skip
    for real in (None, REAL[:, :length]):
        found = lsh_attention(query, value, buckets, key_mask=real, **options)
        expected = dense(query, value, buckets, key_mask=real, **options)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e5 * EPS)  # of a score of -1e5


@FORMS
@pytest.mark.parametrize("causal", [False, True])
def test_the_dense_limit(form, causal):
    """One bucket and one chunk: full attention with shared keys, but for the token itself."""
    own = torch.eye(20, dtype=torch.bool)
    mask = ~own if not causal else ~own & torch.ones(20, 20, dtype=torch.bool).tril()
    if causal:
        mask[0, 0] = True  # the first token has nothing else to read
    expected = attention(QUERY, lsh_keys(QUERY), VALUE, mask=mask)
    for rounds, chunk_size in ((1, 20), (3, 50)):
        buckets = torch.zeros(2, 3, rounds, 20, dtype=torch.long)
        found = lsh_attention(
            QUERY, VALUE, buckets, chunk_size=chunk_size, causal=causal, form=form
        )
        torch.testing.assert_close(found, expected)


def test_more_rounds_approach_full_attention():
    """Every pair meets in some round: the paper's form forgets how often, the other one does not."""
    rotations = numbers(3, 8, 60, 1, seed=4)
    buckets = lsh_buckets(QUERY, rotations)
    options = {"chunk_size": 10, "chunks_before": 1, "chunks_after": 1}
    assert bool((lsh_read_counts(buckets, **options) == 1).all())
    expected = attention(QUERY, lsh_keys(QUERY), VALUE, mask=~torch.eye(20, dtype=torch.bool))
    torch.testing.assert_close(lsh_attention(QUERY, VALUE, buckets, **options), expected)
    counted = lsh_attention(QUERY, VALUE, buckets, form="trax", **options)
    assert float((counted - expected).abs().max()) > 0.01


# --- Equal to transformers ------------------------------------------------------------------------


def theirs(causal, rounds, chunks_after):
    reformer = pytest.importorskip("transformers.models.reformer.modeling_reformer")
    config = reformer.ReformerConfig(
        hidden_size=24, num_attention_heads=3, attention_head_size=8, num_buckets=6, num_hashes=rounds,
        lsh_attn_chunk_length=4, lsh_num_chunks_before=1, lsh_num_chunks_after=chunks_after,
        is_decoder=causal, hash_seed=7, lsh_attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    return reformer.LSHSelfAttention(config, layer_idx=0)


def heads(x):
    return x.unflatten(-1, (3, 8)).transpose(1, 2)


@pytest.mark.parametrize("padding", ["none", "right", "left"])
@pytest.mark.parametrize(
    ("causal", "rounds", "chunks_after"), [(True, 1, 0), (True, 3, 0), (False, 2, 0), (False, 2, 1)]
)
def test_transformers(causal, rounds, chunks_after, padding):
    """Their layer of the Reformer with its hash seed: output and gradients of what is real."""
    layer, x = theirs(causal, rounds, chunks_after), numbers(2, 20, 24)
    real = {"none": None, "right": REAL, "left": REAL.flip(1)}[padding]
    kept = torch.ones(2, 20, dtype=torch.bool) if real is None else real
    buckets = None

    def run_theirs(dtype):
        module, given = layer.to(dtype).eval(), x.to(dtype).requires_grad_()
        output = module(given, attention_mask=None if real is None else real.long()).hidden_states
        return results(output, module, given, dtype)

    def run_ours(dtype):
        module, given = layer.to(dtype).eval(), x.to(dtype).requires_grad_()
        query, value = heads(module.query_key(given)), heads(module.value(given))
        output = lsh_attention(
            query, value, buckets, chunk_size=4, chunks_after=chunks_after, causal=causal, key_mask=real,
            form="trax",
        )  # fmt: skip
        return results(output.transpose(1, 2).flatten(2), module, given, dtype)

    def results(output, module, given, dtype):
        wanted = (given, module.query_key.weight, module.value.weight)
        total = (output * numbers(2, 20, 24, seed=5).to(dtype))[kept].sum()
        return {"output": [output[kept]], "gradients": torch.autograd.grad(total, wanted)}

    generator = torch.Generator().manual_seed(7)
    rotations = torch.randn(3, 8, rounds, 3, generator=generator, dtype=torch.float64)
    buckets = lsh_buckets(heads(layer.double().query_key(x)), rotations, key_mask=real)
    their_buckets = (
        layer.double().eval()(x, attention_mask=None if real is None else real.long()).buckets
    )
    width = 6 if real is None else 7
    their_buckets = their_buckets - width * torch.arange(rounds)[:, None]
    assert torch.equal(buckets, their_buckets)
    double = run_theirs(torch.float64)
    for name, group in run_ours(torch.float64).items():
        for found, expected in zip(group, double[name], strict=True):
            # a score of -1e5 is added in their softmax, and rounds as such
            torch.testing.assert_close(found, expected, rtol=0, atol=1e5 * EPS)


def test_many_buckets_are_pairs_of_few():
    """4 x 6 buckets from 2 + 3 columns, as transformers makes them: two hashes, combined into one number."""
    layer, x = theirs(True, 2, 0).double().eval(), numbers(2, 20, 24)
    layer.num_buckets = [4, 6]
    rotations = torch.randn(
        3, 8, 2, 5, generator=torch.Generator().manual_seed(7), dtype=torch.float64
    )
    query, value = heads(layer.query_key(x)), heads(layer.value(x))
    buckets = lsh_buckets(query, rotations[..., :2]) + 4 * lsh_buckets(query, rotations[..., 2:])
    found = lsh_attention(query, value, buckets, chunk_size=4, causal=True, form="trax")
    expected = layer(x).hidden_states
    torch.testing.assert_close(found.transpose(1, 2).flatten(2), expected, rtol=0, atol=1e5 * EPS)


def test_their_first_chunk_reads_the_last():
    """A ring: a longer padding changes what a real token reads. In the paper's form it does not."""
    layer, x = theirs(False, 1, 0).double().eval(), numbers(1, 8, 24)
    padded = torch.cat((x, torch.zeros(1, 4, 24, dtype=torch.float64)), 1)
    real = torch.arange(12)[None] < 8
    alone = layer(x).hidden_states
    batched = layer(padded, attention_mask=real.long()).hidden_states[:, :8]
    assert float((alone - batched).abs().max().detach()) > 0.01
    rotations = numbers(3, 8, 1, 3, seed=7)
    outputs = []
    for given, mask in ((x, None), (padded, real)):
        query, value = heads(layer.query_key(given)), heads(layer.value(given))
        buckets = lsh_buckets(query, rotations, key_mask=mask)
        outputs.append(lsh_attention(query, value, buckets, chunk_size=4, key_mask=mask)[:, :, :8])
    torch.testing.assert_close(*outputs)


# --- Padding, the future, what is read ------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_batch_is_single(side, causal):
    real = REAL if side == "right" else REAL.flip(1)
    buckets = lsh_buckets(QUERY, ROTATIONS, key_mask=real)
    options = {"chunk_size": 4, "causal": causal}
    batch = lsh_attention(QUERY, VALUE, buckets, key_mask=real, **options)
    for b, length in enumerate(LENGTHS.tolist()):
        alone = [each[b : b + 1, :, real[b]] for each in (QUERY, VALUE)]
        found = lsh_attention(*alone, lsh_buckets(alone[0], ROTATIONS), **options)
        assert found.shape[2] == length
        torch.testing.assert_close(found, batch[b : b + 1, :, real[b]])


@FORMS
@pytest.mark.parametrize("chunk_size", [3, 4, 7, 40])
def test_no_leak(form, chunk_size):
    """No gradient flows from an output to a later token, whichever bucket that is in."""
    query, value = QUERY.clone().requires_grad_(), VALUE.clone().requires_grad_()
    output = lsh_attention(query, value, BUCKETS, chunk_size=chunk_size, causal=True, form=form)
    for i in (0, 7, 18):
        total = output[:, :, i].square().sum()
        for gradient in torch.autograd.grad(total, (query, value), retain_graph=True):
            assert bool((gradient[:, :, i + 1 :] == 0).all())


def test_a_later_token_can_change_what_is_read():
    """In a lower bucket it pushes all others back, over the border of a chunk: also in transformers.

    The causal mask hides what a later token holds, and not where it pushes the others.
    """
    before, after = torch.tensor([0, 0, 1, 1, 1, 2]), torch.tensor([0, 0, 1, 1, 1, 0])
    counts = [lsh_read_counts(each[None, None, None], chunk_size=2, chunks_before=0)[0, 0]
              for each in (before, after)]  # fmt: skip
    assert counts[0][3].tolist() == [0, 0, 1, 1, 0, 0]
    assert counts[1][3].tolist() == [0, 0, 0, 1, 1, 0]

    layer = theirs(True, 1, 0).double().eval()
    changes = []
    for seed in range(20):
        x = numbers(1, 20, 24, seed=seed)
        other = torch.cat((x[:, :-1], -x[:, -1:]), 1)
        apart = layer(x).hidden_states - layer(other).hidden_states
        changes.append(float(apart[:, :-1].abs().max().detach()))
    assert max(changes) > 0.01


def test_a_long_bucket_loses_pairs():
    """Of 12 tokens in one bucket, in chunks of 4, the last reads 7 others: its chunk and the one before."""
    counts = lsh_read_counts(torch.zeros(1, 1, 1, 12, dtype=torch.long), chunk_size=4)[0, 0]
    assert counts.sum(-1).tolist() == [4] * 4 + [8] * 8


def test_near_vectors_share_buckets():
    """With r = 1 an angle of t separates two vectors with probability t / pi: the plane's angle is uniform."""
    angles = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64) * torch.pi
    vectors = torch.stack((angles.cos(), angles.sin()), -1)[None, None]  # 1 1 5 2
    rounds = 4000
    buckets = lsh_buckets(vectors, numbers(1, 2, rounds, 1, seed=8))[0, 0]  # rounds 5
    apart = (buckets != buckets[:, :1]).double().mean(0)
    for found, expected in zip(apart.tolist(), [0.0, 0.25, 0.5, 0.75, 1.0], strict=True):
        assert found == pytest.approx(
            expected, abs=5 * 0.5 / rounds**0.5
        )  # five standard deviations


@FORMS
def test_every_size_against_the_reference(form):
    for length, chunk_size, rounds in itertools.product((1, 5, 6), (1, 3, 8), (1, 2)):
        given = [each[:, :2, :length] for each in (QUERY, VALUE)]
        buckets = BUCKETS[:, :2, :rounds, :length]
        options = {"chunk_size": chunk_size, "form": form, "causal": True}
        found = lsh_attention(*given, buckets, **options)
        expected = reference.lsh_attention(*(x.numpy() for x in (*given, buckets)), **options)
        np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e5 * EPS)


# --- Precision and memory -------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_float32_and_gradients(causal):
    def runs(function):
        def run(dtype):
            query, value = (x.clone().to(dtype).detach().requires_grad_() for x in (QUERY, VALUE))
            output = function(query, value, BUCKETS, chunk_size=4, causal=causal)
            (output * numbers(*output.shape, seed=9).to(dtype)).sum().backward()
            return {"output": [output], "gradients": [query.grad, value.grad]}

        return run

    assert_same_numbers(runs(lsh_attention), runs(dense))
    assert_float32_same(runs(lsh_attention), runs(dense))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_keeps_its_dtype(dtype):
    query, value = QUERY.to(dtype), VALUE.to(dtype)
    found = lsh_attention(query, value, BUCKETS, chunk_size=4, causal=True)
    assert found.dtype == dtype
    wide = lsh_attention(query.float(), value.float(), BUCKETS, chunk_size=4, causal=True)
    torch.testing.assert_close(found.float(), wide, rtol=8e-3, atol=8e-3)  # keys are rounded once


def largest_tensor(length):
    """Numbers in the largest tensor of a call, counted where it is made."""

    class Counted(torch.utils._python_dispatch.TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            output = function(*args, **(kwargs or {}))
            tensors = [
                x for x in torch.utils._pytree.tree_leaves(output) if isinstance(x, torch.Tensor)
            ]
            fresh = [x.untyped_storage().nbytes() // x.element_size() for x in tensors]
            self.most = max([self.most, *fresh])
            return output

    query, rotations = torch.randn(1, 1, length, 4), torch.randn(1, 4, 2, 4)
    with Counted() as counted:
        lsh_attention(query, query, lsh_buckets(query, rotations), chunk_size=8, causal=True)
    return counted.most


def test_memory_grows_with_the_length():
    """The scores are the largest: R L m (1 + before) numbers, and no L x L."""
    for length in (256, 512, 1024):
        assert largest_tensor(length) == 2 * length * 8 * 2


# --- Bad input ------------------------------------------------------------------------------------


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="value: expected"):
        lsh_attention(QUERY, VALUE[:, :, :3], BUCKETS, chunk_size=4)
    with pytest.raises(TypeError, match="buckets: expected"):
        lsh_attention(QUERY, VALUE, BUCKETS.double(), chunk_size=4)
    with pytest.raises(ValueError, match="buckets: expected"):
        lsh_attention(QUERY, VALUE, BUCKETS - 5, chunk_size=4)
    with pytest.raises(ValueError, match="chunk_size: expected at least 1"):
        lsh_attention(QUERY, VALUE, BUCKETS, chunk_size=0)
    with pytest.raises(ValueError, match="form: expected"):
        lsh_attention(QUERY, VALUE, BUCKETS, chunk_size=4, form="transformers")
    with pytest.raises(ValueError, match="key_mask: expected"):
        lsh_attention(QUERY, VALUE, BUCKETS, chunk_size=4, key_mask=REAL[:, :3])
    with pytest.raises(ValueError, match="rotations: expected"):
        lsh_buckets(QUERY, ROTATIONS[:2])
    with pytest.raises(ValueError, match="chunks_before: expected at least 0"):
        lsh_read_counts(BUCKETS, chunk_size=4, chunks_before=-1)
