"""Answers of a cloned browsing policy, chosen by scores that were trained on the comparisons of two judges.

Every row is one judge and one seed, which sets what the policy samples and what the judge prefers. "right" is the share of
right answers by n, the number of answers that the score chooses from, on questions that no training has seen; the mean
over all choices of n of 16 answers, which is exact. "best" is that of a score that knows which answer is right. "facts"
is a judge who prefers the definition, "length" one who prefers long answers. About two minutes.

Usage: OMP_NUM_THREADS=1 python benchmarks/browser_best_of.py
"""

from functools import lru_cache

import torch
from record import measure_missing

from tested_transformer.experiments import ch22_browser as web
from tested_transformer.generation.best_of import best_of_n_mean

NAME = "browser_best_of"
NUMBERS = (1, 2, 4, 8, 16)
WHAT = (
    f"share of right answers by the number of answers that a score chooses from, for a policy cloned from "
    f"{web.DEMONSTRATIONS} demonstrations, and scores trained on {web.TRAIN_SAMPLES // 2} comparisons per question"
)


@lru_cache
def answers(seed: int) -> tuple[web.Answers, web.Answers]:
    """The policy's answers to the questions of training and of tests."""
    pages = web.glossary_pages()
    train, test = web.questions(pages)
    policy = web.clone(web.demonstrations(pages, train[: web.DEMONSTRATIONS]))
    rng = torch.Generator().manual_seed(seed)
    return tuple(
        web.sample_answers(policy, pages, terms, count, rng)
        for terms, count in ((train, web.TRAIN_SAMPLES), (test, web.TEST_SAMPLES))
    )


def measure(variant: str, seed: int) -> dict:
    """A score from one judge's comparisons, and what it chooses."""
    train, test = web.questions(web.glossary_pages())
    known, held_out = answers(seed)
    rng = torch.Generator().manual_seed(seed + 100)
    weights = web.train_score(*web.compared(train, known, web.JUDGES[variant], rng))
    scores, rights = web.scores_and_rights(test, held_out, weights)
    right, best = (
        {str(n): round(best_of_n_mean(by, rights, n).mean().item(), 4) for n in NUMBERS}
        for by in (scores, rights)
    )
    return {
        "variant": variant, "seed": seed, "right": right, "best": best,
        "weights": [round(weight, 3) for weight in weights.tolist()],
    }  # fmt: skip


def main() -> None:
    """Measure the runs that are missing."""
    wanted = ({"variant": variant, "seed": seed} for seed in range(3) for variant in web.JUDGES)
    measure_missing(NAME, WHAT, wanted, measure, ["variant", "seed", "right"])


if __name__ == "__main__":
    main()
