"""The famous mistakes with YOCO: keys of the wrong layer, a window off by one, a mask or a rotation forgotten."""

from __future__ import annotations

import torch
from torch.nn import functional

from ...models.yoco import YocoConfig
from ..masks.spec import textbook as masked_softmax
from ..mistakes import Formula, mistake
from ..retention.mutants import GatedFormula
from .weights import by_name


class YocoFormula(Formula):
    """The right model, cut into the steps that the mutants replace one at a time."""

    def __call__(self, ids, weights, config: YocoConfig):
        """The lower half, its keys and values, the upper half."""
        w, half = by_name(weights, config), config.num_layers // 2
        real = (
            torch.ones_like(ids, dtype=torch.bool)
            if config.pad_id is None
            else ids != config.pad_id
        )
        places = (real.cumsum(1) - 1).clamp(min=0)
        states = [w["embedding.table.weight"][ids] * config.d_model**0.5]
        for number in range(half):
            states.append(self.lower(states[-1], w, f"layers.{number}", config, places, real))
        x, cached = states[-1], self.cached(states)
        for number in range(half, config.num_layers):
            at = f"layers.{number}"
            key, value = self.key_value(self.read(cached, x), w, config, places)
            own = rms(x, w[f"{at}.residuals.0.norm.weight"], config)
            query = heads(own, w[f"{at}.attention.query.weight"], config)
            query = self.rotate_query(query, places)
            mixed = attend(query, key, value, self.allowed(real, config))
            x = x + joined(mixed) @ w[f"{at}.attention.output.weight"].mT
            x = feed_forward(x, w, at, config)
        return rms(x, w["norm.weight"], config) @ w["embedding.table.weight"].mT

    def lower(self, x, w, at, config, places, real):
        """One layer of the lower half."""
        own = rms(x, w[f"{at}.residuals.0.norm.weight"], config)
        name = f"{at}.{'retention' if config.window is None else 'attention'}"
        query, key, value = (
            heads(own, w[f"{name}.{part}.weight"], config) for part in ("query", "key", "value")
        )
        query, key = rotated(query, places), rotated(key, places)
        if config.window is None:
            logits = (own @ w[f"{name}.decay.weight"].mT).mT
            mixed, _ = self.retention()(
                query, key, value, logits, temperature=config.temperature, real=real,
                norm_eps=config.norm_eps,
            )  # fmt: skip
            mixed = functional.silu(own @ w[f"{name}.gate.weight"].mT) * joined(mixed)
        else:
            back = steps_back(real.shape[1])
            seen = real[:, None, None] & (back >= 0) & (back < self.window(config))
            mixed = joined(attend(query, key, value, seen))
        return feed_forward(x + mixed @ w[f"{name}.output.weight"].mT, w, at, config)

    def retention(self):
        """Gated retention."""
        return GatedFormula()

    def window(self, config):
        """How many keys a token of the lower half attends to, its own included."""
        return config.window

    def cached(self, states):
        """The hidden state of which keys and values are made: what comes out of the lower half."""
        return states[-1]

    def read(self, cached, x):
        """What an upper layer makes its keys and values of: the same as all others."""
        return cached

    def key_value(self, x, w, config, places):
        """The keys and values of the upper half."""
        x = self.normed(x, w["shared.norm.weight"], config)
        key, value = (heads(x, w[f"shared.{part}.weight"], config) for part in ("key", "value"))
        return rotated(key, places), value

    def normed(self, x, weight, config):
        """The norm before keys and values."""
        return rms(x, weight, config)

    def rotate_query(self, query, places):
        """Queries of the upper half have the positions of their tokens."""
        return rotated(query, places)

    def allowed(self, real, config):
        """What a token of the upper half attends to: every real token up to its own."""
        return real[:, None, None] & (steps_back(real.shape[1]) >= 0)


def rms(x, weight, config):
    """RMSNorm."""
    return x * (x.square().mean(-1, keepdim=True) + config.norm_eps).rsqrt() * weight


def heads(x, weight, config):
    """A linear layer and its heads: (B, L, D) -> (B, H, L, d)."""
    return (x @ weight.mT).unflatten(-1, (-1, config.d_head)).transpose(1, 2)


def joined(x):
    """Heads side by side."""
    return x.transpose(1, 2).flatten(2)


def steps_back(length):
    """How many tokens column j is behind row i."""
    return torch.arange(length)[:, None] - torch.arange(length)


def rotated(x, places):
    """Pairs of neighbors, as complex numbers, turned by their positions."""
    exponents = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
    angles = places[:, None, :, None] * 10000.0**-exponents  # B 1 L d/2
    cosine, sine = angles.cos().to(x), angles.sin().to(x)
    one, other = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((one * cosine - other * sine, one * sine + other * cosine), -1).flatten(-2)


def attend(query, key, value, allowed):
    """Grouped-query attention under a mask."""
    key, value = (
        each.repeat_interleave(query.shape[1] // key.shape[1], 1) for each in (key, value)
    )
    scores = query @ key.mT * query.shape[-1] ** -0.5
    return masked_softmax(scores, allowed.expand(scores.shape)) @ value


def feed_forward(x, w, at, config):
    """SwiGLU with its residual connection."""
    own = rms(x, w[f"{at}.residuals.1.norm.weight"], config)
    gate, up, down = (
        w[f"{at}.feed_forward.{name}_proj.weight"].mT for name in ("gate", "up", "down")
    )
    return x + (functional.silu(own @ gate) * (own @ up)) @ down


@mistake(
    "the cache is made of the embeddings",
    rejected_by="equals the reference",
    symptom="The upper half sees single words, each without its context.",
    cause="Keys and values are made of what goes into the lower half, not of what comes out of it.",
)
class CacheOfEmbeddings(YocoFormula):
    def cached(self, states):
        return states[0]


@mistake(
    "the cache is made one layer too early",
    rejected_by="equals the reference",
    symptom="Small differences in every logit; a converted checkpoint is a little worse than it should be.",
    cause="As in a usual layer, keys and values are made of the input of the last lower layer. YOCO makes them "
    "of its output.",
    seen="asked, with both in a configuration: whyNLP/LCKV issue 12",
)
class OneLayerTooEarly(YocoFormula):
    def cached(self, states):
        return states[-2]


@mistake(
    "every upper layer makes its own keys",
    rejected_by="equals the reference",
    symptom="The model that is trained is not the model that generates with the shared cache.",
    cause="Without a cache at hand, each upper layer makes keys and values of its own input.",
    seen="ml-explore/mlx-lm issue 1674",
)
class OwnKeys(YocoFormula):
    def read(self, cached, x):
        return x


@mistake(
    "shared keys rotated, queries one token further",
    rejected_by="equals the reference",
    symptom="A prompt read in one piece does not agree with the same prompt read token by token.",
    cause="The position is taken from the shared cache, to which the new tokens have been added already.",
    seen="ml-explore/mlx-lm pull request 1702",
)
class QueriesTooFar(YocoFormula):
    def rotate_query(self, query, places):
        return rotated(query, places + query.shape[2])


@mistake(
    "keys and values of a state that is not normalized",
    rejected_by="equals the reference",
    symptom="Scores grow with the depth of the lower half.",
    cause="The norm before the shared keys and values belongs to no layer, and was forgotten.",
)
class NotNormalized(YocoFormula):
    def normed(self, x, weight, config):
        return x * weight


@mistake(
    "cross-attention without a causal mask",
    rejected_by="no token depends on later ones",
    symptom="The loss falls to nearly 0, and the model generates nonsense.",
    cause="Cross-attention to an encoder needs no mask, so it got none. Here it attends to the text itself.",
)
class NotCausal(YocoFormula):
    def allowed(self, real, config):
        return real[:, None, None].expand(-1, -1, real.shape[1], -1)


@mistake(
    "a window one token too wide",
    rejected_by="the window ends where it should",
    symptom="Loaded weights give slightly other numbers once the text is longer than the window.",
    cause="A window of w has the token itself and w - 1 before it, not w before it.",
)
class WindowTooWide(YocoFormula):
    def window(self, config):
        return config.window + 1


@mistake(
    "the window in the upper half, too",
    rejected_by="the upper half reads the whole text",
    symptom="The model forgets the beginning of a long text, as if it had no global attention.",
    cause="All layers got the window; only those of the lower half have it.",
)
class WindowAbove(YocoFormula):
    def allowed(self, real, config):
        window = real.shape[1] if config.window is None else config.window
        return super().allowed(real, config) & (steps_back(real.shape[1]) < window)


@mistake(
    "the cache is detached in training",
    rejected_by="the gradients are right",
    symptom="Right numbers; the lower half learns from its residual stream alone.",
    cause="Keys and values are stored without their graph, as a cache for generation stores them.",
)
class CacheDetached(YocoFormula):
    def cached(self, states):
        return states[-1].detach()
