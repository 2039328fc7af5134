"""The experts of GPT-OSS: SwiGLU with clamped inputs, and biases everywhere."""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..bounds import PositiveFloat, PositiveInt
from ..errors import argument_error, shape_of
from ..functional.routing import Routed, check_choice, softmax_routing
from ..shapes import checked
from .moe import mix_experts

__all__ = ["ClampedExperts", "clamped_swiglu"]


@checked
def clamped_swiglu(
    gate_up: Float[Tensor, "*batch F"],
    *,
    limit: PositiveFloat = 7.0,
    alpha: PositiveFloat = 1.702,
) -> Float[Tensor, "*batch f"]:
    """Gate times up plus one, where features of even number are gates and those after them ups.

    gate sigmoid(alpha gate) (up + 1), with the gate clamped from above and the up from both sides. With an
    alpha of 1.702 the first factor is nearly GELU; plus one, it passes even where up is 0.

    Shapes: (*batch, 2 f) -> (*batch, f).
    Raises: TypeError or ValueError that name the argument.
    Source: openai/gpt-oss, `swiglu` of gpt_oss/torch/model.py.

    >>> clamped_swiglu(torch.tensor([1.0, 2.0, 100.0, -100.0]), alpha=1.0)
    tensor([  2.1932, -41.9617])
    """
    if gate_up.shape[-1] % 2:
        wanted = "an even number of features"
        raise argument_error(ValueError, "gate_up", f"shape {shape_of(gate_up)}", wanted)
    gate, up = gate_up[..., ::2].clamp(max=limit), gate_up[..., 1::2].clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


class ClampedExperts(nn.Module):
    """A mixture of experts with biases: router, gates and ups side by side, and down-projection.

    The weights of a token's experts are a softmax over their logits alone. The matrices of all experts
    are stacked and stored (in, out), as on disk.

    Shapes: (*batch, D) -> (*batch, D).
    Raises: TypeError or ValueError that name the argument.
    Source: OpenAI 2025 (gpt-oss-120b and gpt-oss-20b model card), section 2.2.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_experts: PositiveInt,
        num_chosen: PositiveInt,
        d_expert: PositiveInt,
        *,
        limit: PositiveFloat = 7.0,
        alpha: PositiveFloat = 1.702,
    ) -> None:
        super().__init__()
        check_choice(num_experts, num_chosen, 1, 1)
        self.d_model, self.num_chosen = d_model, num_chosen
        self.limit, self.alpha = limit, alpha
        self.router = nn.Linear(d_model, num_experts)
        self.gate_up_proj = nn.Parameter(torch.empty(num_experts, d_model, 2 * d_expert))
        self.gate_up_proj_bias = nn.Parameter(torch.zeros(num_experts, 2 * d_expert))
        self.down_proj = nn.Parameter(torch.empty(num_experts, d_expert, d_model))
        self.down_proj_bias = nn.Parameter(torch.zeros(num_experts, d_model))
        for stacked in (self.gate_up_proj, self.down_proj):
            for matrix in stacked:
                nn.init.xavier_uniform_(matrix)

    @checked(like="self.router.weight", D="self.d_model")
    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Transform each token alone, by its own experts."""
        tokens = x.reshape(-1, self.d_model)  # T D
        networks = (partial(self._expert, number) for number in range(len(self.down_proj)))
        return mix_experts(tokens, *self.route(tokens), networks).view_as(x)

    @checked(like="self.router.weight", D="self.d_model")
    def route(self, x: Float[Tensor, "*batch D"]) -> Routed:
        """The experts of each token, and their weights. Shapes: (*batch, D) -> (*batch, k), twice."""
        return softmax_routing(self.router(x), self.num_chosen, normalize=True)

    def _expert(self, number: int, x: Float[Tensor, "n D"]) -> Float[Tensor, "n D"]:
        gate_up = x @ self.gate_up_proj[number] + self.gate_up_proj_bias[number]  # n 2f
        hidden = clamped_swiglu(gate_up, limit=self.limit, alpha=self.alpha)  # n f
        return hidden @ self.down_proj[number] + self.down_proj_bias[number]
