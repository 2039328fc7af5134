"""The famous mistakes around a training step: teacher forcing, gradients, rates and evaluation."""

from __future__ import annotations

import math

import torch
from torch import nn

from ...data.batches import pad
from ...data.vocabulary import BOS, EOS, PAD, UNK
from ...training.losses import cross_entropy
from ..mistakes import mistake

# --- Teacher forcing ------------------------------------------------------------------------------


@mistake(
    "target not shifted",
    rejected_by="what is read ends before what is said",
    symptom="The loss is 0 within minutes, and the model cannot write a single word.",
    cause="Input and expected words are the same tensor: the model learns to copy.",
    seen="huggingface/transformers issue 6476",
    of="teacher_forcing",
)
def not_shifted(sentences):
    """The word to say is the word that is read."""
    rows = pad([[*words, EOS] for words in sentences])
    return rows, rows


@mistake(
    "shifted the wrong way",
    rejected_by="the first word is said first",
    symptom="A low loss again: the word before the one that is read is easily guessed.",
    cause="[1:] for the input and [:-1] for the expected words.",
    of="teacher_forcing",
)
def shifted_the_wrong_way(sentences):
    """The model reads the word after the one that it should say."""
    rows = [[BOS, *words, EOS] for words in sentences]
    return pad([row[1:] for row in rows]), pad([row[:-1] for row in rows])


@mistake(
    "no end",
    rejected_by="the end is said",
    symptom="Generation never stops before the greatest length.",
    cause="No EOS among the expected words.",
    of="teacher_forcing",
)
def never_ends(sentences):
    """No EOS anywhere."""
    return pad([[BOS, *words[:-1]] for words in sentences]), pad(list(sentences))


@mistake(
    "BOS expected",
    rejected_by="the first word is said first",
    symptom="Every sentence starts with the word <bos>, and one step more is paid for each.",
    cause="The tokenizer has added BOS already, and shifting adds another.",
    seen="shmsw25/bart-closed-book-qa issue 4, huggingface/transformers issue 7961",
    of="teacher_forcing",
)
def says_bos(sentences):
    """The sentence is wrapped twice."""
    rows = [[BOS, *words, EOS] for words in sentences]
    return pad([[BOS, *row[:-1]] for row in rows]), pad(rows)


@mistake(
    "padded with a word",
    rejected_by="padding is PAD",
    symptom="The model learns to write <unk> after the end; the loss looks better than it is.",
    cause="Filled up with UNK, while the loss ignores PAD.",
    seen="source notes, 001:1537",
    of="teacher_forcing",
)
def padded_with_unk(sentences):
    """The expected words are filled up with a word."""
    read = pad([[BOS, *words] for words in sentences])
    return read, pad([[*words, EOS] for words in sentences], value=UNK)


@mistake(
    "the end said again and again",
    rejected_by="padding is PAD",
    symptom="Most of the accuracy comes from EOS after EOS.",
    cause="The end of a sentence serves as padding and is not ignored.",
    of="teacher_forcing",
)
def padding_starts_with_eos(sentences):
    """Cut after padding: the end of the short ones is there twice."""
    read = pad([[BOS, *words] for words in sentences])
    return read, pad([[*words, EOS] for words in sentences], value=EOS)


# --- One training step ----------------------------------------------------------------------------


def total_loss(model, batch):
    """The sum over the batch's words."""
    return cross_entropy(model(batch.source, batch.target), batch.expected, reduction="sum")


def mean_loss(model, batch):
    """The mean over the batch's words."""
    return cross_entropy(model(batch.source, batch.target), batch.expected)


def finish(model, optimizer, clip):
    """Clip, step, clear."""
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()


@mistake(
    "accumulation not normalized",
    rejected_by="however the words are cut",
    symptom="Four batches at a time act like a rate four times as large.",
    cause="The means of the batches are added up and divided by nothing.",
    seen="openai/guided-diffusion issue 111, huggingface/transformers issue 46731",
    of="training_step",
)
def sum_of_means(model, optimizer, batches, clip):
    """Each batch's mean, all added up."""
    for batch in batches:
        mean_loss(model, batch).backward()
    finish(model, optimizer, clip)


@mistake(
    "mean of means",
    rejected_by="however the words are cut",
    symptom="A word in a batch of few words counts more; the loss differs from one large batch.",
    cause="Batches are averaged without their sizes. Divide the sum by all words, once.",
    seen="huggingface/transformers issue 24725, meta-pytorch/torchtune pull request 1875",
    of="training_step",
)
def mean_of_means(model, optimizer, batches, clip):
    """Each batch's mean, divided by the number of batches."""
    for batch in batches:
        (mean_loss(model, batch) / len(batches)).backward()
    finish(model, optimizer, clip)


@mistake(
    "sums added up",
    rejected_by="twice the sentences, the same step",
    symptom="The more words a step has, the larger it is.",
    cause='reduction="sum", and no division by the number of words.',
    of="training_step",
)
def sum_of_sums(model, optimizer, batches, clip):
    """No mean at all."""
    for batch in batches:
        total_loss(model, batch).backward()
    finish(model, optimizer, clip)


@mistake(
    "a step after each batch",
    rejected_by="however the words are cut",
    symptom="Nothing is accumulated: many small steps, each divided by all words.",
    cause="optimizer.step() stands inside the loop.",
    of="training_step",
)
def step_for_each(model, optimizer, batches, clip):
    """A step after every batch."""
    words = sum(batch.num_tokens for batch in batches)
    for batch in batches:
        (total_loss(model, batch) / words).backward()
        finish(model, optimizer, clip)


@mistake(
    "gradients cleared inside the loop",
    rejected_by="however the words are cut",
    symptom="Four batches are paid for and one is learned from.",
    cause="zero_grad() stands inside the loop: the last batch alone is left.",
    seen="bytetriper/RAE issue 67",
    of="training_step",
)
def cleared_inside(model, optimizer, batches, clip):
    """Only the last batch is left."""
    words = sum(batch.num_tokens for batch in batches)
    for batch in batches:
        optimizer.zero_grad()
        (total_loss(model, batch) / words).backward()
    finish(model, optimizer, clip)


@mistake(
    "gradients not cleared between steps",
    rejected_by="each step starts from nothing",
    symptom="The first step is right; then steps grow and overshoot.",
    cause="zero_grad() is missing: backward adds to what is there.",
    of="training_step",
)
def never_cleared(model, optimizer, batches, clip):
    """The last step's gradient is still there."""
    words = sum(batch.num_tokens for batch in batches)
    for batch in batches:
        (total_loss(model, batch) / words).backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()


@mistake(
    "each batch clipped on its own",
    rejected_by="however the words are cut",
    symptom="Accumulated batches step elsewhere than one large batch.",
    cause="Clipping stands inside the loop, and clips the earlier batches again and again.",
    seen="huggingface/transformers issue 1563, facebookresearch/lingua pull request 59",
    of="training_step",
)
def clipped_by_batch(model, optimizer, batches, clip):
    """Clipped after every backward."""
    words = sum(batch.num_tokens for batch in batches)
    for batch in batches:
        (total_loss(model, batch) / words).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
    finish(model, optimizer, None)


@mistake(
    "each tensor clipped on its own",
    rejected_by="no step is longer than clip",
    symptom="The step is longer than clip, and its direction is another.",
    cause="The norm is that of all gradients together.",
    of="training_step",
)
def clipped_by_tensor(model, optimizer, batches, clip):
    """Each parameter's gradient on its own."""
    words = sum(batch.num_tokens for batch in batches)
    for batch in batches:
        (total_loss(model, batch) / words).backward()
    for parameter in model.parameters():
        if clip is not None:
            nn.utils.clip_grad_norm_([parameter], clip)
    finish(model, optimizer, None)


@mistake(
    "each number clipped on its own",
    rejected_by="no step is longer than clip",
    symptom="The direction changes: the large numbers are cut, the small ones stay.",
    cause="clip_grad_value_ in place of clip_grad_norm_.",
    of="training_step",
)
def clipped_by_number(model, optimizer, batches, clip):
    """Each number between -clip and clip."""
    words = sum(batch.num_tokens for batch in batches)
    for batch in batches:
        (total_loss(model, batch) / words).backward()
    if clip is not None:
        nn.utils.clip_grad_value_(model.parameters(), clip)
    finish(model, optimizer, None)


@mistake(
    "clipped after the step",
    rejected_by="no step is longer than clip",
    symptom="Clipping is in the code and does nothing.",
    cause="The gradient is clipped when it has been used.",
    of="training_step",
)
def clipped_too_late(model, optimizer, batches, clip):
    """The step is taken, then clipped."""
    words = sum(batch.num_tokens for batch in batches)
    for batch in batches:
        (total_loss(model, batch) / words).backward()
    optimizer.step()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.zero_grad()


# --- Evaluation -----------------------------------------------------------------------------------


def rated(model, batches, **options):
    """Loss and accuracy per word, in whatever mode the model is."""
    loss = right = words = 0
    for batch in batches:
        logits, counts = model(batch.source, batch.target, **options), batch.expected != PAD
        loss += cross_entropy(logits, batch.expected, reduction="sum")
        right += (logits.argmax(-1) == batch.expected)[counts].sum()
        words += counts.sum()
    return loss / words, right / words


def in_mode(model, rate):
    """Evaluation mode, no graph, and back to the mode before."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        answer = rate(model)
    model.train(was_training)
    return answer


@mistake(
    "evaluation with dropout",
    rejected_by="the mode does not matter",
    symptom="The held-out loss is too large and another each time.",
    cause="model.eval() is missing. torch.no_grad() leaves dropout on.",
    seen="karpathy/nanoGPT pull request 240, ipolharvard/ethos-ares issue 20",
    of="evaluation",
)
def with_dropout(model, batches):
    """model.eval() is missing."""
    with torch.no_grad():
        return rated(model, batches)


@mistake(
    "evaluation with the future visible",
    rejected_by="the future stays hidden",
    symptom="The held-out loss is usually far above the training loss.",
    cause="The causal mask is used `if self.training`.",
    seen="d2l-en, transformer chapter",
    of="evaluation",
)
def with_the_future(model, batches):
    """The causal mask belongs to training, it is thought."""
    return in_mode(model, lambda model: rated(model, batches, causal=model.training))


@mistake(
    "mean over batches, not words",
    rejected_by="however the words are cut",
    symptom="The held-out loss changes with the batch size.",
    cause="The batches' means are averaged: a small last batch counts as much as a full one.",
    seen="pytorch/torchtitan pull request 4167",
    of="evaluation",
)
def by_batches(model, batches):
    """The mean of the batches' means."""

    def rate(model):
        each = [rated(model, [batch]) for batch in batches]
        return [torch.stack(numbers).mean() for numbers in zip(*each, strict=True)]

    return in_mode(model, rate)


@mistake(
    "accuracy over padding",
    rejected_by="padding costs nothing",
    symptom="The accuracy falls as the sentences of a batch differ more in length.",
    cause="All places are counted, and what stands at padding is never right.",
    of="evaluation",
)
def right_on_padding(model, batches):
    """Accuracy over all places."""

    def rate(model):
        loss, _ = rated(model, batches)
        hits = [model(b.source, b.target).argmax(-1) == b.expected for b in batches]
        return loss, torch.cat([hit.flatten() for hit in hits]).double().mean()

    return in_mode(model, rate)


@mistake(
    "model left in eval mode",
    rejected_by="the model comes back as it came",
    symptom="From the first evaluation on there is no dropout: the model overfits.",
    cause="model.eval() and no model.train() after it.",
    seen="huggingface/lerobot issue 3668",
    of="evaluation",
)
def left_in_eval(model, batches):
    """Never back to training."""
    model.eval()
    with torch.no_grad():
        return rated(model, batches)


@mistake(
    "the model always put back to training",
    rejected_by="the model comes back as it came",
    symptom="A finished model answers differently each time once it has been evaluated.",
    cause="model.train() at the end, where it should be the mode before.",
    of="evaluation",
)
def always_back_to_training(model, batches):
    """Training mode at the end, whatever was before."""
    model.eval()
    with torch.no_grad():
        answer = rated(model, batches)
    model.train()
    return answer


@mistake(
    "eval without no_grad",
    rejected_by="no graph is kept",
    symptom="Right numbers; memory grows with every batch until none is left.",
    cause="The sum of the losses holds the graph of every forward pass.",
    of="evaluation",
)
def with_a_graph(model, batches):
    """no_grad is missing."""
    was_training = model.training
    model.eval()
    answer = rated(model, batches)
    model.train(was_training)
    return answer


# --- The paper's rate -----------------------------------------------------------------------------


@mistake(
    "step counted from zero",
    rejected_by="ZeroDivisionError",
    symptom="0 to the power of -0.5: ZeroDivisionError at the first step.",
    cause="Schedulers count from 0, the formula from 1.",
    seen="annotated-transformer, which takes step 0 for 1",
    of="paper_rate",
)
def paper_from_zero(step, *, d_model, warmup=4000, factor=1.0):
    """The first step is 0."""
    step = step - 1
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


@mistake(
    "warm-up squared",
    rejected_by="a line at first",
    symptom="Hardly anything is learned in the first half of the warm-up.",
    cause="step^2 x warmup^-2.5 meets the root at the same place.",
    of="paper_rate",
)
def paper_squared(step, *, d_model, warmup=4000, factor=1.0):
    """A parabola in place of a line."""
    return factor * d_model**-0.5 * min(step**-0.5, step**2 * warmup**-2.5)


@mistake(
    "d_model in place of its root",
    rejected_by="four times as wide, half the rate",
    symptom="22 times too small at d_model = 512: training crawls.",
    cause="1 / d_model in place of d_model^-0.5.",
    of="paper_rate",
)
def paper_with_width(step, *, d_model, warmup=4000, factor=1.0):
    """1 / d_model."""
    return factor / d_model * min(step**-0.5, step * warmup**-1.5)


@mistake(
    "min and max exchanged",
    rejected_by="a line at first",
    symptom="The rate is smallest at the end of the warm-up, and then grows without end.",
    cause="max in place of min.",
    of="paper_rate",
)
def paper_max(step, *, d_model, warmup=4000, factor=1.0):
    """The larger of the two."""
    return factor * d_model**-0.5 * max(step**-0.5, step * warmup**-1.5)


@mistake(
    "no warm-up",
    rejected_by="a line at first",
    symptom="The first steps are the largest; a deep post-norm model may not recover.",
    cause="Only step^-0.5 is left.",
    of="paper_rate",
)
def paper_cold(step, *, d_model, warmup=4000, factor=1.0):
    """The root alone."""
    return factor * d_model**-0.5 * step**-0.5


@mistake(
    "falls as 1 / step",
    rejected_by="a root at last",
    symptom="Right for the warm-up, then the rate is gone too soon.",
    cause="warmup / step in place of its root.",
    of="paper_rate",
)
def paper_inverse(step, *, d_model, warmup=4000, factor=1.0):
    """After the warm-up 1 / step."""
    peak = factor * d_model**-0.5 * warmup**-0.5
    return peak * min(step / warmup, warmup / step)


# --- One cycle ------------------------------------------------------------------------------------


def two_halves(step, total, peak, warmup, first, last, bend=None):
    """Up to the peak, down to the end; `bend` says how, a cosine if not said."""
    bend = bend or (lambda share: (1 - math.cos(math.pi * share)) / 2)
    turn = warmup * total
    if step <= turn:
        return first + (peak - first) * bend((step - 1) / (turn - 1))
    return last + (peak - last) * bend((total - step) / (total - turn))


@mistake(
    "one step late",
    rejected_by="the last step is nearly nothing",
    symptom="The first rate twice, and the last one never.",
    cause="Steps are counted from 0 here and from 1 there.",
    of="one_cycle_rate",
)
def cycle_from_zero(step, *, total, peak, warmup=0.3, start_ratio=25.0, end_ratio=1e4):
    """The rate of the step before."""
    first = peak / start_ratio
    return two_halves(max(step - 1, 1), total, peak, warmup, first, first / end_ratio)


@mistake(
    "lines for a cosine",
    rejected_by="level at the peak",
    symptom="A corner at the peak, where the cosine is level.",
    cause='anneal_strategy="linear".',
    of="one_cycle_rate",
)
def cycle_of_lines(step, *, total, peak, warmup=0.3, start_ratio=25.0, end_ratio=1e4):
    """Straight up and straight down."""
    first = peak / start_ratio
    return two_halves(step, total, peak, warmup, first, first / end_ratio, lambda share: share)


@mistake(
    "a start at 0",
    rejected_by="the first step is peak / start_ratio",
    symptom="The first step does nothing.",
    cause="start_ratio is not looked at.",
    of="one_cycle_rate",
)
def cycle_from_nothing(step, *, total, peak, warmup=0.3, start_ratio=25.0, end_ratio=1e4):
    """It starts at 0."""
    return two_halves(step, total, peak, warmup, 0.0, peak / start_ratio / end_ratio)


@mistake(
    "the end as a share of the peak",
    rejected_by="the last step is nearly nothing",
    symptom="The last rate is 25 times as large as torch's.",
    cause="end_ratio divides the start, not the peak.",
    of="one_cycle_rate",
)
def cycle_end_of_peak(step, *, total, peak, warmup=0.3, start_ratio=25.0, end_ratio=1e4):
    """The end is a share of the peak."""
    return two_halves(step, total, peak, warmup, peak / start_ratio, peak / end_ratio)


@mistake(
    "the start taken for the peak",
    rejected_by="the first step is peak / start_ratio",
    symptom="25 times too large: the loss explodes.",
    cause="The number given is the rate at the peak.",
    of="one_cycle_rate",
)
def cycle_start_at_rate(step, *, total, peak, warmup=0.3, start_ratio=25.0, end_ratio=1e4):
    """The number given is the start."""
    return two_halves(step, total, peak * start_ratio, warmup, peak, peak / end_ratio)
