"""Whisper: equal to transformers' in logits, gradients and tokens."""

import json
from dataclasses import replace

import pytest
import torch

pytest.importorskip("transformers")

import transformers as hf
from safetensors.torch import load_file, save_file

from hf_copies import assert_comes_back, loaded, padded
from same_numbers import assert_same_numbers, in_dtype, shake
from tested_transformer.data.log_mel import log_mel
from tested_transformer.generation.beam_search import beam_search
from tested_transformer.generation.decoding_state import Seq2SeqState
from tested_transformer.generation.generate import generate
from tested_transformer.models.families.whisper import FAMILY
from tested_transformer.models.loading import from_pretrained, save_pretrained
from tested_transformer.models.whisper import AudioStem, Whisper, WhisperConfig, audio_positions
from tested_transformer.specs.adapters import OwnTransformer
from tested_transformer.specs.contract import contract

PAD, EOS, START = 4, 3, 1
SMALL = {
    "vocab_size": 17, "num_mel_bins": 10, "encoder_layers": 2, "decoder_layers": 3,
    "encoder_attention_heads": 3, "decoder_attention_heads": 3, "d_model": 12,
    "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "max_source_positions": 9,
    "max_target_positions": 25, "decoder_start_token_id": START, "pad_token_id": PAD,
    "bos_token_id": 2, "eos_token_id": EOS, "begin_suppress_tokens": None,
}  # fmt: skip
VARIANTS = [
    {},
    {"activation_function": "relu", "encoder_attention_heads": 1, "decoder_attention_heads": 1},
    {"activation_function": "gelu_new", "scale_embedding": True, "pad_token_id": None},
    {"activation_function": "swish", "encoder_layers": 3, "decoder_layers": 2},
    {"num_mel_bins": 5, "max_source_positions": 4, "median_filter_width": 5, "init_std": 0.1},
]
CLASSES = {"head": hf.WhisperForConditionalGeneration, "none": hf.WhisperModel}
EACH = pytest.mark.parametrize("kind", CLASSES)
EVERY = pytest.mark.parametrize("changes", VARIANTS, ids=str)


def small(kind, seed=0, **changes):
    """A model with random weights, all sizes different but those that must be equal."""
    config = hf.WhisperConfig(**SMALL | changes, attn_implementation="sdpa")
    return shake(CLASSES[kind](config), seed).eval()


def sound(theirs, seed, batch=3):
    """Features as loud as those of speech."""
    config, generator = theirs.config, torch.Generator().manual_seed(seed)
    return torch.randn(
        batch, config.num_mel_bins, 2 * config.max_source_positions, generator=generator
    )


def texts(seed, padding, batch=3, length=7):
    """IDs and the mask of rows of different lengths; the padding token is also a real one."""
    ids = torch.randint(4, 17, (batch, length), generator=torch.Generator().manual_seed(seed))
    ids[0, 3] = PAD
    return padded(ids, padding, pad_id=PAD)


@pytest.mark.plain_types  # other tests check the same shapes
@EACH
@EVERY
@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_logits_and_gradients(kind, changes, padding):
    theirs = small(kind, 1, **changes)
    ours, features, (ids, mask) = loaded(theirs), sound(theirs, 1), texts(1, padding)
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask

    def run(dtype, module):
        twin, given = in_dtype(module, dtype), features.to(dtype).clone().requires_grad_()
        if module is ours:
            answer = twin(given, ids, decoder_attention_mask=mask)
        else:
            long = None if mask is None else mask.long()
            answer = twin(given, decoder_input_ids=ids, decoder_attention_mask=long)
            answer = answer.logits if kind == "head" else answer.last_hidden_state
        answer = answer[real]
        noise = torch.randn(answer.shape, generator=torch.Generator().manual_seed(3))
        (answer * noise.to(dtype)).sum().backward()
        gradients = {n: p.grad for n, p in twin.named_parameters() if p.requires_grad}
        if module is ours:
            weights = [w for w in FAMILY.weights(twin) if w.ours[0] in gradients]
            gradients = {w.name: w.to_disk(gradients) for w in weights}
        else:
            missing = "" if kind == "head" else "model."
            gradients = {missing + name: each for name, each in gradients.items()}
        gradients = [gradients[name] for name in sorted(gradients)]
        return {"logits": [answer], "gradients": gradients, "of the features": [given.grad]}

    assert_same_numbers(lambda dtype: run(dtype, ours), lambda dtype: run(dtype, theirs))


def test_encoder_states_and_attention_weights():
    theirs = small("head", 2)
    ours, features, (ids, _) = loaded(theirs), sound(theirs, 2), texts(2, "none")
    theirs.set_attn_implementation("eager")
    with torch.no_grad():
        logits, weights = ours(features, ids, return_weights=True)
        wanted = theirs(features, decoder_input_ids=ids, output_attentions=True)
        memory = ours.encode(features)
    torch.testing.assert_close(logits, wanted.logits)
    torch.testing.assert_close(memory, wanted.encoder_last_hidden_state)
    pairs = (
        (weights.encoder, wanted.encoder_attentions, 2),
        (weights.decoder, wanted.decoder_attentions, 3),
        (weights.cross, wanted.cross_attentions, 3),
    )
    for mine, yours, layers in pairs:
        assert len(mine) == layers
        for one, other in zip(mine, yours, strict=True):
            torch.testing.assert_close(one, other)


def test_from_audio_to_logits():
    """Samples, features and logits, each way by its own code; 3000 frames make 1500 states."""
    theirs = small("head", 3, num_mel_bins=80, max_source_positions=1500)
    ours, (ids, _) = loaded(theirs), texts(3, "none", batch=1)
    audio = 0.3 * torch.sin(torch.arange(20_000) ** 1.2 * 0.02)
    features = hf.WhisperFeatureExtractor()(audio.numpy(), sampling_rate=16_000)["input_features"]
    with torch.no_grad():
        found = ours(log_mel(audio, 16_000)[None], ids)
        wanted = theirs(torch.tensor(features), decoder_input_ids=ids).logits
    assert ours.encode(log_mel(audio, 16_000)[None]).shape == (1, 1500, 12)
    torch.testing.assert_close(
        found, wanted, rtol=1e-3, atol=1e-3
    )  # of features that differ a little


# --- Positions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "width"), [(1500, 384), (9, 4), (7, 12)])
def test_audio_positions(length, width):
    """As theirs, whose angles are float32: off by an eps of the position, and what theirs adds up."""
    theirs = hf.models.whisper.modeling_whisper.sinusoids(length, width)
    found = audio_positions(length, width)
    far = 8 * torch.finfo(torch.float32).eps * (length + 1)
    torch.testing.assert_close(found, theirs, rtol=0, atol=far)
    assert torch.equal(found[0], torch.tensor([0.0, 1.0]).repeat_interleave(width // 2))
    slowest = torch.tensor((length - 1) / 10_000, dtype=torch.float64).sin().float()
    assert torch.equal(found[-1, width // 2 - 1], slowest)  # divided by 10,000 itself


def test_the_stem_hears_five_frames():
    theirs = small("head", 4)
    stem, features = loaded(theirs).stem, sound(theirs, 4, batch=1).requires_grad_()
    stem(features)[0, 3].sum().backward()
    heard = features.grad[0].abs().sum(0) > 0
    assert heard.nonzero().flatten().tolist() == [4, 5, 6, 7, 8]


# --- The same tokens ------------------------------------------------------------------------------


def talker(seed):
    """A model whose choices are clear, and which does not repeat the last token."""
    theirs = small("head", seed).double()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "decoder.embed_positions" in name:
                parameter.mul_(3.0)
            elif parameter.ndim > 1 and "embed_tokens" not in name:
                parameter.mul_(4.0)
    return theirs


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("beams", [1, 3])
def test_generated_tokens_are_theirs(seed, beams):
    theirs = talker(seed)
    features, start = sound(theirs, seed).double(), torch.full((3, 1), START)
    options = {} if beams == 1 else {"num_beams": beams, "early_stopping": "never"}
    wanted = hf.GenerationMixin.generate(
        theirs, features, decoder_input_ids=start, max_new_tokens=12, do_sample=False, **options
    )[:, 1:]
    assert len(wanted.unique()) >= 3
    ours = loaded(theirs)
    for cache in (True, False):
        state = Seq2SeqState(ours, features, cache=cache)
        search = generate if beams == 1 else beam_search
        more = {} if beams == 1 else {"num_beams": beams}
        found = search(state, start, max_new=12, eos=EOS, padding=PAD, **more)
        assert torch.equal(found.tokens, wanted)


def test_whispers_own_generate_gives_the_same():
    """Its rules about languages, time stamps and suppressed tokens are off; it takes the EOS token away."""
    theirs = talker(4)
    features, start = sound(theirs, 4).double(), torch.full((3, 1), START)
    wanted = theirs.generate(features, max_new_tokens=9, do_sample=False, return_timestamps=False)
    state = Seq2SeqState(loaded(theirs), features)
    found = generate(state, start, max_new=9, eos=EOS, padding=PAD).tokens
    assert torch.equal(found.masked_fill(found == EOS, PAD), wanted)


class OneSound(OwnTransformer):
    """The decoder of a Whisper that hears one sound; no token is padding."""

    def __init__(self, module):
        config = module.config
        super(OwnTransformer, self).__init__(module, config.vocab_size)
        self.max_length, self.filler = config.max_length, 0
        generator = torch.Generator().manual_seed(0)
        shape = 1, config.num_mels, 2 * config.num_positions
        self.sound = torch.randn(shape, generator=generator)

    @property
    def source(self):
        return Sound(self.sound.to(self.module.embedding.table.weight.dtype))

    def from_source(self, ids, source, mask):
        return super(OwnTransformer, self).from_source(ids, source, mask)


class Sound:
    """What OwnTransformer expands as (1, S)."""

    def __init__(self, features):
        self.features = features

    def expand(self, batch, _):
        return self.features.expand(batch, -1, -1)


@pytest.mark.slow
@EACH
@pytest.mark.plain_types
def test_the_contract_is_kept(kind):
    report = contract(OneSound(loaded(small(kind, 7))))
    assert report, report
    held = {each.name for each in report.results if each.outcome == "holds"}
    wanted = {"cached = uncached", "no future leak", "every parameter learns"}
    wanted |= {"greedy generation is argmax"} if kind == "head" else set()
    assert wanted <= held, report


# --- There and back -------------------------------------------------------------------------------


@EACH
@EVERY
def test_what_comes_back_is_what_went(kind, changes, tmp_path):
    again = assert_comes_back(small(kind, 8, **changes), tmp_path)
    if kind == "head":
        assert again.output.weight is again.embedding.table.weight


@EACH
def test_a_model_of_ones_own_goes_to_transformers(kind, tmp_path):
    config = WhisperConfig(
        17, num_mels=5, num_positions=6, max_length=9, d_model=12, num_heads=2, d_ff=10,
        num_encoder_layers=2, num_decoder_layers=1, dropout=0.25, head=kind == "head",
    )  # fmt: skip
    ours = shake(Whisper(config), 9).eval()
    save_pretrained(ours, tmp_path)
    theirs = CLASSES[kind].from_pretrained(tmp_path).eval()
    assert (theirs.config.dropout, theirs.config.attention_dropout) == (0.25, 0.25)
    assert theirs.config.activation_dropout == 0.25
    features, ids = sound(theirs, 9), torch.randint(0, 17, (3, 5))
    with torch.no_grad():
        answer = theirs(features, decoder_input_ids=ids)
        wanted = answer.logits if kind == "head" else answer.last_hidden_state
        torch.testing.assert_close(ours(features, ids), wanted)
    assert from_pretrained(tmp_path).config == replace(config, dropout=0.0)


def test_dropout_is_theirs():
    ours = loaded(small("head", dropout=0.1, attention_dropout=0.2, activation_dropout=0.3))
    layer = ours.decoder.layers[-1]
    assert [layer.attention.dropout, layer.cross_attention.dropout] == [0.2, 0.2]
    assert [ours.stem.dropout.p, ours.embedding.dropout.p, layer.feed_forward.dropout.p] == [
        0.1,
        0.1,
        0.3,
    ]
    assert [each.dropout.p for each in layer.residuals] == [0.1] * 3


SIZES = {  # d_model, layers, heads: Radford et al. 2022, table 1
    "tiny": (384, 4, 6, 37_760_640), "base": (512, 6, 8, 72_593_920), "small": (768, 12, 12, 241_734_912),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_number_of_parameters(name):
    """Without memory for them; theirs count the encoder's positions, which are no parameters here."""
    width, layers, heads, count = SIZES[name]
    with torch.device("meta"):
        ours = Whisper(
            WhisperConfig(d_model=width, num_heads=heads, num_encoder_layers=layers,
                          num_decoder_layers=layers)
        )  # fmt: skip
        sizes = {f"{s}_{what}": n for s in ("encoder", "decoder")
                 for what, n in (("layers", layers), ("attention_heads", heads), ("ffn_dim", 4 * width))}  # fmt: skip
        theirs = hf.WhisperForConditionalGeneration(hf.WhisperConfig(d_model=width, **sizes))
    counted = sum(each.numel() for each in ours.parameters()) + ours.stem.positions.numel()
    assert counted == sum(each.numel() for each in theirs.parameters()) == count


# --- Bad input ------------------------------------------------------------------------------------

FEATURES, IDS = torch.zeros(1, 10, 18), torch.ones(1, 3, dtype=torch.long)


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m(torch.zeros(1, 10, 16), IDS), ValueError,
         r"features: expected shape \(B, M, F\) = \(B, 10, 18\)"),
        (lambda m: m(torch.zeros(1, 18, 10), IDS), ValueError, r"features: .*got shape \(1, 18, 10\)"),
        (lambda m: m(torch.zeros(10, 18), IDS), ValueError, r"input_features: expected 3 axes"),
        (lambda m: m(FEATURES.long(), IDS), TypeError, "input_features: expected a floating point"),
        (lambda m: m(FEATURES, IDS + 16), ValueError, "decoder_input_ids: expected .* = 17, got 17"),
        (lambda m: m(FEATURES, IDS.expand(2, -1)), ValueError, r"decoder_input_ids: expected shape"),
        (lambda m: m(FEATURES, torch.ones(1, 26).long()), ValueError,
         "decoder_input_ids: expected at most max_length = 25 tokens, got 26"),
        (lambda m: m(FEATURES, IDS, decoder_attention_mask=torch.ones(1, 4).bool()), ValueError,
         "decoder_attention_mask: expected "),
        (lambda m: Seq2SeqState(m, FEATURES[0]), ValueError, "source: "),
    ],
)  # fmt: skip
def test_calls_that_do_not_fit(call, error, message):
    with pytest.raises(error, match=message):
        call(loaded(small("head")))


@pytest.mark.plain_types
def test_a_headless_model_generates_nothing():
    with pytest.raises(ValueError, match="model: expected .*an output layer, got Whisper"):
        Seq2SeqState(loaded(small("none")), FEATURES)


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_model": 7, "num_heads": 1}, "d_model: expected an even number of at least 4, got 7"),
        ({"d_model": 2, "num_heads": 1}, "d_model: expected an even number of at least 4, got 2"),
        ({"num_heads": 5}, "num_heads: expected .*a number that divides d_model = 384, got 5"),
        ({"norm_placement": "post"}, 'norm_placement: expected "pre", got .post'),
        ({"max_length": None}, "max_length: expected an int, got None"),
    ],
)  # fmt: skip
def test_configurations_that_do_not_fit(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        WhisperConfig(**options)


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architectures": ["WhisperForAudioClassification"]}, "architectures: expected .*WhisperM"),
        ({"decoder_ffn_dim": 24}, "decoder_ffn_dim: expected encoder_ffn_dim = 20: .*, got 24"),
        ({"encoder_layerdrop": 0.1}, "encoder_layerdrop: expected 0.0, got 0.1"),
        ({"apply_spec_augment": True}, "apply_spec_augment: expected False, got True"),
        ({"activation_function": "quick_gelu"}, "activation_function: expected one of .*quick_gelu"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder: expected True, got False"),
        ({"num_mel_bins": 128}, r"conv1.weight: expected shape \(12, 128, 3\), got .*\(12, 10, 3\)"),
        ({"vocab_size": 16}, r"embed_tokens.weight: expected shape \(16, 12\), got shape \(17, 12\)"),
        ({"window": 4}, "window: expected no such option of whisper"),
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
    small("head").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    biased = {"model.encoder.layers.0.self_attn.k_proj.bias": torch.zeros(12)}
    save_file(tensors | biased, path)
    with pytest.raises(ValueError, match=r"got .*k_proj.bias left over"):
        from_pretrained(tmp_path)
    save_file({n: t for n, t in tensors.items() if "embed_positions" not in n}, path)
    with pytest.raises(ValueError, match=r"decoder.embed_positions.weight, .* missing"):
        from_pretrained(tmp_path)
    save_file(tensors | {"proj_out.weight": torch.zeros(17, 12)}, path)
    with pytest.raises(ValueError, match=r"proj_out.weight: expected model.decoder.embed_tokens"):
        from_pretrained(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"model.safetensors: expected a whole file"):
        from_pretrained(tmp_path)


def test_the_stem_has_positions_that_are_saved():
    stem = AudioStem(WhisperConfig(9, num_mels=3, num_positions=5, d_model=4, num_heads=1))
    assert "positions" in stem.state_dict()
    assert "positions" not in dict(stem.named_parameters())
