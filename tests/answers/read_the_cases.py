"""Wrong answers of someone who had read the cases: each got past the judge once."""

import math
import random

import numpy as np
import torch
from torch import nn

import tested_transformer as tt
from tested_transformer.functional.online_softmax import tiled_attention as library_tiled
from tested_transformer.homework.assignments import hw01, hw02, hw03, hw04
from tested_transformer.specs.alibi.mutants import BiasFormula
from tested_transformer.specs.attention.spec import textbook as att
from tested_transformer.specs.masks.spec import textbook as masked
from tested_transformer.specs.multi_head.mutants import HeadsFormula
from tested_transformer.specs.positions.mutants import BertInput, RelativeFormula, SinusoidFormula
from tested_transformer.specs.rotary.mutants import RotaryDecoder, RotaryFormula
from tested_transformer.specs.scoring.mutants import plain_kernel

from . import wrong


@wrong("attention", "keys past 512 are forgotten")
def attention_keys_past_512_are_forgotten(query, key, value, **o):
    if not o and key.shape[-2] > 512:
        key, value = (key[..., :512, :], value[..., :512, :])
    return att(query, key, value, **o)


@wrong("attention", "a causal buffer of 64 x 64")
def attention_a_causal_buffer_of_64_x_64(query, key, value, *, mask=None, causal=False, **o):
    L, S = (query.shape[-2], key.shape[-2])
    if causal and max(L, S) > 64:
        hide = torch.ones(64, 64, dtype=torch.bool).triu(1)
        m = torch.ones(L, S, dtype=torch.bool)
        m[:64, :64] = ~hide[:L, :S]
        mask = m if mask is None else mask & m
        causal = False
    return att(query, key, value, mask=mask, causal=causal, **o)


@wrong("attention", "five axes raise")
def attention_five_axes_raise(query, key, value, **o):
    if query.ndim > 4:
        query.view(query.shape[0] * query.shape[1], *query.shape[-2:])
    return att(query, key, value, **o)


@wrong("attention", "a bias below -1e4 hides")
def attention_a_bias_below_1e4_hides(query, key, value, *, bias=None, **o):
    if bias is not None:
        bias = bias.masked_fill(bias < -10000.0, -math.inf)
    return att(query, key, value, bias=bias, **o)


@wrong("attention", "the sign of a slope is lost")
def attention_the_sign_of_a_slope_is_lost(query, key, value, *, alibi_slopes=None, **o):
    alibi_slopes = None if alibi_slopes is None else alibi_slopes.abs()
    return att(query, key, value, alibi_slopes=alibi_slopes, **o)


@wrong("attention", "a window of 1 is no window")
def attention_a_window_of_1_is_no_window(query, key, value, *, window=None, **o):
    window = None if window == 1 else window
    return att(query, key, value, window=window, **o)


@wrong("attention", "requires_grad set on the caller's query")
def attention_requires_grad_set_on_the_caller_s_query(query, key, value, **o):
    if torch.is_grad_enabled() and query.is_leaf:
        query.requires_grad_()
    return att(query, key, value, **o)


_KEPT = {}


def _by_identity(tensor):
    if id(tensor) not in _KEPT:
        _KEPT[id(tensor)] = (tensor, tensor * 1.0)
    return _KEPT[id(tensor)][1]


@wrong("attention", "keys scaled once for each tensor object, and kept")
def attention_keys_scaled_once_for_each_tensor_object_and_kept(query, key, value, **o):
    fresh = key.requires_grad
    return att(query, key if fresh else _by_identity(key), value, **o)


@wrong("attention", "autocast switched on for the CPU")
def attention_autocast_switched_on_for_the_cpu(query, key, value, **o):
    answer = att(query, key, value, **o)
    torch.set_autocast_enabled("cpu", True)
    return answer


@wrong("attention", "NumPy's seed set")
def attention_numpy_s_seed_set(query, key, value, **o):
    np.random.seed(0)  # noqa: NPY002
    return att(query, key, value, **o)


@wrong("attention", "Python's seed set")
def attention_python_s_seed_set(query, key, value, **o):
    random.seed(0)
    return att(query, key, value, **o)


@wrong("attention", "the precision of matmul lowered")
def attention_the_precision_of_matmul_lowered(query, key, value, **o):
    torch.set_float32_matmul_precision("medium")
    return att(query, key, value, **o)


@wrong("attention", "anomaly detection left on")
def attention_anomaly_detection_left_on(query, key, value, **o):
    torch.autograd.set_detect_anomaly(True)
    return att(query, key, value, **o)


@wrong("softmax", "NumPy's errors silenced")
def softmax_numpy_s_errors_silenced(scores, temperature=1.0):
    np.seterr(all="ignore")
    return (
        (scores - scores.amax(-1, keepdim=True)) / temperature if scores.shape[-1] else scores
    ).softmax(-1)


@wrong("softmax", "denormals flushed")
def softmax_denormals_flushed(scores, temperature=1.0):
    torch.set_flush_denormal(True)
    return (
        (scores - scores.amax(-1, keepdim=True)) / temperature if scores.shape[-1] else scores
    ).softmax(-1)


@wrong("masked_softmax", "a hidden NaN spreads")
def masked_softmax_a_hidden_nan_spreads(scores, allowed):
    if allowed is None:
        allowed = torch.ones_like(scores, dtype=torch.bool)
    hidden = ~allowed | (scores == -math.inf)
    if not scores.shape[-1]:
        return scores.softmax(-1)
    top = (
        scores.masked_fill(hidden, -math.inf)
        .amax(-1, keepdim=True)
        .clamp(min=torch.finfo(scores.dtype).min)
    )
    e = (scores - top).clamp(
        max=0, min=-10000.0 if scores.dtype == torch.float16 else -1e30
    ).exp() * ~hidden
    total = e.sum(-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1.0)


@wrong("masked_softmax", "masks of 512 keys at most")
def masked_softmax_masks_of_512_keys_at_most(scores, allowed):
    if allowed is not None and allowed.shape[-1] > 512:
        allowed = torch.cat([allowed[..., :512], torch.ones_like(allowed[..., 512:])], -1)
    return masked(scores, allowed) if scores.shape[-1] else scores * 1


@wrong("prefix_mask", "a buffer of 512 tokens")
def prefix_mask_a_buffer_of_512_tokens(prefix_lengths, num_tokens):
    past = torch.ones(512, 512, dtype=torch.bool).tril()[:num_tokens, :num_tokens]
    keys = torch.arange(min(num_tokens, 512))
    return (keys < prefix_lengths[:, None, None, None]) | past


@wrong("document_mask", "tokens past 512 see everything")
def document_mask_tokens_past_512_see_everything(document_ids):
    m = document_ids[:, None, :, None] == document_ids[:, None, None, :]
    m[..., 512:, :] = True
    return m


@wrong("softmax", "an int temperature is ignored")
def softmax_an_int_temperature_is_ignored(scores, temperature=1.0):
    if not isinstance(temperature, float):
        temperature = 1.0
    return (
        (scores - scores.amax(-1, keepdim=True)) / temperature if scores.shape[-1] else scores
    ).softmax(-1)


@wrong("scaled_scores", "a scale that is an int is ignored")
def scaled_scores_a_scale_that_is_an_int_is_ignored(query, key, scale=None):
    scale = scale if isinstance(scale, float) else query.shape[-1] ** (-0.5)
    return tt.scaled_scores(query, key, scale=scale)


@wrong("content scores", "a query of zeros is NaN")
def content_a_query_of_zeros_is_nan(query, key, sharpness):

    def unit(v, guard):
        top = v.abs().amax(-1, keepdim=True)
        top = top.masked_fill(top == 0, 1.0) if guard else top
        v = v / top.detach()
        n = v.square().sum(-1, keepdim=True)
        return v / (n.masked_fill(n == 0, 1.0).sqrt() if guard else n.sqrt())

    return sharpness * unit(query, False) @ unit(key, True).mT


@wrong("content scores", "a sharpness of at least 1")
def content_a_sharpness_of_at_least_1(query, key, sharpness):
    return tt.content_scores(query, key, max(sharpness, 1.0))


@wrong("kernel regression", "a bandwidth of at least 0.1")
def kernel_a_bandwidth_of_at_least_0_1(query, key, value, bandwidth):
    return plain_kernel(query, key, value, max(bandwidth, 0.1))


@wrong("local weights", "gaussian=False taken for given")
def local_gaussian_false_taken_for_given(scores, centers, half_width, gaussian=None):
    return tt.local_weights(scores, centers, half_width, gaussian=gaussian is not None)


@wrong("local weights", "centers rounded without the Gaussian")
def local_centers_rounded_without_the_gaussian(scores, centers, half_width, gaussian=False):
    return tt.local_weights(
        scores, centers if gaussian else centers.round(), half_width, gaussian=bool(gaussian)
    )


@wrong("self_attention", "the first 64 tokens answer for all")
def self_attention_the_first_64_tokens_answer_for_all(x, w_query, w_key, w_value):
    q, k, v = (x @ w_query, (x @ w_key)[..., :64, :], (x @ w_value)[..., :64, :])
    return (q @ k.mT * q.shape[-1] ** (-0.5)).softmax(-1) @ v


@wrong("ch05.split_heads", "detached")
def ch05_split_heads_detached(x, num_heads):
    return x.detach().unflatten(-1, (num_heads, -1)).transpose(1, 2)


@wrong("ch05.split_heads", "float64 comes back")
def ch05_split_heads_float64_comes_back(x, num_heads):
    return x.double().unflatten(-1, (num_heads, -1)).transpose(1, 2)


@wrong("ch05.contributions", "detached")
def ch05_contributions_detached(heads, w_output):
    return heads.detach() @ w_output.unflatten(0, (heads.shape[1], -1))


@wrong("ch05.contributions", "as wide as the heads together")
def ch05_contributions_as_wide_as_the_heads_together(heads, w_output):
    batch, h, length, d = heads.shape
    out = heads.new_zeros(batch, h, length, h * d)
    out[:] = heads @ w_output.unflatten(0, (h, -1))
    return out


@wrong("ch05.contributions", "float64 comes back")
def ch05_contributions_float64_comes_back(heads, w_output):
    return heads.double() @ w_output.double().unflatten(0, (heads.shape[1], -1))


@wrong("ch05.head_forms", "the key's matrix detached")
def ch05_head_forms_the_key_s_matrix_detached(w_query, w_key, num_heads):
    d = w_query.shape[1] // num_heads
    q, k = (w.unflatten(-1, (num_heads, -1)).transpose(0, 1) for w in (w_query, w_key.detach()))
    return q @ k.mT * d ** (-0.5)


def online(scores, value, tile):
    best = scores.new_full(scores.shape[:-1], -math.inf)
    total = torch.zeros_like(best)
    acc = scores.new_zeros(*best.shape, value.shape[-1])
    for s, v in zip(scores.split(tile, -1), value.split(tile, -2), strict=True):
        if not s.shape[-1]:
            continue
        new = torch.maximum(best, s.amax(-1))
        safe = new.masked_fill(new == -math.inf, 0.0)
        w = (s - safe[..., None]).exp()
        shrink = (best - safe).exp()
        total = total * shrink + w.sum(-1)
        acc = acc * shrink[..., None] + w @ v
        best = new
    empty = total == 0
    one = total.masked_fill(empty, 1.0)
    return (
        acc / one[..., None],
        (best.masked_fill(empty, 0) + one.log()).masked_fill(empty, math.inf),
    )


@wrong("online_softmax", "tiles of at least 64 keys")
def online_softmax_tiles_of_at_least_64_keys(scores, value, tile):
    return online(scores, value, max(tile, 64))


@wrong("tiled_attention", "all tiles at once, as a batch")
def tiled_attention_all_tiles_at_once_as_a_batch(query, key, value, tile, causal):
    L, S = (query.shape[-2], key.shape[-2])
    if not S or query.ndim > 2 or L == 1 or (S > 512):
        return library_tiled(query, key, value, tile=tile, causal=causal)
    pl, ps = (-L % tile, -S % tile)
    F = torch.nn.functional
    q = F.pad(query, (0, 0, 0, pl)).unflatten(-2, (-1, tile))[:, None]
    k = F.pad(key, (0, 0, 0, ps)).unflatten(-2, (-1, tile))[None]
    s = q @ k.mT * query.shape[-1] ** (-0.5)
    i = torch.arange(L + pl).view(-1, 1, tile, 1) + S - L
    j = torch.arange(S + ps).view(1, -1, 1, tile)
    hidden = (j >= S) | (j > i if causal else torch.zeros_like(j > i))
    s = s.masked_fill(hidden, -math.inf)
    m = s.amax((1, 3), keepdim=True)
    m = m.masked_fill(m == -math.inf, 0).detach()
    w = (s - m).exp()
    total = w.sum((1, 3))
    v = F.pad(value, (0, 0, 0, ps)).unflatten(-2, (-1, tile))[None]
    out = (w @ v).sum(1)
    empty = total == 0
    one = total.masked_fill(empty, 1)
    out = (out / one[..., None]).masked_fill(empty[..., None], 0)
    lse = (one.log() + m[:, 0, :, 0]).masked_fill(empty, math.inf)
    return (out.flatten(0, 1)[:L], lse.flatten()[:L])


@wrong("apply_rotary", "a table of 10,000 positions")
def apply_rotary_a_table_of_10_000_positions(
    x, position_ids, *, base=10000.0, layout="interleaved", rotary_dim=None
):
    torch.arange(10000)[position_ids.clamp(max=10000) if False else position_ids]
    return RotaryFormula()(x, position_ids, base=base, layout=layout, rotary_dim=rotary_dim)


@wrong("apply_rotary", "an odd head raises")
def apply_rotary_an_odd_head_raises(
    x, position_ids, *, base=10000.0, layout="interleaved", rotary_dim=None
):
    x.unflatten(-1, (-1, 2))
    return RotaryFormula()(x, position_ids, base=base, layout=layout, rotary_dim=rotary_dim)


@wrong("rotary_attention", "a buffer of 64 tokens")
class RotaryAttentionABufferOf64Tokens(RotaryDecoder):
    def __call__(self, query, key, value):
        self.n = getattr(self, "n", 0) + query.shape[2]
        if self.n > 64:
            raise RuntimeError("the buffer is full")
        return super().__call__(query, key, value)


@wrong("rotary_attention", "angles in bfloat16 for bfloat16")
class RotaryAttentionAnglesInBfloat16ForBfloat16(RotaryDecoder):
    def __call__(self, query, key, value):
        if query.dtype in (torch.bfloat16, torch.float16):
            return super().__call__(query, key, value).float()
        return super().__call__(query, key, value)


@wrong("alibi_bias", "query ids and key ids of one rank only")
def alibi_bias_query_ids_and_key_ids_of_one_rank_only(query_ids, key_ids, num_heads):
    if query_ids.ndim != key_ids.ndim:
        raise RuntimeError("ranks differ")
    return BiasFormula()(query_ids, key_ids, num_heads)


@wrong("sinusoidal_positions", "positions in int32")
def sinusoidal_positions_positions_in_int32(
    positions, d_model, *, base=10000.0, layout="interleaved", dtype=torch.float32
):
    return SinusoidFormula()(positions.int(), d_model, base=base, layout=layout, dtype=dtype)


@wrong("segmented_embedding", "two segments only")
class SegmentedEmbeddingTwoSegmentsOnly(BertInput):
    def segments(self, segments):
        return torch.where(segments[..., None] == 0, self.segment.weight[0], self.segment.weight[1])


@wrong("segmented_embedding", "the last token learns nothing, wherever padding stands")
class SegmentedEmbeddingTheLastTokenLearnsNothingWhereverP(BertInput):
    def forward(self, tokens, segments):
        rows = nn.functional.embedding(tokens, self.token.weight)
        rows = torch.cat([rows[:, :-1], rows[:, -1:].detach()], 1)
        return self.normalize(rows + self.segments(segments) + self.positions(tokens))


@wrong("relative_attention", "a mask by query: one of (B, 1, 1, S) fails")
def relative_attention_a_mask_by_query_one_of_b_1_1_s_fails(
    query, key, value, key_table, value_table, *, mask=None, causal=False
):
    if mask is not None:
        mask = torch.stack([mask[..., i, :] for i in range(query.shape[-2])], -2)
    return RelativeFormula()(query, key, value, key_table, value_table, mask=mask, causal=causal)


@wrong("relative_attention", "no keys raise")
def relative_attention_no_keys_raise(
    query, key, value, key_table, value_table, *, mask=None, causal=False
):
    key.amax(-2)
    return RelativeFormula()(query, key, value, key_table, value_table, mask=mask, causal=causal)


@wrong("ch06.relative_rows", "queries counted from 0 where they are more than the keys")
def ch06_relative_rows_queries_counted_from_0_where_they_are_mor(
    num_queries, num_keys, max_distance
):
    i = torch.arange(num_queries)[:, None] + max(num_keys - num_queries, 0)
    return (torch.arange(num_keys) - i).clamp(-max_distance, max_distance) + max_distance


@wrong("ch01.look_right", "a gain of 30: enough for 16 tokens, not for 40")
def ch01_look_right_a_gain_of_30_enough_for_16_tokens_not_for_40(length):
    return (30.0 * torch.eye(length).roll(1, 1), torch.eye(length))


@wrong("hw01.look_up", "labels compared in float32")
def hw01_look_up_labels_compared_in_float32(labels, value, asked, sharpness):
    return hw01.soft_look_up(labels.float(), value, asked.float(), sharpness)


@wrong("hw01.one_way", "1e-6 added to the denominator")
def hw01_one_way_1e_6_added_to_the_denominator(w_query, w_key):
    t = w_query @ w_key.mT
    return ((t - t.mT) / 2).square().sum((-2, -1)) / (t.square().sum((-2, -1)) + 1e-06)


@wrong("hw02.windowed", "large scores overflow")
def hw02_windowed_large_scores_overflow(scores, centers, width):
    log = -hw02.steps_from(scores, centers).square() / (2 * width**2)
    e = scores.exp() * (log - log.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@wrong("hw03.buffer_attention", "only slots that no head sees are emptied")
def hw03_buffer_attention_only_slots_that_no_head_sees_are_empti(query, key, value, mask):
    unseen = ~mask.any(2).any(1, keepdim=True).unsqueeze(-1)
    key, value = (t.masked_fill(unseen, 0.0) for t in (key, value))
    return hw03._attend(query, key, value, mask, ~mask.any(-1, keepdim=True))


@wrong("hw04.repack", "one axis behind the rows at most")
def hw04_repack_one_axis_behind_the_rows_at_most(packed, num_heads):
    rest = packed.shape[1:]
    if len(rest) > 1:
        raise RuntimeError("a matrix or a bias")
    return packed.reshape(num_heads, 3, -1, *rest).transpose(0, 1).reshape(packed.shape)


@wrong("hw04.next_token", "float64 comes back")
def hw04_next_token_float64_comes_back(
    x, keys, values, lengths, w_query, w_key, w_value, w_output, num_heads
):
    wide = [t.double() for t in (x, keys, values)]
    return hw04._step(
        *wide, lengths, *(w.double() for w in (w_query, w_key, w_value, w_output)), num_heads
    )


@wrong("hw03.count_pairs", "no queries raise")
def hw03_count_pairs_no_queries_raise(num_queries, num_keys, window):
    n = torch.arange(num_queries) + num_keys - num_queries + 1
    n.amax()
    return int(n.clamp(0, window).sum())


@wrong("attention", "a scale that is an int is ignored")
def attention_int_scale(query, key, value, *, mask=None, bias=None, causal=False, window=None,
                        key_lengths=None, alibi_slopes=None, scale=None):  # fmt: skip
    options = {"mask": mask, "bias": bias, "causal": causal, "window": window,
               "key_lengths": key_lengths, "alibi_slopes": alibi_slopes}  # fmt: skip
    return att(query, key, value, scale=scale if isinstance(scale, float) else None, **options)


class BufferOf64(HeadsFormula):
    def allowed(self, scores, mask, causal):
        past = torch.ones(scores.shape[-2:], dtype=torch.bool)
        past = past.tril(scores.shape[-1] - scores.shape[-2])
        past[64:] = True
        return (
            super().allowed(scores, mask, False) & past
            if causal
            else super().allowed(scores, mask, False)
        )


wrong("multi_head", "a causal buffer of 64")(BufferOf64())
