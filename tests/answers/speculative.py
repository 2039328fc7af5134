"""One round of speculative decoding and its cache, written in other ways, right and wrong."""

import math

import torch

from answers import right, wrong
from tested_transformer.generation.speculative import CachedLogits, speculative_round

right("speculative_round", "the package's")(speculative_round)
right("cached_logits", "the package's")(CachedLogits)


def drafted(draft, prefix_ids, length, probabilities, choose):
    """A draft, and the distributions that it was sampled from."""
    ids, q = list(prefix_ids), []
    for _ in range(length):
        q.append(probabilities(draft(ids, 1))[0])
        ids.append(choose(q[-1]))
    return ids[len(prefix_ids) :], q


@right("speculative_round", "by logarithms")
def by_logarithms(target, draft, prefix_ids, length, probabilities, choose):
    """As vLLM computes it: log(p - q) = log p + log(1 - q/p), with log(1 - x) as it stands."""
    tokens, q = drafted(draft, prefix_ids, length, probabilities, choose)
    log_p = probabilities(target([*prefix_ids, *tokens], length + 1)).log()
    for n, token in enumerate(tokens):
        chance = min(0.0, float(log_p[n, token] - q[n][token].log()))
        accepted = torch.tensor([-math.expm1(chance), math.exp(chance)], dtype=torch.float64)
        if not choose(accepted):
            ratio = (q[n].log() - log_p[n]).exp().nan_to_num(1.0).clamp(max=1)
            return [*tokens[:n], choose((log_p[n] + (1 - ratio).log()).softmax(-1))]
    return [*tokens, choose(log_p[-1].exp())]


@right("speculative_round", "all tokens at once")
def vectorized(target, draft, prefix_ids, length, probabilities, choose):
    """The probability of each number of accepted tokens first; one choice for it, one for the token."""
    tokens, q = drafted(draft, prefix_ids, length, probabilities, choose)
    ids = torch.tensor([[token] for token in tokens], dtype=torch.long).view(-1, 1)
    p = probabilities(target([*prefix_ids, *tokens], length + 1))
    q = torch.stack([*q, torch.zeros_like(p[0])])  # nothing is drafted after the last
    chances = (p[:-1].gather(1, ids) / q[:-1].gather(1, ids)).clamp(max=1)[:, 0]
    reached = torch.cat([chances.new_ones(1), chances.cumprod(0)])
    rejected = torch.cat([1 - chances, chances.new_ones(1)])
    n = choose(reached * rejected)
    missing = (p[n] - q[n]).clamp(min=0)
    return [*tokens[:n], choose(missing / missing.sum())]


@right("speculative_round", "the replacement by rejection")
def by_rejection(target, draft, prefix_ids, length, probabilities, choose):
    """1 - min(p, q) / p is the probability that a sample of p stands for max(0, p - q)."""
    tokens, q = drafted(draft, prefix_ids, length, probabilities, choose)
    p = probabilities(target([*prefix_ids, *tokens], length + 1))
    for n, token in enumerate(tokens):
        if p[n, token] >= q[n][token]:
            continue
        rejected = 1 - p[n, token] / q[n][token]
        if choose(torch.stack([rejected, 1 - rejected])) == 0:
            kept = p[n] - torch.minimum(p[n], q[n])
            return torch.tensor([*tokens[:n], choose(kept / kept.sum())])
    return torch.tensor([*tokens, choose(p[-1])])


@wrong("speculative_round", "accepted with probability p")
def accepted_by_p(target, draft, prefix_ids, length, probabilities, choose):
    tokens, q = drafted(draft, prefix_ids, length, probabilities, choose)
    p = probabilities(target([*prefix_ids, *tokens], length + 1))
    for n, token in enumerate(tokens):
        if not choose(torch.stack([1 - p[n, token], p[n, token]])):
            missing = (p[n] - q[n]).clamp(min=0)
            return [*tokens[:n], choose(missing / missing.sum() if missing.sum() > 0 else p[n])]
    return [*tokens, choose(p[-1])]


@wrong("speculative_round", "the residual of the absolute difference")
def absolute_difference(target, draft, prefix_ids, length, probabilities, choose):
    tokens, q = drafted(draft, prefix_ids, length, probabilities, choose)
    p = probabilities(target([*prefix_ids, *tokens], length + 1))
    for n, token in enumerate(tokens):
        chance = (p[n, token] / q[n][token]).clamp(max=1)
        if not choose(torch.stack([1 - chance, chance])):
            missing = (p[n] - q[n]).abs()
            return [*tokens[:n], choose(missing / missing.sum())]
    return [*tokens, choose(p[-1])]


@wrong("speculative_round", "no bonus token")
def no_bonus(*given):
    *_, length, _, _ = given
    tokens = speculative_round(*given)
    return tokens[:length] if length else tokens


@wrong("speculative_round", "the target's temperature for the target alone")
def unfiltered_target(target, draft, prefix_ids, length, probabilities, choose):
    calls = []

    def only_the_draft(logits):
        calls.append(logits)
        return probabilities(logits) if len(calls) <= length else logits.softmax(-1)

    return speculative_round(target, draft, prefix_ids, length, only_the_draft, choose)


@right("cached_logits", "no cache at all")
class WithoutCache:
    def __init__(self, model):
        self.model = model

    @torch.no_grad()
    def __call__(self, ids, count):
        return self.model(torch.tensor([ids]))[0, -count:]


@right("cached_logits", "a new cache for each text")
class NewCache:
    def __init__(self, model):
        self.model = model

    @torch.no_grad()
    def __call__(self, ids, count):
        cache, ids = self.model.new_cache(), torch.tensor([ids])
        found = [self.model(part, cache=cache)[0] for part in ids.split(2, dim=1)]
        return torch.cat(found)[-count:]


@right("cached_logits", "one token at a time")
class OneByOne:
    def __init__(self, model):
        self.inner = CachedLogits(model)

    def __call__(self, ids, count):
        ends = range(len(ids) - count + 1, len(ids) + 1)
        return torch.cat([self.inner(ids[:end], 1) for end in ends])


@wrong("cached_logits", "the first rows in place of the last")
class FirstRows(WithoutCache):
    @torch.no_grad()
    def __call__(self, ids, count):
        return self.model(torch.tensor([ids]))[0, :count]


@wrong("cached_logits", "the last token is not read again")
class FromAShorterPrefix(CachedLogits):
    def __call__(self, ids, count):
        return super().__call__([*ids[:-1], ids[0]], count)
