"""What a small BERT learns from number words without labels; what 80/10/10 and the initialization change.

Every row is a model of two layers. "80/10/10" and the other names: the percentages of the chosen tokens
that become [MASK], become random, and stay, in pretraining on 799 numbers in German and English, 2,000
steps of 64 sentences; "none": no pretraining. "std": the standard deviation of the initial matrices of the
encoder: BERT's 0.02 and, without pretraining, also 0.18, which is 1 / sqrt(D) for D = 32. "masked",
"unchanged" and "replaced": at one position of each sentence of the 200 held-out numbers stands [MASK], its
own token, or a random one; the fraction of all positions whose own token gets the largest logit. "labels":
for each number of labeled translations, right or wrong, the accuracy on 400 others after 300 steps of
fine-tuning; "labels, longer": after 2,000 steps. Two deeper pages of chapter 12 show the rows. About fifteen minutes of one processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/bert_pretraining.py
"""

import copy
from functools import partial

import torch
from record import measure_missing

from tested_transformer.experiments import ch12_masked as bert

NAME = "bert_pretraining"
WHAT = (
    "accuracy of a small BERT at positions that are masked, unchanged or replaced, and of a classifier "
    "that starts from its weights, by the number of labels"
)
SHARES = {
    "80/10/10": (0.8, 0.1), "100/0/0": (1.0, 0.0), "80/0/20": (0.8, 0.0), "80/20/0": (0.8, 0.2),
}  # fmt: skip
BERTS_STD, ROOT_STD = 0.02, 0.18  # of the initialization: BERT's, and 1 / sqrt(D)
LABELS = (50, 200, 800)


def fine_tuned(model: bert.MaskedLM, count: int, seed: int, steps: int) -> float:
    """The accuracy on held-out numbers of a classifier that starts from the weights of a model."""
    known, held_out = bert.split_numbers()
    ids, labels = bert.labeled_pairs(known, count, torch.Generator().manual_seed(seed))
    test = bert.labeled_pairs(held_out, 400, torch.Generator().manual_seed(99))
    classifier = bert.fine_tune(copy.deepcopy(model.bert), ids, labels, seed, steps)
    return round(bert.accuracy(classifier, *test), 4)


def measure(variant: str, std: float, seed: int) -> dict:
    """Pretrain, or not; look at single positions; then fine-tune on each number of labels."""
    known, held_out = bert.split_numbers()
    build = partial(bert.masked_lm, std=std)
    if variant == "none":
        torch.manual_seed(seed)
        model = build()
    else:
        masked = partial(bert.mask_by_shares, shares=SHARES[variant])
        model = bert.pretrain(known, seed, masked=masked, build=build)
    row = {"variant": variant, "std": std, "seed": seed}
    for what in ("masked", "unchanged", "replaced"):
        row[what] = round(bert.restored(model, held_out, what), 4)
    row["labels"] = {str(count): fine_tuned(model, count, seed, 300) for count in LABELS}
    if variant in ("none", "80/10/10"):
        longer = {str(count): fine_tuned(model, count, seed, 2000) for count in LABELS}
        row["labels, longer"] = longer
    return row


def main() -> None:
    """Measure the rows that are missing."""
    settings = [(v, BERTS_STD) for v in ("none", *SHARES)] + [("none", ROOT_STD)]
    wanted = ({"variant": v, "std": s, "seed": seed} for v, s in settings for seed in range(3))
    shown = ["variant", "std", "seed"]
    shown += ["masked", "unchanged", "replaced", "labels", "labels, longer"]
    measure_missing(NAME, WHAT, wanted, measure, shown)


if __name__ == "__main__":
    main()
