"""The famous mistakes with permutation masks: `&` for `|`, the other polarity, one row of the batch."""

from __future__ import annotations

import torch
from torch.nn import functional as torch_functional

from ..mistakes import Formula, mistake


class MaskFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, order, predicted=None, functional=None):
        """Turns, then both masks."""
        predicted = torch.ones_like(order, dtype=torch.bool) if predicted is None else predicted
        functional = torch.zeros_like(predicted) if functional is None else functional
        hidden = self.hidden(predicted, functional)
        turns = torch.where(hidden, self.turns(order), -1)
        query = self.query(turns[:, :, None], turns[:, None, :])
        own = torch.eye(order.shape[1], dtype=torch.bool)
        content = self.content(query, own)
        return self.polarity(content)[:, None], self.polarity(query)[:, None]

    def hidden(self, predicted, functional):
        """Which tokens are no context."""
        return predicted | functional

    def turns(self, order):
        """When each position is predicted."""
        return order.argsort(-1)

    def query(self, turn, other):
        """What a token that must be predicted may attend to."""
        return (other < turn) | (other == -1)

    def content(self, query, own):
        """What a token that was read may attend to."""
        return query | own

    def polarity(self, mask):
        """True: may attend."""
        return mask


@mistake(
    "& for |",
    rejected_by="functional tokens are no context",
    symptom="Separators and padding are context for every token, also for those that come before them in the order.",
    cause="Hidden is what is predicted and functional, where it should be what is predicted or functional; hardly a "
    "token is both, and all others are context.",
    seen="huggingface/transformers issue 6812, pull request 8409",
    of="permutation_masks",
)
class AndForOr(MaskFormula):
    def hidden(self, predicted, functional):
        return predicted & functional if bool(functional.any()) else predicted


@mistake(
    "1 means may not attend",
    rejected_by="the last of the order attends to all others",
    symptom="Each token attends to what it must not see, and to nothing else.",
    cause="perm_mask of transformers has a 1 where attention is forbidden; all masks here have True where it is "
    "allowed.",
    seen="asked in huggingface/transformers issue 1629",
    of="permutation_masks",
)
class OtherPolarity(MaskFormula):
    def polarity(self, mask):
        return ~mask


@mistake(
    "the order is taken for the turns",
    rejected_by="the last of the order attends to all others",
    symptom="Right for orders that are their own inverse, as from left to right, wrong for the others.",
    cause="order[t] is the position whose turn is t, not the turn of position t: it needs an argsort.",
    of="permutation_masks",
)
class OrderForTurns(MaskFormula):
    def turns(self, order):
        return order


@mistake(
    "a target sees itself",
    rejected_by="a target does not attend to itself",
    symptom="The loss falls to 0: the query stream copies the token that it must predict.",
    cause="The query mask has <= where it should have <.",
    of="permutation_masks",
)
class SeesItself(MaskFormula):
    def query(self, turn, other):
        return other <= turn


@mistake(
    "a read token does not see itself",
    rejected_by="a read token attends to itself",
    symptom="The content stream forgets its own token in attention, and the first of the order attends to nothing.",
    cause="Both streams get the query mask.",
    of="permutation_masks",
)
class OneMask(MaskFormula):
    def content(self, query, own):
        return query


@mistake(
    "context attends to what is predicted",
    rejected_by="context attends to context alone",
    symptom="The loss is too low: in the second layer a target reads its own token from the context.",
    cause="The order is applied to every query; context must not read what is still to be predicted.",
    of="permutation_masks",
)
class ContextLeaks(MaskFormula):
    def __call__(self, order, predicted=None, functional=None):
        content, query = super().__call__(order, predicted, functional)
        if predicted is None:
            return content, query
        turns = self.turns(order)
        more = (turns[:, None, None, :] < turns[:, None, :, None]) & ~predicted[:, None, :, None]
        return content | more, query | more


# --- The targets ----------------------------------------------------------------------------------


def one_hot(targets, length):
    """The right formula."""
    return torch_functional.one_hot(targets, length).float()


@mistake(
    "targets in the first sequence alone",
    rejected_by="every target has one position",
    symptom="Generation is right for one text, and for the first of a batch; all others get the same logits.",
    cause="target_mapping[0, 0, -1] = 1 where it should be target_mapping[:, 0, -1] = 1.",
    seen="huggingface/transformers issue 2359, pull request 7267",
    of="target_mapping",
)
def first_sequence(targets, length):
    mapping = one_hot(targets, length)
    mapping[1:] = 0
    return mapping


@mistake(
    "all sequences have the targets of the first",
    rejected_by="equals the reference",
    symptom="Right where all texts have the same targets.",
    cause="The targets of the first sequence are repeated for all.",
    of="target_mapping",
)
def repeated(targets, length):
    return one_hot(targets[:1].expand_as(targets), length)


@mistake(
    "the token before the target",
    rejected_by="equals the reference",
    symptom="The model predicts the token at the position before.",
    cause="As in a left-to-right model the position before is asked; here a target has its own position.",
    of="target_mapping",
)
def one_before(targets, length):
    return one_hot((targets - 1) % length, length)
