"""The famous mistakes with a mixture of experts: wrong weights, wrong experts, lost tokens."""

from __future__ import annotations

import torch
from torch.nn import functional

from ..mistakes import Formula, mistake

# --- Routing --------------------------------------------------------------------------------------


class RoutingFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    best = (1, 2)  # how many experts a group is judged by: softmax, sigmoid
    outside = float("-inf")

    def __call__(
        self, logits, num_chosen, *, scoring="softmax", bias=None, normalize=False, scale=1.0,
        num_groups=1, num_kept_groups=1,
    ):  # fmt: skip
        """Scores, a preference, the best groups, the chosen experts, their weights."""
        scores = self.scores(logits, scoring)
        preference = self.preference(scores, bias)
        best = self.best[scoring == "sigmoid"]
        limited = self.limited(preference, num_groups, num_kept_groups, best)
        experts = limited.topk(num_chosen, -1).indices
        weights = self.weights(scores, preference, bias, experts)
        weights = self.scaled(weights, normalize, scale)
        return torch.zeros_like(logits).scatter(-1, experts, weights)

    def scores(self, logits, scoring):
        """Of all experts."""
        return logits.softmax(-1) if scoring == "softmax" else logits.sigmoid()

    def preference(self, scores, bias):
        """By what experts are chosen."""
        return scores if bias is None else scores + bias

    def limited(self, preference, num_groups, num_kept, best):
        """The preference, without the experts of other groups."""
        if num_kept == num_groups:
            return preference
        grouped = self.grouped(preference, num_groups)
        value = grouped.topk(min(best, grouped.shape[-1]), -1).values.sum(-1)
        kept = torch.zeros_like(value, dtype=torch.bool)
        kept = kept.scatter(-1, value.topk(num_kept, -1).indices, True)
        return self.joined(grouped.masked_fill(~kept[..., None], self.outside))

    def grouped(self, preference, num_groups):
        """Neighbors make a group."""
        return preference.unflatten(-1, (num_groups, -1))

    def joined(self, grouped):
        """The way back."""
        return grouped.flatten(-2)

    def weights(self, scores, preference, bias, experts):
        """Of the chosen experts."""
        return scores.gather(-1, experts)

    def scaled(self, weights, normalize, scale):
        """Normalized if asked for, and scaled."""
        return scale * (weights / weights.sum(-1, keepdim=True) if normalize else weights)


@mistake(
    "a softmax over the chosen experts alone",
    rejected_by="another logit changes the weights",
    symptom="A checkpoint loads and talks, a little worse: each mixture has too large an output.",
    cause="A softmax after the choice makes the weights sum to 1. It equals one before the choice only "
    "where those weights are normalized, as in Mixtral; DeepSeek-V2 and OLMoE do not normalize.",
    seen="Lightning-AI/litgpt issue 2013",
    of="expert_routing",
)
class SoftmaxOverChosen(RoutingFormula):
    def scaled(self, weights, normalize, scale):
        return super().scaled(weights, True, scale)


@mistake(
    "weights that are not normalized",
    rejected_by="normalized weights sum to the scale",
    symptom="Huge gradient norms as soon as a converted checkpoint is trained further.",
    cause="The sigmoids of the chosen experts sum to anything between 0 and their number.",
    seen="pytorch/torchtitan issue 1448",
    of="expert_routing",
)
class NotNormalized(RoutingFormula):
    def scaled(self, weights, normalize, scale):
        return scale * weights


@mistake(
    "the balancing bias in the weights",
    rejected_by="one bias for all changes nothing",
    symptom="An expert that gets too few tokens weighs more wherever it is chosen.",
    cause="The bias may change which experts are chosen; weights are the scores without it.",
    seen="vllm-project/vllm pull request 12002",
    of="expert_routing",
)
class BiasInWeights(RoutingFormula):
    def weights(self, scores, preference, bias, experts):
        return preference.gather(-1, experts)


@mistake(
    "the score taken back from the biased one",
    rejected_by="equals the reference",
    symptom="Right while biases are small; with biases of 12 and scores of 1e-8 all weights of a token are 0.",
    cause="Adding the bias rounds a small score away, and subtracting it does not bring it back.",
    seen="flashinfer-ai/flashinfer pull request 3875",
    of="expert_routing",
)
class BiasSubtracted(RoutingFormula):
    def weights(self, scores, preference, bias, experts):
        weights = preference.gather(-1, experts)
        return weights if bias is None else weights - bias.expand_as(preference).gather(-1, experts)


@mistake(
    "a choice without the bias",
    rejected_by="a large bias wins",
    symptom="Experts are used unevenly again; in a new model, whose biases are 0, nothing is seen.",
    cause="The bias is a buffer beside the weights, and was not loaded or not added.",
    of="expert_routing",
)
class BiasForgotten(RoutingFormula):
    def preference(self, scores, bias):
        return scores


@mistake(
    "the scale lost where nothing is normalized",
    rejected_by="twice the scale, twice the weights",
    symptom="DeepSeek-V2, whose scale is 16, gets a sixteenth of its experts' outputs.",
    cause="The multiplication stands inside the branch that normalizes; the two are independent.",
    seen="sgl-project/sglang-jax pull request 1282",
    of="expert_routing",
)
class ScaleWithNormalizing(RoutingFormula):
    def scaled(self, weights, normalize, scale):
        return super().scaled(weights, normalize, scale if normalize else 1.0)


@mistake(
    "the scale applied twice",
    rejected_by="normalized weights sum to the scale",
    symptom="GSM8K falls from 95 to 66 percent.",
    cause="Both the router and the layer around it multiply by the scale.",
    seen="vllm-project/vllm pull request 24119",
    of="expert_routing",
)
class ScaledTwice(RoutingFormula):
    def scaled(self, weights, normalize, scale):
        return scale * super().scaled(weights, normalize, scale)


@mistake(
    "groups ignored",
    rejected_by="experts of few groups",
    symptom="A model with groups runs as one without them: other experts, other text.",
    cause="The choice is among all experts, as in older models, instead of within the best groups.",
    seen="NVIDIA/TensorRT-Model-Connect pull request 669",
    of="expert_routing",
)
class GroupsIgnored(RoutingFormula):
    def limited(self, preference, num_groups, num_kept, best):
        return preference


@mistake(
    "a group judged by its best expert alone",
    rejected_by="equals the reference",
    symptom="Other experts for some tokens; on GSM8K the difference was within the error.",
    cause="That is DeepSeek-V2's rule. With biases, in V3, a group is as good as its two best experts.",
    seen="vllm-project/vllm pull request 13474",
    of="expert_routing",
)
class OneBestExpert(RoutingFormula):
    best = (1, 1)


@mistake(
    "other groups masked with zero",
    rejected_by="experts of few groups",
    symptom="None in DeepSeek-V3, whose biases are all positive; another model chooses masked experts.",
    cause="With a negative bias an allowed expert is below 0, and so below all that are masked.",
    seen="huggingface/transformers issue 45440, pull request 45441",
    of="expert_routing",
)
class MaskedWithZero(RoutingFormula):
    outside = 0.0


@mistake(
    "groups of every third expert",
    rejected_by="experts of few groups",
    symptom="Other experts than in training, and a token is sent to every device.",
    cause="A group is a run of neighbors; the reshape put the number of groups last.",
    of="expert_routing",
)
class StridedGroups(RoutingFormula):
    def grouped(self, preference, num_groups):
        return preference.unflatten(-1, (-1, num_groups)).transpose(-1, -2)

    def joined(self, grouped):
        return grouped.transpose(-1, -2).flatten(-2)


# --- The mixture ----------------------------------------------------------------------------------


class MixtureFormula(Formula):
    """Every expert on every token, weighted by zero where it is not chosen."""

    def __call__(self, x, experts, weights, gate, up, down):
        """Outputs of all experts, a weight for each, their sum."""
        outputs = self.outputs(x, gate, up, down)  # T N D
        return self.sum(outputs, self.matrix(experts, weights, len(gate)))

    def outputs(self, x, gate, up, down):
        """Each expert's output for each token."""
        hidden = self.hidden(
            torch.einsum("td,nfd->tnf", x, gate), torch.einsum("td,nfd->tnf", x, up)
        )
        return torch.einsum("tnf,ndf->tnd", hidden, down)

    def hidden(self, gate, up):
        """SwiGLU."""
        return functional.silu(gate) * up

    def matrix(self, experts, weights, count):
        """The weight of every expert for every token."""
        return (functional.one_hot(experts, count).to(weights) * weights[..., None]).sum(-2)  # T N

    def sum(self, outputs, weights):
        """Weighted."""
        return (outputs * weights[..., None]).sum(-2)


@mistake(
    "tokens beyond an expert's capacity dropped",
    rejected_by="each token alone",
    symptom="Good in training; in use a token's answer depends on the other texts of its batch.",
    cause="Every expert takes as many tokens as it would at perfect balance; those after them get nothing.",
    of="mixture_of_experts",
)
class Capacity(MixtureFormula):
    def matrix(self, experts, weights, count):
        matrix = super().matrix(experts, weights, count)
        capacity = -(-experts.numel() // count)
        return matrix * ((matrix != 0).cumsum(0) <= capacity)


@mistake(
    "all tokens of an expert dropped but the first",
    rejected_by="each token alone",
    symptom="Fluent text at a batch of one, the worse the larger the batch.",
    cause="The list of an expert's tokens has the first one, and padding in place of the others.",
    seen="vllm-project/vllm-xpu-kernels issue 453",
    of="mixture_of_experts",
)
class OnlyFirstToken(MixtureFormula):
    def matrix(self, experts, weights, count):
        matrix = super().matrix(experts, weights, count)
        return matrix * ((matrix != 0).cumsum(0) <= 1)


@mistake(
    "an expert overwrites the one before it",
    rejected_by="equals the reference",
    symptom="Each token gets the output of one expert, the last; top-1 models are right.",
    cause="output[token] = ... where the sum needs output[token] += ..., or index_add.",
    of="mixture_of_experts",
)
class Overwritten(MixtureFormula):
    def matrix(self, experts, weights, count):
        matrix = super().matrix(experts, weights, count)
        return matrix * (torch.arange(count) == experts.max(-1, keepdim=True).values)


@mistake(
    "the weight at the expert's input",
    rejected_by="weights act on what experts return",
    symptom="Close enough to train; a loaded checkpoint is off in every layer.",
    cause="SwiGLU is not linear: weighting what goes in is not weighting what comes out.",
    of="mixture_of_experts",
)
class WeightedInput(MixtureFormula):
    def __call__(self, x, experts, weights, gate, up, down):
        total = torch.zeros_like(x)
        matrix = self.matrix(experts, weights, len(gate))
        for number in range(len(gate)):
            own = slice(number, number + 1)
            weighted = matrix[:, own] * x
            output = self.outputs(weighted, gate[own], up[own], down[own])[:, 0]
            total = total + (matrix[:, own] != 0) * output
        return total


@mistake(
    "the first weight for every expert",
    rejected_by="in any order",
    symptom="The second expert counts as much as the first.",
    cause="Of an expert's tokens the weights were read in column 0, not in that of its rank.",
    of="mixture_of_experts",
)
class FirstWeight(MixtureFormula):
    def matrix(self, experts, weights, count):
        return super().matrix(experts, weights[:, :1].expand_as(weights), count)


@mistake(
    "gate and up exchanged",
    rejected_by="equals the reference",
    symptom="Fluent nonsense from loaded weights; a model trained with the bug is fine.",
    cause="Two matrices of one shape, often stored as one: w1 is the gate, w3 the up-projection.",
    of="mixture_of_experts",
)
class GateAndUpExchanged(MixtureFormula):
    def hidden(self, gate, up):
        return super().hidden(up, gate)


# --- GPT-OSS's activation -------------------------------------------------------------------------


class ClampedFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, gate_up, *, limit=7.0, alpha=1.702):
        """Two halves, clamped, and a product."""
        gate, up = self.halves(gate_up)
        gate, up = self.gate(gate, limit), self.up(up, limit)
        return gate * self.passed(gate, alpha) * self.shifted(up)

    def halves(self, gate_up):
        """Neighbors are a pair."""
        return gate_up[..., ::2], gate_up[..., 1::2]

    def gate(self, gate, limit):
        """From above alone."""
        return gate.clamp(max=limit)

    def up(self, up, limit):
        """From both sides."""
        return up.clamp(-limit, limit)

    def passed(self, gate, alpha):
        """How much of the gate passes."""
        return torch.sigmoid(alpha * gate)

    def shifted(self, up):
        """Plus one."""
        return up + 1


@mistake(
    "gates in the first half",
    rejected_by="an up of zero passes the gate",
    symptom="Fluent nonsense: most models store all gates before all ups, GPT-OSS alternates them.",
    cause="chunk(2) where every second feature is a gate.",
    of="clamped_swiglu",
)
class GatesFirst(ClampedFormula):
    def halves(self, gate_up):
        return gate_up.chunk(2, -1)


@mistake(
    "the gate clamped from below too",
    rejected_by="a gate far below zero closes",
    symptom="A gate far below 0 still lets a little through.",
    cause="A review asks for symmetry that the reference does not have: the gate has an upper limit alone.",
    seen="PrimeIntellect-ai/prime-rl pull request 2365, a review",
    of="clamped_swiglu",
)
class SymmetricGate(ClampedFormula):
    def gate(self, gate, limit):
        return gate.clamp(-limit, limit)


@mistake(
    "no clamp at all",
    rejected_by="beyond the limit nothing changes",
    symptom="HumanEval falls from 88 to 71 percent.",
    cause="A model that was trained with limits runs without them.",
    seen="jundot/omlx pull request 2571, for Ling",
    of="clamped_swiglu",
)
class NoClamp(ClampedFormula):
    def gate(self, gate, limit):
        return gate

    def up(self, up, limit):
        return up


@mistake(
    "up without plus one",
    rejected_by="an up of zero passes the gate",
    symptom="Every expert's output is too small, and wrong in direction.",
    cause="SwiGLU multiplies by up; GPT-OSS multiplies by up plus one.",
    seen="sgl-project/sglang pull request 39939, a review",
    of="clamped_swiglu",
)
class NoPlusOne(ClampedFormula):
    def shifted(self, up):
        return up


@mistake(
    "SiLU in place of the steeper gate",
    rejected_by="an up of zero passes the gate",
    symptom="A small error of every expert: nothing looks broken.",
    cause="SiLU is the gate with alpha = 1, and GPT-OSS has 1.702.",
    of="clamped_swiglu",
)
class PlainSilu(ClampedFormula):
    def passed(self, gate, alpha):
        return torch.sigmoid(gate)
