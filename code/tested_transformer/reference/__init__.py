"""The slow truth: NumPy, float64, loops; a file per family, one screen per idea."""

from .attention import (
    attention,
    dot,
    is_allowed,
    key_value_index,
    masked_softmax,
    matmul,
    self_attention,
    softmax,
    weighted_sum,
)
from .auxiliary import auxiliary_loss, layer_weights
from .clustered import cluster_queries, clustered_attention, improved_clustered_attention
from .coding_rate import coding_rate, coding_rate_gradient, ista_step, subspace_attention
from .composed_heads import compose_heads, composed_attention
from .delta_rule import delta_rule
from .differential import differential_attention
from .feed_forward import bend, error_function, feed_forward, swiglu
from .generation import repetition, top_k, top_p
from .global_patterns import big_bird_attention, dynamic_convolution, longformer_attention
from .graphs import distance_trace, gated_cross_attention, max_messages
from .hyper_connections import gated_heads, hyper_connection
from .indexed import indexed_attention, indexer_loss, indexer_scores, lightning_indexer
from .infini_attention import infini_attention
from .latent import latent_attention
from .linear_attention import linear_attention
from .log_mel import log_mel, mel_band
from .low_rank import iterative_pinv, linformer_attention, nystrom_attention, performer_attention
from .lsh import lsh_attention, lsh_buckets
from .masked_language import join_pairs, mask_tokens, next_sentence_pairs
from .masks import (
    causal_mask,
    document_mask,
    padding_mask,
    padding_mask_from_tokens,
    prefix_mask,
    window_mask,
)
from .moe import (
    balance_bias_step,
    balance_loss,
    clamped_swiglu,
    expert_routing,
    mixture_of_experts,
    router_z_loss,
    within_capacity,
)
from .multi_head import cached_attention, multi_head
from .norms import batch_norm, layer_norm, residual_stack, rms_norm
from .online_softmax import log_sum_exp, online_softmax, tiled_attention
from .paged import block_tables, paged_attention
from .permutation_masks import permutation_masks, target_mapping
from .positions import (
    alibi_bias,
    alibi_slopes,
    apply_rotary,
    apply_xpos,
    relative_attention,
    rotary_attention,
    segmented_embedding,
    shift_matrix,
    sinusoidal_positions,
    t5_bias,
)
from .preferences import best_of_n_mean, bradley_terry_loss, browse
from .recurrent import gru_step, recurrent_memory, recurrent_translator
from .recurrent_memory import read_by_segments
from .retention import gated_retention, retention
from .retrieval import chunk_read_by, chunked_cross_attention, nearest_neighbors
from .rwkv import wkv
from .scaling import jacobian_of_weights, scaled_scores, softmax_jacobian, tempered_softmax
from .scoring import (
    additive_scores,
    bilinear_scores,
    content_scores,
    expected_cost,
    expected_cost_gradient,
    gaussian_scores,
    hard_attention,
    kernel_regression,
    local_weights,
    location_scores,
    predicted_centers,
)
from .sinks import sink_attention
from .sparse import fixed_mask, in_branch, local_attention, longnet_attention, strided_mask
from .speculative import (
    accepted_distribution,
    mean_tokens,
    sampled_from,
    speculative_distribution,
    target_distribution,
)
from .splines import bspline_basis, kan_layer
from .state_spaces import selective_scan, short_convolution, ssd
from .subwords import (
    bert_words,
    byte_bpe_merges,
    byte_bpe_text,
    byte_bpe_tokens,
    byte_character,
    gpt2_words,
    is_ideograph,
    is_punctuation,
    word_piece_vocabulary,
    word_pieces,
)
from .ternary import bit_linear, pack_ternary
from .training import cross_entropy, next_token_loss, one_cycle_rate, paper_rate, word_target
from .transformer import embedded, heads, linear, network, normed, stack, transformer
from .transformer_xl import extend_memory, relative_shift, transformer_xl_attention
from .ttt import ttt_linear
from .vision import interpolate_positions, patch_embedding
from .whisper import audio_positions, audio_stem
from .yarn import yarn
from .yoco import yoco

__all__ = [
    "accepted_distribution",
    "additive_scores",
    "alibi_bias",
    "alibi_slopes",
    "apply_rotary",
    "apply_xpos",
    "attention",
    "audio_positions",
    "audio_stem",
    "auxiliary_loss",
    "balance_bias_step",
    "balance_loss",
    "batch_norm",
    "bend",
    "bert_words",
    "best_of_n_mean",
    "big_bird_attention",
    "bilinear_scores",
    "bit_linear",
    "block_tables",
    "bradley_terry_loss",
    "browse",
    "bspline_basis",
    "byte_bpe_merges",
    "byte_bpe_text",
    "byte_bpe_tokens",
    "byte_character",
    "cached_attention",
    "causal_mask",
    "chunk_read_by",
    "chunked_cross_attention",
    "clamped_swiglu",
    "cluster_queries",
    "clustered_attention",
    "coding_rate",
    "coding_rate_gradient",
    "compose_heads",
    "composed_attention",
    "content_scores",
    "cross_entropy",
    "delta_rule",
    "differential_attention",
    "distance_trace",
    "document_mask",
    "dot",
    "dynamic_convolution",
    "embedded",
    "error_function",
    "expected_cost",
    "expected_cost_gradient",
    "expert_routing",
    "extend_memory",
    "feed_forward",
    "fixed_mask",
    "gated_cross_attention",
    "gated_heads",
    "gated_retention",
    "gaussian_scores",
    "gpt2_words",
    "gru_step",
    "hard_attention",
    "heads",
    "hyper_connection",
    "improved_clustered_attention",
    "in_branch",
    "indexed_attention",
    "indexer_loss",
    "indexer_scores",
    "infini_attention",
    "interpolate_positions",
    "is_allowed",
    "is_ideograph",
    "is_punctuation",
    "ista_step",
    "iterative_pinv",
    "jacobian_of_weights",
    "join_pairs",
    "kan_layer",
    "kernel_regression",
    "key_value_index",
    "latent_attention",
    "layer_norm",
    "layer_weights",
    "lightning_indexer",
    "linear",
    "linear_attention",
    "linformer_attention",
    "local_attention",
    "local_weights",
    "location_scores",
    "log_mel",
    "log_sum_exp",
    "longformer_attention",
    "longnet_attention",
    "lsh_attention",
    "lsh_buckets",
    "mask_tokens",
    "masked_softmax",
    "matmul",
    "max_messages",
    "mean_tokens",
    "mel_band",
    "mixture_of_experts",
    "multi_head",
    "nearest_neighbors",
    "network",
    "next_sentence_pairs",
    "next_token_loss",
    "normed",
    "nystrom_attention",
    "one_cycle_rate",
    "online_softmax",
    "pack_ternary",
    "padding_mask",
    "padding_mask_from_tokens",
    "paged_attention",
    "paper_rate",
    "patch_embedding",
    "performer_attention",
    "permutation_masks",
    "predicted_centers",
    "prefix_mask",
    "read_by_segments",
    "recurrent_memory",
    "recurrent_translator",
    "relative_attention",
    "relative_shift",
    "repetition",
    "residual_stack",
    "retention",
    "rms_norm",
    "rotary_attention",
    "router_z_loss",
    "sampled_from",
    "scaled_scores",
    "segmented_embedding",
    "selective_scan",
    "self_attention",
    "shift_matrix",
    "short_convolution",
    "sink_attention",
    "sinusoidal_positions",
    "softmax",
    "softmax_jacobian",
    "speculative_distribution",
    "ssd",
    "stack",
    "strided_mask",
    "subspace_attention",
    "swiglu",
    "t5_bias",
    "target_distribution",
    "target_mapping",
    "tempered_softmax",
    "tiled_attention",
    "top_k",
    "top_p",
    "transformer",
    "transformer_xl_attention",
    "ttt_linear",
    "weighted_sum",
    "window_mask",
    "within_capacity",
    "wkv",
    "word_piece_vocabulary",
    "word_pieces",
    "word_target",
    "yarn",
    "yoco",
]
