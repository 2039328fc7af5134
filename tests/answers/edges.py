"""Answers that went past the cases and checks of their day: what nobody had asked."""

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from tested_transformer.data import BOS, EOS, PAD
from tested_transformer.specs.block.mutants import Wiring
from tested_transformer.specs.feed_forward.mutants import ACTIVATIONS
from tested_transformer.specs.norms.mutants import plain_layer_norm
from tested_transformer.specs.training.spec import plain_evaluation, plain_step

from . import right, wrong
from .cache import Lists
from .feed_forward import Own as OwnFF
from .generation import AllAnew
from .losses import Loss
from .model import ByHand
from .norms import Own as OwnNorm
from .norms import OwnRMS, wide


class OwnMask(Wiring):
    """Dropout with a mask of its own: other features than functional.dropout drops, and as right."""

    def add(self, x, change, dropout):
        kept = torch.rand_like(change) >= dropout
        return x + (change * kept / (1 - dropout) if dropout else change)


right("block", "a mask of its own")(OwnMask())


@wrong("rms_norm", "divided by the batch's largest number first")
def batch_scaled(x, weight, *, eps=1e-6):
    y = wide(x)
    top = y.abs().max().clamp(min=1e-30) if y.numel() else 1.0
    y = y / top
    return (y / (y.square().mean(-1, keepdim=True) + eps / top**2).sqrt() * weight).to(x.dtype)


@wrong("layer_norm", "NaN becomes 0")
def nan_hidden(x, weight, bias, *, eps=1e-5):
    return plain_layer_norm(x, weight, bias, eps=eps).nan_to_num()


@wrong("layer_norm", "a module that keeps the shape of its first call")
class KeepsTheShape(OwnNorm):
    shape = None

    def forward(self, x):
        self.shape = x.shape if self.shape is None else self.shape
        return super().forward(x.reshape(self.shape))


@wrong("layer_norm", "detached in evaluation")
class DetachedInEvaluation(OwnNorm):
    def forward(self, x):
        y = super().forward(x)
        return y if self.training else y.detach() + 0 * y


@wrong("rms_norm", "every input is kept for good")
class KeepsInputs(OwnRMS):
    def __init__(self, d_model, eps=1e-6):
        super().__init__(d_model, eps)
        self.seen = []

    def forward(self, x):
        self.seen.append(x)
        return super().forward(x)


def stack(what, **steps):
    wrong("block", what)(type("Wrong", (Wiring,), steps)())


def drop(rule):
    return {"add": lambda self, x, change, dropout: x + rule(change, dropout)}


stack(
    "what is kept is divided by the probability",
    **drop(lambda f, p: f if not p else f * (torch.rand_like(f) >= p) / p),
)


stack(
    "one dropout mask for all tokens",
    **drop(lambda f, p: f * functional.dropout(torch.ones_like(f[:1]), p)),
)


class SameMask(Wiring):
    def add(self, x, change, dropout):
        g = torch.Generator().manual_seed(0)
        mask = torch.rand(change.shape, generator=g, dtype=change.dtype) >= dropout
        return x + (change * mask / (1 - dropout) if dropout else change)


wrong("block", "the same dropout mask at every call")(SameMask())


@wrong("block", "dropout in the first sublayer alone")
def first_dropped(x, w, gain, norm_placement, *, alpha=1.0, dropout=0.0):
    class First(Wiring):
        used = False

        def add(self, x, change, p):
            p, self.used = (0.0 if self.used else p), True
            return super().add(x, change, p)

    return First()(x, w, gain, norm_placement, alpha=alpha, dropout=dropout)


@wrong("feed_forward", "dropout of the answer in place of the hidden features")
class AnswerDropped(OwnFF):
    def forward(self, x):
        return self.drop(self.down_proj(self.activate(self.up_proj(x))))


@wrong("feed_forward", "what dropout keeps is not scaled")
class NotScaled(OwnFF):
    def drop(self, x):
        return x * (torch.rand_like(x) >= self.p) if self.training else x


@wrong("feed_forward", "detached in training")
class DetachedInTraining(OwnFF):
    def forward(self, x):
        return super().forward(x.detach() + 0 * x if self.training else x)


@wrong("feed_forward", "a scale of its own that starts at 1")
class OwnScale(OwnFF):
    def __init__(self, d_model, d_ff, activation="relu", dropout=0.0):
        super().__init__(d_model, d_ff, activation, dropout)
        self.scale = nn.Parameter(torch.ones(d_model))

    def forward(self, x):
        return super().forward(x) * self.scale


@wrong("swiglu", "biases that start at 0")
class WithBiases(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(d_model, d_ff), nn.Linear(d_model, d_ff)
        self.down_proj = nn.Linear(d_ff, d_model)
        for layer in (self.gate_proj, self.up_proj, self.down_proj):
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


@wrong("feed_forward", "NaN counts as silent")
def nan_silent(x, w_up, b_up, w_down, b_down, activation="relu"):
    hidden = ACTIVATIONS[activation](x @ w_up + b_up)
    return hidden.masked_fill(hidden.isnan(), 0.0) @ w_down + b_down


@wrong("model", "what dropout keeps is not scaled")
class ModelNotScaled(ByHand):
    def drop(self, x):
        return x * (torch.rand_like(x) >= self.config.dropout) if self.training else x


@wrong("model", "the encoder is detached in training")
class ModelDetachedInTraining(ByHand):
    def embed(self, ids, table):
        x = super().embed(ids, table)
        return x.detach() + 0 * x if self.training else x


@wrong("model", "a gate of its own that starts at 1")
class OwnGate(ByHand):
    def __init__(self, config):
        super().__init__(config)
        self.gate = nn.Parameter(torch.ones(config.d_model))

    def think(self, part, x):
        return super().think(part, x) * self.gate


@wrong("cross_entropy", "no sentence at all raises")
def one_sentence_at_least(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    logits = logits - logits.max(-1, keepdim=True).values.max().detach() * 0
    return Loss()(
        logits, expected, ignore=ignore, label_smoothing=label_smoothing, reduction=reduction
    )


class RoundedCount(Loss):
    def reduced(self, loss, reduction, smoothing):
        if reduction == "sum" or not len(loss):
            return super().reduced(loss, reduction, smoothing)
        count = torch.tensor(0, dtype=loss.dtype)
        for _ in loss:
            count = count + 1  # stays at 256 in bfloat16
        return loss.sum() / count


wrong("cross_entropy", "words counted in the dtype of the logits")(RoundedCount())


@wrong("teacher_forcing", "int32")
def in_int32(sentences):
    longest = max(map(len, sentences)) + 1
    target = torch.full((len(sentences), longest), PAD, dtype=torch.int32)
    expected = target.clone()
    for b, words in enumerate(sentences):
        target[b, : len(words) + 1] = torch.tensor([BOS, *words])
        expected[b, : len(words) + 1] = torch.tensor([*words, EOS])
    return target, expected


@wrong("training_step", "every batch is run twice")
def run_twice(model, optimizer, batches, clip):
    for batch in batches:
        model(batch.source, batch.target)
    plain_step(model, optimizer, batches, clip)


@wrong("evaluation", "the model is run twice on each batch")
def evaluated_twice(model, batches):
    for b in batches:
        was = model.training
        model.eval()
        with torch.no_grad():
            model(b.source, b.target)
        model.train(was)
    return plain_evaluation(model, batches)


@wrong("top-p", "half precision comes back as float32")
def widened_top_p(logits, p):
    x = logits if logits.dtype == torch.float64 else logits.float()
    if p == 1:
        return x.clone()
    shares, order = x.softmax(-1).double().sort(-1, descending=True)
    before = shares.cumsum(-1) - shares
    keep = torch.zeros_like(x, dtype=torch.bool).scatter(-1, order, before < p - 1e-15)
    return x.masked_fill(~keep, -torch.inf)


@wrong("repetition", "in bfloat16 the answer is float32")
def widened_repetition(logits, prefix_ids, penalty):
    x = logits.float() if logits.dtype == torch.bfloat16 else logits
    said = x.gather(1, prefix_ids)
    return x.scatter(1, prefix_ids, torch.where(said > 0, said / penalty, said * penalty))


@wrong("greedy", "an EOS in the prompt ends the row")
def ended_in_the_prompt(next_scores, start, max_new, eos, padding):
    said = start
    for _ in range(max_new):
        ended = (said == eos).any(1)
        word = next_scores(said).argmax(-1).masked_fill(ended, padding)
        said = torch.cat([said, word[:, None]], 1)
    return said[:, start.shape[1] :]


@wrong("decoding", "one memory for all states of a model")
class OnTheModel(AllAnew):
    def __init__(self, model, source=None):
        self.model, self.source = model, source
        vars(model)["_said"] = None

    @property
    def said(self):
        return vars(self.model)["_said"]

    @said.setter
    def said(self, said):
        vars(self.model)["_said"] = said


@wrong("cache", "one store for all objects, emptied by each new one")
class OnTheClass(Lists):
    store: ClassVar[list] = []

    def __init__(self):
        type(self).store.clear()

    @property
    def chunks(self):
        return type(self).store

    @chunks.setter
    def chunks(self, chunks):
        type(self).store[:] = chunks


@wrong("ch11.log_probability", "a word that is ruled out makes NaN")
def one_hot_product(logits, words):
    one_hot = functional.one_hot(words, logits.shape[-1]).to(logits.dtype)
    return ((logits.log_softmax(-1) * one_hot).sum(-1) * (words != PAD)).sum(-1)


@wrong("hw06.next_fold", "folds nearer than 1e-9 are under the feet")
def not_under_the_feet(x, direction, w_up, b_up):
    heights, slopes = x @ w_up + b_up, direction @ w_up
    steps = -heights / slopes
    return steps.masked_fill(~(steps > 1e-9) | (slopes == 0), torch.inf).amin(-1)
