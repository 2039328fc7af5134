"""The famous mistakes with graphs and the tokens that read them: edges the wrong way round, padding, open gates."""

from __future__ import annotations

import torch

from ..mistakes import Formula, mistake

# --- Messages -------------------------------------------------------------------------------------


class MessageFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, sender, receiver, edge, adjacency, *, real=None):
        """Messages, those that arrive, the largest, zeros for padding."""
        itself = torch.eye(adjacency.shape[-1], dtype=torch.bool)
        arrives = self.arrives(adjacency, itself)
        if real is not None:
            arrives = arrives & self.between_real(real)
        messages = self.messages(sender, receiver, edge)  # B u v D
        found = self.aggregate(messages, arrives[..., None])
        return found if real is None else self.padded(found, real[..., None])

    def arrives(self, adjacency, itself):
        """Which messages there are."""
        return adjacency | itself

    def between_real(self, real):
        """Both ends must be no padding."""
        return real[:, :, None] & real[:, None, :]

    def messages(self, sender, receiver, edge):
        """From u, axis 1, to v, axis 2."""
        return sender[:, :, None] + receiver[:, None] + edge

    def aggregate(self, messages, arrives):
        """The largest that arrives."""
        return messages.masked_fill(~arrives, -torch.inf).amax(1)

    def padded(self, found, real):
        """Padding gets zeros."""
        return found.masked_fill(~real, 0.0)


@mistake(
    "messages along reversed edges",
    rejected_by="a message goes along its edge",
    symptom="Nothing shows where edges and lengths are the same both ways. Elsewhere messages go backward, without the lengths.",
    cause="The maximum is taken over the receivers: adjacency[u, v] was read as an edge from v to u.",
    seen="pyg-team/pytorch_geometric issue 1040",
    of="max_messages",
)
class ReversedEdges(MessageFormula):
    def arrives(self, adjacency, itself):
        return adjacency.mT | itself


@mistake(
    "the features of the edge back",
    rejected_by="a message goes along its edge",
    symptom="Right where lengths are the same both ways; elsewhere distances are those of other edges.",
    cause="The edge features of the message from u to v are edge[v, u].",
    of="max_messages",
)
class EdgeBack(MessageFormula):
    def messages(self, sender, receiver, edge):
        return super().messages(sender, receiver, edge.transpose(1, 2))


@mistake(
    "the edge to itself is missing",
    rejected_by="every node also hears itself",
    symptom="A distance that was known is forgotten in the next step; nodes without edges are infinite.",
    cause="The maximum runs over the neighbors alone. Bellman-Ford takes the minimum with the node's own distance.",
    of="max_messages",
)
class NoSelfLoop(MessageFormula):
    def arrives(self, adjacency, itself):
        return adjacency & ~itself


@mistake(
    "the sum of the messages",
    rejected_by="a repeated message changes nothing",
    symptom="Trained on small graphs, wrong on large ones: the more neighbors, the larger the state.",
    cause="Sum aggregation, as in many graph networks. A shortest path is a minimum: use the maximum.",
    of="max_messages",
)
class SumOfMessages(MessageFormula):
    def aggregate(self, messages, arrives):
        return messages.masked_fill(~arrives, 0.0).sum(1)


@mistake(
    "the mean of the messages",
    rejected_by="the largest message counts",
    symptom="One near neighbor among many far ones is averaged away.",
    cause="Mean aggregation, which takes away the dependence on the degree, but is no maximum either.",
    of="max_messages",
)
class MeanOfMessages(MessageFormula):
    def aggregate(self, messages, arrives):
        return messages.masked_fill(~arrives, 0.0).sum(1) / arrives.sum(1).clamp(min=1)


@mistake(
    "a missing edge sends zero",
    rejected_by="a missing edge sends nothing",
    symptom="Right while all messages are positive. With negative ones no node is ever below 0.",
    cause="Messages are multiplied by the adjacency matrix, then the maximum is taken: 0 counts as a message.",
    of="max_messages",
)
class ZeroForMissing(MessageFormula):
    def aggregate(self, messages, arrives):
        return (messages * arrives).amax(1)


@mistake(
    "padding nodes send messages",
    rejected_by="padding sends nothing",
    symptom="The result of a small graph depends on what it is batched with.",
    cause="Only the receivers are masked; the rows of padding in the adjacency matrix are read.",
    of="max_messages",
)
class PaddingSends(MessageFormula):
    def between_real(self, real):
        return real[:, None, :] & real.new_ones(real.shape)[:, :, None]


@mistake(
    "padding nodes are minus infinity",
    rejected_by="padding gets zeros",
    symptom="The next linear layer makes NaN of it: 0 times infinity.",
    cause="A padding node hears nobody, and the maximum of nothing is minus infinity.",
    of="max_messages",
)
class PaddingInfinite(MessageFormula):
    def padded(self, found, real):
        return found


# --- Shortest distances ---------------------------------------------------------------------------


class DistanceFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, lengths, source, num_steps):
        """Bellman-Ford in rounds."""
        itself = torch.eye(lengths.shape[-1], dtype=torch.bool)
        lengths = self.lengths(lengths, itself)
        distance = torch.where(torch.arange(len(itself)) == source[:, None], 0.0, self.unreached)
        trace = [distance.to(lengths)]
        for _ in range(num_steps):
            trace.append(self.round(trace, lengths))
        return torch.stack(trace, 1)

    unreached = torch.inf

    def lengths(self, lengths, itself):
        """To stay costs nothing."""
        return lengths.masked_fill(itself, 0.0)

    def round(self, trace, lengths):
        """Minimum over the nodes before."""
        return (trace[-1][:, :, None] + lengths).amin(1)


@mistake(
    "a round reads its own results",
    rejected_by="a step goes along one edge",
    symptom="The last distances are right, the trace is not: the network is asked to run many steps in one.",
    cause="Distances are overwritten within a round, so a path along several edges is found in one step.",
    of="distance_trace",
)
class InPlace(DistanceFormula):
    def round(self, trace, lengths):
        distance = trace[-1].clone()
        for u in range(lengths.shape[-1]):
            distance = torch.minimum(distance, distance[:, u, None] + lengths[:, u])
        return distance


@mistake(
    "a node forgets its distance",
    rejected_by="distances never grow",
    symptom="The source is no longer at 0 after the first step.",
    cause="The minimum over the incoming edges alone, without the node's own distance.",
    of="distance_trace",
)
class Forgets(DistanceFormula):
    def lengths(self, lengths, itself):
        return lengths.masked_fill(itself, torch.inf)


@mistake(
    "distances to the source",
    rejected_by="a step goes along one edge",
    symptom="Right on undirected graphs alone.",
    cause="lengths[u, v] was read as an edge from v to u.",
    of="distance_trace",
)
class ToTheSource(DistanceFormula):
    def lengths(self, lengths, itself):
        return super().lengths(lengths, itself).mT


@mistake(
    "edges are counted, not their lengths",
    rejected_by="equals the reference",
    symptom="Breadth-first search: right where all lengths are 1.",
    cause="Every edge is taken to have length 1.",
    of="distance_trace",
)
class CountsEdges(DistanceFormula):
    def lengths(self, lengths, itself):
        return super().lengths(torch.where(lengths.isfinite(), 1.0, lengths), itself)


@mistake(
    "what is not reached is far, not infinite",
    rejected_by="what has no path stays infinite",
    symptom="Nodes without a path get distances of about the constant, and a network learns them as numbers.",
    cause="A large constant stands for infinity.",
    of="distance_trace",
)
class FarNotInfinite(DistanceFormula):
    unreached = 1e4


# --- Tokens that read nodes -----------------------------------------------------------------------


class CrossFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(
        self, tokens, nodes, w_query, w_key, w_value, w_output, gate, num_heads, *, real=None
    ):
        """Scores, masked weights, the weighted sum through the gate."""
        nodes = self.nodes(nodes)
        query = (tokens @ w_query).unflatten(-1, (num_heads, -1)).transpose(1, 2)  # B H L d
        key, value = (
            (nodes @ w).unflatten(-1, (num_heads, -1)).transpose(1, 2) for w in (w_key, w_value)
        )
        scores = query @ key.mT * self.scale(w_query.shape[1], num_heads)
        allowed = torch.ones_like(scores, dtype=torch.bool)
        if real is not None:
            allowed = allowed & self.real(real)[:, None, None]
        weights = self.weights(scores, self.allowed(allowed))
        read = (weights @ value).transpose(1, 2).flatten(2) @ w_output
        return self.combine(tokens, read, gate)

    def nodes(self, nodes):
        """Those of each text's own graph."""
        return nodes

    def scale(self, width, num_heads):
        """By the dimension of a head."""
        return (width / num_heads) ** -0.5

    def real(self, real):
        """Nodes that are no padding."""
        return real

    def allowed(self, allowed):
        """Every token may attend to every node."""
        return allowed

    def weights(self, scores, allowed):
        """A softmax; zeros where nothing is allowed."""
        some = allowed.any(-1, keepdim=True)
        scores = scores.masked_fill(~allowed & some, -torch.inf)
        return scores.softmax(-1) * some

    def combine(self, tokens, read, gate):
        """Add what was read, through the gate."""
        return tokens + gate.tanh() * read


@mistake(
    "a sigmoid gate",
    rejected_by="a closed gate leaves the tokens",
    symptom="Before any training, a pretrained Transformer already gives worse answers.",
    cause="sigmoid(0) is 0.5: the gate begins half open. tanh(0) is 0.",
    of="gated_cross_attention",
)
class SigmoidGate(CrossFormula):
    def combine(self, tokens, read, gate):
        return tokens + gate.sigmoid() * read


@mistake(
    "no gate",
    rejected_by="a closed gate leaves the tokens",
    symptom="Random cross-attention is added to every token of a pretrained Transformer.",
    cause="What is read is added as in any cross-attention.",
    of="gated_cross_attention",
)
class NoGate(CrossFormula):
    def combine(self, tokens, read, gate):
        return tokens + read + 0 * gate


@mistake(
    "the gate closes the residual path, too",
    rejected_by="a closed gate leaves the tokens",
    symptom="Logits are constant at initialization, and gradients vanish.",
    cause="tanh(gate) multiplies the sum of tokens and what they read.",
    of="gated_cross_attention",
)
class GatedSum(CrossFormula):
    def combine(self, tokens, read, gate):
        return gate.tanh() * (tokens + read)


@mistake(
    "the gate mixes",
    rejected_by="what is read is added",
    symptom="Right at a gate of 0; as it opens, the text fades.",
    cause="(1 - g) tokens + g read, as in a recurrent cell. The tokens have to stay.",
    of="gated_cross_attention",
)
class GateMixes(CrossFormula):
    def combine(self, tokens, read, gate):
        return (1 - gate.tanh()) * tokens + gate.tanh() * read


@mistake(
    "padding nodes are attended to",
    rejected_by="padding nodes are not read",
    symptom="The answer of a small graph depends on the largest graph of its batch.",
    cause="The mask of the nodes is not handed on to the cross-attention.",
    of="gated_cross_attention",
)
class AttendsToPadding(CrossFormula):
    def real(self, real):
        return torch.ones_like(real)


@mistake(
    "a text without nodes is NaN",
    rejected_by="without nodes nothing is added",
    symptom="One text without a graph in the batch, and the loss is NaN.",
    cause="A softmax of scores that are all minus infinity.",
    of="gated_cross_attention",
)
class NanWithoutNodes(CrossFormula):
    def weights(self, scores, allowed):
        return scores.masked_fill(~allowed, -torch.inf).softmax(-1)


@mistake(
    "a causal mask over nodes",
    rejected_by="nodes have no order",
    symptom="The first token reads one node alone; another numbering of the nodes gives other answers.",
    cause="The causal mask of the text's self-attention is used again. Nodes have no order.",
    of="gated_cross_attention",
)
class CausalNodes(CrossFormula):
    def allowed(self, allowed):
        return allowed.tril()


@mistake(
    "every text reads the first graph",
    rejected_by="each text reads its own graph",
    symptom="Right in a batch of one.",
    cause="The nodes of the first graph are broadcast over the batch.",
    of="gated_cross_attention",
)
class FirstGraph(CrossFormula):
    def nodes(self, nodes):
        return nodes[:1].expand_as(nodes)


@mistake(
    "scaled by all heads' features",
    rejected_by="equals the reference",
    symptom="Attention is too flat, the more so the more heads there are.",
    cause="Scores are divided by the square root of the features of all heads, not of one.",
    of="gated_cross_attention",
)
class ScaledByWidth(CrossFormula):
    def scale(self, width, num_heads):
        return width**-0.5
