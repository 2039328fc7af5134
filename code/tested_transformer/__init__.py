"""The companion package of The Tested Transformer: attention and the Transformer, each line tested."""

from importlib import import_module

__version__ = "0.1.0"

# The public names and where they are defined. A module is imported when one of its names is used, so
# that `attention` needs neither matplotlib nor the Specs.
PUBLIC = {
    "functional.attention": "attention",
    "functional.balance": (
        "balance_bias_step balance_loss expert_counts router_z_loss within_capacity"
    ),
    "functional.coding_rate": (
        "coding_rate coding_rate_gradient ista_step lasso_objective subspace_attention "
        "subspace_coding_rate"
    ),
    "functional.composed_heads": "compose_heads composed_attention Composition HeadMixing",
    "functional.differential": "differential_attention differential_lambda_init",
    "functional.gated_heads": "gated_heads",
    "functional.hyper_connections": (
        "connection_weights hyper_connection read_streams write_streams"
    ),
    "functional.latent": "absorbed_latent_attention latent_attention",
    "functional.masks": (
        "causal_mask combine_masks document_mask masked_softmax padding_mask "
        "padding_mask_from_tokens prefix_mask window_mask"
    ),
    "functional.paged": "gather_pages paged_attention token_slots",
    "functional.packed": "packed_attention",
    "functional.permutation_masks": "permutation_masks target_mapping",
    "functional.relative_shift": "relative_shift transformer_xl_attention",
    "functional.retrieval": (
        "chunk_read_by chunked_cross_attention nearest_neighbors split_chunks"
    ),
    "functional.routing": "keep_best_groups route sigmoid_routing softmax_routing",
    "functional.scaling": (
        "entropy fold_scale perplexity scaled_scores score_gap softmax softmax_jacobian"
    ),
    "functional.scoring": (
        "additive_scores attend bilinear_scores content_scores dot_scores gaussian_scores "
        "hard_attention kernel_regression local_weights local_window location_scores "
        "predicted_centers reinforce_loss"
    ),
    "functional.sinks": "sink_attention",
    "functional.splines": "bspline_basis fit_spline uniform_knots",
    "functional.ternary": (
        "bit_linear pack_ternary quantize_activations quantize_ternary Quantized straight_through "
        "unpack_ternary"
    ),
    "positions.alibi": "ALiBi alibi_slopes",
    "positions.counting": "binary_positions integer_positions unit_positions",
    "positions.learned": "LearnedPositions",
    "positions.mscale": "MscaleYarnScaling",
    "positions.protocol": "PositionScheme",
    "positions.relative": (
        "relative_attention relative_distances RelativeAttention RelativePositions"
    ),
    "positions.rotary": "apply_rotary RotaryPositions",
    "positions.scaled_rotary": "LinearScaling Llama3Scaling ScaledRotaryPositions YarnScaling",
    "positions.sinusoidal": "shift_matrix sinusoidal_positions SinusoidalPositions",
    "positions.t5_buckets": "t5_buckets T5Positions",
    "positions.xpos": "apply_xpos XPos",
    "mixers.clustered": "cluster_queries clustered_attention improved_clustered_attention",
    "mixers.delta_rule": "chunked_delta_rule parallel_delta_rule recurrent_delta_rule",
    "mixers.dynamic_convolution": "dynamic_convolution",
    "mixers.fixed_patterns": (
        "Atrous attention_per_head Blocks fixed_pattern Local Merged strided_pattern Summaries"
    ),
    "mixers.global_patterns": "big_bird_attention BigBird LocalGlobal",
    "mixers.indexed_attention": (
        "attend_to_selected indexed_attention indexer_loss indexer_scores lightning_indexer "
        "masked_indexed_attention select_keys selection_mask"
    ),
    "mixers.infini_attention": "infini_attention",
    "mixers.linformer": "linformer_attention",
    "mixers.linear_attention": (
        "chunked_linear_attention elu_plus_one parallel_linear_attention recurrent_linear_attention"
    ),
    "mixers.longformer": "longformer_attention",
    "mixers.longnet": "DilatedBranch LongNet longnet_attention",
    "mixers.lsh": "lsh_attention lsh_buckets lsh_keys lsh_read_counts",
    "mixers.mamba": (
        "associative_scan chunked_selective_scan parallel_selective_scan recurrent_selective_scan"
    ),
    "mixers.mamba2": "chunked_ssd parallel_ssd recurrent_ssd",
    "mixers.nystrom": "iterative_pinv landmark_weights nystrom_attention",
    "mixers.patterns": "make_part Part Pattern sparse_attention",
    "mixers.performer": (
        "orthogonal_directions performer_attention positive_features trigonometric_features"
    ),
    "mixers.retention": (
        "chunked_retention gated_log_decay gated_retention parallel_retention recurrent_retention "
        "retnet_log_decay"
    ),
    "mixers.rwkv": "chunked_wkv parallel_wkv recurrent_wkv",
    "mixers.state_space": (
        "convolved_state_space discretize recurrent_state_space s4d_lin state_space_kernel"
    ),
    "mixers.ttt": "dual_ttt InnerNorm primal_ttt",
    "layers.bit_linear": "BitLinear PackedBitLinear",
    "layers.block_manager": "BlockManager BlockPool BlockTable PoolExhausted",
    "layers.blocks": "DecoderLayer Embedding EncoderLayer",
    "layers.cache": "DecoderCache KeyValueCache WindowCache",
    "layers.chunk_database": "ChunkDatabase",
    "layers.chunked_cross_attention": "ChunkedCrossAttention",
    "layers.clamped_experts": "clamped_swiglu ClampedExperts",
    "layers.composed_attention": "ComposedAttention HeadMixingWeights",
    "layers.crate": "CrateLayer IstaStep SubspaceAttention",
    "layers.differential_attention": "DifferentialAttention",
    "layers.feed_forward": "ConvFeedForward FeedForward gated_width gelu gelu_tanh relu silu",
    "layers.gated_attention": "GatedAttention",
    "layers.gated_delta_net": "GatedDeltaNet l2_normalize",
    "layers.gated_cross_attention": "gated_cross_attention GatedCrossAttention",
    "layers.gated_feed_forward": "GatedFeedForward",
    "layers.gated_retention": "GatedRetention RetentionState",
    "layers.head_by_head": "HeadByHead",
    "layers.hyper_connections": "HyperConnection HyperStack use_hyper_connections",
    "layers.indexed_latent_attention": "IndexedLatentAttention IndexerConfig LightningIndexer",
    "layers.kan": "KANFeedForward KANLayer",
    "layers.kimi_delta_attention": "KimiDeltaAttention",
    "layers.latent_attention": "LatentAttention LatentConfig",
    "layers.linformer": "LinformerAttention",
    "layers.long_short_attention": "ConvolutionBranch LongShortAttention",
    "layers.longformer_attention": "LongformerAttention",
    "layers.lsh_attention": "LshAttention",
    "layers.message_passing": "max_messages MessagePassing",
    "layers.moe": "ExpertsConfig mix_experts MixtureOfExperts record_router_logits",
    "layers.multi_head": "concat_heads MultiHeadAttention split_heads",
    "layers.norms": "batch_norm BatchNorm layer_norm LayerNorm rms_norm RMSNorm",
    "layers.nystrom": "NystromAttention",
    "layers.own_scale": "OwnScaleAttention",
    "layers.paged_cache": "PagedCache",
    "layers.parallel_layer": "ParallelLayer",
    "layers.qk_norm": "QKNormAttention",
    "layers.recurrent_memory": "read_by_segments RecurrentMemory",
    "layers.recurrent_state": "RecurrentState",
    "layers.relative_attention": "distance_encodings TransformerXLAttention",
    "layers.resi_dual": "ResiDual",
    "layers.residual": "deepnorm_constants deepnorm_init DeepNormConstants Residual",
    "layers.rwkv": "ChannelMix TimeMix token_shift",
    "layers.scoring": "AdditiveAttention BilinearAttention",
    "layers.segment_memory": "extend_memory SegmentMemory",
    "layers.segmented_embedding": "SegmentedEmbedding",
    "layers.selective_state_space": "SelectiveStateSpace",
    "layers.self_attention": "self_attention SelfAttention",
    "layers.shared_attention": "SharedAttention SharedKeyValues",
    "layers.short_convolution": "short_convolution ShortConvolution",
    "layers.sink_attention": "SinkAttention",
    "layers.state_space_duality": "StateSpaceDuality",
    "layers.sub_norm": "SubNormAttention SubNormFeedForward",
    "layers.two_stream_attention": "TwoStreamAttention",
    "models.convert_torch": (
        "attention_from_torch attention_to_torch transformer_from_torch transformer_to_torch"
    ),
    "models.bitnet": "BitNet BitNetConfig",
    "models.bloom": "Bloom BloomConfig",
    "models.falcon": "Falcon FalconConfig",
    "models.gpt_oss": "GptOss GptOssConfig",
    "models.language_model": "LanguageModel LanguageModelConfig",
    "models.loading": "from_pretrained save_pretrained",
    "models.mamba": "Mamba Mamba2 Mamba2Config MambaConfig",
    "models.mpt": "Mpt MptConfig",
    "models.parallel": "ParallelLanguageModel ParallelLanguageModelConfig",
    "models.recurrent": "RecurrentConfig RecurrentTranslator",
    "models.recurrent_language_model": (
        "RecurrentLanguageModel RecurrentLanguageModelConfig"
    ),
    "models.bert": "Bert BertConfig",
    "models.retro": "Retro RetroConfig",
    "models.roformer": "RoFormer RoFormerConfig",
    "models.rwkv": "Rwkv RwkvConfig",
    "models.t5": "T5 T5Config",
    "models.transformer": "AttentionWeights Decoder Encoder Transformer TransformerConfig",
    "models.transformer_xl": "TransformerXL TransformerXLConfig",
    "models.transnar": "AlgorithmNetwork TransNar TransNarConfig",
    "models.vit": (
        "image_patches interpolate_positions PatchEmbedding VisionTransformer VisionTransformerConfig"
    ),
    "models.yoco": "Yoco YocoConfig",
    "models.xlnet": "XLNet XLNetConfig",
    "models.whisper": "audio_positions AudioStem Whisper WhisperConfig",
    "data.log_mel": "log_mel mel_filters",
    "data.byte_bpe": "ByteBPE",
    "data.graphs": "distance_trace graph_text graph_tokens sample_graphs",
    "data.number_words": "english_words german_words",
    "data.subwords": "Subwords",
    "data.tokenizer_file": "encode_batch load_tokenizer",
    "data.vocabulary": "Vocabulary",
    "data.word_piece": "WordPiece",
    "training.auxiliary": "auxiliary_loss layer_weights",
    "training.checkpoint": "load_checkpoint load_trained save_checkpoint save_trained",
    "training.losses": "cross_entropy next_token_loss token_accuracy",
    "training.preferences": "bradley_terry_loss",
    "training.schedules": "one_cycle_rate paper_rate",
    "training.trainer": "evaluate Evaluation History Recipe Trainer",
    "generation.beam_search": "beam_search",
    "generation.best_of": "best_of_n_mean",
    "generation.browser": "Browser Page Quote",
    "generation.continuous": "ContinuousBatch Request",
    "generation.generate": "generate Generated",
    "generation.decoding_state": "CausalState DecodingState Seq2SeqState",
    "generation.masked_state": "MaskedCausalState",
    "generation.sampling": "top_k_filter top_p_filter repetition_penalty Sampling",
    "generation.speculative": (
        "accept CachedLogits residual Speculated speculative_generate speculative_round"
    ),
    "analysis.library_conventions": "compare_libraries",
    "analysis.counts": (
        "count_activations count_flops count_parameters Counts measure_activations measure_flops "
        "measure_parameters side_by_side"
    ),
    "analysis.describe_mask": "describe_mask",
    "analysis.every_outcome": "every_outcome",
    "analysis.translation": "find_mistakes translate",
    "errors": "BackendError",
    "specs": "pitfall",
    "specs.judge": "judge",
    "specs.adapters": "Model",
    "specs.contract": "contract",
    "reader.assertions": "assert_contract assert_meets",
    "reader.check": "check",
    "reader.own_model": "load_parts OwnTransformer Parts",
    "reader.saved_parts": "open_folder",
}  # fmt: skip
HOME = {name: module for module, names in PUBLIC.items() for name in names.split()}

__all__ = sorted(HOME)


def __getattr__(name: str):
    """Import a public name at its first use (PEP 562)."""
    if name not in HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *HOME])
