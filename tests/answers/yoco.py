"""YOCO one token after the other, with states and lists of keys, and the package's with a part put wrong."""

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.models.yoco import Yoco
from tested_transformer.specs.yoco.weights import by_name

right("yoco", "the package's")(Yoco)


class TokenByToken:
    """Every token by itself: lower states or last keys, one growing list of keys and values, no masks."""

    def __init__(self, w, config):
        self.w, self.config = w, config
        self.states, self.keys, self.values, self.place = {}, [], [], 0

    def step(self, token):
        w, config = self.w, self.config
        x = w["embedding.table.weight"][token] * config.d_model**0.5
        for n in range(config.num_layers):
            at = f"layers.{n}"
            if n == config.num_lower:
                own = self.norm(x, "shared.norm")
                self.keys.append(self.turned(self.heads(own, "shared.key")))
                self.values.append(self.heads(own, "shared.value"))
            own = self.norm(x, f"{at}.residuals.0.norm")
            if n >= config.num_lower:
                query = self.turned(self.heads(own, f"{at}.attention.query"))
                mixed = self.attend(query, self.keys, self.values).flatten()
                x = x + w[f"{at}.attention.output.weight"] @ mixed
            elif config.window is None:
                x = x + self.retain(own, f"{at}.retention")
            else:
                x = x + self.look(own, f"{at}.attention")
            own = self.norm(x, f"{at}.residuals.1.norm")
            gate, up, down = (
                w[f"{at}.feed_forward.{p}_proj.weight"] for p in ("gate", "up", "down")
            )
            x = x + down @ (functional.silu(gate @ own) * (up @ own))
        self.place += 1
        return w["embedding.table.weight"] @ self.norm(x, "norm")

    def norm(self, x, name):
        return functional.rms_norm(x, x.shape, self.w[f"{name}.weight"], self.config.norm_eps)

    def heads(self, x, name):
        return (self.w[f"{name}.weight"] @ x).view(-1, self.config.d_head)

    def turned(self, x):
        """Each pair of neighbors as a complex number, times a unit one."""
        pairs = torch.arange(x.shape[-1] // 2, dtype=torch.float64)
        angles = (self.place * 10000.0 ** (-2 * pairs / x.shape[-1])).to(x.dtype)
        numbers = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(numbers * torch.polar(torch.ones_like(angles), angles)).flatten(
            -2
        )

    def attend(self, query, keys, values):
        group = query.shape[0] // keys[0].shape[0]
        key, value = (torch.stack(some, 1).repeat_interleave(group, 0) for some in (keys, values))
        scores = (query[:, None] * key).sum(-1) / query.shape[-1] ** 0.5  # H S
        return (scores.softmax(-1)[..., None] * value).sum(1)

    def retain(self, own, name):
        query, key, value = (self.heads(own, f"{name}.{p}") for p in ("query", "key", "value"))
        query, key = self.turned(query), self.turned(key)
        decay = (self.w[f"{name}.decay.weight"] @ own).sigmoid() ** (1 / self.config.temperature)
        new = key[:, :, None] * value[:, None, :]
        self.states[name] = new + decay[:, None, None] * self.states.get(name, 0.0)
        found = (query[:, :, None] * self.states[name]).sum(1) * query.shape[-1] ** -0.5
        found = found / (found.square().mean(-1, keepdim=True) + self.config.norm_eps).sqrt()
        gated = functional.silu(self.w[f"{name}.gate.weight"] @ own) * found.flatten()
        return self.w[f"{name}.output.weight"] @ gated

    def look(self, own, name):
        query, key, value = (self.heads(own, f"{name}.{p}") for p in ("query", "key", "value"))
        keys, values = self.states.setdefault(name, ([], []))
        keys.append(self.turned(key))
        values.append(value)
        width = self.config.window
        mixed = self.attend(self.turned(query), keys[-width:], values[-width:])
        return self.w[f"{name}.output.weight"] @ mixed.flatten()


@right("yoco", "one token after the other")
def token_by_token(ids, weights, config):
    samples = []
    for row in ids:
        run, logits = TokenByToken(by_name(weights, config), config), []
        for token in row:
            is_padding = config.pad_id is not None and int(token) == config.pad_id
            logits.append(weights.new_zeros(config.vocab_size) if is_padding else run.step(token))
        samples.append(torch.stack(logits))
    return torch.stack(samples)


@wrong("yoco", "the queries of the upper half are not rotated")
class QueriesNotRotated(Yoco):
    def __init__(self, config):
        super().__init__(config)
        for layer in self.layers[config.num_lower :]:
            layer.attention.positions = None


@wrong("yoco", "the temperature is the default one")
class DefaultTemperature(Yoco):
    def __init__(self, config):
        super().__init__(config)
        for layer in self.layers[: config.num_lower]:
            if hasattr(layer, "retention"):
                layer.retention.temperature = 16.0


@wrong("yoco", "one lower layer more than the half")
class OneMoreBelow(Yoco):
    def _lower(self, *arguments):
        x, upper = super()._lower(*arguments)
        layer = self.layers[self.config.num_lower]
        own = {name: upper[name] for name in ("key", "value", "mask", "position_ids")}
        return layer(x, **own), upper
