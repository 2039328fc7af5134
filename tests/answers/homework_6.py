"""The answers to homework 6."""

import numpy as np
import torch

from . import right, wrong

# --- shares ---------------------------------------------------------------------------------------


@right("hw06.shares")
def shares_step_by_step(norm_placement, num_sublayers, variance):
    parts = torch.ones(1, dtype=torch.float64)
    for _ in range(num_sublayers):
        parts = torch.cat([parts, torch.tensor([variance], dtype=torch.float64)])
        parts = parts / parts.sum() if norm_placement == "post" else parts
    return parts / parts.sum()


@right("hw06.shares")
def shares_in_numpy(norm_placement, num_sublayers, variance):
    if norm_placement == "pre":
        parts = np.full(num_sublayers + 1, variance, dtype=np.float64)
        parts[0] = 1
        return parts / parts.sum()
    keep = 1 / (1 + variance)
    found = variance * keep ** np.arange(num_sublayers, 0, -1)
    return np.concatenate([[keep**num_sublayers], found])


@right("hw06.shares")
def shares_by_logarithms(norm_placement, num_sublayers, variance):
    after = torch.tensor([num_sublayers, *range(num_sublayers, 0, -1)], dtype=torch.float64)
    logs = torch.full((num_sublayers + 1,), variance, dtype=torch.float64).log()
    logs[0] = 0.0
    if norm_placement == "post":
        logs = logs - after * torch.tensor(variance, dtype=torch.float64).log1p()
    return (logs - logs.logsumexp(0)).exp()


@wrong("hw06.shares", "a list")
def shares_as_a_list(norm_placement, num_sublayers, variance):
    return shares_step_by_step(norm_placement, num_sublayers, variance).tolist()


@wrong("hw06.shares", "float32")
def shares_single(norm_placement, num_sublayers, variance):
    return shares_step_by_step(norm_placement, num_sublayers, variance).float()


@wrong("hw06.shares", "the embedding left out")
def shares_without_embedding(norm_placement, num_sublayers, variance):
    return shares_step_by_step(norm_placement, num_sublayers, variance)[1:]


@wrong("hw06.shares", "each norm halves")
def shares_halved(norm_placement, num_sublayers, variance):
    found = shares_step_by_step(norm_placement, num_sublayers, variance)
    if norm_placement == "pre" or not num_sublayers:
        return found
    parts = 0.5 ** torch.arange(num_sublayers, -1, -1, dtype=torch.float64)
    return parts / parts.sum()


# --- merge_statistics -----------------------------------------------------------------------------


@right("hw06.merge_statistics")
def merge_two_by_two(counts, means, variances):
    """Chan's way: pieces are added one after the other."""
    number = 0
    mean, squares = torch.zeros_like(means[..., 0]), torch.zeros_like(means[..., 0])
    for p, count in enumerate(counts.tolist()):
        if count == 0:
            continue
        step, number = means[..., p] - mean, number + count
        squares = (
            squares + count * variances[..., p] + step**2 * (count * (number - count) / number)
        )
        mean = mean + step * (count / number)
    return mean, squares / number


@right("hw06.merge_statistics")
def merge_by_where(counts, means, variances):
    real = counts > 0
    means, variances = (torch.where(real, t, torch.zeros_like(t)) for t in (means, variances))
    weights = counts.to(means.dtype)
    mean = means @ weights / weights.sum()
    spread = variances + (means - mean[..., None]) ** 2
    return mean, torch.einsum("...p,p->...", spread, weights) / weights.sum()


@right("hw06.merge_statistics")
def merge_in_numpy(counts, means, variances):
    counts, means, variances = (t.numpy() for t in (counts, means, variances))
    real = counts > 0
    shares = counts[real] / counts.sum()
    mean = np.asarray((means[..., real] * shares).sum(-1))
    spread = variances[..., real] + (means[..., real] - mean[..., None]) ** 2
    answer = mean, np.asarray((spread * shares).sum(-1))
    return tuple(part.astype(means.dtype) for part in answer)


@right("hw06.merge_statistics")
def merge_of_moved_means(counts, means, variances):
    """All means less the first; then the mean of squares less the squared mean is harmless."""
    real = counts > 0
    shares = (counts[real].double() / counts.sum()).to(means.dtype)
    first = means[..., real][..., :1]
    moved = means[..., real] - first
    mean = (shares * moved).sum(-1)
    second = (shares * (variances[..., real] + moved**2)).sum(-1)
    return [first[..., 0] + mean, second - mean**2]


@wrong("hw06.merge_statistics", "the standard deviation")
def merge_root(counts, means, variances):
    mean, variance = merge_by_where(counts, means, variances)
    return mean, variance.sqrt()


@wrong("hw06.merge_statistics", "variance first")
def merge_swapped(counts, means, variances):
    return merge_by_where(counts, means, variances)[::-1]


@wrong("hw06.merge_statistics", "empty pieces count as 1")
def merge_empty_as_one(counts, means, variances):
    return merge_by_where(counts.clamp(min=1), means.nan_to_num(0), variances.nan_to_num(0))


@wrong("hw06.merge_statistics", "NaN for empty, whatever else they hold")
def merge_by_nan(counts, means, variances):
    real = ~means.isnan().reshape(-1, len(counts)).any(0)
    return merge_by_where((counts * real).clamp(min=0) + (real & (counts == 0)), means, variances)


@wrong("hw06.merge_statistics", "in float32")
def merge_single(counts, means, variances):
    pair = merge_by_where(counts, means.float(), variances.float())
    return [part.to(means.dtype) for part in pair]


@wrong("hw06.merge_statistics", "means of the batch")
def merge_batch(counts, means, variances):
    mean, variance = merge_by_where(counts, means, variances)
    return mean.mean().expand_as(mean), variance


# --- next_fold ------------------------------------------------------------------------------------


@right("hw06.next_fold")
def fold_unit_by_unit(x, direction, w_up, b_up):
    first = torch.full(x.shape[:-1], torch.inf, dtype=x.dtype)
    for key, threshold in zip(w_up.T, b_up, strict=True):
        height, slope = x @ key + threshold, direction @ key
        ahead = (height * slope) < 0
        step = torch.where(ahead, -height / torch.where(ahead, slope, 1.0), torch.inf)
        first = torch.minimum(first, step)
    return first


@right("hw06.next_fold")
def fold_by_sorting(x, direction, w_up, b_up):
    heights = torch.einsum("...d,du->...u", x, w_up) + b_up
    slopes = torch.einsum("...d,du->...u", direction, w_up)
    steps = heights / -slopes
    return torch.where(steps > 0, steps, torch.inf).sort(-1).values[..., 0]


@right("hw06.next_fold")
def fold_in_numpy(x, direction, w_up, b_up):
    x, direction, w_up, b_up = (t.numpy() for t in (x, direction, w_up, b_up))
    heights, slopes = x @ w_up + b_up, direction @ w_up
    with np.errstate(all="ignore"):
        rate = np.where(heights * slopes < 0, -slopes / heights, 0.0).max(-1)
        return np.where(rate > 0, 1 / rate, np.inf).astype(x.dtype)


@wrong("hw06.next_fold", "the last fold")
def fold_last(x, direction, w_up, b_up):
    steps = -(x @ w_up + b_up) / (direction @ w_up)
    return steps.where((steps > 0) & steps.isfinite(), -torch.inf).amax(-1).abs()


@wrong("hw06.next_fold", "-1 where there is none")
def fold_minus_one(x, direction, w_up, b_up):
    steps = fold_unit_by_unit(x, direction, w_up, b_up)
    return steps.masked_fill(steps.isinf(), -1.0)


@wrong("hw06.next_fold", "folds nearer than 1e-3 passed over")
def fold_not_so_near(x, direction, w_up, b_up):
    steps = -(x @ w_up + b_up) / (direction @ w_up)
    return steps.where(steps > 0.05, torch.inf).amin(-1)


@wrong("hw06.next_fold", "one direction for all")
def fold_one_direction(x, direction, w_up, b_up):
    one = direction.reshape(-1, direction.shape[-1])[0]
    return fold_unit_by_unit(x, one.expand_as(direction), w_up, b_up)


@wrong("hw06.next_fold", "looks no farther than 10 steps")
def fold_within_ten(x, direction, w_up, b_up):
    steps = fold_unit_by_unit(x, direction, w_up, b_up)
    return steps.where(steps < 10, torch.inf)


# --- lightest -------------------------------------------------------------------------------------


def sides(w_up, b_up, w_down):
    return torch.cat([w_up, b_up[None]]).norm(dim=0), w_down.norm(dim=1)


@right("hw06.lightest")
def lightest_by_directions(w_up, b_up, w_down):
    """Each side's direction, times the geometric mean of both lengths."""
    before, after = sides(w_up, b_up, w_down)
    length = before.sqrt() * after.sqrt()
    up = length / before.where(before > 0, 1.0)
    down = length / after.where(after > 0, 1.0)
    return w_up * up, b_up * up, w_down * down[:, None]


@right("hw06.lightest")
def lightest_unit_by_unit(w_up, b_up, w_down):
    w_up, b_up, w_down = w_up.clone(), b_up.clone(), w_down.clone()
    for u in range(len(b_up)):
        first = float((w_up[:, u] ** 2).sum() + b_up[u] ** 2)
        second = float((w_down[u] ** 2).sum())
        if first * second == 0:
            w_up[:, u], b_up[u], w_down[u] = 0, 0, 0
            continue
        factor = (second / first) ** 0.25
        w_up[:, u] *= factor
        b_up[u] *= factor
        w_down[u] /= factor
    return w_up, b_up, w_down


@right("hw06.lightest")
def lightest_by_matrices(w_up, b_up, w_down):
    first = w_up.square().sum(0) + b_up.square()
    second = w_down.square().sum(1)
    used = (first > 0) & (second > 0)
    stretch = torch.where(used, (second / first) ** 0.25, 1.0)
    up, down = (torch.where(used, each, 0.0) for each in (stretch, 1 / stretch))
    return [w_up @ torch.diag(up), b_up * up, torch.diag(down) @ w_down]


@wrong("hw06.lightest", "the lengths of all units")
def lightest_mean(w_up, b_up, w_down):
    before, after = sides(w_up, b_up, w_down)
    stretch = (after.mean() / before.mean()).sqrt()
    return w_up * stretch, b_up * stretch, w_down / stretch


@wrong("hw06.lightest", "idle units left as they were")
def lightest_idle_left(w_up, b_up, w_down):
    before, after = sides(w_up, b_up, w_down)
    stretch = torch.where((before > 0) & (after > 0), (after / before).sqrt(), 1.0)
    return w_up * stretch, b_up * stretch, w_down / stretch[:, None]


@wrong("hw06.lightest", "in place")
def lightest_in_place(w_up, b_up, w_down):
    new = lightest_by_directions(w_up, b_up, w_down)
    for old, tensor in zip((w_up, b_up, w_down), new, strict=True):
        old.copy_(tensor)
    return w_up, b_up, w_down


@wrong("hw06.lightest", "idle units' signs only")
def lightest_flipped(w_up, b_up, w_down):
    w, b, v = lightest_by_directions(w_up, b_up, w_down)
    return -w, -b, -v


@wrong("hw06.lightest", "in float32")
def lightest_single(w_up, b_up, w_down):
    found = lightest_by_directions(w_up.float(), b_up.float(), w_down.float())
    return [t.to(w_up.dtype) for t in found]
