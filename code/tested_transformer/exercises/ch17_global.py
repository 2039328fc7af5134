"""An exercise of chapter 17, on its page about global tokens."""

from __future__ import annotations

from ..specs.global_patterns.spec import LONGFORMER_ATTENTION

OPTIONS = {"key_mask", "scale"}

GLOBAL_TOKENS = LONGFORMER_ATTENTION.narrowed(
    lambda case: not case.is_empty and not case.arguments.keys() & OPTIONS,
    name="ch17.global_tokens",
    statement="global_tokens(query, key, value, global_query, global_key, global_value, is_global, *, window): where "
    "is_global is False, a query attends to the keys fewer than `window` steps away and to all global tokens, in one "
    "softmax, each key once. Where it is True, the global query attends to all global keys and returns global values. "
    "The scale is 1 / sqrt(d). queries and keys (B, H, L, d), values (B, H, L, dv), is_global (B, L) -> (B, H, L, dv)",
    mutants=[m for m in LONGFORMER_ATTENTION.mutants if not m.name.startswith("padding")],
    points=3,
)  # fmt: skip

EXERCISES = (GLOBAL_TOKENS,)
