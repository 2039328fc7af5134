"""T5 and Flan-T5: transformers' numbers and tokens, there and back, and where its positions act."""

import dataclasses
import json
from dataclasses import replace

import pytest
import torch

pytest.importorskip("transformers")

import transformers as hf
from safetensors.torch import load_file, save_file
from torch import nn

from hf_copies import assert_comes_back, loaded, padded
from same_numbers import assert_float32_same, in_dtype, shake
from tested_transformer.generation.beam_search import beam_search
from tested_transformer.generation.decoding_state import Seq2SeqState
from tested_transformer.generation.generate import generate
from tested_transformer.layers.gated_feed_forward import GatedFeedForward
from tested_transformer.layers.own_scale import OwnScaleAttention
from tested_transformer.models.loading import (
    FAMILIES,
    described,
    from_pretrained,
    save_pretrained,
)
from tested_transformer.models.t5 import T5, T5Config
from tested_transformer.specs.contract import contract

PAD = 0
SMALL = {
    "vocab_size": 17, "d_model": 12, "d_kv": 4, "d_ff": 20, "num_layers": 2,
    "num_decoder_layers": 3, "num_heads": 5, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20, "dropout_rate": 0.0, "pad_token_id": PAD,
    "eos_token_id": 1, "decoder_start_token_id": PAD,
}  # fmt: skip
V1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
VARIANTS = [
    {},
    V1_1,
    {"num_decoder_layers": None, "relative_attention_num_buckets": 33, "layer_norm_epsilon": 1e-2},
    {"feed_forward_proj": "gated-silu", "num_heads": 1, "relative_attention_max_distance": 9},
    {"head": False, "feed_forward_proj": "gelu_new"},
]
EVERY = pytest.mark.parametrize("changes", VARIANTS)
PADDED = [("left", {}), *zip(("none", "right", "left", "right", "none"), VARIANTS, strict=True)]


def small(seed=0, *, head=True, **changes):
    """A T5 with random weights; version 1.1 has an output layer of its own, as its released models."""
    model = hf.T5ForConditionalGeneration if head else hf.T5Model
    theirs = model(hf.T5Config(**SMALL | changes))
    if head and not theirs.config.scale_decoder_outputs:
        theirs.lm_head.weight = nn.Parameter(theirs.lm_head.weight.detach().clone())
    return shake(theirs, seed).eval()


def texts(seed, padding, batch=3, lengths=(25, 31)):
    """Source and target with their masks, or None without padding; longer than the exact buckets reach."""
    generator, found = torch.Generator().manual_seed(seed), []
    for length in lengths:
        ids = torch.randint(3, 17, (batch, length), generator=generator)
        found += padded(ids, padding, shorter=4, pad_id=PAD)
    return found


def assert_agree(theirs, source, source_mask, target, target_mask):
    """Logits of the real tokens, and the gradient of every weight; those of tied matrices are one."""
    ours, family = loaded(theirs), FAMILIES["t5"]
    real = torch.ones_like(target, dtype=torch.bool) if target_mask is None else target_mask

    def run(dtype, module):
        twin = in_dtype(module, dtype)
        if module is ours:
            logits = twin(
                source, target, attention_mask=source_mask, decoder_attention_mask=target_mask
            )[real]
        else:
            masks = [None if mask is None else mask.long() for mask in (source_mask, target_mask)]
            logits = twin(
                input_ids=source, attention_mask=masks[0], decoder_input_ids=target,
                decoder_attention_mask=masks[1], use_cache=False,
            )[0][real]  # fmt: skip
        noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(3))
        (logits * noise.to(dtype)).sum().backward()
        if module is ours:
            state = {n: p.grad for n, p in twin.named_parameters(remove_duplicate=False)}
            gradients = {w.name: w.to_disk(state) for w in family.weights(twin)}
        else:
            gradients = {name: each.grad for name, each in twin.named_parameters()}
        return {"logits": [logits], "gradients": [gradients[name] for name in sorted(gradients)]}

    assert_float32_same(lambda dtype: run(dtype, ours), lambda dtype: run(dtype, theirs))


# --- The same numbers -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("padding", "changes"), PADDED)
def test_logits_and_gradients(padding, changes):
    assert_agree(small(1, **changes), *texts(1, padding))


@pytest.mark.parametrize("chunk", [1, 9])
def test_a_target_in_chunks_equals_one_pass(chunk):
    """The bias counts what the cache holds; candle's did not (pull request 899)."""
    ours = loaded(small(2, **V1_1)).double()
    source, source_mask, target, mask = texts(2, "left")
    with torch.no_grad():
        memory = ours.encode(source, attention_mask=source_mask)
        visible = ours.padding(source, source_mask)
        whole = ours.decode(target, memory, memory_mask=visible, decoder_attention_mask=mask)
        cache, pieces = ours.new_cache(), []
        for start in range(0, 31, chunk):
            end = min(start + chunk, 31)
            options = {"memory_mask": visible, "decoder_attention_mask": mask[:, :end]}
            pieces.append(ours.decode(target[:, start:end], memory, cache=cache, **options))
    torch.testing.assert_close(torch.cat(pieces, dim=1)[mask], whole[mask])


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "beams"), [({}, 3), (V1_1, 1)])
def test_generated_tokens_are_theirs(changes, beams):
    """With as many layers in both stacks: their cache (5.23) has no place for more in the decoder."""
    theirs = small(3, num_decoder_layers=2, **changes).double()
    with torch.no_grad():
        theirs.get_output_embeddings().weight[PAD] = 0.0  # a logit of 0, never the largest
        theirs.shared.weight *= 3  # so that what it generates is not one token over and over
    source, mask, _, _ = texts(3, "left")
    options = {} if beams == 1 else {"num_beams": beams, "early_stopping": "never"}
    wanted = theirs.generate(
        source, attention_mask=mask.long(), max_new_tokens=12, do_sample=False, **options
    )
    start, ours = torch.full((3, 1), PAD), loaded(theirs)
    for cache in (True, False):
        state = Seq2SeqState(ours, source, attention_mask=mask, cache=cache)
        search = generate if beams == 1 else beam_search
        options = {} if beams == 1 else {"num_beams": beams}
        found = search(state, start, max_new=12, eos=1, padding=PAD, **options)
        assert torch.equal(torch.cat([start, found.tokens], dim=1), wanted)


@pytest.mark.slow
@pytest.mark.plain_types
def test_the_contract_is_kept():
    report = contract(loaded(small(4, **V1_1), pad_id=PAD))
    assert report, report
    held = {each.name for each in report.results if each.outcome == "holds"}
    assert {"batch = single", "every parameter learns", "cached = uncached, with padding"} <= held
    assert {"padding of the source does not matter", "greedy generation is argmax"} <= held


# --- Where the positions act ----------------------------------------------------------------------


def test_one_bias_for_all_layers_of_a_stack():
    """It is stored in the first layer and used in all (transformers issues 13397 and 10221)."""
    theirs = small(5)
    ours = loaded(theirs)
    assert sum(p.numel() for p in ours.parameters()) == theirs.num_parameters()
    for stack in (ours.encoder, ours.decoder):
        tables = [layer.attention.positions.table for layer in stack.layers]
        assert all(table is tables[0] for table in tables)
    assert ours.encoder.layers[0].attention.positions.bidirectional
    assert not ours.decoder.layers[0].attention.positions.bidirectional
    last = ours.decoder.layers[-1].attention  # what happens to the table happens there
    x = torch.randn(2, 4, 12, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        before = last(x)
        ours.decoder.layers[0].attention.positions.table[0] += 3.0
        assert not torch.allclose(last(x), before)


def test_no_positions_in_cross_attention():
    """transformers had a bias there (pull request 8518): the order of the source's encoding is no matter."""
    ours = loaded(small(6)).double()
    assert all(layer.cross_attention.positions is None for layer in ours.decoder.layers)
    source, _, target, _ = texts(6, "none")
    with torch.no_grad():
        memory = ours.encode(source)
        torch.testing.assert_close(ours.decode(target, memory.flip(1)), ours.decode(target, memory))
        assert not torch.allclose(ours.encode(source.flip(1)).flip(1), memory)


def test_scores_are_not_scaled():
    attention = OwnScaleAttention(8, 2, scale=1.0).double()
    usual = OwnScaleAttention(8, 2, scale=4**-0.5).double()
    usual.load_state_dict(attention.state_dict())
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    with torch.no_grad():
        assert not torch.allclose(attention(x), usual(x))
        usual.query.weight *= 2
        usual.query.bias *= 2
        torch.testing.assert_close(attention(x), usual(x))


def test_any_activation_may_be_the_gate():
    network = GatedFeedForward(4, 6, activation="gelu", bias=False)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(8))
    gate = nn.functional.gelu(network.gate_proj(x))
    torch.testing.assert_close(network(x), network.down_proj(gate * network.up_proj(x)))


# --- There and back -------------------------------------------------------------------------------


@EVERY
def test_what_comes_back_is_what_went(changes, tmp_path):
    assert_comes_back(small(9, **changes), tmp_path)


@pytest.mark.parametrize("changes", [{}, V1_1, {"head": False}])
def test_a_model_of_ones_own_goes_to_transformers(changes, tmp_path):
    """One that was never loaded: its configuration alone says what it is."""
    config = loaded(small(**changes)).config
    ours = shake(T5(config), 10).eval()
    save_pretrained(ours, tmp_path)
    model = hf.T5Model if not config.head else hf.T5ForConditionalGeneration
    theirs = model.from_pretrained(tmp_path).eval()
    assert theirs.config.architectures == [model.__name__]
    source, mask, target, _ = texts(10, "right")
    with torch.no_grad():
        wanted = theirs(source, attention_mask=mask.long(), decoder_input_ids=target)[0]
    torch.testing.assert_close(ours(source, target, attention_mask=mask), wanted)
    assert from_pretrained(tmp_path).config == replace(config, dropout=0.0)


def test_older_files(tmp_path):
    """The embedding under all its names, the class's first name, and a bias that nobody used."""
    theirs = small(11)
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors["shared.weight"].clone()
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    save_file(tensors | {unused: torch.ones(8, 5)}, tmp_path / "model.safetensors")
    path = tmp_path / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    older = {n: v for n, v in config.items() if n not in ("scale_decoder_outputs", "dense_act_fn")}
    older |= {"architectures": ["T5WithLMHeadModel"], "n_positions": 512, "output_past": True}
    path.write_text(json.dumps(older), encoding="utf-8")
    source, _, target, _ = texts(11, "none")
    assert torch.equal(from_pretrained(tmp_path)(source, target), loaded(theirs)(source, target))


# --- Real configurations, and what is refused -----------------------------------------------------

T5_SMALL = {
    "architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64, "d_model": 512,
    "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
    "initializer_factor": 1.0, "is_encoder_decoder": True, "layer_norm_epsilon": 1e-06,
    "model_type": "t5", "n_positions": 512, "num_heads": 8, "num_layers": 6, "output_past": True,
    "pad_token_id": 0, "relative_attention_num_buckets": 32, "use_cache": True,
    "vocab_size": 32128,
    "task_specific_params": {"summarization": {"num_beams": 4, "prefix": "summarize: "}},
}  # fmt: skip
REAL = {
    "t5-small": (T5_SMALL, 60_506_624),
    "t5-base": (
        T5_SMALL | {"d_ff": 3072, "d_model": 768, "num_heads": 12, "num_layers": 12},
        222_903_552,
    ),
    "flan-t5-base": (
        T5_SMALL | {
            "d_ff": 2048, "d_model": 768, "num_heads": 12, "num_layers": 12,
            "num_decoder_layers": 12, "feed_forward_proj": "gated-gelu",
            "relative_attention_max_distance": 128, "tie_word_embeddings": False,
        },
        247_577_856,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_configurations_are_read_whole(name, tmp_path):
    config, count = REAL[name]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    family, theirs = described(tmp_path)
    with torch.device("meta"):
        ours = family.build(family.read(family.options(theirs)))
    found = sum(each.numel() for each in ours.parameters())
    assert found == count  # theirs ties what Flan's files do not


def test_every_option_of_theirs_is_known_with_its_default():
    family = FAMILIES["t5"]
    fields = {each.name: each.default for each in dataclasses.fields(hf.T5Config)}
    for name, value in family.defaults.items():
        if name in fields:
            assert value == fields[name], name
    assert family.read(family.options(json.loads(hf.T5Config().to_json_string())))


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feed_forward_proj": "gated-tanh"}, "feed_forward_proj: expected .*, got 'gated-tanh'"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder: expected True, got False"),
        (
            {"tie_word_embeddings": False, "scale_decoder_outputs": True},
            "scale_decoder_outputs: expected False, with tie_word_embeddings = False, got True",
        ),
        ({"relative_attention_max_distance": 4}, "max_distance: expected more than 4, .*, got 4"),
        ({"relative_attention_num_buckets": 2}, "num_buckets: expected at least 4"),
        ({"architectures": ["T5EncoderModel"]}, "architectures: expected .*, got .*T5EncoderMod"),
    ],
)
def test_options_that_are_not_supported(options, message, tmp_path):
    small().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | options), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        from_pretrained(tmp_path)


@pytest.mark.plain_types
def test_fields_that_do_not_fit():
    with pytest.raises(ValueError, match="num_heads: expected"):
        T5Config(num_heads=0)
    with pytest.raises(ValueError, match="max_distance: expected more than 16"):
        T5Config(max_distance=16)
    with pytest.raises(TypeError, match="gated: expected"):
        T5Config(gated=1)
