"""XLNet: equal to transformers' in both streams, with its gradients; masks of any order; no leak."""

import pytest
import torch

pytest.importorskip("transformers")

import transformers as hf

from hf_copies import assert_comes_back, loaded
from same_numbers import assert_float32_same, in_dtype, shake
from tested_transformer.functional.permutation_masks import permutation_masks, target_mapping
from tested_transformer.models.loading import from_pretrained, save_pretrained
from tested_transformer.models.xlnet import XLNet, XLNetConfig
from tested_transformer.specs.adapters import Model
from tested_transformer.specs.contract import contract
from tested_transformer.specs.judge import judge
from tested_transformer.specs.permutation_masks.spec import PERMUTATION_MASKS, TARGET_MAPPING

SMALL = {
    "vocab_size": 17, "d_model": 12, "n_layer": 2, "n_head": 3, "d_inner": 20, "d_head": 4,
    "dropout": 0.0, "pad_token_id": 1, "use_mems_eval": False,
}  # fmt: skip
GENERATOR = torch.Generator().manual_seed(0)
IDS = torch.randint(2, 17, (2, 6), generator=GENERATOR)
REAL = torch.tensor([[True] * 6, [False] + [True] * 5])
SEGMENTS = torch.tensor([[0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 1, 1]])
ORDER = torch.tensor([[2, 5, 0, 3, 1, 4], [4, 1, 5, 0, 2, 3]])
PREDICTED = torch.tensor([[False, False, False, True, True, True]] * 2)
TARGETS = target_mapping(torch.tensor([[3, 5], [5, 4]]), 6)
HIDDEN = ~permutation_masks(ORDER, PREDICTED)[1][:, 0]  # B L L
CALLS = {
    "alone": {},
    "padded": {"attention_mask": REAL},
    "segments": {"token_type_ids": SEGMENTS},
    "an order": {"perm_mask": HIDDEN, "attention_mask": REAL},
    "targets": {"perm_mask": HIDDEN, "target_mapping": TARGETS},
    "all": {
        "perm_mask": HIDDEN, "target_mapping": TARGETS, "attention_mask": REAL,
        "token_type_ids": SEGMENTS,
    },
}  # fmt: skip


def theirs(head=True, **changes):
    kind = hf.XLNetLMHeadModel if head else hf.XLNetModel
    return shake(kind(hf.XLNetConfig(**SMALL | changes)), 0).eval()


def in_their_words(call, dtype):
    """Their masks are numbers."""
    numbers = ("perm_mask", "target_mapping", "attention_mask")
    return {n: a.to(dtype) if n in numbers else a for n, a in call.items()}


def small(**changes):
    options = {"d_model": 12, "num_heads": 3, "num_layers": 2, "d_ff": 20, "dropout": 0.0} | changes
    return shake(XLNet(XLNetConfig(17, **options)), 0).double().eval()


@pytest.mark.parametrize(
    ("spec", "candidate"),
    [(PERMUTATION_MASKS, permutation_masks), (TARGET_MAPPING, target_mapping)],
    ids=["masks", "targets"],
)
def test_the_specs(spec, candidate):
    verdict = judge(spec, candidate)
    assert verdict.passed, verdict


# --- Equal to transformers ------------------------------------------------------------------------


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("head", [True, False])
def test_the_same_numbers_and_gradients(call, head):
    """In float32, which theirs uses for its sinusoids whatever it is given. Padding's own outputs do not count."""
    original = theirs(head)
    ours, given = loaded(original), CALLS[call]
    real = given.get("attention_mask") if "target_mapping" not in given else None

    def groups(run, model, dtype):
        model = in_dtype(model, dtype)
        answer = run(model)
        answer = answer if real is None else answer[real]
        weights = torch.linspace(-1, 1, answer.numel(), dtype=dtype).view_as(answer)
        (answer * weights).sum().backward()
        return model, {"output": [answer]}

    def mine(dtype):
        model, found = groups(lambda m: m(IDS, **given), ours, dtype)
        found["gradient"] = [dict(model.named_parameters())[n].grad for n in paired]
        return {n: [a for a in g if a is not None] for n, g in found.items()}

    def yours(dtype):
        model, found = groups(lambda m: m(IDS, **in_their_words(given, dtype))[0], original, dtype)
        found["gradient"] = [dict(model.named_parameters())[n].grad for n in paired.values()]
        return {n: [a for a in g if a is not None] for n, g in found.items()}

    from tested_transformer.models.families.xlnet import FAMILY

    base = "" if head else FAMILY.base
    paired = {w.ours[0]: w.name.removeprefix(base) for w in FAMILY.weights(ours)}
    assert_float32_same(mine, yours)


@pytest.mark.parametrize(
    "changes",
    [{}, {"d_inner": 30, "ff_activation": "relu", "layer_norm_eps": 1e-3}, {"n_layer": 1}],
)
@pytest.mark.parametrize("head", [True, False])
def test_there_and_back(changes, head, tmp_path):
    assert_comes_back(theirs(head, dropout=0.25, **changes), tmp_path)


def test_dropout_is_theirs(tmp_path):
    ours = loaded(theirs(dropout=0.25))
    layer = ours.layers[0]
    found = [
        ours.dropout.p,
        layer.attention.dropout,
        layer.residuals[0].dropout.p,
        layer.feed_forward.dropout.p,
    ]
    assert found == [0.25] * 4


def test_one_of_ones_own_is_written(tmp_path):
    ours = small(d_ff=None, num_heads=2).float()
    save_pretrained(ours, tmp_path / "model")
    again = from_pretrained(tmp_path / "model")
    assert again.config == ours.config
    back = hf.XLNetLMHeadModel.from_pretrained(tmp_path / "model").eval()
    with torch.no_grad():
        assert torch.equal(again(IDS), ours(IDS))
        torch.testing.assert_close(
            back(IDS, use_mems=False).logits, ours(IDS), rtol=1e-4, atol=1e-5
        )


def test_what_is_not_here_is_refused(tmp_path):
    theirs(attn_type="uni").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r'config.json, attn_type: expected "bi", got \'uni\''):
        from_pretrained(tmp_path)


@torch.no_grad()
def test_a_target_that_attends_to_nothing():
    """First of the order, and no context: here 0 from attention; theirs attends to every token, its own included.

    Their scores minus 1e30 are all alike after rounding, so that the softmax is uniform: a leak.
    """
    original = theirs().float()
    ours = loaded(original)
    hidden = ~permutation_masks(ORDER)[1][:, 0]
    call = {"perm_mask": hidden, "target_mapping": target_mapping(ORDER[:, :1], 6)}
    changed = IDS.clone()
    changed.scatter_(1, ORDER[:, :1], 16)  # the very token that is to be predicted
    assert not torch.equal(changed, IDS)
    assert torch.equal(ours(IDS, **call), ours(changed, **call))
    words = in_their_words(call, torch.float32)
    far = (original(IDS, **words).logits - original(changed, **words).logits).abs().max()
    assert float(far) > 1e-3


# --- The order ------------------------------------------------------------------------------------


class Adapter(Model):
    """How the contract calls it."""

    causal = takes_positions = False

    def logits(self, ids, mask=None, position_ids=None):
        return self.module(ids, mask)


@pytest.mark.slow
@pytest.mark.plain_types
def test_the_contract_is_kept():
    adapter = Adapter(small(), 17)
    adapter.without_gradient = dict.fromkeys(
        ("mask_embedding", "segment"), "no targets, no segments"
    )
    report = contract(adapter)
    assert report, report
    held = {each.name for each in report.results if each.outcome == "holds"}
    assert {"batch = single", "masked tokens do not matter", "order matters"} <= held, report


@pytest.mark.parametrize("predicted", [None, PREDICTED])
def test_information_flows_along_the_order_alone(predicted):
    """Through two layers no target gets a gradient from a token at or after it in the order, and every other one."""
    model = small()
    _, query = permutation_masks(ORDER, predicted)
    every = target_mapping(torch.arange(6).expand(2, -1), 6)
    vectors = []
    model.embedding.register_forward_hook(
        lambda m, x, y: vectors.append(y.detach().requires_grad_()) or vectors[-1]
    )
    logits = model(IDS, perm_mask=~query[:, 0], target_mapping=every)
    for target in range(6):
        (found,) = torch.autograd.grad(logits[:, target].sum(), vectors, retain_graph=True)
        reached = (found != 0).any(-1)  # B L
        if predicted is None:
            wanted = query[:, 0, target]
            assert torch.equal(reached, wanted)
        elif predicted[0, target]:
            assert not reached[:, target].any()
            assert torch.equal(reached, query[:, 0, target])


@torch.no_grad()
def test_left_to_right_is_one_of_the_orders():
    """Targets in the usual order: other tokens at and after the target change nothing."""
    model, order = small(), torch.arange(6).expand(2, -1).contiguous()
    call = {
        "perm_mask": ~permutation_masks(order)[1][:, 0],
        "target_mapping": target_mapping(torch.full((2, 1), 3), 6),
    }
    changed = IDS.clone()
    changed[:, 3:] = (changed[:, 3:] + 5) % 17
    torch.testing.assert_close(model(IDS, **call), model(changed, **call))
    changed[:, 2] = (changed[:, 2] + 5) % 17
    assert not torch.allclose(model(IDS, **call), model(changed, **call))


@torch.no_grad()
def test_targets_are_predicted_in_every_sequence_of_a_batch():
    """The bug of transformers 2359: a batch gives what each sequence gives alone."""
    model, call = small(), CALLS["all"]
    both = model(IDS, **call)
    for b in range(2):
        alone = model(IDS[b : b + 1], **{n: a[b : b + 1] for n, a in call.items()})
        torch.testing.assert_close(both[b : b + 1], alone)


@pytest.mark.plain_types
def test_bad_input_is_refused():
    model = small()
    with pytest.raises(ValueError, match="input_ids: expected"):
        model(IDS + 17)
    with pytest.raises(ValueError, match="perm_mask: expected"):
        model(IDS, perm_mask=HIDDEN[:, :5])
    with pytest.raises(ValueError, match="target_mapping: expected"):
        model(IDS, target_mapping=TARGETS[:, :, :5])
    vectors = torch.zeros(2, 6, 12).double()
    with pytest.raises(ValueError, match="mapping: expected a tensor: targets and mapping come"):
        model.layers[0].attention(vectors, vectors, encodings=vectors[0])
    with pytest.raises(ValueError, match="order: expected .* a number below L = 2"):
        permutation_masks(torch.tensor([[1, 2]]))
    with pytest.raises(ValueError, match="targets: expected"):
        target_mapping(torch.tensor([[3]]), 3)
    with pytest.raises(ValueError, match="num_heads: expected a number that divides"):
        XLNetConfig(17, d_model=12, num_heads=5)
