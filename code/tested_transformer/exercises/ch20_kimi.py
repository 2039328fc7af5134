"""The exercise of chapter 20 on its page about Kimi Delta Attention: the delta rule with a decay per channel."""

from __future__ import annotations

from ..specs.delta_rule.spec import DELTA_RULE

OTHER_TOPICS = {"the rule normalizes the keys", "decays as a quotient of products"}

CHANNELS = DELTA_RULE.narrowed(
    lambda case: (
        not case.is_empty
        and not case.arguments.keys() & {"scale", "chunk_size"}
        and case.arguments.get("log_decay") is not None
        and case.arguments["log_decay"].ndim == 4
    ),
    name="ch20.kimi_delta_rule",
    statement="kimi_delta_rule(query, key, value, beta, log_decay, state=None) -> (output, new state). At each token row "
    "c of the state is multiplied by exp(log_decay[c]), then the state takes in key (beta (value - key^T state))^T, and "
    "the output is query^T state / sqrt(d). query, key and log_decay (B, H, L, d), value (B, H, L, dv), beta (B, H, L), "
    "state (B, H, d, dv), 0 if None -> (B, H, L, dv) and (B, H, d, dv)",
    required=("query", "key", "value", "beta", "log_decay"),
    mutants=[mutant for mutant in DELTA_RULE.mutants if mutant.name not in OTHER_TOPICS],
    points=2,
)

EXERCISES = (CHANNELS,)
