"""The famous mistakes in making, joining and applying masks."""

from __future__ import annotations

import math

import torch

from ..mistakes import Mutant, mistake


def _back(num_queries, num_keys):
    """How many steps key j lies before query i, the last query standing at the last key."""
    return torch.arange(num_queries)[:, None] + num_keys - num_queries - torch.arange(num_keys)


# --- masked_softmax -------------------------------------------------------------------------------


@mistake(
    "-1e6 in the masked softmax",
    rejected_by="RuntimeError",
    symptom="Overflow in float16; a score under -1e6 loses against the keys that are hidden.",
    cause="A large finite constant in place of -inf.",
    seen="source notes, 003:38 and 000:137; d2l, annotated-transformer, UvA notebooks",
    of="masked_softmax",
)
def filled_with_a_constant(scores, allowed):
    """-1e6 for -inf."""
    if allowed is None:
        return scores.softmax(-1)
    return scores.masked_fill(~allowed, -1e6).softmax(-1)


@mistake(
    "the dtype's lowest number in the masked softmax",
    rejected_by="a fully masked row is zero",
    symptom="A query without keys attends to all of them alike, padding and future included.",
    cause="torch.finfo(dtype).min in place of -inf: equal scores give equal weights.",
    seen="pytorch issue 103963; d2l pull request 2423",
    of="masked_softmax",
)
def filled_with_the_lowest(scores, allowed):
    """The dtype's lowest number for -inf."""
    if allowed is None:
        return scores.softmax(-1)
    return scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(-1)


@mistake(
    "a row emptied to NaN",
    rejected_by="a fully masked row is zero",
    symptom="One row without keys makes the loss NaN.",
    cause="The softmax of nothing but -inf is 0/0.",
    seen="pytorch issue 103963",
    of="masked_softmax",
)
def emptied_to_nan(scores, allowed):
    """No care for rows that the mask empties."""
    if allowed is None:
        return scores.softmax(-1)
    return scores.masked_fill(~allowed, -math.inf).softmax(-1)


@mistake(
    "NaN cleared after an added penalty",
    rejected_by="a fully masked row has no gradient",
    symptom="The weights are right; the first backward pass gives NaN.",
    cause="-inf is added to the scores and the row cleared only after the softmax: its derivative "
    "is NaN, and the addition hands it on.",
    seen="pytorch issue 103963",
    of="masked_softmax",
)
def cleared_after_an_added_penalty(scores, allowed):
    """Add -inf, and clear the NaN after the softmax."""
    if allowed is None:
        return scores.softmax(-1)
    penalty = torch.zeros_like(scores).masked_fill(~allowed, -math.inf)
    return (scores + penalty).softmax(-1).masked_fill(~allowed.any(-1, keepdim=True), 0.0)


@mistake(
    "renormalized without a guard",
    rejected_by="hidden keys do not drown the others",
    symptom="NaN in fully masked rows, and in rows whose hidden keys have by far the largest scores.",
    cause="Zero and divide by the row's sum, which is 0 there.",
    of="masked_softmax",
)
def renormalized_without_a_guard(scores, allowed):
    """Softmax of everything, zero what is hidden, divide by what is left."""
    if allowed is None:
        return scores.softmax(-1)
    kept = scores.softmax(-1) * allowed
    return kept / kept.sum(-1, keepdim=True)


@mistake(
    "zeroed and not renormalized",
    rejected_by="the allowed weights sum to 1",
    symptom="Rows sum to less than 1, and what is hidden still decides by how much.",
    cause="The mask multiplies the weights after the softmax.",
    of="masked_softmax",
)
def zeroed_and_left(scores, allowed):
    """Softmax of everything, zero what is hidden, and stop there."""
    return scores.softmax(-1) if allowed is None else scores.softmax(-1) * allowed


@mistake(
    "the scores multiplied by the mask",
    rejected_by="hidden keys weigh nothing",
    symptom="A hidden key has the weight of a score of 0, often more than an allowed one.",
    cause="0 is a score like any other: exp(0) = 1. The score that hides is -inf.",
    of="masked_softmax",
)
def scores_multiplied(scores, allowed):
    """Multiply the scores by the mask: a hidden score becomes 0."""
    return scores.softmax(-1) if allowed is None else (scores * allowed).softmax(-1)


@mistake(
    "the boolean mask added",
    rejected_by="hidden keys weigh nothing",
    symptom="Every key is seen; allowed ones weigh e times more.",
    cause="True + score is score + 1. Only a float mask of 0 and -inf may be added.",
    of="masked_softmax",
)
def mask_added(scores, allowed):
    """Add the boolean mask to the scores: True is 1."""
    return scores.softmax(-1) if allowed is None else (scores + allowed).softmax(-1)


@mistake(
    "True read as hide",
    rejected_by="hidden keys weigh nothing",
    symptom="The padding is read and the words are not.",
    cause="masked_fill(mask, -inf) fills where the mask is True; a mask of allowed keys needs ~.",
    seen="source notes, 001:1010 against 001:1017",
    of="masked_softmax",
)
def hides_where_true(scores, allowed):
    """Read True as hide."""
    if allowed is None:
        return scores.softmax(-1)
    empty = allowed.all(-1, keepdim=True)
    filled = scores.masked_fill(allowed, -math.inf).masked_fill(empty, 0.0)
    return filled.softmax(-1).masked_fill(empty, 0.0)


@mistake(
    "filled in place",
    rejected_by="the inputs stay as they were",
    symptom="The caller's scores hold -inf afterwards; a second mask finds them hidden already.",
    cause="masked_fill_ with an underscore changes its tensor.",
    of="masked_softmax",
)
def filled_in_place(scores, allowed):
    """Write -inf into the caller's scores."""
    if allowed is None:
        return scores.softmax(-1)
    empty = ~allowed.any(-1, keepdim=True)
    data = scores.detach() if scores.requires_grad else scores
    data.masked_fill_(~allowed, -math.inf)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)


# --- Causal and window ----------------------------------------------------------------------------


@mistake(
    "the part to hide returned as the part to keep",
    rejected_by="the present and the past are seen",
    symptom="Each query sees only its future, the last one nothing.",
    cause="A lower triangle of True means keep here and hide there; the sides were mixed up.",
    seen="source notes, 001:1568",
    of="causal_mask",
)
def causal_hides_the_past(num_queries, num_keys):
    """The part to hide, taken for the part to keep."""
    return _back(num_queries, num_keys) < 0


@mistake(
    "tril of a rectangle",
    rejected_by="the present and the past are seen",
    symptom="With 1 query and 7 keys only key 0 is seen.",
    cause="tril counts from the top left corner; the last query stands at the last key.",
    seen="pytorch issues 144858 and 108108; x-transformers issue 187",
    of="causal_mask",
)
def causal_top_left(num_queries, num_keys):
    """tril of a rectangle."""
    return torch.ones(num_queries, num_keys, dtype=torch.bool).tril()


@mistake(
    "the diagonal hidden",
    rejected_by="the present and the past are seen",
    symptom="No token sees itself and the first row is empty.",
    cause="triu(ones) hides the diagonal too; triu(ones, diagonal=1) is meant.",
    of="causal_mask",
)
def causal_without_itself(num_queries, num_keys):
    """j < i."""
    return _back(num_queries, num_keys) > 0


@mistake(
    "one step into the future",
    rejected_by="the future is hidden",
    symptom="The next token is visible: exactly the one that is to be predicted.",
    cause="Off by one: j <= i + 1 where j <= i is meant.",
    of="causal_mask",
)
def causal_one_ahead(num_queries, num_keys):
    """j <= i + 1."""
    return _back(num_queries, num_keys) >= -1


@mistake(
    "a mask of uint8",
    rejected_by="the right shape and dtype",
    symptom="RuntimeError in masked_fill and in scaled_dot_product_attention; ~mask gives 254 and 255.",
    cause="A mask is boolean; 0 and 1 of dtype uint8 are numbers.",
    seen="source notes, 001:1026",
    of="causal_mask",
)
def causal_uint8(num_queries, num_keys):
    """Ones and zeros as bytes."""
    return (_back(num_queries, num_keys) >= 0).to(torch.uint8)


@mistake(
    "keys counted as queries",
    rejected_by="the right shape and dtype",
    symptom="Works in training, where L = S; the first cached step raises or broadcasts.",
    cause="A square mask of the query length.",
    of="causal_mask",
)
def causal_square(num_queries, num_keys):
    """As if there were as many keys as queries."""
    return torch.ones(num_queries, num_queries, dtype=torch.bool).tril()


@mistake(
    "a window that reaches w keys away",
    rejected_by="the window ends where it should",
    symptom="Query 9 sees key 6 with a window of 3; a cache of 3 keys no longer holds it.",
    cause="<= in place of <: the own place is one of the w.",
    of="window_mask",
)
def window_wider(num_queries, num_keys, *, window):
    """<= for <."""
    return _back(num_queries, num_keys).abs() <= window


@mistake(
    "a window counted from the first key",
    rejected_by="the keys inside are seen",
    symptom="With a cache the window stands still at the beginning of the text.",
    cause="|i - j| in place of |i + S - L - j|.",
    of="window_mask",
)
def window_from_the_first_key(num_queries, num_keys, *, window):
    """|i - j| < w, whatever the lengths."""
    return (torch.arange(num_queries)[:, None] - torch.arange(num_keys)).abs() < window


@mistake(
    "a window of the past only",
    rejected_by="the keys inside are seen",
    symptom="An encoder with this window reads in one direction.",
    cause="A causal window where a plain one is asked for.",
    of="window_mask",
)
def window_of_the_past(num_queries, num_keys, *, window):
    """The last w keys only."""
    back = _back(num_queries, num_keys)
    return (back >= 0) & (back < window)


@mistake(
    "a window of w keys in all",
    rejected_by="the keys inside are seen",
    symptom="Half the reach.",
    cause="Two conventions: the Longformer paper counts both sides together.",
    of="window_mask",
)
def window_halved(num_queries, num_keys, *, window):
    """w keys in all, half of them on each side."""
    return _back(num_queries, num_keys).abs() <= window // 2


# --- Padding --------------------------------------------------------------------------------------


def _inside(lengths, num_keys):
    return torch.arange(num_keys) < lengths[:, None]


@mistake(
    "the lengths on the query axis",
    rejected_by="the right shape and dtype",
    symptom="Shape error; with L = S silently wrong: words read padding, padded rows go empty.",
    cause="(B, 1, S, 1) for (B, 1, 1, S), or the two sequences handed over in the wrong order.",
    seen="source notes, 001:1491",
    of="padding_mask",
)
def padding_of_queries(lengths, num_keys):
    """The lengths on the query axis."""
    return _inside(lengths, num_keys)[:, None, :, None]


@mistake(
    "padding marked as allowed",
    rejected_by="words are seen, padding is not",
    symptom="Every query reads the padding and nothing else.",
    cause="A mask of what is padding, used where a mask of what is allowed is expected.",
    seen="source notes, 001:1010 against 001:1017",
    of="padding_mask",
)
def padding_kept(lengths, num_keys):
    """True marks the padding."""
    return ~_inside(lengths, num_keys)[:, None, None]


@mistake(
    "one padded key too many",
    rejected_by="words are seen, padding is not",
    symptom="The first padding token is read.",
    cause="j <= length where j < length is meant.",
    of="padding_mask",
)
def padding_one_key_more(lengths, num_keys):
    """<= for <."""
    return (torch.arange(num_keys) <= lengths[:, None])[:, None, None]


@mistake(
    "a padding mask of rank 2",
    rejected_by="the right shape and dtype",
    symptom="(B, S) is taken for (L, S): an error, or other samples' padding where B = L.",
    cause="The axes for heads and queries are missing: kept[:, None, None].",
    of="padding_mask",
)
def padding_rank_two(lengths, num_keys):
    """(B, S), without axes for heads and queries."""
    return _inside(lengths, num_keys)


@mistake(
    "padding looked for on the left",
    rejected_by="words are seen, padding is not",
    symptom="The first words of each short sample are hidden, its padding is read.",
    cause="The batch is padded on the right, the mask made for padding on the left.",
    of="padding_mask",
)
def padding_on_the_left(lengths, num_keys):
    """The last keys are the words."""
    return (torch.arange(num_keys) >= num_keys - lengths[:, None])[:, None, None]


@mistake(
    "0 taken for padding",
    rejected_by="words are seen, padding is not",
    symptom="With another padding id the padding is read, and the word 0 is hidden.",
    cause="tokens != 0: the id is assumed, not passed.",
    seen="source notes, 001:1017",
    of="padding_mask_from_tokens",
)
def tokens_pad_zero(tokens, pad_id):
    """Take 0 for padding."""
    return (tokens != 0)[:, None, None]


@mistake(
    "padding tokens marked as allowed",
    rejected_by="words are seen, padding is not",
    symptom="Every query reads the padding and nothing else.",
    cause="tokens == pad_id marks what to hide; the text beside it says the opposite.",
    seen="source notes, 001:1017 against 001:1010",
    of="padding_mask_from_tokens",
)
def tokens_inverted(tokens, pad_id):
    """True marks the padding."""
    return (tokens == pad_id)[:, None, None]


@mistake(
    "padding counted, not found",
    rejected_by="words are seen, padding is not",
    symptom="Right for padding at the end, wrong for padding at the front.",
    cause="The number of words is taken for their places.",
    of="padding_mask_from_tokens",
)
def tokens_counted(tokens, pad_id):
    """Count the words, then take the first so many."""
    return _inside((tokens != pad_id).sum(1), tokens.shape[1])[:, None, None]


@mistake(
    "lengths counted on the wrong axis",
    rejected_by="the right shape and dtype",
    symptom="As many lengths as there are columns; right shapes when B = S.",
    cause="sum(0) counts down the batch, sum(1) along each sample.",
    of="padding_mask_from_tokens",
)
def tokens_counted_down_the_batch(tokens, pad_id):
    """Count along the wrong axis."""
    return _inside((tokens != pad_id).sum(0), tokens.shape[1])[:, None, None]


@mistake(
    "padding tokens on the query axis",
    rejected_by="the right shape and dtype",
    symptom="Words read padding; padded queries become fully masked rows.",
    cause="The mask must stand on the key axis: (B, 1, 1, S).",
    seen="source notes, 001:1491 (arguments reversed)",
    of="padding_mask_from_tokens",
)
def tokens_as_queries(tokens, pad_id):
    """The words on the query axis."""
    return (tokens != pad_id)[:, None, :, None]


PADDED_WITH_UNKNOWN = Mutant(
    "padded with the unknown word",
    None,
    rejected_by="gallery only",
    symptom="Padding is read and learned as a word, although the mask is right.",
    cause="The batch is filled with UNK while mask and embedding wait for PAD. No judge of masks "
    "can see it: the tokens themselves are wrong.",
    seen="source notes, 001:1537",
    of="padding_mask_from_tokens",
)


# --- Prefix, documents, combining -----------------------------------------------------------------


def _prefix(prefix_lengths, num_tokens):
    return _inside(prefix_lengths, num_tokens)[:, None, None]


@mistake(
    "the prefix applied to rows",
    rejected_by="the future is hidden beyond the prefix",
    symptom="The prefix reads the answer that it is to bring forth; the answer sees no more.",
    cause="i < p where j < p is meant: the prefix is a set of keys.",
    of="prefix_mask",
)
def prefix_of_rows(prefix_lengths, num_tokens):
    """The first queries see everything."""
    past = _back(num_tokens, num_tokens) >= 0
    return _prefix(prefix_lengths, num_tokens).mT | past


@mistake(
    "the prefix without the past",
    rejected_by="the present and the past are seen",
    symptom="Generated tokens do not see each other: the second word forgets the first.",
    cause="The causal half of the mask is missing.",
    of="prefix_mask",
)
def prefix_without_past(prefix_lengths, num_tokens):
    """Only the prefix is seen."""
    inside = _prefix(prefix_lengths, num_tokens)
    return inside.expand(-1, -1, num_tokens, -1).clone()


@mistake(
    "prefix AND past",
    rejected_by="the prefix is seen",
    symptom="A causal mask that ends at the prefix.",
    cause="& where | is meant: a key is seen if it is in the prefix OR in the past.",
    of="prefix_mask",
)
def prefix_and_past(prefix_lengths, num_tokens):
    """AND for OR."""
    return _prefix(prefix_lengths, num_tokens) & (_back(num_tokens, num_tokens) >= 0)


@mistake(
    "a prefix one too long",
    rejected_by="the future is hidden beyond the prefix",
    symptom="The first token of the answer is seen by the prefix that predicts it.",
    cause="j <= p where j < p is meant.",
    of="prefix_mask",
)
def prefix_one_longer(prefix_lengths, num_tokens):
    """<= for <."""
    return prefix_lengths[:, None, None, None].ge(torch.arange(num_tokens)) | (
        _back(num_tokens, num_tokens) >= 0
    )


@mistake(
    "documents compared along one axis only",
    rejected_by="other documents are hidden, the own is seen",
    symptom="All queries see the first document, whichever they belong to.",
    cause="ids == ids[:, :1] compares keys with one token; every pair must be compared.",
    of="document_mask",
)
def documents_of_keys(document_ids):
    """Compare with the first token's document only."""
    same = document_ids == document_ids[:, :1]
    return same[:, None, None].expand(-1, -1, document_ids.shape[1], -1).clone()


@mistake(
    "earlier documents seen",
    rejected_by="other documents are hidden, the own is seen",
    symptom="Packed documents read the ones before them: chance neighbors become context.",
    cause=">= where == is meant, or a causal mask alone.",
    of="document_mask",
)
def documents_before(document_ids):
    """See earlier documents too."""
    return (document_ids[:, :, None] >= document_ids[:, None, :])[:, None]


@mistake(
    "documents of the first sample",
    rejected_by="each row has its own mask",
    symptom="Right for the first row of the batch.",
    cause="One mask is made and used for the whole batch.",
    of="document_mask",
)
def documents_of_the_first_sample(document_ids):
    """One mask for the batch."""
    first = document_ids[:1]
    same = (first[:, :, None] == first[:, None, :])[:, None]
    return same.expand(len(document_ids), -1, -1, -1).clone()


@mistake(
    "documents held apart from themselves",
    rejected_by="other documents are hidden, the own is seen",
    symptom="A token sees every document but its own.",
    cause="The mask is inverted: != where == is meant.",
    of="document_mask",
)
def documents_apart(document_ids):
    """!= for ==."""
    return (document_ids[:, :, None] != document_ids[:, None, :])[:, None]


@mistake(
    "boolean masks added",
    rejected_by="what one mask hides stays hidden",
    symptom="Causal + padding hides almost nothing: future words and past padding are both seen.",
    cause="+ on booleans is OR. For masks of what to hide that is right, for masks of what to "
    "keep it must be AND: &.",
    seen="source notes, 001:1459, on masks of what to hide, where it is right",
    of="combine_masks",
)
def joined_with_or(first, second, third):
    """OR: what any mask allows."""
    masks = [mask for mask in (first, second, third) if mask is not None]
    return sum(masks[1:], masks[0])  # boolean + boolean is OR


@mistake(
    "masks of uint8 added",
    rejected_by="the right shape and dtype",
    symptom="Entries of 2, which `mask == 1` does not find; or a RuntimeError where one is boolean.",
    cause="True + True is 2 in bytes.",
    seen="source notes, 001:1026 and 001:1459",
    of="combine_masks",
)
def added_as_bytes(first, second, third):
    """The masks as bytes, added."""
    masks = [mask.to(torch.uint8) for mask in (first, second, third) if mask is not None]
    return sum(masks[1:], masks[0])


@mistake(
    "the last mask wins",
    rejected_by="what one mask hides stays hidden",
    symptom="The causal mask is lost as soon as a padding mask is given.",
    cause="mask = padding replaces the mask that was there.",
    of="combine_masks",
)
def the_last_wins(first, second, third):
    """Only the last mask counts."""
    masks = [mask for mask in (first, second, third) if mask is not None]
    return torch.broadcast_tensors(*masks)[-1].clone()


@mistake(
    "allowed where the masks agree",
    rejected_by="what one mask hides stays hidden",
    symptom="What both hide is seen.",
    cause="== where & is meant: two times False is equal, too.",
    of="combine_masks",
)
def agreeing(first, second, third):
    """Allow where the masks agree."""
    masks = [mask for mask in (first, second, third) if mask is not None]
    joined = masks[0]
    for mask in masks[1:]:
        joined = joined == mask
    return joined.clone()
