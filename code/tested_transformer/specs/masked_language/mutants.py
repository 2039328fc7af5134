"""The famous mistakes in BERT's data: which tokens are chosen, what becomes of them, and what a pair means."""

from __future__ import annotations

from itertools import pairwise

import torch

from ...special_tokens import pad
from ..mistakes import Formula, mistake

IGNORE = -100

# --- Masked tokens --------------------------------------------------------------------------------


class MaskFormula(Formula):
    """The right formula, split into the steps that the mutants replace one at a time."""

    to_mask, to_random = 0.8, 0.9  # below the first: [MASK]; from the second on: a random token

    def __call__(self, ids, special, generator, *, mask_id, vocab_size, rate=0.15):
        """Choose, label, then change what is read."""
        chosen = self.chosen(ids, special, generator, rate)
        labels = self.labels(ids, chosen)
        draw = torch.rand(ids.shape, generator=generator)
        random_ids = self.random_ids(ids, vocab_size, generator)
        inputs = ids.masked_fill(chosen & (draw < self.to_mask), mask_id)
        return torch.where(chosen & (draw >= self.to_random), random_ids, inputs), labels

    def chosen(self, ids, special, generator, rate):
        available = (~special).sum(1)
        count = (rate * available.double()).round().clamp(min=1).minimum(available)
        ranks = torch.rand(ids.shape, generator=generator).masked_fill(special, 2.0)
        return ranks.argsort(1).argsort(1) < count[:, None]

    def labels(self, ids, chosen):
        return ids.masked_fill(~chosen, IGNORE)

    def random_ids(self, ids, vocab_size, generator):
        return torch.randint(vocab_size, ids.shape, generator=generator)


@mistake(
    "special tokens masked",
    rejected_by="special tokens are left alone",
    symptom="[CLS] and [SEP] are sometimes masked, and the model is trained to predict them.",
    cause="The 15 % are chosen from all positions, special tokens included.",
    seen="huggingface/transformers issue 1395",
    of="mask_tokens",
)
class SpecialsMasked(MaskFormula):
    def chosen(self, ids, special, generator, rate):
        available = (~special).sum(1)
        count = (rate * available.double()).round().clamp(min=1).minimum(available)
        ranks = torch.rand(ids.shape, generator=generator)
        return ranks.argsort(1).argsort(1) < count[:, None]


@mistake(
    "loss over every token",
    rejected_by="15 % of each text, and at least one",
    symptom="The loss is near 0 at once: most of the tokens to predict are in the input.",
    cause="The labels are the text itself; those of all other tokens should be -100.",
    seen="huggingface/transformers issue 144, lucidrains/mlm-pytorch issue 2",
    of="mask_tokens",
)
class LossOverEveryToken(MaskFormula):
    def labels(self, ids, chosen):
        return ids.clone()


@mistake(
    "token 0 has no label",
    rejected_by="15 % of each text, and at least one",
    symptom="The model never learns to predict one token, the one whose ID is 0.",
    cause="labels > 0 is used to mean `is chosen`, but 0 is an ID like any other.",
    seen="mosaicml/examples issue 457",
    of="mask_tokens",
)
class NoLabelForZero(MaskFormula):
    def labels(self, ids, chosen):
        return ids.masked_fill(~chosen | (ids <= 0), IGNORE)


@mistake(
    "each token with probability 15 %",
    rejected_by="15 % of each text, and at least one",
    symptom="Short texts sometimes have no label, and the loss of a batch without labels is NaN.",
    cause="Each token is chosen independently. BERT's code chooses a fixed number of tokens for each text.",
    seen="huggingface/transformers issue 684 and pull request 1814",
    of="mask_tokens",
)
class CoinForEachToken(MaskFormula):
    def chosen(self, ids, special, generator, rate):
        return (torch.rand(ids.shape, generator=generator) < rate) & ~special


@mistake(
    "15 %, and 80 % of that",
    rejected_by="15 % of each text, and at least one",
    symptom="12 % are masked and predicted; no token becomes random, and none stays.",
    cause="Sampled twice: the 20 % that should be random or unchanged are dropped instead.",
    seen="gc-os-ai/pyaptamer issue 646, of one project",
    of="mask_tokens",
)
class SampledTwice(MaskFormula):
    to_mask, to_random = 1.0, 2.0

    def chosen(self, ids, special, generator, rate):
        chosen = super().chosen(ids, special, generator, rate)
        return chosen & (torch.rand(ids.shape, generator=generator) < 0.8)


@mistake(
    "labels of -1",
    rejected_by="labels are the tokens that stood there",
    symptom="An index out of range, or a loss over all tokens, padding too.",
    cause="One part of the code ignores the label -1, and F.cross_entropy ignores -100.",
    seen="huggingface/transformers issue 2759",
    of="mask_tokens",
)
class LabelsOfMinusOne(MaskFormula):
    def labels(self, ids, chosen):
        return ids.masked_fill(~chosen, -1)


@mistake(
    "labels read from the corrupted text",
    rejected_by="labels are the tokens that stood there",
    symptom="The model learns to predict [MASK] where it reads [MASK]: the loss falls to nearly 0.",
    cause="labels = inputs without clone(), so masking one masks both.",
    of="mask_tokens",
)
class LabelsAfterMasking(MaskFormula):
    def __call__(self, ids, special, generator, **options):
        """The labels are read off the masked input."""
        inputs, labels = super().__call__(ids, special, generator, **options)
        return inputs, inputs.masked_fill(labels == IGNORE, IGNORE)


@mistake(
    "the text itself is masked",
    rejected_by="the inputs stay as they were",
    symptom="The text keeps the mask tokens of all earlier epochs.",
    cause="The caller's tensor is changed in place.",
    of="mask_tokens",
)
class MaskedInPlace(MaskFormula):
    def __call__(self, ids, special, generator, **options):
        """The caller's IDs are overwritten."""
        inputs, labels = super().__call__(ids, special, generator, **options)
        return ids.copy_(inputs), labels


@mistake(
    "the draw compared with itself",
    rejected_by="80 % become [MASK]",
    symptom="No token is ever masked or replaced, so all labels can be copied from the input.",
    cause="prob < prob * 0.8 is never true. The draw that chose the token should be divided by 0.15 first.",
    seen="codertimo/BERT-pytorch issue 29",
    of="mask_tokens",
)
class ComparedWithItself(MaskFormula):
    to_mask, to_random = 0.0, 2.0


@mistake(
    "all that is chosen is masked",
    rejected_by="80 % become [MASK]",
    symptom="The loss never asks about a position without [MASK], but there is no [MASK] in fine-tuning.",
    cause="80/10/10 is left out.",
    of="mask_tokens",
)
class AllMasked(MaskFormula):
    to_mask, to_random = 1.0, 2.0


@mistake(
    "10 % of what is left",
    rejected_by="10 % become a random token",
    symptom="2 % random tokens and 18 % unchanged ones.",
    cause="After 80 % are masked, a fifth is left, and half of that is 10 %. The 0.5 was mistaken for a bug.",
    seen="the change asked for in huggingface/transformers issues 10285 and 10332, which were closed: 0.5 is right",
    of="mask_tokens",
)
class TenthOfTheRest(MaskFormula):
    to_random = 0.98


@mistake(
    "one choice for the whole batch",
    rejected_by="each text has a choice of its own",
    symptom="The same positions are masked in every text of a batch.",
    cause="The draw has the shape (L), and is broadcast.",
    of="mask_tokens",
)
class OneChoiceForAll(MaskFormula):
    def chosen(self, ids, special, generator, rate):
        available = (~special).sum(1)
        count = (rate * available.double()).round().clamp(min=1).minimum(available)
        ranks = torch.rand(ids.shape[1], generator=generator).expand_as(ids)
        return ranks.masked_fill(special, 2.0).argsort(1).argsort(1) < count[:, None]


@mistake(
    "the generator is not used",
    rejected_by="another seed, another choice",
    symptom="A run cannot be repeated: its masks depend on other code that uses random numbers.",
    cause="torch.rand without generator=.",
    of="mask_tokens",
)
class GeneratorUnused(MaskFormula):
    def __call__(self, ids, special, generator, **options):
        """The global generator draws."""
        return super().__call__(ids, special, torch.default_generator, **options)


@mistake(
    "the last token is never drawn",
    rejected_by="any token can be the random one",
    symptom="One token of the vocabulary is never used as a random token.",
    cause="randint(vocab_size - 1): the upper bound is already exclusive.",
    of="mask_tokens",
)
class LastNeverDrawn(MaskFormula):
    def random_ids(self, ids, vocab_size, generator):
        return torch.randint(vocab_size - 1, ids.shape, generator=generator)


# --- Is it the next sentence? ---------------------------------------------------------------------


class PairFormula(Formula):
    """The right formula, split into the steps that the mutants replace one at a time."""

    is_next, is_random = 0, 1
    share = 0.5  # of the pairs that are true

    def __call__(self, documents, generator):
        """A coin for each pair."""
        pairs, labels = [], []
        for number in range(len(documents)):
            for first, second in self.follows(documents, number):
                if torch.rand(1, generator=generator).item() < self.share:
                    pairs.append((first, second))
                    labels.append(self.is_next)
                else:
                    wrong = self.wrong(documents, number, second)
                    drawn = int(torch.randint(len(wrong), (1,), generator=generator))
                    pairs.append((first, wrong[drawn]))
                    labels.append(self.is_random)
        return pairs, torch.tensor(labels, dtype=torch.long)

    def follows(self, documents, number):
        return pairwise(documents[number])

    def wrong(self, documents, number, second):
        others = [one for other, one in enumerate(documents) if other != number]
        return [each for one in others for each in one if each != second]


@mistake(
    "1 for the next sentence",
    rejected_by="a pair of label 0 is a true one",
    symptom="A pretrained BERT predicts the opposite of every label.",
    cause="BERT's 0 means that the second sentence follows, 1 that it is random.",
    seen="huggingface/transformers issues 836 and 524, google-research/bert issue 125",
    of="next_sentence_pairs",
)
class LabelsFlipped(PairFormula):
    is_next, is_random = 1, 0


@mistake(
    "a random sentence of the same document",
    rejected_by="a pair of label 1 is a false one",
    symptom="Some true continuations are labeled random, and many if there is only one document.",
    cause="The random document may be the same one; with a single document it always is.",
    seen="NVIDIA/DeepLearningExamples issue 421",
    of="next_sentence_pairs",
)
class SameDocument(PairFormula):
    def wrong(self, documents, number, second):
        return [each for one in documents for each in one]


@mistake(
    "the true next sentence, from elsewhere",
    rejected_by="a pair of label 1 is a false one",
    symptom="A sentence that many documents share is labeled random after a sentence that it does follow.",
    cause="The code compares the documents, but not the sentences.",
    of="next_sentence_pairs",
)
class SameWords(PairFormula):
    def wrong(self, documents, number, second):
        others = [one for other, one in enumerate(documents) if other != number]
        return [each for one in others for each in one]


@mistake(
    "a random sentence from nearby",
    rejected_by="a random sentence comes from another document",
    symptom="False pairs have the same topic as true ones. This is not BERT's task, but a harder one.",
    cause="The code compares the sentences, but not the documents.",
    of="next_sentence_pairs",
)
class FromNearby(PairFormula):
    def wrong(self, documents, number, second):
        return [each for one in documents for each in one if each != second]


@mistake(
    "every pair is random",
    rejected_by="half of the pairs are true",
    symptom="All labels are 1, so a model that always predicts 1 is always right.",
    cause="Blank lines between sentences turned each sentence into a document of its own.",
    seen="google-research/bert issue 125",
    of="next_sentence_pairs",
)
class EveryPairRandom(PairFormula):
    share = -1.0


@mistake(
    "on into the next document",
    rejected_by="the right shape and dtype",
    symptom="The last sentence of one document and the first of the next are labeled as a true pair.",
    cause="All sentences are in one list, and the code ignores where documents end.",
    of="next_sentence_pairs",
)
class AcrossDocuments(PairFormula):
    def follows(self, documents, number):
        return pairwise([*documents[number], *(each[0] for each in documents[number + 1 :][:1])])


@mistake(
    "always the first sentence",
    rejected_by="equals the reference",
    symptom="A model can recognize false pairs by the second sentence alone: it looks like a first sentence.",
    cause="The code takes the first sentence of a random document.",
    of="next_sentence_pairs",
)
class AlwaysTheFirst(PairFormula):
    def wrong(self, documents, number, second):
        others = [one[0] for other, one in enumerate(documents) if other != number]
        return [each for each in others if each != second] or super().wrong(
            documents, number, second
        )


@mistake(
    "pairs without a seed",
    rejected_by="another seed, other pairs",
    symptom="A run cannot be repeated.",
    cause="torch.rand without generator=.",
    of="next_sentence_pairs",
)
class PairsUnseeded(PairFormula):
    def __call__(self, documents, generator):
        """The global generator draws."""
        return super().__call__(documents, torch.default_generator)


# --- Two sentences as one text --------------------------------------------------------------------


class JoinFormula(Formula):
    """The right formula, split into the steps that the mutants replace one at a time."""

    def __call__(self, pairs, *, cls_id, sep_id, pad_id=0):
        """IDs, mask and segments."""
        texts = [self.text(*pair, cls_id, sep_id) for pair in pairs]
        lengths = torch.tensor([len(one) + len(two) for one, two in texts], dtype=torch.long)
        ids = pad([[*one, *two] for one, two in texts], value=self.padding(pad_id))
        segments = pad([self.segments(*text) for text in texts], value=self.pad_segment)
        real = torch.arange(ids.shape[1]) < lengths[:, None]
        return ids, self.mask(ids, real, segments), segments

    pad_segment = 0

    def text(self, first, second, cls_id, sep_id):
        return [cls_id, *first, sep_id], [*second, sep_id]

    def segments(self, one, two):
        return [0] * len(one) + [1] * len(two)

    def padding(self, pad_id):
        return pad_id

    def mask(self, ids, real, segments):
        return real


@mistake(
    "segments as the attention mask",
    rejected_by="the mask is True for all that is no padding",
    symptom="Unrelated sentences follow each other with a probability of 0.99: no token attends to the first one.",
    cause="model(ids, segments): the second argument is the attention mask. Pass it by name.",
    seen="huggingface/transformers issues 1788 and 48, where the example was written for an older signature",
    of="join_pairs",
)
class SegmentsAsMask(JoinFormula):
    def mask(self, ids, real, segments):
        return segments.bool()


@mistake(
    "padding is read",
    rejected_by="the mask is True for all that is no padding",
    symptom="A text's logits depend on the longest text of its batch.",
    cause="No attention mask is made, so all tokens attend to padding.",
    of="join_pairs",
)
class PaddingRead(JoinFormula):
    def mask(self, ids, real, segments):
        return torch.ones_like(real)


@mistake(
    "padded with 0 where padding is 1",
    rejected_by="padding is pad_id",
    symptom="The padding is an ordinary token with a learned embedding, so padded batches differ.",
    cause="[PAD] has the ID 1 in the vocabulary, and 0 in the code.",
    seen="SKTBrain/KoBERT issue 36, kimwoonggon/publicservant_AI issue 4",
    of="join_pairs",
)
class PaddedWithZero(JoinFormula):
    def padding(self, pad_id):
        return 0


@mistake(
    "padding has a segment of its own",
    rejected_by="padding is in segment 0",
    symptom="An index out of range: BERT has two segments.",
    cause="Padding gets the next free number, as in XLNet's tokenizer.",
    seen="SKTBrain/KoBERT issue 66",
    of="join_pairs",
)
class PaddingSegment(JoinFormula):
    pad_segment = 3


@mistake(
    "segments one token early",
    rejected_by="the first separator ends segment 0",
    symptom="A pretrained BERT gets input that it was never trained on, and is a little worse.",
    cause="[CLS] is not counted in the length of the first segment.",
    seen="SKTBrain/KoBERT issue 59",
    of="join_pairs",
)
class SegmentsEarly(JoinFormula):
    def segments(self, one, two):
        return [0] * (len(one) - 1) + [1] * (len(two) + 1)


@mistake(
    "all in segment 0",
    rejected_by="the first separator ends segment 0",
    symptom="The pair is read as one text.",
    cause="token_type_ids=None.",
    seen="huggingface/transformers issue 263",
    of="join_pairs",
)
class OneSegment(JoinFormula):
    def segments(self, one, two):
        return [0] * (len(one) + len(two))


@mistake(
    "no separator at the end",
    rejected_by="the right shape and dtype",
    symptom="The second sentence looks as if it had been truncated.",
    cause="There is a [SEP] between the sentences, but none at the end.",
    of="join_pairs",
)
class NoLastSeparator(JoinFormula):
    def text(self, first, second, cls_id, sep_id):
        return [cls_id, *first, sep_id], [*second]
