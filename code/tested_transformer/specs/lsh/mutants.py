"""The famous mistakes with LSH attention: shared buckets, the token itself, rounds that are averaged."""

from __future__ import annotations

import torch

from ..mistakes import Formula, mistake

# --- The hash -------------------------------------------------------------------------------------


class BucketsFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, vectors, rotations, *, key_mask=None):
        """Rotate, take the largest of both signs, put padding apart."""
        rotated = torch.einsum("bhld,hdrk->bhrlk", vectors, self.rotations(rotations))
        buckets = self.signed(rotated).argmax(-1)
        return buckets if key_mask is None else self.padded(buckets, key_mask, rotations.shape[-1])

    def rotations(self, rotations):
        """Those of each head and round."""
        return rotations

    def signed(self, rotated):
        """Both directions of each axis."""
        return torch.cat((rotated, -rotated), -1)

    def padded(self, buckets, key_mask, width):
        """A bucket for padding alone."""
        return torch.where(key_mask[:, None, None], buckets, 2 * width)


@mistake(
    "only one direction of each axis",
    rejected_by="opposite vectors have opposite buckets",
    symptom="Half as many buckets, twice as full: more pairs are lost at the ends of the chunks.",
    cause="The argmax of x R, where it should be that of [x R, -x R].",
    of="lsh_buckets",
)
class OneDirection(BucketsFormula):
    def signed(self, rotated):
        return rotated


@mistake(
    "the sign is forgotten",
    rejected_by="opposite vectors have opposite buckets",
    symptom="Vectors of opposite directions, whose score is the lowest of all, share a bucket.",
    cause="The argmax of |x R|: an axis is found, and which of its ends is not asked.",
    of="lsh_buckets",
)
class NoSign(BucketsFormula):
    def signed(self, rotated):
        return rotated.abs()


@mistake(
    "padding shares buckets with words",
    rejected_by="padding has a bucket of its own",
    symptom="The longer the padding, the fewer words a word reads: padding takes places in its chunks.",
    cause="Padding is hashed like any token, and sorted in between. It must come after all of them.",
    seen="huggingface/transformers pull request 5560",
    of="lsh_buckets",
)
class PaddingShares(BucketsFormula):
    def padded(self, buckets, key_mask, width):
        return buckets


@mistake(
    "one rotation for all rounds",
    rejected_by="equals the reference",
    symptom="More rounds cost more and find nothing new.",
    cause="Every round hashes with the matrix of the first.",
    of="lsh_buckets",
)
class OneRound(BucketsFormula):
    def rotations(self, rotations):
        return rotations[:, :, :1].expand_as(rotations)


@mistake(
    "one rotation for all heads",
    rejected_by="equals the reference",
    symptom="What one head misses the others are more likely to miss, too.",
    cause="The rotations of the first head are used for all.",
    of="lsh_buckets",
)
class OneRotationForHeads(BucketsFormula):
    def rotations(self, rotations):
        return rotations[:1].expand_as(rotations)


# --- Attention ------------------------------------------------------------------------------------


class LshFormula(Formula):
    """The right formula, round by round over all pairs, cut into steps."""

    def __call__(
        self, query, value, buckets, *, chunk_size, chunks_before=1, chunks_after=0, causal=False,
        key_mask=None, form="paper",
    ):  # fmt: skip
        """A softmax in each round, and all rounds in proportion to their sums."""
        order = buckets.argsort(dim=-1, stable=True)  # B H R L
        reach, paper = (chunks_before, chunks_after), form == "paper"
        times = self.times(buckets, order, chunk_size, reach, paper)  # B H R L L
        allowed = self.allowed(times > 0, causal, key_mask, order)
        scores = self.scores(query)
        eye = torch.eye(query.shape[2], dtype=torch.bool)
        scores = (
            torch.where(eye, self.own(scores), scores)[:, :, None] + times.to(scores.dtype).log()
        )
        exponentials = torch.where(allowed, scores, -torch.inf)
        top = exponentials.amax(-1, keepdim=True).amax(2, keepdim=True).clamp(min=-1e9).detach()
        exponentials = torch.exp(exponentials - top)  # B H R L L
        return self.in_place(self.combined(exponentials, value), order)

    def times(self, buckets, order, chunk_size, reach, paper):
        """How much each key counts for each query in each round."""
        rounds, length = buckets.shape[2:]
        places = order.argsort(-1) // chunk_size  # B H R L
        chunks = -(-length // chunk_size)
        if not paper:
            return ring(places, chunks, rounds, reach)
        found = self.near(places, chunks, *reach) & self.meet(buckets)
        return found / self.rounds_that_found(found)

    def near(self, places, chunks, before, after):
        """Which chunks a query reads."""
        steps = places[..., None, :] - places[..., None]
        return (steps >= -before) & (steps <= after)

    def meet(self, buckets):
        """Which tokens share a bucket."""
        return buckets[..., None] == buckets[..., None, :]

    def rounds_that_found(self, found):
        """By how much the weight of a key is divided."""
        return found.sum(2, keepdim=True).clamp(min=1).double()

    def allowed(self, found, causal, key_mask, order):
        """The masks by position and by padding."""
        if causal:
            found = found & self.past(found, order)
        return found if key_mask is None else found & self.real(key_mask)

    def past(self, found, order):
        """Keys up to the query's own position."""
        return torch.ones(found.shape[-2:], dtype=torch.bool).tril()

    def real(self, key_mask):
        """No padding."""
        return key_mask[:, None, None, None]

    def scores(self, query):
        """Products of each query with all normalized ones."""
        return query @ self.keys(query).mT / query.shape[-1] ** 0.5

    def keys(self, query):
        """The shared vectors, normalized."""
        return query * (query.square().mean(-1, keepdim=True) + 1e-6).rsqrt()

    def own(self, scores):
        """The score of a token with itself."""
        return torch.full_like(scores, -1e5)

    def combined(self, exponentials, value):
        """One denominator for all rounds."""
        total = exponentials.sum((2, 4), keepdim=True)
        return exponentials / total.where(total > 0, 1.0) @ value[:, :, None]  # B H R L dv

    def in_place(self, outputs, order):
        """They are in the order of the text already."""
        return outputs.sum(2)


def ring(places, chunks, rounds, reach):
    """How often a query finds each key when the chunks of all rounds follow each other in a ring."""
    places = places + chunks * torch.arange(rounds)[:, None]  # B H R L
    steps = places[:, :, None, :, None, :] - places[:, :, :, None, :, None]  # B H R R L L
    near = ((steps - s) % (chunks * rounds) == 0 for s in range(-reach[0], reach[1] + 1))
    return sum(each.sum(3) for each in near).double()


@mistake(
    "a token reads itself",
    rejected_by="a token that reads others does not read itself",
    symptom="Most of the weight stays with the token itself, and the layer hardly mixes anything.",
    cause="The usual causal mask lets a token read itself. With one projection for queries and keys, no "
    "other key of that norm can have a larger score.",
    of="lsh_attention",
)
class ReadsItself(LshFormula):
    def own(self, scores):
        return scores


@mistake(
    "a token never reads itself",
    rejected_by="a token that reads nobody else reads itself",
    symptom="NaN or zeros for the first token, and for every token that is alone in its buckets.",
    cause="The token itself is masked with -inf. It needs a low score that is finite, -1e5 in the original.",
    of="lsh_attention",
)
class NeverItself(LshFormula):
    def own(self, scores):
        return torch.full_like(scores, -torch.inf)


@mistake(
    "keys keep their norms",
    rejected_by="the norm of a key does not matter",
    symptom="The hash compares directions, the scores do not: a long key wins in whichever bucket it is.",
    cause="The queries serve as keys as they are, without the division by their norm.",
    of="lsh_attention",
)
class KeysKeepNorms(LshFormula):
    def keys(self, query):
        return query


@mistake(
    "rounds are averaged",
    rejected_by="equal scores have equal weights",
    symptom="A key that is alone in its round gets as much weight as all keys of another round together.",
    cause="The mean of the rounds' outputs. A round counts in proportion to its sum of exponentials.",
    of="lsh_attention",
)
class RoundsAveraged(LshFormula):
    def combined(self, exponentials, value):
        total = exponentials.sum(-1, keepdim=True)
        outputs = exponentials / total.where(total > 0, 1.0) @ value[:, :, None]
        return outputs / exponentials.shape[2]


@mistake(
    "a key counts in every round that finds it",
    rejected_by="equal scores have equal weights",
    symptom="More rounds do not converge to full attention: near keys are found, and counted, more often.",
    cause="The division by the number of rounds that find a key is left out, as transformers and trax do.",
    seen="huggingface/transformers, LSHSelfAttention, where weights are trained with it",
    of="lsh_attention",
)
class CountedInEveryRound(LshFormula):
    def rounds_that_found(self, found):
        return torch.ones(found.shape[-1], dtype=torch.float64)


@mistake(
    "a query reads its own chunk alone",
    rejected_by="a query reads its chunk and the neighbors",
    symptom="A bucket that is split by the end of a chunk loses its pairs, even if it is small.",
    cause="The chunk before is not read. With it, a bucket of one token more than a chunk is always whole.",
    seen="lucidrains/reformer-pytorch issue 101, for buckets of more than two chunks",
    of="lsh_attention",
)
class OwnChunkAlone(LshFormula):
    def near(self, places, chunks, before, after):
        return super().near(places, chunks, 0, 0)


@mistake(
    "the first chunk reads the last",
    rejected_by="a query reads its chunk and the neighbors",
    symptom="With padding the first chunk reads what it would not read without: a batch changes a text.",
    cause="The chunk before comes by a roll, which is a ring: it gives the last chunk to the first.",
    seen="huggingface/transformers, EfficientAttentionMixin._look_adjacent",
    of="lsh_attention",
)
class RingOfChunks(LshFormula):
    def near(self, places, chunks, before, after):
        steps = (places[..., None, :] - places[..., None]) % chunks
        return (steps <= after) | (steps >= chunks - before)


@mistake(
    "keys of other buckets are read",
    rejected_by="a query reads keys of its own bucket",
    symptom="Which keys are read depends on where the chunks end, and so on the other tokens.",
    cause="Nothing masks the keys of a chunk that have another bucket.",
    seen="huggingface/transformers, LSHSelfAttention, where weights are trained with it",
    of="lsh_attention",
)
class OtherBuckets(LshFormula):
    def meet(self, buckets):
        return torch.ones_like(buckets[..., None] == buckets[..., None, :])


@mistake(
    "causal by the sorted order",
    rejected_by="a token does not depend on later ones",
    symptom="Training looks too good: wherever buckets bring a later token to the front, it is read.",
    cause="The triangle is laid over the sorted tokens. The mask must compare positions in the text.",
    of="lsh_attention",
)
class CausalBySortedOrder(LshFormula):
    def past(self, found, order):
        places = order.argsort(-1)
        return places[..., None, :] <= places[..., None]


@mistake(
    "LSH attention reads padding",
    rejected_by="padding is not read",
    symptom="A text gets other outputs in a padded batch than alone.",
    cause="The padding's bucket is the last one. At the border of a chunk it is read all the same, unless "
    "a mask forbids it.",
    of="lsh_attention",
)
class PaddingRead(LshFormula):
    def real(self, key_mask):
        return torch.ones_like(key_mask)[:, None, None, None]


@mistake(
    "outputs stay in the sorted order",
    rejected_by="a query reads keys of its own bucket",
    symptom="Shapes and sizes are right, and nothing can be learned.",
    cause="Queries, keys and values are sorted, and the outputs are not sorted back.",
    of="lsh_attention",
)
class StaysSorted(LshFormula):
    def in_place(self, outputs, order):
        return outputs.take_along_dim(order[..., None], 3).sum(2)
