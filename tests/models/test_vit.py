"""The Vision Transformer: equal to transformers', at every size of image."""

import itertools
import json
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

pytest.importorskip("transformers")

import transformers as hf
from safetensors.torch import load_file, save_file

from hf_copies import assert_comes_back, loaded
from same_numbers import assert_same_numbers, in_dtype, shake
from tested_transformer.models.families.vit import FAMILY
from tested_transformer.models.loading import from_pretrained, save_pretrained
from tested_transformer.models.vit import (
    PatchEmbedding,
    VisionTransformer,
    VisionTransformerConfig,
    image_patches,
    interpolate_positions,
)
from tested_transformer.specs.adapters import Model
from tested_transformer.specs.contract import contract

SMALL = {
    "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 20,
    "image_size": 8, "patch_size": 2, "num_channels": 5, "num_labels": 7,
}  # fmt: skip
VARIANTS = [
    {},
    {"qkv_bias": False},
    {"hidden_act": "relu", "layer_norm_eps": 1e-2},
    {"hidden_act": "gelu_new", "encoder_stride": 4},
    {"hidden_act": "silu", "num_labels": 2},
    {"image_size": [6, 10]},
    {"image_size": [6, 12], "patch_size": [2, 3], "num_channels": 1},
    {"image_size": 9, "patch_size": [3, 3], "num_attention_heads": 1},
]
CLASSES = {"head": hf.ViTForImageClassification, "none": hf.ViTModel}
EACH = pytest.mark.parametrize("kind", CLASSES)
EVERY = pytest.mark.parametrize("changes", VARIANTS, ids=str)


def small(kind, seed=0, **changes):
    """A model with random weights, all sizes different."""
    config = hf.ViTConfig(**SMALL | changes, attn_implementation="sdpa")
    return shake(CLASSES[kind](config), seed).eval()


def images(theirs, seed=0, batch=2, size=None):
    """Of a size of their own, or of the model's."""
    size = from_config(theirs).image_size if size is None else size
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, theirs.config.num_channels, *size, generator=generator)


def from_config(theirs):
    """Our configuration of theirs."""
    options = json.loads(theirs.config.to_json_string())
    return FAMILY.read(FAMILY.options(options | {"architectures": [type(theirs).__name__]}))


def assert_agree(theirs, given, **options):
    """The logits, or the hidden states and the pooled vector, and the gradient of every weight."""
    ours = loaded(theirs)

    def answers(twin, given):
        if isinstance(twin, VisionTransformer):
            answer = twin(given, **options)
            return [answer] if twin.pooler is None else [answer, twin.pool(answer)]
        answer = twin(given, **options)
        if "logits" in answer:
            return [answer.logits]
        return [answer.last_hidden_state, answer.pooler_output]

    def run(dtype, module):
        twin, pixels = in_dtype(module, dtype), given.detach().to(dtype).clone().requires_grad_()
        found = answers(twin, pixels)
        for each in found:
            noise = torch.randn(each.shape, generator=torch.Generator().manual_seed(3))
            (each * noise.to(dtype)).sum().backward(retain_graph=True)
        gradients = {name: each.grad for name, each in twin.named_parameters()}
        if module is ours:
            gradients = {w.name: w.to_disk(gradients) for w in FAMILY.weights(twin)}
        else:
            gradients = {in_file(name): each for name, each in gradients.items()}
        gradients = [gradients[name] for name in sorted(gradients)]
        return {"answers": found, "gradients": gradients, "of the pixels": [pixels.grad]}

    def in_file(name):
        """What transformers calls it on disk."""
        for new, old in NAMES.items():
            name = name.replace(new, old)
        return name if name.startswith(("vit.", "classifier")) else f"vit.{name}"

    return assert_same_numbers(lambda dtype: run(dtype, ours), lambda dtype: run(dtype, theirs))


NAMES = {  # as this version has them in memory -> as every version writes them
    "layers.": "encoder.layer.", "attention.o_proj": "attention.output.dense",
    "attention.q_proj": "attention.attention.query", "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value", "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}  # fmt: skip


# --- The same numbers -----------------------------------------------------------------------------


@EACH
@EVERY
def test_answers_and_gradients(kind, changes):
    theirs = small(kind, 1, **changes)
    assert_agree(theirs, images(theirs, 1, batch=3))


@EACH
@pytest.mark.parametrize("size", [(8, 12), (12, 8), (10, 10), (6, 4), (2, 22)])
def test_images_of_another_size(kind, size):
    """Bicubic positions: values and gradients."""
    theirs = small(kind, 2)
    assert_agree(theirs, images(theirs, 2, size=size), interpolate_pos_encoding=True)


@pytest.mark.slow
def test_positions_at_every_grid_from_14_to_30():
    """289 grids, square and not, of a model that has 14 x 14 patches of two pixels."""
    theirs = small("none", 3, image_size=28).double()
    ours = loaded(theirs)
    for grid in itertools.product(range(14, 31), repeat=2):
        given = images(theirs, 3, batch=1, size=(2 * grid[0], 2 * grid[1])).double()
        with torch.no_grad():
            wanted = theirs.embeddings(given, interpolate_pos_encoding=True)
            found = ours.embedding(given, interpolate_pos_encoding=True)
        assert found.shape == (1, 1 + grid[0] * grid[1], 12)
        assert torch.equal(found, wanted), grid


def test_a_grid_that_is_not_square_is_kept():
    """Theirs take any number of positions for a square; ours know which rows and columns they have."""
    table = (
        torch.arange(3.0).repeat_interleave(5)[:, None] + 10 * torch.arange(5.0).repeat(3)[:, None]
    )
    table = torch.cat([torch.tensor([[-7.0]]), table])
    assert torch.equal(interpolate_positions(table, (3, 5), (3, 5)), table)
    found = interpolate_positions(table, (3, 5), (6, 10))
    assert found[0] == -7.0
    rows = found[1:, 0].view(6, 10)
    assert (rows.diff(dim=0) > 0).all()
    assert (rows.diff(dim=1) > 0).all()


@pytest.mark.parametrize("patch", [(2, 2), (2, 3), (4, 1), (8, 12)])
def test_a_convolution_is_a_linear_layer_over_patches(patch):
    config = VisionTransformerConfig((8, 12), patch, num_channels=5, d_model=6, num_heads=1)
    embedding = PatchEmbedding(config).double()
    given = torch.randn(2, 5, 8, 12, dtype=torch.float64)
    patches = image_patches(given, patch)
    high, wide = patch
    by_unfold = functional.unfold(given, patch, stride=patch).transpose(1, 2)
    assert torch.equal(patches, by_unfold)
    linear = patches @ embedding.projection.weight.flatten(1).T + embedding.projection.bias
    by_convolution = embedding.projection(given).flatten(2).transpose(1, 2)
    torch.testing.assert_close(linear, by_convolution, rtol=1e-12, atol=1e-12)
    last = given[0, 3, -high:, -wide:]
    assert torch.equal(patches[0, -1].view(5, high, wide)[3], last)


def test_without_positions_patches_may_be_shuffled():
    ours = loaded(small("head", 4)).double()
    given = torch.randn(2, 5, 8, 8, dtype=torch.float64)
    shuffled = image_patches(given, (2, 2))[:, torch.randperm(16)].transpose(1, 2)
    shuffled = functional.fold(shuffled, (8, 8), (2, 2), stride=2)
    with torch.no_grad():
        assert not torch.allclose(ours(given), ours(shuffled))
        ours.embedding.positions[:, 1:] = 0.0
        torch.testing.assert_close(ours(given), ours(shuffled))


def test_attention_weights():
    theirs = small("head", 5)
    ours, given = loaded(theirs), images(theirs, 5)
    with torch.no_grad():
        logits, weights = ours(given, return_weights=True)
        theirs.set_attn_implementation("eager")
        wanted = theirs(given, output_attentions=True)
    torch.testing.assert_close(logits, wanted.logits)
    assert len(weights) == 3
    for mine, yours in zip(weights, wanted.attentions, strict=True):
        torch.testing.assert_close(mine, yours)
        torch.testing.assert_close(mine.sum(-1), torch.ones(2, 3, 17))


# --- The contract ---------------------------------------------------------------------------------


class RowOfPatches(Model):
    """A text is a row of nine patches, one for each id; a token's features are the patch's."""

    causal, max_length = False, 9

    def __init__(self, module):
        super().__init__(module, 12)
        generator = torch.Generator().manual_seed(0)
        self.patches = torch.randn(12, 5, 2, 2, generator=generator)

    takes_mask = takes_positions = False

    def logits(self, ids, mask=None, position_ids=None):
        pixels = self.patches.to(self.module.norm.weight.dtype)[ids]  # B L C h w
        pixels = pixels.permute(0, 2, 3, 1, 4).flatten(3)
        return self.module(pixels, interpolate_pos_encoding=True)[:, 1:]


@pytest.mark.slow
@pytest.mark.plain_types
def test_the_contract_is_kept():
    config = replace(from_config(small("none", image_size=[2, 18])), pooler=False)
    report = contract(RowOfPatches(shake(VisionTransformer(config), 6)))
    assert report, report
    held = {each.name for each in report.results if each.outcome == "holds"}
    assert {"order matters", "low precision agrees", "evaluation is deterministic"} <= held, report


# --- There and back -------------------------------------------------------------------------------


@EACH
@EVERY
def test_what_comes_back_is_what_went(kind, changes, tmp_path):
    assert_comes_back(small(kind, 8, **changes), tmp_path)


@EACH
def test_a_model_of_ones_own_goes_to_transformers(kind, tmp_path):
    options = {"num_labels": 3} if kind == "head" else {"pooler": True}
    sizes = {"d_model": 12, "num_heads": 2, "num_layers": 2, "d_ff": 10}
    config = VisionTransformerConfig((4, 6), (2, 2), **sizes, **options, dropout=0.25)
    ours = shake(VisionTransformer(config), 9).eval()
    save_pretrained(ours, tmp_path)
    theirs = CLASSES[kind].from_pretrained(tmp_path).eval()
    assert theirs.config.hidden_dropout_prob == theirs.config.attention_probs_dropout_prob == 0.25
    given = images(theirs, 9)
    with torch.no_grad():
        answer = theirs(given)
        wanted = answer.logits if kind == "head" else answer.last_hidden_state
        torch.testing.assert_close(ours(given), wanted)
    assert from_pretrained(tmp_path).config == replace(config, dropout=0.0)


def test_dropout_is_theirs():
    ours = loaded(small("head", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.2))
    layer = ours.layers[-1]
    found = [ours.embedding.dropout.p, layer.attention.dropout, layer.feed_forward.dropout.p]
    assert found == [0.1, 0.2, 0.0]
    assert [each.dropout.p for each in layer.residuals] == [0.1, 0.1]


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ((768, 12, 12, 3072), 86_567_656),
        ((192, 12, 3, 768), 5_717_416),
        ((1024, 24, 16, 4096), 304_326_632),
    ],
)
def test_number_of_parameters(sizes, count):
    """ViT-Base, DeiT-Tiny and ViT-Large with 1000 labels, without memory for them."""
    width, layers, heads, d_ff = sizes
    config = VisionTransformerConfig(
        num_labels=1000, d_model=width, num_layers=layers, num_heads=heads, d_ff=d_ff
    )
    with torch.device("meta"):
        ours = VisionTransformer(config)
        theirs = hf.ViTForImageClassification(
            hf.ViTConfig(hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
                         intermediate_size=d_ff, num_labels=1000)
        )  # fmt: skip
    counts = [sum(each.numel() for each in model.parameters()) for model in (ours, theirs)]
    assert counts == [count, count]


# --- Bad input ------------------------------------------------------------------------------------


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m(torch.zeros(1, 5, 8, 10)), ValueError,
         "images: expected 8 x 8 pixels, or interpolate_pos_encoding=True, got 8 x 10 pixels"),
        (lambda m: m(torch.zeros(1, 5, 9, 8), interpolate_pos_encoding=True), ValueError,
         r"images: expected multiples of the patch size \(2, 2\), got 9 x 8 pixels"),
        (lambda m: m(torch.zeros(1, 5, 0, 8), interpolate_pos_encoding=True), ValueError,
         "images: expected multiples of the patch size .*, got 0 x 8 pixels"),
        (lambda m: m(torch.zeros(1, 3, 8, 8)), ValueError,
         r"images: expected shape \(B, C, H, W\) = \(B, 5, H, W\)"),
        (lambda m: m(torch.zeros(5, 8, 8)), ValueError, r"images: expected 4 axes \(B, C, H, W\)"),
        (lambda m: m(torch.zeros(1, 5, 8, 8, dtype=torch.uint8)), TypeError,
         "images: expected a floating point dtype, got torch.uint8"),
        (lambda m: m(torch.zeros(1, 5, 8, 8).double()), TypeError, "images: expected .*float32"),
        (lambda m: m.pool(torch.zeros(1, 3, 12)), ValueError,
         "self.config.pooler: expected True, got False"),
    ],
)  # fmt: skip
def test_images_that_do_not_fit(call, error, message):
    with pytest.raises(error, match=message):
        call(loaded(small("head")))


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": (8, 9), "patch_size": (2, 2)}, "image_size: expected multiples of the patch"),
        ({"image_size": (8, 0)}, "image_size.*: expected at least 1, got 0"),
        ({"num_heads": 5}, "num_heads: expected .*a number that divides d_model = 768, got 5"),
        ({"norm_placement": "post"}, 'norm_placement: expected "pre", got .post'),
        ({"positions": "none"}, "positions: expected .*learned"),
    ],
)  # fmt: skip
def test_configurations_that_do_not_fit(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        VisionTransformerConfig(**options)


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architectures": ["ViTForMaskedImageModeling"]}, "architectures: expected .*ViTModel"),
        ({"hidden_act": "quick_gelu"}, "hidden_act: expected one of .*, got 'quick_gelu'"),
        ({"pooler_act": "relu"}, 'pooler_act: expected "tanh", got .relu'),
        ({"pooler_output_size": 5}, "pooler_output_size: expected hidden_size = 12, got 5"),
        ({"image_size": [8, 8, 8]}, r"image_size: expected a number, or height and width, got \[8"),
        ({"image_size": 10}, r"position_embeddings: expected shape \(1, 26, 12\), got shape \(1, 17"),
        ({"patch_size": 3}, "image_size: expected multiples of the patch size"),
        ({"id2label": {"0": "a"}}, r"classifier.weight: expected shape \(1, 12\), got .*\(7, 12\)"),
        ({"mask_ratio": 0.5}, "mask_ratio: expected no such option of vit"),
    ],
)  # fmt: skip
def test_options_that_are_not_supported(options, message, tmp_path):
    small("head").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | options))
    with pytest.raises(ValueError, match=message):
        from_pretrained(tmp_path)


@pytest.mark.plain_types
def test_weights_that_do_not_fit(tmp_path):
    small("none").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file({n: t for n, t in tensors.items() if "cls_token" not in n}, path)
    with pytest.raises(ValueError, match=r"got vit.embeddings.cls_token missing"):
        from_pretrained(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"model.safetensors: expected a whole file"):
        from_pretrained(tmp_path)


@pytest.mark.plain_types
def test_models_that_the_family_does_not_have(tmp_path):
    config = VisionTransformerConfig((4, 4), (2, 2), d_model=4, num_heads=1, num_layers=1)
    for changes, message in (
        ({}, "expected pooler = True, as vit has it, got pooler = False"),
        ({"num_labels": 2, "norm": "rms"}, "expected norm = 'layer', as vit has it"),
        ({"num_labels": 2, "bias": False}, "expected bias = True, as vit has it"),
    ):
        with pytest.raises(ValueError, match=message):
            save_pretrained(VisionTransformer(replace(config, **changes)), tmp_path / "new")


@pytest.mark.plain_types
def test_positions_that_do_not_fit():
    with pytest.raises(ValueError, match="positions: expected 3 x 3 patches and what comes before"):
        interpolate_positions(torch.zeros(8, 2), (3, 3), (4, 4))
    with pytest.raises(ValueError, match=r"size\[1\]: expected at least 1, got 0"):
        interpolate_positions(torch.zeros(9, 2), (3, 3), (4, 0))
