"""What is special to the exercises of chapter 5."""

import math

from solutions import chapter_solutions
from tested_transformer.exercises.ch05 import EXERCISES
from tested_transformer.specs.judge import judge

SOLUTIONS = chapter_solutions()
Cached = SOLUTIONS["ch05.cached"]
SPECS = {spec.name: spec for spec in EXERCISES}


def test_padding_that_leaves_nothing_is_no_business_of_the_cache():
    """A padded query's answer is ignored, NaN or not."""

    class Nan(Cached):
        def __call__(self, query, key, value, mask):
            output = super().__call__(query, key, value, mask)
            if mask is None:
                return output
            own = mask[:, 0, 0, -query.shape[2] :]
            return output.masked_fill(~own[:, None, :, None], math.nan)

    assert judge(SPECS["ch05.cached"], Nan).passed
