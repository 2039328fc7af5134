"""minimal.py: it passes the package's Specs, has its numbers and tokens, learns, and fits on a few pages."""

import ast
import inspect
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from minimal_specs import PARTS_OF, TRIALS, as_text, copied, left_out, narrowed_for
from same_numbers import assert_same_numbers, in_dtype, shake
from tested_transformer import minimal
from tested_transformer.analysis.translation import find_mistakes
from tested_transformer.data import make_batches, single_numbers
from tested_transformer.experiments.ch10_number_models import load_number_model
from tested_transformer.generation.decoding_state import Seq2SeqState
from tested_transformer.generation.generate import generate
from tested_transformer.models.transformer import Transformer, TransformerConfig
from tested_transformer.specs.judge import judge
from tested_transformer.training.losses import cross_entropy

SOURCE = Path(minimal.__file__).read_text(encoding="utf-8")
TREE = ast.parse(SOURCE)
NODES = [n for n in ast.walk(TREE) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
pytestmark = pytest.mark.plain_types

# --- The package's Specs --------------------------------------------------------------------------

# What is not asked, and why; printed by `python tests/minimal_specs.py`.
LEFT_OUT = {
    "attention": """\
attention: causal, window and lengths are said by a mask; 0 of 68 cases left out
    check: the future stays hidden
    check: the window decides
    check: the lengths decide
    check: padding changes nothing
    check: chunks equal one pass
    mistake: the past hidden
    mistake: aligned top-left
    mistake: a token hidden from itself
    mistake: masked only in training
    mistake: no mask with a cache
    mistake: a window one too wide
    mistake: the lengths cut the queries
attention: no bias, no ALiBi, no scale of its own; 23 of 68 cases left out
attention: no grouped-query attention; 2 of 45 cases left out
    check: query heads read their group's KV head
    mistake: groups repeated
""",
    "masked_softmax": "",
    "causal_mask": "",
    "padding_mask": """\
padding_mask_from_tokens: padding is 0; 0 of 12 cases left out
    mistake: 0 taken for padding
""",
    "split_heads": "",
    "MultiHeadAttention": """\
multi_head: causal is said by a mask; 0 of 44 cases left out
    check: the future stays hidden
multi_head: no grouped-query attention; 5 of 44 cases left out
multi_head: a context has the model's dimension; 2 of 39 cases left out
""",
    "KeyValueCache": """\
cache: no reordering, which greedy decoding does not need; 6 of 22 cases left out
    check: a row takes its keys along
    mistake: the cache stays with its rows
    mistake: values move, keys stay
""",
    "sinusoidal_positions": """\
sinusoidal_positions: interleaved, to the base 10,000; 11 of 31 cases left out
sinusoidal_positions: an even dimension; 3 of 20 cases left out
    mistake: even widths only
""",
    "LayerNorm": """\
layer_norm: eps is 1e-5; 5 of 26 cases left out
""",
    "Residual": """\
block: post-norm; 31 of 39 cases left out
    check: a large alpha silences the sublayers
    mistake: the residual takes the normed input
    mistake: post-norm where pre-norm was asked for
    mistake: the norm after the sublayer, on the branch
    mistake: no norm at the end of a pre-norm stack
    mistake: alpha on the sublayer
    mistake: alpha forgotten
    mistake: the sum of ResiDual adds the stream
    mistake: the sum of ResiDual starts at zero
    mistake: the sum of ResiDual not normalized
""",
    "FeedForward": """\
feed_forward: ReLU, and no dropout inside; 14 of 29 cases left out
    check: no dropout in evaluation
    check: dropout acts in training
    check: dropout scales what it keeps
    mistake: ReLU, whatever was asked for
    mistake: GELU's tanh form for the exact one
    mistake: the exact GELU for its tanh form
    mistake: dropout active in evaluation
""",
    "DecoderLayer": "",
    "Transformer": """\
model: ReLU; 0 of 16 cases left out
model: padding is 0, sinusoidal positions, interleaved, eps is 1e-5, embeddings are scaled; 3 of 16 cases left out
model: no norm at the end of a post-norm stack; 0 of 13 cases left out
model: post-norm, with biases; 3 of 13 cases left out
    mistake: no final norm with pre-norm
model: the output matrix is the target's embedding matrix; 1 of 10 cases left out
model: as many encoder layers as decoder layers; 1 of 9 cases left out
""",
    "cross_entropy": """\
cross_entropy: padding is 0; 6 of 24 cases left out
cross_entropy: a mean, no sum; 1 of 18 cases left out
cross_entropy: a word at least; 2 of 17 cases left out
""",
    "training_step": """\
training_step: no clipping; 4 of 12 cases left out
    check: no step is longer than clip
    mistake: each batch clipped on its own
    mistake: each tensor clipped on its own
    mistake: each number clipped on its own
    mistake: clipped after the step
training_step: what is expected is what is read next; 1 of 8 cases left out
training_step: one batch per step; 0 of 7 cases left out
    check: however the words are cut
    mistake: accumulation not normalized
    mistake: mean of means
    mistake: a step after each batch
    mistake: gradients cleared inside the loop
""",
    "generate": """\
greedy: EOS is 2, padding is 0; 2 of 10 cases left out
""",
    "Transformer.decode": """\
decoding: translation only; 9 of 16 cases left out
    check: a row takes its past along
decoding: no reordering, which greedy decoding does not need; 4 of 7 cases left out
    check: a row takes its source along
    mistake: the cache shared between beams
    mistake: the memory left behind
decoding: post-norm, sinusoidal positions, two layers each; 0 of 3 cases left out
""",
}


@pytest.mark.parametrize("name", TRIALS)
def test_each_part_passes_the_packages_spec(name):
    spec = narrowed_for(name)
    for seed in range(3):
        verdict = judge(spec, TRIALS[name].candidate, seed=seed)
        assert verdict.passed, verdict
        assert not verdict.skipped
        assert verdict.num_cases == len(spec.draw(seed))


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIALS)
def test_what_is_left_out_of_a_spec_is_listed(name):
    """Every check and every mistake of the whole Spec is there, or in the table with a reason."""
    assert as_text(left_out(name)) == LEFT_OUT[name]


def test_dtypes_fully_masked_rows_and_gradients_stay():
    """These may not be narrowed away."""
    for name, trial in TRIALS.items():
        left, whole = narrowed_for(name), trial.spec
        dtypes = [
            {case.dtype for seed in range(4) for case in spec.draw(seed)} for spec in (left, whole)
        ]
        assert dtypes[0] == dtypes[1], name
        gone = {check.name for check in whole.checks} - {check.name for check in left.checks}
        assert not [
            check for check in gone if "gradient" in check or "fully masked row" in check
        ], name
    half = {torch.bfloat16, torch.float16}
    for name in ("attention", "masked_softmax", "LayerNorm"):
        assert half < {case.dtype for case in narrowed_for(name).draw(0)}
    assert "a fully masked row has no gradient" in [
        c.name for c in narrowed_for("attention").checks
    ]


def test_every_function_and_module_stands_before_a_spec():
    public = {node.name for node in TREE.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert public == {*TRIALS, *PARTS_OF} - {"Transformer.decode"}
    assert {*PARTS_OF.values()} < {*TRIALS}


def test_no_nan_is_ever_computed_for_a_fully_masked_row():
    """Filled before the softmax: anomaly detection would stop at a NaN that is zeroed afterwards."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, 3, 4, generator=generator).requires_grad_() for _ in range(3)
    )
    mask = torch.tensor([[True, False, True], [False] * 3, [True] * 3])
    with torch.autograd.set_detect_anomaly(True):
        minimal.attention(query, key, value, mask).sum().backward()
    assert not query.grad[:, 1].any()


def test_concatenate_heads_is_the_way_back():
    x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
    for heads in (1, 3, 4):
        assert torch.equal(minimal.concatenate_heads(minimal.split_heads(x, heads)), x)


# --- The package's numbers and tokens -------------------------------------------------------------

SIZES = TransformerConfig(
    13, target_vocab=11, d_model=12, num_heads=3, num_encoder_layers=2, num_decoder_layers=2,
    d_ff=20, dropout=0.0,
)  # fmt: skip
READ = torch.tensor([[3, 4, 5, 6, 7, 12], [8, 9, 10, 0, 0, 0], [0, 0, 7, 3, 12, 5]])  # 0 is padding
TARGET = torch.tensor([[1, 3, 4, 5, 10], [1, 6, 7, 2, 0], [0, 1, 9, 2, 0]])
EXPECTED = torch.tensor([[3, 4, 5, 10, 2], [6, 7, 2, 0, 0], [0, 9, 2, 0, 0]])


def package_model(config: TransformerConfig, seed: int) -> Transformer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return shake(Transformer(config), seed)


def run(model, loss_of) -> dict:
    """Logits where a token is read, and the gradients of every parameter."""
    logits = model(READ, TARGET)
    loss = loss_of(logits, EXPECTED, label_smoothing=0.1)
    loss.backward()
    return {"logits": [logits[TARGET != 0]], "loss": [loss[None]],
            "gradients": [parameter.grad for parameter in model.parameters()]}  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("vocab", [11, None], ids=["two vocabularies", "one vocabulary"])
def test_the_same_weights_give_the_packages_numbers(vocab, seed):
    """Logits, loss and gradients, with padding left and right of either sequence."""
    package = package_model(replace(SIZES, target_vocab=vocab), seed)
    assert_same_numbers(
        lambda dtype: run(copied(in_dtype(package, dtype)), minimal.cross_entropy),
        lambda dtype: run(in_dtype(package, dtype), cross_entropy),
    )


def test_it_starts_with_the_packages_scales():
    """Before training, matrices and embeddings have the package's standard deviations."""
    sizes = {"d_model": 96, "num_heads": 3, "d_ff": 200, "dropout": 0.0}
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        package = Transformer(TransformerConfig(500, target_vocab=500, **sizes, **layers))
        ours = minimal.Transformer(500, 500, **sizes, num_layers=2)
    for theirs, mine in zip(package.parameters(), ours.parameters(), strict=True):
        if (
            theirs.ndim > 1
        ):  # of n numbers the standard deviation is off by 1 / sqrt(2 n), at 6 sigma
            slack = 6 / mine.numel() ** 0.5
            assert mine.std().item() == pytest.approx(theirs.std().item(), rel=slack)
        else:
            assert torch.equal(mine, theirs)


@torch.no_grad()
def greedy_without_cache(model, source, max_new):
    """Every token from the whole target, computed anew."""
    memory, memory_mask = model.encode(source), minimal.padding_mask(source)
    target = torch.full_like(source[:, :1], minimal.BOS)
    for _ in range(max_new):
        ended = (target == minimal.EOS).any(1, keepdim=True)
        token = model.decode(target, memory, memory_mask)[:, -1:].argmax(-1)
        target = torch.cat([target, token.masked_fill(ended, minimal.PAD)], dim=1)
    return target[:, 1:]


def padded_to(tokens, length):
    return functional.pad(tokens, (0, length - tokens.shape[1]), value=minimal.PAD)


@pytest.mark.parametrize("seed", range(5))
def test_greedy_decoding_gives_the_packages_tokens(seed):
    """With the package's cache, with its own, and without one."""
    package = package_model(SIZES, seed).double().eval()
    start = torch.full((len(READ), 1), minimal.BOS)
    theirs = generate(Seq2SeqState(package, READ), start, max_new=9).tokens
    ours = minimal.generate(copied(package), READ, 9)
    assert torch.equal(ours, theirs)
    assert torch.equal(padded_to(ours, 9), greedy_without_cache(copied(package), READ, 9))


@pytest.mark.parametrize("sizes", [(1,) * 6, (2, 2, 2), (3, 1, 2), (6,)])
def test_decoding_in_chunks_gives_the_logits_of_one_pass(sizes):
    model = copied(package_model(SIZES, 0).double().eval())
    target = torch.tensor([[1, 3, 4, 5, 10, 6], [1, 6, 7, 2, 0, 0], [0, 0, 1, 9, 4, 3]])
    memory, mask, cache = model.encode(READ), minimal.padding_mask(READ), minimal.KeyValueCache()
    whole, chunks = model.decode(target, memory, mask), []
    for size in sizes:
        chunks.append(model.decode(target[:, : cache.length + size], memory, mask, cache))
        memory = memory[:, :0]
    assert cache.length == 6
    found = torch.cat(chunks, dim=1)
    assert found.shape == whole.shape
    torch.testing.assert_close(found, whole, rtol=1e-9, atol=1e-9)


def test_the_memory_is_projected_once():
    """After the first token cross-attention reads its keys and values from the cache alone."""
    model = copied(package_model(SIZES, 0).eval())
    lengths = []
    cross = model.decoder[0].cross_attention
    cross.key.register_forward_hook(lambda module, inputs, output: lengths.append(len(output[0])))
    tokens = minimal.generate(model, READ, 4)
    assert tokens.shape[1] > 1
    assert lengths == [READ.shape[1]] + [0] * (tokens.shape[1] - 1)


def test_the_books_trained_model_translates_as_in_the_package():
    """The same numbers translated word for word, with the weights that come with the package."""
    package, source, target = load_number_model()
    model, pairs = copied(package).eval(), single_numbers().test[:300]
    assert not find_mistakes(package, pairs, source, target)
    for batch in make_batches(pairs, source, target, batch_size=100):
        tokens = minimal.generate(model, batch.source, batch.expected.shape[1])
        assert torch.equal(tokens, batch.expected)


# --- It learns ------------------------------------------------------------------------------------


def reversed_digits(count: int, seed: int):
    """Sequences of two to five tokens; the target is the same backwards, between BOS and EOS."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(3, 9, (count, 5), generator=generator)
    target = torch.zeros(count, 7, dtype=torch.long)
    for row, length in enumerate(torch.randint(2, 6, (count,), generator=generator).tolist()):
        source[row, length:] = minimal.PAD
        framed = [minimal.BOS, *source[row, :length].flip(0).tolist(), minimal.EOS]
        target[row, : length + 2] = torch.tensor(framed)
    return source, target


def trained_to_reverse(steps: int):
    """A small model, and the loss of each step; the seeds of the batches are the steps."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = minimal.Transformer(9, 9, 32, 4, 1, 64, 0.0)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=200)
    losses = []
    for seed in range(1, steps + 1):
        losses.append(minimal.training_step(model, optimizer, *reversed_digits(64, seed)))
        schedule.step()
    return model.eval(), losses


def test_it_learns_to_reverse_a_sequence():
    model, losses = trained_to_reverse(200)
    assert losses[-1] < losses[0] / 10
    source, target = reversed_digits(200, seed=0)
    tokens = padded_to(minimal.generate(model, source, 6), 6)
    exact = (tokens == target[:, 1:]).all(1).double().mean().item()
    assert exact > 0.7, exact


def test_training_is_repeatable_and_dropout_acts_in_training_alone():
    assert trained_to_reverse(3)[1] == trained_to_reverse(3)[1]
    source, target = reversed_digits(4, seed=0)
    model = minimal.Transformer(9, 9, 32, 4, 1, 64, 0.5)
    assert not torch.equal(model(source, target), model(source, target))
    model.eval()
    assert torch.equal(model(source, target), model(source, target))


def test_it_learned_the_number_words_from_every_seed():
    """What benchmarks/minimal_training.py stored."""
    path = Path(__file__).parents[1] / "benchmarks" / "results" / "minimal_training.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert {row["seed"] for row in rows} == {0, 1, 2}
    assert all(row["exact_match"] >= 0.995 and row["held_out"] == 2000 for row in rows)


# --- It can be read in one sitting ----------------------------------------------------------------


def test_it_has_at_most_300_lines_of_100_characters():
    lines = SOURCE.splitlines()
    assert len(lines) <= 300
    assert max(map(len, lines)) <= 100


def test_it_imports_torch_and_math_alone():
    found = set()
    for node in ast.walk(TREE):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(f"{'.' * node.level}{node.module}")
    assert found == {"math", "torch"}


def test_every_function_and_class_fits_on_a_listing():
    assert max(node.end_lineno - node.lineno + 1 for node in NODES) <= 40


def test_no_name_is_private():
    names = {node.name for node in NODES}
    names |= {n.id for n in ast.walk(TREE) if isinstance(n, ast.Name)}
    names |= {n.attr for n in ast.walk(TREE) if isinstance(n, ast.Attribute)}
    names |= {n.arg for n in ast.walk(TREE) if isinstance(n, ast.arg)}
    assert {name for name in names if name.startswith("_")} == {"__init__", "_"}  # for _ in range


def test_docstrings_are_one_line():
    for node in [TREE, *NODES]:
        text = ast.get_docstring(node)
        if getattr(node, "name", None) == "__init__":
            assert text is None
        else:
            assert "\n" not in text
            assert text.endswith(".")


def test_it_checks_nothing():
    """No validation: a wrong call fails where torch fails."""
    assert not [n for n in ast.walk(TREE) if isinstance(n, ast.Raise | ast.Assert | ast.Try)]
    options = {
        (node.name, argument.arg)
        for node in NODES if isinstance(node, ast.FunctionDef)
        for argument in node.args.args[len(node.args.args) - len(node.args.defaults):]
    }  # fmt: skip
    assert {name for _, name in options} == {"mask", "context", "cache", "label_smoothing"}
    assert not [n for n in NODES if isinstance(n, ast.FunctionDef) and n.args.kwonlyargs]
    assert inspect.getmodule(minimal.attention) is minimal
