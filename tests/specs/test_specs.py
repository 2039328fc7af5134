"""Every Spec, of the package and of the exercises: its mutants are rejected, named and distinct."""

from dataclasses import replace

import pytest

from spec_tools import assert_baseline_differs_by_rounding, assert_spec_is_sound
from tested_transformer.exercises import EXERCISES
from tested_transformer.specs import SPECS
from tested_transformer.specs.judge import judge

# Mistakes call a package whose shapes other tests check; a check at each call would double the time.
pytestmark = pytest.mark.plain_types


@pytest.mark.slow
@pytest.mark.parametrize("spec", [*SPECS.values(), *EXERCISES.values()], ids=lambda spec: spec.name)
def test_spec_is_sound(spec):
    assert_spec_is_sound(spec)


@pytest.mark.parametrize("wrong", [lambda a: 1.001 * a, lambda a: a + 1e-9], ids=["x", "+"])
@pytest.mark.parametrize("name", ["ch15.merge", "ch10.combine", "ch03.softmax_backward",
                                  "ch15.score_gradient", "ch07.layer_norm_gradient"])  # fmt: skip
def test_a_wrong_reference_is_noticed_where_the_judge_can_not_notice_it(name, wrong):
    """A wrong reference widens its own tolerance: the judge calls the baseline right."""
    right = EXERCISES[name]
    spec = replace(right, reference=lambda **arguments: wrong(right.reference(**arguments)))
    assert judge(spec, right.baseline).passed
    assert_baseline_differs_by_rounding(right)
    with pytest.raises(AssertionError, match="baseline - reference"):
        assert_baseline_differs_by_rounding(spec)


def test_every_spec_has_mutants():
    """At least two for an exercise, so that a verdict can name the usual mistakes."""
    for spec in (*SPECS.values(), *EXERCISES.values()):
        assert len([mutant for mutant in spec.mutants if mutant.candidate is not None]) >= 2, (
            spec.name
        )
