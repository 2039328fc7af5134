"""The Spec of the whole model: what it accepts, what it says, and that its own reference is right."""

import numpy as np
import pytest
import torch
from torch import nn

from answers.model import ByHand
from tested_transformer.models.transformer import Transformer, TransformerConfig
from tested_transformer.specs.judge import judge
from tested_transformer.specs.model.mutants import ModelSteps
from tested_transformer.specs.model.spec import MODEL, by_name, named_shapes, torch_model
from tested_transformer.specs.spec import Run

RIGHT = {"the package's": Transformer, "the mutants' base": ModelSteps, "by hand": ByHand}


@pytest.mark.slow
@pytest.mark.parametrize("right", RIGHT.values(), ids=RIGHT)
def test_right_implementations_pass(right):
    verdict = judge(MODEL, right)
    assert verdict.passed, verdict
    assert dict(verdict.skipped) == {}


def test_a_function_that_makes_a_module_will_do():
    assert judge(MODEL, lambda config: ByHand(config)).passed


@pytest.mark.slow
def test_the_package_is_as_exact_as_torch():
    """In units of eps x the largest logit, against the reference in a wider dtype."""
    for case in MODEL.draw(0):
        if case.arguments["config"].activation not in (
            "relu",
            "gelu",
        ):  # torch's layer has no other
            continue
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
