"""The famous mistakes in the whole model: right parts, put together with one step gone wrong."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from ...layers.multi_head import MultiHeadAttention, concat_heads, split_heads
from ...models.transformer import Transformer
from ..mistakes import mistake

UNKNOWN = 1  # the id of the unknown word, in the mistake that pads with it
OWN_WEIGHTS = "every attention has weights of its own"


class ModelSteps(Transformer):
    """The right model, cut into the steps that the mutants replace one at a time."""

    def forward(self, source, target):
        """Logits of every next word."""
        source, target = self.read_padding(source), self.read_padding(target)
        words, written = self.words(source), self.words(target)
        written = written & self.past(target.shape[1])
        x, outputs = self.embed(source, self.source_embedding), []
        for layer in self.encoder.layers:
            x = layer(self.enter(x), mask=words)
            outputs.append(self.leave(self.encoder, x))
        y = self.embed(target, self.target_embedding)
        for number, layer in enumerate(self.decoder.layers):
            y = self.enter(y)
            memory, mask = self.memory(outputs, number, y, words, written)
            y = layer(y, memory, mask=written, memory_mask=mask, causal=False)
        return self.answer(self.leave(self.decoder, y))

    def read_padding(self, ids):
        """The ids as they came."""
        return ids

    def words(self, ids):
        """The mask (B, 1, 1, S): True for a word, False for padding."""
        return (ids != self.config.pad_id)[:, None, None]

    def past(self, length):
        """The mask (L, L): each word sees itself and those before."""
        return torch.ones(length, length, dtype=torch.bool).tril()

    def embed(self, ids, embedding):
        """The row of the table times sqrt(D), plus the position, then dropout."""
        x = embedding.table(ids) * embedding.scale
        return embedding.dropout(x + self.positions(x))

    def positions(self, x):
        """The positions (L, D), if there are any."""
        positions = self.source_embedding.positions
        return 0.0 if positions is None else positions(torch.arange(x.shape[1]))

    def enter(self, x):
        """What a layer reads: what the one before it wrote."""
        return x

    def leave(self, stack, x):
        """The end of a stack: its final norm, where there is one."""
        return x if stack.norm is None else stack.norm(x)

    def memory(self, outputs, number, y, words, written):
        """What decoder layer `number` reads, and its mask: the last encoder layer, without padding."""
        return outputs[-1], words

    def answer(self, x):
        """Logits."""
        return self.output(x)


@mistake(
    "one attention for self and cross",
    rejected_by=OWN_WEIGHTS,
    symptom="It trains, with a third of the decoder's attention weights missing.",
    cause="One module is called twice. Two uses of attention need two modules.",
    seen="source notes, 001:1434",
)
class OneAttentionForBoth(ModelSteps):
    def __init__(self, config):
        super().__init__(config)
        for layer in self.decoder.layers:
            layer.attention = layer.cross_attention


@mistake(
    "one layer repeated",
    rejected_by=OWN_WEIGHTS,
    symptom="Six layers on paper, the parameters of one: all share their weights.",
    cause="[layer] * N holds one object N times. Make a new layer in each turn of the loop.",
)
class OneLayerRepeated(ModelSteps):
    def __init__(self, config):
        super().__init__(config)
        for stack in (self.encoder, self.decoder):
            stack.layers = nn.ModuleList([stack.layers[0]] * len(stack.layers))


@mistake(
    "encoder layer n to decoder layer n",
    rejected_by="every decoder layer reads the last encoder layer",
    symptom="The first decoder layers read a half-finished encoding; the loss still falls.",
    cause="The stacks are walked side by side. All decoder layers read the last encoder layer.",
    seen="source notes, 001:1648",
)
class LayerReadsLayer(ModelSteps):
    def memory(self, outputs, number, y, words, written):
        return outputs[min(number, len(outputs) - 1)], words


@mistake(
    "keys and values from the decoder",
    rejected_by="the decoder reads the source",
    symptom="A fluent language model that never looks at the sentence to translate.",
    cause="Cross-attention is called with the decoder's own x as its context.",
)
class ReadsItself(ModelSteps):
    def memory(self, outputs, number, y, words, written):
        return y, written


class ValuesAlone(MultiHeadAttention):
    def forward(self, x, context=None, *, mask=None, **options):
        query, key = (split_heads(layer(x), self.num_heads) for layer in (self.query, self.key))
        value = split_heads(self.value(context), self.num_heads)
        weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
        return self.output(concat_heads(weights @ value))


@mistake(
    "only the values from the encoder",
    rejected_by="RuntimeError",
    symptom="It runs when both sentences are padded to one length, and attends nowhere new.",
    cause="Queries and keys both come from the decoder; keys belong to the values.",
    seen="source notes, 001:1573, 1637",
)
class OnlyValuesFromTheEncoder(ModelSteps):
    def __init__(self, config):
        super().__init__(config)
        for layer in self.decoder.layers:
            right = layer.cross_attention
            layer.cross_attention = ValuesAlone(config.d_model, config.num_heads, bias=config.bias)
            layer.cross_attention.load_state_dict(right.state_dict())


@mistake(
    "softmax before cross-entropy",
    rejected_by="logits, not probabilities",
    symptom="The loss cannot fall under 0.905 for 5 classes, however good the model.",
    cause="The model ends in a softmax, and cross_entropy applies another one.",
    seen="source notes, 001:1496",
)
class Probabilities(ModelSteps):
    def answer(self, x):
        return super().answer(x).softmax(-1)


@mistake(
    "positions added in every layer",
    rejected_by="equals the reference",
    symptom="The position is added N times, and drowns what the layers have found.",
    cause="Positions are added inside the layer. They belong to the embedding, once.",
    seen="source notes, 001:1614",
)
class PositionsInEveryLayer(ModelSteps):
    def embed(self, ids, embedding):
        return embedding.dropout(embedding.table(ids) * embedding.scale)

    def enter(self, x):
        return x + self.positions(x)


@mistake(
    "a model without positions",
    rejected_by="the order of words counts",
    symptom='"man bites dog" and "dog bites man" are one sentence to the encoder.',
    cause="The embedding is the row of the table alone.",
)
class NoPositions(ModelSteps):
    def embed(self, ids, embedding):
        return embedding.dropout(embedding.table(ids) * embedding.scale)


@mistake(
    "the embedding not scaled",
    rejected_by="equals the reference",
    symptom="With a small table the positions are louder than the words.",
    cause="The factor sqrt(D) of section 3.4 is forgotten.",
)
class UnscaledEmbedding(ModelSteps):
    def embed(self, ids, embedding):
        x = embedding.table(ids)
        return embedding.dropout(x + self.positions(x))


@mistake(
    "dropout of the embedding in evaluation",
    rejected_by="dropout rests in evaluation",
    symptom="The same sentence is translated differently each time.",
    cause="functional.dropout drops unless told training=self.training.",
)
class DropoutNeverRests(ModelSteps):
    def embed(self, ids, embedding):
        return functional.dropout(super().embed(ids, embedding), self.config.dropout)


@mistake(
    "the future hidden only in training",
    rejected_by="the future stays hidden",
    symptom="The validation loss sees the answer, and is too good to be true.",
    cause="The causal mask is made under `if self.training`.",
    seen="d2l-en, the Transformer chapter",
)
class HiddenOnlyInTraining(ModelSteps):
    def past(self, length):
        hidden = super().past(length)
        return hidden if self.training else torch.ones_like(hidden)


@mistake(
    "padding read as the unknown word",
    rejected_by="padding changes nothing",
    symptom="The model attends to padding, and learns it as a word.",
    cause="Sentences are filled with UNK while masks and padding_idx look for PAD.",
    seen="source notes, 001:1537",
)
class PaddingIsUnknown(ModelSteps):
    def read_padding(self, ids):
        return ids.masked_fill(ids == self.config.pad_id, UNKNOWN)


@mistake(
    "padding shown and words hidden",
    rejected_by="padding changes nothing",
    symptom="Without padding nothing is seen; with padding, nothing else.",
    cause="True means hide in nn.MultiheadAttention, and may attend in SDPA and here.",
    seen="rasbt/LLMs-from-scratch issue 1061; pytorch PRs 170415, 120668",
)
class PaddingShown(ModelSteps):
    def words(self, ids):
        return ~super().words(ids)


@mistake(
    "the source's padding read by the decoder",
    rejected_by="padding changes nothing",
    symptom="Short sentences change with the length of the longest one in their batch.",
    cause="The padding mask goes to the encoder and not to the cross-attention.",
)
class PaddingReadAcross(ModelSteps):
    def memory(self, outputs, number, y, words, written):
        return outputs[-1], None


@mistake(
    "no final norm with pre-norm",
    rejected_by="equals the reference",
    symptom="The logits grow with the depth, since nothing normalizes the sum of all layers.",
    cause="Pre-norm leaves the stream itself unnormalized: each stack must end in a norm.",
)
class NoFinalNorm(ModelSteps):
    def leave(self, stack, x):
        return x


@mistake(
    "tied at the start only",
    rejected_by="TypeError",
    symptom="V x D parameters too many, and two tables that drift apart.",
    cause="The table's numbers are copied to the output layer. The parameter must be the same.",
)
class UntiedCopy(ModelSteps):
    def __init__(self, config):
        super().__init__(config)
        self.output.weight = nn.Parameter(self.output.weight.detach().clone())


@mistake(
    "the tied table not transposed",
    rejected_by="RuntimeError",
    symptom="RuntimeError: shapes cannot be multiplied.",
    cause="x @ table, where the table is (V, D): it must be x @ table.T, or nn.Linear.",
)
class TableNotTransposed(ModelSteps):
    def answer(self, x):
        return x @ self.output.weight
