"""The Recurrent Memory Transformer: a few memory tokens carry a text from segment to segment."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..bounds import PositiveInt
from ..shapes import checked

__all__ = ["RecurrentMemory", "read_by_segments"]


@checked
def read_by_segments(
    body: Callable[[Tensor], Tensor],
    x: Float[Tensor, "B L D"],
    memory: Float[Tensor, "B M D"],
    *,
    segment_length: PositiveInt,
    backprop_segments: PositiveInt | None = None,
) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B M D"]]:
    """Read a text segment by segment, each between two copies of the memory that the one before has left.

    The copy before the segment is for reading: every token attends to it. The copy after the segment is for writing:
    under a causal mask it alone attends to the whole segment, and what the body makes of it is the next memory.
    body: any layers (B, N, D) -> (B, N, D), causal for a language model. backprop_segments: through how many
    segments gradients flow at most; the memory is detached after each group of so many. None: all.

    Shapes: x (B, L, D), memory (B, M, D) -> the body's outputs for x (B, L, D), and the last memory (B, M, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Bulatov et al. 2022 (RMT), section 3.2 and figure 2.
    """
    num_memory, outputs = memory.shape[1], []
    for number, segment in enumerate(x.split(segment_length, dim=1)):
        if backprop_segments is not None and number and number % backprop_segments == 0:
            memory = memory.detach()
        states = body(torch.cat([memory, segment, memory], dim=1))  # B M+L+M D
        end = num_memory + segment.shape[1]
        outputs.append(states[:, num_memory:end])
        memory = states[:, end:]
    return torch.cat(outputs, dim=1), memory


class RecurrentMemory(nn.Module):
    """Layers with a memory of `num_memory` tokens: `read_by_segments` from a learned first memory.

    Parameter `initial` (M, D) starts as noise of standard deviation 0.02.

    Shapes: x (B, L, D), memory (B, M, D) -> (B, L, D), (B, M, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Bulatov et al. 2022 (RMT), section 3.2.
    """

    @checked
    def __init__(
        self,
        body: nn.Module,
        d_model: PositiveInt,
        num_memory: PositiveInt,
        *,
        segment_length: PositiveInt,
        backprop_segments: PositiveInt | None = None,
    ) -> None:
        super().__init__()
        self.body = body
        self.initial = nn.Parameter(torch.empty(num_memory, d_model).normal_(std=0.02))
        self.segment_length, self.backprop_segments = segment_length, backprop_segments

    @checked(like="self.initial", M="self.initial.shape.0", D="self.initial.shape.1")
    def forward(
        self, x: Float[Tensor, "B L D"], memory: Float[Tensor, "B M D"] | None = None
    ) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B M D"]]:
        """Read x after the memory of the text before it, or from the beginning of a text."""
        memory = self.initial.expand(len(x), -1, -1) if memory is None else memory
        return read_by_segments(
            self.body, x, memory, segment_length=self.segment_length,
            backprop_segments=self.backprop_segments,
        )  # fmt: skip
