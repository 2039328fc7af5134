"""The companion package of The Tested Transformer: attention and the Transformer, each line tested."""

from .attention import attention
from .describe import describe_mask
from .errors import BackendError
from .exercises import check
from .masks import (
    causal_mask,
    combine_masks,
    document_mask,
    masked_softmax,
    padding_mask,
    padding_mask_from_tokens,
    prefix_mask,
    window_mask,
)
from .scaling import (
    entropy,
    fold_scale,
    perplexity,
    scaled_scores,
    score_gap,
    softmax,
    softmax_jacobian,
)
from .scoring import (
    AdditiveAttention,
    BilinearAttention,
    additive_scores,
    attend,
    bilinear_scores,
    content_scores,
    dot_scores,
    gaussian_scores,
    hard_attention,
    kernel_regression,
    local_weights,
    local_window,
    location_scores,
    predicted_centers,
    reinforce_loss,
)
from .self_attention import SelfAttention, self_attention
from .specs import judge, pitfall

__version__ = "0.1.0"

# What the API page documents, module by module, in the order of the chapters.
API = {
    "attention": ["attention"],
    "self_attention": ["self_attention", "SelfAttention"],
    "scoring": [
        "dot_scores", "bilinear_scores", "additive_scores", "location_scores", "content_scores",
        "gaussian_scores", "attend", "kernel_regression", "AdditiveAttention",
        "BilinearAttention", "hard_attention", "reinforce_loss", "predicted_centers",
        "local_window", "local_weights",
    ],
    "scaling": [
        "softmax", "softmax_jacobian", "entropy", "perplexity", "score_gap", "scaled_scores",
        "fold_scale", "score_statistics", "ScoreStatistics",
    ],
    "masks": [
        "padding_mask", "padding_mask_from_tokens", "causal_mask", "window_mask", "prefix_mask",
        "document_mask", "combine_masks", "masked_softmax",
    ],
    "describe": ["describe_mask", "MaskReport"],
    "conventions": ["compare_libraries"],
    "specs": ["judge", "pitfall", "Spec", "Case", "Check", "Mutant", "Problem", "Verdict"],
    "exercises": ["check"],
    "errors": ["BackendError"],
}  # fmt: skip

__all__ = [
    "API",
    "AdditiveAttention",
    "BackendError",
    "BilinearAttention",
    "SelfAttention",
    "additive_scores",
    "attend",
    "attention",
    "bilinear_scores",
    "causal_mask",
    "check",
    "combine_masks",
    "content_scores",
    "describe_mask",
    "document_mask",
    "dot_scores",
    "entropy",
    "fold_scale",
    "gaussian_scores",
    "hard_attention",
    "judge",
    "kernel_regression",
    "local_weights",
    "local_window",
    "location_scores",
    "masked_softmax",
    "padding_mask",
    "padding_mask_from_tokens",
    "perplexity",
    "pitfall",
    "predicted_centers",
    "prefix_mask",
    "reinforce_loss",
    "scaled_scores",
    "score_gap",
    "self_attention",
    "softmax",
    "softmax_jacobian",
    "window_mask",
]
