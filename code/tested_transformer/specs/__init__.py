"""For each family of ideas one Spec: what is right, and the famous mistakes. `judge` decides."""

from ..errors import argument_error
from .alibi.spec import ALIBI_SPECS
from .attention.spec import ATTENTION
from .block.spec import BLOCK
from .cache.spec import CACHE
from .compare import Problem
from .feed_forward.spec import FEED_FORWARD, SWIGLU
from .generation.spec import GENERATION_SPECS
from .judge import Verdict, judge
from .losses.spec import CROSS_ENTROPY
from .masks.spec import MASK_SPECS
from .mistakes import Mutant, mistake, mistakes, mistakes_in
from .model.spec import MODEL
from .multi_head.spec import MULTI_HEAD
from .norms.spec import NORM_SPECS
from .online_softmax.spec import ONLINE_SPECS
from .positions.spec import POSITIONS
from .rotary.spec import ROTARY_SPECS
from .scaling.spec import SCALED_SCORES, SOFTMAX, SOFTMAX_JACOBIAN
from .scoring.spec import SCORING
from .self_attention.spec import SELF_ATTENTION
from .spec import Case, Check, Run, Spec
from .training.spec import TRAINING_SPECS

SPECS = {
    spec.name: spec
    for spec in (
        ATTENTION,
        SELF_ATTENTION,
        SOFTMAX,
        SOFTMAX_JACOBIAN,
        SCALED_SCORES,
        *SCORING,
        *MASK_SPECS,
        *POSITIONS,
        *ROTARY_SPECS,
        *ALIBI_SPECS,
        MULTI_HEAD,
        CACHE,
        *NORM_SPECS,
        BLOCK,
        FEED_FORWARD,
        SWIGLU,
        MODEL,
        CROSS_ENTROPY,
        *TRAINING_SPECS,
        *GENERATION_SPECS,
        *ONLINE_SPECS,
    )
}


def pitfall(name: str) -> Mutant:
    """The famous mistake of that name, from whichever Spec holds it.

    Raises: ValueError if there is none.
    """
    every = {mutant.name: mutant for spec in SPECS.values() for mutant in spec.mutants}
    if name not in every:
        raise argument_error(ValueError, "name", repr(name), f"one of {', '.join(sorted(every))}")
    return every[name]


__all__ = [
    "SPECS",
    "Case",
    "Check",
    "Mutant",
    "Problem",
    "Run",
    "Spec",
    "Verdict",
    "judge",
    "mistake",
    "mistakes",
    "mistakes_in",
    "pitfall",
]
