"""The famous mistakes with hyper-connections and gates: a transposed matrix, a gate in the wrong place."""

from __future__ import annotations

import torch

from ..mistakes import Formula, mistake


class HyperFormula(Formula):
    """The right connection, cut into the steps that the mutants replace one at a time."""

    def __call__(self, streams, sublayer, alpha, beta):
        """Read, mix, write."""
        read, mixed = self.read(streams, alpha), self.mixed(streams, alpha[..., 1:])
        return mixed + self.written(sublayer(read), beta)

    def plainly(self, streams, weight, alpha, beta):
        """Called with the arrays of a case."""
        return self(streams, lambda h: h @ weight.mT, alpha, beta)

    def read(self, streams, alpha):
        """Weighted by column 0."""
        return (alpha[..., :1] * streams).sum(-2)

    def mixed(self, streams, mixing):
        """Weighted by the other columns."""
        return mixing.mT @ streams

    def written(self, output, beta):
        """To each stream with a weight of its own."""
        return beta[..., None] * output[..., None, :]


@mistake(
    "the mixing matrix transposed",
    rejected_by="without writing the streams are mixed",
    symptom="Right at first, when it is the identity; a trained checkpoint is noise.",
    cause="Row j of alpha weighs the new stream j, where column j does.",
    of="hyper_connection",
)
class MixingTransposed(HyperFormula):
    def mixed(self, streams, mixing):
        return mixing @ streams


@mistake(
    "the output written to one stream",
    rejected_by="the first weights make a residual connection",
    symptom="Each stream sees every n-th sublayer: n shallow networks side by side.",
    cause="The output goes back to the stream that was read. beta has a weight for each of them.",
    of="hyper_connection",
)
class WrittenToOne(HyperFormula):
    def written(self, output, beta):
        first = torch.zeros_like(beta)
        first[..., 0] = 1
        return super().written(output, beta * first)


@mistake(
    "the sublayer reads the sum of all streams",
    rejected_by="the first weights make a residual connection",
    symptom="At the first step the input is n times too large; behind a norm nobody sees it.",
    cause="Streams are summed at the end of the network, and not in front of every sublayer.",
    of="hyper_connection",
)
class ReadsTheSum(HyperFormula):
    def read(self, streams, alpha):
        return super().read(streams, torch.ones_like(alpha))


@mistake(
    "the streams are not mixed",
    rejected_by="without writing the streams are mixed",
    symptom="n residual streams that differ by their weights alone: no gain over one.",
    cause="Columns 1 to n of alpha are left out: streams go on as they are.",
    of="hyper_connection",
)
class NotMixed(HyperFormula):
    def mixed(self, streams, mixing):
        return streams + 0 * mixing.mT @ streams


# --- The gate -------------------------------------------------------------------------------------


class GateFormula(Formula):
    """The right gate, cut into the steps that the mutants replace one at a time."""

    def __call__(self, heads, x, gate, output):
        """Gate, then project."""
        return (heads * self.gate(x @ gate.mT)) @ output.mT

    def gate(self, logits):
        """Between 0 and 1."""
        return logits.sigmoid()


@mistake(
    "the gate after the output layer",
    rejected_by="equals the reference",
    symptom="Gates act on the model's features and not on the heads' numbers.",
    cause="The output layer comes first. With H d = D the shapes do not tell.",
    of="gated_heads",
)
class GateAfterOutput(GateFormula):
    def __call__(self, heads, x, gate, output):
        return (heads @ output.mT) * self.gate(x @ gate[: len(output)].mT)


@mistake(
    "the gate by tanh",
    rejected_by="a gate of 0 halves",
    symptom="At first nothing gets through; half of the gates change the sign.",
    cause="tanh is between -1 and 1, the sigmoid between 0 and 1.",
    of="gated_heads",
)
class TanhGate(GateFormula):
    def gate(self, logits):
        return logits.tanh()


@mistake(
    "a gate that sums to 1",
    rejected_by="a gate of 0 halves",
    symptom="Outputs that are smaller the more features there are, and never 0 together.",
    cause="A softmax over the features: they compete. A gate may close for all of them.",
    of="gated_heads",
)
class SoftmaxGate(GateFormula):
    def gate(self, logits):
        return logits.softmax(-1)
