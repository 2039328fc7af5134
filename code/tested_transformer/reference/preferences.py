"""The slow truth of comparisons, of the best of n, and of a browser's state: one by one, all choices, a list of numbers."""

from __future__ import annotations

import math
import re
from itertools import combinations

import numpy as np

from .attention import _wide


def bradley_terry_loss(first, second, preference=None):
    """Comparison by comparison: minus the logarithm of the probability of what was preferred.

    Shapes: first, second and preference (B) -> ().
    Source: Bradley and Terry 1952.
    """
    first, second = _wide(first), _wide(second)
    preference = np.ones_like(first) if preference is None else _wide(preference)
    total = first.dtype.type(0)
    for a, b, p in zip(first, second, preference, strict=True):
        largest = max(a, b)
        both = largest + np.log(np.exp(a - largest) + np.exp(b - largest))
        total += p * (both - a) + (1 - p) * (both - b)
    return total / len(first)


def best_of_n_mean(scores, utilities, n):
    """Take n answers in all possible ways, keep the one with the highest score, and average.

    Shapes: scores and utilities (*batch, N) -> (*batch).
    Source: the definition.
    """
    utilities = _wide(utilities)
    found = np.zeros(scores.shape[:-1], utilities.dtype)
    for place in np.ndindex(found.shape):
        kept = [
            utilities[place][max(chosen, key=lambda i: (scores[place][i], -i))]
            for chosen in combinations(range(scores.shape[-1]), n)
        ]
        found[place] = sum(kept) / len(kept)
    return found


def browse(lines, script, window, max_actions):
    """The state of a text browser after each action of a script, as numbers.

    lines: a list of lines for each page. script: pairs of an action and its argument. A row is the open page
    (-1 for none), its first visible line, the number of quotes, the actions left, and whether it is finished.
    """
    words = [set(re.findall(r"[a-z0-9]+", "\n".join(page).lower())) for page in lines]
    results, page, first, quotes, left, finished = [], -1, 0, 0, max_actions, False
    rows = []
    for action, argument in script:
        done = not finished
        last = max(len(lines[page]) - window, 0)
        if not done:
            pass
        elif action == "search":
            query = set(re.findall(r"[a-z0-9]+", argument.lower()))
            scores = [
                sum(
                    math.log1p(len(lines) / sum(word in other for other in words))
                    for word in sorted(query & own)
                )
                for own in words
            ]
            results = [n for n in sorted(range(len(lines)), key=lambda n: -scores[n]) if scores[n]]
            results, page, first = results[:4], -1, 0
        elif action == "open":
            done = 0 <= argument < len(results)
            page, first = (results[argument], 0) if done else (page, first)
        elif action == "scroll":
            done = page >= 0
            first = min(max(first + argument * window, 0), last) if done else first
        elif action == "quote":
            visible = "\n".join(lines[page][first : first + window]) if page >= 0 else ""
            done = bool(argument.strip()) and argument in visible
            quotes += done
        left -= done
        finished = finished or left == 0 or (done and action == "answer")
        rows.append([page, first, quotes, left, finished])
    return np.array(rows, dtype=np.int64)
