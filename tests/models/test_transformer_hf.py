"""Against Hugging Face: MarianMT, BART and mBART, loaded from their folders, give the same numbers and tokens."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

import transformers as hf
from safetensors.torch import load_file, save_file

from hf_copies import CLASSES, PAD, assert_comes_back, loaded, small_hf
from same_numbers import assert_same_numbers, in_dtype, shake
from tested_transformer.generation.beam_search import beam_search
from tested_transformer.generation.decoding_state import Seq2SeqState
from tested_transformer.generation.generate import generate
from tested_transformer.models.family import IGNORED
from tested_transformer.models.loading import (
    FAMILIES,
    described,
    from_pretrained,
    save_pretrained,
)
from tested_transformer.models.transformer import Transformer, TransformerConfig
from tested_transformer.specs.contract import contract

KINDS = ["marian", "bart", "mbart"]
EACH = pytest.mark.parametrize("kind", KINDS)
SIZES = {"encoder_layers": 1, "decoder_layers": 4, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
HEADS = {"d_model": 10, "encoder_attention_heads": 5, "decoder_attention_heads": 5}
ONE_HEAD = {"d_model": 10, "encoder_attention_heads": 1, "decoder_attention_heads": 1}
TWO_TABLES = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 13}
VARIANTS = {
    "marian": [
        {},
        {"activation_function": "swish"},
        {"activation_function": "relu", "scale_embedding": False},
        {"activation_function": "gelu_new", "pad_token_id": None},
        SIZES,
        HEADS,
        ONE_HEAD,
        TWO_TABLES,
        TWO_TABLES | {"tie_word_embeddings": False},
        {"head": False},
    ],
    "bart": [
        {},
        {"scale_embedding": False, **SIZES},
        {"activation_function": "gelu_new", "pad_token_id": None, **HEADS},
        {"activation_function": "relu", "head": False},
    ],
    "mbart": [{}, {"activation_function": "relu", "head": False, **ONE_HEAD}],
}
EVERY = pytest.mark.parametrize(
    ("kind", "changes"), [(kind, each) for kind, several in VARIANTS.items() for each in several]
)


def sentences(seed: int, batch: int, *lengths: int, vocab: int = 13) -> list[torch.Tensor]:
    """Token ids, padded right: rows of different lengths, the first one full."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for length in lengths:
        ids = torch.randint(3, vocab, (batch, length), generator=generator)
        rows.append(ids.masked_fill(~mask_of(batch, length, "right"), PAD))
    return rows


def mask_of(batch: int, length: int, side: str) -> torch.Tensor:
    """True for real tokens: two fewer in each row than in the one before, at least one."""
    ends = torch.tensor([max(1, length - 2 * row) for row in range(batch)])[:, None]
    mask = torch.arange(length) < ends
    return mask.flip(1) if side == "left" else mask


def texts(seed: int, padding: str, batch: int = 3, lengths: tuple = (9, 7)) -> list:
    """Source and target with their masks, or None without padding; PAD is a real token too."""
    found = []
    for ids in sentences(seed, batch, *lengths):
        ids = ids.masked_fill(ids == PAD, 5)
        ids[:, 4] = PAD
        found += ids, None if padding == "none" else mask_of(*ids.shape, padding)
    return found


def in_their_dtype(theirs, dtype):
    """A copy; Marian's table of sinusoids, stored in float32, is made anew for float64."""
    twin = in_dtype(theirs, dtype)
    if dtype == torch.float64 and twin.config.model_type == "marian":
        base = getattr(twin, "model", twin)
        for stack in (base.encoder, base.decoder):
            table = stack.embed_positions.weight
            table.copy_(halves(*table.shape))
    return twin


def halves(length: int, width: int) -> torch.Tensor:
    """Sines, then cosines, number by number."""
    table = np.zeros((length, width))
    for place in range(length):
        for i in range(width // 2):
            angle = place / 10000 ** (2 * i / width)
            table[place, i], table[place, width // 2 + i] = np.sin(angle), np.cos(angle)
    return torch.from_numpy(table)


def their_answer(theirs, source, target, source_mask=None, target_mask=None):
    """Logits or the last hidden state, and the encoder's last hidden state."""
    masks = [None if mask is None else mask.long() for mask in (source_mask, target_mask)]
    answer = theirs(
        input_ids=source, attention_mask=masks[0], decoder_input_ids=target,
        decoder_attention_mask=masks[1], use_cache=False,
    )  # fmt: skip
    return answer[0], answer.encoder_last_hidden_state


def assert_agree(theirs, source, source_mask, target, target_mask):
    """Logits and memory of the real tokens, and the gradient of every weight that has one."""
    ours, family = loaded(theirs), FAMILIES[theirs.config.model_type]
    masks = {"attention_mask": source_mask, "decoder_attention_mask": target_mask}
    real = [torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
            for ids, mask in ((source, source_mask), (target, target_mask))]  # fmt: skip

    def run(dtype, module):
        if module is ours:
            twin = in_dtype(ours, dtype)
            memory = twin.encode(source, attention_mask=source_mask)
            logits = twin(source, target, **masks)
        else:
            twin = in_their_dtype(theirs, dtype)
            logits, memory = their_answer(twin, source, target, source_mask, target_mask)
        logits, memory = logits[real[1]], memory[real[0]]
        noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(3))
        (logits * noise.to(dtype)).sum().backward()
        gradients = gradients_of(twin, family.weights(ours))
        return {"logits": [logits], "memory": [memory], "gradients": gradients}

    return assert_same_numbers(lambda d: run(d, ours), lambda d: run(d, theirs))


def gradients_of(module, weights):
    """Of ours or theirs, in the order and the names of theirs."""
    if isinstance(module, Transformer):
        state = {n: p.grad for n, p in module.state_dict(keep_vars=True).items()}
        return [state[w.ours[0]] for w in sorted(weights) if state[w.ours[0]] is not None]
    base = "" if hasattr(module, "model") else FAMILIES[module.config.model_type].base
    every = {base + n: p for n, p in module.named_parameters(remove_duplicate=False)}
    names = sorted(w.name for w in weights if w.name in every)
    learns = {id(p) for p in module.parameters() if p.requires_grad and p.grad is not None}
    assert {id(every[name]) for name in names} >= learns
    return [every[name].grad for name in names]


# --- The same numbers -----------------------------------------------------------------------------


@pytest.mark.plain_types  # other tests check the same shapes
@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@EVERY
@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_logits_and_gradients(kind, changes, padding):
    attention = "eager" if padding == "left" else "sdpa"
    assert_agree(shake(small_hf(kind, attention, **changes), 1), *texts(1, padding))


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", [2, 3])
@EACH
def test_other_weights_and_lengths(kind, seed):
    theirs = shake(small_hf(kind), seed).train(seed == 3)
    assert_agree(theirs, *texts(seed, "left", 2, (6, 11)))


@EACH
def test_padding_by_a_token_is_padding_by_a_mask(kind):
    """A pad_id says the same as the masks, with padding on the right, where positions agree."""
    theirs = shake(small_hf(kind), 4).double().eval()
    source, target = sentences(4, 3, 9, 7)
    with torch.no_grad():
        by_mask = loaded(theirs)(
            source,
            target,
            attention_mask=source != PAD,
            decoder_attention_mask=(target != PAD).int(),
        )
        by_token = loaded(theirs, PAD)(source, target)
    torch.testing.assert_close(by_token[target != PAD], by_mask[target != PAD])


def test_they_are_what_they_are():
    """Three wirings of one model, read from their configurations."""
    marian, bart, mbart = (loaded(small_hf(kind)).config for kind in KINDS)
    assert (marian.norm_placement, marian.positions, marian.final_norm) == (
        "post",
        "sinusoidal",
        False,
    )
    assert (bart.norm_placement, bart.embedding_norm, bart.final_norm) == ("post", True, False)
    assert (mbart.norm_placement, mbart.embedding_norm, mbart.final_norm) == ("pre", True, True)


def test_marians_table_is_ours_in_halves():
    theirs = small_hf("marian")
    ours = loaded(theirs)
    table = theirs.model.encoder.embed_positions.weight
    assert torch.equal(ours.source_embedding.positions(torch.arange(len(table))), table)
    np.testing.assert_allclose(table.double(), halves(*table.shape), atol=2**-24)


def test_the_first_two_learned_positions_belong_to_no_token():
    """BART's own offset: whatever stands there changes nothing, and what comes after does."""
    ours = loaded(shake(small_hf("bart"), 5).eval())
    source, target = sentences(5, 2, 15, 4)
    with torch.no_grad():
        before, positions = ours(source, target), ours.source_embedding.positions
        assert positions.weight.shape == (17, 12)
        positions.weight[:2] += 1.0
        assert torch.equal(ours(source, target), before)
        positions.weight[16] += torch.arange(12)
        assert not torch.equal(ours(source, target), before)


def test_source_padding_on_the_left_moves_their_positions_and_not_ours():
    """Theirs count padding. With it on the left they answer as if the sentence began later."""
    theirs = shake(small_hf("marian"), 5).eval()
    ours = loaded(theirs, PAD)
    source, target = sentences(5, 1, 6, 4)
    padded = torch.cat([torch.full((1, 3), PAD), source], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(ours(padded, target), ours(source, target))
        alone, _ = their_answer(theirs, source, target, source != PAD)
        late, _ = their_answer(theirs, padded, target, padded != PAD)
    assert (alone - late).abs().max() > 0.01


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@EACH
def test_their_cache_and_ours_give_the_same_steps(kind):
    theirs = in_their_dtype(shake(small_hf(kind, use_cache=True), 6).double().eval(), torch.float64)
    ours = loaded(theirs)
    source, mask, target, _ = texts(6, "left", 2, (7, 5))
    cache, past = ours.new_cache(), None
    with torch.no_grad():
        memory = ours.encode(source, attention_mask=mask)
        for step in range(target.shape[1]):
            chunk = target[:, step : step + 1]
            answer = theirs(
                input_ids=source, attention_mask=mask.long(), decoder_input_ids=chunk,
                past_key_values=past, use_cache=True,
            )  # fmt: skip
            past = answer.past_key_values
            visible = ours.padding(source, mask)
            got = ours.decode(chunk, memory, memory_mask=visible, cache=cache)
            torch.testing.assert_close(got, answer.logits, atol=1e-12, rtol=1e-12)


@EACH
@pytest.mark.parametrize("chunk", [1, 2, 4, 5])
def test_a_masked_target_in_chunks_equals_one_pass(kind, chunk):
    """Once with the mask of all tokens so far each time, once where only the first chunk has padding."""
    ours = loaded(shake(small_hf(kind), 7)).double().eval()
    source, source_mask, target, mask = texts(7, "left", 3, (6, 9))
    with torch.no_grad():
        whole = ours(source, target, attention_mask=source_mask, decoder_attention_mask=mask)
        read = {
            "memory": ours.encode(source, attention_mask=source_mask),
            "memory_mask": ours.padding(source, source_mask),
        }
        cache, pieces = ours.new_cache(), []
        for start in range(0, 9, chunk):
            end = min(start + chunk, 9)
            masks = read | {"decoder_attention_mask": mask[:, :end]}
            pieces.append(ours.decode(target[:, start:end], cache=cache, **masks))
        torch.testing.assert_close(torch.cat(pieces, dim=1)[mask], whole[mask])
        cache, masks = ours.new_cache(), read | {"decoder_attention_mask": mask[:, :5]}
        pieces = [ours.decode(target[:, :5], cache=cache, **masks)]
        later = target[:, 5:].split(chunk, dim=1)
        pieces += [ours.decode(piece, cache=cache, **read) for piece in later]
        torch.testing.assert_close(torch.cat(pieces, dim=1)[mask], whole[mask])


# --- The same tokens ------------------------------------------------------------------------------

OURS = {"max_new": 10, "eos": 2, "padding": PAD}


def talker(kind, seed, **changes):
    """A model that says several tokens, and never padding: one that is only shaken repeats itself."""
    options = {"scale_embedding": False, "use_cache": True} | changes
    theirs = shake(small_hf(kind, "sdpa", **options), seed).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "norm.weight" in name:  # of all signs: the residual stream is not the embedding's
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
            elif "bias" in name:
                parameter.mul_(0.1)
        theirs.final_logits_bias.mul_(0.1)[:, PAD] = -1e4
    return theirs


@pytest.mark.plain_types  # other tests check the same shapes
@pytest.mark.slow
@EACH
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("side", ["left", "right"])
def test_generated_tokens_are_theirs(kind, seed, beams, side):
    """The decoder begins with PAD, as Marian's does: a real token, since no mask says otherwise."""
    theirs = talker(kind, seed)
    source, mask, _, _ = texts(seed, side)
    options = {} if beams == 1 else {"num_beams": beams, "early_stopping": "never"}
    wanted = theirs.generate(
        source, attention_mask=mask.long(), max_new_tokens=10, do_sample=False, **options
    )
    start = torch.full((3, 1), theirs.config.decoder_start_token_id)
    ours = loaded(theirs)
    for cache in (True, False):
        state = Seq2SeqState(ours, source, attention_mask=mask, cache=cache)
        search = generate if beams == 1 else beam_search
        found = search(state, start, **OURS, **({} if beams == 1 else {"num_beams": beams}))
        assert torch.equal(torch.cat([start, found.tokens], dim=1), wanted)


@pytest.mark.slow
@EACH
def test_what_they_generate_differs(kind):
    """From seed to seed and from source to source: else equal tokens would say little.

    Ten seeds: a seed's weights are not the same on every processor (torch's `normal_` has a
    path for each), and three of them may happen to say the same few tokens.
    """
    found = set()
    for seed in range(10):
        theirs, (source, mask, _, _) = talker(kind, seed), texts(seed, "left")
        rows = theirs.generate(source, attention_mask=mask.long(), max_new_tokens=10).tolist()
        found |= {tuple(row) for row in rows}
    assert len(found) >= 5
    assert len(set().union(*found)) >= 7


def test_a_model_that_generates_its_padding_token_keeps_the_contract():
    """What follows the end is padding; with these biases the greedy text ends in that very token."""
    theirs = shake(small_hf("bart"), 7)
    theirs.final_logits_bias.normal_(generator=torch.Generator().manual_seed(7))
    theirs.final_logits_bias[0, PAD] += 1.5
    assert contract(loaded(theirs, PAD), only=["greedy generation is argmax"])


@pytest.mark.slow
@EACH
@pytest.mark.parametrize("pad_id", [None, PAD])
@pytest.mark.plain_types
def test_the_contract_is_kept(kind, pad_id):
    report = contract(loaded(shake(small_hf(kind), 7), pad_id))
    assert report, report
    asked = {each.name for each in report.results if each.outcome == "holds"}
    wanted = {"cached = uncached", "the cache follows its rows", "greedy generation is argmax"}
    assert wanted | {"padding of the source does not matter", "no future leak"} <= asked, report
    assert ("batch = single" in asked) == ("cached = uncached, with padding" in asked)
    assert ("batch = single" in asked) == (pad_id is not None), report


# --- There and back -------------------------------------------------------------------------------


@EVERY
def test_what_comes_back_is_what_went(kind, changes, tmp_path):
    positions = {"encoder.embed_positions.weight", "decoder.embed_positions.weight"}
    remade = positions if kind == "marian" else set()  # sinusoids, which nobody needs
    assert_comes_back(shake(small_hf(kind, **changes), 8), tmp_path, remade)


@EVERY
def test_a_model_of_ones_own_goes_to_transformers(kind, changes, tmp_path):
    """One that was never loaded: its configuration alone says which family it is."""
    head = changes.get("head", True)
    config = replace(loaded(small_hf(kind, **changes)).config, dropout=0.1)
    ours = shake(Transformer(config), 9).eval()
    save_pretrained(ours, tmp_path)
    theirs = CLASSES[kind][1 if head else 2].from_pretrained(tmp_path).eval()
    source, source_mask, target, mask = texts(9, "left")
    masks = {"attention_mask": source_mask, "decoder_attention_mask": mask}

    def run(dtype, module):
        twin = (in_dtype if module is ours else in_their_dtype)(module, dtype)
        if module is ours:
            return {"logits": [twin(source, target, **masks)[mask]]}
        return {"logits": [their_answer(twin, source, target, source_mask, mask)[0][mask]]}

    with torch.no_grad():
        assert_same_numbers(lambda d: run(d, ours), lambda d: run(d, theirs))
    assert replace(from_pretrained(tmp_path).config, max_length=config.max_length) == replace(
        config, dropout=0.0
    )


@EACH
def test_shards_and_half_precision(kind, tmp_path):
    theirs = shake(small_hf(kind), 10).to(torch.bfloat16)
    theirs.save_pretrained(tmp_path, max_shard_size="2KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ours = from_pretrained(tmp_path)
    assert {each.dtype for each in (*ours.parameters(), *ours.buffers())} == {torch.bfloat16}
    source, target = sentences(10, 2, 6, 4)
    assert ours(source, target).dtype == torch.bfloat16
    save_pretrained(ours, tmp_path)
    assert [path.name for path in tmp_path.glob("*.safetensors*")] == ["model.safetensors"]
    assert torch.equal(from_pretrained(tmp_path)(source, target), ours(source, target))


def test_dropout_is_theirs(tmp_path):
    """Three numbers, each in its place; Transformer's own dropout has one."""
    theirs = small_hf("bart", dropout=0.1, attention_dropout=0.2, activation_dropout=0.3)
    theirs.save_pretrained(tmp_path / "a")
    ours = from_pretrained(tmp_path / "a")
    for embedding in (ours.source_embedding, ours.target_embedding):
        assert embedding.dropout.p == 0.1
    layer = ours.decoder.layers[-1]
    assert [each.dropout.p for each in layer.residuals] == [0.1] * 3
    assert [layer.attention.dropout, layer.cross_attention.dropout] == [0.2, 0.2]
    assert layer.feed_forward.dropout.p == 0.3
    save_pretrained(ours, tmp_path / "b")
    config = hf.AutoConfig.from_pretrained(tmp_path / "b")
    found = [config.dropout, config.attention_dropout, config.activation_dropout]
    assert found == [0.1, 0.2, 0.3]


def test_what_is_tied_stays_tied():
    for kind, changes in (("bart", {}), ("marian", {}), ("marian", TWO_TABLES)):
        theirs = small_hf(kind, **changes)
        ours = loaded(theirs)
        tables = ours.source_embedding.table, ours.target_embedding.table
        assert ours.output.weight is tables[1].weight
        assert (tables[0].weight is tables[1].weight) == (changes == {})
        learn = sum(p.numel() for p in theirs.parameters() if p.requires_grad)
        assert sum(p.numel() for p in ours.parameters()) == learn
        assert {table.padding_idx for table in tables} == {PAD}
    both = TWO_TABLES | {"tie_word_embeddings": False}
    ours = loaded(small_hf("marian", **both))
    assert ours.output.weight is not ours.target_embedding.table.weight


def test_older_files(tmp_path):
    """Every tied matrix once more, a version number, sinusoids; and no constant beside the logits."""
    for kind, base in (("bart", "model."), ("marian", "model."), ("bart", "")):
        place = tmp_path / f"{kind}{base}"
        theirs = shake(small_hf(kind, head=bool(base)), 11).eval()
        theirs.save_pretrained(place)
        tensors = load_file(place / "model.safetensors")
        table = theirs.get_input_embeddings().weight.detach()
        stacks = [f"{base}{stack}" for stack in ("encoder", "decoder")]
        older = {f"{stack}.embed_tokens.weight": table.clone() for stack in stacks}
        older |= {f"{stack}.version": torch.ones(1) for stack in stacks}
        if kind == "marian":
            older |= {f"{stack}.embed_positions.weight": torch.ones(15, 12) for stack in stacks}
        if base:
            older["lm_head.weight"] = table.clone()
            assert tensors.pop("final_logits_bias").any()
            theirs.final_logits_bias.zero_()
        save_file(tensors | older, place / "model.safetensors")
        source, source_mask, target, mask = texts(11, "right")
        ours = from_pretrained(place)
        with torch.no_grad():
            wanted, _ = their_answer(theirs, source, target, source_mask, mask)
            got = ours(source, target, attention_mask=source_mask, decoder_attention_mask=mask)
        torch.testing.assert_close(got[mask], wanted[mask])
        name = f"{base}decoder.embed_tokens.weight"
        save_file(tensors | older | {name: table + 1}, place / "model.safetensors")
        with pytest.raises(ValueError, match="expected .* once more, to which config.json ties it"):
            from_pretrained(place)


# --- Real configurations --------------------------------------------------------------------------

OLD = {  # what transformers 3 wrote for all that came from fairseq
    "add_bias_logits": False, "add_final_layer_norm": False, "classif_dropout": 0.1,
    "classifier_dropout": 0.0, "decoder_layerdrop": 0.0, "encoder_layerdrop": 0.0,
    "gradient_checkpointing": False, "init_std": 0.02, "is_encoder_decoder": True,
    "normalize_before": False, "use_cache": True, "dropout": 0.1, "num_beams": 4,
}  # fmt: skip
BART = OLD | {
    "activation_function": "gelu", "architectures": ["BartModel"], "bos_token_id": 0,
    "decoder_start_token_id": 2, "early_stopping": True, "eos_token_id": 2,
    "forced_eos_token_id": 2, "max_position_embeddings": 1024, "model_type": "bart",
    "no_repeat_ngram_size": 3, "normalize_embedding": True, "pad_token_id": 1,
    "scale_embedding": False, "torch_dtype": "float32", "vocab_size": 50265,
    "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0},
    "task_specific_params": {"summarization": {"length_penalty": 1.0, "num_beams": 4}},
}  # fmt: skip
MARIAN = OLD | {
    "activation_dropout": 0.0, "activation_function": "swish", "architectures": ["MarianMTModel"],
    "attention_dropout": 0.0, "bad_words_ids": [[58100]], "bos_token_id": 0,
    "decoder_start_token_id": 58100, "decoder_vocab_size": 58101, "eos_token_id": 0,
    "extra_pos_embeddings": 58101, "forced_eos_token_id": 0, "max_length": 512,
    "max_position_embeddings": 512, "model_type": "marian", "normalize_embedding": False,
    "pad_token_id": 58100, "scale_embedding": True, "share_encoder_decoder_embeddings": True,
    "static_position_embeddings": True, "vocab_size": 58101,
}  # fmt: skip


def sizes(width: int, heads: int, ffn: int, encoder: int, decoder: int) -> dict[str, int]:
    """Sizes of both stacks."""
    return {
        "d_model": width, "encoder_attention_heads": heads, "decoder_attention_heads": heads,
        "encoder_ffn_dim": ffn, "decoder_ffn_dim": ffn, "encoder_layers": encoder,
        "decoder_layers": decoder, "num_hidden_layers": encoder,
    }  # fmt: skip


SUMMARY = {
    "architectures": ["BartForConditionalGeneration"], "vocab_size": 50264, "prefix": " ",
    "force_bos_token_to_be_generated": True, "forced_bos_token_id": 0, "_num_labels": 3,
    "length_penalty": 2.0, "max_length": 142, "min_length": 56, "output_past": True,
}  # fmt: skip
MBART = {
    "architectures": ["MBartForConditionalGeneration"], "model_type": "mbart",
    "vocab_size": 250054, "scale_embedding": True, "activation_function": "relu",
    "add_final_layer_norm": True, "normalize_before": True, "static_position_embeddings": False,
    "tokenizer_class": "MBart50Tokenizer", "max_length": 200, "activation_dropout": 0.0,
}  # fmt: skip
REAL = {  # the last number: what of it learns
    "bart-base": (BART | sizes(768, 12, 3072, 6, 6), 139_420_416),
    "bart-large": (BART | sizes(1024, 16, 4096, 12, 12), 406_291_456),
    "bart-large-cnn": (BART | SUMMARY | sizes(1024, 16, 4096, 12, 12), 406_290_432),
    "distilbart-cnn-12-6": (
        BART | SUMMARY | {"extra_pos_embeddings": 2, "static_position_embeddings": False}
        | sizes(1024, 16, 4096, 12, 6), 305_510_400,
    ),
    "mbart-large-50": (BART | MBART | sizes(1024, 16, 4096, 12, 12), 610_879_488),
    "opus-mt-en-de": (MARIAN | sizes(512, 8, 2048, 6, 6), 73_886_208),
    "opus-mt-tc-big": (
        MARIAN | {"activation_function": "relu", "max_position_embeddings": 1024}
        | sizes(1024, 16, 4096, 6, 6), 235_852_800,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_configurations_are_read_whole(name, tmp_path):
    """Counted on the meta device, where numbers need no memory; and theirs has as many that learn."""
    config, count = REAL[name]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    family, theirs = described(tmp_path)
    kind, head = family.model_type, config["architectures"][0] != family.headless
    with torch.device("meta"):
        ours = family.build(family.read(family.options(theirs)))
        twin = CLASSES[kind][1 if head else 2](hf.AutoConfig.from_pretrained(tmp_path))
    assert sum(each.numel() for each in ours.parameters()) == count
    assert sum(each.numel() for each in twin.parameters() if each.requires_grad) == count
    assert (ours.output is not None) == head


@EACH
def test_every_option_of_theirs_is_known_with_its_default(kind):
    family, config = FAMILIES[kind], CLASSES[kind][0]
    defaults = {each.name: each.default for each in fields(config)}
    for name, value in family.defaults.items():
        assert value == defaults[name], name
    assert family.options(json.loads(config().to_json_string()))
    assert set(hf.GenerationConfig._get_default_generation_params()) <= IGNORED


# --- What is refused ------------------------------------------------------------------------------


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("bart", {"decoder_attention_heads": 4},
         "decoder_attention_heads: expected encoder_attention_heads = 3: this .*, got 4"),
        ("mbart", {"decoder_ffn_dim": 24}, "decoder_ffn_dim: expected encoder_ffn_dim = 20: .* 24"),
        ("bart", {"encoder_layerdrop": 0.1}, "encoder_layerdrop: expected 0.0, got 0.1"),
        ("bart", {"normalize_before": True}, "normalize_before: expected False, got True"),
        ("mbart", {"normalize_before": False}, "normalize_before: expected True, got False"),
        ("bart", {"normalize_embedding": False}, "normalize_embedding: expected True, got False"),
        ("bart", {"extra_pos_embeddings": 0}, "extra_pos_embeddings: expected 2, got 0"),
        ("marian", {"static_position_embeddings": False}, "static_position_embeddings: .* True"),
        ("bart", {"tie_word_embeddings": False}, "tie_word_embeddings: expected True, got False"),
        ("marian", {"tie_word_embeddings": False},
         "tie_word_embeddings: expected True, with share_encoder_decoder_embeddings, got False"),
        ("marian", {"decoder_vocab_size": 13},
         "decoder_vocab_size: expected vocab_size = 17, with share_.*, got 13"),
        ("bart", {"is_encoder_decoder": False}, "is_encoder_decoder: expected True, got False"),
        ("bart", {"architectures": ["BartForCausalLM"]},
         r"architectures: .*\['BartForConditionalGeneration'\].*\['BartModel'\], got \['BartForCausalLM"),
        ("bart", {"activation_function": "tanh"}, "activation_function: expected one of .*'tanh'"),
        ("bart", {"pad_token_id": 17}, "pad_token_id: expected an int from -17 to 16, got 17"),
        ("bart", {"max_position_embeddings": 16},
         r"embed_positions.weight: expected shape \(18, 12\), got shape \(17, 12\)"),
        ("bart", {"encoder_layers": 3}, "BartForConditionalGeneration or BartModel, got .* missing"),
        ("bart", {"model_type": "mbart"}, r"architectures: .*\['MBartModel'\], got \['BartForCond"),
        ("bart", {"model_type": "mbart", "architectures": None},
         "weights of MBart.*, got .*layer_norm.* missing"),
    ],
)  # fmt: skip
def test_options_that_are_not_supported(kind, options, message, tmp_path):
    small_hf(kind).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | options), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        from_pretrained(tmp_path)


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m(SOURCE, TARGET, attention_mask=MASK[:, 1:]),
         r"attention_mask: expected shape \(B, S\) = \(2, 5\) as in source, got shape \(2, 4\)"),
        (lambda m: m(SOURCE, TARGET, attention_mask=MASK.int() + 1),
         "attention_mask: expected at least 0 and at most 1, got 2 to 2"),
        (lambda m: m(SOURCE, TARGET, decoder_attention_mask=MASK),
         r"decoder_attention_mask: expected shape \(B, L\) = \(2, 3\) as in .*target, got shape \(2, 5\)"),
        (lambda m: m.decode(TARGET, m.encode(SOURCE), decoder_attention_mask=MASK),
         r"decoder_attention_mask: expected 3 columns, for every token so far, got shape \(2, 5\)"),
        (lambda m: m(SOURCE + 17, TARGET), "source: expected .* below self.config.source_vocab = 17"),
        (lambda m: m(SOURCE, torch.ones(2, 16).long()), "position_ids: .* = 15, got 0 to 15"),
        (lambda m: Seq2SeqState(m, SOURCE, attention_mask=MASK[:1]), "attention_mask: expected"),
    ],
)  # fmt: skip
def test_calls_that_do_not_fit(call, message):
    with pytest.raises(ValueError, match=message), torch.no_grad():
        call(loaded(small_hf("bart")))


SOURCE, TARGET, MASK = torch.full((2, 5), 7), torch.full((2, 3), 8), torch.ones(2, 5).bool()


@pytest.mark.plain_types
def test_their_order_of_arguments_is_an_error():
    """Theirs is (input_ids, attention_mask, decoder_input_ids): never a mask taken for a target."""
    model = loaded(small_hf("bart"))
    with pytest.raises(TypeError, match="target: expected an integer dtype, got torch.bool"):
        model(SOURCE, MASK, TARGET)
    with pytest.raises(TypeError, match="takes 3 positional arguments but 4 were given"):
        model(SOURCE, MASK.long(), TARGET)


@pytest.mark.plain_types
def test_a_model_without_a_head_generates_nothing():
    model = loaded(small_hf("bart", head=False))
    with pytest.raises(
        ValueError, match="model: expected a model with enc.* and an output layer, got"
    ):
        Seq2SeqState(model, SOURCE)


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_layout": "interleaved"}, "expected position_layout = 'halves', as marian"),
        ({"logit_bias": False}, "expected logit_bias = True, as marian has it, got logit_bias = F"),
        ({"pad_id": 1}, "expected pad_id = None, as marian has it, got pad_id = 1"),
        ({"output_bias": True}, "expected output_bias = False, as marian"),
        ({"norm": "rms"}, "expected norm = 'layer', as marian"),
        ({"positions": "learned", "max_length": 9}, "expected positions = 'sinusoidal', as marian"),
    ],
)
def test_models_that_no_family_has(changes, message, tmp_path):
    config = replace(loaded(small_hf("marian")).config, **changes)
    with pytest.raises(ValueError, match=message):
        save_pretrained(Transformer(config), tmp_path / "new")
    assert not list(tmp_path.iterdir())
    assert type(config) is TransformerConfig
