"""BERT and ALBERT: transformers' numbers with every head, there and back, and what is refused."""

import dataclasses
import json
from dataclasses import replace

import pytest
import torch

pytest.importorskip("transformers")

import transformers as hf
from safetensors.torch import load_file, save_file

from hf_copies import PAD, assert_comes_back, loaded, padded
from same_numbers import assert_same_numbers, in_dtype, shake
from tested_transformer.models.bert import Bert, BertConfig, PreTrainingLogits
from tested_transformer.models.loading import (
    FAMILIES,
    described,
    from_pretrained,
    save_pretrained,
)
from tested_transformer.specs.contract import contract

SMALL = {
    "vocab_size": 17, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 20, "max_position_embeddings": 40, "pad_token_id": PAD,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
ALBERT = {"embedding_size": 8, "classifier_dropout_prob": 0.0}
ARCHITECTURES = [name for kind in ("bert", "albert") for name in FAMILIES[kind].architectures]
EACH = pytest.mark.parametrize("name", ARCHITECTURES)
MASKED = ("BertForMaskedLM", "AlbertForMaskedLM")
VARIANTS = [
    *[(name, {}) for name in ARCHITECTURES],
    *[("BertForMaskedLM", {"hidden_act": act}) for act in ("gelu_new", "relu", "silu", "swish")],
    ("BertForPreTraining", {"type_vocab_size": 3, "pad_token_id": None, "layer_norm_eps": 1e-2}),
    ("BertForSequenceClassification", {"num_labels": 5, "num_attention_heads": 1}),
    ("BertModel", {"vocab_size": 30, "hidden_size": 10, "num_attention_heads": 2}),
    ("AlbertModel", {"num_hidden_layers": 4, "num_hidden_groups": 2, "embedding_size": 12}),
    ("AlbertModel", {"num_hidden_layers": 3, "inner_group_num": 2, "pad_token_id": None}),
    ("AlbertForMaskedLM", {"num_hidden_layers": 6, "num_hidden_groups": 3, "inner_group_num": 4}),
    ("AlbertForMaskedLM", {"hidden_act": "gelu", "num_hidden_groups": 2, "layer_norm_eps": 1e-2}),
    ("AlbertForSequenceClassification", {"num_labels": 4, "type_vocab_size": 1}),
]
EVERY = pytest.mark.parametrize(("name", "changes"), VARIANTS)


def kind_of(name):
    return "bert" if name.startswith("Bert") else "albert"


def small(name, seed=0, attention="eager", **changes):
    """A model of that class with random weights, all sizes different, without dropout."""
    kind = kind_of(name)
    config = {"bert": hf.BertConfig, "albert": hf.AlbertConfig}[kind]
    options = SMALL | (ALBERT if kind == "albert" else {}) | changes
    return shake(getattr(hf, name)(config(**options, attn_implementation=attention)), seed).eval()


def texts(seed, padding, segments, batch=3, length=9):
    """IDs, mask and segments; the padding token is also a real one, for its embedding is never learned."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 17, (batch, length), generator=generator)
    types = torch.randint(0, segments, (batch, length), generator=generator)
    ids[0, 4] = PAD
    return *padded(ids, padding), types


def ours_and_theirs(theirs, ids, mask=None, types=None, positions=None):
    """Two functions of a dtype: the outputs, real tokens' alone, and every gradient, in their names."""
    ours, family = loaded(theirs), FAMILIES[theirs.config.model_type]
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask

    def outputs(twin):
        answer = twin(ids, mask, types, positions)
        if twin.config.head is None:
            return [answer, twin.pooler(answer)]
        return list(answer) if isinstance(answer, PreTrainingLogits) else [answer]

    def their_outputs(twin):
        given = {"attention_mask": None if mask is None else mask.long(), "token_type_ids": types}
        answer = twin(ids, **given, position_ids=positions)
        return list(answer.to_tuple())

    def run(dtype, module):
        twin = in_dtype(module, dtype)
        found = outputs(twin) if module is ours else their_outputs(twin)
        found = [each[real] if each.ndim == 3 else each for each in found]
        generator = torch.Generator().manual_seed(3)
        noise = [torch.randn(each.shape, generator=generator).to(dtype) for each in found]
        sum((each * n).sum() for each, n in zip(found, noise, strict=True)).backward()
        if module is ours:
            state = dict(twin.named_parameters())
            grads = {
                w.name: w.to_disk({n: state[n].grad for n in w.ours}) for w in family.weights(twin)
            }
        else:
            grads = {named(n, family): p.grad for n, p in twin.named_parameters()}
        return {"outputs": found, "gradients": [grads[name] for name in sorted(grads)]}

    return lambda dtype: run(dtype, ours), lambda dtype: run(dtype, theirs)


def named(name, family):
    """The name of a weight in the file of a model with a head."""
    heads = ("cls.", "predictions.", "classifier.")
    return name if name.startswith((family.base, *heads)) else family.base + name


# --- The same numbers -----------------------------------------------------------------------------


@pytest.mark.plain_types  # other tests check the same shapes
@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_outputs_and_gradients(name, changes, padding):
    attention = "sdpa" if padding == "right" else "eager"
    theirs = small(name, 1, attention, **changes)
    assert_same_numbers(*ours_and_theirs(theirs, *texts(1, padding, theirs.config.type_vocab_size)))


@EACH
def test_segments_and_positions_by_themselves(name):
    """Without token_type_ids all is segment 0; positions may be counted by the caller, far away too."""
    theirs, (ids, mask, types) = small(name, 2), texts(2, "left", 2)
    assert_same_numbers(*ours_and_theirs(theirs, ids))
    counted = (mask.cumsum(1) - 1).clamp(min=0)
    assert_same_numbers(*ours_and_theirs(theirs, ids, mask, types, counted))
    assert_same_numbers(*ours_and_theirs(theirs, ids, None, types, 20 + torch.arange(9)[None]))


@pytest.mark.parametrize(
    "name", ["BertModel", "AlbertForMaskedLM", "BertForSequenceClassification"]
)
def test_padding_leaves_a_text_alone(name):
    """On the right as it is, on the left with positions that count real tokens; the mask may be 0 and 1."""
    ours = loaded(small(name, 3)).double()
    for side in ("right", "left"):
        ids, mask, types = texts(3, side, 2)
        counted = (mask.cumsum(1) - 1).clamp(min=0) if side == "left" else None
        with torch.no_grad():
            hidden = ours.encode(ids, mask, types, counted)
            assert torch.equal(hidden, ours.encode(ids, mask.long(), types, counted))
            for row in range(3):
                kept = mask[row]
                alone = ours.encode(ids[row, kept][None], None, types[row, kept][None])
                torch.testing.assert_close(hidden[row, kept], alone[0])
                if side == "right" and ours.pooler is not None:
                    pooled = ours.pooler(hidden[row : row + 1])
                    torch.testing.assert_close(pooled, ours.pooler(alone))
            assert not torch.allclose(hidden[2, mask[2]], ours.encode(ids, None, types)[2, mask[2]])


@pytest.mark.slow
@EACH
@pytest.mark.plain_types
def test_the_contract_is_kept(name):
    report = contract(loaded(small(name, 4)))
    assert report, report
    asked = {each.name for each in report.results if each.outcome == "holds"}
    assert {"batch = single", "masked tokens do not matter", "every parameter learns"} <= asked
    assert {"position IDs have an effect", "all ways to compute agree"} <= asked


def test_it_reads_in_both_directions():
    """The last token changes the first one's hidden state, and a segment every one's."""
    ours = loaded(small("BertModel", 5))
    ids, _, types = texts(5, "none", 2)
    other, turned = ids.clone(), types.clone()
    other[:, -1] = (ids[:, -1] + 1) % 17
    turned[:, -1] = 1 - types[:, -1]
    before = ours(ids, None, types)
    for after in (ours(other, None, types), ours(ids, None, turned)):
        assert (before - after).abs().amax(-1).min() > 1e-3


# --- There and back -------------------------------------------------------------------------------


@EVERY
def test_what_comes_back_is_what_went(name, changes, tmp_path):
    assert_comes_back(small(name, 6, **changes), tmp_path)


@EACH
def test_a_model_of_ones_own_goes_to_transformers(name, tmp_path):
    """One that was never loaded: its configuration alone says which class it is."""
    config = replace(loaded(small(name, num_labels=3)).config, dropout=0.2, classifier_dropout=0.3)
    ours = shake(Bert(config), 7).eval()
    save_pretrained(ours, tmp_path)
    theirs = getattr(hf, name).from_pretrained(tmp_path).eval()
    assert theirs.config.architectures == [name]
    assert theirs.config.hidden_dropout_prob == 0.2
    ids, mask, types = texts(7, "right", 2)
    with torch.no_grad():
        answer = ours(ids, mask, types)
        wanted = theirs(ids, attention_mask=mask.long(), token_type_ids=types)
    first = answer[0] if isinstance(answer, PreTrainingLogits) else answer
    torch.testing.assert_close(first, wanted[0])
    assert from_pretrained(tmp_path).config == config


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_weights_keep_their_dtype_and_their_ties(dtype, tmp_path):
    theirs = small("BertForPreTraining").to(dtype)
    theirs.save_pretrained(tmp_path, max_shard_size="3KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ours = from_pretrained(tmp_path)
    assert {each.dtype for each in ours.parameters()} == {dtype}
    assert ours.masked_lm.output.weight is ours.embedding.token.weight
    assert sum(p.numel() for p in ours.parameters()) == theirs.num_parameters()
    assert ours.embedding.token.padding_idx == PAD


def test_dropout_is_theirs(tmp_path):
    """Each in its place, none on the hidden features; a classifier may have its own."""
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2}
    name = "BertForSequenceClassification"
    for own, wanted in ((None, 0.1), (0.3, 0.3)):
        ours = loaded(small(name, classifier_dropout=own, **rates))
        layer = ours.layers[-1]
        assert [ours.embedding.dropout.p, ours.dropout.p] == [0.1, wanted]
        assert [layer.attention.dropout, layer.feed_forward.dropout.p] == [0.2, 0.0]
        assert [each.dropout.p for each in layer.residuals] == [0.1, 0.1]
        save_pretrained(ours, tmp_path)
        config = hf.AutoConfig.from_pretrained(tmp_path)
        assert config.classifier_dropout == own
        assert config.attention_probs_dropout_prob == 0.2
    albert = loaded(small("AlbertForSequenceClassification", classifier_dropout_prob=0.4, **rates))
    assert [albert.dropout.p, albert.layers[0][0].residuals[0].dropout.p] == [0.4, 0.1]


def test_older_files(tmp_path):
    """As on the Hub: gamma and beta, positions as a tensor, the output layer once more, other heads."""
    theirs = small("BertForPreTraining", 8)
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    older = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta"): each
        for name, each in tensors.items()
    }
    older["bert.embeddings.position_ids"] = torch.arange(40)[None]
    table = tensors["bert.embeddings.word_embeddings.weight"].clone()
    older["cls.predictions.decoder.weight"] = table
    older["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    changed = config | {"architectures": ["BertForMaskedLM"]}
    (tmp_path / "config.json").write_text(json.dumps(changed), encoding="utf-8")
    save_file(older, tmp_path / "model.safetensors")
    ids, mask, types = texts(8, "right", 2)
    ours = from_pretrained(tmp_path)
    assert torch.equal(ours(ids, mask, types), loaded(theirs)(ids, mask, types).tokens)
    save_file(older | {"cls.predictions.decoder.weight": table + 1}, tmp_path / "model.safetensors")
    with pytest.raises(
        ValueError, match=r"cls.predictions.decoder.weight: expected bert.embeddings"
    ):
        from_pretrained(tmp_path)


# --- Real configurations --------------------------------------------------------------------------

OF_BERT = {
    "architectures": ["BertModel"], "attention_probs_dropout_prob": 0.1,
    "gradient_checkpointing": False, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "initializer_range": 0.02, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
    "model_type": "bert", "pad_token_id": 0, "position_embedding_type": "absolute",
    "transformers_version": "4.6.0.dev0", "type_vocab_size": 2, "use_cache": True,
}  # fmt: skip
BASE = {
    "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12,
}  # fmt: skip
LARGE = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
    "num_hidden_layers": 24,
}  # fmt: skip
POOLER = {
    "directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3, "pooler_size_per_head": 128, "pooler_type": "first_token_transform",
}  # fmt: skip
OF_ALBERT = {
    "architectures": ["AlbertModel"], "bos_token_id": 2, "classifier_dropout_prob": 0.1,
    "down_scale_factor": 1, "embedding_size": 128, "eos_token_id": 3, "gap_size": 0,
    "initializer_range": 0.02, "inner_group_num": 1, "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512, "model_type": "albert", "net_structure_type": 0,
    "num_hidden_groups": 1, "num_memory_blocks": 0, "pad_token_id": 0, "type_vocab_size": 2,
    "vocab_size": 30000,
}  # fmt: skip
NONE = {"attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0, "hidden_act": "gelu_new"}
XXLARGE = {
    "hidden_size": 4096, "intermediate_size": 16384, "num_attention_heads": 64,
    "num_hidden_layers": 12,
}  # fmt: skip
REAL = {  # the counts of the papers' tables 1 in millions: 110, 340; 12, 235 (ALBERT counts no pooler)
    "bert-base-uncased": (OF_BERT | BASE | {"vocab_size": 30522}, 109_482_240),
    "bert-large-uncased": (OF_BERT | LARGE | {"vocab_size": 30522}, 335_141_888),
    "bert-base-chinese": (OF_BERT | BASE | POOLER | {"vocab_size": 21128}, 102_267_648),
    "albert-base-v1": (
        OF_ALBERT | BASE | {"hidden_act": "gelu", "hidden_dropout_prob": 0.1,
                            "attention_probs_dropout_prob": 0.1},
        11_683_584,
    ),
    "albert-base-v2": (OF_ALBERT | BASE | NONE, 11_683_584),
    "albert-xxlarge-v2": (OF_ALBERT | XXLARGE | NONE | {"layers_to_keep": []}, 222_595_584),
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_real_configurations_are_read_whole(name, tmp_path):
    """Counted on the meta device, where numbers need no memory; and theirs has as many."""
    config, count = REAL[name]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    family, theirs = described(tmp_path)
    with torch.device("meta"):
        ours = family.build(family.read(family.options(theirs)))
        twin = hf.AutoModel.from_config(hf.AutoConfig.from_pretrained(tmp_path))
    assert sum(each.numel() for each in ours.parameters()) == count
    assert twin.num_parameters() == count


@pytest.mark.parametrize("kind", ["bert", "albert"])
def test_every_option_of_theirs_is_known_with_its_default(kind):
    family, config = FAMILIES[kind], {"bert": hf.BertConfig, "albert": hf.AlbertConfig}[kind]
    fields = {each.name: each.default for each in dataclasses.fields(config)}
    for name, value in family.defaults.items():
        if name in fields and name != "id2label":
            assert value == fields[name], name
    assert family.options(json.loads(config().to_json_string()))


# --- What is refused ------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A function that writes a small model with changes of its options and its weights."""

    def make(name="BertForMaskedLM", options=None, change=None):
        small(name, 9).save_pretrained(tmp_path)
        path, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
        config = json.loads(path.read_text(encoding="utf-8")) | (options or {})
        path.write_text(json.dumps(config), encoding="utf-8")
        if change is not None:
            tensors = load_file(weights)
            change(tensors)
            save_file(tensors, weights)
        return tmp_path

    return make


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("BertModel", {"architectures": ["BertForTokenClassification"]}, "architectures: .*Token"),
        ("BertModel", {"is_decoder": True}, "is_decoder: expected False, got True"),
        ("BertModel", {"add_cross_attention": True}, "add_cross_attention: expected False"),
        ("BertForMaskedLM", {"tie_word_embeddings": False}, "tie_word_embeddings: expected True"),
        (
            "BertModel",
            {"position_embedding_type": "relative_key"},
            'position_embedding_type: expected "absolute", got .relative_key',
        ),
        ("BertModel", {"hidden_act": "tanh"}, "hidden_act: expected one of .*, got 'tanh'"),
        ("BertModel", {"embedding_size": 8}, "embedding_size: expected no such option of bert"),
        ("BertModel", {"num_attention_heads": 5}, "num_heads: expected .* divides d_model = 12"),
        ("BertModel", {"pad_token_id": 17}, "pad_id: expected .* below vocab_size = 17, got 17"),
        ("AlbertModel", {"inner_group_num": 5}, "inner_group_num: expected one of .*, got 5"),
        ("AlbertModel", {"num_hidden_groups": 3}, "num_groups: .* divides num_layers = 2, got 3"),
        ("AlbertModel", {"num_hidden_groups": None}, "num_hidden_groups: expected a number"),
        ("AlbertModel", {"net_structure_type": 1}, "net_structure_type: expected 0, got 1"),
        ("AlbertModel", {"model_type": "bert"}, "architectures: .*BertModel.*, got ..AlbertModel"),
    ],
)
def test_options_that_are_not_supported(folder, name, options, message):
    with pytest.raises(ValueError, match=message):
        from_pretrained(folder(name, options))


BIAS = "cls.predictions.bias"


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("name", "options", "change", "message"),
    [
        ("BertForMaskedLM", {}, lambda t: t.pop(BIAS), f"got {BIAS} missing"),
        ("BertForMaskedLM", {"vocab_size": 16}, None, r"word_embeddings.weight: .*\(16, 12\), got"),
        (
            "BertForPreTraining",
            {"architectures": ["BertModel"]},
            None,
            "cls.predictions.* left over",
        ),
        ("BertModel", {"architectures": ["BertForMaskedLM"]}, None, "cls.predictions.* missing"),
        ("BertModel", {"num_hidden_layers": 3}, None, r"bert.encoder.layer.2.* missing"),
        ("AlbertModel", {"num_hidden_groups": 2}, None, "albert_layer_groups.1.* missing"),
        ("AlbertModel", {}, lambda t: t.update(extra=torch.ones(1)), "got extra left over"),
    ],
)
def test_weights_that_do_not_fit(folder, name, options, change, message):
    with pytest.raises(ValueError, match=message):
        from_pretrained(folder(name, options, change))


IDS = torch.ones(2, 3, dtype=torch.long)


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m(IDS + 16), "input_ids: expected .* = 17, got 17 to 17"),
        (lambda m: m(torch.ones(1, 41).long()), "position_ids: expected .* = 40, got 0 to 40"),
        (lambda m: m(IDS, IDS[:, :2]), r"attention_mask: expected shape \(B, L\) = \(2, 3\)"),
        (lambda m: m(IDS, 2 * IDS), "attention_mask: expected at least 0 and at most 1, got 2"),
        (lambda m: m(IDS, None, 2 * IDS), "token_type_ids: expected .* = 2, got 2 to 2"),
        (lambda m: m(IDS, None, IDS, 40 * IDS), "position_ids: expected .* = 40, got 40 to 40"),
        (lambda m: m(IDS[:, :0]), "hidden: expected a first token, got a text without tokens"),
        (
            lambda m: m.logits(torch.ones(2, 3, 5)),
            r"hidden: expected shape \(B, L, D\) = \(B, L, 12",
        ),
    ],
)
def test_calls_that_do_not_fit(call, message):
    with pytest.raises(ValueError, match=message):
        call(loaded(small("BertForNextSentencePrediction")))


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_placement": "pre"}, "norm_placement: expected .*post"),
        ({"positions": "sinusoidal"}, "positions: expected .*learned"),
        ({"scale_embedding": True}, "scale_embedding: expected False"),
        ({"group_size": 2}, "group_size: expected 1, without num_groups, got 2"),
        ({"num_groups": 5}, "num_groups: expected .* divides num_layers = 12, got 5"),
        ({"head": "question"}, "head: expected .*masked_lm"),
        ({"pad_id": 30522}, "pad_id: expected .* below vocab_size = 30522"),
    ],
)
def test_configurations_that_there_are_not(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        BertConfig(**changes)


@pytest.mark.plain_types
def test_models_that_no_family_has(tmp_path):
    config = BertConfig(9, d_model=6, num_heads=3, num_layers=2, max_length=5)
    for changes in ({"norm": "rms"}, {"bias": False}, {"d_embedding": 4}):
        with pytest.raises(ValueError, match=f"model.config: expected .*{next(iter(changes))}"):
            save_pretrained(Bert(replace(config, **changes)), tmp_path / "new")
    save_pretrained(Bert(config), tmp_path / "new")
    assert hf.AutoConfig.from_pretrained(tmp_path / "new").model_type == "bert"
