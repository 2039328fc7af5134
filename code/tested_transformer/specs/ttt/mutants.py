"""The famous mistakes with TTT-Linear: errors of the wrong moment, step sizes of the wrong token."""

from __future__ import annotations

import torch

from ..mistakes import Formula, mistake


class TttFormula(Formula):
    """The right formula, in its dual form, cut into the steps that the mutants replace one at a time."""

    def __call__(self, query, key, value, step_size, *, state=None, batch_size=16):
        """Mini-batch by mini-batch."""
        if state is None:
            state = value.new_zeros(*query.shape[:2], query.shape[-1], value.shape[-1])
        outputs = [value[:, :, :0]]
        parts = (each.split(batch_size, 2) for each in (query, key, value, step_size))
        for q, k, v, eta in zip(*parts, strict=True):
            error = self.error(k, v, eta, state)
            outputs.append(q @ state - self.read(q, k, eta) @ error)
            state = state - (self.step(eta) * k).mT @ error
        return torch.cat(outputs, 2), state

    def error(self, k, v, eta, state):
        """k W - v, for the W that the mini-batch begins with."""
        return k @ state - v

    def read(self, q, k, eta):
        """Row t, column s: how far token s moves the output of token t."""
        return self.causal(q @ k.mT) * self.step(eta).mT

    def step(self, eta):
        """The step size is that of the token whose key it is."""
        return eta[..., None]

    def causal(self, scores):
        """A token reads its own step as well."""
        return scores.tril()


@mistake(
    "the whole mini-batch is read",
    rejected_by="a token does not depend on later ones",
    symptom="Training looks too good, and generation is poor.",
    cause="In the dual form Q K^T is not masked: a token reads the steps of those after it.",
    of="ttt_linear",
)
class NotMasked(TttFormula):
    def causal(self, scores):
        return scores


@mistake(
    "read before the step",
    rejected_by="a token reads its own step",
    symptom="Every output is one step late; the first is 0.",
    cause="The mask of the dual form leaves out the diagonal.",
    of="ttt_linear",
)
class ReadBeforeStep(TttFormula):
    def causal(self, scores):
        return scores.tril(-1)


@mistake(
    "the step size of the token that reads",
    rejected_by="a step of 0 skips a token",
    symptom="Dual and primal form disagree, unless all step sizes are equal.",
    cause="The matrix Q K^T is scaled by rows; the step sizes belong to its columns, the keys.",
    seen="not in released code: the matrix eta asked about in test-time-training/ttt-lm-jax issue 16 keeps the writer's "
    "step size, and has one more factor, of the token that reads",
    of="ttt_linear",
)
class StepOfReader(TttFormula):
    def read(self, q, k, eta):
        return self.causal(q @ k.mT) * self.step(eta)


@mistake(
    "gradient ascent",
    rejected_by="a full step stores the value",
    symptom="The state explodes: each step makes the error larger.",
    cause="The sign of the error is wrong: v - k W where the step subtracts k W - v.",
    of="ttt_linear",
)
class Ascent(TttFormula):
    def error(self, k, v, eta, state):
        return v - k @ state


@mistake(
    "the gradient of the square, not of its half",
    rejected_by="a full step stores the value",
    symptom="All steps are twice as large; with large ones the state diverges.",
    cause="The gradient of |k W - v|^2 is 2 k^T (k W - v). The loss has a factor of 1/2.",
    of="ttt_linear",
)
class TwiceAsLarge(TttFormula):
    def error(self, k, v, eta, state):
        return 2 * (k @ state - v)


@mistake(
    "values are added, not corrected",
    rejected_by="a full step stores the value",
    symptom="It learns as well as linear attention does, and no better: what is stored twice is added up.",
    cause="The error is -v: what W gives for the key already is not subtracted. That is a Hebbian rule.",
    of="ttt_linear",
)
class Hebbian(TttFormula):
    def error(self, k, v, eta, state):
        return -v


@mistake(
    "errors of the newest W",
    rejected_by="errors are those of the beginning of a mini-batch",
    symptom="Right for mini-batches of one token; the dual form gives other numbers.",
    cause="Each error is taken at the W that the tokens before have changed already: a step after the other, where a "
    "mini-batch is one step.",
    of="ttt_linear",
)
class ErrorsOfNewest(TttFormula):
    def error(self, k, v, eta, state):
        errors = []
        for t in range(k.shape[2]):
            error = k[:, :, t, None] @ state - v[:, :, t, None]
            state = state - (eta[:, :, t, None, None] * k[:, :, t, None]).mT @ error
            errors.append(error)
        return torch.cat(errors, 2) if errors else v
