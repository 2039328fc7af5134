"""The famous mistakes with the delta rule: what is subtracted, when the state decays, what a chunk has to solve."""

from __future__ import annotations

import torch
from torch.nn import functional

from ..mistakes import Formula, mistake


class DeltaFormula(Formula):
    """The right rule, token by token, cut into the steps that the mutants replace one at a time."""

    def __call__(
        self, query, key, value, beta, log_decay=None, *, state=None, scale=None, chunk_size=None
    ):  # fmt: skip
        """Forget, write, read."""
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        decay = self.decays(query, log_decay)
        if state is None:
            state = value.new_zeros(*query.shape[:2], query.shape[-1], value.shape[-1])
        outputs = [value[:, :, :0]]
        for t in range(query.shape[2]):
            k, v, b = key[:, :, t, :, None], value[:, :, t, None], beta[:, :, t, None, None]
            state = self.after(state, self.key(k, scale), v, b, decay[:, :, t, :, None])
            outputs.append(self.scale(scale) * query[:, :, t, None] @ state)
        return torch.cat(outputs, 2), state

    def decays(self, query, log_decay):
        """Of each head, token and feature."""
        if log_decay is None:
            return torch.ones_like(query)
        log_decay = log_decay[..., None] if log_decay.ndim == 3 else log_decay
        return log_decay.exp().expand(query.shape)

    def scale(self, scale):
        """Of the queries."""
        return scale

    def key(self, k, scale):
        """As it is."""
        return k

    def after(self, state, k, v, b, decay):
        """The state after a token."""
        state = decay * state
        return state + k @ (b * (v - k.mT @ state))


@mistake(
    "nothing is subtracted",
    rejected_by="a key written again has its new value",
    symptom="A key that is written twice returns the sum of both values.",
    cause="beta k v^T is added, as in linear attention; what the state already returns for k must be subtracted.",
)
class NothingSubtracted(DeltaFormula):
    def after(self, state, k, v, b, decay):
        return decay * state + k @ (b * v)


@mistake(
    "the whole state fades",
    rejected_by="another key keeps its value",
    symptom="Writing one pair erases a share of all others.",
    cause="S + beta (k v^T - S) moves the whole state. The delta rule subtracts k k^T S: only what is stored "
    "under this key.",
)
class WholeStateFades(DeltaFormula):
    def after(self, state, k, v, b, decay):
        state = decay * state
        return state + b * (k @ v - state)


@mistake(
    "beta only on the value",
    rejected_by="a beta of 0 writes nothing",
    symptom="A token that should write nothing erases what was stored under its key.",
    cause="beta v - S^T k where it should be beta (v - S^T k): the erased part has the same factor as the written.",
)
class BetaOnlyOnValue(DeltaFormula):
    def after(self, state, k, v, b, decay):
        state = decay * state
        return state + k @ (b * v - k.mT @ state)


@mistake(
    "beta twice",
    rejected_by="beta is the written share of the difference",
    symptom="The model writes too little; nothing else shows.",
    cause="Both the key and the difference are multiplied by beta.",
)
class BetaTwice(DeltaFormula):
    def after(self, state, k, v, b, decay):
        state = decay * state
        return state + b * k @ (b * (v - k.mT @ state))


@mistake(
    "error before forgetting",
    rejected_by="the state decays before it is looked up",
    symptom="Loaded weights give other numbers as soon as a gate closes; without decay all is right.",
    cause="The difference is taken to the state before its decay. The papers decay first: what is forgotten "
    "need not be erased.",
    seen="asked in fla-org/flash-linear-attention issue 885, where the papers' order was taken for a bug",
)
class ErrorBeforeForgetting(DeltaFormula):
    def after(self, state, k, v, b, decay):
        return decay * state + k @ (b * (v - k.mT @ state))


@mistake(
    "the new pair is decayed, too",
    rejected_by="the state decays before it is looked up",
    symptom="Loaded weights give other numbers: the newest token counts less than it should.",
    cause="The state is decayed after the write instead of before it.",
)
class NewestDecayed(DeltaFormula):
    def after(self, state, k, v, b, decay):
        return decay * (state + k @ (b * (v - k.mT @ state)))


@mistake(
    "scale twice",
    rejected_by="the output is the scaled query's reading of the new state",
    symptom="Outputs are too small by sqrt(d): a norm behind them hides it, except for its eps.",
    cause="The caller has scaled the queries already, and the rule scales them again.",
    seen="proposed in ml-explore/mlx-lm issue 1798; the callers fold the scale in",
)
class ScaleTwice(DeltaFormula):
    def scale(self, scale):
        return scale * scale


@mistake(
    "the key is scaled, too",
    rejected_by="a key written again has its new value",
    symptom="A written value comes back too small, and writing it again helps.",
    cause="Queries and keys both got the scale of attention. A key of norm 1 must keep it.",
)
class KeyScaled(DeltaFormula):
    def key(self, k, scale):
        return k * scale


@mistake(
    "the rule normalizes the keys",
    rejected_by="the state is that of all tokens so far",
    symptom="Right for layers that normalize their keys; wrong for a rule that is given other ones.",
    cause="The key is divided by its norm inside the rule: that belongs to the layer.",
)
class KeyNormalized(DeltaFormula):
    def key(self, k, scale):
        return functional.normalize(k, dim=-2)


@mistake(
    "one decay for all channels",
    rejected_by="each channel has a decay of its own",
    symptom="Right while all channels of a head forget at one speed.",
    cause="The decays of a key's features are averaged to one per head, which is gated DeltaNet, not Kimi's rule.",
)
class OneDecayForChannels(DeltaFormula):
    def decays(self, query, log_decay):
        if log_decay is not None and log_decay.ndim == 4:
            log_decay = log_decay.mean(-1)
        return super().decays(query, log_decay)


# --- In a chunk -----------------------------------------------------------------------------------


class ChunkFormula(DeltaFormula):
    """The right rule for all tokens at once, in the WY form: the changes are U - W S."""

    def __call__(
        self, query, key, value, beta, log_decay=None, *, state=None, scale=None, chunk_size=None
    ):  # fmt: skip
        """A triangular system for the changes, then retention with the changes as values."""
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        logs, beta = self.logs(query, log_decay), beta[..., None]
        if state is None:
            state = value.new_zeros(*query.shape[:2], query.shape[-1], value.shape[-1])
        change = self.changes(key, value, beta, logs) - self.read(key, beta, logs) @ state
        since_start = self.since_start(logs).exp()
        output = scale * (
            (since_start * query) @ state + self.output_scores(query, key, logs) @ change
        )
        return output, logs.sum(2).exp()[..., None] * state + (self.to_end(logs) * key).mT @ change

    def logs(self, query, log_decay):
        """Logarithms of the decays of each head, token and feature."""
        if log_decay is None:
            return torch.zeros_like(query)
        log_decay = log_decay[..., None] if log_decay.ndim == 3 else log_decay
        return log_decay.expand(query.shape)

    def since_start(self, logs):
        """The sum of the logarithms up to each token."""
        return logs.cumsum(2)

    def scores(self, query, key, logs):
        """query_i . key_j, decayed from j to i, where j <= i."""
        sums, length = logs.cumsum(2), logs.shape[2]
        past = torch.ones(length, length, dtype=torch.bool).tril()[..., None]
        decay = self.exp(sums[:, :, :, None] - sums[:, :, None], past)
        return (query[:, :, :, None] * key[:, :, None] * decay).sum(-1)

    def exp(self, logs, past):
        """Masked first, then the exponential."""
        return logs.masked_fill(~past, -torch.inf).exp()

    def output_scores(self, query, key, logs):
        """Those of the output."""
        return self.scores(query, key, logs)

    def solve(self, gram, right):
        """(1 + the part of gram below its diagonal)^-1 right."""
        eye = torch.eye(gram.shape[-1], dtype=gram.dtype)
        return torch.linalg.solve(eye + gram.tril(-1), right)

    def changes(self, key, value, beta, logs):
        """U: what the tokens would write after a state of 0."""
        return self.solve(beta * self.scores(key, key, logs), beta * value)

    def read(self, key, beta, logs):
        """W: which part of a state each token subtracts."""
        gram = beta * self.scores(key, key, logs)
        return self.solve(gram, beta * key * logs.cumsum(2).exp())

    def to_end(self, logs):
        """The decays after each token."""
        return (logs.sum(2, keepdim=True) - logs.cumsum(2)).exp()


@mistake(
    "W is gated twice",
    rejected_by="a call in two parts is one call",
    symptom="Right in the first chunk and wherever the decay is weak; later chunks drift.",
    cause="W must solve the system without decays, and is then decayed to its token. Here the decays stand in "
    "the system as well.",
    seen="NeuraLegion/shainet pull request 170, in its first draft",
)
class WGatedTwice(ChunkFormula):
    def read(self, key, beta, logs):
        gram = beta * self.scores(key, key, logs)
        return logs.cumsum(2).exp() * self.solve(gram, beta * key)


@mistake(
    "the output has the plain causal mask",
    rejected_by="the output is the scaled query's reading of the new state",
    symptom="The state is right, and so is each chunk's first token; outputs forget nothing within a chunk.",
    cause="Within a chunk the scores of the output are masked, and must be decayed as well.",
    seen="NeuraLegion/shainet pull request 170: the paper's section 3.3 prints the plain mask",
)
class PlainMask(ChunkFormula):
    def output_scores(self, query, key, logs):
        return super().scores(query, key, torch.zeros_like(logs))


@mistake(
    "one order of corrections",
    rejected_by="equals the recurrence from the third token on",
    symptom="Right for two tokens; the longer the chunk and the more alike its keys, the worse.",
    cause="1 - A is taken for the inverse of 1 + A. Token 2 corrects for token 1, but not for what token 1 "
    "itself had corrected.",
)
class FirstOrder(ChunkFormula):
    def solve(self, gram, right):
        return right - gram.tril(-1) @ right


@mistake(
    "the decay acts only between chunks",
    rejected_by="the state is that of all tokens so far",
    symptom="Right for chunks of one token; the longer the chunk, the worse.",
    cause="Within a chunk nothing decays: the state at the end gets the decay of the whole chunk.",
    seen="a question of Jamie-Stirling/RetNet issue 34: which decay has a token inside a chunk?",
)
class DecayBetweenChunks(ChunkFormula):
    def scores(self, query, key, logs):
        return super().scores(query, key, torch.zeros_like(logs))

    def to_end(self, logs):
        return torch.ones_like(logs)


@mistake(
    "the changes are not decayed to the end of the chunk",
    rejected_by="the output is the scaled query's reading of the new state",
    symptom="The first chunk is right, all others are not.",
    cause="The new state adds K^T U, where each token's part must be decayed to the chunk's last token.",
    seen="the same in Jamie-Stirling/RetNet issue 10",
)
class ChangesNotDecayed(ChunkFormula):
    def to_end(self, logs):
        return torch.ones_like(logs)


@mistake(
    "decays as a quotient of products",
    rejected_by="strong decays stay finite",
    symptom="NaN in long sequences, first in the heads that forget fastest.",
    cause="The exponential is taken of positive numbers, for future tokens: infinity times the mask's 0 is NaN.",
)
class QuotientOfProducts(ChunkFormula):
    def exp(self, logs, past):
        return logs.exp() * past


@mistake(
    "a chunk does not read the state",
    rejected_by="a call in two parts is one call",
    symptom="A prompt in two parts is two prompts.",
    cause="The differences are taken to 0, not to what the state before the chunk returns.",
)
class DifferenceToZero(ChunkFormula):
    def read(self, key, beta, logs):
        return torch.zeros_like(key)
