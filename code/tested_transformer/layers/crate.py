"""CRATE's layer: attention with one projection for query, key and value, then a step to sparse codes."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..bounds import AtLeast, Divides, PositiveFloat, PositiveInt
from ..functional.attention import attention
from ..functional.coding_rate import NonNegativeFloat, ista_step
from ..positions.protocol import PositionScheme
from ..shapes import checked
from .cache import AttentionCache
from .multi_head import concat_heads, split_heads

__all__ = ["CrateLayer", "IstaStep", "SubspaceAttention"]


class SubspaceAttention(nn.Module):
    """Multi-head attention with one linear layer, `subspaces`, in place of query, key and value.

    `output` is learned, where the derivation has the transposed `subspaces`; so it is in CRATE's code.
    Positions rotate what is compared, not what is summed.

    Shapes: (B, L, D) -> (B, L, D), and the weights (B, H, L, S) with return_weights.
    Raises: TypeError or ValueError that name the argument.
    Source: Yu et al. 2023 (CRATE), MSSA; Ma-Lab-Berkeley/CRATE, model/crate.py.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: Annotated[int, AtLeast(1), Divides("d_model")],
        *,
        bias: bool = True,
        positions: PositionScheme | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.positions = num_heads, positions
        self.subspaces = nn.Linear(d_model, d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=bias)

    @checked(like="self.subspaces.weight", D="self.subspaces.in_features")
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        mask: Bool[Tensor, "#L #T"] | Bool[Tensor, "#B #H #L #T"] | None = None,
        causal: bool = False,
        position_ids: Int[Tensor, " L"] | Int[Tensor, "#B L"] | None = None,
        cache: AttentionCache | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L D"] | tuple[Float[Tensor, "B L D"], Float[Tensor, "B H L S"]]:
        """Attend, head by head; the arguments are those of `MultiHeadAttention`."""
        value = split_heads(self.subspaces(x), self.num_heads)  # B H L d
        query = key = self._rotated(value, position_ids, cache)
        if cache is not None:
            key, value = cache.append(key, value)
        options = {"mask": mask, "causal": causal, "return_weights": return_weights}
        answer = attention(query, key, value, **options)
        heads, weights = answer if return_weights else (answer, None)
        output = self.output(concat_heads(heads))  # B L D
        return (output, weights) if return_weights else output

    def _rotated(
        self, tokens: Tensor, position_ids: Tensor | None, cache: AttentionCache | None
    ) -> Tensor:
        """Queries, which are also keys, turned by their positions."""
        if self.positions is None:
            return tokens
        if position_ids is None:
            start = 0 if cache is None else cache.length
            position_ids = torch.arange(start, start + tokens.shape[2], device=tokens.device)
        return self.positions.rotate(tokens, tokens, position_ids)[0]


class IstaStep(nn.Module):
    """A learned dictionary of D features, and one `ista_step` in which the token is code and target.

    It stands where a Transformer has its feed-forward network, without a residual connection.

    Shapes: (*batch, D) -> (*batch, D), no number below 0.
    Raises: TypeError or ValueError that name the argument.
    Source: Yu et al. 2023 (CRATE); Ma-Lab-Berkeley/CRATE, model/crate.py.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        *,
        step_size: PositiveFloat = 0.1,
        sparsity: NonNegativeFloat = 0.1,
    ) -> None:
        super().__init__()
        self.step_size, self.sparsity = step_size, sparsity
        self.dictionary = nn.Parameter(torch.empty(d_model, d_model))
        nn.init.kaiming_uniform_(self.dictionary)

    @checked(like="self.dictionary", D="self.dictionary.shape.0")
    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """One step from x towards codes of x."""
        sizes = {"step_size": self.step_size, "sparsity": self.sparsity}
        return ista_step(x, x, self.dictionary, **sizes)


class CrateLayer(nn.Module):
    """x + attention(norm(x)), then the ISTA step of its norm: it stands for an `EncoderLayer`.

    options: those of `SubspaceAttention`, and step_size and sparsity of `IstaStep`.

    Shapes: (B, L, D) -> (B, L, D), and the weights (B, H, L, S) with return_weights.
    Raises: TypeError or ValueError that name the argument.
    Source: Yu et al. 2023 (CRATE); Ma-Lab-Berkeley/CRATE, model/crate.py.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: Annotated[int, AtLeast(1), Divides("d_model")],
        *,
        step_size: PositiveFloat = 0.1,
        sparsity: NonNegativeFloat = 0.1,
        **options: Any,
    ) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(2))
        self.attention = SubspaceAttention(d_model, num_heads, **options)
        self.sparsify = IstaStep(d_model, step_size=step_size, sparsity=sparsity)

    @checked(like="self.sparsify.dictionary", D="self.sparsify.dictionary.shape.0")
    def forward(
        self, x: Float[Tensor, "B L D"], *, return_weights: bool = False, **options: Any
    ) -> Float[Tensor, "B L D"] | tuple[Float[Tensor, "B L D"], Float[Tensor, "B H L S"]]:
        """One layer; options: those of `SubspaceAttention`."""
        answer = self.attention(self.norms[0](x), return_weights=return_weights, **options)
        attended, *weights = answer if return_weights else (answer,)
        x = self.sparsify(self.norms[1](x + attended))
        return (x, *weights) if return_weights else x
