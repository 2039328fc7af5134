"""Dynamic convolution by shifts, by torch's convolution of each token's window, and by einsum."""

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.mixers.dynamic_convolution import dynamic_convolution

right("dynamic_convolution", "the package's")(dynamic_convolution)


@right("dynamic_convolution", "shifted copies")
def by_shifts(x, logits, *, causal=False, key_mask=None):
    """Tap by tap: the whole sequence, moved by some tokens, times one weight per token."""
    x = x if key_mask is None else x * key_mask[..., None]
    (heads, width), length = logits.shape[-2:], x.shape[1]
    weights = logits.softmax(-1).repeat_interleave(x.shape[-1] // heads, -2)  # B L D K
    before = width - 1 if causal else (width - 1) // 2
    output = torch.zeros_like(x)
    for tap in range(width):
        shift = tap - before
        moved = functional.pad(x, (0, 0, max(0, -shift), max(0, shift)))
        output = output + weights[..., tap] * moved[:, max(0, shift) :][:, :length]
    return output


@right("dynamic_convolution", "torch's conv1d, token by token")
def by_conv1d(x, logits, *, causal=False, key_mask=None):
    x = x if key_mask is None else x.masked_fill(~key_mask[..., None], 0.0)
    heads, width = logits.shape[-2:]
    logits = logits.expand(*x.shape[:2], heads, width)
    before = width - 1 if causal else (width - 1) // 2
    padded = functional.pad(x.mT, (before, width - 1 - before))  # B D L+K-1
    outputs = [x.new_zeros(x.shape[0], 0, x.shape[2])]
    for i in range(x.shape[1]):
        kernels = logits[:, i].softmax(-1).repeat_interleave(x.shape[-1] // heads, 1)  # B D K
        window = padded[:, :, i : i + width].flatten(0, 1)[None]  # 1 BD K
        found = functional.conv1d(window, kernels.flatten(0, 1)[:, None], groups=window.shape[1])
        outputs.append(found.view(x.shape[0], 1, x.shape[2]))
    return torch.cat(outputs, 1)


@wrong("dynamic_convolution", "the weights are detached")
def detached(x, logits, **options):
    return dynamic_convolution(x, logits.detach(), **options)


@wrong("dynamic_convolution", "an even kernel is centered on the right")
def other_middle(x, logits, *, causal=False, key_mask=None):
    if causal or logits.shape[-1] % 2:
        return dynamic_convolution(x, logits, causal=causal, key_mask=key_mask)
    return dynamic_convolution(
        x.flip(1),
        logits.expand(*x.shape[:2], -1, -1).flip(1, 3),
        key_mask=None if key_mask is None else key_mask.flip(1),
    ).flip(1)
