"""The famous mistakes with sparse patterns: a window off by one, a lost diagonal, branches averaged."""

from __future__ import annotations

import math

import torch

from ..masks.spec import textbook as masked_softmax
from ..mistakes import Formula, mistake

# --- The strided mask -----------------------------------------------------------------------------


def steps_back(length):
    """Entry (i, j): how many positions key j is before query i."""
    ids = torch.arange(length)
    return ids[:, None] - ids


@mistake(
    "the stride is counted from the beginning",
    rejected_by="a pair depends on the distance alone",
    symptom="All queries read the same strided keys: in an image, the first column for the pixels above.",
    cause="j % stride == 0 where it should be (i - j) % stride == 0: the residue of the wrong variable.",
    of="strided_mask",
)
def stride_from_beginning(length, stride):
    """The keys at multiples of the stride."""
    steps = steps_back(length)
    return ((steps < stride) | (torch.arange(length) % stride == 0)) & (steps >= 0)


@mistake(
    "a query without itself",
    rejected_by="a query attends to itself",
    symptom="The first query has no key at all, which gives NaN or a zero vector.",
    cause="Strictly earlier keys only: 0 < i - j.",
    of="strided_mask",
)
def without_itself(length, stride):
    """Neither the distance 0 of the window nor that of the stride."""
    steps = steps_back(length)
    return ((steps < stride) | (steps % stride == 0)) & (steps > 0)


@mistake(
    "the stride reaches into the future",
    rejected_by="no key is in the future",
    symptom="The training loss is too good, and generation is poor.",
    cause="The window is causal, and the strided keys are not: -4 is a multiple of 4, too.",
    of="strided_mask",
)
def stride_into_future(length, stride):
    """Causal in one of its two rules."""
    steps = steps_back(length)
    return ((steps >= 0) & (steps < stride)) | (steps % stride == 0)


@mistake(
    "a window one key too short",
    rejected_by="two layers reach every earlier token",
    symptom="Some distances can never be bridged in two layers.",
    cause="i - j < stride - 1: one distance is neither in the window nor a multiple of the stride.",
    of="strided_mask",
)
def gap_after_window(length, stride):
    """The distance stride - 1 is missing."""
    steps = steps_back(length)
    return ((steps < stride - 1) | (steps % stride == 0)) & (steps >= 0)


# --- The fixed mask -------------------------------------------------------------------------------


def block_parts(length, block):
    """The blocks of queries and keys, and which keys are not in the future."""
    ids = torch.arange(length)
    return ids[:, None] // block, ids // block, ids, steps_back(length) >= 0


@mistake(
    "the first keys of a block summarize it",
    rejected_by="two layers reach every earlier token",
    symptom="Later blocks learn of a block only what its first token knew: nothing of the others.",
    cause="j % block < summary. The last positions must summarize: they alone have read the whole block.",
    of="fixed_mask",
)
def first_as_summary(length, block, summary):
    """The first positions of each block."""
    rows, columns, keys, past = block_parts(length, block)
    return ((rows == columns) | (keys % block < summary)) & past


@mistake(
    "blocks without a causal mask",
    rejected_by="no key is in the future",
    symptom="The training loss is too good: every token but the last of a block sees the next one.",
    cause="A block may attend to itself and to earlier blocks; inside a block nothing was masked.",
    seen="the same without any pattern: facebookresearch/xformers issue 103",
    of="fixed_mask",
)
def block_sees_itself(length, block, summary):
    """Causal from block to block alone."""
    rows, columns, keys, _ = block_parts(length, block)
    return (rows == columns) | ((keys % block >= block - summary) & (columns < rows))


@mistake(
    "the residue of the query",
    rejected_by="two layers reach every earlier token",
    symptom="Most queries have their own block alone; the last ones of a block have all keys.",
    cause="i % block where it should be j % block.",
    of="fixed_mask",
)
def residue_of_query(length, block, summary):
    """The last queries of a block attend to everything before them."""
    rows, columns, keys, past = block_parts(length, block)
    return ((rows == columns) | (keys[:, None] % block >= block - summary)) & past


@mistake(
    "one summary too many",
    rejected_by="a query reads its block and the summaries",
    symptom="Right numbers up to a few pairs; loaded weights give slightly other outputs.",
    cause="j % block >= block - summary - 1.",
    of="fixed_mask",
)
def one_too_many(length, block, summary):
    """One more position of each block."""
    rows, columns, keys, past = block_parts(length, block)
    return ((rows == columns) | (keys % block >= block - summary - 1)) & past


# --- Local attention ------------------------------------------------------------------------------


class LocalFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, query, key, value, *, window, causal=False):
        """Scores, the window, a softmax, the weighted sum."""
        scores = query @ key.mT * query.shape[-1] ** -0.5  # B H L L
        return (
            self.weights(scores, self.allowed(steps_back(query.shape[2]), window, causal)) @ value
        )

    def allowed(self, steps, window, causal):
        """Which keys are in the window."""
        return (steps < window) & (steps > -window) & ((steps >= 0) | (not causal))

    def weights(self, scores, allowed):
        """The softmax over the allowed keys."""
        return masked_softmax(scores, allowed)


@mistake(
    "a window one key too wide",
    rejected_by="the window has exactly its keys",
    symptom="With a cache of `window` keys, generation differs from training: the oldest key is gone.",
    cause="steps <= window. The query itself is one of the window's keys.",
    of="local_attention",
)
class WindowTooWide(LocalFormula):
    def allowed(self, steps, window, causal):
        return super().allowed(steps, window + 1, causal)


@mistake(
    "a window that stops at its block",
    rejected_by="the window has exactly its keys",
    symptom="The first query of each block has lost its past: information never crosses the boundary.",
    cause="The sequence was cut into blocks for speed, and the block before is not read.",
    of="local_attention",
)
class StopsAtBlock(LocalFormula):
    def allowed(self, steps, window, causal):
        blocks = torch.arange(len(steps)) // window
        return super().allowed(steps, window, causal) & (blocks[:, None] == blocks)


@mistake(
    "a causal window that looks both ways",
    rejected_by="a causal query has no later keys",
    symptom="The training loss is too good, and generation is poor.",
    cause="|i - j| < window, and the causal mask was left to a caller who passes none.",
    seen="facebookresearch/xformers issue 103",
    of="local_attention",
)
class LooksBothWays(LocalFormula):
    def allowed(self, steps, window, causal):
        return super().allowed(steps, window, False)


@mistake(
    "masked scores of 0",
    rejected_by="a causal query has no later keys",
    symptom="The output does depend on what lies outside the window, the more the longer the sequence.",
    cause="The scores outside the window are filled with 0 where -inf belongs: exp(0) = 1, not 0.",
    of="local_attention",
)
class FilledWithZero(LocalFormula):
    def weights(self, scores, allowed):
        return scores.masked_fill(~allowed, 0.0).softmax(-1)


@mistake(
    "one softmax over heads and keys",
    rejected_by="a head has a softmax of its own",
    symptom="A head with large scores takes the weight of all the others.",
    cause="The heads are flattened together with the keys before the softmax.",
    seen="facebookresearch/detr issue 247",
    of="local_attention",
)
class SoftmaxOverHeads(LocalFormula):
    def weights(self, scores, allowed):
        scores = scores.masked_fill(~allowed, -math.inf).transpose(1, 2)  # B L H L
        weights = scores.flatten(2).softmax(-1).view_as(scores)
        return weights.transpose(1, 2)


@mistake(
    "padding of the last block attends",
    rejected_by="the window has exactly its keys",
    symptom="Right for lengths that the window divides.",
    cause="The keys are padded with zeros to whole blocks; a zero key has the score 0, not -inf.",
    of="local_attention",
)
class PaddingAttends(LocalFormula):
    def __call__(self, query, key, value, *, window, causal=False):
        length = query.shape[2]
        more = -length % window
        key, value = (torch.nn.functional.pad(each, (0, 0, 0, more)) for each in (key, value))
        scores = query @ key.mT * query.shape[-1] ** -0.5  # B H L L+more
        steps = steps_back(length + more)[:length]
        near = (steps < window) & (steps > -window)
        padding = torch.arange(length + more) >= length  # which "causal" does not cover here
        return masked_softmax(scores, near & ((steps >= 0) | padding | (not causal))) @ value


@mistake(
    "denominators without their maximum",
    rejected_by="scores of a thousand stay finite",
    symptom="NaN as soon as a score is above 88, the logarithm of float32's largest number.",
    cause="The blocks are merged by their sums of exp(score), from which no maximum was subtracted.",
    of="local_attention",
)
class NoMaximum(LocalFormula):
    def weights(self, scores, allowed):
        weights = scores.exp() * allowed
        return weights / weights.sum(-1, keepdim=True)


# --- LongNet --------------------------------------------------------------------------------------


class LongNetFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(
        self, query, key, value, segments, dilations, *, causal=True, key_mask=None, scale=None
    ):
        """Every branch by itself, then their mixture."""
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        scores = query @ key.mT * scale  # B H L L
        past = ((steps_back(query.shape[2]) >= 0) | (not causal))[None, None]
        if key_mask is not None:
            past = past & key_mask[:, None, None]
        branches = [
            past
            & torch.stack([self.selected(past.shape[-1], *sizes, h) for h in range(len(query[0]))])
            for sizes in zip(segments, dilations, strict=True)
        ]  # B or 1, H L L each
        return self.mixed(scores, branches, value)

    def selected(self, length, segment, dilation, head):
        """The pairs of a branch and head."""
        ids = torch.arange(length)
        chosen = ids % segment % dilation == self.offset(head, dilation)
        return (ids[:, None] // segment == ids // segment) & chosen[:, None] & chosen

    def offset(self, head, dilation):
        """Where the head begins in a segment."""
        return head % dilation

    def mixed(self, scores, branches, value):
        """One softmax over the keys of all branches: log(count) is added to a key's score."""
        counts = sum(branch.to(scores.dtype) for branch in branches)
        return masked_softmax(scores + counts.clamp(min=1).log(), counts > 0) @ value

    def each(self, scores, branches, value):
        """The outputs and the log-sum-exps of the branches, -inf where there are no keys."""
        outputs = torch.stack([masked_softmax(scores, branch) @ value for branch in branches])
        masked = [scores.masked_fill(~branch, -math.inf) for branch in branches]
        return outputs, torch.stack([each.logsumexp(-1, keepdim=True) for each in masked])


@mistake(
    "all heads begin at the same position",
    rejected_by="head h begins at position h",
    symptom="Most tokens are read by no later segment, whichever head: information in them is lost.",
    cause="The offset h mod dilation is missing.",
    seen="what microsoft/torchscale issue 104 asks for; there the offset is h divided by the size of a group",
    of="longnet_attention",
)
class NoOffset(LongNetFormula):
    def offset(self, head, dilation):
        return 0


@mistake(
    "branches averaged",
    rejected_by="equal scores: every key counts once per branch",
    symptom="A branch with two keys weighs as much as one with a thousand, and one with none as much again.",
    cause="The outputs of the branches are averaged. They must be mixed by their softmax denominators.",
    of="longnet_attention",
)
class BranchesAveraged(LongNetFormula):
    def mixed(self, scores, branches, value):
        return self.each(scores, branches, value)[0].mean(0)


@mistake(
    "a key of two branches counts once",
    rejected_by="equal scores: every key counts once per branch",
    symptom="Close to the right outputs; loaded weights give others.",
    cause="The union of the branches is one mask, in which near keys have lost their second count.",
    seen="what microsoft/torchscale issue 108 expected from the figure",
    of="longnet_attention",
)
class CountsOnce(LongNetFormula):
    def mixed(self, scores, branches, value):
        return masked_softmax(scores, sum(branch.int() for branch in branches) > 0) @ value


@mistake(
    "an empty branch gives NaN",
    rejected_by="a query without keys gives no NaN",
    symptom="NaN for every query that a branch does not select, which is most of them.",
    cause="The log-sum-exp of no keys is -inf, and -inf - (-inf) is NaN.",
    of="longnet_attention",
)
class EmptyBranch(LongNetFormula):
    def mixed(self, scores, branches, value):
        outputs, logs = self.each(scores, branches, value)
        return (outputs * (logs - logs.amax(0)).exp()).sum(0) / (logs - logs.amax(0)).exp().sum(0)


@mistake(
    "denominators that overflow",
    rejected_by="scores of a thousand stay finite",
    symptom="NaN in training, when the scores have grown.",
    cause="The branches are mixed by exp(log-sum-exp) itself, without subtracting the largest one.",
    of="longnet_attention",
)
class DenominatorsOverflow(LongNetFormula):
    def mixed(self, scores, branches, value):
        outputs, logs = self.each(scores, branches, value)
        total = logs.exp().sum(0)
        return torch.where(total > 0, (outputs * logs.exp()).sum(0) / total.clamp(min=1e-300), 0.0)


@mistake(
    "the mixture gets no gradient",
    rejected_by="the gradients are right",
    symptom="Right outputs; the model is trained as if the mixture of the branches were constant.",
    cause="The denominators are computed under torch.no_grad().",
    seen="microsoft/torchscale, torchscale/component/dilated_attention.py, scattering",
    of="longnet_attention",
)
class ConstantMixture(LongNetFormula):
    def mixed(self, scores, branches, value):
        outputs, logs = self.each(scores, branches, value)
        top = logs.detach().amax(0).masked_fill(logs.amax(0) == -math.inf, 0.0)
        shares = (logs.detach() - top).exp()
        return (outputs * shares).sum(0) / shares.sum(0).clamp(min=1e-30)


@mistake(
    "positions counted from the beginning of the sequence",
    rejected_by="a segment does not know where it stands",
    symptom="Right where the dilation divides the segment, as in all configurations of the paper.",
    cause="i % dilation where it should be the position in the segment.",
    of="longnet_attention",
)
class FromTheBeginning(LongNetFormula):
    def selected(self, length, segment, dilation, head):
        ids = torch.arange(length)
        chosen = ids % dilation == head % dilation
        return (ids[:, None] // segment == ids // segment) & chosen[:, None] & chosen


@mistake(
    "a causal branch that sees its segment",
    rejected_by="a token does not depend on later ones",
    symptom="The training loss is too good, and generation is poor.",
    cause="Segments of positions that are all selected look like one block; the causal mask was forgotten.",
    of="longnet_attention",
)
class SeesItsSegment(LongNetFormula):
    def __call__(self, *given, causal=True, **options):
        return super().__call__(*given, causal=False, **options)
