"""The answers to homework 4."""

import math

import numpy as np
import torch

from . import right, wrong

# --- repack ---------------------------------------------------------------------------------------


@right("hw04.repack")
def repack_by_axes(packed, num_heads):
    return packed.unflatten(0, (num_heads, 3, -1)).movedim(1, 0).reshape(packed.shape)


@right("hw04.repack")
def repack_by_numbers(packed, num_heads):
    rows = torch.arange(len(packed)).view(num_heads, 3, -1)
    return packed[rows.transpose(0, 1).flatten()]


@right("hw04.repack")
def repack_by_chunks(packed, num_heads):
    heads = packed.chunk(num_heads)
    return torch.cat([head.chunk(3)[part] for part in range(3) for head in heads])


@right("hw04.repack")
def repack_in_numpy(packed, num_heads):
    parts = packed.numpy().reshape(num_heads, 3, -1, *packed.shape[1:])
    return parts.swapaxes(0, 1).reshape(packed.shape)


@wrong("hw04.repack", "queries and keys change places")
def repack_swapped(packed, num_heads):
    query, key, value = repack_by_axes(packed, num_heads).chunk(3)
    return torch.cat([key, query, value])


@wrong("hw04.repack", "the heads from the last to the first")
def repack_backwards(packed, num_heads):
    return packed.unflatten(0, (num_heads, 3, -1)).flip(0).transpose(0, 1).reshape(packed.shape)


@wrong("hw04.repack", "in float32")
def repack_single(packed, num_heads):
    return repack_by_axes(packed.float(), num_heads).double()


@wrong("hw04.repack", "in place")
def repack_in_place(packed, num_heads):
    packed.copy_(repack_by_axes(packed, num_heads).clone())
    return packed


# --- group_heads ----------------------------------------------------------------------------------


@right("hw04.group_heads")
def group_by_einsum(weight, num_heads, num_groups):
    size = num_heads // num_groups
    heads = weight.reshape(len(weight), num_groups, size, -1)
    return torch.einsum("wgmd->wgd", heads).flatten(1) / size


@right("hw04.group_heads")
def group_by_a_matrix(weight, num_heads, num_groups):
    size, d = num_heads // num_groups, weight.shape[1] // num_heads
    matrix = torch.eye(num_groups).to(weight).repeat_interleave(size, 0) / size
    return weight @ torch.kron(matrix, torch.eye(d).to(weight))


@right("hw04.group_heads")
def group_in_a_loop(weight, num_heads, num_groups):
    heads, size = weight.chunk(num_heads, 1), num_heads // num_groups
    return torch.cat(
        [sum(h / size for h in heads[g * size : (g + 1) * size]) for g in range(num_groups)], 1
    )


@right("hw04.group_heads")
def group_in_numpy(weight, num_heads, num_groups):
    shape = (len(weight), num_groups, num_heads // num_groups, -1)
    return weight.numpy().reshape(shape).mean(2).reshape(len(weight), -1)


@wrong("hw04.group_heads", "the median of a group")
def group_by_medians(weight, num_heads, num_groups):
    return (
        weight.unflatten(1, (num_groups, num_heads // num_groups, -1)).median(2).values.flatten(1)
    )


@wrong("hw04.group_heads", "two heads in each group")
def group_by_twos(weight, num_heads, num_groups):
    heads = weight.unflatten(1, (num_groups, num_heads // num_groups, -1))
    return heads[:, :, :2].mean(2).flatten(1)


@wrong("hw04.group_heads", "in float32")
def group_single(weight, num_heads, num_groups):
    return group_by_einsum(weight.float(), num_heads, num_groups).double()


@wrong("hw04.group_heads", "divided by the number of groups")
def group_divided_wrong(weight, num_heads, num_groups):
    return (
        weight.unflatten(1, (num_groups, num_heads // num_groups, -1)).sum(2).flatten(1)
        / num_groups
    )


@wrong("hw04.group_heads", "numbers before groups")
def group_order(weight, num_heads, num_groups):
    return (
        group_by_einsum(weight, num_heads, num_groups).unflatten(1, (num_groups, -1)).mT.flatten(1)
    )


# --- one_bias -------------------------------------------------------------------------------------


@right("hw04.one_bias")
def bias_by_einsum(b_value, w_output, b_output, num_heads):
    rows = w_output.unflatten(0, (num_heads, -1))
    groups = b_value.view(-1, rows.shape[1])
    biases = groups.repeat_interleave(num_heads // len(groups), 0)
    return b_output + torch.einsum("hi,hic->c", biases, rows)


@right("hw04.one_bias")
def bias_summed_first(b_value, w_output, b_output, num_heads):
    """A group's heads add their rows before the bias comes."""
    d = len(w_output) // num_heads
    groups = len(b_value) // d
    rows = w_output.unflatten(0, (groups, num_heads // groups, d)).sum(1).flatten(0, 1)
    return b_value @ rows + b_output


@right("hw04.one_bias")
def bias_head_by_head(b_value, w_output, b_output, num_heads):
    d, answer = len(w_output) // num_heads, b_output.clone()
    size = num_heads * d // len(b_value)
    for h in range(num_heads):
        g = h // size
        answer += b_value[g * d : (g + 1) * d] @ w_output[h * d : (h + 1) * d]
    return answer


@right("hw04.one_bias")
def bias_in_numpy(b_value, w_output, b_output, num_heads):
    d = len(w_output) // num_heads
    spread = np.repeat(b_value.numpy().reshape(-1, d), num_heads * d // len(b_value), axis=0)
    return spread.reshape(-1) @ w_output.numpy() + b_output.numpy()


@wrong("hw04.one_bias", "the output bias changed in place")
def bias_in_place(b_value, w_output, b_output, num_heads):
    b_output += bias_summed_first(b_value, w_output, torch.zeros_like(b_output), num_heads)
    return b_output


@wrong("hw04.one_bias", "once for each group")
def bias_per_group(b_value, w_output, b_output, num_heads):
    d = len(w_output) // num_heads
    groups = len(b_value) // d
    rows = w_output.unflatten(0, (groups, num_heads // groups, d)).mean(1).flatten(0, 1)
    return b_value @ rows + b_output


@wrong("hw04.one_bias", "the value bias taken off")
def bias_minus(b_value, w_output, b_output, num_heads):
    return 2 * b_output - bias_summed_first(b_value, w_output, b_output, num_heads)


@wrong("hw04.one_bias", "each number repeated, not each group")
def bias_each_number(b_value, w_output, b_output, num_heads):
    spread = b_value.repeat_interleave(len(w_output) // len(b_value))
    return spread @ w_output + b_output


@wrong("hw04.one_bias", "in float32")
def bias_single(b_value, w_output, b_output, num_heads):
    return bias_summed_first(
        b_value.float(), w_output.float(), b_output.float(), num_heads
    ).double()


# --- next_token -----------------------------------------------------------------------------------


def parts(x, keys, w_query, w_key, w_value, num_heads):
    groups, d = keys.shape[1], keys.shape[3]
    query = (x @ w_query).view(len(x), groups, num_heads // groups, d)
    return query, (x @ w_key).view(len(x), groups, d), (x @ w_value).view(len(x), groups, d)


@right("hw04.next_token")
def next_by_einsum(x, keys, values, lengths, w_query, w_key, w_value, w_output, num_heads):
    """Own score and cached scores side by side; no head is repeated."""
    query, key, value = parts(x, keys, w_query, w_key, w_value, num_heads)
    scale = 1 / math.sqrt(keys.shape[3])
    cached = torch.einsum("bgnd,bgsd->bgns", query, keys) * scale
    hidden = torch.arange(keys.shape[2]) >= lengths[:, None, None, None]
    own = torch.einsum("bgnd,bgd->bgn", query, key)[..., None] * scale
    weights = torch.cat([cached.masked_fill(hidden, -math.inf), own], -1).softmax(-1)
    heads = torch.einsum("bgns,bgsd->bgnd", weights[..., :-1], values)
    return (heads + weights[..., -1:] * value[:, :, None]).flatten(1) @ w_output


@right("hw04.next_token")
def next_sample_by_sample(x, keys, values, lengths, w_query, w_key, w_value, w_output, num_heads):
    d, groups, rows = keys.shape[3], keys.shape[1], []
    for b, n in enumerate(lengths.tolist()):
        heads = []
        for h in range(num_heads):
            g, own = h * groups // num_heads, slice(h * d, (h + 1) * d)
            shared = slice(g * d, (g + 1) * d)
            key = torch.vstack([keys[b, g, :n], x[b] @ w_key[:, shared]])
            value = torch.vstack([values[b, g, :n], x[b] @ w_value[:, shared]])
            scores = key @ (x[b] @ w_query[:, own] / d**0.5)
            heads.append((scores - scores.logsumexp(0)).exp() @ value)
        rows.append(torch.cat(heads) @ w_output)
    return torch.stack(rows)


@right("hw04.next_token")
def next_written_into_copies(
    x, keys, values, lengths, w_query, w_key, w_value, w_output, num_heads
):
    """One slot more, the new key at its own position."""
    query, key, value = parts(x, keys, w_query, w_key, w_value, num_heads)
    pad = torch.zeros_like(keys[:, :, :1])
    keys, values = torch.cat([keys, pad], 2), torch.cat([values, pad], 2)
    rows = torch.arange(len(x))
    keys[rows, :, lengths], values[rows, :, lengths] = key, value
    scores = query @ keys.mT * keys.shape[3] ** -0.5
    hidden = torch.arange(keys.shape[2]) > lengths[:, None, None, None]
    raised = (scores - scores.masked_fill(hidden, -math.inf).amax(-1, keepdim=True)).exp()
    raised = raised.masked_fill(hidden, 0.0)
    heads = raised @ values / raised.sum(-1, keepdim=True)
    return heads.flatten(1) @ w_output


@right("hw04.next_token")
def next_in_numpy(x, keys, values, lengths, w_query, w_key, w_value, w_output, num_heads):
    answer = next_by_einsum(x, keys, values, lengths, w_query, w_key, w_value, w_output, num_heads)
    return answer.numpy()


def next_with(change):
    """The right step, given other arguments."""

    def step(*given):
        names = ("x", "keys", "values", "lengths", "w_query", "w_key", "w_value", "w_output",
                 "num_heads")  # fmt: skip
        a = dict(zip(names, given, strict=True))
        return next_by_einsum(**(a | change(a)))

    return step


wrong("hw04.next_token", "the first sample's length for all")(
    next_with(lambda a: {"lengths": a["lengths"][:1].expand_as(a["lengths"])})
)
wrong("hw04.next_token", "the query unscaled")(
    next_with(lambda a: {"w_query": a["w_query"] * a["keys"].shape[3] ** 0.5})
)
wrong("hw04.next_token", "the scale of the whole width")(
    next_with(lambda a: {"w_query": a["w_query"] * (a["keys"].shape[3] / a["x"].shape[1]) ** 0.5})
)
wrong("hw04.next_token", "keys and values change places")(
    next_with(lambda a: {"keys": a["values"], "values": a["keys"]})
)
wrong("hw04.next_token", "the last slots in place of the first")(
    next_with(lambda a: {"keys": a["keys"].flip(2), "values": a["values"].flip(2)})
)
wrong("hw04.next_token", "the oldest key forgotten once there are five")(
    next_with(lambda a: {"lengths": a["lengths"].clamp(max=4)})
)
wrong("hw04.next_token", "in float32")(
    lambda *given: next_by_einsum(
        *(g.float() if torch.is_tensor(g) and g.is_floating_point() else g for g in given)
    ).double()
)
wrong("hw04.next_token", "the new value's projection with the key's matrix")(
    next_with(lambda a: {"w_value": a["w_key"]})
)
wrong("hw04.next_token", "the output layer transposed where it fits")(
    next_with(
        lambda a: (
            {"w_output": a["w_output"].T}
            if a["w_output"].shape[0] == a["w_output"].shape[1]
            else {}
        )
    )
)
