"""Short convolutions by torch's and by a matrix; scans by a matrix, by halves and in log space; SSD by einsum."""

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.layers.short_convolution import short_convolution
from tested_transformer.mixers.mamba import (
    chunked_selective_scan,
    parallel_selective_scan,
    recurrent_selective_scan,
)
from tested_transformer.mixers.mamba2 import chunked_ssd, parallel_ssd, recurrent_ssd

right("short_convolution", "the package's")(short_convolution)
right("selective_scan", "the package's, recurrent")(recurrent_selective_scan)
right("selective_scan", "the package's, parallel")(parallel_selective_scan)
right("selective_scan", "the package's, in chunks")(chunked_selective_scan)
right("ssd", "the package's, parallel")(parallel_ssd)
right("ssd", "the package's, recurrent")(recurrent_ssd)
right("ssd", "the package's, in chunks")(chunked_ssd)


@right("short_convolution", "a sum of shifted texts")
def by_shifts(x, weight, bias=None, *, state=None):
    width = weight.shape[1]
    state = x.new_zeros(len(x), x.shape[2], width - 1) if state is None else state
    tokens = torch.cat([state.mT, x], 1)
    length = x.shape[1]
    y = sum(weight[:, k] * tokens[:, k : k + length] for k in range(width))
    return (y if bias is None else y + bias), tokens[:, length:].mT


@right("short_convolution", "token by token, its window rolled")
def by_windows(x, weight, bias=None, *, state=None, real=None):
    window = x.new_zeros(len(x), x.shape[2], weight.shape[1] - 1) if state is None else state
    outputs = [x[:, :0]]
    for t in range(x.shape[1]):
        whole = torch.cat([window, x[:, t, :, None]], -1)
        y = torch.einsum("bdw,dw->bd", whole, weight) + (0 if bias is None else bias)
        if real is None:
            window = whole[..., 1:]
        else:
            window = torch.where(real[:, t, None, None], whole[..., 1:], window)
            y = torch.where(real[:, t, None], y, torch.zeros_like(y))
        outputs.append(y[:, None])
    return torch.cat(outputs, 1), window


@wrong("short_convolution", "torch's padding keeps the wrong end")
def wrong_end(x, weight, bias=None, *, state=None, real=None):
    y, last = short_convolution(x, weight, bias, state=state, real=real)
    if state is None and real is None and x.shape[1]:
        width = weight.shape[1]
        y = functional.conv1d(
            x.mT, weight[:, None], bias, padding=width - 1, groups=x.shape[2]
        )[..., width - 1 :].mT  # fmt: skip
    return y, last


@wrong("short_convolution", "the state is detached")
def detached_window(x, weight, bias=None, *, state=None, real=None):
    state = None if state is None else state.detach()
    return short_convolution(x, weight, bias, state=state, real=real)


def stepped(delta, real):
    return delta if real is None else torch.where(real[..., None], delta, torch.zeros_like(delta))


def hold(z):
    """(exp(z) - 1) / z for negative z."""
    return torch.expm1(z) / z


@right("selective_scan", "a matrix over tokens for every feature and state")
def by_matrix(x, delta, a, b, c, *, skip=None, state=None, real=None, method="euler"):
    length = x.shape[1]
    delta = stepped(delta, real)
    logs = delta[..., None] * a  # B L D N
    steps = logs[:, :, None].expand(-1, -1, length, -1, -1)  # row i, column j: the decay of token i
    below = torch.ones(length, length, dtype=torch.bool).tril(-1)[..., None, None]
    sums = steps.masked_fill(~below, 0.0).cumsum(1)
    matrix = sums.masked_fill(
        ~(below | torch.eye(length, dtype=torch.bool)[..., None, None]), -torch.inf
    )
    update = b[:, :, None] * (delta * x)[..., None]
    if method == "zoh":
        update = update * torch.where(
            logs == 0, torch.ones_like(logs), hold(logs - 1.0 * (logs == 0))
        )
    states = torch.einsum("bijdn,bjdn->bidn", matrix.exp(), update)
    before = x.new_zeros(len(x), *a.shape) if state is None else state
    states = states + logs.cumsum(1).exp() * before[:, None]
    y = torch.einsum("bldn,bln->bld", states, c)
    y = y if skip is None else y + skip * x
    return y, torch.cat([before[:, None], states], 1)[:, -1]


@right("selective_scan", "two halves, each by two halves")
def by_halves(x, delta, a, b, c, *, skip=None, state=None, real=None):
    if x.shape[1] < 2:
        return by_matrix(x, delta, a, b, c, skip=skip, state=state, real=real)
    cut, outputs = x.shape[1] // 2, []
    for part in (slice(None, cut), slice(cut, None)):
        own = None if real is None else real[:, part]
        y, state = by_halves(
            x[:, part], delta[:, part], a, b[:, part], c[:, part], skip=skip, state=state, real=own
        )
        outputs.append(y)
    return torch.cat(outputs, 1), state


@wrong("selective_scan", "b is not scaled by the step")
def unscaled(x, delta, a, b, c, *, skip=None, state=None, real=None, method="euler"):
    safe = torch.where(delta == 0, torch.ones_like(delta), delta)
    y, last = recurrent_selective_scan(
        x / safe, delta, a, b, c, state=state, real=real, method=method
    )
    return (y if skip is None else y + skip * x), last


@wrong("selective_scan", "the hold forgets its quotient")
def no_quotient(x, delta, a, b, c, *, method="euler", **options):
    if (
        method == "zoh"
    ):  # exp(delta a) - 1, without 1 / a: constant in the step, and still a semigroup
        scaled = -a.mean()
        b = b * scaled
    return recurrent_selective_scan(x, delta, a, b, c, method=method, **options)


@wrong("selective_scan", "a gets no gradient")
def fixed(x, delta, a, b, c, **options):
    return recurrent_selective_scan(x, delta, a.detach(), b, c, **options)


@right("ssd", "einsum over all tokens, decays from differences of sums")
def ssd_by_einsum(x, delta, a, b, c, *, skip=None, state=None, real=None):
    length, times = x.shape[2], x.shape[1] // b.shape[1]
    b, c = (
        each.unflatten(1, (-1, 1)).expand(-1, -1, times, -1, -1).flatten(1, 2) for each in (b, c)
    )
    if real is not None:
        delta = delta * real[:, None]
    state = x.new_zeros(*x.shape[:2], b.shape[-1], x.shape[-1]) if state is None else state
    sums = (delta * a[:, None]).cumsum(-1)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    decay = (sums[..., :, None] - sums[..., None, :]).masked_fill(future, 0.0).exp()
    decay = decay.masked_fill(future, 0.0)
    y = torch.einsum("bhin,bhjn,bhij,bhj,bhjd->bhid", c, b, decay, delta, x)
    y = y + torch.einsum("bhi,bhin,bhnd->bhid", sums.exp(), c, state)
    total = (delta * a[:, None]).sum(-1)
    rest = (total[..., None] - sums).exp() * delta
    new = torch.einsum("bhj,bhjn,bhjd->bhnd", rest, b, x)
    y = y if skip is None else y + torch.einsum("h,bhld->bhld", skip, x)
    return y, new + total.exp()[..., None, None] * state


@right("ssd", "one selective scan per head")
def ssd_by_scans(x, delta, a, b, c, *, skip=None, state=None, real=None):
    outputs, states = [], []
    for head in range(x.shape[1]):
        group, (width, number) = head * b.shape[1] // x.shape[1], (x.shape[-1], b.shape[-1])
        y, last = by_matrix(
            x[:, head], delta[:, head, :, None].expand(-1, -1, width), a[head].expand(width, number),
            b[:, group], c[:, group], skip=None if skip is None else skip[head].expand(width),
            state=None if state is None else state[:, head].mT, real=real,
        )  # fmt: skip
        outputs.append(y)
        states.append(last.mT)
    return torch.stack(outputs, 1), torch.stack(states, 1)


@wrong("ssd", "the state is detached from call to call")
def ssd_detached(x, delta, a, b, c, *, state=None, **options):
    return parallel_ssd(
        x, delta, a, b, c, state=None if state is None else state.detach(), **options
    )


@wrong("ssd", "a scale, as attention has it")
def ssd_scaled(x, delta, a, b, c, **options):
    return parallel_ssd(x, delta, a, b, c * c.shape[-1] ** -0.5, **options)
