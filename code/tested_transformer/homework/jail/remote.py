"""A student's function in its jail, in the form that the judge takes: tensors in, its answer out.

Gradients are included. The judge knows nothing of jails: marks in one are given by the same code as in a notebook.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...specs.surroundings import SETTINGS, note
from .session import Ended, JailSession, tensors_in

KNOWN = [setting.words for setting in SETTINGS]


class RemoteFunction:
    """A function of a JailSession, for the judge: tensors go in, and what comes back is what it answers.

    What the student's function did to its arguments is done to them here too.
    """

    def __init__(self, session: JailSession, function: str) -> None:
        self.session, self.function = session, function

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function in its jail. Raises: Ended, and whatever the function raised."""
        every = tensors_in(list(arguments), named)
        wanted = [name for name, tensor in every.items() if tensor.requires_grad]
        if wanted:
            tensors = [every[name] for name in wanted]
            return _WithGradients.apply(self, list(arguments), named, wanted, *tensors)
        answer, changed = self.session.call(self.function, list(arguments), named)
        self._note_settings()
        for name, value in changed.items():
            if value.dtype != every[name].dtype:
                raise TypeError(f"argument {name}: its dtype was changed to {value.dtype}")
            every[name].data = value
        return answer

    def _note_settings(self) -> None:
        """What the function set in its process is said here, as if it had been set in this one."""
        settings = self.session.settings
        if not isinstance(settings, list) or not all(words in KNOWN for words in settings):
            raise Ended("garbled", "no settings of torch")
        for words in settings:
            note(words)


class _WithGradients(torch.autograd.Function):
    """The call as a step of autograd: backward asks the student's process for the gradients."""

    @staticmethod
    def forward(
        ctx: Any, remote: RemoteFunction, arguments: list, named: dict, names: list, *_: Tensor
    ):
        """The answer, which must be one tensor."""
        ctx.call = (remote, arguments, named, names)
        answer, _changed = remote.session.call(remote.function, arguments, named)
        if not isinstance(answer, Tensor):
            raise TypeError(f"the answer: expected a tensor, got a {type(answer).__name__}")
        return answer

    @staticmethod
    def backward(ctx: Any, gradient: Tensor):
        """The gradients by the tensors that asked for one."""
        remote, arguments, named, names = ctx.call
        gradients = remote.session.gradients(remote.function, arguments, named, names, gradient)
        every = tensors_in(arguments, named)
        if not isinstance(gradients, list) or len(gradients) != len(names):
            raise Ended("garbled", "not one gradient for each argument")
        for name, value in zip(names, gradients, strict=True):
            if value is not None and (
                not isinstance(value, Tensor) or value.shape != every[name].shape
            ):
                raise Ended("garbled", "a gradient of another shape")
        return (None, None, None, None, *gradients)
