"""The answers to homework 8."""

import itertools
import math

import numpy as np
import torch

from . import right, wrong

# --- min_p ----------------------------------------------------------------------------------------


@right("hw08.min_p")
def min_p_by_logits(logits, share):
    least = logits.amax(-1, keepdim=True) + math.log(share)
    return torch.where(logits >= least, logits, -torch.inf)


@right("hw08.min_p")
def min_p_by_ratios(logits, share):
    ratios = (logits - logits.max(-1, keepdim=True).values).exp()
    return logits.masked_fill(ratios < share, -math.inf)


@right("hw08.min_p")
def min_p_in_a_loop(logits, share):
    answer = logits.clone()
    for row, chances in zip(answer, logits.softmax(-1), strict=True):
        row[chances < share * chances.max()] = float("-inf")
    return answer


@right("hw08.min_p")
def min_p_in_numpy(logits, share):
    scores = logits.numpy()
    chances = np.exp(scores - scores.max(-1, keepdims=True))
    return np.where(chances < share * chances.max(-1, keepdims=True), -np.inf, scores)


@wrong("hw08.min_p", "one word always")
def min_p_top_one(logits, share):
    answer = torch.full_like(logits, -torch.inf)
    top = logits.argmax(-1, keepdim=True)
    return answer.scatter(-1, top, logits.gather(-1, top))


@wrong("hw08.min_p", "exp overflows")
def min_p_naive(logits, share):
    raised = logits.exp()
    return logits.masked_fill(raised < share * raised.amax(-1, keepdim=True), -math.inf)


@wrong("hw08.min_p", "the share of the mean")
def min_p_of_the_mean(logits, share):
    chances = logits.softmax(-1)
    return logits.masked_fill(chances < share * chances.mean(-1, keepdim=True), -math.inf)


@wrong("hw08.min_p", "in place")
def min_p_in_place(logits, share):
    return logits.copy_(min_p_by_logits(logits, share))


@wrong("hw08.min_p", "the lowest number")
def min_p_lowest(logits, share):
    return min_p_by_logits(logits, share).clamp(min=torch.finfo(logits.dtype).min)


# --- slots ----------------------------------------------------------------------------------------


@right("hw08.slots")
def slots_slot_by_slot(fed, size, sinks):
    """The newest token whose slot this is."""
    turn, held = size - sinks, []
    for slot in range(size):
        if slot >= fed:
            held.append(-1)
        elif slot < sinks:
            held.append(slot)
        else:
            held.append(slot + (fed - 1 - slot) // turn * turn)
    return held


@right("hw08.slots")
def slots_in_torch(fed, size, sinks):
    slot = torch.arange(size)
    newest = slot + (fed - 1 - slot).div(size - sinks, rounding_mode="floor") * (size - sinks)
    held = torch.where(slot < sinks, slot, newest)
    return torch.where(slot < fed, held, -1)


@right("hw08.slots")
def slots_fed_one_by_one(fed, size, sinks):
    held = np.full(size, -1)
    for token in range(fed):
        held[token if token < sinks else sinks + (token - sinks) % (size - sinks)] = token
    return tuple(held)


@wrong("hw08.slots", "the sinks counted once more")
def slots_wrong_turn(fed, size, sinks):
    return [
        sinks + (n - sinks) if n >= 0 else n
        for n in slots_slot_by_slot(fed, size, max(sinks - 1, 0))
    ]


@wrong("hw08.slots", "floats")
def slots_as_floats(fed, size, sinks):
    return slots_in_torch(fed, size, sinks).double()


@wrong("hw08.slots", "up to 1000 tokens")
def slots_of_a_short_text(fed, size, sinks):
    return slots_slot_by_slot(min(fed, 1000), size, sinks)


@wrong("hw08.slots", "the oldest slot written twice")
def slots_late(fed, size, sinks):
    return slots_slot_by_slot(fed - 1, size, sinks)


# --- after_guesses --------------------------------------------------------------------------------


@right("hw08.after_guesses")
def guesses_in_a_loop(p, q, drafted, coins):
    for row, (word, coin) in enumerate(zip(drafted.tolist(), coins.tolist(), strict=True)):
        if coin >= float(p[row, word]) / float(q[row, word]):
            rest = torch.relu(p[row] - q[row])
            return rest / rest.sum()
    return p[-1]


@right("hw08.after_guesses")
def guesses_by_products(p, q, drafted, coins):
    """No division: coin q < p."""
    place = torch.arange(len(drafted))
    refused = (coins * q[place, drafted] >= p[place, drafted]).nonzero()
    if not len(refused):
        return p[len(drafted)].clone()
    n = int(refused[0])
    return torch.nn.functional.normalize((p[n] - q[n]).clamp(min=0), p=1, dim=0)


@right("hw08.after_guesses")
def guesses_with_a_row_of_zeros(p, q, drafted, coins):
    """Behind the guesses stands one that is always refused, with q = 0."""
    q = torch.cat([q, torch.zeros_like(p[:1])])
    ratio = p[:-1].gather(1, drafted[:, None])[:, 0] / q[:-1].gather(1, drafted[:, None])[:, 0]
    n = int((coins < ratio.clamp(max=1)).long().cumprod(0).sum())
    rest = p[n] - torch.minimum(p[n], q[n])
    return rest / rest.sum() if n < len(drafted) else p[n]


@right("hw08.after_guesses")
def guesses_in_numpy(p, q, drafted, coins):
    p, q, drafted, coins = (t.numpy() for t in (p, q, drafted, coins))
    for row, word in enumerate(drafted):
        if not coins[row] < p[row, word] / q[row, word]:
            rest = np.maximum(p[row] - q[row], 0)
            return rest / rest.sum()
    return p[-1]


@wrong("hw08.after_guesses", "the refused word alone set to 0")
def guesses_word_out(p, q, drafted, coins):
    place = torch.arange(len(drafted))
    refused = (coins >= p[place, drafted] / q[place, drafted]).nonzero()
    if not len(refused):
        return p[-1].clone()
    n = int(refused[0])
    rest = p[n].clone()
    rest[drafted[n]] = 0
    return rest / rest.sum()


@wrong("hw08.after_guesses", "a softmax of the rest")
def guesses_softmax(p, q, drafted, coins):
    found = guesses_in_a_loop(p, q, drafted, coins)
    return found if (found == p[-1]).all() else found.softmax(0)


@wrong("hw08.after_guesses", "refused guesses at the likeliest word")
def guesses_likeliest(p, q, drafted, coins):
    found = guesses_in_a_loop(p, q, drafted, coins)
    return found if (found == p[-1]).all() else (found == found.max()).to(p)


@wrong("hw08.after_guesses", "a coin for the first guess alone")
def guesses_one_coin(p, q, drafted, coins):
    return guesses_in_a_loop(p, q, drafted, coins[:1].expand_as(coins))


@wrong("hw08.after_guesses", "in float32")
def guesses_single(p, q, drafted, coins):
    return guesses_in_a_loop(p.float(), q.float(), drafted, coins).to(p.dtype)


# --- likeliest ------------------------------------------------------------------------------------


@right("hw08.likeliest")
def likeliest_by_steps(first, after, eos, longest):
    """The best way to each word in so many steps."""
    with np.errstate(divide="ignore"):
        first, after = np.log(first.double().numpy()), np.log(after.double().numpy())
    scores, ways, best = first, [(w,) for w in range(len(first))], (-np.inf, ())
    for _ in range(longest):
        best = max(best, (scores[eos], ways[eos]), key=lambda pair: pair[0])
        scores = scores.copy()
        scores[eos] = -np.inf
        table = scores[:, None] + after
        ways = [(*ways[table[:, w].argmax()], w) for w in range(len(scores))]
        scores = table.max(0)
    return list(best[1])


@right("hw08.likeliest")
def likeliest_from_the_end(first, after, eos, longest):
    """The best that can follow each word, with so many words left."""
    first, after = first.double().log(), after.double().log()
    rest = torch.full((len(first),), -torch.inf, dtype=torch.float64)
    rest[eos] = 0.0
    best = [rest]
    for _ in range(longest - 1):
        step = (after + best[-1]).amax(1)
        step[eos] = 0.0
        best.append(step)
    words = [int((first + best[longest - 1]).argmax())]
    while words[-1] != eos:
        words.append(int((after[words[-1]] + best[longest - 1 - len(words)]).argmax()))
    return torch.tensor(words)


@right("hw08.likeliest")
def likeliest_in_dictionaries(first, after, eos, longest):
    ways = {w: (math.log(p), (w,)) for w, p in enumerate(first.tolist()) if p > 0}
    rows, best = after.tolist(), (-math.inf, ())
    for _ in range(longest):
        if eos in ways:
            best = max(best, ways.pop(eos))
        step = {}
        for word, (score, words) in ways.items():
            for following, p in enumerate(rows[word]):
                if p > 0:
                    way = score + math.log(p), (*words, following)
                    step[following] = max(step.get(following, (-math.inf, ())), way)
        ways = step
    return np.array(best[1])


@wrong("hw08.likeliest", "all sentences of up to four words")
def likeliest_of_short_ones(first, after, eos, longest):
    return likeliest_from_the_end(first, after, eos, min(longest, 4))


@wrong("hw08.likeliest", "EOS left out")
def likeliest_without_end(first, after, eos, longest):
    return likeliest_from_the_end(first, after, eos, longest)[:-1]


@wrong("hw08.likeliest", "the beam of 3")
def likeliest_by_a_beam(first, after, eos, longest):
    beams, ended = [(0.0, ())], []
    rows = after.tolist()
    for _ in range(longest):
        beams = [(score + math.log(p), (*words, w)) for score, words in beams
                 for w, p in enumerate(rows[words[-1]] if words else first.tolist()) if p > 0]  # fmt: skip
        ended += [beam for beam in beams if beam[1][-1] == eos]
        beams = sorted((b for b in beams if b[1][-1] != eos), reverse=True)[:3]
    return list(max(ended, default=(0, (eos,)))[1])


@wrong("hw08.likeliest", "EOS is 0")
def likeliest_eos_0(first, after, eos, longest):
    return likeliest_by_steps(first, after, 0, longest)


@wrong("hw08.likeliest", "the probabilities normalized in place")
def likeliest_in_place(first, after, eos, longest):
    answer = likeliest_from_the_end(first, after, eos, longest)
    after[eos] = 0
    after[eos, eos] = 0.5
    return answer


# --- all sentences, for short ones: what the others must agree with --------------------------------


@right("hw08.likeliest")
def likeliest_by_all_when_few(first, after, eos, longest):
    if len(first) ** longest > 300:
        return likeliest_from_the_end(first, after, eos, longest)
    found = (-1.0, ())
    for length in range(1, longest + 1):
        for words in itertools.product(range(len(first)), repeat=length - 1):
            way = (*words, eos)
            chance = float(first[way[0]]) * math.prod(
                float(after[a, b]) for a, b in itertools.pairwise(way)
            )
            found = max(found, (chance * (eos not in words), way))
    return list(found[1])
