"""For each family of ideas one Spec: what is right, and the famous mistakes. `judge` decides."""

from ..errors import complain
from .attention import ATTENTION
from .block import BLOCK
from .cache import CACHE
from .feed_forward import FEED_FORWARD, SWIGLU
from .generation import GENERATION_SPECS
from .judge import Case, Check, Mutant, Problem, Run, Spec, Verdict, judge
from .losses import CROSS_ENTROPY
from .masks import MASK_SPECS
from .model import MODEL
from .multi_head import MULTI_HEAD
from .norms import NORM_SPECS
from .online_softmax import ONLINE_SPECS
from .positions import POSITIONS
from .scaling import SCALED_SCORES, SOFTMAX, SOFTMAX_JACOBIAN
from .scoring import SCORING
from .self_attention import SELF_ATTENTION
from .training import TRAINING_SPECS

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
        raise complain(ValueError, "name", repr(name), f"one of {', '.join(sorted(every))}")
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
    "pitfall",
]
