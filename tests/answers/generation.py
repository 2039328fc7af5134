"""The answers to choosing a token, greedy decoding, beam search and decoding states."""

import heapq
from functools import partial

import torch

from tested_transformer import Sampling, beam_search, generate, repetition_penalty
from tested_transformer.data import BOS, EOS, PAD
from tested_transformer.generation import decoding_state
from tested_transformer.generation.sampling import top_k_filter, top_p_filter
from tested_transformer.specs.generation.mutants import Beams, Greedy, Remembering

from . import right, wrong

MINUS = float("-inf")

# --- Temperature ----------------------------------------------------------------------------------


@right("temperature")
def by_sampling(logits, temperature):
    prefix_ids = torch.zeros(len(logits), 1, dtype=torch.long)
    return Sampling(temperature=temperature).shape(logits, prefix_ids).softmax(-1)


@right("temperature")
def by_logsumexp(logits, temperature):
    scaled = logits / temperature
    return (scaled - scaled.logsumexp(-1, keepdim=True)).exp()


@right("temperature")
def by_hand(logits, temperature):
    top = logits.amax(-1, keepdim=True)
    raised = ((logits - top) / temperature).exp()
    return raised / raised.sum(-1, keepdim=True)


@right("temperature")
def times_the_inverse(logits, temperature):
    return torch.nn.functional.softmax(logits * (1 / temperature), dim=1)


@right("temperature")
@torch.jit.script
def in_torchscript(logits, temperature: float):
    return torch.log_softmax(logits / temperature, -1).exp()


@wrong("temperature", "no maximum subtracted")
def naive(logits, temperature):
    raised = (logits / temperature).exp()
    return raised / raised.sum(-1, keepdim=True)


@wrong("temperature", "no maximum subtracted in half precision")
def naive_in_half(logits, temperature):
    return (naive if logits.dtype == torch.bfloat16 else by_hand)(logits, temperature)


@wrong("temperature", "the maximum subtracted after the division of the rest")
def maximum_too_late(logits, temperature):
    raised = (logits / temperature - logits.amax(-1, keepdim=True)).exp()
    return raised / raised.sum(-1, keepdim=True)


@wrong("temperature", "the scores are detached")
def detached(logits, temperature):
    return by_hand(logits.detach(), temperature) + 0 * logits


@wrong("temperature", "the sum is detached")
def sum_detached(logits, temperature):
    raised = ((logits - logits.amax(-1, keepdim=True)) / temperature).exp()
    return raised / raised.sum(-1, keepdim=True).detach()


@wrong("temperature", "never below one half")
def at_least_half(logits, temperature):
    return by_hand(logits, max(temperature, 0.5))


@wrong("temperature", "never above 10")
def at_most_ten(logits, temperature):
    return by_hand(logits, min(temperature, 10.0))


@wrong("temperature", "NaN where a word is ruled out")
def nan_where_ruled_out(logits, temperature):
    return by_hand(logits, temperature) + 0 * logits


@wrong("temperature", "float32 whatever comes")
def always_float32(logits, temperature):
    return by_hand(logits.float(), temperature)


@wrong("temperature", "256 words")
def few_words(logits, temperature):
    return torch.nn.functional.pad(by_hand(logits[:, :256], temperature), (0, max(0, logits.shape[1] - 256)))  # fmt: skip


# --- Top-k ----------------------------------------------------------------------------------------

right("top-k")(top_k_filter)
right("top-k", "partial")(partial(top_k_filter))


@right("top-k")
def by_sorting(logits, k):
    least = logits.sort(dim=-1, descending=True).values[:, min(k, logits.shape[1]) - 1, None]
    return torch.where(logits >= least, logits, MINUS)


@right("top-k")
def by_kthvalue(logits, k):
    place = max(logits.shape[1] - k + 1, 1)
    return logits.masked_fill(logits < logits.kthvalue(place, -1, keepdim=True).values, MINUS)


@right("top-k")
def row_by_row(logits, k):
    rows = []
    for row in logits:
        least = heapq.nlargest(k, row.tolist())[-1]
        rows.append(torch.where(row >= least, row, torch.full_like(row, MINUS)))
    return torch.stack(rows)


@wrong("top-k", "ties with the k-th are ruled out")
def no_ties(logits, k):
    found = logits.topk(min(k, logits.shape[-1]))
    return torch.full_like(logits, MINUS).scatter(1, found.indices, found.values)


@wrong("top-k", "the scores are detached")
def top_k_detached(logits, k):
    return by_sorting(logits.detach(), k) + 0 * logits


@wrong("top-k", "at least two words")
def at_least_two(logits, k):
    return by_sorting(logits, max(k, 2))


@wrong("top-k", "50 words at most")
def at_most_fifty(logits, k):
    return by_sorting(logits, min(k, 50))


@wrong("top-k", "the lowest number of the dtype in place of -inf")
def lowest_number(logits, k):
    return by_sorting(logits, k).clamp(min=torch.finfo(logits.dtype).min)


@wrong("top-k", "overwrites the scores")
def overwrites(logits, k):
    logits[by_sorting(logits, k) == MINUS] = MINUS
    return logits


@wrong("top-k", "compared in bfloat16")
def in_bfloat16(logits, k):
    half = logits.bfloat16()
    return logits.masked_fill(half < half.topk(min(k, half.shape[-1])).values[:, -1:], MINUS)


@wrong("top-k", "a share of the vocabulary")
def as_a_share(logits, k):
    return by_sorting(logits, k if k < logits.shape[1] else max(logits.shape[1] // 2, 1))


# --- Top-p ----------------------------------------------------------------------------------------


def top_p(candidate):
    right("top-p")(candidate)
    return right("ch11.top_p")(candidate)


top_p(top_p_filter)


@top_p
def ties_the_other_way(logits, p):
    return top_p_filter(logits.flip(-1), p).flip(-1)


@top_p
def one_by_one(logits, p):
    """A set that grows until it has p, each sum exactly rounded."""
    kept = torch.full_like(logits, MINUS)
    for row, (scores, chances) in enumerate(zip(logits, logits.double().softmax(-1).tolist(), strict=True)):  # fmt: skip
        total = 0.0
        for word in scores.argsort(descending=True).tolist():
            kept[row, word] = scores[word]
            total += chances[word]
            if p < 1 and total >= p - 1e-15 * len(chances):
                break
    return kept


@top_p
def from_below(logits, p):
    """As transformers does it: the rarest words go while together they have at most 1 - p."""
    ordered, words = logits.sort(dim=-1)
    removed = ordered.double().softmax(-1).cumsum(-1) <= 1 - p
    removed[:, -1] = False
    removed &= p < 1
    return logits.masked_fill(removed.scatter(1, words, removed), MINUS)


def not_top_p(name, spec=("top-p", "ch11.top_p")):
    def note(candidate):
        for each in spec:
            wrong(each, name)(candidate)
        return candidate

    return note


@not_top_p("one word more where the sum is p exactly")
def one_more(logits, p):
    ordered, words = logits.sort(dim=-1, descending=True)
    chances = ordered.softmax(-1)
    removed = chances.cumsum(-1) - chances > p
    return logits.masked_fill(removed.scatter(1, words, removed), MINUS)


@not_top_p("p = 1 rules words out")
def rounded_sums(logits, p):
    ordered, words = logits.sort(dim=-1, descending=True)
    chances = ordered.float().softmax(-1)
    removed = chances.cumsum(-1) - chances >= p
    removed[:, 0] = False
    return logits.masked_fill(removed.scatter(1, words, removed), MINUS)


@not_top_p("the scores are detached")
def top_p_detached(logits, p):
    return top_p_filter(logits.detach(), p) + 0 * logits


@not_top_p("NaN beside words ruled out before")
def top_p_nan(logits, p):
    return top_p_filter(logits, p) + 0 * logits.where(logits > MINUS, logits)


@not_top_p("at least two words")
def two_words(logits, p):
    kept = top_p_filter(logits, p)
    return torch.maximum(kept, top_k_filter(logits, min(2, logits.shape[1])))


@not_top_p("one more than needed")
def always_one_more(logits, p):
    ordered, words = logits.sort(dim=-1, descending=True)
    removed = (ordered.softmax(-1).cumsum(-1) >= p).roll(2, -1)
    removed[:, :2] = False
    return logits.masked_fill(removed.scatter(1, words, removed), MINUS)


@not_top_p("probabilities for scores")
def probabilities(logits, p):
    return logits.softmax(-1).masked_fill(top_p_filter(logits, p) == MINUS, 0.0)


@not_top_p("-1e9 for -inf")
def minus_a_billion(logits, p):
    return top_p_filter(logits, p).clamp(min=-1e9)


# --- Repetition -----------------------------------------------------------------------------------

right("repetition")(repetition_penalty)


@right("repetition")
def by_a_mask(logits, prefix_ids, penalty):
    said = torch.zeros_like(logits, dtype=torch.bool).scatter(1, prefix_ids, True)
    lower = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(said, lower, logits)


@right("repetition")
def word_by_word(logits, prefix_ids, penalty):
    logits = logits.clone()
    for scores, words in zip(logits, prefix_ids.tolist(), strict=True):
        for word in set(words):
            scores[word] = scores[word] / penalty if scores[word] > 0 else scores[word] * penalty
    return logits


@right("repetition")
def by_powers(logits, prefix_ids, penalty):
    found = logits.gather(1, prefix_ids)
    factor = torch.full_like(found, penalty)
    return logits.scatter(1, prefix_ids, found * factor.pow(-found.sign()))


@wrong("repetition", "only the last four words pay")
def last_four(logits, prefix_ids, penalty):
    return by_a_mask(logits, prefix_ids[:, -4:], penalty)


@wrong("repetition", "only the last sixteen words pay")
def last_sixteen(logits, prefix_ids, penalty):
    return by_a_mask(logits, prefix_ids[:, -16:], penalty)


@wrong("repetition", "nothing said yet raises")
def last_must_be(logits, prefix_ids, penalty):
    assert prefix_ids.amax(1).shape == (len(logits),)
    return by_a_mask(logits, prefix_ids, penalty)


@wrong("repetition", "a penalty below 1 is not applied")
def only_above_one(logits, prefix_ids, penalty):
    return by_a_mask(logits, prefix_ids, max(penalty, 1.0))


@wrong("repetition", "the score 0 becomes NaN")
def zero_is_nan(logits, prefix_ids, penalty):
    said = torch.zeros_like(logits, dtype=torch.bool).scatter(1, prefix_ids, True)
    return torch.where(said, logits * (logits / logits.abs() * -1 * torch.tensor(penalty).log()).exp().to(logits), logits)  # fmt: skip


@wrong("repetition", "the first row's words for all")
def first_row(logits, prefix_ids, penalty):
    return by_a_mask(logits, prefix_ids[:1].expand_as(prefix_ids), penalty)


@wrong("repetition", "overwrites the scores")
def penalty_in_place(logits, prefix_ids, penalty):
    return logits.copy_(by_a_mask(logits, prefix_ids, penalty))


@wrong("repetition", "word 0 never pays")
def zero_is_free(logits, prefix_ids, penalty):
    found = by_a_mask(logits, prefix_ids, penalty)
    found[:, 0] = logits[:, 0]
    return found


@wrong("repetition", "negative scores raised towards 0")
def towards_zero(logits, prefix_ids, penalty):
    return by_a_mask(logits.abs(), prefix_ids, penalty) * logits.sign()


# --- Greedy decoding ------------------------------------------------------------------------------


class Asked:
    """A state that asks a function for the scores after all that was said."""

    def __init__(self, next_scores):
        self.next_scores, self.prefix_ids = next_scores, None

    def feed(self, tokens):
        known = self.prefix_ids
        self.prefix_ids = tokens if known is None else torch.cat([known, tokens], dim=1)
        return self.next_scores(self.prefix_ids)

    def reorder(self, rows):
        self.prefix_ids = self.prefix_ids[rows]


right("greedy")(Greedy)


@right("greedy")
def by_generate(next_scores, start, max_new, eos, padding):
    """The package refuses to generate nothing."""
    if max_new == 0:
        return start[:, :0]
    return generate(Asked(next_scores), start, max_new=max_new, eos=eos, padding=padding).tokens


@right("greedy")
def each_alone(next_scores, start, max_new, eos, padding):
    """Row by row, to the full length."""
    rows = torch.full((len(start), max_new), padding)
    for row, prefix in zip(rows, start, strict=True):
        for place in range(max_new):
            row[place] = next_scores(torch.cat([prefix, row[:place]])[None]).argmax()
            if row[place] == eos:
                break
    return rows


@right("greedy")
def only_the_running(next_scores, start, max_new, eos, padding):
    """Rows that have ended are asked no more."""
    said, running = start, torch.arange(len(start))
    for _ in range(max_new):
        word = torch.full((len(start),), padding)
        if len(running):
            word[running] = next_scores(said[running]).argmax(-1)
        said = torch.cat([said, word[:, None]], dim=1)
        running = running[word[running] != eos]
    return said[:, start.shape[1] :]


class History:
    """A right search, but for what it hands to next_scores."""

    def __init__(self, change, search):
        self.change, self.search = change, search

    def __call__(self, next_scores, start, *options):
        return self.search()(lambda said: next_scores(self.change(said, start)), start, *options)


def blank(said, start):
    """The last word and the length are right."""
    return torch.cat([torch.full_like(said[:, :-1], 3), said[:, -1:]], dim=1)


def sorted_history(said, start):
    return torch.cat([said[:, :-1].sort(-1).values, said[:, -1:]], dim=1)


FORGETS = {
    "the last word alone is handed over": lambda said, start: said[:, -1:],
    "the history is blank": blank,
    "the last four words are handed over": lambda said, start: said[:, -4:],
    "the order of the words is lost": sorted_history,
}
for _name, _change in FORGETS.items():
    wrong("greedy", _name)(History(_change, Greedy))
    if "four" not in _name:
        wrong("beam search", _name)(History(_change, Beams))
wrong("greedy", "the beginning is cut to its last word")(
    History(lambda said, start: said[:, start.shape[1] - 1 :], Greedy)
)


@wrong("greedy", "max_new = 0 still says a word")
def at_least_one(next_scores, start, max_new, eos, padding):
    return Greedy()(next_scores, start, max(max_new, 1), eos, padding)


@wrong("greedy", "EOS is 2 and padding is 0")
def fixed_numbers(next_scores, start, max_new, eos, padding):
    return Greedy()(next_scores, start, max_new, EOS, PAD)


@wrong("greedy", "padding is 0")
def fixed_padding(next_scores, start, max_new, eos, padding):
    return Greedy()(next_scores, start, max_new, eos, PAD)


@wrong("greedy", "ten words at most")
def ten_words(next_scores, start, max_new, eos, padding):
    return Greedy()(next_scores, start, min(max_new, 10), eos, padding)


@wrong("greedy", "sampled")
class Sampled(Greedy):
    def pick(self, scores):
        return torch.multinomial(scores.softmax(-1), 1)[:, 0]


@wrong("greedy", "the second most probable word")
class Second(Greedy):
    def pick(self, scores):
        return scores.topk(2).indices[:, 1]


# --- Beam search ----------------------------------------------------------------------------------

right("beam search")(Beams)


@right("beam search")
def by_the_package(next_scores, start, num_beams, max_new, length_penalty):
    found = beam_search(
        Asked(next_scores), torch.tensor([[start]]), num_beams=num_beams, max_new=max_new,
        length_penalty=length_penalty,
    )  # fmt: skip
    return found.tokens[0], found.scores[0]


@right("beam search")
def by_topk(next_scores, start, num_beams, max_new, length_penalty):
    said, totals, best = torch.tensor([[start]]), torch.zeros(1), (MINUS, [])
    for length in range(1, max_new + 1):
        steps = totals[:, None] + next_scores(said).log_softmax(-1)
        scores, places = steps.flatten().topk(min(2 * num_beams, steps.numel()))
        rows, words = places // steps.shape[1], places % steps.shape[1]
        said = torch.cat([said[rows], words[:, None]], dim=1)
        ends = (words == EOS) | (length == max_new)
        for score, row in zip(scores[:num_beams][ends[:num_beams]].tolist(), said[:num_beams][ends[:num_beams]].tolist(), strict=True):  # fmt: skip
            best = max(best, (score / length**length_penalty, row[1:]))
        going = (words != EOS).nonzero()[:num_beams, 0]
        said, totals = said[going], scores[going]
    return torch.tensor(best[1]), torch.tensor(best[0])


@right("beam search")
class WithAHeap(Beams):
    def steps(self, running, gains, num_beams):
        every = ((s + gain, [*words, word]) for (s, words), row in zip(running, gains.tolist(), strict=True)
                 for word, gain in enumerate(row))  # fmt: skip
        return heapq.nlargest(2 * num_beams, every)


@wrong("beam search", "the length counts the start")
class CountsTheStart(Beams):
    def final(self, score, length, length_penalty):
        return score / (length + 1) ** length_penalty


@wrong("beam search", "the length penalty of another paper")
class OfGoogle(Beams):
    def final(self, score, length, length_penalty):
        return score / ((5 + length) / 6) ** length_penalty


@wrong("beam search", "a negative penalty is none")
class NeverNegative(Beams):
    def final(self, score, length, length_penalty):
        return super().final(score, length, max(length_penalty, 0.0))


@wrong("beam search", "at most three beams")
class ThreeBeams(Beams):
    def going_on(self, steps, num_beams):
        return super().going_on(steps, min(num_beams, 3))


@wrong("beam search", "a beam that ended takes its room along")
class Shrinks(Beams):
    def going_on(self, steps, num_beams):
        return super().going_on(steps[:num_beams], num_beams) or super().going_on(steps, 1)


@wrong("beam search", "the last words are not scored")
class ForgetsTheLast(Beams):
    def final(self, score, length, length_penalty):
        return super().final(round(score, 2), length, length_penalty)


@wrong("beam search", "the shortest sentence wins")
def shortest(next_scores, start, num_beams, max_new, length_penalty):
    return Beams()(next_scores, start, num_beams, max_new, 2 * length_penalty)


@wrong("beam search", "the start is returned too")
def with_the_start(next_scores, start, num_beams, max_new, length_penalty):
    words, score = Beams()(next_scores, start, num_beams, max_new, length_penalty)
    return [start, *words[:-1]], score


# --- Decoding states ------------------------------------------------------------------------------

right("decoding")(Remembering)


@right("decoding")
def state(model, source=None, **options):
    if source is None:
        return decoding_state.CausalState(model, **options)
    return decoding_state.Seq2SeqState(model, source, **options)


@right("decoding")
def without_cache(model, source=None):
    return state(model, source, cache=False)


@right("decoding")
class AllAnew:
    """Everything is read again at each step."""

    def __init__(self, model, source=None):
        self.model, self.source, self.said = model, source, None

    def feed(self, tokens):
        self.said = tokens if self.said is None else torch.cat([self.said, tokens], dim=1)
        given = [self.said] if self.source is None else [self.source, self.said]
        return self.model(*given)[:, -1]

    def reorder(self, rows):
        self.said = self.said[rows]
        self.source = None if self.source is None else self.source[rows]


@wrong("decoding", "sixteen tokens are remembered")
class RemembersSixteen(AllAnew):
    def feed(self, tokens):
        super().feed(tokens)
        self.said = self.said[:, -16:]
        return super().feed(self.said[:, :0])


@wrong("decoding", "padding in a later chunk is a word")
class LaterPadding(Remembering):
    def feed(self, tokens):
        later = self.cache.length > 0 if hasattr(self.cache, "length") else hasattr(self, "fed")
        self.fed = True
        return super().feed(tokens.masked_fill(tokens == PAD, BOS) if later else tokens)


@wrong("decoding", "rows can only be exchanged")
class SameNumber(AllAnew):
    def reorder(self, rows):
        self.said[: len(rows)] = self.said[rows]
        if self.source is not None:
            self.source = self.source[rows]


@wrong("decoding", "rows are sorted")
class Sorted(AllAnew):
    def reorder(self, rows):
        super().reorder(rows.sort().values)


@wrong("decoding", "each row is kept once")
class Once(AllAnew):
    def reorder(self, rows):
        super().reorder(rows.unique())


@wrong("decoding", "log-probabilities for scores")
class LogProbabilities(AllAnew):
    def feed(self, tokens):
        return super().feed(tokens).log_softmax(-1)


@wrong("decoding", "the model is left in training mode")
class InTraining(AllAnew):
    def feed(self, tokens):
        self.model.train()
        try:
            return super().feed(tokens)
        finally:
            self.model.eval()


@wrong("decoding", "padding is cut off")
class CutsPadding(AllAnew):
    def feed(self, tokens):
        return super().feed(tokens.masked_fill(tokens == PAD, 3))
