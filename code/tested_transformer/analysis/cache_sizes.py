"""How many bytes a key-value cache takes for each token, in models whose sizes are published."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from ..bounds import AtLeast, AtMost, Divides, NonNegativeInt, PositiveInt
from ..errors import argument_error
from ..shapes import check_fields, checked

__all__ = ["CACHED_MODELS", "CachedModel", "cache_bytes", "cache_flops_per_byte"]


@dataclass(frozen=True)
class CachedModel:
    """The sizes of a model on which its cache depends.

    kv_heads: G, for a model that caches keys and values of d_head features. latent: c, for one that
    caches a latent and a rotary key of `rotary` features in their place. One of the two is given.
    caching: how many layers have a cache that grows, if not all do: 1 in a YOCO.

    Raises: TypeError or ValueError that name the field.
    Source: Shazeer 2019; Ainslie et al. 2023; DeepSeek-AI 2024 (DeepSeek-V2), table 1.
    """

    layers: PositiveInt
    heads: PositiveInt
    d_head: PositiveInt
    _: KW_ONLY
    kv_heads: Annotated[int, AtLeast(1), Divides("heads")] | None = None
    latent: PositiveInt | None = None
    rotary: NonNegativeInt = 0
    caching: Annotated[int, AtLeast(1), AtMost("layers")] | None = None
    source: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.kv_heads is None) == (self.latent is None):
            wanted = "a number, or None with kv_heads: one of the two says what is cached"
            raise argument_error(ValueError, "latent", self.latent, wanted)

    @property
    def cached(self) -> int:
        """Numbers that each caching layer caches for a token."""
        if self.latent is not None:
            return self.latent + self.rotary
        return 2 * self.kv_heads * self.d_head

    @property
    def kind(self) -> str:
        """The usual name: MHA, GQA, MQA or MLA."""
        if self.latent is not None:
            return "MLA"
        return {self.heads: "MHA", 1: "MQA"}.get(self.kv_heads, "GQA")


@checked
def cache_bytes(model: CachedModel, tokens: NonNegativeInt = 1, *, item: PositiveInt = 2) -> int:
    """Bytes of the cache for one sequence of so many tokens; item: bytes of a number.

    Every layer counts in full, also where a sliding window would let it forget; with `caching` those alone.
    What does not grow, such as the states of retention, is not counted.

    Raises: TypeError or ValueError that name the argument.
    Source: Shazeer 2019, section 2.4.1; DeepSeek-AI 2024 (DeepSeek-V2), table 1.

    >>> cache_bytes(CACHED_MODELS["LLaMA-13B"])
    819200
    """
    layers = model.layers if model.caching is None else model.caching
    return layers * model.cached * item * tokens


@checked
def cache_flops_per_byte(model: CachedModel, *, item: PositiveInt = 2) -> float:
    """FLOPs for each byte of the cache that is read when one new token attends to it.

    A query multiplies every key and its weight every value, a multiplication and an addition each; H / G
    query heads use the same bytes. With a latent, in the absorbed form, all heads use them.

    Raises: TypeError or ValueError that name the argument.
    Source: Shazeer 2019, sections 2.4.1 and 3; Ainslie et al. 2023, section 2.

    >>> cache_flops_per_byte(CACHED_MODELS["LLaMA-13B"])
    1.0
    """
    if model.latent is None:
        used = 2 * model.heads * model.d_head  # by a query and by its weight, in all heads
    else:
        used = model.heads * (2 * model.latent + model.rotary)  # the latent is key and value
    return 2 * used / (model.cached * item)


CACHED_MODELS = {
    "GPT-2 XL": CachedModel(48, 25, 64, kv_heads=25, source="Radford et al. 2019, table 2"),
    "LLaMA-13B": CachedModel(40, 40, 128, kv_heads=40, source="Touvron et al. 2023, table 2"),
    "Falcon-7B": CachedModel(32, 71, 64, kv_heads=1, source="config.json of tiiuae/falcon-7b"),
    "Falcon-40B": CachedModel(60, 128, 64, kv_heads=8, source="config.json of tiiuae/falcon-40b"),
    "StarCoder": CachedModel(40, 48, 128, kv_heads=1, source="config.json of bigcode/starcoder"),
    "Llama 3 8B": CachedModel(
        32, 32, 128, kv_heads=8, source="meta-llama/llama-models, models/sku_list.py"
    ),
    "Llama 3 70B": CachedModel(
        80, 64, 128, kv_heads=8, source="meta-llama/llama-models, models/sku_list.py"
    ),
    "gpt-oss-120b": CachedModel(
        36, 64, 64, kv_heads=8, source="openai/gpt-oss, gpt_oss/torch/model.py"
    ),
    "DeepSeek-V2": CachedModel(
        60, 128, 128, latent=512, rotary=64,
        source="deepseek-ai/DeepSeek-V3, inference/configs/config_236B.json",
    ),
    "DeepSeek-V3": CachedModel(
        61, 128, 128, latent=512, rotary=64,
        source="deepseek-ai/DeepSeek-V3, inference/configs/config_671B.json",
    ),
}  # fmt: skip
