"""GPT-2 in one file, for chapter 13: torch alone, no options, no checks, no dropout."""

from torch import nn
from torch.nn import functional


class CausalSelfAttention(nn.Module):
    """H heads that attend to the past; one linear layer makes queries, keys and values."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.query_key_value = nn.Linear(d_model, 3 * d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x):
        """B L D -> B L D."""
        heads = self.query_key_value(x).unflatten(-1, (3, self.num_heads, -1))  # B L 3 H d
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # 3 B H L d: B H L d each
        x = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(x.transpose(1, 2).flatten(2))  # B L D


class Block(nn.Module):
    """Pre-norm: each sublayer reads a normalized copy, and adds its output to the residual stream."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.norm_1 = nn.LayerNorm(d_model)
        self.attention = CausalSelfAttention(d_model, num_heads)
        self.norm_2 = nn.LayerNorm(d_model)
        up, down = nn.Linear(d_model, 4 * d_model), nn.Linear(4 * d_model, d_model)
        self.feed_forward = nn.Sequential(up, nn.GELU("tanh"), down)

    def forward(self, x):
        """B L D -> B L D."""
        x = x + self.attention(self.norm_1(x))
        return x + self.feed_forward(self.norm_2(x))


class GPT2(nn.Module):
    """From the token IDs so far to the logits of each next token."""

    def __init__(self, vocab_size, max_length, d_model, num_heads, num_layers):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(max_length, d_model)
        self.blocks = nn.Sequential(*(Block(d_model, num_heads) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(d_model)

    def forward(self, ids):
        """B L -> B L V."""
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]  # B L D
        return self.norm(self.blocks(x)) @ self.tokens.weight.T  # B L V
