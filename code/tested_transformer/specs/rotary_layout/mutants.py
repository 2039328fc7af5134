"""The famous mistakes in moving weights between the layouts of rotary positions."""

from __future__ import annotations

from ..mistakes import mistake


def to_halves(weight, num_heads):
    """In each head: the first members of all pairs, then the second ones."""
    return weight.unflatten(0, (num_heads, -1, 2)).transpose(1, 2).flatten(0, 2)


@mistake(
    "heads ignored",
    rejected_by="rows stay in their head",
    symptom="Right for one head; with more, features move from head to head.",
    cause="The permutation is applied to all rows at once, as if they were one head.",
)
def one_head(weight, num_heads):
    """As one head."""
    return to_halves(weight, 1)


@mistake(
    "permuted in the wrong direction",
    rejected_by="equals the reference",
    symptom="Right for heads of two and four features, where the permutation is its own inverse.",
    cause="This goes from halves to interleaved.",
)
def backwards(weight, num_heads):
    """From halves to interleaved."""
    return weight.unflatten(0, (num_heads, 2, -1)).transpose(1, 2).flatten(0, 2)


@mistake(
    "pairs and members left in place",
    rejected_by="equals the reference",
    symptom="The converted model writes a few sensible tokens, then gibberish.",
    cause="A reshape alone moves nothing: the axes have to be transposed.",
)
def reshaped(weight, num_heads):
    """The weight as it was."""
    return weight.unflatten(0, (num_heads, 2, -1)).flatten(0, 2)
