"""Generating: the choices against transformers' processors, whole sentences against HF generate."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from hf_copies import loaded, small_hf
from tested_transformer.analysis.translation import translate
from tested_transformer.data import EOS, Vocabulary, pad
from tested_transformer.generation.beam_search import beam_search
from tested_transformer.generation.decoding_state import CausalState, Seq2SeqState
from tested_transformer.generation.generate import Generated, generate
from tested_transformer.generation.sampling import (
    GREEDY,
    Sampling,
    repetition_penalty,
    top_k_filter,
    top_p_filter,
)
from tested_transformer.models.language_model import LanguageModel, LanguageModelConfig
from tested_transformer.models.transformer import Transformer, TransformerConfig

HF_EOS, HF_PAD, START = 2, 1, 0


def scores(seed=0, rows=5, vocab=11):
    return 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


# --- One word -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_filters_against_transformers(seed):
    logits = scores(seed)
    prefix_ids = torch.randint(0, 11, (5, 4), generator=torch.Generator().manual_seed(seed))
    for k in (1, 3, 11, 20):
        assert torch.equal(
            top_k_filter(logits, k), hf.TopKLogitsWarper(k)(prefix_ids, logits.clone())
        )
    for p in (1e-6, 0.3, 0.9, 1.0):
        wanted = hf.TopPLogitsWarper(p)(prefix_ids, logits.clone()) if p < 1 else logits
        assert torch.equal(top_p_filter(logits, p), wanted)
    for penalty in (0.5, 1.0, 1.3):
        wanted = hf.RepetitionPenaltyLogitsProcessor(penalty)(prefix_ids, logits.clone())
        torch.testing.assert_close(repetition_penalty(logits, prefix_ids, penalty), wanted)


def test_filters_in_a_chain_against_transformers():
    logits, prefix_ids = scores(), torch.randint(0, 11, (5, 4))
    chain = (
        hf.RepetitionPenaltyLogitsProcessor(1.4),
        hf.TemperatureLogitsWarper(0.7),
        hf.TopKLogitsWarper(6),
        hf.TopPLogitsWarper(0.8),
    )
    wanted = logits.clone()
    for each in chain:
        wanted = each(prefix_ids, wanted)
    ours = Sampling(temperature=0.7, top_k=6, top_p=0.8, repetition_penalty=1.4)
    torch.testing.assert_close(ours.shape(logits, prefix_ids), wanted)


@given(st.integers(0, 10_000), st.floats(0.01, 1.0))
def test_top_p_keeps_the_smallest_set_that_is_large_enough(seed, p):
    logits = scores(seed, rows=1).double()
    rounding = 11 * torch.finfo(torch.float64).eps  # eleven words are added up
    probability = logits.softmax(-1)[0]
    kept = top_p_filter(logits, p)[0] > float("-inf")
    assert probability[kept].sum() >= p - rounding
    least = probability[kept].min()
    assert probability[kept].sum() - least < p + rounding
    assert (probability[~kept] <= least).all()


def test_draws_follow_the_probabilities():
    """20,000 draws: each frequency lies within 5 standard deviations."""
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).expand(20_000, -1)
    sampling = Sampling(temperature=2.0, top_k=3, generator=torch.Generator().manual_seed(0))
    words = sampling.choose(logits, torch.zeros(20_000, 1, dtype=torch.long))
    wanted = torch.tensor([1.0, 0.5, 0.0, float("-inf")]).softmax(-1)
    share = torch.bincount(words, minlength=4) / 20_000
    assert ((share - wanted).abs() <= 5 * (wanted * (1 - wanted) / 20_000).sqrt()).all()


def test_a_temperature_of_zero_is_the_likeliest():
    assert torch.equal(GREEDY.choose(scores(), torch.zeros(5, 1).long()), scores().argmax(-1))


STATE = CausalState(LanguageModel(LanguageModelConfig(11, d_model=4, num_heads=1, num_layers=1)))
MODEL = Transformer(
    TransformerConfig(11, d_model=4, num_heads=1, num_encoder_layers=1, num_decoder_layers=1)
)
WORDS = Vocabulary(["a", "b"])
BOS_ONLY = torch.ones(1, 1).long()


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Sampling(temperature=-1), "temperature: expected at least 0"),
        (lambda: Sampling(top_k=0), "top_k: expected at least 1"),
        (lambda: Sampling(top_p=0.0), "top_p: expected a number above 0 and at most 1"),
        (lambda: Sampling(repetition_penalty=0), "repetition_penalty: expected a number above 0"),
        (lambda: top_p_filter(scores(), 1.5), "p: expected a number above 0 and at most 1"),
        (lambda: top_k_filter(torch.zeros(3), 1), "logits: expected 2 axes"),
        (lambda: top_k_filter(torch.zeros(3, 0), 1), "logits: expected V of at least 1"),
        (
            lambda: generate(STATE, torch.zeros(1, 0).long(), max_new=1),
            "start: expected L of at least 1",
        ),
        (
            lambda: generate(STATE, torch.zeros(1, 1).long(), max_new=0),
            "max_new: expected at least",
        ),
    ],
)
def test_bad_choices(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: generate(None, BOS_ONLY, max_new=1), "state: expected a DecodingState, got None"),
        (lambda: generate(STATE, BOS_ONLY, max_new=3, eos="2"), "eos: expected an int or None"),
        (lambda: generate(STATE, BOS_ONLY, max_new=3, eos=-1), "eos: expected at least 0"),
        (lambda: generate(STATE, BOS_ONLY, max_new=3, eos=2**63), "eos: .* a number below"),
        (
            lambda: beam_search(STATE, BOS_ONLY, num_beams=2, max_new=3, eos=float("nan")),
            "eos: expected an int, got float",
        ),
        (
            lambda: beam_search(STATE, BOS_ONLY, num_beams=2, max_new=3, length_penalty=2**63),
            "length_penalty: expected at least -100 and at most 100",
        ),
        (
            lambda: repetition_penalty(torch.ones(3, 5), torch.tensor([[1, 2], [3, 4]]), 1.5),
            r"prefix_ids: expected shape \(B, L\) = \(3, L\) as in logits, got shape \(2, 2\)",
        ),
        (
            lambda: repetition_penalty(torch.ones(1, 5), torch.tensor([[1, 5]]), 1.5),
            "prefix_ids: expected at least 0 and a number below V = 5, got 1 to 5",
        ),
        (
            lambda: repetition_penalty(torch.ones(1, 5), torch.tensor([1, 2]), 1.5),
            r"prefix_ids: expected 2 axes \(B, L\), got shape \(2,\)",
        ),
        (lambda: translate(MODEL, [["a"]], WORDS, WORDS, num_beams=0), "num_beams: .* at least 1"),
        (lambda: translate(None, [], WORDS, WORDS), "model: expected an nn.Module"),
        (lambda: translate(torch.nn.ReLU(), [], WORDS, WORDS), "model: expected a model with enc"),
        (lambda: translate(MODEL, "a", WORDS, WORDS), "sentences: expected a sequence, got str"),
        (lambda: translate(MODEL, ["a"], WORDS, WORDS), r"sentences\[0\]: .* of strings, got str"),
        (lambda: Seq2SeqState(MODEL, BOS_ONLY, cache="False"), "cache: expected True or False"),
        (
            lambda: CausalState(MODEL),
            "model: expected a LanguageModel or a RecurrentLanguageModel, got Transformer",
        ),
        (
            lambda: CausalState(MODEL.decoder),
            "model: expected a LanguageModel or a RecurrentLanguageModel, got Decoder",
        ),
        (lambda: Sampling().choose(torch.ones(2, 5), BOS_ONLY), r"prefix_ids: .* \(2, L\)"),
        (lambda: Generated(BOS_ONLY, torch.ones(1)).decode("x"), "vocabulary: .* has `decode`"),
    ],
)
def test_malformed(call, message):
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        call()


def test_top_p_of_one_keeps_every_token():
    logits = 5 * torch.randn(1, 50_000, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        assert torch.equal(top_p_filter(logits.to(dtype), 1.0), logits.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_top_p_keeps_at_least_p_in_low_precision(dtype):
    vocab = 50_000
    logits = 5 * torch.randn(1, vocab, generator=torch.Generator().manual_seed(0)).to(dtype)
    probability = logits.double().softmax(-1)
    rounding = vocab * torch.finfo(torch.float64).eps  # so many numbers are added up
    for p in (0.5, 0.9, 0.999, 1 - 2**-24):
        kept = top_p_filter(logits, p) > float("-inf")
        assert probability[kept].sum() >= p - rounding


# --- Whole sentences ------------------------------------------------------------------------------


def twins(kind, seed):
    """HF's model and our copy, which never say PAD, and a padded batch of sources."""
    torch.manual_seed(seed)
    theirs = small_hf(kind, "sdpa", use_cache=True).double().eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "embed_positions" not in name:  # Marian's table is a formula, not a weight
                parameter.mul_(2.0)  # sharper choices, sentences of different lengths
        theirs.final_logits_bias[:, HF_PAD] = -1e4
    rows = [torch.randint(3, 17, (length,)).tolist() for length in (6, 3, 1, 5)]
    return theirs, loaded(theirs, HF_PAD), pad(rows, value=HF_PAD)


def hf_generate(theirs, source, **options):
    """The new words, and the scores where beams are searched."""
    answer = theirs.generate(
        source, attention_mask=(source != HF_PAD).long(), decoder_start_token_id=START,
        eos_token_id=HF_EOS, pad_token_id=HF_PAD, max_new_tokens=12, do_sample=False,
        return_dict_in_generate=True, output_scores=True, **options,
    )  # fmt: skip
    return answer.sequences[:, 1:], getattr(answer, "sequences_scores", None)


OURS = {"max_new": 12, "eos": HF_EOS, "padding": HF_PAD}


@pytest.mark.parametrize("kind", ["marian", "bart"])
@pytest.mark.parametrize("seed", range(4))
def test_greedy_equals_hf_word_for_word(kind, seed):
    theirs, ours, source = twins(kind, seed)
    wanted, _ = hf_generate(theirs, source, num_beams=1)
    for cache in (True, False):
        start = torch.full((4, 1), START)
        found = generate(Seq2SeqState(ours, source, cache=cache), start, **OURS)
        assert torch.equal(found.tokens, wanted)


@pytest.mark.parametrize("kind", ["marian", "bart"])
@pytest.mark.parametrize(("beams", "penalty"), [(2, 1.0), (4, 0.0), (3, 2.0), (3, -1.0)])
@pytest.mark.parametrize("seed", range(3))
def test_beam_search_equals_hf_word_for_word(kind, beams, penalty, seed):
    theirs, ours, source = twins(kind, seed)
    wanted, wanted_scores = hf_generate(
        theirs, source, num_beams=beams, length_penalty=penalty, early_stopping="never"
    )
    for cache in (True, False):
        start = torch.full((4, 1), START)
        state = Seq2SeqState(ours, source, cache=cache)
        found = beam_search(state, start, num_beams=beams, length_penalty=penalty, **OURS)
        assert torch.equal(found.tokens, wanted)
        torch.testing.assert_close(found.scores, wanted_scores.float(), rtol=1e-4, atol=1e-4)


def own_model(seed=0, vocab=13):
    torch.manual_seed(seed)
    sizes = {"d_model": 12, "num_heads": 3, "num_encoder_layers": 1, "num_decoder_layers": 2}
    model = Transformer(TransformerConfig(vocab, **sizes, dropout=0.3)).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return model


class Says:
    """A session that says no other words than these: never PAD, which the model would then hide."""

    def __init__(self, state, words=slice(1, None)):
        self.state, self.words = state, words

    def feed(self, tokens):
        logits = self.state.feed(tokens)
        allowed = torch.full_like(logits, -1e4)
        allowed[:, self.words] = logits[:, self.words]
        return allowed

    def reorder(self, rows):
        self.state.reorder(rows)


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_feeding_in_chunks_equals_feeding_at_once(chunk):
    model, source = own_model(), pad([[5, 6, 7], [8]])
    target = pad([[1, 9, 4, 5, 11], [1, 7, 7, 7, 6]])
    whole = Seq2SeqState(model, source, cache=False).feed(target)
    state = Seq2SeqState(model, source)
    for piece in target.split(chunk, dim=1):
        last = state.feed(piece)
    torch.testing.assert_close(last, whole)


def padded_session(kind, positions, *, cache):
    """Either family with a session of its own; the three rows are sources or starts of any length."""
    options = {"d_model": 12, "num_heads": 3, "positions": positions, "max_length": 20}
    if kind is LanguageModel:
        config = LanguageModelConfig(13, num_layers=2, **options)
    else:
        config = TransformerConfig(13, num_encoder_layers=1, num_decoder_layers=2, **options)
    torch.manual_seed(3)
    model = kind(config).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    if kind is LanguageModel:
        return Says(CausalState(model, cache=cache))
    return Says(Seq2SeqState(model, pad([[5, 6, 7], [8], [9, 9, 4, 3]]), cache=cache))


PADDED_STARTS = pad([[1, 9, 4, 5, 11], [7], [6, 3]], left=True)
BOTH_FAMILIES = pytest.mark.parametrize("kind", [Transformer, LanguageModel])


@BOTH_FAMILIES
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_beams_in_chunks_equal_beams_without_a_cache(kind, positions, chunk):
    """Three padded starts become six beams, which are rearranged before each chunk."""
    with_cache, without = (padded_session(kind, positions, cache=cache) for cache in (True, False))
    torch.testing.assert_close(with_cache.feed(PADDED_STARTS), without.feed(PADDED_STARTS))
    draws = torch.Generator().manual_seed(0)
    rows = torch.tensor([0, 0, 1, 1, 2, 2])
    for piece in torch.randint(3, 13, (6, 7), generator=draws).split(chunk, dim=1):
        with_cache.reorder(rows)
        without.reorder(rows)
        torch.testing.assert_close(with_cache.feed(piece), without.feed(piece))
        rows = torch.randint(0, 6, (6,), generator=draws)


@BOTH_FAMILIES
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_sentences_do_not_depend_on_the_chunks_of_the_start(kind, positions, chunk):
    """Greedy and beams, from padded starts fed bit by bit, word for word as without a cache."""
    *first, last = PADDED_STARTS.split(chunk, dim=1)
    for search in (
        lambda state, start: generate(state, start, max_new=6),
        lambda state, start: beam_search(state, start, num_beams=3, max_new=6),
    ):
        wanted = search(padded_session(kind, positions, cache=False), PADDED_STARTS)
        state = padded_session(kind, positions, cache=True)
        for piece in first:
            state.feed(piece)
        found = search(state, last)
        assert torch.equal(found.tokens, wanted.tokens)
        torch.testing.assert_close(found.scores, wanted.scores)


def test_starts_of_different_lengths():
    """Padded on the left, each row goes on as it would alone."""
    model, source = own_model(1), pad([[5, 6, 7], [8]])
    starts = [[1, 9, 4, 5], [1, 7]]
    together = generate(
        Says(Seq2SeqState(model, source)), pad(starts, left=True), max_new=6, eos=None
    )
    for row, start in enumerate(starts):
        state = Says(Seq2SeqState(model, source[row : row + 1]))
        alone = generate(state, torch.tensor([start]), max_new=6, eos=None)
        assert torch.equal(together.tokens[row], alone.tokens[0])
        torch.testing.assert_close(together.scores[row], alone.scores[0])


def test_a_row_that_ended_stays_ended():
    for seed in range(5):
        model, source = own_model(seed), pad([[5, 6, 7], [8], [9, 9]])
        start = torch.ones(3, 1, dtype=torch.long)
        sampling = Sampling(temperature=3.0, generator=torch.Generator().manual_seed(seed))
        found = generate(Says(Seq2SeqState(model, source)), start, max_new=20, sampling=sampling)
        for row in found.tokens.tolist():
            if EOS in row:
                assert not any(row[row.index(EOS) + 1 :])
                assert 0 not in row[: row.index(EOS)]


def every_sentence(max_new, words):
    """All sentences of at most max_new words that end in EOS, or are as long as they may be."""
    for length in range(1, max_new + 1):
        for prefix_ids in itertools.product(words, repeat=length - 1):
            for end in [EOS] if length < max_new else [EOS, *words]:
                yield [*prefix_ids, end]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_beam_as_wide_as_the_tree_finds_the_best_sentence(seed, penalty):
    model, source, start = own_model(seed, vocab=64), torch.tensor([[4, 5, 3]]), torch.tensor([[1]])
    words = [EOS, 3, 4, 5]
    best = (float("-inf"), None)
    for sentence in every_sentence(3, words[1:]):
        state, score = Says(Seq2SeqState(model, source, cache=False), words), 0.0
        for prefix_ids, word in zip([1, *sentence], sentence, strict=False):
            score += state.feed(torch.tensor([[prefix_ids]])).log_softmax(-1)[0, word].item()
        best = max(best, (score / len(sentence) ** penalty, sentence))
    state = Says(Seq2SeqState(model, source), words)
    found = beam_search(state, start, num_beams=30, max_new=3, length_penalty=penalty)
    assert [word for word in found.tokens[0].tolist() if word] == best[1]
    assert abs(found.scores[0].item() - best[0]) < 1e-5


@pytest.mark.parametrize("seed", range(8))
def test_a_beam_of_one_ends_where_greedy_ends_or_on_something_likelier(seed):
    model, source = own_model(seed), pad([[5, 6, 7], [8]])
    start = torch.ones(2, 1, dtype=torch.long)
    options = {"max_new": 8}
    beam = beam_search(
        Says(Seq2SeqState(model, source)), start, num_beams=1, length_penalty=0.0, **options
    )
    greedy = generate(Says(Seq2SeqState(model, source)), start, **options)
    assert (beam.scores >= greedy.scores - 1e-5).all()


def test_sampling_is_repeatable():
    model, source = own_model(), pad([[5, 6, 7], [8]])
    start = torch.ones(2, 1, dtype=torch.long)

    def draw(seed):
        sampling = Sampling(generator=torch.Generator().manual_seed(seed))
        return generate(Seq2SeqState(model, source), start, max_new=9, sampling=sampling).tokens

    assert torch.equal(draw(1), draw(1))
    assert any(not torch.equal(draw(1), draw(seed)) for seed in range(2, 6))


def test_a_beam_too_wide_is_refused():
    model = own_model()
    state = Seq2SeqState(model, torch.tensor([[5]]))
    with pytest.raises(ValueError, match="num_beams: expected at most half of the 13 words, got 7"):
        beam_search(state, torch.tensor([[1]]), num_beams=7, max_new=3)


def test_translate_words():
    words = Vocabulary(list("abcdefghi"))
    model = own_model()
    model.train()
    one, two = translate(model, [["a", "b"], ["c"]], words, words, max_new=5)
    assert model.training
    assert translate(model, [["c"]], words, words, max_new=5) == [two]
    assert translate(model, [["a", "b"]], words, words, max_new=5, cache=False) == [one]
    assert len(translate(model, [["a"]], words, words, max_new=5, num_beams=3)) == 1
    assert translate(model, [], words, words) == []


def test_generated_words_are_read_up_to_the_end():
    words = Vocabulary(["a", "b"])
    found = Generated(torch.tensor([[4, 5, 2, 0], [5, 5, 5, 4]]), torch.zeros(2))
    assert found.decode(words) == [["a", "b"], ["b", "b", "b", "a"]]
