"""The famous mistakes in the feed-forward network: the right one with one step gone wrong."""

from __future__ import annotations

from torch import nn
from torch.nn import functional

from ...layers.feed_forward import gelu, gelu_tanh, relu, silu
from ..mistakes import Formula, Mutant, mistake

ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu}


class FeedForwardFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, x, w_up, b_up, w_down, b_down, activation="relu"):
        """activation(x w_up + b_up) w_down + b_down."""
        wide = self.activate(self.up_proj(self.enter(x, activation), w_up, b_up), activation)
        return self.leave(wide @ w_down + b_down, activation)

    def enter(self, x, activation):
        """Nothing happens before the first layer."""
        return x

    def up_proj(self, x, w_up, b_up):
        """The first layer, the same for each token."""
        return x @ w_up + b_up

    def activate(self, wide, activation):
        """The one place that is not linear."""
        return ACTIVATIONS[activation](wide)

    def leave(self, down_proj, activation):
        """Nothing happens after the second layer."""
        return down_proj


@mistake(
    "the activation forgotten",
    rejected_by="an activation between the layers",
    symptom="Trains, and learns what one matrix of D x D can, with the weights of eight.",
    cause="Without an activation the product of two linear layers is one linear layer.",
    of="feed_forward",
)
class NoActivation(FeedForwardFormula):
    def activate(self, wide, activation):
        return wide


@mistake(
    "the activation before the first layer",
    rejected_by="equals the reference",
    symptom="Half of what each token says is cut away before any weight has seen it.",
    cause="The activation stands before the first layer; it belongs between the two.",
    of="feed_forward",
)
class ActivationFirst(FeedForwardFormula):
    def enter(self, x, activation):
        return ACTIVATIONS[activation](x)

    def activate(self, wide, activation):
        return wide


@mistake(
    "an activation after the second layer too",
    rejected_by="no activation after the second layer",
    symptom="With ReLU the answer is never negative: the stream can only be pushed upward.",
    cause="A loop over layers puts an activation behind each, the last included.",
    of="feed_forward",
)
class ActivationAfterToo(FeedForwardFormula):
    def leave(self, down_proj, activation):
        return ACTIVATIONS[activation](down_proj)


@mistake(
    "ReLU, whatever was asked for",
    rejected_by="the activation that is asked for",
    symptom="Weights that were trained with GELU give answers that are a little wrong everywhere.",
    cause="The activation is written into the layer; the option is read and not used.",
    of="feed_forward",
)
class AlwaysReLU(FeedForwardFormula):
    def activate(self, wide, activation):
        return relu(wide)


@mistake(
    "GELU's tanh form for the exact one",
    rejected_by="the activation that is asked for",
    symptom="Each wide number is off by at most 0.0005: no test with a tolerance of 1e-3 sees it.",
    cause="Two functions are called GELU: x Phi(x) (PyTorch, BERT) and its tanh form (GPT-2).",
    of="feed_forward",
)
class TanhForExact(FeedForwardFormula):
    def activate(self, wide, activation):
        return ACTIVATIONS["gelu_tanh" if activation == "gelu" else activation](wide)


@mistake(
    "the exact GELU for its tanh form",
    rejected_by="the activation that is asked for",
    symptom="A loaded Gemma or GPT-2 is a little off in every layer, and its logits are another model's.",
    cause='The file says "gelu" where the tanh form was trained: the name in it decides, never the habit.',
    seen="OpenNMT/CTranslate2 issue 1658; google/gemma_pytorch pull request 37; huggingface/transformers "
    "pull request 29402",
    of="feed_forward",
)
class ExactForTanh(FeedForwardFormula):
    def activate(self, wide, activation):
        return ACTIVATIONS["gelu" if activation == "gelu_tanh" else activation](wide)


@mistake(
    "the first bias forgotten",
    rejected_by="equals the reference",
    symptom="All kinks are at 0, so f(-x) + f(x) is |x| times something: a smaller family.",
    cause="x W_1 goes into the activation without b_1.",
    of="feed_forward",
)
class NoFirstBias(FeedForwardFormula):
    def up_proj(self, x, w_up, b_up):
        return x @ w_up


@mistake(
    "the first bias along the tokens",
    rejected_by="the right shape and dtype",
    symptom="An error, except where L = d_ff: there each token gets a bias of its own.",
    cause="b_1 is broadcast along the axis of the tokens; it has one number a hidden unit.",
    of="feed_forward",
)
class BiasOverTokens(FeedForwardFormula):
    def up_proj(self, x, w_up, b_up):
        return x @ w_up + b_up[:, None]


@mistake(
    "a kernel of three tokens",
    rejected_by="each token alone",
    symptom="Right shapes; in a decoder every layer reads one token of the future.",
    cause="Conv1d with kernel_size=3 and padding=1, where 1 is meant.",
    of="feed_forward",
)
class KernelOfThree(FeedForwardFormula):
    def up_proj(self, x, w_up, b_up):
        if not x.numel():
            return super().up_proj(x, w_up, b_up)
        kernel = w_up.mT[..., None].expand(-1, -1, 3) / 3
        rows = x.reshape(-1, x.shape[-2] if x.ndim > 1 else 1, x.shape[-1]).mT  # N D L
        wide = functional.conv1d(rows, kernel, b_up, padding=1).mT
        return wide.reshape(*x.shape[:-1], -1)


@mistake(
    "a view before the convolution",
    rejected_by="each token alone",
    symptom="Right shapes; the numbers of all tokens are shuffled, and the future leaks.",
    cause="Conv1d wants (B, D, L): view cuts the rows anew, transpose turns them.",
    of="feed_forward",
)
class ViewForTranspose(FeedForwardFormula):
    def up_proj(self, x, w_up, b_up):
        if x.ndim < 2:
            return super().up_proj(x, w_up, b_up)
        turned = x.reshape(*x.shape[:-2], x.shape[-1], x.shape[-2])  # "D L", and it is not
        return super().up_proj(turned.mT, w_up, b_up)


@mistake(
    "Conv1d sizes of the second layer",
    rejected_by="RuntimeError",
    symptom="RuntimeError at the first call: the second layer waits for d_model channels.",
    cause="The first layer's line was copied; the second goes from d_ff back to d_model.",
    seen="source notes, 001:1257",
    of="feed_forward",
)
class SecondConvTheWrongWay(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.up_proj = nn.Conv1d(d_model, d_ff, 1)
        self.down_proj = nn.Conv1d(d_model, d_ff, 1)

    def forward(self, x):
        return self.down_proj(self.up_proj(x.mT).relu()).mT


@mistake(
    "dropout active in evaluation",
    rejected_by="no dropout in evaluation",
    symptom="The same sentence gives another answer at each call, and worse scores than training.",
    cause="functional.dropout has training=True as its default; pass self.training.",
    of="feed_forward",
)
class DropoutNeverSleeps(nn.Module):
    def __init__(self, d_model, d_ff, dropout=0.0):
        super().__init__()
        self.up_proj = nn.Linear(d_model, d_ff)
        self.down_proj = nn.Linear(d_ff, d_model)
        self.p = dropout

    def forward(self, x):
        return self.down_proj(functional.dropout(self.up_proj(x).relu(), self.p))


TYPO_IN_A_DEFAULT = Mutant(
    "an inner width of 2018",
    None,
    rejected_by="gallery only",
    symptom="None: the model trains, with 30,750 parameters a layer fewer than the paper's.",
    cause="A typo in a default, 2018 for 2048. No judge can see it: any width is a right one. "
    "A test of the parameter count does.",
    seen="source notes, 001:1380",
    of="feed_forward",
)


class SwigluFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, x, w_gate, w_up, w_down):
        """(silu(x w_gate) x (x w_up)) w_down."""
        return self.join(x @ w_gate, x @ w_up) @ w_down

    def join(self, gate, value):
        """The gate goes through SiLU, the value does not."""
        return silu(gate) * value


@mistake(
    "gate and value swapped",
    rejected_by="linear in the value",
    symptom="Trains as well as the right one; with weights from elsewhere it writes nonsense.",
    cause="silu belongs to the gate. Llama calls the three gate_proj, up_proj and down_proj.",
    of="swiglu",
)
class GateAndValueSwapped(SwigluFormula):
    def join(self, gate, value):
        return silu(value) * gate


@mistake(
    "a sigmoid for SiLU",
    rejected_by="a gate of 0 is shut",
    symptom="A gate of 0 lets half of the value pass.",
    cause="That is GLU, of 2017; SwiGLU multiplies the sigmoid by the gate once more.",
    of="swiglu",
)
class SigmoidGate(SwigluFormula):
    def join(self, gate, value):
        return gate.sigmoid() * value


@mistake(
    "the gate added",
    rejected_by="linear in the value",
    symptom="No gate: the two halves do not meet, and the network is as wide as one of them.",
    cause="+ in place of x.",
    of="swiglu",
)
class GateAdded(SwigluFormula):
    def join(self, gate, value):
        return silu(gate) + value


@mistake(
    "the gate without its activation",
    rejected_by="the activation that is asked for",
    symptom="f(-x) = f(x): the network cannot tell a token from its opposite.",
    cause="gate x value without SiLU, a bilinear layer.",
    of="swiglu",
)
class BilinearGate(SwigluFormula):
    def join(self, gate, value):
        return gate * value


@mistake(
    "the activation after the product",
    rejected_by="linear in the value",
    symptom="A large negative product is cut away, whatever the gate says.",
    cause="silu(gate x value): the activation comes after the product, not before.",
    of="swiglu",
)
class ActivatedProduct(SwigluFormula):
    def join(self, gate, value):
        return silu(gate * value)
