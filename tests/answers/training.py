"""The answers to teacher forcing, a training step, evaluation and the learning rates."""

import math
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional

from tested_transformer.data import Pair, Vocabulary, make_batch, pad
from tested_transformer.specs.training.spec import plain_evaluation, plain_step
from tested_transformer.training.losses import cross_entropy
from tested_transformer.training.schedules import one_cycle_rate, paper_rate
from tested_transformer.training.trainer import Recipe, Trainer, evaluate

from . import right, wrong

BOS, EOS, PAD = 1, 2, 0

# --- Teacher forcing ------------------------------------------------------------------------------


def forcing(candidate):
    """Right for the Spec and for the exercise."""
    right("teacher_forcing")(candidate)
    return right("ch10.shift_right")(candidate)


def not_forcing(name):
    def note(candidate):
        wrong("teacher_forcing", name)(candidate)
        return wrong("ch10.shift_right", name)(candidate)

    return note


@forcing
def in_one_batch(sentences):
    """As the package makes its batches; words by their numbers."""
    highest = max((max(words, default=4) for words in sentences), default=4)
    known = sorted({word for words in sentences for word in words} | {highest})
    words = Vocabulary([str(word) for word in known])
    numbers = torch.tensor([0, 1, 2, 3, *known])
    pairs = [Pair((str(known[0]),), tuple(map(str, row))) for row in sentences]
    batch = make_batch(pairs, words, words)
    return numbers[batch.target], numbers[batch.expected]


@forcing
def cut_after_padding(sentences):
    rows = [torch.tensor([BOS, *words, EOS]) for words in sentences]
    whole = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return whole[:, :-1], whole[:, 1:]


@forcing
def filled_in(sentences):
    longest = max(len(words) for words in sentences) + 1
    target = torch.zeros(len(sentences), longest, dtype=torch.int64)
    expected = torch.zeros_like(target)
    for b, words in enumerate(sentences):
        target[b, : len(words) + 1] = torch.tensor([BOS, *words])
        expected[b, : len(words) + 1] = torch.tensor([*words, EOS])
    return target, expected


@forcing
def by_rolling(sentences):
    expected = pad([[*words, EOS] for words in sentences])
    target = expected.roll(1, dims=1)
    target[:, 0] = BOS
    return target, expected


@forcing
def as_a_list(sentences):
    """A list of two, not a tuple."""
    return [
        pad([[BOS, *words] for words in sentences]),
        pad([[*words, EOS] for words in sentences]),
    ]


@not_forcing("EOS is appended to the caller's lists")
def appends(sentences):
    for words in sentences:
        words.append(EOS)
    return pad([[BOS, *words[:-1]] for words in sentences]), pad(list(sentences))


@not_forcing("cut to 50 words")
def cut_to_50(sentences):
    return cut_after_padding([words[:50] for words in sentences])


@not_forcing("cut to 512 words")
def cut_to_512(sentences):
    return cut_after_padding([words[:512] for words in sentences])


@not_forcing("a word is kept once")
def words_once(sentences):
    return cut_after_padding([list(dict.fromkeys(words)) for words in sentences])


@not_forcing("words in 16 bits")
def in_16_bits(sentences):
    target, expected = cut_after_padding(sentences)
    return target.to(torch.int16), expected.to(torch.int16)


@not_forcing("words in float32")
def in_floats(sentences):
    target, expected = cut_after_padding(sentences)
    return target.float(), expected.float()


@not_forcing("empty sentences are dropped")
def empty_dropped(sentences):
    return cut_after_padding([words for words in sentences if words] or [[4]])


@not_forcing("padded on the left")
def padded_left(sentences):
    return (pad([[BOS, *words] for words in sentences], left=True),
            pad([[*words, EOS] for words in sentences], left=True))  # fmt: skip


@not_forcing("the sentences sorted by length")
def sorted_by_length(sentences):
    return cut_after_padding(sorted(sentences, key=len))


@not_forcing("padding to a multiple of 8")
def to_a_multiple(sentences):
    target, expected = cut_after_padding(sentences)
    more = -target.shape[1] % 8
    return functional.pad(target, (0, more)), functional.pad(expected, (0, more))


# --- One training step ----------------------------------------------------------------------------

right("training_step")(plain_step)
A_PAIR = Pair(("4",), ("4",))
WORDS = Vocabulary([str(number) for number in range(4, 30)])


@right("training_step")
def trainer_step(model, optimizer, batches, clip):
    """The package's step, with another optimizer, on a model that knows its width."""
    model.config = SimpleNamespace(d_model=model.output.shape[0])
    rate = optimizer.param_groups[0]["lr"]
    recipe = Recipe(steps=1, accumulate=len(batches), clip=clip, schedule="constant", rate=rate)
    work = Trainer(model, [A_PAIR], WORDS, WORDS, recipe)
    work.optimizer = optimizer
    work._take_step(batches)


@right("training_step")
def weighted_means(model, optimizer, batches, clip):
    """The mean of each batch, weighted by its words; cleared first."""
    optimizer.zero_grad(set_to_none=False)
    counts = [(batch.expected != PAD).sum() for batch in batches]
    for batch, count in zip(batches, counts, strict=True):
        logits = model(batch.source, batch.target)
        loss = functional.cross_entropy(logits.mT, batch.expected, ignore_index=PAD)
        (loss * count / sum(counts)).backward()
    if clip is not None:
        norm = math.sqrt(sum(p.grad.square().sum() for p in model.parameters()))
        for parameter in model.parameters():
            parameter.grad *= min(1.0, clip / norm)
    optimizer.step()


@right("training_step")
def one_graph(model, optimizer, batches, clip=None):
    """All losses in one graph, one backward; torch clips."""
    model.train()
    logits = torch.cat([model(b.source, b.target).flatten(0, 1) for b in batches])
    words = torch.cat([b.expected.flatten() for b in batches])
    optimizer.zero_grad()
    cross_entropy(logits, words).backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()


@right("training_step")
def gradients_by_hand(model, optimizer, batches, clip):
    parameters = list(model.parameters())
    words = sum(int((b.expected != PAD).sum()) for b in batches)
    total = [torch.zeros_like(p) for p in parameters]
    for b in batches:
        loss = functional.cross_entropy(
            model(b.source, b.target).mT, b.expected, ignore_index=PAD, reduction="sum"
        )
        for sum_, found in zip(total, torch.autograd.grad(loss, parameters), strict=True):
            sum_ += found
    norm = torch.stack([(t / words).norm() for t in total]).norm()
    share = 1.0 if clip is None or norm <= clip else clip / norm
    for parameter, found in zip(parameters, total, strict=True):
        parameter.grad = found / words * share
    optimizer.step()
    optimizer.zero_grad()


def add_up(model, batches):
    """The right gradient, added to what is there."""
    words = sum(batch.num_tokens for batch in batches)
    for b in batches:
        loss = cross_entropy(model(b.source, b.target), b.expected, reduction="sum")
        (loss / words).backward()


def clip_all(model, clip):
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)


@wrong("training_step", "two steps with half the gradient each")
def two_half_steps(model, optimizer, batches, clip):
    add_up(model, batches)
    clip_all(model, clip)
    for parameter in model.parameters():
        parameter.grad /= 2
    optimizer.step()
    optimizer.step()
    optimizer.zero_grad()


@wrong("training_step", "trained in evaluation mode")
def in_eval_mode(model, optimizer, batches, clip):
    model.eval()
    plain_step(model, optimizer, batches, clip)


@wrong("training_step", "run in evaluation mode, then back")
def eval_and_back(model, optimizer, batches, clip):
    model.eval()
    plain_step(model, optimizer, batches, clip)
    model.train()


@wrong("training_step", "left in evaluation mode")
def left_in_eval_mode(model, optimizer, batches, clip):
    plain_step(model, optimizer, batches, clip)
    model.eval()


@wrong("training_step", "the optimizer is not used: w -= gradient")
def own_descent(model, optimizer, batches, clip):
    add_up(model, batches)
    clip_all(model, clip)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= parameter.grad
            parameter.grad = None


@wrong("training_step", "the optimizer's rate without its momentum")
def own_rate(model, optimizer, batches, clip):
    add_up(model, batches)
    clip_all(model, clip)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= optimizer.param_groups[0]["lr"] * parameter.grad
            parameter.grad = None


@wrong("training_step", "a fresh optimizer for every step")
def fresh_optimizer(model, optimizer, batches, clip):
    again = torch.optim.SGD(model.parameters(), **{
        name: optimizer.defaults[name] for name in ("lr", "momentum")
    })  # fmt: skip
    plain_step(model, again, batches, clip)


@wrong("training_step", "clip is multiplied by the rate")
def clip_times_rate(model, optimizer, batches, clip):
    limit = None if clip is None else clip * optimizer.param_groups[0]["lr"]
    plain_step(model, optimizer, batches, limit)


@wrong("training_step", "every gradient made as long as clip")
def always_clipped(model, optimizer, batches, clip):
    add_up(model, batches)
    if clip is not None:
        norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        for parameter in model.parameters():
            parameter.grad *= clip / norm
    optimizer.step()
    optimizer.zero_grad()


@wrong("training_step", "only the first batch")
def first_batch(model, optimizer, batches, clip):
    plain_step(model, optimizer, batches[:1], clip)


@wrong("training_step", "a mean over places, padding among them")
def over_places(model, optimizer, batches, clip):
    places = sum(batch.expected.numel() for batch in batches)
    for b in batches:
        loss = cross_entropy(model(b.source, b.target), b.expected, reduction="sum")
        (loss / places).backward()
    clip_all(model, clip)
    optimizer.step()
    optimizer.zero_grad()


@wrong("training_step", "padding is learned")
def padding_learned(model, optimizer, batches, clip):
    logits = torch.cat([model(b.source, b.target).flatten(0, 1) for b in batches])
    words = torch.cat([b.expected.flatten() for b in batches])
    cross_entropy(logits, words, ignore=None).backward()
    clip_all(model, clip)
    optimizer.step()
    optimizer.zero_grad()


@wrong("training_step", "label smoothing that nobody asked for")
def smoothed(model, optimizer, batches, clip):
    logits = torch.cat([model(b.source, b.target).flatten(0, 1) for b in batches])
    words = torch.cat([b.expected.flatten() for b in batches])
    cross_entropy(logits, words, label_smoothing=0.1).backward()
    clip_all(model, clip)
    optimizer.step()
    optimizer.zero_grad()


@wrong("training_step", "a seed set at each step")
def seeded(model, optimizer, batches, clip):
    torch.manual_seed(0)
    plain_step(model, optimizer, batches, clip)


@wrong("training_step", "the caller's batches overwritten")
def overwritten(model, optimizer, batches, clip):
    plain_step(model, optimizer, batches, clip)
    for batch in batches:
        batch.expected.zero_()


@wrong("training_step", "clipped at twice the norm of two")
def one_norm(model, optimizer, batches, clip):
    add_up(model, batches)
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip, norm_type=1.0)
    optimizer.step()
    optimizer.zero_grad()


# --- Evaluation -----------------------------------------------------------------------------------

right("evaluation")(evaluate)
right("evaluation")(plain_evaluation)


@right("evaluation")
@torch.inference_mode()
def word_by_word(model, batches):
    was_training = model.training
    model.eval()
    losses, hits = [], []
    for batch in batches:
        counts = batch.expected != PAD
        logits, words = model(batch.source, batch.target)[counts], batch.expected[counts]
        losses += functional.cross_entropy(logits, words, reduction="none").tolist()
        hits += (logits.argmax(-1) == words).tolist()
    model.train(was_training)
    return sum(losses) / len(losses), sum(hits) / len(hits)


@right("evaluation")
def in_tensors(model, batches):
    """Whole numbers divided by whole numbers, which torch does in float32."""
    mode, model = model.training, model.eval()
    with torch.no_grad():
        logits = torch.cat([model(b.source, b.target).flatten(0, 1) for b in batches])
    model.train(mode)
    words = torch.cat([b.expected.flatten() for b in batches])
    real = words != PAD
    loss = functional.cross_entropy(logits, words, ignore_index=PAD)
    return loss, (logits.argmax(-1) == words)[real].sum() / real.sum()


@right("evaluation")
def running_mean(model, batches):
    mode, loss, accuracy, count = model.training, 0.0, 0.0, 0
    model.eval()
    for b in batches:
        with torch.no_grad():
            log_p = model(b.source, b.target).log_softmax(-1)
        for row, word in zip(log_p.flatten(0, 1), b.expected.flatten(), strict=True):
            if word != PAD:
                count += 1
                loss += (-row[word].item() - loss) / count
                accuracy += (float(row.argmax() == word) - accuracy) / count
    model.train(mode)
    return loss, accuracy


@wrong("evaluation", "the weights are frozen")
def freezes(model, batches):
    model.requires_grad_(False)
    return plain_evaluation(model, batches)


@wrong("evaluation", "the gradients are cleared")
def clears(model, batches):
    model.zero_grad()
    return plain_evaluation(model, batches)


@wrong("evaluation", "a copy of the weights in half precision is left")
def halves(model, batches):
    found = plain_evaluation(model, batches)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half())
    return found


@wrong("evaluation", "grad mode is left off")
def grad_left_off(model, batches):
    torch.set_grad_enabled(False)
    return plain_evaluation(model, batches)


@wrong("evaluation", "the first batch alone")
def first_alone(model, batches):
    return plain_evaluation(model, batches[:1])


@wrong("evaluation", "the last batch dropped")
def last_dropped(model, batches):
    return plain_evaluation(model, batches[:-1] or batches)


@wrong("evaluation", "a batch without words counts as right")
def empty_is_right(model, batches):
    found = [plain_evaluation(model, [b]) for b in batches if b.num_tokens]
    counts = [max(int((b.expected != PAD).sum()), 1) for b in batches]
    found += [(0.0, 1.0)] * (len(batches) - len(found))
    counts = sorted(counts, reverse=True) if len(set(counts)) > 5 else counts
    total = sum(counts)
    return tuple(sum(f[i] * c for f, c in zip(found, counts, strict=True)) / total for i in (0, 1))


@wrong("evaluation", "a batch without words is NaN")
def empty_is_nan(model, batches):
    total, words = torch.zeros(2, dtype=torch.float64), 0
    mode, model = model.training, model.eval()
    with torch.no_grad():
        for b in batches:
            logits, real = model(b.source, b.target), b.expected != PAD
            loss = functional.cross_entropy(logits.mT, b.expected, ignore_index=PAD)
            hits = (logits.argmax(-1) == b.expected)[real].double().mean()
            total += torch.stack([loss.double(), hits]) * real.sum()
            words += real.sum()
    model.train(mode)
    return total[0] / words, total[1] / words


@wrong("evaluation", "accuracy by sentences")
def by_sentences(model, batches):
    loss, _ = plain_evaluation(model, batches)
    mode, hits = model.training, []
    model.eval()
    with torch.no_grad():
        for b in batches:
            same = (model(b.source, b.target).argmax(-1) == b.expected) | (b.expected == PAD)
            hits += same.all(1).tolist()
    model.train(mode)
    return loss, sum(hits) / len(hits)


@wrong("evaluation", "the perplexity for the loss")
def perplexity(model, batches):
    loss, accuracy = plain_evaluation(model, batches)
    return math.exp(loss), accuracy


@wrong("evaluation", "smoothed as in training")
def smoothed_loss(model, batches):
    mode, model = model.training, model.eval()
    with torch.no_grad():
        logits = torch.cat([model(b.source, b.target).flatten(0, 1) for b in batches])
    model.train(mode)
    words = torch.cat([b.expected.flatten() for b in batches])
    _, accuracy = plain_evaluation(model, batches)
    return cross_entropy(logits, words, label_smoothing=0.1), accuracy


# --- The paper's rate -----------------------------------------------------------------------------

right("paper_rate")(paper_rate)
right("paper_rate", "partial")(partial(paper_rate))


@right("paper_rate")
def piecewise(step, *, d_model, warmup=4000, factor=1.0):
    peak = factor / math.sqrt(d_model * warmup)
    return peak * (step / warmup if step < warmup else math.sqrt(warmup / step))


@right("paper_rate")
def by_logarithms(step, *, d_model, warmup=4000, factor=1.0):
    smaller = min(-0.5 * math.log(step), math.log(step) - 1.5 * math.log(warmup))
    return math.exp(math.log(factor) - 0.5 * math.log(d_model) + smaller)


@right("paper_rate")
def in_torch(step, *, d_model, warmup=4000, factor=1.0):
    s, w, d = (torch.tensor(n, dtype=torch.float64) for n in (step, warmup, d_model))
    return factor * d.rsqrt() * torch.minimum(s.rsqrt(), s * w.rsqrt() / w)


@right("paper_rate")
def one_root(step, *, d_model, warmup=4000, factor=1.0):
    return factor * min(1 / (d_model * step), step**2 / (d_model * warmup**3)) ** 0.5


@right("paper_rate")
def any_options(step, **options):
    return paper_rate(step, **options)


def wrong_paper(name, **changes):
    """The paper's rate with other arguments."""

    def rate(step, *, d_model, warmup=4000, factor=1.0):
        given = {"step": step, "d_model": d_model, "warmup": warmup, "factor": factor}
        given |= {key: change(**given) for key, change in changes.items()}
        return paper_rate(given.pop("step"), **given)

    wrong("paper_rate", name)(rate)


wrong_paper("capped at step 10,000", step=lambda step, **_: min(step, 10_000))
wrong_paper("capped at step 100,000", step=lambda step, **_: min(step, 100_000))
wrong_paper("a warm-up of at least 2", warmup=lambda warmup, **_: max(warmup, 2))
wrong_paper("warmup is not looked at", warmup=lambda **_: 4000)
wrong_paper("the default of another library", warmup=lambda warmup, **_: warmup if warmup != 4000 else 8000)  # fmt: skip
wrong_paper("factor is not looked at", factor=lambda **_: 1.0)
wrong_paper("factor only after the warm-up", factor=lambda factor, step, warmup, **_: factor if step > warmup else 1.0)  # fmt: skip
wrong_paper("factor only with a warm-up of its own", factor=lambda factor, warmup, **_: factor if warmup != 4000 else 1.0)  # fmt: skip
wrong_paper("d_model rounded up to a multiple of 8", d_model=lambda d_model, **_: -(-d_model // 8) * 8)  # fmt: skip
wrong_paper("counted from 1 again", step=lambda step, **_: step + 1)


@wrong("paper_rate", "rounded to six digits")
def rounded(step, **options):
    return round(paper_rate(step, **options), 6)


@wrong("paper_rate", "in float32")
def paper_in_float32(step, **options):
    return torch.tensor(paper_rate(step, **options), dtype=torch.float32).item()


@wrong("paper_rate", "whole numbers divided")
def whole_division(step, *, d_model, warmup=4000, factor=1.0):
    if step < warmup:
        return factor * (d_model * warmup) ** -0.5 * (step * 100 // warmup) / 100
    return factor * (d_model * step) ** -0.5


# --- One cycle ------------------------------------------------------------------------------------

right("one_cycle_rate")(one_cycle_rate)


@right("one_cycle_rate")
def torch_cycle(step, *, total, peak, warmup=0.3, start_ratio=25.0, end_ratio=1e4):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=peak, total_steps=total, pct_start=warmup, div_factor=start_ratio,
        final_div_factor=end_ratio, cycle_momentum=False,
    )  # fmt: skip
    schedule.last_epoch = step - 1
    return schedule.get_lr()[0]


def cycle(shape):
    """Right: `shape(first, last, share)` goes from the one to the other."""

    def rate(step, *, total, peak, warmup=0.3, start_ratio=25.0, end_ratio=1e4):
        first, turn = peak / start_ratio, warmup * total
        if step <= turn:
            return shape(first, peak, (step - 1) / (turn - 1))
        return shape(peak, first / end_ratio, (step - turn) / (total - turn))

    return rate


@partial(right("one_cycle_rate", "by the sine's square"))
@cycle
def by_sine(first, last, share):
    return first + (last - first) * math.sin(math.pi * share / 2) ** 2


@partial(right("one_cycle_rate", "by the cosine's square"))
@cycle
def by_cosine(first, last, share):
    return last + (first - last) * math.cos(math.pi / 2 * share) ** 2


@partial(right("one_cycle_rate", "by the mean"))
@cycle
def by_mean(first, last, share):
    return (first + last) / 2 + (first - last) / 2 * math.cos(math.pi * share)


@partial(right("one_cycle_rate", "in torch"))
@cycle
def by_lerp(first, last, share):
    weight = (1 - torch.cos(torch.tensor(math.pi * share, dtype=torch.float64))) / 2
    return torch.lerp(torch.tensor(first, dtype=torch.float64), torch.tensor(last, dtype=torch.float64), weight)  # fmt: skip


def wrong_cycle(name, **changes):
    """One cycle with other arguments."""

    def rate(step, *, total, peak, warmup=0.3, start_ratio=25.0, end_ratio=1e4):
        given = {"step": step, "total": total, "peak": peak, "warmup": warmup,
                 "start_ratio": start_ratio, "end_ratio": end_ratio}  # fmt: skip
        given |= {key: change(**given) for key, change in changes.items()}
        return one_cycle_rate(given.pop("step"), **given)

    wrong("one_cycle_rate", name)(rate)


wrong_cycle("a warm-up of 0 is one of 0.3", warmup=lambda warmup, **_: warmup or 0.3)
wrong_cycle("no warm-up above one half", warmup=lambda warmup, **_: min(warmup, 0.5))
wrong_cycle("end_ratio is not looked at", end_ratio=lambda **_: 1e4)
wrong_cycle("end_ratio of the peak where it is small", end_ratio=lambda end_ratio, start_ratio, **_: end_ratio / (start_ratio if end_ratio < 10 else 1))  # fmt: skip
wrong_cycle("the peak is at least 1e-3", peak=lambda peak, **_: max(peak, 1e-3))
wrong_cycle("the peak on a whole step", warmup=lambda warmup, total, **_: round(warmup * total) / total)  # fmt: skip
wrong_cycle("total one larger", total=lambda total, **_: total + 1)


@wrong("one_cycle_rate", "warmup=0 divides by zero")
def divides_by_zero(step, *, total, peak, warmup=0.3, **options):
    share = step / (warmup * total)
    return one_cycle_rate(step, total=total, peak=peak, warmup=warmup, **options) + 0 * share


@wrong("one_cycle_rate", "never below a millionth of the peak")
def bounded(step, *, total, peak, **options):
    return max(one_cycle_rate(step, total=total, peak=peak, **options), 1e-5 * peak)


@wrong("one_cycle_rate", "in float32")
def cycle_in_float32(step, **options):
    return torch.tensor(one_cycle_rate(step, **options), dtype=torch.float32).item()


@wrong("one_cycle_rate", "three phases")
def three_phases(step, *, total, peak, warmup=0.3, start_ratio=25.0, end_ratio=1e4):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=peak, total_steps=total, pct_start=warmup, div_factor=start_ratio,
        final_div_factor=end_ratio, cycle_momentum=False, three_phase=True,
    )  # fmt: skip
    schedule.last_epoch = step - 1
    return schedule.get_lr()[0]


@wrong("one_cycle_rate", "lines between ten points")
def lines(step, *, total, **options):
    ends = [round(1 + (total - 1) * n / 9) for n in range(10)]
    first, last = next((a, b) for a, b in pairwise(ends) if a <= step <= b)
    rates = [one_cycle_rate(n, total=total, **options) for n in (first, last)]
    return rates[0] + (rates[1] - rates[0]) * (step - first) / max(last - first, 1)
