"""A Vision Transformer in one file, for chapter 14: torch alone, no options, no checks, no dropout."""

import torch
from torch import nn


def image_patches(images, patch):
    """B C H W -> B N (C h w): rectangles of h x w pixels, row by row, each as a vector."""
    (B, C, H, W), (h, w) = images.shape, patch
    x = images.reshape(B, C, H // h, h, W // w, w)
    x = x.permute(0, 2, 4, 1, 3, 5)  # B rows columns C h w
    return x.flatten(3).flatten(1, 2)  # B N (C h w)


class ViT(nn.Module):
    """An encoder over a class token and patches, with one logit per class."""

    def __init__(self, size, patch, channels, d_model, num_heads, d_ff, num_layers, num_classes):
        super().__init__()
        (H, W), (h, w) = size, patch
        self.patch = patch
        self.projection = nn.Linear(channels * h * w, d_model)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, d_model))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + H // h * (W // w), d_model))
        options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.layers = nn.Sequential()
        for _ in range(num_layers):
            self.layers.append(nn.TransformerEncoderLayer(d_model, num_heads, d_ff, **options))
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, num_classes)

    def forward(self, images):
        """B C H W -> B num_classes."""
        tokens = self.projection(image_patches(images, self.patch))  # B N D
        first = self.cls_token.expand(len(images), 1, -1)  # B 1 D
        x = torch.cat([first, tokens], dim=1) + self.positions  # B 1+N D
        x = self.norm(self.layers(x))
        return self.head(x[:, 0])  # from the class token alone
