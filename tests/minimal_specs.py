"""minimal.py before the package's own Specs, narrowed to what its signatures take, and what that leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from tested_transformer import minimal
from tested_transformer.data import PAD
from tested_transformer.exercises import EXERCISES
from tested_transformer.models.transformer import TransformerConfig
from tested_transformer.specs import SPECS
from tested_transformer.specs.attention.spec import allowed_in
from tested_transformer.specs.attention.spec import grouped as has_grouped_heads
from tested_transformer.specs.draw import drawn_case
from tested_transformer.specs.judge import judge
from tested_transformer.specs.mistakes import Mutant
from tested_transformer.specs.model.spec import named_shapes
from tested_transformer.specs.spec import Case, Spec

# --- Narrowing ------------------------------------------------------------------------------------

Keep = Callable[[Case], Case | None]


class LeftOut(NamedTuple):
    """One step of a narrowing: how many cases went, and which checks and mistakes went with them."""

    spec: str
    reason: str
    cases: str  # "3 of 20"
    checks: tuple[str, ...]
    mutants: tuple[str, ...]


def narrowed(spec: Spec, keep: Keep, reason: str) -> tuple[Spec, LeftOut]:
    """The Spec with the cases that `keep` returns, as they are or said otherwise; None leaves one out.

    Checks that concern no case any more go too, and are named.
    """

    def cases(rng: np.random.Generator) -> list[Case]:
        number = spec.num_drawn if spec.combine else 0
        drawn = [drawn_case(spec.combine, int(rng.integers(2**32))) for _ in range(number)]
        every = [*spec.cases(rng), *drawn]
        return [kept for case in every if (kept := keep(case)) is not None]

    before, given = spec.draw(0), cases(np.random.default_rng(0))
    checks = tuple(check for check in spec.checks if any(map(check.concerns, given)))
    count = f"{len(before) - len(given)} of {len(before)}"
    gone = tuple(check.name for check in spec.checks if check not in checks)
    fewer = replace(spec, cases=cases, checks=checks, combine=None)
    return fewer, LeftOut(spec.name, reason, count, gone, ())


def rejects(spec: Spec, mutant: Mutant) -> bool:
    """Whether a case shows the mistake; one without a candidate is shown by none, here as there."""
    return mutant.candidate is None or not judge(without_mutants(spec), mutant.candidate)


@cache  # one object, whose cases are drawn once for all mutants
def without_mutants(spec: Spec) -> Spec:
    """The Spec that names no mistake."""
    return replace(spec, mutants=())


def without(*options: str) -> Keep:
    """Leave out the cases that give one of these arguments."""
    return lambda case: None if any(case.arguments.get(o) is not None for o in options) else case


def only(condition: Callable[[dict[str, Any]], bool]) -> Keep:
    """Keep the cases whose arguments satisfy the condition."""
    return lambda case: case if condition(case.arguments) else None


def with_config(**changes: Any) -> Keep:
    """Every case with such a configuration."""

    def keep(case: Case) -> Case:
        config = replace(case.arguments["config"], **changes)
        return case if config == case.arguments["config"] else _said(case, config=config)

    return keep


def _said(case: Case, *gone: str, **changes: Any) -> Case:
    """The same case, said with other arguments."""
    left = {name: a for name, a in case.arguments.items() if name not in gone}
    return replace(case, arguments=left | changes)


def rules_as_a_mask(case: Case) -> Case:
    """causal, window and key_lengths said by a mask."""
    rules = ("causal", "window", "key_lengths")
    if all(case.arguments.get(rule) is None for rule in rules):
        return case
    bias = case.arguments.get("bias")
    return _said(case, *rules, mask=allowed_in(_said(case, "bias")), bias=bias)


def causal_as_a_mask(case: Case) -> Case:
    """causal=True of multi-head attention said by a mask."""
    if not case.arguments.get("causal"):
        return case
    x, context, mask = (case.arguments.get(name) for name in ("x", "context", "mask"))
    length, keys = x.shape[1], (x if context is None else context).shape[1]
    past = np.tri(length, keys, keys - length, dtype=bool)[None, None]
    return _said(case, "causal", mask=past if mask is None else past & mask)


def padding_is_0(case: Case) -> Case:
    """The padding ID and 0 change places."""
    tokens, pad_id = case.arguments["tokens"], case.arguments["pad_id"]
    swapped = np.where(tokens == pad_id, PAD, np.where(tokens == PAD, pad_id, tokens))
    return _said(case, tokens=swapped, pad_id=PAD)


def one_batch_per_step(case: Case) -> Case:
    """The batches of a step put together."""
    return _said(case, cuts=tuple((sum(sizes),) for sizes in case.arguments["cuts"]))


# --- minimal.py as the Specs call it --------------------------------------------------------------


def padding_mask(tokens, pad_id):
    return minimal.padding_mask(tokens)


def sinusoidal_positions(positions, d_model, *, dtype=torch.float32):
    """float64 there, and cast where they are added."""
    return minimal.sinusoidal_positions(positions, d_model).to(dtype)


class OneLayerCache(minimal.KeyValueCache):
    """The cache of a decoder that has one attention layer."""

    def append(self, key, value):
        return super().append("the only layer", key, value)


def layer_norm(x, weight, bias):
    return functional_call(minimal.LayerNorm(x.shape[-1]), {"weight": weight, "bias": bias}, x)


def block(x, w, gain, norm_placement, *, dropout=0.0):
    """The stack that the Spec asks for, made of `Residual`."""
    for matrix, scale in zip(w, gain[:-1], strict=True):
        step = minimal.Residual(len(scale), dropout).to(x.dtype)
        x = functional_call(step, {"norm.weight": scale}, (x, torch.tanh(x @ matrix)))
    return x


def feed_forward(x, w_up, b_up, w_down, b_down):
    weights = {"up_proj.weight": w_up.mT, "up_proj.bias": b_up,
               "down_proj.weight": w_down.mT, "down_proj.bias": b_down}  # fmt: skip
    return functional_call(minimal.FeedForward(*w_up.shape), weights, x)


class StandIn(nn.Module):
    """A function of the first arguments in the place of a sublayer."""

    def __init__(self, function: Callable[..., Tensor], count: int) -> None:
        super().__init__()
        self.function, self.count = function, count

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        return self.function(*inputs[: self.count])


def decoder_layer(x, memory, own, cross, think, norm):
    layer = minimal.DecoderLayer(x.shape[-1], 1, 1, 0.0)
    layer.attention, layer.cross_attention = StandIn(own, 1), StandIn(cross, 2)
    layer.feed_forward = StandIn(think, 1)
    for residual in layer.residuals:
        residual.norm = StandIn(norm, 1)
    return layer(x, memory, None, None)


def made(config: TransformerConfig) -> minimal.Transformer:
    """The minimal model of these sizes; one embedding matrix for all where the vocabulary is shared."""
    model = minimal.Transformer(
        config.source_vocab, config.output_vocab, config.d_model, config.num_heads,
        config.num_encoder_layers, config.d_ff, config.dropout,
    )  # fmt: skip
    if config.target_vocab is None:
        model.target_embedding.tokens.weight = model.source_embedding.tokens.weight
    return model


class NamedModel(nn.Module):
    """The minimal model, its parameters called as the package calls them: both have the same order."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.model, self.names = made(config), tuple(named_shapes(config))

    def named_parameters(self, *args: Any, **options: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return zip(self.names, self.model.parameters(), strict=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.model(source, target)


@torch.no_grad()
def copied(package: nn.Module) -> minimal.Transformer:
    """The minimal model with the weights of a package's Transformer: the same ones in the same order."""
    model = made(package.config).to(next(package.parameters()).dtype).train(package.training)
    for mine, theirs in zip(model.parameters(), package.parameters(), strict=True):
        assert mine.shape == theirs.shape
        mine.copy_(theirs)
    return model


def take_step(model, optimizer, batches, clip):
    """One batch; the target is what is read and, after it, what is expected last."""
    (batch,) = batches
    target = torch.cat([batch.target[:, :1], batch.expected], dim=1)
    minimal.training_step(model, optimizer, batch.source, target)


class TableModel(nn.Module):
    """A model whose logits are looked up by the last token; its prefix is given as the source."""

    def __init__(self, next_logits: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.next_logits = next_logits

    def encode(self, source: Tensor) -> Tensor:
        self.prefix = source
        return source

    def decode(self, target: Tensor, memory: Tensor, memory_mask: Tensor, cache: Any) -> Tensor:
        """BOS stands for the whole prefix."""
        return self.next_logits(torch.cat([self.prefix, target[:, 1:]], dim=1))[:, None]


def greedy(next_logits, start, max_new, eos, padding):
    return minimal.generate(TableModel(next_logits), start, max_new)


class DecodingState:
    """The minimal model with the weights of the one that is given, and its cache."""

    def __init__(self, model: nn.Module, source: Tensor) -> None:
        self.model, self.cache = copied(model), minimal.KeyValueCache()
        self.memory, self.memory_mask = self.model.encode(source), minimal.padding_mask(source)
        self.target = source[:, :0]

    def feed(self, tokens: Tensor) -> Tensor:
        self.target = torch.cat([self.target, tokens], dim=1)
        logits = self.model.decode(self.target, self.memory, self.memory_mask, self.cache)
        self.memory = self.memory[:, :0]
        return logits[:, -1]


# --- What is judged by what -----------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """What stands before a Spec, and what of the Spec is left out: reason -> which cases stay."""

    spec: Spec
    candidate: Any
    steps: dict[str, Keep]


TRIALS = {
    "attention": Trial(SPECS["attention"], minimal.attention, {
        "causal, window and lengths are said by a mask": rules_as_a_mask,
        "no bias, no ALiBi, no scale of its own": without("bias", "alibi_slopes", "scale"),
        "no grouped-query attention": lambda case: None if has_grouped_heads(case) else case,
    }),
    "masked_softmax": Trial(SPECS["masked_softmax"], minimal.masked_softmax, {}),
    "causal_mask": Trial(SPECS["causal_mask"], minimal.causal_mask, {}),
    "padding_mask": Trial(SPECS["padding_mask_from_tokens"], padding_mask, {
        "padding is 0": padding_is_0,
    }),
    "split_heads": Trial(EXERCISES["ch05.split_heads"], minimal.split_heads, {}),
    "MultiHeadAttention": Trial(SPECS["multi_head"], minimal.MultiHeadAttention, {
        "causal is said by a mask": causal_as_a_mask,
        "no grouped-query attention": without("num_kv_heads"),
        "a context has the model's dimension": only(
            lambda a: a["w_key"].shape[0] == a["w_query"].shape[0]
        ),
    }),
    "KeyValueCache": Trial(SPECS["cache"], OneLayerCache, {
        "no reordering, which greedy decoding does not need": without("rows"),
    }),
    "sinusoidal_positions": Trial(SPECS["sinusoidal_positions"], sinusoidal_positions, {
        "interleaved, to the base 10,000": without("base", "layout"),
        "an even dimension": only(lambda a: a["d_model"] % 2 == 0),
    }),
    "LayerNorm": Trial(SPECS["layer_norm"], layer_norm, {"eps is 1e-5": without("eps")}),
    "Residual": Trial(SPECS["block"], block, {"post-norm": only(lambda a: a["norm_placement"] == "post")}),
    "FeedForward": Trial(SPECS["feed_forward"], feed_forward, {
        "ReLU, and no dropout inside": without("activation", "dropout"),
    }),
    "DecoderLayer": Trial(EXERCISES["ch09.decoder_layer"], decoder_layer, {}),
    "Transformer": Trial(SPECS["model"], NamedModel, {
        "ReLU": with_config(activation="relu"),
        "padding is 0, sinusoidal positions, interleaved, eps is 1e-5, embeddings are scaled": only(
            lambda a: a["config"].pad_id == 0 and a["config"].positions == "sinusoidal"
            and a["config"].position_layout == "interleaved" and a["config"].norm_eps == 1e-5
            and a["config"].scale_embedding
        ),
        "no norm at the end of a post-norm stack": only(
            lambda a: a["config"].norm_placement == "pre" or not a["config"].final_norm
        ),
        "post-norm, with biases": only(lambda a: a["config"].norm_placement == "post" and a["config"].bias),
        "the output matrix is the target's embedding matrix": only(
            lambda a: a["config"].tied_output
        ),
        "as many encoder layers as decoder layers": only(
            lambda a: a["config"].num_encoder_layers == a["config"].num_decoder_layers
        ),
    }),
    "cross_entropy": Trial(SPECS["cross_entropy"], minimal.cross_entropy, {
        "padding is 0": without("ignore"),
        "a mean, no sum": without("reduction"),
        "a word at least": only(lambda a: (a["expected"] != PAD).any()),
    }),
    "training_step": Trial(SPECS["training_step"], take_step, {
        "no clipping": without("clip"),
        "what is expected is what is read next": only(
            lambda a: ((a["target"][:, 1:] == PAD) | (a["target"][:, 1:] == a["expected"][:, :-1])).all()
        ),
        "one batch per step": one_batch_per_step,
    }),
    "generate": Trial(SPECS["greedy"], greedy, {
        "EOS is 2, padding is 0": only(lambda a: (a["eos"], a["padding"]) == (2, PAD)),
    }),
    "Transformer.decode": Trial(SPECS["decoding"], DecodingState, {
        "translation only": lambda case: case if case.arguments["source"] is not None else None,
        "no reordering, which greedy decoding does not need": only(lambda a: not any(a["moves"])),
        "post-norm, sinusoidal positions, two layers each": with_config(
            norm_placement="post", final_norm=False, positions="sinusoidal", num_encoder_layers=2,
        ),
    }),
}  # fmt: skip

# What has no Spec of its own stands in something that has one.
PARTS_OF = {
    "at_least_float32": "attention", "concatenate_heads": "MultiHeadAttention",
    "EncoderLayer": "Transformer", "Embedding": "Transformer",
}  # fmt: skip


@cache
def steps_of(name: str) -> tuple[tuple[Spec, LeftOut], ...]:
    """The Spec that judges this part of minimal.py after each step of its narrowing."""
    steps, spec = [], TRIALS[name].spec
    for reason, keep in TRIALS[name].steps.items():
        spec, row = narrowed(spec, keep, reason)
        steps.append((spec, row))
    return tuple(steps)


def narrowed_for(name: str) -> Spec:
    """The Spec that judges this part of minimal.py."""
    return steps_of(name)[-1][0] if TRIALS[name].steps else TRIALS[name].spec


def left_out(name: str) -> list[LeftOut]:
    """What of its Spec this part of minimal.py is not asked, and why: one row per reason.

    A mistake that the narrowed Spec accepts stands with the first step that accepts it.
    """
    accepted = [m for m in TRIALS[name].spec.mutants if not rejects(narrowed_for(name), m)]
    rows = []
    for spec, row in steps_of(name):
        here = [mutant for mutant in accepted if not rejects(spec, mutant)]
        accepted = [mutant for mutant in accepted if mutant not in here]
        rows.append(row._replace(mutants=tuple(mutant.name for mutant in here)))
    assert not accepted, f"{name}: accepted by the whole Spec: {accepted}"
    return rows


def as_text(rows: list[LeftOut]) -> str:
    """The rows as lines: Spec, reason, cases, then checks and mistakes if there are any."""
    lines = []
    for row in rows:
        lines.append(f"{row.spec}: {row.reason}; {row.cases} cases left out")
        lines += [f"    check: {name}" for name in row.checks]
        lines += [f"    mistake: {name}" for name in row.mutants]
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    print(as_text([row for name in TRIALS for row in left_out(name)]), end="")
