"""Every Spec, of the package and of the exercises: its mutants are rejected, named and distinct."""

import importlib
import pkgutil
from dataclasses import replace

import pytest

from spec_tools import assert_spec_is_sound
from tested_transformer import exercises, specs
from tested_transformer.exercises import EXERCISES
from tested_transformer.homework import assignments
from tested_transformer.homework.assignments import assignment, assignment_names
from tested_transformer.specs import SPECS
from tested_transformer.specs.judge import judge
from tested_transformer.specs.mistakes import Mutant
from tested_transformer.specs.spec import EQUAL, specs_in

# Mistakes call a package whose shapes other tests check; a check at each call would double the time.
pytestmark = pytest.mark.plain_types


@pytest.mark.slow
@pytest.mark.parametrize("spec", [*SPECS.values(), *EXERCISES.values()], ids=lambda spec: spec.name)
def test_spec_is_sound(spec):
    assert_spec_is_sound(spec)


@pytest.mark.parametrize("wrong", [lambda a: 1.001 * a, lambda a: a + 1e-9], ids=["x", "+"])
@pytest.mark.parametrize("name", ["ch15.merge", "ch10.combine", "ch03.softmax_backward",
                                  "ch15.score_gradient", "ch07.layer_norm_gradient"])  # fmt: skip
def test_a_wrong_reference_is_noticed(name, wrong):
    """It does not widen the tolerance: that comes from the baseline's own operations."""
    right = EXERCISES[name]
    spec = replace(right, reference=lambda **arguments: wrong(right.reference(**arguments)))
    baseline = named_like(right)
    assert judge(right, baseline).passed
    assert judge(spec, baseline).failed == EQUAL.name


def named_like(spec):
    """The baseline, called as the judge calls a candidate: some arguments by place."""
    return lambda *placed, **named: spec.baseline(
        **dict(zip(spec.required, placed, strict=True)), **named
    )


def test_every_spec_has_mutants():
    """At least two for an exercise, so that a verdict can name the usual mistakes."""
    for spec in (*SPECS.values(), *EXERCISES.values()):
        assert len([mutant for mutant in spec.mutants if mutant.candidate is not None]) >= 2, (
            spec.name
        )


def modules_of(package):
    names = [each.name for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    return [importlib.import_module(name) for name in names]


def test_every_spec_is_discovered_under_a_name_of_its_own():
    written = [spec for module in modules_of(specs) for spec in specs_in(module)]
    assert {id(spec) for spec in written} == {id(spec) for spec in SPECS.values()}


def test_every_mistake_belongs_to_a_spec():
    """One whose `of` is misspelled, or that no exercise lists, would be judged by nobody."""
    of_homework = [assignment(name).coded for name in assignment_names()]
    tasks = [getattr(part, "spec", part) for parts in of_homework for part in parts]
    known = {
        m.name for spec in (*SPECS.values(), *EXERCISES.values(), *tasks) for m in spec.mutants
    }
    for module in [*modules_of(specs), *modules_of(exercises), *modules_of(assignments)]:
        for thing in vars(module).values():
            said = vars(thing).get("mistake") if hasattr(thing, "__dict__") else None
            if isinstance(said, Mutant):
                assert said.name in known, f"{module.__name__}: {said.name}"
