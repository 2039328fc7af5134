"""The exercise of chapter 20 on its page about TTT-Linear: one mini-batch in its dual form."""

from __future__ import annotations

from ..specs.ttt.spec import TTT_LINEAR

EXERCISES = (
    TTT_LINEAR.narrowed(
        lambda case: not case.is_empty and "batch_size" not in case.arguments,
        name="ch20.ttt_batch",
        statement="ttt_batch(query, key, value, step_size, state=None) -> (output, new state). All tokens are one "
        "mini-batch: W changes by - step_size k^T (k W0 - v) for each token, where W0 is the state that is given, 0 if "
        "it is None, and the output of a token is q W after its own change. query and key (B, H, L, d), value (B, H, L, "
        "dv), step_size (B, H, L), state (B, H, d, dv) -> (B, H, L, dv) and (B, H, d, dv)",
        mutants=[
            mutant
            for mutant in TTT_LINEAR.mutants
            if mutant.rejected_by != "a full step stores the value"
        ],
        points=3,
    ),
)
