"""TransNAR: a Transformer over the text of a graph that reads the states of a network that runs an algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ..bounds import AtLeast, Below, Divides, PositiveInt
from ..errors import argument_error, shape_of, type_of
from ..layers.feed_forward import FeedForward
from ..layers.gated_cross_attention import GatedCrossAttention
from ..layers.message_passing import MessagePassing
from ..layers.multi_head import MultiHeadAttention
from ..layers.norms import LayerNorm
from ..shapes import check_fields, checked

__all__ = ["AlgorithmNetwork", "TransNar", "TransNarConfig"]


# --- The network that runs the algorithm ----------------------------------------------------------


class AlgorithmNetwork(nn.Module):
    """A graph network that imitates shortest paths step by step: a neural algorithmic reasoner.

    A node's input is whether it is the source, whether it is reached, and its distance so far; the last
    two are the network's own predictions of the step before. Each step is one `MessagePassing`. Lengths
    and distances are divided by `unit`.

    Shapes: lengths (B, n, n), inf where there is no edge, source (B), real (B, n) -> the states after
        the last step (B, n, d_model) and the predictions of all steps (B, num_steps, n, 2): the logit of
        "reached", and the distance in units. num_steps is n by default.
    Raises: TypeError or ValueError that name the argument.
    Source: Velickovic et al. 2020 (Neural Execution of Graph Algorithms).
    """

    @checked
    def __init__(self, d_model: PositiveInt = 32, *, unit: PositiveInt = 4) -> None:
        super().__init__()
        self.encode = nn.Linear(3, d_model)
        self.step = MessagePassing(d_model)
        self.decode = nn.Linear(d_model, 2)
        self.unit = unit

    @checked(like="self.encode.weight")
    def forward(
        self,
        lengths: Float[Tensor, "B n n"],
        source: Annotated[Int[Tensor, " B"], AtLeast(0), Below("n")],
        *,
        num_steps: PositiveInt | None = None,
        real: Bool[Tensor, "B n"] | None = None,
    ) -> tuple[Float[Tensor, "B n D"], Float[Tensor, "B T n 2"]]:
        """Run the algorithm for as many steps as there are nodes, or `num_steps`."""
        num_nodes = lengths.shape[-1]
        adjacency = lengths.isfinite()
        edges = lengths.masked_fill(~adjacency, 0.0)[..., None] / self.unit  # B n n 1
        edges = edges * ~torch.eye(num_nodes, dtype=torch.bool, device=edges.device)[..., None]
        is_source = functional.one_hot(source, num_nodes).to(edges)  # B n
        reached, distance, predictions = is_source, 0 * is_source, []
        for _ in range(num_nodes if num_steps is None else num_steps):
            nodes = self.encode(torch.stack((is_source, reached, distance), -1))  # B n D
            states = self.step(nodes, edges, adjacency, real=real)
            predictions.append(self.decode(states))  # B n 2
            reached = predictions[-1][..., 0].sigmoid()
            distance = reached * predictions[-1][..., 1]
        return states, torch.stack(predictions, 1)


# --- The Transformer ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TransNarConfig:
    """Sizes of a `TransNar`: one of the names, lengths and answers that its text can have.

    d_states: features of the states that it reads; None is the Transformer alone.

    Raises: TypeError or ValueError that name the field.
    """

    d_model: PositiveInt = 64
    num_heads: Annotated[int, AtLeast(1), Divides("d_model")] = 4
    num_layers: PositiveInt = 3
    num_names: PositiveInt = 32
    num_lengths: PositiveInt = 4
    num_answers: PositiveInt = 25
    d_states: PositiveInt | None = None

    def __post_init__(self) -> None:
        check_fields(self)


class TransNarLayer(nn.Module):
    """Self-attention over the text, gated cross-attention to the nodes, and a feed-forward network.

    Without d_nodes there is no cross-attention: an ordinary encoder layer with its norms in front.

    Shapes: x (B, L, D), nodes (B, n, d_nodes), mask (B, 1, 1, L), real_nodes (B, n) -> (B, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Bounsi et al. 2024 (TransNAR).
    """

    @checked
    def __init__(
        self, d_model: PositiveInt, num_heads: PositiveInt, *, d_nodes: PositiveInt | None = None
    ) -> None:
        super().__init__()
        self.norms = nn.ModuleList(LayerNorm(d_model) for _ in range(2))
        self.attention = MultiHeadAttention(d_model, num_heads)
        cross = None if d_nodes is None else GatedCrossAttention(d_model, num_heads, d_nodes)
        self.cross_attention = cross
        self.feed_forward = FeedForward(d_model, 4 * d_model)

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        nodes: Float[Tensor, "B n d_nodes"] | None = None,
        *,
        mask: Bool[Tensor, "#B 1 1 L"] | None = None,
        real_nodes: Bool[Tensor, "B n"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """One layer; nodes are needed where it has a cross-attention."""
        x = x + self.attention(self.norms[0](x), mask=mask)
        if self.cross_attention is not None:
            x = self.cross_attention(x, nodes, real=real_nodes)
        return x + self.feed_forward(self.norms[1](x))


class TransNar(nn.Module):
    """A Transformer encoder over `graph_tokens` whose layers may also read the nodes of an AlgorithmNetwork.

    A token's embedding is the sum of those of its four fields; there are no positions, since edges have no
    order. A node is its state through a linear layer, plus an embedding of its name, so that the tokens
    can find it. The states come from outside: that network is trained first, and stays as it is.

    Shapes: tokens (B, L, 4), real (B, L), states (B, n, d_states), names and real_nodes (B, n) -> the
        logits of the answers at every token, (B, L, num_answers).
    Raises: TypeError or ValueError that name the argument.
    Source: Bounsi et al. 2024 (TransNAR).
    """

    @checked
    def __init__(self, config: TransNarConfig) -> None:
        super().__init__()
        d_model, d_states = config.d_model, config.d_states
        sizes = (3, config.num_names, config.num_names, config.num_lengths)
        self.fields = nn.ModuleList(nn.Embedding(size, d_model) for size in sizes)
        d_nodes = None if d_states is None else d_model
        self.states = None if d_states is None else nn.Linear(d_states, d_model)
        self.names = None if d_states is None else nn.Embedding(config.num_names, d_model)
        self.layers = nn.ModuleList(
            TransNarLayer(d_model, config.num_heads, d_nodes=d_nodes)
            for _ in range(config.num_layers)
        )
        self.norm, self.output = LayerNorm(d_model), nn.Linear(d_model, config.num_answers)
        self.config = config
        for table in self.modules():
            if isinstance(table, nn.Embedding):
                nn.init.normal_(table.weight, std=0.5)

    @checked(like="self.output.weight")
    def forward(
        self,
        tokens: Annotated[Int[Tensor, "B L 4"], AtLeast(0)],
        states: Float[Tensor, "B n E"] | None = None,
        names: Annotated[Int[Tensor, "B n"], AtLeast(0), Below("self.config.num_names")]
        | None = None,
        *,
        real: Bool[Tensor, "B L"] | None = None,
        real_nodes: Bool[Tensor, "B n"] | None = None,
    ) -> Float[Tensor, "B L C"]:
        """The logits of the answers; states and names belong together, and to a model with d_states."""
        self._check(tokens, states, names)
        x = sum(table(tokens[..., i]) for i, table in enumerate(self.fields))  # B L D
        nodes = None if self.states is None else self.states(states) + self.names(names)  # B n D
        mask = None if real is None else real[:, None, None]  # B 1 1 L
        for layer in self.layers:
            x = layer(x, nodes, mask=mask, real_nodes=real_nodes)
        return self.output(self.norm(x))

    def _check(self, tokens: Tensor, states: Tensor | None, names: Tensor | None) -> None:
        """Every field within its table; states and names where the model reads them, and only there."""
        for i, table in enumerate(self.fields):
            largest = int(tokens[..., i].max()) if tokens.numel() else 0
            if largest >= table.num_embeddings:
                wanted = f"field {i} below {table.num_embeddings}"
                raise argument_error(ValueError, "tokens", largest, wanted)
        for name, given in (("states", states), ("names", names)):
            if (given is None) != (self.config.d_states is None):
                wanted = "none: d_states is None" if given is not None else "a tensor"
                raise argument_error(TypeError, name, type_of(given), wanted)
        if states is not None and states.shape[-1] != self.config.d_states:
            wanted = f"d_states = {self.config.d_states} features"
            raise argument_error(ValueError, "states", f"shape {shape_of(states)}", wanted)
