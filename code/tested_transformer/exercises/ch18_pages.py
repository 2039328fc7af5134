"""Exercises of chapter 18 on its deeper pages: layouts, the relative shift, a memory, orders, buckets, slopes, xPos, auxiliary losses."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..specs.alibi.spec import ALIBI_SLOPES
from ..specs.auxiliary.spec import AUXILIARY_LOSS, LAYER_WEIGHTS
from ..specs.infini_attention.spec import INFINI_ATTENTION
from ..specs.permutation_masks.spec import PERMUTATION_MASKS
from ..specs.rotary_layout.spec import TO_HALVES as SPEC_OF_LAYOUTS
from ..specs.t5_buckets.spec import T5_BIAS
from ..specs.transformer_xl.spec import RELATIVE_SHIFT
from ..specs.xpos.spec import XPOS as SPEC_OF_XPOS

TO_HALVES = SPEC_OF_LAYOUTS.narrowed(
    lambda case: True, name="ch18.to_halves", mutants=SPEC_OF_LAYOUTS.mutants, chapter=18, points=1
)


def _causal(case) -> bool:
    """As many columns as keys."""
    return case.arguments["by_distance"].shape[-1] == case.arguments["num_keys"]


SHIFT = RELATIVE_SHIFT.narrowed(
    lambda case: _causal(case) and not case.is_empty,
    name="ch18.causal_shift",
    statement="causal_shift(by_distance, num_keys): by_distance (*batch, L, S) has a score for each query and each distance; "
    "column r belongs to distance S - 1 - r, S = num_keys. Returns (*batch, L, S): in row i and column j, row i's score of the "
    "distance i + S - L - j, and 0 where that is negative",
    mutants=[each for each in RELATIVE_SHIFT.mutants if "both directions" not in each.name],
    chapter=18,
    points=2,
)

_WHOLE = INFINI_ATTENTION.narrowed(
    lambda case: (
        not case.is_empty
        and case.arguments.keys() <= {"query", "key", "value", "gate", "segment_length"}
    ),
    name="ch18.infini_attention",
    statement="infini_attention(query, key, value, gate, *, segment_length) -> (output, memory, normalizer). Segment by "
    "segment, with f(x) = ELU(x) + 1: output = sigmoid(gate) f(q) memory / (f(q) . normalizer) + (1 - sigmoid(gate)) causal "
    "attention within the segment, where the first term is 0 before anything was written; then memory += f(K)^T V and "
    "normalizer += the sum of f(k). query and key (B, H, L, d), value (B, H, L, dv), gate (H) -> (B, H, L, dv), (B, H, d, dv), "
    "(B, H, d)",
    mutants=[each for each in INFINI_ATTENTION.mutants if "delta" not in each.name],
    chapter=18,
    points=3,
)
MEMORY = replace(  # the exercise takes no memory
    _WHOLE,
    checks=[each for each in _WHOLE.checks if each.name != "a call in two parts is one call"],
)

ORDERS = PERMUTATION_MASKS.narrowed(
    lambda case: case.arguments.keys() == {"order"} and not case.is_empty,
    name="ch18.order_masks",
    statement="order_masks(order) -> (content mask, query mask), each (B, 1, L, L), True where query i may attend to key j. "
    "order (B, L) has the positions in the order of their prediction. Query mask: keys that come before i in the order; "
    "content mask: the same, and i itself",
    mutants=[
        each for each in PERMUTATION_MASKS.mutants
        if each.name in {
            "1 means may not attend", "the order is taken for the turns", "a target sees itself",
            "a read token does not see itself",
        }
    ],
    chapter=18,
    points=2,
)  # fmt: skip

BUCKETS = T5_BIAS.narrowed(
    lambda case: case.arguments.get("bidirectional") is False and not case.is_empty
    and case.arguments["query_ids"].ndim == 1,
    name="ch18.causal_buckets",
    statement="causal_buckets(query_ids, key_ids, table, *, bidirectional=False, max_distance=128): the row of `table` "
    "(n, H) for the bucket of each pair of positions. Distances 0 ... n/2 - 1 back from the query have a bucket each, the next "
    "n/2 grow by equal ratios up to max_distance, the last has all beyond; a later key counts as distance 0. query_ids (L), "
    "key_ids (S) -> (1, H, L, S)",
    mutants=[
        each for each in T5_BIAS.mutants
        if each.name in {
            "a bucket for every distance, then clipped", "no last bucket", "the logarithm of the distance itself",
            "heads read as positions",
        }
    ],
    chapter=18,
    points=2,
)  # fmt: skip

SLOPES = ALIBI_SLOPES.narrowed(
    lambda case: True, name="ch18.alibi_slopes", mutants=ALIBI_SLOPES.mutants, chapter=18, points=1
)

XPOS = SPEC_OF_XPOS.narrowed(
    lambda case: (
        not case.is_empty
        and "base" not in case.arguments
        and case.arguments["position_ids"].ndim == 1
        and case.dtype == torch.float64
    ),
    name="ch18.xpos",
    statement="xpos(x, position_ids, *, of_keys=False, scale_base=512.0, center=0, layout='interleaved'): x rotated in its "
    "layout, and then the two features of pair i of d / 2 times z_i^e for queries, z_i^-e for keys, where z_i = "
    "(2i/d + 0.4) / 1.4 and e = (position - center) / scale_base. x (B, H, L, d), position_ids (L) -> (B, H, L, d)",
    mutants=SPEC_OF_XPOS.mutants,
    chapter=18,
    points=2,
)

SCHEDULE = LAYER_WEIGHTS.narrowed(
    lambda case: True,
    name="ch18.layer_weights",
    mutants=LAYER_WEIGHTS.mutants,
    chapter=18,
    points=1,
)

AUXILIARY = AUXILIARY_LOSS.narrowed(
    lambda case: (
        not case.is_empty
        and case.arguments["logits"].shape[3] > case.arguments["logits"].shape[1]
        and case.dtype == torch.float64
    ),
    name="ch18.auxiliary_loss",
    mutants=AUXILIARY_LOSS.mutants,
    chapter=18,
    points=2,
)

EXERCISES = (TO_HALVES, SHIFT, MEMORY, ORDERS, BUCKETS, SLOPES, XPOS, SCHEDULE, AUXILIARY)
