"""The smallest programs, with torch and transformers alone, that show what the zoo found.

Usage: python benchmarks/zoo_reproductions.py [NAME ...]    prints each sentence and its two numbers
"""

import os
import sys
from collections.abc import Callable

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

SMALL = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS = torch.tensor([[5, 17, 42, 8, 23, 11], [9, 33, 7, 50, 12, 28]])


def far(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference."""
    return float((one - other).abs().max())


@torch.no_grad()
def rwkv_batch() -> tuple[str, str]:
    """One token with a state and a batch of two must give logits of shape (2, 1, 61)."""
    config = transformers.RwkvConfig(**SMALL, context_length=64, attention_hidden_size=24)
    model = transformers.RwkvForCausalLM(config).eval()
    state = model(IDS[:, :5], use_cache=True).state
    return "(2, 1, 61)", str(tuple(model(IDS[:, 5:], state=state, use_cache=True).logits.shape))


def _mamba(prefix: str) -> Callable[[], tuple[str, str]]:
    @torch.no_grad()
    def chunk() -> tuple[str, str]:
        """The third and fourth token, read in one chunk after the first two, must get the logits of one pass."""
        torch.manual_seed(0)
        config = getattr(transformers, f"{prefix}Config")(**SMALL, state_size=4)
        model = getattr(transformers, f"{prefix}ForCausalLM")(config).eval()
        cache = model(IDS[:, :2], use_cache=True).cache_params
        chunk = model(IDS[:, 2:4], cache_params=cache, use_cache=True).logits
        return "0", f"{far(chunk, model(IDS).logits[:, 2:4]):.1g}"

    return chunk


mamba_chunk, falcon_mamba_chunk = _mamba("Mamba"), _mamba("FalconMamba")


@torch.no_grad()
def bamba_position() -> tuple[str, str]:
    """Without position_ids, a token read with a cache must stand after the tokens in it."""
    torch.manual_seed(0)
    config = transformers.BambaConfig(
        **SMALL, intermediate_size=40, num_key_value_heads=2, mamba_n_heads=4, mamba_d_head=12,
        mamba_d_state=8, mamba_n_groups=1, attn_layer_indices=[1], pad_token_id=0,
    )  # fmt: skip
    model = transformers.BambaForCausalLM(config).eval()
    cache = model(IDS[:, :5], use_cache=True).past_key_values
    step = model(IDS[:, 5:], past_key_values=cache, use_cache=True).logits
    return "0", f"{far(step, model(IDS).logits[:, 5:]):.1g}"


@torch.no_grad()
def minimax_reorder() -> tuple[str, str]:
    """When the rows of a cache change places, as in beam search, all its layers must follow."""
    torch.manual_seed(0)
    config = transformers.MiniMaxConfig(
        **SMALL, intermediate_size=40, num_key_value_heads=2, num_local_experts=4, head_dim=6, block_size=4,
    )  # fmt: skip
    model, rows = transformers.MiniMaxForCausalLM(config).eval(), torch.tensor([1, 0])
    cache = model(IDS[:, :5], use_cache=True).past_key_values
    cache.reorder_cache(rows)
    step = model(IDS[rows, 5:], past_key_values=cache, use_cache=True).logits
    return "0", f"{far(step, model(IDS[rows]).logits[:, 5:]):.1g}"


def _packed(prefix: str, **options: object) -> Callable[[], tuple[str, str]]:
    @torch.no_grad()
    def packed() -> tuple[str, str]:
        """Two texts in one row, told apart by positions that begin anew, must get the logits of each alone."""
        torch.manual_seed(0)
        config = getattr(transformers, f"{prefix}Config")(**SMALL, **options)
        model = getattr(transformers, f"{prefix}ForCausalLM")(config).eval()
        positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
        row = model(IDS[:1], position_ids=positions, use_cache=False).logits
        return "0", f"{far(row[:, 3:], model(IDS[:1, 3:]).logits):.1g}"

    return packed


@torch.no_grad()
def recurrent_gemma_state() -> tuple[str, str]:
    """The first token of a text, read with a new cache, must not depend on the text read before."""
    torch.manual_seed(0)
    config = transformers.RecurrentGemmaConfig(
        **SMALL | {"num_hidden_layers": 3}, lru_width=24, attention_window_size=8, intermediate_size=40,
    )  # fmt: skip
    model, answers = transformers.RecurrentGemmaForCausalLM(config).eval(), []
    for before in IDS[:1], IDS[1:]:
        model(before, use_cache=True, past_key_values=transformers.DynamicCache(config=config))
        cache = transformers.DynamicCache(config=config)
        answers.append(model(IDS[:1, :1], use_cache=True, past_key_values=cache).logits)
    return "0", f"{far(*answers):.1g}"


@torch.no_grad()
def reformer_position_ids() -> tuple[str, str]:
    """Position IDs must be accepted for a text that the model pads to whole chunks itself."""
    config = transformers.ReformerConfig(
        is_decoder=True, vocab_size=61, hidden_size=24, num_attention_heads=4, attention_head_size=6,
        attn_layers=["local", "local"], local_attn_chunk_length=4, feed_forward_size=40,
        axial_pos_shape=[8, 8], axial_pos_embds_dim=[8, 16], max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.ReformerModelWithLMHead(config).eval()
    try:
        return "(1, 6, 61)", str(
            tuple(model(IDS[:1], position_ids=torch.arange(6)[None]).logits.shape)
        )
    except RuntimeError as error:
        return "(1, 6, 61)", f"RuntimeError: {error}"


@torch.no_grad()
def xlnet_uni_mask() -> tuple[str, str]:
    """A causal XLNet must take an attention mask for two texts."""
    config = transformers.XLNetConfig(
        vocab_size=61, d_model=24, n_layer=2, n_head=4, d_inner=40, attn_type="uni"
    )
    model, wanted = transformers.XLNetLMHeadModel(config).eval(), "(2, 6, 61)"
    try:
        return wanted, str(tuple(model(IDS, attention_mask=torch.ones_like(IDS)).logits.shape))
    except RuntimeError as error:
        return wanted, f"RuntimeError: {error}"


gpt_oss_packed = _packed(
    "GptOss", head_dim=6, num_key_value_heads=2, intermediate_size=40, num_local_experts=4,
    num_experts_per_tok=2,
)  # fmt: skip
falcon_packed = _packed("Falcon", new_decoder_architecture=False)
opt_packed = _packed("OPT", ffn_dim=40, word_embed_proj_dim=24)
xglm_packed = _packed("XGLM", d_model=24, ffn_dim=40, num_layers=2, attention_heads=4)

NAMES = (
    "rwkv_batch", "mamba_chunk", "falcon_mamba_chunk", "bamba_position", "minimax_reorder",
    "recurrent_gemma_state", "reformer_position_ids", "xlnet_uni_mask", "gpt_oss_packed", "falcon_packed", "opt_packed",
    "xglm_packed",
)  # fmt: skip

if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    for name in sys.argv[1:] or NAMES:
        show = globals()[name]
        expected, got = show()
        print(f"{name}: {show.__doc__} expected {expected}, got {got}")
