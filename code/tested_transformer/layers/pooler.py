"""The pooler: one vector for a whole text or image, from its first token."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from ..bounds import PositiveInt
from ..errors import argument_error
from ..shapes import checked

__all__ = ["Pooler"]


class Pooler(nn.Module):
    """One vector for a text or an image: that of its first token, [CLS], through a linear layer and a tanh.

    Shapes: hidden (B, L, D) -> (B, D).
    Raises: TypeError or ValueError that name the argument; ValueError for a text without tokens.
    Source: Devlin et al. 2019, section 3.1, "C"; the layer: google-research/bert, modeling.py, "pooler".
    """

    @checked
    def __init__(self, d_model: PositiveInt) -> None:
        super().__init__()
        self.dense = nn.Linear(d_model, d_model)

    @checked(like="self.dense.weight", D="self.dense.in_features")
    def forward(self, hidden: Float[Tensor, "B L D"]) -> Float[Tensor, "B D"]:
        """tanh(W h + b) of the first token's h."""
        if not hidden.shape[1]:
            raise argument_error(ValueError, "hidden", "a text without tokens", "a first token")
        return self.dense(hidden[:, 0]).tanh()
