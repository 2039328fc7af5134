"""The decoding state of a model that knows padding by a mask, and by no token of its own."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..errors import argument_error, shape_of
from ..layers.blocks import position_ids
from ..shapes import checked
from .decoding_state import CausalModel, CausalState

__all__ = ["MaskedCausalState"]


class MaskedCausalState(CausalState):
    """A CausalState whose prompt is padded, for a model without a padding token, such as GPT-2.

    attention_mask says which tokens of the prompt are real, which is fed first and in one piece. All
    later tokens are real. A token's position counts the real tokens before it, as in `generate` of
    transformers.

    Shapes: attention_mask (B, L), True for a real token.
    Raises: TypeError or ValueError that name the argument.
    Source: chapter 11.
    """

    @checked
    def __init__(
        self, model: CausalModel, attention_mask: Bool[Tensor, "B L"], *, cache: bool = True
    ) -> None:
        super().__init__(model, cache=cache)
        self.prompt, self.real = attention_mask, attention_mask[:, :0]  # B S, of what was fed

    @torch.no_grad()
    @checked(like="self.real")
    def feed(self, tokens: Int[Tensor, "B L"]) -> Float[Tensor, "B V"]:
        """Take the next tokens; return the logits of the token after the last."""
        self.real = self._with(tokens)
        if self.cache is None:
            before = tokens[:, :0] if self.prefix_ids is None else self.prefix_ids
            tokens = self.prefix_ids = torch.cat([before, tokens], dim=1)
        options = {"cache": self.cache}
        if self.model.takes_positions:
            options["position_ids"] = position_ids(self.real)[:, -tokens.shape[1] :]
        return self.model(tokens, self.real, **options)[:, -1]

    def _with(self, tokens: Int[Tensor, "B L"]) -> Bool[Tensor, "B S"]:
        """Which of the tokens so far and of these are real."""
        if self.real.shape[1]:
            return torch.cat([self.real, torch.ones_like(tokens, dtype=torch.bool)], dim=1)
        if tokens.shape != self.prompt.shape:
            wanted = f"the attention mask's shape {shape_of(self.prompt)}"
            raise argument_error(ValueError, "tokens", f"shape {shape_of(tokens)}", wanted)
        return self.prompt

    def reorder(self, rows: Int[Tensor, " N"]) -> None:
        """Keep these sequences, in this order."""
        super().reorder(rows)
        self.real = self.real[rows]
