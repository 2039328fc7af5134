"""The famous mistakes with state spaces: padding that enters, steps that are wrong, windows that leak."""

from __future__ import annotations

from itertools import pairwise

import torch

from ..mistakes import Formula, mistake

# --- The short convolution ------------------------------------------------------------------------


class ConvolutionFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, x, weight, bias=None, *, state=None, real=None):
        """Row by row, since each has as many real tokens as it has."""
        width = weight.shape[1]
        if state is None:
            state = x.new_zeros(len(x), x.shape[2], width - 1)
        outputs, states = [], []
        for row, own, kept in zip(x, state, self.kept(x, real), strict=True):
            tokens = torch.cat([own.mT, self.entering(row, kept)])  # K + real tokens, D
            windows = self.windows(tokens, width)  # tokens, D, W
            y = (windows * self.kernel(weight)).sum(-1) + (0 if bias is None else bias)
            outputs.append(self.spread(y, kept))
            states.append(self.last(tokens, row, width).mT)
        if not outputs:
            return x, state
        return torch.stack(outputs), torch.stack(states)

    def kept(self, x, real):
        """Which tokens are real."""
        return torch.ones_like(x[..., 0], dtype=torch.bool) if real is None else real

    def entering(self, row, kept):
        """The real tokens."""
        return row[kept]

    def spread(self, y, kept):
        """Back to their positions; padding gives 0."""
        out = y.new_zeros(len(kept), y.shape[-1])
        return out.index_put((kept.nonzero()[:, 0],), y)

    def windows(self, tokens, width):
        """A token and the width - 1 before it."""
        return tokens.unfold(0, width, 1) if len(tokens) >= width else tokens.new_zeros(
            0, tokens.shape[1], width
        )  # fmt: skip

    def kernel(self, weight):
        """The last weight is that of the token itself."""
        return weight

    def last(self, tokens, row, width):
        """The last width - 1 of the state and the real tokens together."""
        return tokens[len(tokens) - (width - 1) :]


@mistake(
    "the convolution padded on both sides",
    rejected_by="a token does not depend on later ones",
    symptom="The training loss is far too good; generated text is bad.",
    cause='padding="same" centers the window: half of it lies in the future. Pad width - 1 on the left.',
    of="short_convolution",
)
class Centered(ConvolutionFormula):
    def windows(self, tokens, width):
        ahead = (width - 1) // 2
        moved = torch.cat([tokens[ahead:], tokens.new_zeros(ahead, tokens.shape[1])])
        return super().windows(moved, width)


@mistake(
    "the short kernel is flipped",
    rejected_by="the last weight is that of the token itself",
    symptom="Converted weights give nonsense; a model trained with it is as good as any.",
    cause="Weight 0 is taken for the newest token, as in the mathematics of convolutions.",
    of="short_convolution",
)
class FlippedKernel(ConvolutionFormula):
    def kernel(self, weight):
        return weight.flip(-1)


@mistake(
    "the state is that of the last chunk alone",
    rejected_by="a call in two parts is one call",
    symptom="Right for long chunks; token by token, or in chunks shorter than the window, the model forgets.",
    cause="The last width - 1 tokens of the new chunk are kept, with zeros where it is shorter: those of the old "
    "state that are still in the window are lost.",
    seen="the same in gradients: fla-org/flash-linear-attention issue 1140",
    of="short_convolution",
)
class LastChunkAlone(ConvolutionFormula):
    def last(self, tokens, row, width):
        new = tokens[width - 1 :]
        return torch.cat([new.new_zeros(width - 1, new.shape[1]), new])[len(new) :]


@mistake(
    "padding is zero in the window",
    rejected_by="padding is skipped",
    symptom="Right with padding on the left of a text; in its middle, as after a padded prompt, the tokens that follow "
    "read zeros in the place of the last words.",
    cause="Padding is multiplied by 0, and stays in the window. It must be left out.",
    seen="huggingface/transformers issue 48256",
    of="short_convolution",
)
class ZeroInWindow(ConvolutionFormula):
    def entering(self, row, kept):
        return row * kept[:, None]

    def spread(self, y, kept):
        return y * kept[:, None]


@mistake(
    "padding enters the window",
    rejected_by="padding does nothing",
    symptom="A text gets other logits beside a longer one than alone.",
    cause="The attention mask never reaches the convolution.",
    seen="state-spaces/mamba issue 66; huggingface/transformers pull request 32677",
    of="short_convolution",
)
class PaddingEnters(ConvolutionFormula):
    def kept(self, x, real):
        return torch.ones_like(x[..., 0], dtype=torch.bool)


# --- The selective scan ---------------------------------------------------------------------------


class ScanFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(
        self, x, delta, a, b, c, *, skip=None, state=None, real=None, method="euler", chunk_size=None
    ):  # fmt: skip
        """All of a and b_bar first, then token by token."""
        if state is None:
            state = x.new_zeros(len(x), *a.shape)
        if real is not None:
            x, delta = self.padded(x, delta, real)
        steps = delta[..., None]  # B L D 1
        updates = self.b_bar(steps, a, b[:, :, None], method) * self.written(x)[..., None]
        outputs = [x[:, :0]]
        states = self.scanned(self.a_bar(steps, a), updates, state)
        for t, (before, after) in enumerate(pairwise(states)):
            outputs.append((self.read(before, after) * c[:, t, None]).sum(-1)[:, None])
        y = torch.cat(outputs, 1)
        return y if skip is None else y + skip * x, states[-1]

    def padded(self, x, delta, real):
        """Padding takes no step."""
        return x, delta * real[..., None]

    def written(self, x):
        """Each token writes itself."""
        return x

    def a_bar(self, steps, a):
        """The factor of the old state."""
        return (steps * a).exp()

    def b_bar(self, steps, a, b, method):
        """The factor of the input."""
        return b * (torch.expm1(steps * a) / a if method == "zoh" else steps)

    def scanned(self, decays, updates, state):
        """The states before the first token and after each."""
        states = [state]
        for decay, update in zip(decays.unbind(1), updates.unbind(1), strict=True):
            states.append(decay * states[-1] + update)
        return states

    def read(self, before, after):
        """The state that a token's output reads: with what it wrote."""
        return after


@mistake(
    "delta b where the hold was asked",
    rejected_by="a held input is solved exactly",
    symptom="Formulas of the paper and numbers of the code disagree, the more the larger the step.",
    cause="The paper prints the zero-order hold (exp(delta a) - 1) / a b; its code computes delta b, the first term.",
    seen="state-spaces/mamba issues 19, 114, 121, 129; johnma2006/mamba-minimal issue 2",
    of="selective_scan",
)
class AlwaysEuler(ScanFormula):
    def b_bar(self, steps, a, b, method):
        return b * steps


@mistake(
    "Euler for a as well",
    rejected_by="a large step forgets",
    symptom="The state explodes when a step is large.",
    cause="1 + delta a, the first terms of exp(delta a), is taken for the decay. Below delta a = -2 it grows.",
    of="selective_scan",
)
class EulerForA(ScanFormula):
    def a_bar(self, steps, a):
        return 1 + steps * a


@mistake(
    "a state of the token before",
    rejected_by="the newest token counts",
    symptom="Every output is one token late; the last token is never read.",
    cause="h_t = a_bar h_(t-1) + b_bar x_(t-1), as Euler's method is printed in textbooks.",
    seen="hkproj/mamba-notes issue 1",
    of="selective_scan",
)
class WritesTokenBefore(ScanFormula):
    def written(self, x):
        return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)


@mistake(
    "the output before the update",
    rejected_by="the newest token counts",
    symptom="The same, but the state at the end is right: only the outputs are late.",
    cause="y_t is read off the state before x_t is written.",
    of="selective_scan",
)
class ReadsBefore(ScanFormula):
    def read(self, before, after):
        return before


@mistake(
    "padding lets the state decay",
    rejected_by="padding does nothing",
    symptom="A prompt that is padded on the right is half forgotten when its answer begins.",
    cause="x is zero at padding, and delta is not: softplus of its bias. Each padding token lets the state decay.",
    seen="huggingface/transformers issue 48256",
    of="selective_scan",
)
class PaddingDecays(ScanFormula):
    def padded(self, x, delta, real):
        return x * real[..., None], delta


@mistake(
    "divided by the cumulative product",
    rejected_by="strong decays stay finite",
    symptom="NaN in long texts, or after one token with a large step.",
    cause="h = P sum(u / P), with P the product of all decays so far: a scan by cumsum. P goes to 0.",
    of="selective_scan",
)
class DividedByProducts(ScanFormula):
    def scanned(self, decays, updates, state):
        products = decays.cumprod(1)
        states = products * (state[:, None] + (updates / products).cumsum(1))
        return [state, *states.unbind(1)]


# --- Mamba-2 --------------------------------------------------------------------------------------


class SsdFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(
        self, x, delta, a, b, c, *, skip=None, state=None, real=None, chunk_size=None
    ):  # fmt: skip
        """(C B^T * M) (delta x), and what the state before adds."""
        heads = x.shape[1]
        b, c = self.shared(b, heads), self.shared(c, heads)
        if state is None:
            state = x.new_zeros(*x.shape[:2], b.shape[-1], x.shape[-1])
        delta = delta if real is None else delta * real[:, None]
        decays = delta * a[:, None]  # B H L, logarithms
        values = self.values(x, delta)
        y = (c @ b.mT * self.matrix(decays)) @ values
        y = y + decays.cumsum(-1).exp()[..., None] * (c @ state)
        end = (decays.sum(-1, keepdim=True) - decays.cumsum(-1)).exp()[..., None]
        new = self.kept(decays) * state + (end * b).mT @ values
        return y if skip is None else y + self.around(skip[:, None, None], x, values), new

    def shared(self, group, heads):
        """Neighboring heads share a group."""
        return group.repeat_interleave(heads // group.shape[1], dim=1)

    def values(self, x, delta):
        """What a token writes is in proportion to its step."""
        return delta[..., None] * x

    def matrix(self, decays):
        """Row i, column j: the decays of tokens j+1 to i."""
        sums, past = decays.cumsum(-1), decays.new_ones(decays.shape[-1:] * 2, dtype=torch.bool)
        steps = sums[..., None] - sums[..., None, :]
        return steps.masked_fill(~past.tril(), -torch.inf).exp()

    def kept(self, decays):
        """What a whole call leaves of a state."""
        return decays.sum(-1).exp()[..., None, None]

    def around(self, skip, x, values):
        """The input itself."""
        return skip * x


@mistake(
    "the step in the decay alone",
    rejected_by="a step of 0 skips a token",
    symptom="Nothing can be skipped: a token that should not be written is written in full.",
    cause="x is not multiplied by delta before it enters the state.",
    of="ssd",
)
class StepInDecayAlone(SsdFormula):
    def values(self, x, delta):
        return x


@mistake(
    "groups repeated, not interleaved",
    rejected_by="neighboring heads share a group",
    symptom="Shapes fit, loaded weights give other logits; with one group nothing shows.",
    cause="b and c of G groups are repeated as a whole, so that head h reads group h mod G.",
    seen="the same with KV heads: fkodom/grouped-query-attention-pytorch issue 5",
    of="ssd",
)
class GroupsRepeated(SsdFormula):
    def shared(self, group, heads):
        return group.repeat(1, heads // group.shape[1], 1, 1)


@mistake(
    "the segment sum masked too late",
    rejected_by="strong decays stay finite",
    symptom="NaN where a step is large.",
    cause="exp(sum_i - sum_j) is taken above the diagonal, too, where it overflows; infinity times the mask's 0 is NaN.",
    of="ssd",
)
class MaskedTooLate(SsdFormula):
    def matrix(self, decays):
        sums, ones = decays.cumsum(-1), decays.new_ones(decays.shape[-1:] * 2)
        return (sums[..., None] - sums[..., None, :]).exp() * ones.tril()


@mistake(
    "a token is decayed by its own step",
    rejected_by="the newest token counts in full",
    symptom="Loaded weights give other numbers: each token's own part is too small.",
    cause="The segment sum from j to i takes in token j; it begins after it.",
    of="ssd",
)
class OwnStepCounts(SsdFormula):
    def matrix(self, decays):
        return super().matrix(decays) * decays.exp()[..., None, :]


@mistake(
    "the skip path is scaled by the step",
    rejected_by="the skip path carries the input itself",
    symptom="What goes around the state fades with the step size.",
    cause="skip is multiplied by delta x, which stands in a variable named x by then.",
    of="ssd",
)
class SkipScaled(SsdFormula):
    def around(self, skip, x, values):
        return skip * values


@mistake(
    "the state of the chunk before is not decayed",
    rejected_by="a call in two parts is one call",
    symptom="Right for one chunk; long texts are dominated by their beginning.",
    cause="The new state is the sum of the old one and the chunk's; the old one has to be decayed by the whole chunk.",
    of="ssd",
)
class StateStays(SsdFormula):
    def kept(self, decays):
        return torch.ones_like(decays.sum(-1))[..., None, None]
