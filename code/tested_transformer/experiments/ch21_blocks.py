"""A small Llama that counts, its feed-forward network rebuilt: splines, ternary weights, eight experts (chapter 21)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..functional.balance import balance_bias_step, balance_loss, expert_counts
from ..layers.bit_linear import BitLinear
from ..layers.kan import KANFeedForward
from ..layers.moe import ExpertsConfig, MixtureOfExperts, record_router_logits
from ..models.language_model import LanguageModel
from ..training.losses import next_token_loss
from .ch13_counting import LLAMA, counting_config, train_counting

EXPERTS, CHOSEN, D_EXPERT = (
    8,
    2,
    85,
)  # two experts are as large as the dense network: 2 x 85 and 171
ONE = {"num_chosen": 1, "d_expert": 171, "normalize": False}  # as in the Switch Transformer
COEFFICIENT, BIAS_RATE = 0.01, 0.01


@dataclass(frozen=True)
class Block:
    """One way to rebuild the feed-forward network, and how its router is balanced."""

    experts: ExpertsConfig | None = None
    balance: str = "none"  # "loss" or "bias"
    kan: dict[str, Any] | None = None
    ternary: bool = False


def mixture(**options: Any) -> ExpertsConfig:
    """Eight experts, two of them for each token."""
    sizes = {"num_experts": EXPERTS, "num_chosen": CHOSEN, "d_expert": D_EXPERT, "normalize": True}
    return ExpertsConfig(**sizes | options)


BLOCKS = {
    "SwiGLU": Block(),
    "splines (KAN)": Block(
        kan={"d_hidden": 28, "grid_size": 5, "degree": 3, "low": -3.0, "high": 3.0}
    ),
    "ternary weights": Block(ternary=True),
    "8 experts, no balance": Block(experts=mixture()),
    "8 experts, balance loss": Block(experts=mixture(), balance="loss"),
    "8 experts, bias": Block(experts=mixture(scoring="sigmoid"), balance="bias"),
    "1 of 8, no balance": Block(experts=mixture(**ONE)),
    "1 of 8, balance loss": Block(experts=mixture(**ONE), balance="loss"),
    "1 of 8, bias": Block(experts=mixture(**ONE, scoring="sigmoid"), balance="bias"),
}


def block_model(name: str) -> LanguageModel:
    """The Llama of chapter 13 with a block of BLOCKS in each layer."""
    block = BLOCKS[name]
    model = LanguageModel(counting_config(**LLAMA, experts=block.experts))
    for layer in model.layers:
        if block.kan is not None:
            layer.feed_forward = KANFeedForward(model.config.d_model, **block.kan)
        if block.ternary:
            make_ternary(layer.feed_forward)
    return model


def make_ternary(module: nn.Module) -> None:
    """Put a BitLinear of the same weights in the place of every linear layer."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            bit = BitLinear(child.in_features, child.out_features, bias=child.bias is not None)
            bit.load_state_dict(child.state_dict())
            setattr(module, name, bit)
        else:
            make_ternary(child)


def train_block(
    model: LanguageModel, name: str, seed: int, steps: int, *, lr: float
) -> list[float]:
    """Train as in chapter 13; the loss gets a balance loss, or every step moves the biases."""
    block = BLOCKS[name]
    mixtures = [each for each in model.modules() if isinstance(each, MixtureOfExperts)]

    def loss(logits: Tensor, ids: Tensor) -> Tensor:
        value, layers = next_token_loss(logits, ids), list(recorded)
        recorded.clear()
        if block.balance == "loss":
            value = value + COEFFICIENT * balance_loss(
                torch.stack(layers), block.experts.num_chosen
            )
        if block.balance == "bias":
            for own, each in zip(mixtures, layers, strict=True):
                step_bias(own, each)
        return value

    with record_router_logits(model) as recorded:
        return train_counting(model, seed, steps, lr=lr, loss=loss)


@torch.no_grad()
def step_bias(mixture: MixtureOfExperts, logits: Float[Tensor, "*batch E"]) -> None:
    """One step of the bias of a mixture, by whom the tokens of a batch chose."""
    scores = logits.sigmoid() + mixture.choice_bias
    counts = expert_counts(scores.topk(mixture.config.num_chosen).indices, EXPERTS)
    mixture.choice_bias.copy_(balance_bias_step(mixture.choice_bias, counts, BIAS_RATE))


@torch.no_grad()
def loads(model: LanguageModel, ids: Int[Tensor, "B L"]) -> list[list[float]]:
    """For each mixture the part of all choices that each expert gets, the largest first."""
    found, handles = [], []
    for each in model.modules():
        if isinstance(each, MixtureOfExperts):
            handles.append(
                each.register_forward_pre_hook(
                    lambda own, inputs: found.append(own.route(inputs[0]).experts)
                )
            )
    model(ids)
    for handle in handles:
        handle.remove()
    counts = [expert_counts(experts, EXPERTS).double() for experts in found]
    return [(each / each.sum()).sort(descending=True).values.tolist() for each in counts]


def block_bytes(model: LanguageModel) -> int:
    """Bytes of the weights of all feed-forward blocks: float32, but two bits where they are ternary."""
    total = 0
    for layer in model.layers:
        for module in layer.feed_forward.modules():
            own = sum(weight.nbytes for weight in module.parameters(recurse=False))
            total += module.weight.numel() // 4 + 4 if isinstance(module, BitLinear) else own
    return total
