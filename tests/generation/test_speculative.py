"""Speculative decoding: the target's distribution by enumeration, the same greedy tokens, fewer calls."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from tested_transformer import (
    CachedLogits,
    CausalState,
    LanguageModel,
    LanguageModelConfig,
    Sampling,
    accept,
    every_outcome,
    generate,
    reference,
    residual,
    speculative_generate,
    speculative_round,
)
from tested_transformer.generation import speculative
from tested_transformer.generation.sampling import GREEDY
from tested_transformer.generation.speculative import distributions
from tested_transformer.specs import SPECS
from tested_transformer.specs.judge import judge

SMALL = LanguageModelConfig(
    11, num_layers=2, d_model=8, num_heads=2, d_ff=8, max_length=64, positions="learned"
)
START = torch.tensor([[5, 3, 7]])


def tiny(seed, **changes):
    torch.manual_seed(seed)
    model = LanguageModel(replace(SMALL, **changes)).double().eval()
    for weight in model.parameters():  # far from uniform, and ties are out of the question
        torch.nn.init.normal_(weight, std=0.7)
    return model


def test_right_implementations_pass():
    for name, candidate in (("speculative_round", speculative_round), ("cached_logits", CachedLogits)):  # fmt: skip
        verdict = judge(SPECS[name], candidate)
        assert verdict.passed, verdict


# --- The proof by enumeration, without a model ----------------------------------------------------


@pytest.mark.parametrize(
    ("vocab", "length", "temperature", "k"),
    [(5, 2, 1.0, 5), (3, 3, 1.0, 3), (5, 3, 0.7, 2), (4, 2, 0.0, 4), (5, 1, 2.0, 3)],
)
def test_the_slow_truth_has_the_target_s_distribution(vocab, length, temperature, k):
    """All drafts, all acceptances: at most 10 factors per term and V^3 terms, each rounded once."""
    rng = np.random.default_rng(vocab * length)
    tables = [rng.normal(size=((vocab ** (length + 1) - 1) // (vocab - 1), vocab)) for _ in "pq"]
    wanted = reference.target_distribution(tables[0], length, temperature, k)
    found = reference.speculative_distribution(*tables, length, temperature, k)
    assert abs(found.sum() - 1) < vocab ** (length + 1) * np.finfo(float).eps
    assert np.abs(found - wanted).max() < 10 * vocab**length * np.finfo(float).eps


def test_every_outcome_sums_to_one_and_takes_the_rest_to_the_last_possible():
    def run(choose):
        return choose(torch.tensor([0.5, 0.25, 0.0]))

    assert list(every_outcome(run)) == [(0, 0.5), (1, 0.5)]
    with pytest.raises(ValueError, match="probabilities: expected a positive number among them"):
        list(every_outcome(lambda choose: choose(torch.tensor([float("nan"), 0.5]))))


def all_texts(model, start, size, sampling, eos):
    """Each text of `size` tokens at most, ended by EOS, and the model's own probability of it."""
    probabilities, found = distributions(sampling), {}
    for ids in itertools.product(range(model.config.vocab_size), repeat=size):
        text = ids[: ids.index(eos) + 1] if eos in ids else ids
        with torch.no_grad():
            p = probabilities(model(torch.tensor([[*start, *text]]))[0, len(start) - 1 : -1])
        found[text] = float(p.gather(1, torch.tensor(text)[:, None]).prod())
    return {text: chance for text, chance in found.items() if chance > 0}


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0.5, top_k=3), Sampling(top_p=0.6), GREEDY],
    ids=["everything", "top-k", "top-p", "greedy"],
)
def test_a_whole_text_has_the_target_s_distribution(sampling, monkeypatch):
    """Several rounds with real models and their caches, EOS and max_new among them."""
    target, draft = tiny(0, vocab_size=3), tiny(1, vocab_size=3, num_layers=1)

    def run(choose):
        monkeypatch.setattr(speculative, "chooser", lambda sampling: choose)
        found = speculative_generate(
            target, draft, torch.tensor([[2]]), length=2, max_new=3, sampling=sampling, eos=1
        )
        return tuple(found.tokens[0].tolist())

    found = {}
    for text, chance in every_outcome(run):
        found[text] = found.get(text, 0.0) + chance
    wanted = all_texts(target, [2], 3, sampling, eos=1)
    assert found.keys() == wanted.keys()
    for text, chance in wanted.items():
        assert abs(found[text] - chance) < 1e3 * torch.finfo(torch.float64).eps


# --- Greedy: the same tokens ----------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize(
    "changes", [{}, {"window": 3}, {"num_kv_heads": 1}, {"positions": "rotary"}], ids=str
)
def test_greedy_tokens_are_those_of_the_target(length, changes):
    for seed in range(4):
        target, draft = tiny(seed, **changes), tiny(seed + 10, num_layers=1)
        found = speculative_generate(target, draft, START, length=length, max_new=17, eos=2)
        plain = generate(CausalState(target), START, max_new=17, eos=2)
        assert torch.equal(found.tokens, plain.tokens)


def test_greedy_tokens_are_those_of_transformers_with_and_without_an_assistant():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=23, n_embd=12, n_layer=2, n_head=2, n_positions=64, bos_token_id=None,
        eos_token_id=None, initializer_range=0.6,
    )  # fmt: skip
    target, draft = (transformers.GPT2LMHeadModel(config).eval() for _ in range(2))

    def logits(model):
        return lambda ids, count: model(torch.tensor([ids])).logits[0, -count:]

    options = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    mask = torch.ones_like(START)
    plain = target.generate(START, attention_mask=mask, **options)
    assisted = target.generate(START, attention_mask=mask, assistant_model=draft, **options)
    assert torch.equal(plain, assisted)
    ids = START[0].tolist()
    with torch.no_grad():
        while len(ids) < 23:
            ids += speculative_round(
                logits(target), logits(draft), ids, 3, distributions(GREEDY), lambda p: int(p.argmax())
            )  # fmt: skip
    assert ids[:23] == plain[0].tolist()


def test_a_check_is_transformers_own(monkeypatch):
    """Their function samples inside; what it compares and samples from is ours, for every rejection.

    The whole of assisted generation is no oracle above temperature 0: some of its drafts came with a q
    that they were not sampled from (issue 47932), and samples prove less than an enumeration.
    """
    utils = pytest.importorskip("transformers.generation.utils")
    torch.manual_seed(0)
    q_logits, p_logits = torch.randn(3, 5).double(), torch.randn(4, 5).double()
    q, p, ids = q_logits.softmax(-1), p_logits.softmax(-1), torch.tensor([1, 4, 0])
    ratio = torch.stack([p[n, token] / q[n, token] for n, token in enumerate(ids)])
    sampled = []
    monkeypatch.setattr(
        torch, "multinomial", lambda p, num_samples: sampled.append(p) or torch.tensor([[0]])
    )
    for n in range(4):
        uniform = ratio.clone()  # just accepted, up to the one that is rejected by a hair
        uniform[n:] *= 1 + 1e-12
        monkeypatch.setattr(torch, "rand_like", lambda like, uniform=uniform: uniform)
        _, matches = utils._speculative_sampling(ids[None], q_logits[None], 3, p_logits[None])
        assert int(matches) == n
        wanted = residual(p[n], q[n]) if n < 3 else p[3]
        torch.testing.assert_close(sampled[-1][0], wanted)


# --- How much is accepted -------------------------------------------------------------------------


def test_a_draft_equal_to_the_target_is_accepted_whole():
    target = tiny(0)
    sampling = Sampling(generator=torch.Generator().manual_seed(0))
    found = speculative_generate(
        target, tiny(0), START, length=4, max_new=20, sampling=sampling, eos=None
    )
    assert found.accepted == found.drafted == (4, 4, 4, 4)
    assert found.tokens.shape == (1, 20)


def test_the_last_round_drafts_no_more_than_is_missing():
    found = speculative_generate(tiny(0), tiny(0), START, length=4, max_new=7, eos=None)
    assert found.drafted == (4, 1)
    assert speculative_generate(tiny(0), tiny(0), START, length=4, max_new=1).drafted == (0,)


def test_nothing_follows_eos():
    """The whole draft is accepted, EOS in its middle."""
    target = tiny(3)
    plain = generate(CausalState(target), START, max_new=12, eos=None).tokens[0].tolist()
    eos = plain[4]
    wanted = plain[: plain.index(eos) + 1]
    found = speculative_generate(target, tiny(3), START, length=8, max_new=12, eos=eos)
    assert found.tokens[0].tolist() == wanted


def test_the_mean_number_of_tokens_follows_the_formula_where_acceptance_is_constant():
    """The same p and q at every position: the tokens of a round are (1 - a^(K+1)) / (1 - a)."""
    rng = np.random.default_rng(0)
    for length in range(5):
        target, draft = (np.tile(rng.normal(size=3), (3 ** (length + 1), 1)) for _ in "pq")
        p, q = reference.softmax(target[0]), reference.softmax(draft[0])
        a = np.minimum(p, q).sum()
        wanted = (1 - a ** (length + 1)) / (1 - a)
        found = reference.mean_tokens(target, draft, length, 1.0, 3)
        assert abs(found - wanted) < 100 * 3**length * np.finfo(float).eps


def test_each_token_is_read_once_and_again_only_after_a_rejection():
    read = []
    cached = CachedLogits(tiny(0))
    cached.model.register_forward_pre_hook(lambda module, args: read.append(args[0].shape[1]))
    cached([5, 3, 7, 4, 6], 3)
    cached([5, 3, 7, 4, 6, 8, 9], 2)
    cached([5, 3, 7, 4, 6, 8, 4, 4], 2)  # 9 was rejected
    assert read == [5, 2, 2]
    assert cached.calls == 3


# --- Rounding -------------------------------------------------------------------------------------


def test_distributions_that_differ_by_rounding_have_a_residual():
    p = torch.full((3,), 1 / 3)
    assert torch.equal(residual(p, p), p)
    assert torch.equal(residual(p, p + 1e-8), p)


def test_the_logarithm_of_one_minus_a_small_ratio_is_off_by_one_rounding():
    """log1p changes the last digit of the residual, not more: p (1 - q/p) rounds once as well."""
    eps = torch.finfo(torch.float32).eps
    p, ratio = torch.tensor(0.25), torch.logspace(-12, -0.5, 400)
    exact = p.double() * (1 - ratio.double())
    for log in ((1 - ratio).log(), torch.log1p(-ratio)):
        error = ((p.log() + log).exp().double() - exact).abs() / exact
        assert error.max() < 8 * eps  # of two logarithms, a sum and an exponential


# --- Bad input ------------------------------------------------------------------------------------


@pytest.mark.plain_types
def test_bad_input_is_rejected():
    target, options = tiny(0), {"length": 2, "max_new": 3}
    with pytest.raises(ValueError, match="draft: expected the target's vocabulary of 11, got one of 9"):  # fmt: skip
        speculative_generate(target, tiny(0, vocab_size=9), START, **options)
    with pytest.raises(ValueError, match="start: expected shape"):
        speculative_generate(target, target, START.repeat(2, 1), **options)
    with pytest.raises(ValueError, match="length: expected at least 1"):
        speculative_generate(target, target, START, length=0, max_new=3)
    with pytest.raises(ValueError, match="sampling: expected a repetition penalty of 1, got 1.3"):
        speculative_generate(
            target, target, START, sampling=Sampling(repetition_penalty=1.3), **options
        )
    q, p = torch.full((2, 5), 0.2), torch.full((3, 5), 0.2)
    ids = torch.tensor([1, 4])
    with pytest.raises(ValueError, match="p: expected 3 rows, one more than q has, got 2"):
        accept(ids, q, p[:2], lambda probabilities: 0)
    with pytest.raises(ValueError, match=r"p: expected shape \(N, V\) = \(N, 5\) as in q"):
        accept(ids, q, p[:, :4], lambda probabilities: 0)
    with pytest.raises(ValueError, match="draft_ids: expected"):
        accept(torch.tensor([1, 5]), q, p, lambda probabilities: 0)
    with pytest.raises(ValueError, match="count: expected at most the 2 token IDs, got 3"):
        CachedLogits(target)([1, 2], 3)
