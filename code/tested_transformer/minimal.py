"""The Transformer of chapters 1 to 11 in one file: torch and math alone, no options, no checks."""

import math

import torch
from torch import nn

# B batch, H heads, L queries, S keys, D model dimension, d = D / H head dimension, V vocabulary.
PAD, BOS, EOS = 0, 1, 2  # token IDs: padding, beginning and end of a sequence

# --- Chapters 1 to 3: attention -------------------------------------------------------------------


def attention(query, key, value, mask=None):
    """Weighted sum of the values: softmax(query key^T / sqrt(d)) value, over the allowed keys."""
    query, key = at_least_float32(query), at_least_float32(key)
    scores = query @ key.mT / math.sqrt(query.shape[-1])  # B H L S
    weights = masked_softmax(scores, mask)  # B H L S
    return weights.to(value.dtype) @ value  # B H L d


def at_least_float32(x):
    """Half precision becomes float32: products can pass float16's range, sums need more digits."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


# --- Chapter 4: masks, where True means may attend ------------------------------------------------


def masked_softmax(scores, mask=None):
    """Softmax over the allowed keys; a fully masked row gets zeros, and no gradient."""
    if mask is None:
        return scores.softmax(-1)
    fully_masked = ~mask.any(-1, keepdim=True)  # B 1 L 1: the softmax of -inf alone is NaN
    scores = scores.masked_fill(~mask, -math.inf).masked_fill(fully_masked, 0.0)
    return scores.softmax(-1).masked_fill(fully_masked, 0.0)  # B H L S


def causal_mask(num_queries, num_keys):
    """Query i may attend to key j if j <= i + S - L: the last query to every key."""
    return torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)  # L S


def padding_mask(ids):
    """No query may attend to padding."""
    return (ids != PAD)[:, None, None, :]  # B 1 1 S


# --- Chapter 5: multi-head attention, and the cache of its keys and values ------------------------


def split_heads(x, num_heads):
    """Head h gets the features h d to (h + 1) d of every token."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)  # B L D -> B H L d


def concatenate_heads(x):
    """The heads of each token side by side again."""
    return x.transpose(1, 2).flatten(2)  # B H L d -> B L D


class MultiHeadAttention(nn.Module):
    """H attentions in parallel, each in its own d = D / H dimensions."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x, context=None, mask=None, cache=None):
        """Self-attention without a context, cross-attention with one."""
        context = x if context is None else context  # B S D
        query = split_heads(self.query(x), self.num_heads)  # B H L d
        key = split_heads(self.key(context), self.num_heads)  # B H S d
        value = split_heads(self.value(context), self.num_heads)  # B H S d
        if cache is not None:
            key, value = cache.append(self, key, value)  # those of all earlier calls, then these
        heads = attention(query, key, value, mask)  # B H L d
        return self.output(concatenate_heads(heads))  # B L D


class KeyValueCache:
    """The keys and values of earlier calls, for each attention layer of a decoder."""

    def __init__(self):
        self.layers = {}  # attention layer -> keys, values: B H S d each
        self.length = 0  # target tokens so far

    def append(self, layer, key, value):
        """Add the keys and values of new tokens to those of a layer; return all of them."""
        if layer in self.layers:
            past_key, past_value = self.layers[layer]
            key = torch.cat([past_key, key], dim=2)  # B H S d
            value = torch.cat([past_value, value], dim=2)  # B H S d
        self.layers[layer] = key, value
        return key, value


# --- Chapter 6: positions -------------------------------------------------------------------------


def sinusoidal_positions(positions, d_model):
    """Feature 2i is sin(position / 10000^(2i/D)), feature 2i + 1 its cosine; in float64."""
    features = torch.arange(0, d_model, 2, dtype=torch.float64, device=positions.device)  # D/2
    angles = positions.unsqueeze(-1) / 10000 ** (features / d_model)  # B L D/2
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)  # B L D


# --- Chapter 7: normalization and residual connections --------------------------------------------


class LayerNorm(nn.Module):
    """Give each token mean 0 and variance 1 over its features; then a learned scale and shift."""

    def __init__(self, d_model):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x):
        """(x - mean) / sqrt(variance + 1e-5) x weight + bias."""
        wide = at_least_float32(x)
        centered = wide - wide.mean(-1, keepdim=True)  # B L D
        variance = centered.square().mean(-1, keepdim=True)  # B L 1
        normalized = centered / torch.sqrt(variance + 1e-5)  # B L D
        return (normalized * self.weight + self.bias).to(x.dtype)


class Residual(nn.Module):
    """Add a sublayer's output to its input and normalize: post-norm, as in 2017."""

    def __init__(self, d_model, dropout):
        super().__init__()
        self.norm = LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, sublayer_output):
        """norm(x + dropout(sublayer output))."""
        return self.norm(x + self.dropout(sublayer_output))


# --- Chapter 8: the feed-forward network ----------------------------------------------------------


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between, each token alone."""

    def __init__(self, d_model, d_ff):
        super().__init__()
        self.up_proj = nn.Linear(d_model, d_ff)
        self.down_proj = nn.Linear(d_ff, d_model)

    def forward(self, x):
        """Up, ReLU, down."""
        return self.down_proj(torch.relu(self.up_proj(x)))  # B L D


# --- Chapter 9: the model -------------------------------------------------------------------------


class EncoderLayer(nn.Module):
    """Self-attention over the source, then feed-forward."""

    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.attention = MultiHeadAttention(d_model, num_heads)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.residuals = nn.ModuleList(Residual(d_model, dropout) for _ in range(2))

    def forward(self, x, mask):
        """One layer, B S D -> B S D."""
        x = self.residuals[0](x, self.attention(x, mask=mask))
        return self.residuals[1](x, self.feed_forward(x))


class DecoderLayer(nn.Module):
    """Causal self-attention over the target, cross-attention to the source, then feed-forward."""

    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.attention = MultiHeadAttention(d_model, num_heads)
        self.cross_attention = MultiHeadAttention(d_model, num_heads)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.residuals = nn.ModuleList(Residual(d_model, dropout) for _ in range(3))

    def forward(self, x, memory, mask, memory_mask, cache=None):
        """One layer, B L D -> B L D; the memory is the encoder's output."""
        x = self.residuals[0](x, self.attention(x, mask=mask, cache=cache))
        x = self.residuals[1](x, self.cross_attention(x, memory, memory_mask, cache))
        return self.residuals[2](x, self.feed_forward(x))


class Embedding(nn.Module):
    """Token embeddings times sqrt(D), plus positions."""

    def __init__(self, vocab_size, d_model, dropout):
        super().__init__()
        self.d_model = d_model
        self.tokens = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.tokens.weight, std=d_model**-0.5)  # times sqrt(D): variance 1
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids):
        """A token's position is the number of tokens before it; padding does not count."""
        positions = sinusoidal_positions((ids != PAD).cumsum(1) - 1, self.d_model)  # B L D
        x = self.tokens(ids) * math.sqrt(self.d_model)  # B L D
        return self.dropout(x + positions.to(x))


class Transformer(nn.Module):
    """From source and target token IDs to the logits of the next target token."""

    def __init__(self, source_vocab, target_vocab, d_model, num_heads, num_layers, d_ff, dropout):
        super().__init__()
        self.source_embedding = Embedding(source_vocab, d_model, dropout)
        self.target_embedding = Embedding(target_vocab, d_model, dropout)
        sizes = d_model, num_heads, d_ff, dropout
        self.encoder = nn.ModuleList(EncoderLayer(*sizes) for _ in range(num_layers))
        self.decoder = nn.ModuleList(DecoderLayer(*sizes) for _ in range(num_layers))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, source, target):
        """Logits of the token after each prefix of the target, B S and B L -> B L V."""
        return self.decode(target, self.encode(source), padding_mask(source))

    def encode(self, source):
        """The encoder's output, from which the decoder generates."""
        x = self.source_embedding(source)  # B S D
        for layer in self.encoder:
            x = layer(x, padding_mask(source))
        return x

    def decode(self, target, memory, memory_mask, cache=None):
        """Logits of the token after each prefix of the target, or of each that the cache lacks."""
        length = target.shape[1]  # tokens so far
        past = 0 if cache is None else cache.length  # those whose keys and values are cached
        if cache is not None:
            cache.length = length
        causal = causal_mask(length - past, length).to(target.device)
        mask = padding_mask(target) & causal  # B 1 L S: L new tokens, S so far
        x = self.target_embedding(target)[:, past:]  # B L D
        for layer in self.decoder:
            x = layer(x, memory, mask, memory_mask, cache)
        return x @ self.target_embedding.tokens.weight.T  # B L V


# --- Chapter 10: training -------------------------------------------------------------------------


def cross_entropy(logits, expected, label_smoothing=0.0):
    """Mean negative log-likelihood of the expected tokens; padding does not count."""
    real = expected != PAD  # B L
    log_p = at_least_float32(logits[real]).log_softmax(-1)  # N V: N tokens that are not padding
    log_p_expected = log_p.gather(-1, expected[real].unsqueeze(-1))  # N 1
    return -(1 - label_smoothing) * log_p_expected.mean() - label_smoothing * log_p.mean()


def training_step(model, optimizer, source, target, label_smoothing=0.0):
    """One step down the gradient of the loss: at each position, predict the next token."""
    logits = model(source, target[:, :-1])  # of BOS a b EOS it reads BOS a b
    loss = cross_entropy(logits, target[:, 1:], label_smoothing)  # and predicts a b EOS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


# --- Chapter 11: generation -----------------------------------------------------------------------


@torch.no_grad()  # and after model.eval(), so that dropout rests
def generate(model, source, max_new):
    """Greedy decoding: append the most probable token until every sequence has its EOS."""
    memory, memory_mask, cache = model.encode(source), padding_mask(source), KeyValueCache()
    target = torch.full_like(source[:, :1], BOS)  # B 1
    for _ in range(max_new):
        ended = (target == EOS).any(1)  # B
        if ended.all():
            break
        logits = model.decode(target, memory, memory_mask, cache)[:, -1]  # B V
        token = logits.argmax(-1).masked_fill(ended, PAD)  # B
        target = torch.cat([target, token.unsqueeze(-1)], dim=1)
        memory = memory[:, :0]  # its keys and values are in the cache now
    return target[:, 1:]  # without BOS
