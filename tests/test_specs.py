"""Every Spec, of the package and of the exercises: its mutants are rejected, named and distinct."""

import pytest

from spec_tools import assert_spec_is_sound
from tested_transformer.exercises import EXERCISES
from tested_transformer.specs import SPECS

# Mistakes call a package whose shapes other tests check; a check at each call would double the time.
pytestmark = pytest.mark.plain_types


@pytest.mark.slow
@pytest.mark.parametrize("spec", [*SPECS.values(), *EXERCISES.values()], ids=lambda spec: spec.name)
def test_spec_is_sound(spec):
    assert_spec_is_sound(spec)


def test_every_spec_has_mutants():
    """At least two for an exercise, so that a verdict can name the usual mistakes."""
    for spec in (*SPECS.values(), *EXERCISES.values()):
        assert len([mutant for mutant in spec.mutants if mutant.candidate is not None]) >= 2, (
            spec.name
        )
