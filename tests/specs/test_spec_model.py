"""The Spec of the whole model: what it accepts, what it says, and that its own reference is right."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tested_transformer.models.transformer import Transformer, TransformerConfig
from tested_transformer.specs.judge import judge
from tested_transformer.specs.model.mutants import ModelSteps
from tested_transformer.specs.model.spec import MODEL, by_name, named_shapes, torch_model
from tested_transformer.specs.spec import Run


class Bare(nn.Module):
    """A place for parts."""


class ByHand(nn.Module):
    """The model from nn.Linear, nn.Embedding, nn.LayerNorm and SDPA alone, as a student may do it."""

    def __init__(self, config):
        super().__init__()
        self.config, c = config, config
        self.source_embedding, self.target_embedding = Bare(), Bare()
        self.source_embedding.table = nn.Embedding(c.source_vocab, c.d_model)
        table = self.source_embedding.table
        if c.target_vocab is not None:
            table = self.target_embedding.table = nn.Embedding(c.target_vocab, c.d_model)
        self.table = [table]
        self.encoder, self.decoder = Bare(), Bare()
        for stack, layers, attentions in (
            (self.encoder, c.num_encoder_layers, ["attention"]),
            (self.decoder, c.num_decoder_layers, ["attention", "cross_attention"]),
        ):
            stack.layers = nn.ModuleList(self.layer(attentions) for _ in range(layers))
            if c.final_norm:
                stack.norm = self.norm()
        if not c.tied_output:
            self.output = nn.Linear(c.d_model, c.output_vocab, bias=c.output_bias)

    def norm(self):
        return nn.LayerNorm(self.config.d_model, bias=self.config.bias)

    def layer(self, attentions):
        c, layer = self.config, Bare()
        for name in attentions:
            parts = {p: nn.Linear(c.d_model, c.d_model, bias=c.bias) for p in ("query", "key", "value", "output")}  # fmt: skip
            setattr(layer, name, nn.ModuleDict(parts))
        layer.feed_forward = Bare()
        layer.feed_forward.up_proj = nn.Linear(c.d_model, c.d_ff, bias=c.bias)
        layer.feed_forward.down_proj = nn.Linear(c.d_ff, c.d_model, bias=c.bias)
        layer.residuals = nn.ModuleList(nn.ModuleDict({"norm": self.norm()}) for _ in range(len(attentions) + 1))  # fmt: skip
        return layer

    def attend(self, part, x, context, mask):
        heads = self.config.num_heads
        q, k, v = (part[n](a).unflatten(-1, (heads, -1)).transpose(1, 2) for n, a in (("query", x), ("key", context), ("value", context)))  # fmt: skip
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return part["output"](found.transpose(1, 2).flatten(2))

    def think(self, part, x):
        bend = functional.relu if self.config.activation == "relu" else functional.gelu
        return part.down_proj(bend(part.up_proj(x)))

    def step(self, x, residual, sublayer):
        norm = residual["norm"]
        return (
            x + sublayer(norm(x)) if self.config.norm_placement == "pre" else norm(x + sublayer(x))
        )

    def embed(self, ids, table):
        width = self.config.d_model
        angles = torch.arange(ids.shape[1]).double()[:, None] / 10000 ** (torch.arange(0, width, 2).double() / width)  # fmt: skip
        positions = torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
        return table(ids) * width**0.5 + positions.to(table.weight.dtype)

    def forward(self, source, target):
        words, length = (source != self.config.pad_id)[:, None, None], target.shape[1]
        past = torch.ones(length, length).tril().bool() & (target != self.config.pad_id)[:, None, None]  # fmt: skip
        memory = self.embed(source, self.source_embedding.table)
        for layer in self.encoder.layers:
            first, last = layer.residuals
            memory = self.step(memory, first, lambda x, n=layer: self.attend(n.attention, x, x, words))  # fmt: skip
            memory = self.step(memory, last, lambda x, n=layer: self.think(n.feed_forward, x))
        memory = self.encoder.norm(memory) if self.config.final_norm else memory
        y = self.embed(target, self.table[0])
        for layer in self.decoder.layers:
            first, second, last = layer.residuals
            y = self.step(y, first, lambda x, n=layer: self.attend(n.attention, x, x, past))
            y = self.step(y, second, lambda x, n=layer: self.attend(n.cross_attention, x, memory, words))  # fmt: skip
            y = self.step(y, last, lambda x, n=layer: self.think(n.feed_forward, x))
        y = self.decoder.norm(y) if self.config.final_norm else y
        return functional.linear(y, self.table[0].weight) if self.config.tied_output else self.output(y)  # fmt: skip


RIGHT = {"the package's": Transformer, "the mutants' base": ModelSteps, "by hand": ByHand}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("right", RIGHT.values(), ids=RIGHT)
def test_right_implementations_pass(right, seed):
    verdict = judge(MODEL, right, seed=seed)
    assert verdict.passed, verdict
    assert dict(verdict.skipped) == {}


def test_a_function_that_makes_a_module_will_do():
    assert judge(MODEL, lambda config: ByHand(config)).passed


@pytest.mark.slow
def test_the_package_is_as_exact_as_torch():
    """In units of eps x the largest logit, against the reference in a wider dtype."""
    for case in MODEL.draw(0):
        expected = MODEL.expected(case)
        eps, size = torch.finfo(case.dtype).eps, np.abs(expected).max()
        ours = Run(MODEL, Transformer).value(case)
        theirs = MODEL.read(torch_model(**case.tensors()), case.tensors()).detach().double().numpy()
        errors = [float(np.abs(got - expected).max() / eps / size) for got in (ours, theirs)]
        assert errors[0] <= 2 * errors[1] + 4, (case.label, errors)
        assert errors[1] < 50, (case.label, errors)


def test_the_weights_have_names_and_places():
    config = TransformerConfig(11, d_model=6, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, d_ff=9)  # fmt: skip
    shapes = named_shapes(config)
    size = sum(int(np.prod(shape)) for shape in shapes.values())
    weights = by_name(np.arange(size), config)
    assert {name: w.shape for name, w in weights.items()} == shapes
    np.testing.assert_array_equal(np.concatenate([w.ravel() for w in weights.values()]), np.arange(size))  # fmt: skip
    assert "output.weight" not in shapes  # tied
    for name in MODEL.statement.replace(",", " ").split():
        if name.endswith(".table"):
            assert any(f"{name}.weight" in named_shapes(c) for c in (config, TransformerConfig(11, 9, d_model=6, num_heads=2, d_ff=9))), name  # fmt: skip


def test_what_is_missing_is_said():
    class Nameless(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.table = nn.Embedding(config.source_vocab, config.d_model)

        def forward(self, source, target):
            return self.table(target)

    class TooNarrow(ByHand):
        def layer(self, attentions):
            layer = super().layer(attentions)
            layer.feed_forward.up_proj = nn.Linear(self.config.d_model, 3)
            return layer

    verdict = judge(MODEL, Nameless)
    assert "a parameter `source_embedding.table.weight`" in verdict.problem.got
    verdict = judge(MODEL, TooNarrow)
    assert "`encoder.layers.0.feed_forward.up_proj.weight`" in verdict.problem.got
    assert "(9, 6)" in verdict.problem.got
    assert "nn.Module" in judge(MODEL, lambda config: 3).problem.got


def test_not_written_yet():
    class Stub(Transformer):
        def forward(self, source, target): ...

    assert judge(MODEL, Stub).unwritten


@pytest.mark.slow
def test_a_module_made_anew_is_judged_anew():
    """A reader's cell may change what the same function makes."""
    kinds = [ByHand]
    candidate = lambda config: kinds[0](config)  # noqa: E731
    assert judge(MODEL, candidate).passed
    kinds[0] = next(m.candidate for m in MODEL.mutants if m.name.startswith("a model without"))
    assert judge(MODEL, candidate).failed == "the order of words counts"
