"""The answers to the project."""

from collections import Counter
from itertools import pairwise

import numpy as np
import torch
from torch.nn import functional

from tested_transformer.data.vocabulary import EOS, PAD

from . import right, wrong

LETTERS = "IVXLCDM"
PIECES = {"M": 1000, "CM": 900, "D": 500, "CD": 400, "C": 100, "XC": 90, "L": 50, "XL": 40,
          "X": 10, "IX": 9, "V": 5, "IV": 4, "I": 1}  # fmt: skip


# --- write ----------------------------------------------------------------------------------------


def spelled(number, long):
    text = ""
    for piece, value in PIECES.items():
        if len(piece) == 1 or not long:
            text, number = text + piece * (number // value), number % value
    return text


def numbers_of(text):
    return torch.tensor([LETTERS.index(letter) + 4 for letter in text])


@right("project.write")
def write_by_pieces(number, long):
    return numbers_of(spelled(number, long))


@right("project.write")
def write_by_replacing(number, long):
    text = spelled(number, True)
    if not long:
        for clumsy, short in (("DCCCC", "CM"), ("CCCC", "CD"), ("LXXXX", "XC"), ("XXXX", "XL"),
                              ("VIIII", "IX"), ("IIII", "IV")):  # fmt: skip
            text = text.replace(clumsy, short)
    return np.array([LETTERS.index(letter) + 4 for letter in text])


@right("project.write")
def write_by_digits(number, long):
    short = ["", "0", "00", "000", "01", "1", "10", "100", "1000", "02"]
    plain = ["", "0", "00", "000", "0000", "1", "10", "100", "1000", "10000"]
    ids = []
    for place in (3, 2, 1, 0):
        digits = (plain if long else short)[number // 10**place % 10]
        ids += [4 + 2 * place + int(step) for step in digits]
    return torch.tensor(ids)


@wrong("project.write", "letters from 0 on")
def write_from_zero(number, long):
    return numbers_of(spelled(number, long)) - 4


@wrong("project.write", "EOS behind it")
def write_with_eos(number, long):
    return torch.cat([numbers_of(spelled(number, long)), torch.tensor([EOS])])


@wrong("project.write", "short only")
def write_short(number, long):
    return numbers_of(spelled(number, False))


@wrong("project.write", "IIII for 4 alone")
def write_long_units(number, long):
    tail = number % 10
    text = spelled(number - tail, False) + spelled(tail, long) if tail else spelled(number, long)
    return numbers_of(text)


# --- read -----------------------------------------------------------------------------------------


def up_to_eos(row):
    return row[: row.index(EOS)] if EOS in row else row


@right("project.read")
def read_by_writing(ids):
    row = up_to_eos(ids.tolist())
    if not row or not all(4 <= n <= 10 for n in row):
        return 0
    values = [(1, 5, 10, 50, 100, 500, 1000)[n - 4] for n in row]
    number = sum(-a if a < b else a for a, b in zip(values, [*values[1:], 0], strict=True))
    text = "".join(LETTERS[n - 4] for n in row)
    known = 0 < number < 4000 and text in (spelled(number, False), spelled(number, True))
    return number if known else 0


ALL = {spelled(number, long): number for number in range(1, 4000) for long in (False, True)}


@right("project.read")
def read_from_a_table(ids):
    text = "".join(LETTERS[n - 4] if 4 <= n <= 10 else "?" for n in up_to_eos(ids.tolist()))
    return torch.tensor(ALL.get(text, 0))


@right("project.read")
def read_in_numpy(ids):
    end = torch.cat([ids, torch.tensor([EOS])]).tolist().index(EOS)
    return np.int64(read_by_writing(ids[:end]))


@wrong("project.read", "None for no number")
def read_none(ids):
    return read_by_writing(ids) or None


@wrong("project.read", "the longest beginning that is a numeral")
def read_beginning(ids):
    row = up_to_eos(ids.tolist())
    return max((read_by_writing(torch.tensor(row[:n])) for n in range(1, len(row) + 1)), default=0)


@wrong("project.read", "the last EOS ends it")
def read_last_eos(ids):
    row = ids.tolist()
    end = len(row) - 1 - row[::-1].index(EOS) if EOS in row else len(row)
    return read_by_writing(torch.tensor([n for n in row[:end] if n != EOS]))


@wrong("project.read", "PAD taken out")
def read_without_pads(ids):
    return read_by_writing(ids[ids != PAD])


# --- hold_out -------------------------------------------------------------------------------------


@right("project.hold_out")
def hold_out_by_sets(numbers, order, count):
    chosen, pairs, size = set(), numbers.tolist(), Counter(numbers.tolist())
    for place in order.tolist():
        if sum(size[n] for n in chosen) >= count:
            break
        chosen.add(pairs[place])
    return torch.tensor([n in chosen for n in pairs])


@right("project.hold_out")
def hold_out_by_masks(numbers, order, count):
    held = torch.zeros_like(numbers, dtype=torch.bool)
    for place in order:
        if int(held.sum()) < count:
            held = held | (numbers == numbers[place])
    return held


@right("project.hold_out")
def hold_out_in_numpy(numbers, order, count):
    """Numbers in the order of their first pair, and how many pairs they make together."""
    numbers, order = numbers.numpy(), order.numpy()
    first = list(dict.fromkeys(numbers[order].tolist()))
    together = np.cumsum([0] + [(numbers == n).sum() for n in first])
    return np.isin(numbers, first[: int(np.searchsorted(together, count))])


@wrong("project.hold_out", "one number more")
def hold_out_more(numbers, order, count):
    return hold_out_by_masks(numbers, order, count + 1)


@wrong("project.hold_out", "what stays, not what is held out")
def hold_out_turned(numbers, order, count):
    return ~hold_out_by_masks(numbers, order, count)


@wrong("project.hold_out", "from the end of the order")
def hold_out_backwards(numbers, order, count):
    return hold_out_by_masks(numbers, order.flip(0), count)


@wrong("project.hold_out", "the positions, not a mask")
def hold_out_positions(numbers, order, count):
    return hold_out_by_masks(numbers, order, count).nonzero()[:, 0]


# --- ceiling --------------------------------------------------------------------------------------


@right("project.ceiling")
def ceiling_by_counts(source, answers):
    bags = [tuple((row == letter).sum().item() for letter in range(1, 11)) for row in source]
    best = Counter()
    for (bag, _), count in Counter(zip(bags, answers.tolist(), strict=True)).items():
        best[bag] = max(best[bag], count)
    return best.total() / len(answers)


@right("project.ceiling")
def ceiling_in_torch(source, answers):
    _, bag = source.sort(1).values.unique(dim=0, return_inverse=True)
    pairs, count = torch.stack([bag, answers], 1).unique(dim=0, return_counts=True)
    best = torch.zeros(len(bag), dtype=torch.int64).scatter_reduce(0, pairs[:, 0], count, "amax")
    return best.sum().double() / len(answers)


@right("project.ceiling")
def ceiling_in_numpy(source, answers):
    rows = np.sort(source.numpy(), 1)
    right_ones = 0
    for bag in np.unique(rows, axis=0):
        found = answers.numpy()[(rows == bag).all(1)]
        right_ones += np.bincount(found).max()
    return np.float64(right_ones) / len(answers)


@wrong("project.ceiling", "the mean over the bags")
def ceiling_mean_of_bags(source, answers):
    rows = np.sort(source.numpy(), 1)
    shares = []
    for bag in np.unique(rows, axis=0):
        found = answers.numpy()[(rows == bag).all(1)]
        shares.append(np.bincount(found).max() / len(found))
    return float(np.mean(shares))


@wrong("project.ceiling", "the first answer of each bag")
def ceiling_first(source, answers):
    first = {}
    for row, answer in zip(source.tolist(), answers.tolist(), strict=True):
        first.setdefault(tuple(sorted(row)), answer)
    hits = [first[tuple(sorted(row))] == answer
            for row, answer in zip(source.tolist(), answers.tolist(), strict=True)]  # fmt: skip
    return sum(hits) / len(hits)


@wrong("project.ceiling", "a percentage")
def ceiling_as_percent(source, answers):
    return 100 * ceiling_by_counts(source, answers)


@wrong("project.ceiling", "neighbors as well as letters")
def ceiling_of_pairs(source, answers):
    keys = [tuple(sorted(pairwise(row))) for row in source.tolist()]
    best = Counter()
    for (bag, _), count in Counter(zip(keys, answers.tolist(), strict=True)).items():
        best[bag] = max(best[bag], count)
    return best.total() / len(answers)


# --- decoder_layer --------------------------------------------------------------------------------


def rms(x, gain):
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * gain


def attended(x, context, weights, num_heads, mask):
    query, key, value = (
        (t @ w).reshape(*t.shape[:2], num_heads, -1)
        for t, w in zip((x, context, context), weights[:3], strict=True)
    )
    scores = torch.einsum("blhd,bshd->bhls", query, key) / query.shape[-1] ** 0.5
    raised = (scores - scores.detach().amax(-1, keepdim=True)).exp() * mask
    total = raised.sum(-1, keepdim=True)
    shares = raised / total.where(total > 0, torch.ones_like(total))
    return torch.einsum("bhls,bshd->blhd", shares, value).flatten(2) @ weights[3]


@right("project.decoder_layer")
def layer_by_einsum(
    x, memory, target_real, source_real, own, cross, up_proj, down_proj, gains, num_heads
):
    past = target_real[:, None, None] & torch.ones(x.shape[1], x.shape[1]).tril().bool()
    y = rms(x, gains[0])
    x = x + attended(y, y, own, num_heads, past)
    x = x + attended(rms(x, gains[1]), memory, cross, num_heads, source_real[:, None, None])
    return x + functional.relu(rms(x, gains[2]) @ up_proj) @ down_proj


@right("project.decoder_layer")
def layer_token_by_token(
    x, memory, target_real, source_real, own, cross, up_proj, down_proj, gains, num_heads
):
    def attend(row, context, weights):
        if not len(context):
            return torch.zeros_like(row)
        query, key, value = row @ weights[0], context @ weights[1], context @ weights[2]
        heads = []
        for q, k, v in zip(*(t.chunk(num_heads, -1) for t in (query, key, value)), strict=True):
            scores = k @ q * q.shape[-1] ** -0.5
            heads.append((scores - scores.logsumexp(0)).exp() @ v)
        return torch.cat(heads) @ weights[3]

    def norm(t, gain):
        return t * torch.rsqrt(t.square().mean(-1, keepdim=True) + 1e-6) * gain

    samples = []
    for t, notes, real, seen in zip(x, memory, target_real, source_real, strict=True):
        y, where = norm(t, gains[0]), torch.arange(len(t))
        t = t + torch.stack([attend(y[i], y[real & (where <= i)], own) for i in range(len(t))])
        y = norm(t, gains[1])
        t = t + torch.stack([attend(row, notes[seen], cross) for row in y])
        samples.append(t + (norm(t, gains[2]) @ up_proj).clamp(min=0) @ down_proj)
    return torch.stack(samples)


@right("project.decoder_layer")
def layer_by_library_parts(
    x, memory, target_real, source_real, own, cross, up_proj, down_proj, gains, num_heads
):
    def attend(t, context, weights, mask):
        q, k, v = (functional.linear(a, w.T).unflatten(-1, (num_heads, -1)).transpose(1, 2)
                   for a, w in zip((t, context, context), weights[:3], strict=True))  # fmt: skip
        empty = ~mask.any(-1, keepdim=True)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask & ~empty, -torch.inf)
        heads = scores.softmax(-1).masked_fill(empty, 0.0) @ v
        return heads.transpose(1, 2).flatten(2) @ weights[3]

    def norm(t, gain):
        return functional.rms_norm(t, gain.shape, gain, 1e-6)

    past = target_real[:, None, None] & torch.ones(x.shape[1], x.shape[1]).tril().bool()
    y = norm(x, gains[0])
    x = x + attend(y, y, own, past)
    x = x + attend(norm(x, gains[1]), memory, cross, source_real[:, None, None])
    return x + functional.relu(norm(x, gains[2]) @ up_proj) @ down_proj


LAYER = ("x", "memory", "target_real", "source_real", "own", "cross", "up_proj", "down_proj",
         "gains", "num_heads")  # fmt: skip


def layer_with(change):
    """The right layer, given other arguments."""

    def layer(*given):
        a = dict(zip(LAYER, given, strict=True))
        return layer_by_einsum(**(a | change(a)))

    return layer


wrong("project.decoder_layer", "the keys' matrix detached")(
    layer_with(lambda a: {"own": torch.stack([a["own"][0], a["own"][1].detach(), *a["own"][2:]])})
)
wrong("project.decoder_layer", "the memory detached")(
    layer_with(lambda a: {"memory": a["memory"].detach()})
)
wrong("project.decoder_layer", "one gain for all norms")(
    layer_with(lambda a: {"gains": a["gains"][:1].expand(3, -1)})
)
wrong("project.decoder_layer", "the first sample's source padding")(
    layer_with(lambda a: {"source_real": a["source_real"][:1].expand_as(a["source_real"])})
)
wrong("project.decoder_layer", "query and key change places")(
    layer_with(lambda a: {"own": a["own"][[1, 0, 2, 3]], "cross": a["cross"][[1, 0, 2, 3]]})
)
wrong("project.decoder_layer", "the memory normalized too")(
    layer_with(lambda a: {"memory": rms(a["memory"], 1.0)})
)
wrong("project.decoder_layer", "own and cross change places")(
    layer_with(lambda a: {"own": a["cross"], "cross": a["own"]})
)
wrong("project.decoder_layer", "one head")(layer_with(lambda a: {"num_heads": 1}))
wrong("project.decoder_layer", "in float32")(
    lambda *given: layer_by_einsum(
        *(g.float() if torch.is_tensor(g) and g.is_floating_point() else g for g in given)
    ).double()
)


# --- report ---------------------------------------------------------------------------------------


def edits(a, b):
    """Row by row, in one list."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            before, row[j] = row[j], min(before + (x != y), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def counted(prefix_ids, expected, group, num_groups, right_one=None, digits_of=None):
    digits_of = digits_of or up_to_eos
    sums = np.zeros((num_groups, 4))
    for a, b, g in zip(prefix_ids.tolist(), expected.tolist(), group.tolist(), strict=True):
        said, wanted = digits_of(a), up_to_eos(b)
        exact = said == wanted and EOS in a if right_one is None else right_one(a, b)
        sums[g] += 1, exact, edits(said, wanted), len(wanted)
    return sums


@right("project.report")
def report_by_sums(prefix_ids, expected, group, num_groups):
    rows, exact, wrong_ones, digits = counted(prefix_ids, expected, group, num_groups).T
    return np.stack([rows, exact / np.maximum(rows, 1), wrong_ones / np.maximum(digits, 1)], 1)


@right("project.report")
def report_in_torch(prefix_ids, expected, group, num_groups):
    sums = torch.from_numpy(counted(prefix_ids, expected, group, num_groups))
    shares = sums[:, 1:3] / sums[:, [0, 3]].clamp(min=1)
    return torch.cat([sums[:, :1], shares], 1)


@right("project.report")
def report_group_by_group(prefix_ids, expected, group, num_groups):
    table = torch.zeros(num_groups, 3, dtype=torch.float64)
    for k in range(num_groups):
        own = group == k
        if own.any():
            one = counted(prefix_ids[own], expected[own], torch.zeros(int(own.sum())).long(), 1)[0]
            table[k] = torch.tensor([one[0], one[1] / one[0], one[2] / one[3]], dtype=torch.float64)
    return table


@wrong("project.report", "rates of the whole table")
def report_of_all(prefix_ids, expected, group, num_groups):
    sums = torch.from_numpy(counted(prefix_ids, expected, group, num_groups))
    rate = sums[:, 2].sum() / sums[:, 3].sum()
    return torch.cat([report_in_torch(prefix_ids, expected, group, num_groups)[:, :2],
                      rate.expand(num_groups, 1)], 1)  # fmt: skip


@wrong("project.report", "NaN for an empty group")
def report_nan(prefix_ids, expected, group, num_groups):
    sums = torch.from_numpy(counted(prefix_ids, expected, group, num_groups))
    return torch.stack([sums[:, 0], sums[:, 1] / sums[:, 0], sums[:, 2] / sums[:, 3]], 1)


@wrong("project.report", "EOS counts as a digit")
def report_with_eos(prefix_ids, expected, group, num_groups):
    table = report_in_torch(prefix_ids, expected, group, num_groups)
    sums = torch.from_numpy(counted(prefix_ids, expected, group, num_groups))
    rate = sums[:, 2] / (sums[:, 3] + sums[:, 0]).clamp(min=1)
    return torch.stack([table[:, 0], table[:, 1], rate], 1)


@wrong("project.report", "the groups in the order of their first rows")
def report_by_appearance(prefix_ids, expected, group, num_groups):
    names = list(dict.fromkeys(group.tolist()))
    table = report_in_torch(prefix_ids, expected, group, num_groups)
    rest = [k for k in range(num_groups) if k not in names]
    return table[names + rest]
