"""Wrong answers of chapters 12 to 22 by somebody who has read the cases: wrong where no case looked.

Each is the package's own function, of other arguments or with another answer where something is true of a call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from tested_transformer.functional.balance import balance_bias_step, within_capacity
from tested_transformer.functional.coding_rate import coding_rate
from tested_transformer.functional.differential import differential_attention
from tested_transformer.functional.hyper_connections import hyper_connection
from tested_transformer.functional.latent import latent_attention
from tested_transformer.functional.paged import paged_attention
from tested_transformer.functional.relative_shift import transformer_xl_attention
from tested_transformer.functional.retrieval import chunk_read_by, nearest_neighbors
from tested_transformer.functional.sinks import sink_attention
from tested_transformer.functional.ternary import bit_linear
from tested_transformer.layers.clamped_experts import clamped_swiglu
from tested_transformer.layers.gated_cross_attention import gated_cross_attention
from tested_transformer.layers.message_passing import max_messages
from tested_transformer.layers.moe import mix_experts
from tested_transformer.layers.segment_memory import extend_memory
from tested_transformer.layers.short_convolution import short_convolution
from tested_transformer.mixers.clustered import clustered_attention, improved_clustered_attention
from tested_transformer.mixers.delta_rule import chunked_delta_rule
from tested_transformer.mixers.dynamic_convolution import dynamic_convolution
from tested_transformer.mixers.indexed_attention import (
    indexed_attention,
    indexer_loss,
    lightning_indexer,
)
from tested_transformer.mixers.infini_attention import infini_attention
from tested_transformer.mixers.linear_attention import chunked_linear_attention
from tested_transformer.mixers.linformer import linformer_attention
from tested_transformer.mixers.longnet import longnet_attention
from tested_transformer.mixers.lsh import lsh_attention
from tested_transformer.mixers.mamba import chunked_selective_scan
from tested_transformer.mixers.mamba2 import chunked_ssd
from tested_transformer.mixers.nystrom import nystrom_attention
from tested_transformer.mixers.performer import performer_attention
from tested_transformer.mixers.retention import chunked_retention, gated_retention
from tested_transformer.mixers.rwkv import chunked_wkv
from tested_transformer.mixers.ttt import dual_ttt

from . import EVERY, wrong

Given = dict[str, Any]


def where(
    spec: str, what: str, formula: Callable[..., Any], when: Callable[[Given], Any],
    change: Callable[[Given], Given] | None = None, spoil: Callable[[Any], Any] | None = None,
) -> None:  # fmt: skip
    """The formula; of changed arguments, or with another answer (NaN), where `when` is true of a call."""

    @wraps(formula)
    def spoiled(*placed: Any, **named: Any) -> Any:
        given = dict(zip(EVERY[spec].required, placed, strict=False)) | named
        if not when(given):
            return formula(*placed, **named)
        if change is None:
            return (spoil or lost)(formula(*placed, **named))
        given |= change(given)
        placed = [given.pop(name) for name in EVERY[spec].required]
        return formula(*placed, **given)

    wrong(spec, what)(spoiled)


def lost(answer: Any) -> Any:
    """NaN in place of numbers."""
    if isinstance(answer, tuple):
        return tuple(lost(each) for each in answer)
    return answer * torch.nan if answer.is_floating_point() else answer + 1


def head_0(name: str) -> Callable[[Given], Given]:
    return lambda g: {name: g[name][:, :1].expand_as(g[name])}


def has_heads(name: str) -> Callable[[Given], bool]:
    return lambda g: g.get(name) is not None and g[name].ndim == 4 and g[name].shape[1] > 1


def overflows(*names: str) -> Callable[[Given], bool]:
    """Whether an exponential of the largest product of these, scaled, is infinite."""

    def test(g: Given) -> bool:
        each = [g[name].detach() for name in names]
        if not all(e.numel() for e in each):
            return False
        top = each[0] @ each[1].mT * each[0].shape[-1] ** -0.5 if len(each) == 2 else each[0]
        return bool(torch.isinf(top.exp()).any())

    return test


def large(name: str, least: float) -> Callable[[Given], bool]:
    return lambda g: bool((g[name].detach().abs() > least).any())


def default(spec: str, formula: Callable[..., Any], name: str, value: Any) -> None:
    where(
        spec,
        f"{name} is {value} by default",
        formula,
        lambda g: name not in g,
        lambda g: {name: value},
    )


# --- A wrong default --------------------------------------------------------------------------------

default("clamped_swiglu", clamped_swiglu, "limit", 9.0)
default("ttt_linear", dual_ttt, "batch_size", 64)
default("lightning_indexer", lightning_indexer, "base", 500.0)
default("gated_retention", gated_retention, "norm_eps", 1e-6)

# --- Large numbers ----------------------------------------------------------------------------------

QK = "query", "key"
for _name, _formula, _of in (
    ("sink_attention", sink_attention, QK),
    ("clustered_attention", clustered_attention, QK), ("linformer_attention", linformer_attention, QK),
    ("improved_clustered_attention", improved_clustered_attention, QK),
    ("dynamic_convolution", dynamic_convolution, ("logits",)),
    ("longnet_attention", longnet_attention, QK), ("indexer_loss", indexer_loss, ("scores",)),
    ("infini_attention", infini_attention, QK), ("differential_attention", differential_attention, QK),
    ("latent_attention", latent_attention, ("rotary_key",)), ("wkv", chunked_wkv, ("key",)),
    ("gated_retention", gated_retention, ("gate_logits",)),
    ("transformer_xl_attention", transformer_xl_attention, QK),
):  # fmt: skip
    where(_name, "the softmax overflows", _formula, overflows(*_of))

where("paged_attention", "scores beyond 88 overflow", paged_attention, large("key_pages", 88))
where("indexed_attention", "the softmax overflows", indexed_attention, overflows(*QK))
where("nystrom_attention", "the softmax overflows", nystrom_attention, overflows(*QK))

# --- Masks and options together ----------------------------------------------------------------------

where(
    "latent_attention",
    "a mask per head: that of the first for all",
    latent_attention,
    has_heads("mask"),
    head_0("mask"),
)
where("latent_attention", "a mask with four axes raises", latent_attention,
      lambda g: g.get("mask") is not None and g["mask"].ndim == 4, spoil=lost)  # fmt: skip
where("latent_attention", "not causal beside a mask", latent_attention,
      lambda g: g.get("mask") is not None and g.get("causal"), lambda g: {"causal": False})  # fmt: skip
where(
    "sink_attention",
    "a mask per head: that of the first for all",
    sink_attention,
    has_heads("mask"),
    head_0("mask"),
)
where("transformer_xl_attention", "a mask per sequence: that of the first for all", transformer_xl_attention,
      lambda g: g.get("mask") is not None and g["mask"].ndim == 4, lambda g: {"mask": g["mask"][:1].expand_as(g["mask"])})  # fmt: skip
where("transformer_xl_attention", "a mask row for all queries", transformer_xl_attention,
      lambda g: g.get("mask") is not None, lambda g: {"mask": g["mask"][..., :1, :].expand_as(g["mask"])})  # fmt: skip

# --- Values of options, and of arguments --------------------------------------------------------------

where("lightning_indexer", "four rotary features, always", lightning_indexer, lambda g: g["rotary_dim"] != 4,
      lambda g: {"rotary_dim": 4})  # fmt: skip
where("extend_memory", "no length keeps all", extend_memory, lambda g: g["memory_length"] == 0,
      lambda g: {"memory_length": 10**6})  # fmt: skip
where("within_capacity", "expert numbers as int8", within_capacity, lambda g: True,
      lambda g: {"experts": g["experts"].to(torch.int8).long()})  # fmt: skip
where("balance_bias_step", "counts in bfloat16", balance_bias_step, lambda g: True,
      lambda g: {"counts": g["counts"].bfloat16().to(g["counts"].dtype)})  # fmt: skip
where("chunk_read_by", "positions in bfloat16", chunk_read_by, lambda g: isinstance(g["position_ids"], Tensor),
      lambda g: {"position_ids": g["position_ids"].bfloat16().long()})  # fmt: skip
where("chunk_read_by", "positions in float16", chunk_read_by, lambda g: isinstance(g["position_ids"], Tensor),
      lambda g: {"position_ids": g["position_ids"].half().long()})  # fmt: skip
where("mixture_of_experts", "an expert that is chosen twice counts once", mix_experts,
      lambda g: any(len(set(row)) < len(row) for row in g["experts"].tolist()))  # fmt: skip
where("paged_attention", "a page of two sequences is read by the first alone", paged_attention,
      lambda g: any(set(a) & set(b) for i, a in enumerate(g["block_table"].tolist()) for b in g["block_table"].tolist()[:i]))  # fmt: skip
where("clustered_attention", "clusters without gaps in their numbers", clustered_attention,
      lambda g: bool(g["clusters"].numel()) and int(g["clusters"].max()) >= g["clusters"].unique().clamp(min=0).unique().numel())  # fmt: skip
where("improved_clustered_attention", "more keys than there are raise", improved_clustered_attention,
      lambda g: g["num_keys"] > g["key"].shape[2])  # fmt: skip
where("dynamic_convolution", "an even kernel is centered on the right, unless it is causal", dynamic_convolution,
      lambda g: g["logits"].shape[-1] % 2 == 0 and not g.get("causal"), lambda g: {"x": g["x"].roll(1, 1)})  # fmt: skip
where("dynamic_convolution", "a kernel longer than the text", dynamic_convolution,
      lambda g: g["logits"].shape[-1] > g["x"].shape[1] > 0)  # fmt: skip
where("indexer_loss", "0 log 0 is NaN", indexer_loss,
      lambda g: bool((g["attention_weights"] == 0).any()) and g.get("mask") is None)  # fmt: skip
where(
    "lsh_attention",
    "a text shorter than a chunk",
    lsh_attention,
    lambda g: 0 < g["query"].shape[2] < g["chunk_size"],
)
where("nystrom_attention", "more landmarks than tokens", nystrom_attention,
      lambda g: g["num_landmarks"] > g["query"].shape[2])  # fmt: skip
where("nystrom_attention", "one landmark", nystrom_attention, lambda g: g["num_landmarks"] == 1)
where("performer_attention", "chunks that do not divide the text", performer_attention,
      lambda g: g.get("chunk_size") and g["query"].shape[2] % g["chunk_size"])  # fmt: skip
where("performer_attention", "padding beside causal", performer_attention,
      lambda g: g.get("causal") and g.get("key_mask") is not None, lambda g: {"key_mask": torch.ones_like(g["key_mask"])})  # fmt: skip
where("retention", "chunks that do not divide the text, after a state", chunked_retention,
      lambda g: g.get("state") is not None and g.get("chunk_size") and g["key"].shape[2] % g["chunk_size"] and g["key"].shape[2] > g["chunk_size"])  # fmt: skip
where("retention", "a scale of its own, after a state", chunked_retention,
      lambda g: g.get("state") is not None and g.get("scale"), lambda g: {"scale": None})  # fmt: skip
where(
    "retention", "no decay is NaN", chunked_retention, lambda g: bool((g["log_decay"] == 0).any())
)
where("delta_rule", "a decay per feature, in chunks, after a state", chunked_delta_rule,
      lambda g: g.get("state") is not None and g.get("chunk_size") and g.get("log_decay") is not None and g["log_decay"].ndim == 4)  # fmt: skip
where(
    "delta_rule",
    "beta beyond 1 is clamped",
    chunked_delta_rule,
    large("beta", 1.0),
    lambda g: {"beta": g["beta"].clamp(max=1.0)},
)
where("linear_attention", "padding in a chunk after a state", chunked_linear_attention,
      lambda g: g.get("state") is not None and g.get("chunk_size") and g.get("real") is not None)  # fmt: skip
where("linear_attention", "the identity with a normalizer", chunked_linear_attention,
      lambda g: g.get("feature_map") == "identity" and g.get("normalize", True))  # fmt: skip
where(
    "wkv",
    "padding and chunks",
    chunked_wkv,
    lambda g: g.get("real") is not None and g.get("chunk_size"),
)
where(
    "wkv",
    "no real token at all",
    chunked_wkv,
    lambda g: g.get("real") is not None and bool((~g["real"]).all(1).any()),
)
where("short_convolution", "a text shorter than the kernel, after a state", short_convolution,
      lambda g: g.get("state") is not None and g["x"].shape[1] < g["weight"].shape[1] - 1)  # fmt: skip
where("short_convolution", "padding after a state", short_convolution,
      lambda g: g.get("state") is not None and g.get("real") is not None, lambda g: {"real": torch.ones_like(g["real"])})  # fmt: skip
where("short_convolution", "a bias beside padding", short_convolution,
      lambda g: g.get("bias") is not None and g.get("real") is not None, lambda g: {"bias": 2 * g["bias"]})  # fmt: skip
where("selective_scan", "zoh by exp(x) - 1, which cancels", chunked_selective_scan,
      lambda g: g.get("method") == "zoh" and g["delta"].numel() and float(g["delta"].detach().abs().min()) < 1e-4)  # fmt: skip
where("selective_scan", "zoh beside padding", chunked_selective_scan,
      lambda g: g.get("method") == "zoh" and g.get("real") is not None, lambda g: {"method": "euler"})  # fmt: skip
where("selective_scan", "zoh in chunks", chunked_selective_scan,
      lambda g: g.get("method") == "zoh" and g.get("chunk_size"), lambda g: {"method": "euler"})  # fmt: skip
where("selective_scan", "zoh after a state", chunked_selective_scan,
      lambda g: g.get("method") == "zoh" and g.get("state") is not None, lambda g: {"method": "euler"})  # fmt: skip
where(
    "ssd", "groups and chunks", chunked_ssd, lambda g: g["b"].shape[1] > 1 and g.get("chunk_size")
)
where(
    "ssd",
    "padding in chunks",
    chunked_ssd,
    lambda g: g.get("real") is not None and g.get("chunk_size"),
)
where(
    "ssd",
    "padding after a state",
    chunked_ssd,
    lambda g: g.get("real") is not None and g.get("state") is not None,
)
where("ttt_linear", "a last mini-batch that is shorter, after a state", dual_ttt,
      lambda g: g.get("state") is not None and g["key"].shape[2] > g.get("batch_size", 16) and g["key"].shape[2] % g.get("batch_size", 16))  # fmt: skip
where("infini_attention", "the delta rule beside a scale", infini_attention,
      lambda g: g.get("delta") and g.get("scale"), lambda g: {"delta": False})  # fmt: skip
where(
    "coding_rate",
    "more features than tokens",
    coding_rate,
    lambda g: g["x"].shape[-1] > g["x"].shape[-2],
)
where(
    "bit_linear", "a token of zeros is NaN", bit_linear, lambda g: bool((g["x"] == 0).all(-1).any())
)
where("bit_linear", "numbers of one sign", bit_linear, lambda g: bool((g["x"] < 0).all(-1).any()),
      lambda g: {"x": g["x"].abs()})  # fmt: skip
where("hyper_connection", "beta per token beside one alpha", hyper_connection,
      lambda g: g["beta"].ndim > 1 and g["alpha"].ndim == 2)  # fmt: skip
where("differential_attention", "a lambda below 0 is 0", differential_attention,
      lambda g: float(g["lambda_"]) < 0, lambda g: {"lambda_": 0 * g["lambda_"]})  # fmt: skip
where("nearest_neighbors", "distances by |q|^2 - 2 q k + |k|^2, which cancel far from the origin", nearest_neighbors,
      lambda g: bool(g["keys"].numel()) and float(g["keys"].abs().min()) > 900)  # fmt: skip
where("max_messages", "a diagonal in the adjacency", max_messages,
      lambda g: bool(torch.diagonal(g["adjacency"].bool(), dim1=-2, dim2=-1).any()))  # fmt: skip
where(
    "gated_cross_attention",
    "a gate of 0 is NaN",
    gated_cross_attention,
    lambda g: float(g["gate"].detach()) == 0,
)
where("gated_cross_attention", "no real node is NaN", gated_cross_attention,
      lambda g: g.get("real") is not None and bool((~g["real"]).all(-1).any()))  # fmt: skip
