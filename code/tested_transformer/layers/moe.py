"""A mixture of experts: many feed-forward networks, of which each token uses a few."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..bounds import AtLeast, NonNegativeInt, PositiveFloat, PositiveInt
from ..functional.routing import Routed, check_choice, sigmoid_routing, softmax_routing
from ..shapes import check_fields, checked
from .feed_forward import FeedForward

__all__ = ["ExpertsConfig", "MixtureOfExperts", "mix_experts", "record_router_logits"]


@checked(any_dtype="weights")
def mix_experts(
    x: Float[Tensor, "T D"],
    experts: Annotated[Int[Tensor, "T k"], AtLeast(0)],
    weights: Float[Tensor, "T k"],
    networks: Iterable[Callable[[Tensor], Tensor]],
) -> Float[Tensor, "T D"]:
    """The weighted sum of what a token's experts return: no token is dropped.

    The loop is over experts, not over tokens: each gathers its tokens, and adds to the sum of each.

    Shapes: x (T, D), experts and weights (T, k) -> (T, D); each network maps (n, D) to (n, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Shazeer et al. 2017, section 2, equation 1.

    >>> double, square = lambda x: 2 * x, lambda x: x**2
    >>> x, chosen = torch.tensor([[3.0], [5.0]]), torch.tensor([[0, 1], [1, 0]])
    >>> mix_experts(x, chosen, torch.tensor([[0.5, 0.5], [1.0, 0.0]]), [double, square])
    tensor([[ 7.5000],
            [25.0000]])
    """
    output = x.new_zeros(x.shape, dtype=weights.dtype)
    for number, network in enumerate(networks):
        token, rank = (experts == number).nonzero(as_tuple=True)  # each (n), for n of the T tokens
        weighted = network(x[token]) * weights[token, rank, None]  # n D
        output = output.index_add(0, token, weighted.to(output.dtype))
    return output.to(x.dtype)


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """The sizes of a mixture of experts, and how its tokens are routed.

    Raises: TypeError or ValueError that name the field.
    Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.2; (DeepSeek-V3), section 2.1.2.
    """

    num_experts: PositiveInt
    num_chosen: PositiveInt  # experts per token
    d_expert: PositiveInt  # hidden features of each
    d_shared: PositiveInt | None = (
        None  # hidden features of the network of all tokens; None: no such
    )
    scoring: Literal["softmax", "sigmoid"] = "softmax"  # see softmax_routing and sigmoid_routing
    normalize: bool = False
    scale: PositiveFloat = 1.0
    num_groups: PositiveInt = 1
    num_kept_groups: PositiveInt = 1
    num_dense: NonNegativeInt = 0  # so many layers, the first ones, have no experts

    def __post_init__(self) -> None:
        check_fields(self)
        groups = self.num_groups, self.num_kept_groups
        check_choice(self.num_experts, self.num_chosen, *groups)

    @property
    def routing(self) -> dict[str, Any]:
        """The options of the routing function."""
        names = "num_chosen", "normalize", "scale", "num_groups", "num_kept_groups"
        return {name: getattr(self, name) for name in names}


class MixtureOfExperts(nn.Module):
    """A router, experts, and a network beside them that all tokens share. Each is a SwiGLU network.

    The linear layer `router` gives each token a logit per expert, in at least float32. The bias of
    sigmoid routing, `choice_bias`, is a buffer: no gradient reaches it, whoever trains the model moves it.
    bias: of the shared network; experts and router have none.

    Shapes: (*batch, D) -> (*batch, D).
    Raises: TypeError or ValueError that name the argument.
    Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.2; (DeepSeek-V3), section 2.1.2.
    """

    @checked
    def __init__(self, d_model: PositiveInt, config: ExpertsConfig, *, bias: bool = False) -> None:
        super().__init__()
        self.config, self.d_model = config, d_model
        self.router = nn.Linear(d_model, config.num_experts, bias=False)
        self.experts = nn.ModuleList(
            FeedForward(d_model, config.d_expert, activation="swiglu", bias=False)
            for _ in range(config.num_experts)
        )
        self.shared = None
        if config.d_shared is not None:
            self.shared = FeedForward(d_model, config.d_shared, activation="swiglu", bias=bias)
        zeros = torch.zeros(config.num_experts) if config.scoring == "sigmoid" else None
        self.register_buffer("choice_bias", zeros)

    @checked(like="self.router.weight", D="self.d_model")
    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Transform each token alone, by its own experts and by the shared network."""
        tokens = x.reshape(-1, self.d_model)  # T D
        output = mix_experts(tokens, *self.route(tokens), self.experts).view_as(x)
        return output if self.shared is None else output + self.shared(x)

    @checked(like="self.router.weight", D="self.d_model")
    def route(self, x: Float[Tensor, "*batch D"]) -> Routed:
        """The experts of each token, and their weights. Shapes: (*batch, D) -> (*batch, k), twice."""
        logits = self.router_logits(x)  # *batch E
        if self.choice_bias is None:
            return softmax_routing(logits, **self.config.routing)
        return sigmoid_routing(logits, self.choice_bias.to(logits), **self.config.routing)

    @checked(like="self.router.weight", D="self.d_model")
    def router_logits(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch E"]:
        """A logit per expert, in at least float32. Shapes: (*batch, D) -> (*batch, E)."""
        wide = torch.promote_types(x.dtype, torch.float32)
        return nn.functional.linear(x.to(wide), self.router.weight.to(wide))


@checked
@contextmanager
def record_router_logits(model: nn.Module) -> Iterator[list[Float[Tensor, "*batch E"]]]:
    """A list to which every mixture of a model adds its router's logits at each call, for a balance loss.

    Shapes: each (*batch, E), one per mixture, in the order of the calls.
    Raises: TypeError that names the argument.
    Source: transformers' output_router_logits.
    """
    recorded: list[Tensor] = []
    mixtures = [each for each in model.modules() if isinstance(each, MixtureOfExperts)]

    def record(mixture: MixtureOfExperts, inputs: tuple[Tensor, ...]) -> None:
        recorded.append(mixture.router_logits(inputs[0]))

    handles = [each.register_forward_pre_hook(record) for each in mixtures]
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()
