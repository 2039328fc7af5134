"""The answers to the exercises of chapter 8; the networks stand with the feed-forward family."""

import torch

from . import right, wrong

# --- Dead units -----------------------------------------------------------------------------------


@right("ch08.dead_units")
def none_above_zero(x, w_up, b_up):
    return ~((x @ w_up + b_up) > 0).flatten(0, -2).any(0)


@right("ch08.dead_units")
def sums_of_the_activation(x, w_up, b_up):
    return torch.relu(x @ w_up + b_up).reshape(-1, len(b_up)).sum(0) == 0


@right("ch08.dead_units")
def unit_by_unit(x, w_up, b_up):
    tokens = x.reshape(-1, x.shape[-1])
    rows = zip(w_up.T, b_up, strict=True)
    return torch.tensor([bool((tokens @ w + b).max() <= 0) for w, b in rows])


@wrong("ch08.dead_units", "below 1e-9 is taken for dead")
def with_a_tolerance(x, w_up, b_up):
    return torch.relu(x @ w_up + b_up).flatten(0, -2).amax(0) < 1e-9


@wrong("ch08.dead_units", "close to 0 by torch's own tolerance")
def nearly_zero(x, w_up, b_up):
    most = torch.relu(x @ w_up + b_up).flatten(0, -2).amax(0)
    return torch.isclose(most, torch.zeros_like(most))


@wrong("ch08.dead_units", "only the last token of each sample")
def last_token(x, w_up, b_up):
    return ((x @ w_up + b_up)[..., -1:, :] <= 0).flatten(0, -2).all(0)


@wrong("ch08.dead_units", "the bias is forgotten")
def without_bias(x, w_up, b_up):
    return ((x @ w_up) <= 0).flatten(0, -2).all(0)


@wrong("ch08.dead_units", "computed in half precision")
def in_half(x, w_up, b_up):
    return ((x.half() @ w_up.half() + b_up.half()) <= 0).flatten(0, -2).all(0)


# --- A memory by hand -----------------------------------------------------------------------------


@right("ch08.remember")
def halved_values(keys, values):
    """A match is D - (D - 2) = 2."""
    bias = torch.full((len(keys),), 2.0 - keys.shape[1], dtype=keys.dtype)
    return keys.T, bias, values / 2, torch.zeros_like(values[0])


@right("ch08.remember")
def scaled_keys(keys, values):
    """A match is 1, all others at most 1 - 2 / D, and the threshold is half way."""
    d = keys.shape[1]
    bias = torch.full((len(keys),), 1 / d - 1, dtype=keys.dtype)
    return keys.T / d, bias, d * values, torch.zeros_like(values[0])


@right("ch08.remember")
def with_an_offset(keys, values):
    """Every unit adds its value above a common part, which the output bias holds."""
    part = torch.zeros_like(values[0])
    bias = keys.new_full((len(keys),), 0.5 - keys.shape[1])
    return keys.T, bias, 2 * (values - part), part


@wrong("ch08.remember", "a soft threshold that lets one in a thousand through")
def leaky(keys, values):
    bias = keys.new_full((len(keys),), 1.999 - keys.shape[1])
    return keys.T, bias, values / 2, torch.zeros_like(values[0])


@wrong("ch08.remember", "the output bias is the mean of the values")
def mean_value(keys, values):
    bias = keys.new_full((len(keys),), 1.0 - keys.shape[1])
    mean = values.mean(0)
    return keys.T, bias, values - mean, mean


@wrong("ch08.remember", "the last fact is lost")
def one_short(keys, values):
    bias = keys.new_full((len(keys),), 1.0 - keys.shape[1])
    kept = values.clone()
    kept[-1] = 0
    return keys.T, bias, kept, torch.zeros_like(values[0])


@wrong("ch08.remember", "the values are rounded to float32")
def rounded(keys, values):
    bias = keys.new_full((len(keys),), 1.0 - keys.shape[1])
    return keys.T, bias, values.float().double(), torch.zeros_like(values[0])


# --- The share of the work ------------------------------------------------------------------------


@right("ch08.ffn_share")
def by_flops(length, d_model, d_ff):
    network = 4 * length * d_model * d_ff
    return network / (network + 8 * length * d_model**2 + 4 * length**2 * d_model)


@right("ch08.ffn_share")
def one_less_the_rest(length, d_model, d_ff):
    return 1 - (2 * d_model + length) / (d_ff + 2 * d_model + length)


@right("ch08.ffn_share")
def from_the_ratio(length, d_model, d_ff):
    return 1 / (1 + (2 * d_model + length) / d_ff)


@wrong("ch08.ffn_share", "half of the scores, as if causal")
def causal(length, d_model, d_ff):
    return d_ff / (d_ff + 2 * d_model + length / 2)


@wrong("ch08.ffn_share", "d_ff is taken to be 4 D")
def four_times(length, d_model, d_ff):
    return 4 * d_model / (6 * d_model + length)


@wrong("ch08.ffn_share", "the biases are counted")
def with_biases(length, d_model, d_ff):
    network = 4 * length * d_model * d_ff + length * (d_ff + d_model)
    return network / (network + 8 * length * d_model**2 + 4 * length**2 * d_model)


@wrong("ch08.ffn_share", "rounded to three digits")
def to_three_digits(length, d_model, d_ff):
    return round(by_flops(length, d_model, d_ff), 3)
