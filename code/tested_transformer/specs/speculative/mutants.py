"""The famous mistakes in speculative decoding: of the two distributions, of the replacement, of the cache."""

from __future__ import annotations

import torch
from torch.nn.functional import one_hot

from ...layers.cache import DecoderCache
from ..mistakes import Formula, mistake

# --- One round ------------------------------------------------------------------------------------


class Round(Formula):
    """The right round, cut into the steps that the mutants replace one at a time."""

    def __call__(self, target, draft, prefix_ids, length, probabilities, choose):
        """Draft, one call of the target, accept or replace."""
        ids, q = list(prefix_ids), []
        for _ in range(length):
            logits = draft(ids, 1)
            q.append(self.q(logits, probabilities)[0])
            ids.append(choose(self.sampled(logits, probabilities)[0]))
        p, drafted = self.p(target, ids, length, probabilities), ids[len(prefix_ids) :]
        for n, token in enumerate(drafted):
            accepted, other = self.check(n, token, p, q, choose)
            if not accepted:
                return [*drafted[:n], other]
        return [*drafted, choose(self.bonus(p, draft, ids, probabilities))]

    def sampled(self, logits, probabilities):
        """What a draft token is sampled from."""
        return probabilities(logits)

    def q(self, logits, probabilities):
        """The same, for the acceptance."""
        return probabilities(logits)

    def p(self, target, ids, length, probabilities):
        """The target's distributions, by one call."""
        return probabilities(target(ids, length + 1))

    def check(self, n, token, p, q, choose):
        """Whether a token is accepted, and what replaces it if not."""
        chance = (p[n][token] / q[n][token]).clamp(max=1)
        accepted = choose(torch.stack([1 - chance, chance])) == 1
        return accepted, None if accepted else choose(self.replacement(n, p, q))

    def replacement(self, n, p, q):
        """What the replacement of a rejected token is sampled from."""
        missing = (p[n] - q[n]).clamp(min=0)
        return missing / missing.sum()

    def bonus(self, p, draft, ids, probabilities):
        """What the token after a draft that was accepted whole is sampled from."""
        return p[-1]


SAME = "the output has the target's distribution"


@mistake(
    "q before the filters",
    rejected_by=SAME,
    symptom="With top-k the text differs from the target's own; without filters all is right.",
    cause="The draft is sampled after temperature and top-k, and q is computed before them.",
    seen="huggingface/transformers issue 47932",
    of="speculative_round",
)
class QBeforeTheFilters(Round):
    def q(self, logits, probabilities):
        return logits.softmax(-1)


@mistake(
    "a greedy draft with the q of sampling",
    rejected_by=SAME,
    symptom="The draft's favorite tokens are too frequent.",
    cause="The draft takes the most probable token, whose q is 1, and q is the softmax.",
    seen="jaymody/speculative-sampling issue 3; huggingface/transformers pull request 33534",
    of="speculative_round",
)
class GreedyDraft(Round):
    def sampled(self, logits, probabilities):
        every = probabilities(logits)
        return one_hot(every.argmax(-1), every.shape[-1]).to(every)


@mistake(
    "a draft sampled in bfloat16",
    rejected_by=SAME,
    symptom="The distribution is off in the third digit, which no text shows.",
    cause="Tokens are sampled from probabilities in bfloat16, and q is computed in float32.",
    seen="deepseek-ai/DeepSpec issue 31",
    of="speculative_round",
)
class DraftInBfloat16(Round):
    def sampled(self, logits, probabilities):
        return probabilities(logits).bfloat16().to(logits)


@mistake(
    "accepted by argmax at any temperature",
    rejected_by=SAME,
    symptom="The text is nearly greedy, whatever the temperature.",
    cause="A draft token is accepted where it is the target's most probable one: right at temperature 0 only.",
    seen="lablup/mlxcel issue 902",
    of="speculative_round",
)
class AcceptsTheArgmax(Round):
    def check(self, n, token, p, q, choose):
        accepted = token == int(p[n].argmax())
        return accepted, None if accepted else choose(p[n])


@mistake(
    "replaced from p",
    rejected_by=SAME,
    symptom="Tokens that the draft favors are too frequent: each has a second chance.",
    cause="A rejected token is replaced from p; what was accepted has to be subtracted: max(0, p - q).",
    seen="ShopeeLLM/Spec-RL issue 14",
    of="speculative_round",
)
class ReplacesFromP(Round):
    def replacement(self, n, p, q):
        return p[n]


@mistake(
    "a softmax of the residual",
    rejected_by=SAME,
    symptom="After a rejection any token may come, even one that the target never generates.",
    cause="max(0, p - q) is divided by its sum; a softmax turns each 0 into a probability.",
    seen="huggingface/transformers pull request 28508",
    of="speculative_round",
)
class SoftmaxOfTheResidual(Round):
    def replacement(self, n, p, q):
        return (p[n] - q[n]).clamp(min=0).softmax(-1)


@mistake(
    "the residual not normalized",
    rejected_by=SAME,
    symptom="The last token that can replace a rejected one comes too often.",
    cause="max(0, p - q) has a sum below 1, and a running sum that never reaches 1 ends at the last token.",
    of="speculative_round",
)
class ResidualNotNormalized(Round):
    def replacement(self, n, p, q):
        return (p[n] - q[n]).clamp(min=0)


@mistake(
    "replaced from the next row",
    rejected_by=SAME,
    symptom="After a rejection a token is missing: what comes continues the rejected token.",
    cause="Row n of p follows n drafted tokens; row n + 1 already has read the rejected one.",
    seen="openvinotoolkit/openvino.genai issue 4190",
    of="speculative_round",
)
class ReplacesFromTheNextRow(Round):
    def replacement(self, n, p, q):
        return p[n + 1]


@mistake(
    "the first draft token unchecked",
    rejected_by=SAME,
    symptom="The first token of each round is the draft's.",
    cause="Row 0 follows the prefix and checks token 0; the rows are read as if they began one later.",
    seen="ohdearquant/lattice issue 243",
    of="speculative_round",
)
class FirstUnchecked(Round):
    def check(self, n, token, p, q, choose):
        return (True, None) if n == 0 else super().check(n, token, p, q, choose)


@mistake(
    "the bonus token from q",
    rejected_by=SAME,
    symptom="The better the draft, the more tokens are the draft's own.",
    cause="After a draft accepted whole, the next token is sampled from the target's last row.",
    of="speculative_round",
)
class BonusFromQ(Round):
    def bonus(self, p, draft, ids, probabilities):
        return probabilities(draft(ids, 1))[0]


@mistake(
    "accepted where two samples agree",
    rejected_by="a draft equal to the target is accepted whole",
    symptom="The distribution is right; above temperature 0 few tokens are accepted.",
    cause="Sampling from p and comparing accepts with probability sum(p q), not sum(min(p, q)).",
    seen="ml-explore/mlx-lm pull request 1709",
    of="speculative_round",
)
class AcceptsEqualSamples(Round):
    def check(self, n, token, p, q, choose):
        other = choose(p[n])
        return other == token, other


@mistake(
    "one call of the target per token",
    rejected_by="one call of the target",
    symptom="Right, and slower than without a draft.",
    cause="The target reads the draft token by token; a causal model scores all of it at once.",
    of="speculative_round",
)
class OneCallPerToken(Round):
    def p(self, target, ids, length, probabilities):
        ends = range(len(ids) - length, len(ids) + 1)
        return probabilities(torch.cat([target(ids[:end], 1) for end in ends]))


# --- The cache ------------------------------------------------------------------------------------


class Cached:
    """The right cache in few lines."""

    def __init__(self, model):
        self.model, self.cache, self.read = model, DecoderCache(len(model.layers)), []

    @torch.no_grad()
    def __call__(self, ids, count):
        """The logits after each of the last `count` prefixes."""
        kept = min(self.known(ids), len(ids) - count)
        self.truncate(kept)
        logits = self.model(torch.tensor([ids[kept:]]), cache=self.cache)[0]
        self.read = list(ids)
        return logits[-count:]

    def known(self, ids):
        """How many of the tokens are in the cache."""
        pairs = enumerate(zip(self.read, ids, strict=False))
        return next((n for n, (a, b) in pairs if a != b), min(len(self.read), len(ids)))

    def truncate(self, length):
        """Forget what comes after."""
        self.cache.truncate(length)


@mistake(
    "rejected tokens stay in the cache",
    rejected_by="a rejected token leaves no trace",
    symptom="The text is right up to the first rejection; after it all tokens read what was rejected.",
    cause="The cache is not truncated, or its truncate does nothing.",
    seen="ml-explore/mlx-lm pull request 1109",
    of="cached_logits",
)
class KeepsTheRejected(Cached):
    def truncate(self, length):
        pass


@mistake(
    "one token too many removed",
    rejected_by="a rejected token leaves no trace",
    symptom="In the target wrong tokens; in the draft only a falling acceptance rate.",
    cause="The cache is cut by one token more than was rejected, and nobody reads that one again.",
    seen="lablup/mlxcel issue 994",
    of="cached_logits",
)
class RemovesOneTooMany(Cached):
    def truncate(self, length):
        rejected = self.cache.length > length
        self.cache.truncate(length - 1 if rejected and length else length)


@mistake(
    "the cache compared by length",
    rejected_by="a rejected token leaves no trace",
    symptom="A replacement is taken for the rejected token that had its position.",
    cause="As many tokens are known as both have; whether they are the same is not asked.",
    of="cached_logits",
)
class ComparesLengths(Cached):
    def known(self, ids):
        return min(len(self.read), len(ids))
