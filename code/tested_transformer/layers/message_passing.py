"""Message passing: every node takes the largest of the messages that its neighbors send."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from ..bounds import PositiveInt
from ..shapes import checked

__all__ = ["MessagePassing", "max_messages"]


@checked
def max_messages(
    sender: Float[Tensor, "B n D"],
    receiver: Float[Tensor, "B n D"],
    edge: Float[Tensor, "B n n D"],
    adjacency: Bool[Tensor, "B n n"],
    *,
    real: Bool[Tensor, "B n"] | None = None,
) -> Float[Tensor, "B n D"]:
    """For each node the largest message, feature by feature, over the edges that end there and itself.

    The message from u to v is sender[u] + receiver[v] + edge[u, v]; adjacency[u, v] says that there is an
    edge from u to v. Every node also has an edge to itself, whose features are edge[v, v]. real: which
    nodes are no padding; padding sends nothing and gets zeros.

    Shapes: sender and receiver (B, n, D), edge (B, n, n, D), adjacency (B, n, n), real (B, n) -> (B, n, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Velickovic et al. 2020 (Neural Execution of Graph Algorithms), max aggregation.

    >>> distance = torch.tensor([[[0.0], [4.0]]])  # of two nodes; the edge from 0 to 1 has length 3
    >>> edge = torch.tensor([[0.0, 3.0], [0.0, 0.0]])[None, :, :, None]
    >>> adjacency = torch.tensor([[[False, True], [False, False]]])
    >>> max_messages(-distance, 0 * distance, -edge, adjacency)[0, :, 0]  # a step of Bellman-Ford
    tensor([ 0., -3.])
    """
    itself = torch.eye(adjacency.shape[-1], dtype=torch.bool, device=adjacency.device)
    arrives = adjacency | itself  # B n n: row u sends, column v receives
    if real is not None:
        arrives = arrives & real[:, :, None] & real[:, None, :]
    messages = sender[:, :, None] + receiver[:, None] + edge  # B n n D
    messages = messages.masked_fill(~arrives[..., None], -torch.inf)
    if not messages.shape[1]:
        return receiver
    largest = messages.amax(1)  # B n D, over the senders
    return largest if real is None else largest.masked_fill(~real[..., None], 0.0)


class MessagePassing(nn.Module):
    """One step of a graph network: linear layers make messages, the largest one updates its node.

    Layers `sender`, `receiver`, `edge` and `update`; the new state is relu(update([state, largest message])).

    Shapes: nodes (B, n, D), edges (B, n, n, d_edge), adjacency (B, n, n), real (B, n) -> (B, n, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Velickovic et al. 2020 (Neural Execution of Graph Algorithms).
    """

    @checked
    def __init__(self, d_model: PositiveInt, d_edge: PositiveInt = 1) -> None:
        super().__init__()
        self.sender = nn.Linear(d_model, d_model)
        self.receiver = nn.Linear(d_model, d_model, bias=False)
        self.edge = nn.Linear(d_edge, d_model, bias=False)
        self.update = nn.Linear(2 * d_model, d_model)

    @checked(like="self.sender.weight", D="self.sender.in_features", E="self.edge.in_features")
    def forward(
        self,
        nodes: Float[Tensor, "B n D"],
        edges: Float[Tensor, "B n n E"],
        adjacency: Bool[Tensor, "B n n"],
        *,
        real: Bool[Tensor, "B n"] | None = None,
    ) -> Float[Tensor, "B n D"]:
        """Every node reads its neighbors once."""
        largest = max_messages(
            self.sender(nodes), self.receiver(nodes), self.edge(edges), adjacency, real=real
        )
        return functional.relu(self.update(torch.cat((nodes, largest), -1)))
