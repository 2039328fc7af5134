"""BigBird against transformers: equal in training mode, and what their evaluation mode reads instead."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from same_numbers import assert_same_numbers, in_dtype, shake
from tested_transformer.layers.multi_head import concat_heads, split_heads
from tested_transformer.mixers.global_patterns import big_bird_attention

SIZE, RANDOM, LENGTH = 2, 2, 26


def big_bird_of_transformers():
    return pytest.importorskip("transformers.models.big_bird.modeling_big_bird")


def their_config(big_bird, **options):
    sizes = {"hidden_size": 12, "num_attention_heads": 3, "max_position_embeddings": 30} | options
    return big_bird.BigBirdConfig(
        num_hidden_layers=2, intermediate_size=20, vocab_size=30, block_size=SIZE,
        num_random_blocks=RANDOM, attention_type="block_sparse", hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, **sizes,
    )  # fmt: skip


def their_blocks(theirs, length):
    """The random blocks that they sample in training: from their seed, for each head others."""
    np.random.seed(theirs.seed)  # noqa: NPY002 (what they sample from)
    plan = theirs._get_rand_attn_plan(length, theirs.block_size, theirs.num_random_blocks)
    blocks = theirs._bigbird_block_rand_mask_with_head(
        length, length, theirs.block_size, theirs.block_size, theirs.num_attention_heads, *plan
    )
    return torch.from_numpy(np.stack(blocks)).long()


class Ours(nn.Module):
    """Our attention in their model, with their weights and their random blocks."""

    def __init__(self, theirs, length):
        super().__init__()
        self.query, self.key, self.value = theirs.query, theirs.key, theirs.value
        self.num_heads, self.blocks = theirs.num_attention_heads, their_blocks(theirs, length)

    def forward(self, x, band_mask, from_mask, to_mask, *rest, **options):
        parts = [
            split_heads(each(x), self.num_heads) for each in (self.query, self.key, self.value)
        ]
        real = to_mask[:, 0, 0].bool()  # B L
        return concat_heads(
            big_bird_attention(*parts, self.blocks, block_size=SIZE, key_mask=real)
        ), None


@pytest.mark.parametrize("real_tokens", [(26, 26), (26, 17)])
def test_equal_to_transformers_in_training(real_tokens):
    big_bird = big_bird_of_transformers()
    torch.manual_seed(0)
    theirs = big_bird.BigBirdModel(their_config(big_bird), add_pooling_layer=False)
    theirs = shake(theirs, 1).double().train()
    ours = copy.deepcopy(theirs)
    for each in ours.encoder.layer:
        each.attention.self = Ours(each.attention.self, LENGTH)
    real = torch.arange(LENGTH) < torch.tensor(real_tokens)[:, None]
    ids = torch.randint(30, (2, LENGTH), generator=torch.Generator().manual_seed(2))
    weights = torch.randn(2, LENGTH, 12, generator=torch.Generator().manual_seed(3)).double()

    def run(module, dtype):
        twin = in_dtype(module, dtype).train()
        output = twin(ids, attention_mask=real.to(dtype))[0] * real[..., None]
        (output * weights.to(dtype)).sum().backward()
        gradients = {name: each.grad for name, each in twin.named_parameters()}
        return {"output": [output], "gradients": [gradients[n] for n in sorted(gradients)]}

    assert_same_numbers(lambda dtype: run(ours, dtype), lambda dtype: run(theirs, dtype))


# --- What they read -------------------------------------------------------------------------------


def attention_matrix(big_bird, training, length=LENGTH):
    """The weights of their attention when all scores are equal: row i sums to 1.

    One head, as many features as tokens, queries of 0, values of the identity: the output is the weights.
    """
    config = their_config(big_bird, hidden_size=length, num_attention_heads=1)
    theirs = big_bird.BigBirdBlockSparseAttention(config, seed=1).double().train(training)
    for each in (theirs.query, theirs.key, theirs.value):
        nn.init.zeros_(each.weight)
        nn.init.zeros_(each.bias)
    nn.init.eye_(theirs.value.weight)
    masks = big_bird.BigBirdModel.create_masks_for_block_sparse_attn(
        torch.ones(1, length, dtype=torch.float64), SIZE
    )
    blocked, band, from_mask, to_mask = masks
    x = torch.eye(length, dtype=torch.float64)[None]
    with torch.no_grad():
        return theirs(x, band, from_mask, to_mask, blocked, blocked)[0][0], their_blocks(
            theirs, length
        )


def times_read(weights):
    """How often each block of keys stands in the softmax of each block of queries."""
    per_block = weights.unflatten(0, (-1, SIZE))[:, 0].unflatten(1, (-1, SIZE))[..., 0]  # n n
    least = per_block.where(per_block > 0, torch.inf).amin(-1, keepdim=True)
    return (per_block / least).round().long()


def test_in_training_each_block_is_read_once():
    weights, blocks = attention_matrix(big_bird_of_transformers(), training=True)
    expected = torch.eye(LENGTH, dtype=torch.float64)[None, None]
    zeros = torch.zeros(1, 1, LENGTH, 4, dtype=torch.float64)
    ours = big_bird_attention(zeros, zeros, expected, blocks, block_size=SIZE)[0, 0]
    torch.testing.assert_close(weights, ours)
    assert times_read(weights).max() == 1


def test_in_evaluation_block_0_stands_for_every_random_block():
    """Read by all anyway, it counts 1 + 2 times; no random block is read."""
    counts = times_read(attention_matrix(big_bird_of_transformers(), training=False)[0])
    last = len(counts) - 1
    for i, row in enumerate(counts.tolist()):
        if i in (0, last):
            assert row == [1] * (last + 1)
        else:
            near = {0, i - 1, i, i + 1, last}
            assert {j for j, count in enumerate(row) if count} == near
            assert row[0] == 1 + RANDOM
            assert {row[j] for j in near - {0}} == {1}


@pytest.mark.parametrize("blocks", [13, 40])
def test_they_sample_from_the_first_blocks_alone(blocks):
    """In training: from the first 2 r + 5, the last of which counts as an end, however long the text."""
    big_bird = big_bird_of_transformers()
    config = their_config(big_bird, max_position_embeddings=100, num_attention_heads=4)
    theirs = big_bird.BigBirdBlockSparseAttention(config, seed=0).train()
    drawn = set()
    for theirs.seed in range(20):
        drawn |= set(their_blocks(theirs, blocks * SIZE).flatten().tolist())
    assert drawn == set(range(1, 2 * RANDOM + 4))


def test_their_old_plans_sample_from_the_first_1024_tokens():
    """For 4,096 tokens in blocks of 64: blocks 1 to 14 of 64."""
    big_bird = big_bird_of_transformers()
    theirs = big_bird.BigBirdBlockSparseAttention(their_config(big_bird), seed=0).train()
    np.random.seed(0)  # noqa: NPY002 (what they sample from)
    drawn = set()
    for _ in range(20):
        drawn |= set(
            theirs._bigbird_block_rand_mask(4096, 4096, 64, 64, 3, last_idx=1024).flatten()
        )
    assert max(drawn) * 64 < 1024
