"""The famous mistakes with retention: a decay off by a token, a chunk's state, a norm over the wrong axis."""

from __future__ import annotations

import torch
from torch.nn import functional

from ..mistakes import Formula, mistake

# --- With given decays ----------------------------------------------------------------------------


class RetentionFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, query, key, value, log_decay, *, state=None, scale=None, chunk_size=None):
        """All tokens at once, the state before them and the state after."""
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        log_decay = self.of_heads(log_decay.expand(query.shape[:3]))
        if state is None:
            state = value.new_zeros(*query.shape[:2], query.shape[-1], value.shape[-1])
        after = self.new_state(key, value, log_decay, state)
        within = (query @ key.mT * scale * self.matrix(log_decay)) @ value
        read = self.read_decay(log_decay).exp()[..., None] * (
            query * scale @ self.which(state, after)
        )
        return within + read, after

    def of_heads(self, log_decay):
        """The decays of each head and token."""
        return log_decay

    def matrix(self, log_decay):
        """Row i, column j: the product of the decays after token j, up to token i."""
        return between(log_decay)

    def read_decay(self, log_decay):
        """How much each token still sees of the state: all decays up to its own."""
        return log_decay.cumsum(-1)

    def which(self, before, after):
        """The state that the tokens of a call read: the one from before."""
        return before

    def new_state(self, key, value, log_decay, state):
        """The decayed state, and each token's key and value decayed to the end."""
        return self.kept(log_decay) * state + (self.to_end(log_decay) * key).mT @ value

    def kept(self, log_decay):
        """What a whole call leaves of a state."""
        return log_decay.sum(-1).exp()[..., None, None]

    def to_end(self, log_decay):
        """The decays after each token."""
        return (log_decay.sum(-1, keepdim=True) - log_decay.cumsum(-1)).exp()[..., None]


def between(log_decay):
    """Products of the decays after token j, up to token i, where i >= j, else 0."""
    sums, length = log_decay.cumsum(-1), log_decay.shape[-1]
    past = torch.ones(length, length, dtype=torch.bool).tril()
    return (sums[..., None] - sums[..., None, :]).masked_fill(~past, -torch.inf).exp()


@mistake(
    "the newest token is decayed, too",
    rejected_by="the newest token counts in full",
    symptom="Loaded weights give other numbers: the newest token counts less than it should.",
    cause="The key and value are added before the state is decayed: gamma^(i - j + 1) for gamma^(i - j).",
    of="retention",
)
class NewestDecayed(RetentionFormula):
    def matrix(self, log_decay):
        return log_decay.exp()[..., None, :] * super().matrix(log_decay)

    def to_end(self, log_decay):
        return log_decay.exp()[..., None] * super().to_end(log_decay)


@mistake(
    "the decay of the token before",
    rejected_by="a token's decay acts on what came before it",
    symptom="Nothing shows while all decays are equal; with gates the wrong tokens are forgotten.",
    cause="The product of the decays of tokens j to i - 1 where it should be j + 1 to i.",
    of="retention",
)
class DecayOfTokenBefore(RetentionFormula):
    def matrix(self, log_decay):
        return between(log_decay.roll(1, -1))  # the first one never counts


@mistake(
    "keys are not decayed to the end of the chunk",
    rejected_by="the state is that of all tokens so far",
    symptom="The first chunk is right, all others are not.",
    cause="The new state adds K^T V, where each token's part must be decayed to the chunk's last token.",
    seen="Jamie-Stirling/RetNet issue 10, until commit 9a319db",
    of="retention",
)
class KeysNotDecayed(RetentionFormula):
    def to_end(self, log_decay):
        return torch.ones_like(log_decay)[..., None]


@mistake(
    "a chunk reads the state after it",
    rejected_by="a token does not depend on later ones",
    symptom="The parallel form is right, the chunked one sees the future and counts tokens twice.",
    cause="The state is overwritten before the queries read it.",
    seen="Jamie-Stirling/RetNet issue 10, until commit 9a319db",
    of="retention",
)
class ReadsNewState(RetentionFormula):
    def which(self, before, after):
        return after


@mistake(
    "one decay for the whole chunk",
    rejected_by="a call in two parts is one call",
    symptom="Right for chunks of one token; the longer the chunk, the worse.",
    cause="All queries of a chunk read the state decayed by the whole chunk. Each must read it decayed up "
    "to its own token.",
    of="retention",
)
class OneDecayPerChunk(RetentionFormula):
    def read_decay(self, log_decay):
        return log_decay.sum(-1, keepdim=True).expand_as(log_decay)


@mistake(
    "the old state is not decayed",
    rejected_by="the state is that of all tokens so far",
    symptom="Old chunks never fade: long texts are dominated by their beginning.",
    cause="The state of the chunk before is added as it is.",
    of="retention",
)
class StateNotDecayed(RetentionFormula):
    def kept(self, log_decay):
        return torch.ones_like(log_decay.sum(-1))[..., None, None]


@mistake(
    "masked after the exponential",
    rejected_by="strong decays stay finite",
    symptom="NaN in long texts, first in the heads that forget fastest.",
    cause="gamma^(i - j) is computed for future tokens as well, where it is huge: infinity times the mask's 0 is NaN.",
    seen="Jamie-Stirling/RetNet, src/retention.py, _get_D, where NaN is set to 0 afterwards",
    of="retention",
)
class MaskedAfterExp(RetentionFormula):
    def matrix(self, log_decay):
        sums, length = log_decay.cumsum(-1), log_decay.shape[-1]
        return (sums[..., None] - sums[..., None, :]).exp() * log_decay.new_ones(
            length, length
        ).tril()


@mistake(
    "decays divided by their sum in the chunk",
    rejected_by="a token's decay acts on what came before it",
    symptom="One call is right up to a norm behind it; chunks and single tokens give other numbers.",
    cause="Each row of the decay matrix is divided by its sum, which in a chunk lacks the tokens before it.",
    seen="syncdoth/RetNet issue 10; the same disagreement in microsoft/torchscale issue 77",
    of="retention",
    chapter=20,
)
class DecaysDividedBySum(RetentionFormula):
    def matrix(self, log_decay):
        decay = between(log_decay)
        return decay / decay.sum(-1, keepdim=True)


@mistake(
    "one decay for all heads",
    rejected_by="a head has decays of its own",
    symptom="Every head forgets at the same speed: no head is long-sighted.",
    cause="The decays of the first head are used for all.",
    of="retention",
)
class OneDecayForHeads(RetentionFormula):
    def of_heads(self, log_decay):
        return log_decay[:, :1].expand_as(log_decay)


# --- With gates and a norm ------------------------------------------------------------------------


class GatedFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(
        self, query, key, value, gate_logits, *, temperature=16.0, real=None, state=None, scale=None,
        norm_eps=1e-5, chunk_size=None,
    ):  # fmt: skip
        """Decays, retention, the norm of each head."""
        log_decay = self.log_decay(gate_logits, temperature)
        if real is not None:
            key = key * real[:, None, :, None]
            log_decay = self.padded(log_decay, real)
        output, state = RetentionFormula()(
            query, key, value, log_decay, state=state, scale=scale
        )  # fmt: skip
        return output * (self.mean_square(output) + norm_eps).rsqrt(), state

    def log_decay(self, logits, temperature):
        """The logarithm of sigmoid(logit)^(1 / temperature)."""
        return functional.logsigmoid(logits) / temperature

    def padded(self, log_decay, real):
        """Padding does not decay the state."""
        return log_decay * real[:, None]

    def mean_square(self, output):
        """Of each head and token by itself."""
        return output.square().mean(-1, keepdim=True)


@mistake(
    "the gate without its temperature",
    rejected_by="the temperature slows forgetting",
    symptom="An untrained model forgets half of everything at each token.",
    cause="sigmoid(logit) is the decay itself; its sixteenth root was left out.",
    of="gated_retention",
)
class NoTemperature(GatedFormula):
    def log_decay(self, logits, temperature):
        return functional.logsigmoid(logits)


@mistake(
    "the gate to the power of the temperature",
    rejected_by="the temperature slows forgetting",
    symptom="The state is gone after a token or two.",
    cause="sigmoid(logit)^temperature where the exponent is 1 / temperature.",
    of="gated_retention",
)
class PowerOfTemperature(GatedFormula):
    def log_decay(self, logits, temperature):
        return functional.logsigmoid(logits) * temperature


@mistake(
    "the sigmoid is left out",
    rejected_by="a decay is never above 1",
    symptom="The state grows with the text, to infinity if the gates are large.",
    cause="The logit divided by the temperature is taken for the logarithm of a decay. It may be positive.",
    seen="flashinfer-ai/flashinfer pull request 4968, in an example: log gates drawn from 0 to 1",
    of="gated_retention",
)
class NoSigmoid(GatedFormula):
    def log_decay(self, logits, temperature):
        return logits / temperature


@mistake(
    "padding decays the state",
    rejected_by="padding does nothing",
    symptom="A text gets other logits in a padded batch than alone, and what the padding holds matters.",
    cause="The padding's values are set to 0, and its gates act all the same.",
    seen="fla-org/flash-linear-attention issue 1272",
    of="gated_retention",
)
class PaddingDecays(GatedFormula):
    def padded(self, log_decay, real):
        return log_decay


@mistake(
    "one norm over all heads",
    rejected_by="a head has a norm of its own",
    symptom="A head with large values silences the others.",
    cause="The heads are put side by side first, and then normalized as one vector.",
    seen="the same with grouped norms: osaurus-ai/vmlx-swift pull request 188",
    of="gated_retention",
)
class OneNormForHeads(GatedFormula):
    def mean_square(self, output):
        return output.square().mean((1, 3), keepdim=True)


@mistake(
    "the norm of each feature over the heads",
    rejected_by="a head has a norm of its own",
    symptom="Shapes are right and all numbers are of the usual size; heads are no longer independent.",
    cause="The groups of a group norm are taken along the wrong axis: one per feature where it should be one "
    "per head.",
    of="gated_retention",
)
class NormOverHeads(GatedFormula):
    def mean_square(self, output):
        return output.square().mean(1, keepdim=True)


@mistake(
    "the norm over all tokens",
    rejected_by="a token does not depend on later ones",
    symptom="Training looks too good, and generation is poor: each token knows how large the later ones are.",
    cause="nn.GroupNorm averages over every axis but the batch and the groups, the sequence included. Tokens "
    "belong into the batch.",
    seen="warned of in fkodom/yet-another-retnet, yet_another_retnet/retention.py",
    of="gated_retention",
)
class NormOverTokens(GatedFormula):
    def mean_square(self, output):
        return output.square().mean((2, 3), keepdim=True)
