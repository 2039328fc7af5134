"""The famous mistakes with retrieval: a chunk that reads its own neighbors, a shift off by one, neighbors by chance."""

from __future__ import annotations

import torch
from torch.nn import functional

from ..mistakes import Formula, mistake

# --- Which chunk a position reads -----------------------------------------------------------------


def newest_complete(position_ids, chunk_size):
    """The right formula."""
    return (position_ids + 1).div(chunk_size, rounding_mode="floor") - 1


@mistake(
    "a chunk reads its own neighbors",
    rejected_by="no neighbor knows the future",
    symptom="The loss is far too low in training, and generation, which has no future, is no better for it.",
    cause="Neighbors are found with all tokens of their chunk, so its first tokens would read of its last ones.",
    seen="asked in lucidrains/RETRO-pytorch issue 3",
    of="chunk_read_by",
)
def own_chunk(position_ids, chunk_size):
    """Position t reads the neighbors of the chunk that it is in."""
    return position_ids.div(chunk_size, rounding_mode="floor")


@mistake(
    "the last token of a chunk waits",
    rejected_by="neighbors are read as soon as they may be",
    symptom="The first token after each chunk is predicted without what was just retrieved.",
    cause="The last token of a chunk has seen all of it: it may read its neighbors, and it predicts the next chunk.",
    of="chunk_read_by",
)
def last_waits(position_ids, chunk_size):
    """Position t reads the neighbors of the chunk before its own."""
    return position_ids.div(chunk_size, rounding_mode="floor") - 1


@mistake(
    "read one token early",
    rejected_by="no neighbor knows the future",
    symptom="The last token but one of each chunk reads of the last one: one position in m leaks.",
    cause="The shift is m - 1 tokens. With m - 2, neighbors are read before their chunk is complete.",
    of="chunk_read_by",
)
def too_early(position_ids, chunk_size):
    """The shift is one too small."""
    return (position_ids + 2).div(chunk_size, rounding_mode="floor") - 1


@mistake(
    "the division rounds toward zero",
    rejected_by="nothing is read before the first chunk is complete",
    symptom="The first tokens read the neighbors of chunk 0, before that chunk is complete.",
    cause="(t + 1 - m) / m is negative for the first tokens, and rounds to 0 instead of down to -1.",
    of="chunk_read_by",
)
def rounds_to_zero(position_ids, chunk_size):
    """Integer division as C has it."""
    return (position_ids + 1 - chunk_size).div(chunk_size, rounding_mode="trunc")


# --- Chunked cross-attention ----------------------------------------------------------------------


class ChunkedFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, query, key, value, chunk_size, mask=None):
        """Each token's own keys and values, gathered; then attention of one query each."""
        length = query.shape[2]
        if not key.shape[2]:
            return query.new_zeros(*query.shape[:3], value.shape[-1])
        chunks = self.chunks(torch.arange(length), chunk_size, key.shape[2])  # L
        own = chunks.clamp(min=0)
        scores = (query[:, :, :, None] * key[:, :, own]).sum(-1) * self.scale(query)  # B H L R
        weights = self.weights(scores, None if mask is None else mask[:, None, own])
        output = (weights[..., None] * value[:, :, own]).sum(-2)  # B H L dv
        return self.first_tokens(output, chunks)

    def chunks(self, position_ids, chunk_size, num_chunks):
        """The chunk whose neighbors each token reads."""
        return newest_complete(position_ids, chunk_size)

    def scale(self, query):
        """Of the scores."""
        return query.shape[-1] ** -0.5

    def weights(self, scores, mask):
        """A softmax over all neighbors' tokens; zeros where none may be read."""
        if mask is None:
            return scores.softmax(-1)
        weights = scores.masked_fill(~mask, -1e30).softmax(-1)
        return torch.where(mask, weights, 0.0)

    def first_tokens(self, output, chunks):
        """Zeros before the first chunk is complete."""
        return torch.where((chunks >= 0)[:, None], output, 0.0)


@mistake(
    "each chunk attends to its own neighbors",
    rejected_by="neighbors are read by their last token and later ones",
    symptom="Change the last token of a chunk, retrieve again, and the outputs at its first token change.",
    cause="The sequence is split without a shift of m - 1 tokens, so chunk u reads what was retrieved with all of it.",
    seen="asked in lucidrains/RETRO-pytorch issue 3",
    of="chunked_cross_attention",
)
class OwnNeighbors(ChunkedFormula):
    def chunks(self, position_ids, chunk_size, num_chunks):
        return (position_ids // chunk_size).clamp(max=num_chunks - 1)


@mistake(
    "the shift goes the other way",
    rejected_by="neighbors are read by their last token and later ones",
    symptom="All tokens but the last ones read the neighbors of a later chunk.",
    cause="The sequence is padded at its beginning and cut at its end, where it must lose its first m - 1 tokens.",
    seen="asked in lucidrains/RETRO-pytorch issue 35: which end is shifted and padded?",
    of="chunked_cross_attention",
)
class OtherWay(ChunkedFormula):
    def chunks(self, position_ids, chunk_size, num_chunks):
        return ((position_ids + chunk_size - 1) // chunk_size).clamp(max=num_chunks - 1)


@mistake(
    "a shift of a whole chunk",
    rejected_by="the last token of a chunk reads its neighbors",
    symptom="No leak, and a worse model: the first token of each chunk is predicted without its neighbors.",
    cause="The shift is m - 1: the last token of a chunk may read the neighbors, for it predicts the next chunk.",
    of="chunked_cross_attention",
)
class WholeChunk(ChunkedFormula):
    def chunks(self, position_ids, chunk_size, num_chunks):
        return position_ids // chunk_size - 1


@mistake(
    "the first tokens read the first neighbors",
    rejected_by="the first m - 1 tokens read nothing",
    symptom="A leak in the first chunk alone; in a long sequence no loss shows it.",
    cause="A negative chunk number was clamped to 0, or used as an index; these tokens get zeros.",
    of="chunked_cross_attention",
)
class FirstTokensRead(ChunkedFormula):
    def first_tokens(self, output, chunks):
        return output


@mistake(
    "a sigmoid for each neighbor token",
    rejected_by="the weights sum to 1",
    symptom="The more neighbors, the larger the output: the weights do not compete.",
    cause="The softmax runs over all tokens of all neighbors of the chunk together. A sigmoid does not.",
    of="chunked_cross_attention",
)
class NoCompetition(ChunkedFormula):
    def weights(self, scores, mask):
        weights = scores.sigmoid()
        return weights if mask is None else torch.where(mask, weights, 0.0)


@mistake(
    "padding of the neighbors is read",
    rejected_by="masked neighbor tokens do not matter",
    symptom="A short document's continuation is padding, and what is retrieved is diluted by it.",
    cause="The mask of the neighbors is not passed on.",
    of="chunked_cross_attention",
)
class PaddingIsRead(ChunkedFormula):
    def weights(self, scores, mask):
        return scores.softmax(-1)


@mistake(
    "unscaled scores of neighbors",
    rejected_by="equals the reference",
    symptom="Attention to the neighbors is nearly one-hot from the beginning.",
    cause="The scores are not divided by the square root of d.",
    of="chunked_cross_attention",
)
class Unscaled(ChunkedFormula):
    def scale(self, query):
        return 1.0


# --- Nearest neighbors ----------------------------------------------------------------------------


class NearestFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, queries, keys, num_neighbors, *, allowed=None):
        """Distances, infinite where not allowed; the smallest ones."""
        distance = self.distance(queries, keys)  # Q S
        if allowed is not None:
            distance = self.restricted(distance, allowed)
        order = distance.argsort(dim=-1, stable=True)
        nothing = distance.gather(-1, order) == torch.inf
        order = order.masked_fill(nothing, -1)[:, :num_neighbors]
        return functional.pad(order, (0, num_neighbors - order.shape[1]), value=-1)

    def distance(self, queries, keys):
        """Squared L2."""
        return (queries[:, None] - keys).square().sum(-1)

    def restricted(self, distance, allowed):
        """What is not allowed is infinitely far."""
        return distance.masked_fill(~allowed, torch.inf)


@mistake(
    "the farthest keys",
    rejected_by="a key is its own nearest neighbor",
    symptom="What is retrieved has nothing to do with the chunk.",
    cause="A similarity is sorted downward, a distance upward.",
    of="nearest_neighbors",
)
class Farthest(NearestFormula):
    def distance(self, queries, keys):
        return -super().distance(queries, keys)


@mistake(
    "the largest dot product as the distance",
    rejected_by="a key is its own nearest neighbor",
    symptom="A few keys of a large norm are everybody's neighbors.",
    cause="|q - k|^2 = |q|^2 - 2 q.k + |k|^2: without |k|^2 the order is another, unless all keys have one norm.",
    of="nearest_neighbors",
)
class DotProduct(NearestFormula):
    def distance(self, queries, keys):
        return -queries @ keys.mT


@mistake(
    "neighbors from the same document",
    rejected_by="what is not allowed is not returned",
    symptom="In training, every chunk finds itself, and its continuation is the text to be predicted.",
    cause="The database holds the training text. Chunks of the same document have to be left out of the search.",
    of="nearest_neighbors",
)
class SameDocument(NearestFormula):
    def restricted(self, distance, allowed):
        return distance


@mistake(
    "filtered after the search",
    rejected_by="as many neighbors as are allowed",
    symptom="Chunks of long documents get fewer neighbors than there are: their own chunks took the first places.",
    cause="The k nearest are found first, and those of the same document are dropped from them.",
    of="nearest_neighbors",
)
class FilteredAfter(NearestFormula):
    def __call__(self, queries, keys, num_neighbors, *, allowed=None):
        found = super().__call__(queries, keys, num_neighbors)
        if allowed is None:
            return found
        good = allowed.gather(-1, found.clamp(min=0)) & (found >= 0)
        order = (~good).long().argsort(dim=-1, stable=True)
        return found.masked_fill(~good, -1).gather(-1, order)
