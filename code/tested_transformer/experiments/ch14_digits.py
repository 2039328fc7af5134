"""The experiment of chapter 14: a Vision Transformer reads scikit-learn's digits, 8 x 8 pixels.

1,257 images to train on and 540 to test, drawn by a seed with as many of each digit in both. A patch has
2 x 2 pixels, so that an image is 16 tokens and a class token. Beside it stand a support vector machine
with a radial kernel and logistic regression, both as scikit-learn makes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from .. import minimal_vit
from ..bounds import PositiveFloat, PositiveInt, Seed
from ..models.loading import from_pretrained
from ..models.vit import VisionTransformer, VisionTransformerConfig, image_patches
from ..shapes import checked
from ..training.schedules import one_cycle_rate

CONFIG = VisionTransformerConfig(
    (8, 8), (2, 2), num_channels=1, num_labels=10, num_layers=3, d_model=48, num_heads=4,
    d_ff=96, dropout=0.0,
)  # fmt: skip
SHIPPED = Path(__file__).parents[1] / "data" / "trained" / "digits"
TEST, BATCH, RATE, SMOOTHING, DECAY = 540, 64, 6e-3, 0.1, 0.05


class Digits(NamedTuple):
    """Images with values in [0, 1], and which digit each one is."""

    images: Float[Tensor, "N 1 8 8"]
    labels: Int[Tensor, " N"]


@checked
def digits(seed: Seed) -> tuple[Digits, Digits]:
    """The images to train on and those to test on; needs scikit-learn, which brings them along."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    split = train_test_split(
        images / 16, labels, test_size=TEST, random_state=seed, stratify=labels
    )
    train, test, *answers = (torch.from_numpy(each) for each in split)
    pixels = (each.float().view(-1, 1, 8, 8) for each in (train, test))
    return tuple(Digits(*pair) for pair in zip(pixels, answers, strict=True))


@checked
def moved(images: Float[Tensor, "N 1 8 8"]) -> Float[Tensor, "N 1 8 8"]:
    """Each image turned by up to 10 degrees, scaled by up to a tenth and shifted by up to half a pixel."""
    draws = 2 * torch.rand(4, len(images)) - 1  # of each: angle, scale, right, down
    angles, scales = math.radians(10) * draws[0], 1 + 0.1 * draws[1]
    cosine, sine, shifts = scales * angles.cos(), scales * angles.sin(), draws[2:] / 8
    rows = (cosine, -sine, shifts[0]), (sine, cosine, shifts[1])
    maps = torch.stack([torch.stack(row, -1) for row in rows], 1)  # N 2 3
    grid = functional.affine_grid(maps, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


@checked
def in_order(
    images: Float[Tensor, "N 1 8 8"], order: Int[Tensor, "N P"]
) -> Float[Tensor, "N 1 8 8"]:
    """The images whose patch n is patch order[n] of the given ones."""
    patches = image_patches(images, (2, 2)).take_along_dim(order.unsqueeze(-1), 1)  # N 16 4
    return functional.fold(patches.transpose(1, 2), (8, 8), (2, 2), stride=2)


@checked
def shuffled(images: Float[Tensor, "N 1 8 8"]) -> Float[Tensor, "N 1 8 8"]:
    """The 16 patches of each image in an order of its own."""
    return in_order(images, torch.rand(len(images), 16).argsort(1))


@checked
def fixed_order(images: Float[Tensor, "N 1 8 8"]) -> Float[Tensor, "N 1 8 8"]:
    """The 16 patches of all images in the same wrong order."""
    order = torch.rand(16, generator=torch.Generator().manual_seed(14)).argsort()
    return in_order(images, order.expand(len(images), -1))


@checked
def reshaped(images: Float[Tensor, "N 1 8 8"]) -> Float[Tensor, "N 1 8 8"]:
    """What a model reads whose patches are cut by a reshape alone: four pixels of a line are one patch."""
    patches = images.reshape(-1, 16, 4)
    return functional.fold(patches.transpose(1, 2), (8, 8), (2, 2), stride=2)


@checked
def trained_vit(
    train: Digits,
    seed: Seed,
    *,
    epochs: PositiveInt = 100,
    lr: PositiveFloat = RATE,
    view: Callable[[Tensor], Tensor] | None = moved,
    positions: bool = True,
    **changes: Any,
) -> VisionTransformer:
    """A Vision Transformer trained for so many epochs; changes: other fields of its configuration.

    view: what is done to the images of each batch. positions: False leaves them zero.
    """
    torch.manual_seed(seed)
    model = VisionTransformer(replace(CONFIG, **changes)).train()
    if not positions:
        nn.init.zeros_(model.embedding.positions).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=DECAY)
    steps = epochs * (len(train.images) // BATCH)
    for step in range(1, steps + 1):
        rows = torch.randint(len(train.images), (BATCH,))
        images = train.images[rows] if view is None else view(train.images[rows])
        optimizer.param_groups[0]["lr"] = one_cycle_rate(step, total=steps, peak=lr)
        loss = functional.cross_entropy(
            model(images), train.labels[rows], label_smoothing=SMOOTHING
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def load_vit() -> VisionTransformer:
    """The trained model that comes with the package, of seed 0, in eval mode.

    tools/train_digits.py made it.

    Source: chapter 14.
    """
    return from_pretrained(SHIPPED).eval()


def plain_vit(model: VisionTransformer) -> minimal_vit.ViT:
    """The same model in `minimal_vit`, with torch's own encoder layers."""
    config, embedding = model.config, model.embedding
    plain = minimal_vit.ViT(
        config.image_size, config.patch_size, config.num_channels, config.d_model,
        config.num_heads, config.d_ff, config.num_layers, config.num_labels,
    ).to(embedding.positions)  # fmt: skip
    weights = {
        "cls_token": embedding.cls_token,
        "positions": embedding.positions,
        "projection.weight": embedding.projection.weight.flatten(1),
        "projection.bias": embedding.projection.bias,
    }
    weights |= named("norm", model.norm) | named("head", model.output)
    for number, layer in enumerate(model.layers):
        name, attention, feed_forward = f"layers.{number}", layer.attention, layer.feed_forward
        parts = (attention.query, attention.key, attention.value)
        for kind in ("weight", "bias"):
            joined = torch.cat([getattr(part, kind) for part in parts])
            weights[f"{name}.self_attn.in_proj_{kind}"] = joined
        weights |= named(f"{name}.self_attn.out_proj", attention.output)
        weights |= named(f"{name}.linear1", feed_forward.up_proj)
        weights |= named(f"{name}.linear2", feed_forward.down_proj)
        weights |= named(f"{name}.norm1", layer.residuals[0].norm)
        weights |= named(f"{name}.norm2", layer.residuals[1].norm)
    plain.load_state_dict(weights)
    for layer in plain.modules():
        if isinstance(layer, nn.LayerNorm):
            layer.eps = config.norm_eps
    return plain.eval()


def named(name: str, layer: nn.Module) -> dict[str, Tensor]:
    """Weight and bias under another name."""
    return {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}


@torch.no_grad()
@checked
def accuracy(model: nn.Module, test: Digits) -> float:
    """The share of images whose digit gets the largest logit."""
    return float((model(test.images).argmax(-1) == test.labels).float().mean())


@checked
def validation_split(train: Digits, seed: Seed) -> tuple[Digits, Digits]:
    """A fifth of the training images, drawn by a seed, to choose settings with; the others to train on."""
    from sklearn.model_selection import train_test_split

    split = train_test_split(*train, test_size=0.2, random_state=seed, stratify=train.labels)
    return Digits(*split[::2]), Digits(*split[1::2])


@checked
def many_moved(train: Digits, copies: PositiveInt) -> Digits:
    """Each image as it is, and so many times moved."""
    images = [train.images, *(moved(train.images) for _ in range(copies))]
    return Digits(torch.cat(images), train.labels.repeat(1 + copies))


def baseline(
    name: Literal["SVC", "logistic regression"], c: float, train: Digits, test: Digits
) -> float:
    """The accuracy of a model of scikit-learn's; c: the larger, the less it is regularized."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import SVC

    model = SVC(C=c) if name == "SVC" else LogisticRegression(C=c, max_iter=1000)
    pixels, asked = (each.images.flatten(1).double().numpy() for each in (train, test))
    return float(model.fit(pixels, train.labels.numpy()).score(asked, test.labels.numpy()))
