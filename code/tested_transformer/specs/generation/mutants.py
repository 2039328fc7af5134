"""The famous mistakes in generating: of the choice of a word, of whole sentences, of the memory."""

from __future__ import annotations

import torch

from ...data import EOS, PAD
from ...functional.masks import causal_mask, combine_masks
from ...layers.blocks import position_ids
from ..mistakes import mistake

# --- Temperature ----------------------------------------------------------------------------------


@mistake(
    "temperature multiplied",
    rejected_by="a higher temperature is flatter",
    symptom="A low temperature makes the text wild, a high one makes it repeat itself.",
    cause="logits * temperature in place of logits / temperature.",
    of="temperature",
)
def temperature_multiplies(logits, temperature):
    return (logits * temperature).softmax(-1)


@mistake(
    "temperature of the probabilities",
    rejected_by="a temperature of 1 changes nothing",
    symptom="Nearly even chances for all words, whatever the model says.",
    cause="A second softmax: the temperature must divide the scores, not the probabilities.",
    of="temperature",
)
def temperature_of_probabilities(logits, temperature):
    return (logits.softmax(-1) / temperature).softmax(-1)


@mistake(
    "powers that do not sum to 1",
    rejected_by="probabilities sum to 1",
    symptom="Drawing by a cumulative sum picks the last word too often, or runs off the end.",
    cause="p^(1/T) is right up to a factor: divide by the sum.",
    of="temperature",
)
def powers_left_as_they_are(logits, temperature):
    return logits.softmax(-1) ** (1 / temperature)


@mistake(
    "one softmax for the batch",
    rejected_by="probabilities sum to 1",
    symptom="Each row holds a share of one distribution.",
    cause="The softmax runs over all axes, not over the words alone.",
    of="temperature",
)
def temperature_of_the_batch(logits, temperature):
    return (logits / temperature).flatten().softmax(0).view_as(logits)


# --- Top-k ----------------------------------------------------------------------------------------


@mistake(
    "top-k counts from the wrong end",
    rejected_by="the likeliest word stays",
    symptom="Only words that nobody would say.",
    cause="The k smallest scores are kept: sorted upwards, or largest=False.",
    of="top-k",
)
def keeps_the_lowest(logits, k):
    least = logits.topk(min(k, logits.shape[-1]), largest=False).values[:, -1:]
    return logits.masked_fill(logits > least, -torch.inf)


@mistake(
    "a k above the vocabulary",
    rejected_by="RuntimeError",
    symptom="The default of 50 raises for a small vocabulary.",
    cause="topk cannot give more words than there are: min(k, V).",
    seen="TransformerLensOrg/TransformerLens pull request 1347",
    of="top-k",
)
def top_k_of_any_size(logits, k):
    return logits.masked_fill(logits < logits.topk(k).values[:, -1:], -torch.inf)


@mistake(
    "the k-th ruled out too",
    rejected_by="the likeliest word stays",
    symptom="k - 1 words remain, and for k = 1 none.",
    cause="<= in place of < at the threshold.",
    of="top-k",
)
def rules_out_the_kth(logits, k):
    least = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits <= least, -torch.inf)


@mistake(
    "ruled out with a zero",
    rejected_by="exactly the k likeliest",
    symptom="The rarest words beat those that were kept with a negative score.",
    cause="A score of 0 is a score like any other; only -inf has probability 0.",
    of="top-k",
)
def zero_for_ruled_out(logits, k):
    least = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < least, 0.0)


@mistake(
    "the first row's threshold for all",
    rejected_by="the likeliest word stays",
    symptom="Right for a batch of one; other rows keep too many words or none.",
    cause="values[0, -1] where values[:, -1:] is meant.",
    of="top-k",
)
def one_threshold_for_all(logits, k):
    least = logits.topk(min(k, logits.shape[-1])).values[0, -1]
    return logits.masked_fill(logits < least, -torch.inf)


# --- Top-p ----------------------------------------------------------------------------------------


@mistake(
    "top-p without the word that crosses",
    rejected_by="together at least p",
    symptom="The set has less than p: with 0.5, 0.41, 0.09 and p = 0.9 one word remains.",
    cause="cumsum <= p asks for the sum with the word; the sum before it decides.",
    seen="rasbt/reasoning-from-scratch issue 164, Biohub/esm pull request 360, "
    "fishaudio/fish-speech pull request 1171",
    of="top-p",
)
def without_the_word_that_crosses(logits, p):
    ordered, words = logits.sort(dim=-1, descending=True)
    ruled_out = ordered.softmax(-1).cumsum(-1) > p
    ruled_out[:, 0] = False
    return logits.masked_fill(ruled_out.scatter(1, words, ruled_out), -torch.inf)


@mistake(
    "top-p that may keep nothing",
    rejected_by="the likeliest word stays",
    symptom="Where one word has more than p, all are ruled out and softmax gives NaN.",
    cause="cumsum <= p, and nothing keeps the likeliest word where it alone has more.",
    seen="ml-explore/mlx-lm pull request 1912 (for a tiny p)",
    of="top-p",
)
def may_keep_nothing(logits, p):
    ordered, words = logits.sort(dim=-1, descending=True)
    ruled_out = ordered.softmax(-1).cumsum(-1) > p
    return logits.masked_fill(ruled_out.scatter(1, words, ruled_out), -torch.inf)


@mistake(
    "top-p by rank, not by word",
    rejected_by="the likeliest word stays",
    symptom="The first words of the vocabulary are kept, whatever their scores.",
    cause="What was ruled out in sorted order is not put back to the order of the words.",
    of="top-p",
)
def by_rank_for_by_word(logits, p):
    probability = logits.sort(dim=-1, descending=True).values.softmax(-1)
    return logits.masked_fill(probability.cumsum(-1) - probability >= p, -torch.inf)


@mistake(
    "each word above p",
    rejected_by="together at least p",
    symptom="A p of 0.9 keeps one word, nearly always: greedy under another name.",
    cause="Each probability is compared with p; it is their sum that must reach it.",
    of="top-p",
)
def each_word_above_p(logits, p):
    probability = logits.softmax(-1)
    likeliest = probability == probability.amax(-1, keepdim=True)
    return logits.masked_fill((probability < p) & ~likeliest, -torch.inf)


@mistake(
    "top-p from the rarest up",
    rejected_by="the likeliest word stays",
    symptom="The tail is kept and the likeliest word ruled out.",
    cause="sort without descending=True.",
    of="top-p",
)
def the_rarest_first(logits, p):
    ordered, words = logits.sort(dim=-1)
    probability = ordered.softmax(-1)
    ruled_out = probability.cumsum(-1) - probability >= p
    return logits.masked_fill(ruled_out.scatter(1, words, ruled_out), -torch.inf)


@mistake(
    "1 - p for p",
    rejected_by="together at least p",
    symptom="p = 0.9 keeps a tenth of the probability; 0.5 is right by accident.",
    cause="A threshold that counts what is thrown away is used for what is kept.",
    seen="lucidrains/x-transformers issue 184",
    of="top-p",
)
def one_minus_p(logits, p):
    ordered, words = logits.sort(dim=-1, descending=True)
    probability = ordered.softmax(-1)
    ruled_out = probability.cumsum(-1) - probability >= 1 - p
    ruled_out[:, 0] = False
    return logits.masked_fill(ruled_out.scatter(1, words, ruled_out), -torch.inf)


# --- Repetition -----------------------------------------------------------------------------------


@mistake(
    "penalty divides negative scores",
    rejected_by="a word that was said gets rarer",
    symptom="The higher the penalty, the more a word with a negative score is repeated.",
    cause="-2 / 1.5 is larger than -2: a negative score must be multiplied.",
    seen="huggingface/transformers issue 2302, IEIT-Yuan/Yuan-2.0 pull request 112",
    of="repetition",
)
def divides_every_score(logits, prefix_ids, penalty):
    return logits.scatter(1, prefix_ids, logits.gather(1, prefix_ids) / penalty)


@mistake(
    "a word said twice pays twice",
    rejected_by="said once or often is the same",
    symptom="Articles and commas vanish from long texts.",
    cause="A loop over what was said punishes each time, not each word.",
    of="repetition",
)
def punishes_each_time(logits, prefix_ids, penalty):
    logits = logits.clone()
    for b, row in enumerate(prefix_ids.tolist()):
        for word in row:
            factor = 1 / penalty if logits[b, word] > 0 else penalty
            logits[b, word] *= factor
    return logits


@mistake(
    "a row pays for its neighbors",
    rejected_by="words that were not said stay",
    symptom="What a row says depends on the others in the batch.",
    cause="The words of all rows are put into one set.",
    of="repetition",
)
def punishes_for_others(logits, prefix_ids, penalty):
    words = prefix_ids.flatten().unique()
    logits, found = logits.clone(), logits[:, words]
    logits[:, words] = torch.where(found > 0, found / penalty, found * penalty)
    return logits


@mistake(
    "the penalty subtracted",
    rejected_by="a penalty of 1 changes nothing",
    symptom="Even a penalty of 1 makes words rarer.",
    cause="Another method's rule, whose neutral value is 0.",
    of="repetition",
)
def subtracts_the_penalty(logits, prefix_ids, penalty):
    return logits.scatter(1, prefix_ids, logits.gather(1, prefix_ids) - penalty)


@mistake(
    "only the last word pays",
    rejected_by="a word that was said gets rarer",
    symptom="No word comes twice in a row, and the text runs in circles of two.",
    cause="said[:, -1:] in place of said.",
    of="repetition",
)
def punishes_the_last_word(logits, prefix_ids, penalty):
    last = prefix_ids[:, -1:]
    found = logits.gather(1, last)
    return logits.scatter(1, last, torch.where(found > 0, found / penalty, found * penalty))


# --- Greedy decoding of a batch -------------------------------------------------------------------


class Greedy:
    """The right thing in few lines."""

    def __call__(self, next_scores, start, max_new, eos=EOS, padding=PAD):
        """The likeliest word, again and again, until all rows have ended."""
        prefix_ids, done = start, torch.zeros(len(start), dtype=torch.bool)
        for _ in range(max_new):
            word, done = self.end(self.pick(next_scores(prefix_ids)), done, eos, padding)
            prefix_ids = torch.cat([prefix_ids, word[:, None]], dim=1)
            if self.over(done):
                break
        return self.answer(prefix_ids, start.shape[1])

    def pick(self, scores):
        """One word for each row."""
        return scores.argmax(-1)

    def end(self, word, done, eos, padding):
        """Padding for rows that ended before; then see which end now."""
        word = word.masked_fill(done, padding)
        return word, done | (word == eos)

    def over(self, done):
        """Have all rows ended?"""
        return bool(done.all())

    def answer(self, prefix_ids, length):
        """The new words."""
        return prefix_ids[:, length:]


@mistake(
    "a row goes on after its end",
    rejected_by="after the end only padding",
    symptom="In a batch, short answers carry on with words that follow EOS.",
    cause="The loop waits for all rows, and those that ended are not padded meanwhile.",
    seen="huggingface/transformers issue 31261, lucidrains/h-transformer-1d issue 9",
    of="greedy",
)
class GoesOnAfterTheEnd(Greedy):
    def end(self, word, done, eos, padding):
        return word, done | (word == eos)


@mistake(
    "stops when the first row ends",
    rejected_by="each row goes on to its own end",
    symptom="Right one by one; in a batch, long answers are cut short.",
    cause="any in place of all.",
    of="greedy",
)
class StopsWithTheFirst(Greedy):
    def over(self, done):
        return bool(done.any())


@mistake(
    "the start is returned too",
    rejected_by="the right shape and dtype",
    symptom="Every answer begins with its own prompt, and exact match is 0 %.",
    cause="What was said is given back whole.",
    of="greedy",
)
class ReturnsTheStart(Greedy):
    def answer(self, prefix_ids, length):
        return prefix_ids


@mistake(
    "argmax over the batch axis",
    rejected_by="RuntimeError",
    symptom="As many words as the vocabulary has, one sentence number for each.",
    cause="argmax(0) where argmax(-1) is meant.",
    of="greedy",
)
class PicksOverTheBatch(Greedy):
    def pick(self, scores):
        return scores.argmax(0)


@mistake(
    "the first row decides for all",
    rejected_by="every word is the likeliest",
    symptom="Right for a batch of one; otherwise all rows say the same.",
    cause="Code for one sentence, given a batch.",
    of="greedy",
)
class FirstRowDecides(Greedy):
    def pick(self, scores):
        return scores[0].argmax().expand(len(scores))


@mistake(
    "the end is cut off",
    rejected_by="each row goes on to its own end",
    symptom="No answer has an EOS, so an ended sentence looks like one that was cut.",
    cause="Rows that end now are padded at once, before their EOS is written.",
    of="greedy",
)
class CutsTheEndOff(Greedy):
    def end(self, word, done, eos, padding):
        done = done | (word == eos)
        return word.masked_fill(done, padding), done


# --- Beam search ----------------------------------------------------------------------------------


class Beams:
    """The right thing for one sentence, slowly: every step of every beam, sorted."""

    def __call__(self, next_scores, start, num_beams, max_new, length_penalty):
        """The best sentence that ended, and its score."""
        running, ended = [(0.0, [])], []
        for length in range(1, max_new + 1):
            prefix_ids = torch.tensor([[start, *words] for _, words in running])
            steps = self.steps(running, self.gains(next_scores(prefix_ids)), num_beams)
            for score, words in steps[:num_beams]:
                if self.ends(words) or length == max_new:
                    ended.append((self.final(score, length, length_penalty), words))
            running = self.going_on(steps, num_beams)
            if self.over(ended):
                break
        score, words = max(ended)
        return words, score

    def gains(self, scores):
        """What each word adds to the score."""
        return scores.log_softmax(-1)

    def steps(self, running, gains, num_beams):
        """Every beam with every word, best first."""
        steps = [
            (score + gain, [*words, word])
            for (score, words), row in zip(running, gains.tolist(), strict=True)
            for word, gain in enumerate(row)
        ]
        return sorted(steps, reverse=True)

    def ends(self, words):
        """Does the sentence end here?"""
        return words[-1] == EOS

    def final(self, score, length, length_penalty):
        """The score of a sentence that ended."""
        return score / length**length_penalty

    def going_on(self, steps, num_beams):
        """The best that did not end."""
        return [step for step in steps if step[1][-1] != EOS][:num_beams]

    def over(self, ended):
        """Stop early? It is never wrong not to."""
        return False


@mistake(
    "beams never end",
    rejected_by="a sentence ends at its end",
    symptom="Sentences run through their EOS to the last word allowed.",
    cause="A beam that said EOS stays among the running ones and is fed again.",
    seen="facebookresearch/ParlAI issue 2058, jarobyte91/pytorch_beam_search issue 5",
    of="beam search",
)
class BeamsNeverEnd(Beams):
    def ends(self, words):
        return False

    def going_on(self, steps, num_beams):
        return steps[:num_beams]


@mistake(
    "no length penalty where one was asked",
    rejected_by="the score is the sentence's",
    symptom="The wider the beam, the shorter the sentences.",
    cause="Sums of log-probabilities are compared though the lengths differ.",
    seen="jarobyte91/pytorch_beam_search issue 5",
    of="beam search",
)
class NoLengthPenalty(Beams):
    def final(self, score, length, length_penalty):
        return score


@mistake(
    "probabilities added, not logarithms",
    rejected_by="the score is the sentence's",
    symptom="One certain word makes up for an impossible one; longer is always better.",
    cause="Probabilities are multiplied: it is their logarithms that add up.",
    of="beam search",
)
class ProbabilitiesAdded(Beams):
    def gains(self, scores):
        return scores.softmax(-1)


@mistake(
    "scores added as they come",
    rejected_by="the score is the sentence's",
    symptom="A beam with large scores wins, though its words are not likely among them.",
    cause="log_softmax is missing: scores of different rows cannot be compared.",
    of="beam search",
)
class RawScoresAdded(Beams):
    def gains(self, scores):
        return scores


@mistake(
    "the best of each beam only",
    rejected_by="a beam as wide as the tree misses nothing",
    symptom="num_beams greedy searches side by side that differ in their first word.",
    cause="Each beam keeps its own best step; two of the best may come from one beam.",
    of="beam search",
)
class BestOfEachBeam(Beams):
    def steps(self, running, gains, num_beams):
        if len(running) == 1:
            return super().steps(running, gains, num_beams)
        each = [super(BestOfEachBeam, self).steps([beam], row[None], num_beams)[0]
                for beam, row in zip(running, gains, strict=True)]  # fmt: skip
        return sorted(each, reverse=True)

    def going_on(self, steps, num_beams):
        return super().going_on(steps, num_beams) or steps[:1]


@mistake(
    "ended sentences forgotten",
    rejected_by="one beam is never worse than greedy",
    symptom="Only sentences of the full length are found.",
    cause="A beam that ends makes room for another, and nobody writes it down.",
    of="beam search",
)
class EndedForgotten(Beams):
    def ends(self, words):
        return False


@mistake(
    "the search stops at the first end",
    rejected_by="a beam as wide as the tree misses nothing",
    symptom="Short sentences, though a longer one would score better.",
    cause="One end is taken for the best; beams that still run may overtake it.",
    seen="joeynmt/joeynmt issue 148",
    of="beam search",
)
class StopsAtTheFirstEnd(Beams):
    def over(self, ended):
        return bool(ended)


# --- Sessions: a model with a memory --------------------------------------------------------------


class Remembering:
    """A session of either model, spelled out: what is new goes through the layers, once."""

    def __init__(self, model, source=None):
        self.model, self.cache = model, model.new_cache(capacity=2)
        self.memory = None if source is None else model.encode(source)
        self.visible = None if source is None else model.padding(source)

    @torch.no_grad()
    def feed(self, tokens):
        """Take the next tokens; give the scores of the word after the last."""
        real, model, length = self.cache.extend(tokens != PAD), self.model, tokens.shape[1]
        mask = combine_masks(real[:, None, None, :], causal_mask(length, real.shape[1]))
        embedding = model.embedding if self.memory is None else model.target_embedding
        x = embedding(tokens, self.places(real, length), real.shape[1])
        if self.memory is None:
            caches = [layer.own for layer in self.cache.layers]
            x, _ = model.layers(x, norm=model.norm, caches=caches, mask=mask)
        else:
            x = model.decoder(x, self.memory, mask=mask, memory_mask=self.visible, causal=False,
                              cache=self.cache)  # fmt: skip
        return self.last(model.output(x))

    def places(self, real, length):
        """A new token's place: how many real ones stand before it."""
        return position_ids(real)[:, -length:]

    def last(self, logits):
        """What follows the chunk's last token."""
        return logits[:, -1]

    def reorder(self, rows):
        """Keep these rows: of the cache, and of what is known about the source."""
        self.cache.reorder(rows)
        if self.memory is not None:
            self.memory, self.visible = self.memory[rows], self.visible[rows]


@mistake(
    "positions restarted at 0",
    rejected_by="one by one equals one pass",
    symptom="The first word is right; then the model says it again and again.",
    cause="Positions count from the start of the chunk, not from the start of the text.",
    seen="ml-explore/mlx-lm pull request 93",
    of="decoding",
)
class RestartsPositions(Remembering):
    def places(self, real, length):
        return position_ids(real[:, -length:])


@mistake(
    "positions count the padding",
    rejected_by="padding changes nothing",
    symptom="In a batch padded on the left only the longest prompt is continued rightly.",
    cause="arange over the columns, where the real tokens of each row are to be counted.",
    seen="facebookresearch/ParlAI pull request 3193, unslothai/unsloth issue 3699",
    of="decoding",
)
class CountsPadding(Remembering):
    def places(self, real, length):
        return torch.arange(real.shape[1]).expand_as(real)[:, -length:]


@mistake(
    "the scores of the chunk's first word",
    rejected_by="several at once equal one pass",
    symptom="Right word by word; after a prompt, an answer to the prompt's first word.",
    cause="logits[:, 0] in place of logits[:, -1]: with one token they are the same.",
    of="decoding",
)
class AnswersForTheFirst(Remembering):
    def last(self, logits):
        return logits[:, 0]


@mistake(
    "the cache shared between beams",
    rejected_by="a row takes its past along",
    symptom="Greedy decoding is right; a beam goes on with what another one said.",
    cause="Beams are sorted anew at each word, and the cache is not told.",
    seen="huggingface/transformers issue 46612",
    of="decoding",
)
class SharesTheCache(Remembering):
    def reorder(self, rows):
        if self.memory is not None:
            self.memory, self.visible = self.memory[rows], self.visible[rows]


@mistake(
    "the memory left behind",
    rejected_by="a row takes its source along",
    symptom="Right for one sentence; in a batch, beams of one sentence read another's source.",
    cause="select moves the decoder's own keys and forgets those of the encoder's output.",
    of="decoding",
)
class LeavesTheSource(Remembering):
    def reorder(self, rows):
        for layer in self.cache.layers:
            layer.own.reorder(rows)
        self.cache.real = self.cache.real[rows]


@mistake(
    "fed word by word to a model that forgets",
    rejected_by="one by one equals one pass",
    symptom="Each word depends on the one before it and on nothing else.",
    cause="The last token alone is fed, as with a cache, and there is none.",
    of="decoding",
)
class ForgetsWhatWasSaid(Remembering):
    def feed(self, tokens):
        self.cache = self.model.new_cache()
        return super().feed(tokens)
