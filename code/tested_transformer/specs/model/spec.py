"""The Spec of the whole model: a module made from a configuration, with weights copied in by name."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from ... import reference
from ...errors import argument_error, shape_of
from ...layers.feed_forward import FeedForward
from ...layers.multi_head import MultiHeadAttention
from ...models.convert_torch import transformer_to_torch
from ...models.transformer import Transformer, TransformerConfig
from ..checks import HAIR, changed, either_mode, same_after, scaled_by_dropout
from ..compare import Problem, shares, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import AGAIN, EQUAL, GRADIENTS, Case, Check, Run, Spec, finite
from ..surroundings import seeded
from . import mutants

STATEMENT = """The Transformer of figure 1: an encoder, a decoder and an output layer, from token ids to logits.
A module class(config), config being a TransformerConfig; forward takes source (B, S) and target (B, L)
-> logits (B, L, V). Padding, config.pad_id, stands on the right; its logits may be anything.
Weights are copied in by these names, each with `.weight` and, where the configuration says so, `.bias`:
source_embedding.table, target_embedding.table (absent if target_vocab is None: one table for both),
output (the target's table if tied_output), and in layer n of `encoder.layers` and `decoder.layers`
attention.query, .key, .value, .output; in the decoder the same of cross_attention;
feed_forward.up_proj, feed_forward.down_proj; residuals.0.norm, residuals.1.norm, in the decoder
residuals.2.norm, in the order of their use; encoder.norm and decoder.norm if final_norm.
Other values than the default occur for every size and for dropout, activation (relu, gelu, gelu_tanh,
silu), bias, norm_placement (post, pre), norm_eps, positions (sinusoidal, none), position_layout,
scale_embedding, tied_output, pad_id, final_norm and output_bias. In training, dropout acts on the
embeddings and on the output of each sublayer; it may act on attention weights and hidden features too."""
SMALL = {
    "source_vocab": 11, "d_model": 6, "num_heads": 2, "num_encoder_layers": 2,
    "num_decoder_layers": 2, "d_ff": 9, "dropout": 0.0,
}  # fmt: skip
ALL = 1 - 2.0**-40  # dropout of everything; a configuration takes no 1
LONG = 516  # more tokens than any table of 512 has

# --- From a candidate to a function ---------------------------------------------------------------


@cache
def named_shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """Every weight of the model by name, each shared one once."""
    with torch.random.fork_rng(devices=[]):
        return {name: tuple(w.shape) for name, w in Transformer(config).named_parameters()}


@cache
def places(config: TransformerConfig) -> dict[str, slice]:
    """Where each weight stands when all are written in one row."""
    found, start = {}, 0
    for name, shape in named_shapes(config).items():
        found[name] = slice(start, start := start + math.prod(shape))
    return found


def by_name(weights: np.ndarray, config: TransformerConfig) -> dict[str, np.ndarray]:
    """All weights in one row, cut into what each name stands for."""
    shapes = named_shapes(config)
    return {name: weights[place].reshape(shapes[name]) for name, place in places(config).items()}


def fresh(
    candidate: Any, config: TransformerConfig, dtype: torch.dtype
) -> tuple[nn.Module, dict[str, Tensor]]:
    """The candidate's module as it makes it, in evaluation, and its parameters by name.

    Making a module takes longer than calling it, so what a class makes is kept. A function may make
    another one the next time.
    """
    return (_kept if isinstance(candidate, type) else _new)(candidate, config, dtype)


def _new(
    candidate: Any, config: TransformerConfig, dtype: torch.dtype
) -> tuple[nn.Module, dict[str, Tensor]]:
    with seeded(0):
        module = candidate(config)
    if not isinstance(module, nn.Module):
        raise argument_error(TypeError, "the candidate", type(module).__name__, "an nn.Module")
    module = module.to(dtype).eval()
    there = dict(module.named_parameters(remove_duplicate=False))
    known = {there[name] for name in named_shapes(config) if name in there}
    for name, shape in named_shapes(config).items():
        if name not in there:
            raise argument_error(TypeError, "the module", "none", f"a parameter `{name}`")
        if there[name].shape != shape:
            raise argument_error(
                ValueError, f"`{name}`", f"shape {shape_of(there[name])}", f"{shape}"
            )
    for name, own in there.items():
        if own not in known and own.requires_grad:
            wanted = "no parameter but those of the statement"
            raise argument_error(TypeError, "the module", f"`{name}`", wanted)
    return module, there


_kept = lru_cache(maxsize=16)(_new)


@torch.no_grad()
def made(candidate: Any, weights: Tensor, config: TransformerConfig) -> nn.Module:
    """The candidate's module with these weights."""
    module, there = fresh(candidate, config, weights.dtype)
    for name, place in places(config).items():
        there[name].copy_(weights[place].view_as(there[name]))
    return module


def build(candidate: Any, arguments: dict[str, Any], training: bool = False) -> Any:
    """A function of the sentences, the weights and the configuration."""

    def call(source: Tensor, target: Tensor, weights: Tensor, config: TransformerConfig) -> Tensor:
        module, there = fresh(candidate, config, weights.dtype)
        paths = paths_of(module)
        given = {
            path: weights[at].view_as(there[name])
            for name, at in places(config).items()
            for path in paths[there[name]]
        }
        try:
            return functional_call(
                module.train(training), given, (source, target), tie_weights=False
            )
        finally:
            module.eval()

    return call


def paths_of(module: nn.Module) -> dict[Tensor, list[str]]:
    """Where each parameter lies: several places if it is shared, a module that is used twice one."""
    found: dict[Tensor, list[str]] = {}
    for at, part in module.named_modules():
        for name, parameter in part._parameters.items():
            found.setdefault(parameter, []).append(f"{at}.{name}" if at else name)
    return found


def read(answer: Any, arguments: dict[str, Any]) -> Any:
    """The logits of words: what stands at padding is set to 0."""
    padding = arguments["target"] == arguments["config"].pad_id
    if not isinstance(answer, Tensor) or answer.shape[:2] != padding.shape:
        return answer
    return answer.masked_fill(padding.unsqueeze(-1), 0.0)


def slow(source, target, weights, config):
    """The reference, with zeros at padding."""
    logits = reference.transformer(source, target, by_name(weights, config), config)
    logits[target == config.pad_id] = 0
    return logits


def torch_model(source: Tensor, target: Tensor, weights: Tensor, config: Any) -> Tensor:
    """torch's nn.Transformer between our embedding and output layer, which tests compare with."""
    ours = made(Transformer, weights, config)
    theirs, length = transformer_to_torch(ours), target.shape[1]
    x, y = (
        embedding(ids, torch.arange(ids.shape[1]).expand_as(ids), ids.shape[1])
        for ids, embedding in ((source, ours.source_embedding), (target, ours.target_embedding))
    )
    hidden = {"src": source == config.pad_id, "tgt": target == config.pad_id}
    masks = {f"{name}_key_padding_mask": mask for name, mask in hidden.items()}
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    return ours.output(
        theirs(x, y, tgt_mask=future, memory_key_padding_mask=hidden["src"], **masks)
    )


# --- Cases ----------------------------------------------------------------------------------------


def drawn_weights(rng: np.random.Generator, config: TransformerConfig) -> np.ndarray:
    """All weights in one row; scales near 1 and everything else near 0, none of them equal."""
    rows = []
    for name, shape in named_shapes(config).items():
        noise = rng.normal(size=shape)
        if len(shape) > 1:
            rows.append(noise * shape[-1] ** -0.5)
        else:
            rows.append(0.3 * noise + (name.endswith("norm.weight")))
    return np.concatenate([row.ravel() for row in rows])


def arguments(
    rng: np.random.Generator, source: list[int], target: list[int], **changes: Any
) -> dict[str, Any]:
    """Sentences of these lengths, padded, and weights for a small model with these changes."""
    config = TransformerConfig(**SMALL | changes)
    vocabularies = {"source": config.source_vocab, "target": config.output_vocab}
    ids = {}
    for (name, vocab), lengths in zip(vocabularies.items(), (source, target), strict=True):
        words = np.arange(2, vocab) if config.pad_id == 0 else np.arange(vocab)
        words = words[words != config.pad_id]
        ids[name] = rng.choice(words, size=(len(lengths), max(lengths)))
        for row, length in zip(ids[name], lengths, strict=True):
            row[length:] = config.pad_id
            if length > 1 and row[0] == row[length - 1]:  # turned round, it must be another
                row[0] = words[(np.searchsorted(words, row[0]) + 1) % len(words)]
    return {**ids, "weights": drawn_weights(rng, config), "config": config}


def _with_large_scores(case: Case) -> Case:
    """The queries so large that exp(score) is too large for any dtype."""
    return changed(case, weights=with_weights(
        case, lambda name, weight: weight * (2000 if "query.weight" in name else 1)
    ))  # fmt: skip


@lru_cache(maxsize=4)  # the reference remembers its answers with the cases
def _cases(rng: np.random.Generator) -> tuple[Case, ...]:

    def case(label, source, target, dtype=torch.float64, **changes) -> Case:
        """Source and target: the lengths of the sentences of the batch, the longest one first."""
        return Case(label, arguments(rng, source, target, **changes), dtype)

    one = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    return (
        case("one layer each", [3], [2], **one),
        case("two layers each", [5], [4]),
        case("sentences of three lengths", [6, 2, 4], [5, 4, 1]),
        case("pre-norm", [4, 3], [3, 3], norm_placement="pre", d_ff=13),
        case("two vocabularies", [3, 3], [4, 2], target_vocab=8),
        case("an output layer of its own", [4, 1], [5, 5], tied_output=False, output_bias=True),
        case("more encoder layers than decoder layers", [4], [3], num_encoder_layers=3),
        case("more decoder layers, without biases", [3, 2], [4, 3], num_decoder_layers=3,
             num_encoder_layers=1, bias=False, norm_placement="pre"),
        case("dropout, in evaluation", [4, 2], [3, 2], dropout=0.5),
        case("four heads", [5, 5], [5, 5], d_model=8, num_heads=4, **one),
        case("float32", [6, 3], [4, 4], torch.float32, d_model=10, num_heads=5, activation="gelu"),
        case("padding is number 3", [5, 2], [2, 4], pad_id=3, position_layout="halves", **one),
        _with_large_scores(case("large scores", [4], [3], **one)),
        case("nothing as it usually is", [3, 2], [2, 3], norm_eps=0.1, scale_embedding=False,
             final_norm=True, activation="silu", positions="none", d_ff=None, num_heads=1, **one),
    )  # fmt: skip


def _drawn(draw: Draw) -> Case:
    """A case by chance: configuration, dtype and lengths."""
    size = draw.one_of(1, 2)
    lengths = [[draw.one_of(1, 2, 5, 9) for _ in range(size)] for _ in range(2)]
    head = draw.one_of(2, 4, 6)
    heads = draw.one_of(1, 2, 3)
    changes = {
        "d_model": heads * head,
        "num_heads": heads,
        "d_ff": draw.one_of(7, None, 1),
        "num_encoder_layers": draw.one_of(1, 2),
        "num_decoder_layers": draw.one_of(1, 2),
        "norm_placement": draw.one_of("post", "pre"),
        "final_norm": draw.one_of(None, True, False),
        "norm_eps": draw.one_of(1e-5, 1e-2),
        "bias": draw.one_of(True, False),
        "activation": draw.one_of("relu", "gelu", "gelu_tanh", "silu"),
        "positions": draw.one_of("sinusoidal", "none"),
        "position_layout": draw.one_of("interleaved", "halves"),
        "scale_embedding": draw.one_of(True, False),
        "tied_output": draw.one_of(True, False),
        "output_bias": draw.one_of(False, True),
        "target_vocab": draw.one_of(None, 7),
        "pad_id": draw.one_of(0, 3),
        "dropout": draw.one_of(0.0, 0.3),
    }
    drawn = arguments(draw.numbers, *lengths, **changes)
    return Case("drawn", drawn, draw.one_of(torch.float64, torch.float32))


# --- Checks ---------------------------------------------------------------------------------------


def _exact(case: Case) -> bool:
    """Listed, in float64: what a check tells of should show in a plain case."""
    return case.dtype == torch.float64 and case.label not in ("drawn", "large scores")


def _layers(case: Case, name: str) -> int:
    return getattr(case.arguments["config"], f"num_{name}_layers")


def _one_sentence(case: Case) -> bool:
    """Without padding, and quick."""
    return _exact(case) and len(case.arguments["source"]) == 1


def other_words(ids: np.ndarray, case: Case, vocab: int) -> np.ndarray:
    """Every word replaced by another one; padding stays."""
    pad_id = case.arguments["config"].pad_id
    other = (ids + 1) % vocab
    other = np.where(other == pad_id, (other + 1) % vocab, other)
    return np.where(ids == pad_id, ids, other)


def with_weights(case: Case, change: Any) -> np.ndarray:
    """The weights of the case after `change(name, weight)`, which gives the new numbers."""
    weights = by_name(case.arguments["weights"], case.arguments["config"])
    return np.concatenate([change(name, weight).ravel() for name, weight in weights.items()])


def _rests(run: Run, case: Case) -> Problem | None:
    given = case.tensors()
    module = made(run.candidate, given["weights"], given["config"])
    first, second = (module(given["source"], given["target"]) for _ in range(2))
    if torch.equal(read(first, given), read(second, given)):
        return None
    return Problem("the same logits at each call of module.eval()", "others at the second call")


def _same(run: Run, case: Case, before: np.ndarray, after: np.ndarray, when: str) -> Any:
    """A Problem unless both are the same logits up to rounding."""
    return unchanged(before, after, 2 * run.expected(case)[1], when, "a logit")


def _differ(run: Run, case: Case, before: np.ndarray, after: np.ndarray) -> bool:
    """Whether rounding cannot explain the difference."""
    return bool(np.abs(after - before).max() > 2 * run.expected(case)[1])


@torch.no_grad()
def _own_dtype(run: Run, case: Case) -> Problem | None:
    given = case.tensors()
    module = made(run.candidate, given["weights"].bfloat16(), given["config"])
    got = read(module(given["source"], given["target"]), given).dtype
    return None if got == torch.bfloat16 else Problem("bfloat16 from weights in bfloat16", str(got))


def _future(run: Run, case: Case) -> Problem | None:
    target = case.arguments["target"]
    cut = (target.shape[1] + 1) // 2
    others = other_words(target, case, case.arguments["config"].output_vocab)
    following = np.concatenate([target[:, :cut], others[:, cut:]], axis=1)
    before, after = run.value(case)[:, :cut], run.value(case, target=following)[:, :cut]
    return _same(run, case, before, after, "other words follow")


def _padding(run: Run, case: Case) -> Problem | None:
    pad_id, length = case.arguments["config"].pad_id, case.arguments["target"].shape[1]
    wider = {
        name: np.pad(case.arguments[name], ((0, 0), (0, 2)), constant_values=pad_id)
        for name in ("source", "target")
    }
    got = run.value(case, **wider)[:, :length]
    return _same(run, case, run.value(case), got, "more padding follows")


def _no_limit(run: Run, case: Case) -> Problem | None:
    """Long padding of the source, and a long target whose first words are those of the case."""
    source, target = (case.arguments[name] for name in ("source", "target"))
    pad_id, length = case.arguments["config"].pad_id, target.shape[1]
    others = other_words(target, case, case.arguments["config"].output_vocab)
    longer = {
        "source": np.pad(source, ((0, 0), (0, LONG)), constant_values=pad_id),
        "target": np.concatenate([target, np.tile(others, LONG // length)], axis=1),
    }
    got = run.value(case, **longer)[:, :length]
    return _same(run, case, run.value(case), got, f"{LONG} tokens follow")


def _alone(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    for b in range(len(a["source"])):
        row = {name: a[name][b : b + 1] for name in ("source", "target")}
        row = {name: ids[:, ids[0] != a["config"].pad_id] for name, ids in row.items()}
        got = run.value(case, **row)[0]
        before = run.value(case)[b, : len(got)]
        if problem := _same(run, case, before, got, f"sentence {b} stands alone"):
            return problem
    return None


def _reads(run: Run, case: Case) -> Problem | None:
    source = other_words(case.arguments["source"], case, case.arguments["config"].source_vocab)
    if _differ(run, case, run.value(case), run.value(case, source=source)):
        return None
    return Problem("other logits for another source", "the same logits")


def _order(run: Run, case: Case) -> Problem | None:
    turned = run.value(case, source=np.flip(case.arguments["source"], 1).copy())
    if _differ(run, case, run.value(case), turned):
        return None
    return Problem("other logits for the source turned round", "the same logits")


def _attentions(case: Case) -> Iterator[str]:
    for name in named_shapes(case.arguments["config"]):
        if name.endswith("attention.value.weight"):
            yield name


def _own_weights(run: Run, case: Case) -> Problem | None:
    for name in _attentions(case):
        weights = with_weights(case, lambda n, w, name=name: -w if n == name else w)
        if not _differ(run, case, run.value(case), run.value(case, weights=weights)):
            return Problem(f"other logits with another `{name}`", "the same logits")
    return None


def _last_layer(run: Run, case: Case) -> Problem | None:
    words = other_words(case.arguments["source"], case, case.arguments["config"].source_vocab)
    last = f"encoder.layers.{_layers(case, 'encoder') - 1}.feed_forward.down_proj.weight"
    for number in range(_layers(case, "decoder")):
        listens = f"decoder.layers.{number}.cross_attention.output"

        def silence(name: str, weight: np.ndarray, listens: str = listens) -> np.ndarray:
            crosses = "cross_attention.output" in name
            return 0 * weight if crosses and not name.startswith(listens) else weight

        def change(name: str, weight: np.ndarray, silence: Any = silence) -> np.ndarray:
            return -weight if name == last else silence(name, weight)

        alone, changed = (with_weights(case, f) for f in (silence, change))
        logits = run.value(case, weights=alone)
        if _differ(run, case, logits, run.value(case, weights=changed)):
            continue
        if _differ(run, case, logits, run.value(case, weights=alone, source=words)):
            expected = f"decoder layer {number} to depend on `{last}`"
            return Problem(expected, "the same logits when all other layers are silent")
    return None


def _logits(run: Run, case: Case) -> Problem | None:
    logits = run.value(case)[case.arguments["target"] != case.arguments["config"].pad_id]
    if logits.min() < 0 or np.abs(logits.sum(-1) - 1).max() > case.rounding(logits.shape[-1]):
        return None
    return Problem("logits of any sign and size", "probabilities: each row sums to 1")


def _tied(run: Run, case: Case) -> Problem | None:
    config = case.arguments["config"]
    module = made(run.candidate, case.tensors()["weights"], config)
    there = dict(module.named_parameters(remove_duplicate=False))
    target = f"{'source' if config.target_vocab is None else 'target'}_embedding.table.weight"
    for name, shared in (
        ("output.weight", config.tied_output),
        ("target_embedding.table.weight", config.target_vocab is None),
    ):
        if shared and name in there and there[name] is not there[target]:
            return Problem(f"`{name}` to be `{target}` itself", "a parameter of its own")
    return None


def _dropped(run: Run, case: Case) -> Problem | None:
    """In training, with everything dropped, neither words nor sublayers can count."""
    config = replace(case.arguments["config"], dropout=ALL)
    training = Run(replace(run.spec, build=partial(build, training=True)), run.candidate)
    vocabularies = {"source": config.source_vocab, "target": config.output_vocab}
    words = {n: other_words(case.arguments[n], case, v) for n, v in vocabularies.items()}

    def other(name: str, weight: np.ndarray) -> np.ndarray:
        return -weight if "attention.output" in name or "down_proj" in name else weight

    before = training.value(case, config=config)
    for what, change in (
        ("embeddings", words),
        ("outputs of sublayers", {"weights": with_weights(case, other)}),
    ):
        when = f"everything is dropped and the {what} are others"
        after = training.value(case, config=config, **change)
        if problem := _same(run, case, before, after, when):
            return problem
    return None


def _by_a_hair(run: Run, case: Case) -> Problem | None:
    expected, far = run.expected(case)
    if not np.abs(run.value(case) - expected).max() <= far:
        return None  # wrong without dropout too: what follows would not tell why
    hair = changed(case, config=replace(case.arguments["config"], dropout=HAIR))
    training = replace(run.spec, build=partial(build, training=True))
    with shares():  # of its own: beside the other models a right answer is far off
        problems = [
            scaled_by_dropout(run, case, hair, training, build(partial(_dropping, *also), {}, True))
            for also in itertools.product((False, True), repeat=2)
        ]
    return problems[0] if all(problems) else None


def _dropping(weights: bool, features: bool, config: TransformerConfig) -> nn.Module:
    """Of attention weights and hidden features the paper says nothing; many models drop them as well."""
    module = Transformer(config)
    for part in module.modules():
        if isinstance(part, MultiHeadAttention) and not weights:
            part.dropout = 0.0
        if isinstance(part, FeedForward) and not features:
            part.dropout = nn.Dropout(0.0)
    return module


def _can_learn(run: Run, case: Case) -> Problem | None:
    config = case.arguments["config"]
    with seeded(1):
        named = run.candidate(config).named_parameters()
    for name, weight in named:
        if weight.ndim > 1 and bool((weight == weight.flatten()[0]).all()):
            return Problem(f"`{name}` of a new module to be random", "one number everywhere")
        if name.endswith("norm.weight") and not bool(weight.any()):
            return Problem(f"`{name}` of a new module other than 0", "zeros")
    return None


def _other_size(case: Case) -> dict[str, Any]:
    """Longer sentences, and twice as many."""
    ids = {name: case.arguments[name] for name in ("source", "target")}
    return {name: np.tile(array, (2, 2)) for name, array in ids.items()}


def _by_weights(case: Case) -> bool:
    """Every weight of these, and of the drawn ones; the others would tell no more."""
    return case.label in ("drawn", "one layer each", "float32")


CHECKS = (
    Check(
        "the logits are numbers",
        "NaN or inf: a softmax over nothing but -inf, or exp of a large score.",
        finite,
    ),
    Check(
        "dropout rests in evaluation",
        "After module.eval() the same sentences must give the same logits, call after call.",
        _rests,
        when=lambda case: case.arguments["config"].dropout > 0,
    ),
    Check(
        "the future stays hidden",
        "The logits of a word may depend on it and on those before it, in evaluation too.",
        _future,
        when=_exact,
    ),
    Check(
        "padding changes nothing",
        "With more padding on the right, every word must keep its logits: hide padding wherever "
        "keys are read, in the encoder, in the decoder and between them.",
        _padding,
        when=_exact,
    ),
    Check(
        "a sentence sees only itself",
        "Alone and without padding, a sentence must get the logits that it gets in its batch.",
        _alone,
        when=lambda case: _exact(case) and len(case.arguments["source"]) > 1,
    ),
    Check(
        "the decoder reads the source",
        "Another source must give other logits: cross-attention reads the encoder's output.",
        _reads,
        when=_one_sentence,
    ),
    Check(
        "the order of words counts",
        "Attention alone does not know the order: turned round, the source must give other logits.",
        _order,
        when=_one_sentence,
    ),
    Check(
        "every decoder layer reads the last encoder layer",
        "Layer n of the decoder reads what the whole encoder made, not what its layer n made.",
        _last_layer,
        when=lambda case: _one_sentence(case) and _layers(case, "encoder") > 1,
    ),
    Check(
        "every attention has weights of its own",
        "Self-attention and cross-attention, and every layer, are modules of their own: changing "
        "the weights of one must count.",
        _own_weights,
        when=_one_sentence,
    ),
    Check(
        "one table where the configuration says so",
        "A tied table is one parameter with two names, not two with the same numbers.",
        _tied,
    ),
    Check(
        "logits, not probabilities",
        "cross_entropy applies the softmax itself; after two of them the loss cannot get small.",
        _logits,
        when=_exact,
    ),
    Check(
        "logits have the weights' dtype",
        "With weights in bfloat16 the logits are in bfloat16, so that a model can be cast as a whole.",
        _own_dtype,
        when=lambda case: case.label == "one layer each",
    ),
    same_after("calls of other sizes", _other_size, _exact),
    Check(
        "no length is the longest",
        "The statement names no longest sentence: make positions and masks as long as the ids are.",
        _no_limit,
        when=lambda case: case.label == "one layer each",
    ),
    Check(
        "a new module can learn",
        "Weights that all start equal stay equal, and a norm that starts at 0 shuts its layer.",
        _can_learn,
        when=lambda case: case.label == "one layer each",
    ),
    Check(
        "dropout acts in training",
        "Embeddings and the output of each sublayer are dropped with probability config.dropout.",
        _dropped,
        when=lambda case: _exact(case) and case.arguments["config"].dropout > 0,
    ),
    Check(
        "dropout scales what it keeps",
        "What is kept of embeddings and of sublayers' outputs is divided by 1 - dropout.",
        _by_a_hair,
        when=lambda case: _exact(case) and case.arguments["config"].dropout > 0,
    ),
    either_mode(when=lambda case: _exact(case) and not case.arguments["config"].dropout),
)


MODEL = Spec(
    name="model",
    statement=STATEMENT,
    required=("source", "target", "weights", "config"),
    reference=slow,
    baseline=lambda **given: build(Transformer, given)(**given),
    cases=_cases,
    combine=_drawn,
    num_drawn=2,
    last=(EQUAL, replace(GRADIENTS, when=_by_weights), AGAIN),
    checks=CHECKS,
    mutants=mistakes_in(mutants),
    build=build,
    read=read,
    chapter=9,
)
