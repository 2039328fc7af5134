"""The answers to the whole model."""

import math
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional

from tested_transformer.models.transformer import Transformer
from tested_transformer.specs.model.mutants import ModelSteps

from . import right, wrong

# --- Right ----------------------------------------------------------------------------------------

right("model", "the package's")(Transformer)
right("model", "the mutants' base")(ModelSteps)


class Bare(nn.Module):
    """A place for parts."""


class ByHand(nn.Module):
    """The model from nn.Linear, nn.Embedding, nn.LayerNorm and SDPA alone, as a student may do it."""

    def __init__(self, config):
        super().__init__()
        self.config, c = config, config
        self.source_embedding, self.target_embedding = Bare(), Bare()
        self.source_embedding.table = nn.Embedding(c.source_vocab, c.d_model)
        table = self.source_embedding.table
        if c.target_vocab is not None:
            table = self.target_embedding.table = nn.Embedding(c.target_vocab, c.d_model)
        self.table = [table]
        self.encoder, self.decoder = Bare(), Bare()
        for stack, layers, attentions in (
            (self.encoder, c.num_encoder_layers, ["attention"]),
            (self.decoder, c.num_decoder_layers, ["attention", "cross_attention"]),
        ):
            stack.layers = nn.ModuleList(self.layer(attentions) for _ in range(layers))
            if c.final_norm:
                stack.norm = self.norm()
        if not c.tied_output or c.output_bias:
            self.output = nn.Linear(c.d_model, c.output_vocab, bias=c.output_bias)
        if c.tied_output and c.output_bias:
            self.output.weight = table.weight

    def norm(self):
        return nn.LayerNorm(self.config.d_model, eps=self.config.norm_eps, bias=self.config.bias)

    def layer(self, attentions):
        c, layer = self.config, Bare()
        for name in attentions:
            parts = {p: nn.Linear(c.d_model, c.d_model, bias=c.bias) for p in ("query", "key", "value", "output")}  # fmt: skip
            setattr(layer, name, nn.ModuleDict(parts))
        layer.feed_forward = Bare()
        layer.feed_forward.up_proj = nn.Linear(c.d_model, c.d_ff, bias=c.bias)
        layer.feed_forward.down_proj = nn.Linear(c.d_ff, c.d_model, bias=c.bias)
        layer.residuals = nn.ModuleList(nn.ModuleDict({"norm": self.norm()}) for _ in range(len(attentions) + 1))  # fmt: skip
        return layer

    def attend(self, part, x, context, mask):
        heads = self.config.num_heads
        q, k, v = (part[n](a).unflatten(-1, (heads, -1)).transpose(1, 2) for n, a in (("query", x), ("key", context), ("value", context)))  # fmt: skip
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return part["output"](found.transpose(1, 2).flatten(2))

    def think(self, part, x):
        bends = {"relu": functional.relu, "gelu": functional.gelu, "silu": functional.silu,
                 "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh")}  # fmt: skip
        return part.down_proj(bends[self.config.activation](part.up_proj(x)))

    def step(self, x, residual, sublayer):
        norm = residual["norm"]
        if self.config.norm_placement == "pre":
            return x + self.drop(sublayer(norm(x)))
        return norm(x + self.drop(sublayer(x)))

    def drop(self, x):
        return functional.dropout(x, self.config.dropout, self.training)

    def embed(self, ids, table):
        width = self.config.d_model
        angles = torch.arange(ids.shape[1]).double()[:, None] / 10000 ** (torch.arange(0, width, 2).double() / width)  # fmt: skip
        x = table(ids) * (width**0.5 if self.config.scale_embedding else 1)
        if self.config.positions == "sinusoidal":
            positions = torch.stack((angles.sin(), angles.cos()), -1)
            halves = self.config.position_layout == "halves"
            x = x + (positions.mT if halves else positions).flatten(1).to(x.dtype)
        return self.drop(x)

    def forward(self, source, target):
        words, length = (source != self.config.pad_id)[:, None, None], target.shape[1]
        past = torch.ones(length, length).tril().bool() & (target != self.config.pad_id)[:, None, None]  # fmt: skip
        memory = self.embed(source, self.source_embedding.table)
        for layer in self.encoder.layers:
            first, last = layer.residuals
            memory = self.step(memory, first, lambda x, n=layer: self.attend(n.attention, x, x, words))  # fmt: skip
            memory = self.step(memory, last, lambda x, n=layer: self.think(n.feed_forward, x))
        memory = self.encoder.norm(memory) if self.config.final_norm else memory
        y = self.embed(target, self.table[0])
        for layer in self.decoder.layers:
            first, second, last = layer.residuals
            y = self.step(y, first, lambda x, n=layer: self.attend(n.attention, x, x, past))
            y = self.step(y, second, lambda x, n=layer: self.attend(n.cross_attention, x, memory, words))  # fmt: skip
            y = self.step(y, last, lambda x, n=layer: self.think(n.feed_forward, x))
        y = self.decoder.norm(y) if self.config.final_norm else y
        bias = self.output.bias if self.config.output_bias else None
        return functional.linear(y, self.table[0].weight, bias) if self.config.tied_output else self.output(y)  # fmt: skip


right("model", "by hand")(ByHand)
right("model", "a function that makes a module")(lambda config, **options: ByHand(config))


@right("model", "softmax by hand, masked by -1e9")
class OwnSoftmax(ByHand):
    def attend(self, part, x, context, mask):
        heads = self.config.num_heads
        q, k, v = (
            part[n](a).unflatten(-1, (heads, -1))
            for n, a in (("query", x), ("key", context), ("value", context))
        )
        scores = torch.einsum("blhd,bshd->bhls", q / math.sqrt(q.shape[-1]), k)
        scores = scores.masked_fill(~mask, -1e9)
        weights = torch.exp(scores - scores.logsumexp(-1, keepdim=True))
        return part["output"](torch.einsum("bhls,bshd->blhd", weights, v).flatten(2))


@right("model", "head by head, norms by hand")
class HeadByHead(ByHand):
    def attend(self, part, x, context, mask):
        found = []
        for head in torch.arange(self.config.d_model).chunk(self.config.num_heads):
            q, k, v = (
                part[n](a)[..., head]
                for n, a in (("query", x), ("key", context), ("value", context))
            )
            scores = (q @ k.mT * len(head) ** -0.5).masked_fill(~mask[:, 0], -math.inf)
            found.append(scores.softmax(-1) @ v)
        return part["output"](torch.cat(found, -1))

    def norm(self):
        return Norm(self.config)


class Norm(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.d_model))
        self.bias = nn.Parameter(torch.zeros(config.d_model)) if config.bias else None
        self.eps = config.norm_eps

    def forward(self, x):
        variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        y = (x - mean) * torch.rsqrt(variance + self.eps) * self.weight
        return y if self.bias is None else y + self.bias


# --- Wrong ----------------------------------------------------------------------------------------


@wrong("model", "half precision comes back as float32")
class LogitsInFloat32(ModelSteps):
    def forward(self, source, target):
        logits = super().forward(source, target)
        return logits.float() if logits.dtype.itemsize < 4 else logits


@wrong("model", "dropout is never applied")
class NoDropout(ByHand):
    def drop(self, x):
        return x


@wrong("model", "dropout of the keep probability")
class KeepProbability(ByHand):
    def drop(self, x):
        return functional.dropout(x, 1 - self.config.dropout, self.training)


@wrong("model", "no dropout of the embeddings")
class EmbeddingsNotDropped(ModelSteps):
    def embed(self, ids, embedding):
        return embedding.table(ids) * embedding.scale + self.positions(embedding.table(ids))


@wrong("model", "no dropout of what the sublayers find")
class SublayersNotDropped(ModelSteps):
    def __init__(self, config):
        super().__init__(config)
        for stack in (self.encoder, self.decoder):
            for layer in stack.layers:
                for residual in layer.residuals:
                    residual.dropout.p = 0.0


@wrong("model", "every parameter starts at zero")
class StartsAtZero(ByHand):
    def __init__(self, config):
        super().__init__(config)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


@wrong("model", "the norms start at zero")
class NormsStartAtZero(ByHand):
    def __init__(self, config):
        super().__init__(config)
        for name, parameter in self.named_parameters():
            if name.endswith("norm.weight"):
                nn.init.zeros_(parameter)


@wrong("model", "all matrices start alike")
class StartsAlike(ByHand):
    def __init__(self, config):
        super().__init__(config)
        for parameter in self.parameters():
            nn.init.constant_(parameter, 0.1)


def longest(number):
    class Longest(ByHand):
        def embed(self, ids, table):
            torch.zeros(number)[torch.arange(ids.shape[1])]  # a table of positions
            return super().embed(ids, table)

    return Longest


wrong("model", "eight positions")(longest(8))
wrong("model", "512 positions")(longest(512))


@wrong("model", "the masks of the first call")
class KeepsTheMask(ByHand):
    past = None

    def attend(self, part, x, context, mask):
        if mask.shape[-2] > 1:
            self.past = mask if self.past is None else self.past
            mask = self.past
        return super().attend(part, x, context, mask)


@wrong("model", "the first source is kept")
class KeepsTheSource(ByHand):
    source = None

    def forward(self, source, target):
        if self.source is None or self.source.shape != source.shape:
            self.source = source
        return super().forward(self.source, target)


@wrong("model", "the encoder is detached")
class EncoderDetached(ModelSteps):
    def memory(self, outputs, number, y, words, written):
        return outputs[-1].detach(), words


@wrong("model", "the embeddings are detached")
class EmbeddingsDetached(ModelSteps):
    def embed(self, ids, embedding):
        return super().embed(ids, embedding).detach()


@wrong("model", "the output layer is detached from its table")
class OutputDetached(ByHand):
    def forward(self, source, target):
        kept, self.table = self.table, [Frozen(self.table[0])]
        try:
            return super().forward(source, target)
        finally:
            self.table = kept


class Frozen(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.inner = [table]

    def forward(self, ids):
        return self.inner[0](ids)

    @property
    def weight(self):
        return self.inner[0].weight.detach()


@wrong("model", "no gradient in float32")
class NoFloat32Gradient(ByHand):
    def think(self, part, x):
        found = super().think(part, x)
        return found.detach() if x.dtype == torch.float32 else found


@wrong("model", "no gradients")
class NoGradients(ByHand):
    @torch.no_grad()
    def forward(self, source, target):
        return super().forward(source, target)


class Without(ByHand):
    """A field of the configuration is not looked at."""

    field = None, None

    def __init__(self, config):
        super().__init__(config)
        name, value = self.field
        self.config = replace(config, **{name: value})


for field, value in (
    ("pad_id", 0), ("scale_embedding", True), ("positions", "sinusoidal"),
    ("position_layout", "interleaved"), ("activation", "relu"), ("norm_placement", "post"),
    ("final_norm", False), ("tied_output", True), ("num_heads", 1),
):  # fmt: skip
    wrong("model", f"`{field}` is not looked at")(
        type("Without", (Without,), {"field": (field, value)})
    )


@wrong("model", "eps of the norms is a constant")
class EpsConstant(ByHand):
    def norm(self):
        return nn.LayerNorm(self.config.d_model, bias=self.config.bias)


@wrong("model", "softmax without the maximum")
class NaiveSoftmax(ByHand):
    def attend(self, part, x, context, mask):
        heads = self.config.num_heads
        q, k, v = (
            part[n](a).unflatten(-1, (heads, -1)).transpose(1, 2)
            for n, a in (("query", x), ("key", context), ("value", context))
        )
        weights = (q @ k.mT * q.shape[-1] ** -0.5).exp() * mask
        found = weights / weights.sum(-1, keepdim=True) @ v
        return part["output"](found.transpose(1, 2).flatten(2))


class Scaled(ByHand):
    def attend(self, part, x, context, mask):
        heads = self.config.num_heads
        q, k, v = (
            part[n](a).unflatten(-1, (heads, -1)).transpose(1, 2)
            for n, a in (("query", x), ("key", context), ("value", context))
        )
        found = self.heads(q, k, v, mask)
        return part["output"](found.transpose(1, 2).flatten(2))

    def heads(self, q, k, v, mask):
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@wrong("model", "scores divided by sqrt(D) of the model")
class ScaleOfTheModel(Scaled):
    def heads(self, q, k, v, mask):
        scale = self.config.d_model**-0.5
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


@wrong("model", "query and key swapped where they are as many")
class SwappedQueryAndKey(Scaled):
    def heads(self, q, k, v, mask):
        q, k = (k, q) if q.shape == k.shape else (q, k)
        return super().heads(q, k, v, mask)


@wrong("model", "padding in the target is seen")
class TargetPaddingSeen(Scaled):
    """It stands on the right, so that the order hides it: right. The source's is not hidden either."""

    def heads(self, q, k, v, mask):
        return super().heads(q, k, v, torch.ones_like(mask) if mask.shape[-2] == 1 else mask)


@wrong("model", "the cross-attention is causal where lengths agree")
class CausalAcross(Scaled):
    def heads(self, q, k, v, mask):
        if mask.shape[-2] == 1 and q.shape[-2] == k.shape[-2]:
            mask = mask & torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        return super().heads(q, k, v, mask)


@wrong("model", "each word sees the next one too")
class OneAhead(ModelSteps):
    def past(self, length):
        return torch.ones(length, length, dtype=torch.bool).tril(1)


@wrong("model", "positions from 1")
class PositionsFromOne(ModelSteps):
    def positions(self, x):
        positions = self.source_embedding.positions
        return 0.0 if positions is None else positions(torch.arange(1, x.shape[1] + 1))


@wrong("model", "positions in half precision")
class CoarsePositions(ModelSteps):
    def positions(self, x):
        found = super().positions(x)
        return found if isinstance(found, float) else found.half().to(x.dtype)


@wrong("model", "heads side by side without a transposition")
class HeadsNotTransposed(ByHand):
    def attend(self, part, x, context, mask):
        heads = self.config.num_heads
        q, k, v = (
            part[n](a).reshape(len(a), heads, a.shape[1], -1)
            for n, a in (("query", x), ("key", context), ("value", context))
        )
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return part["output"](found.transpose(1, 2).flatten(2))


@wrong("model", "all logits are NaN")
class AllNaN(ModelSteps):
    def answer(self, x):
        return super().answer(x) * math.nan


@wrong("model", "log-probabilities for logits")
class LogProbabilities(ModelSteps):
    def answer(self, x):
        return super().answer(x).log_softmax(-1)


@wrong("model", "statistics over the batch in training")
class BatchStatistics(ByHand):
    def embed(self, ids, table):
        x = super().embed(ids, table)
        return x - x.mean((0, 1)) if self.training else x


@wrong("model", "gradients of all parameters are switched off")
class Freezes(ByHand):
    def forward(self, source, target):
        torch.set_grad_enabled(False)
        return super().forward(source, target)
