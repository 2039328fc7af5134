"""A policy that browses the book's glossary: demonstrations, behavior cloning, comparisons, best of n (chapter 22)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ..generation.browser import Browser, Page, Quote, words_of
from ..training.preferences import bradley_terry_loss

MAX_ACTIONS = 14
Action = tuple[str, int | str | None]  # what to do, and with what


def glossary_pages() -> list[Page]:
    """The glossary as of November 2026, a page per initial letter, a line "term: definition" per entry."""
    stored = files("tested_transformer") / "data/trained/glossary/pages.json"
    pages = json.loads(stored.read_text("utf-8"))["pages"]
    return [Page(letter, tuple(lines)) for letter, lines in pages.items()]


def questions(pages: Sequence[Page]) -> tuple[list[str], list[str]]:
    """All terms, for training and for tests: every fourth one is kept for tests."""
    terms = [line.split(":")[0] for page in pages for line in page.lines]
    return [t for i, t in enumerate(terms) if i % 4], terms[::4]


def defines(line: str, term: str) -> bool:
    """Whether a line of the glossary is the definition of a term."""
    return line.startswith(f"{term}: ")


# --- What can be done, and what the policy knows of it -------------------------------------------------


@dataclass
class Episode:
    """One question being answered: the browser, and which results were opened."""

    term: str
    browser: Browser
    opened: int = 0

    def do(self, action: Action) -> None:
        """Act, and remember how many results were opened."""
        name, argument = action
        if name == "search":
            self.opened = 0
        self.opened += name == "open"
        getattr(self.browser, name)(*(() if argument is None else (argument,)))


def mentions(text: str, term: str) -> float:
    """Share of the term's words that stand in a text."""
    there, asked = set(words_of(text)), words_of(term)
    return sum(word in there for word in asked) / len(asked)


def possible_actions(episode: Episode) -> list[Action]:
    """Search for the term, open the next result, scroll, quote a visible line, answer."""
    browser = episode.browser
    actions: list[Action] = [("search", episode.term), ("answer", None)]
    if episode.opened < len(browser.results):
        actions.append(("open", episode.opened))
    if browser.page is not None:
        actions.append(("scroll", 1))
        actions += [("quote", line) for line in browser.visible]
    return actions


KINDS = ("search", "answer", "open", "scroll", "quote")


def action_features(episode: Episode, action: Action) -> Float[Tensor, " F"]:
    """The kind of the action, together with each of five facts; and how well a line to quote fits.

    The policy does not know where in the line the term stands, so it cannot tell a definition from a mention.
    """
    browser, (name, argument) = episode.browser, action
    here = max((mentions(line, episode.term) for line in browser.visible), default=0.0)
    facts = torch.tensor(
        [
            1.0, bool(browser.results), browser.page is not None, browser.at_end, here == 1.0,
            bool(browser.quotes),
        ]
    )  # fmt: skip
    kind = torch.tensor([float(name == each) for each in KINDS])
    fits = mentions(argument, episode.term) if name == "quote" else 0.0
    return torch.cat(((kind[:, None] * facts).flatten(), torch.tensor([fits, float(fits == 1.0)])))


# --- Demonstrations, and a policy that imitates them ----------------------------------------------------


def rule(episode: Episode) -> Action:
    """The demonstrator: read results from the top until the definition is found, quote it, answer."""
    browser = episode.browser
    if browser.quotes:
        return ("answer", None)
    if not browser.results:
        return ("search", episode.term)
    line = next((each for each in browser.visible if defines(each, episode.term)), None)
    if line is not None:
        return ("quote", line)
    if browser.page is not None and not browser.at_end:
        return ("scroll", 1)
    return ("open", episode.opened) if episode.opened < len(browser.results) else ("answer", None)


def run_episode(
    term: str, pages: Sequence[Page], choose: Callable[[Episode], Action]
) -> tuple[Episode, list[tuple[Tensor, int]]]:
    """Act until the browser is finished; with the features of all candidates and which one was taken."""
    episode, steps = Episode(term, Browser(pages, max_actions=MAX_ACTIONS)), []
    while not episode.browser.finished:
        actions = possible_actions(episode)
        action = choose(episode)
        features = torch.stack([action_features(episode, each) for each in actions])
        steps.append((features, actions.index(action)))
        episode.do(action)
    return episode, steps


def clone(steps: Sequence[tuple[Tensor, int]], *, updates: int = 200) -> nn.Linear:
    """Behavior cloning: the cross-entropy of the demonstrated action among the possible ones."""
    most = max(len(features) for features, _ in steps)
    padded = torch.stack([functional.pad(f, (0, 0, 0, most - len(f))) for f, _ in steps])  # N A F
    real = torch.stack([torch.arange(most) < len(f) for f, _ in steps])
    taken = torch.tensor([index for _, index in steps])
    policy = nn.Linear(padded.shape[-1], 1, bias=False)
    nn.init.zeros_(policy.weight)
    optimizer = torch.optim.Adam(policy.parameters(), 0.1)
    for _ in range(updates):
        logits = policy(padded)[..., 0].masked_fill(~real, -torch.inf)
        loss = functional.cross_entropy(logits, taken)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy


def sampled(policy: nn.Linear, rng: torch.Generator) -> Callable[[Episode], Action]:
    """The policy as a chooser of actions, at a temperature of 1."""

    @torch.no_grad()
    def choose(episode: Episode) -> Action:
        actions = possible_actions(episode)
        features = torch.stack([action_features(episode, each) for each in actions])
        chances = policy(features)[:, 0].softmax(0)
        return actions[int(torch.multinomial(chances, 1, generator=rng))]

    return choose


# --- Answers, comparisons, a score ----------------------------------------------------------------------


def is_right(term: str, quotes: Sequence[Quote]) -> bool:
    """Whether the definition was quoted."""
    return any(defines(quote.text, term) for quote in quotes)


def quotes_stand(quotes: Sequence[Quote], pages: Sequence[Page]) -> bool:
    """Whether each quote stands on the page that it names, letter by letter."""
    texts = {page.title: "\n".join(page.lines) for page in pages}
    return all(quote.text and quote.text in texts.get(quote.title, "") for quote in quotes)


def answer_features(term: str, quotes: Sequence[Quote]) -> Float[Tensor, " 4"]:
    """What the score knows: is there a quote, does one begin with the term, how many, how many words."""
    begins = any(quote.text.lower().startswith(term.lower()) for quote in quotes)
    count = sum(len(words_of(quote.text)) for quote in quotes)
    return torch.tensor([float(bool(quotes)), float(begins), len(quotes) / 4, count / 40])


def compare_by_facts(term: str, quotes: Sequence[Quote]) -> float:
    """A judge who wants the definition, and little beside it."""
    return 3.0 * is_right(term, quotes) - 0.3 * len(quotes)


def compare_by_length(term: str, quotes: Sequence[Quote]) -> float:
    """A judge who likes long answers, right or not."""
    return 0.15 * sum(len(words_of(quote.text)) for quote in quotes)


def train_score(
    first: Float[Tensor, "B F"],
    second: Float[Tensor, "B F"],
    preference: Float[Tensor, " B"],
    *,
    decay: float = 1e-3,
) -> Float[Tensor, " F"]:
    """The weights of a linear score by L-BFGS on the Bradley-Terry loss, a little weight decay added."""
    weights = torch.zeros(first.shape[1], dtype=torch.float64, requires_grad=True)
    first, second, preference = (each.double() for each in (first, second, preference))
    optimizer = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = bradley_terry_loss(first @ weights, second @ weights, preference)
        loss = loss + decay / 2 * weights.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return weights.detach()


# --- The whole, from demonstrations to the best of n --------------------------------------------------------

DEMONSTRATIONS, TRAIN_SAMPLES, TEST_SAMPLES = 60, 4, 16  # terms; answers for each term
JUDGES = {"facts": compare_by_facts, "length": compare_by_length}
Answers = list[list[list[Quote]]]  # by term, by sample


def demonstrations(pages: Sequence[Page], terms: Sequence[str]) -> list[tuple[Tensor, int]]:
    """The steps of the rule on these terms."""
    return [step for term in terms for step in run_episode(term, pages, rule)[1]]


def sample_answers(
    policy: nn.Linear, pages: Sequence[Page], terms: Sequence[str], count: int, rng: torch.Generator
) -> Answers:
    """Several answers of the policy to each question."""
    choose = sampled(policy, rng)
    return [
        [run_episode(term, pages, choose)[0].browser.quotes for _ in range(count)] for term in terms
    ]


def compared(
    terms: Sequence[str], answers: Answers, judge: Callable, rng: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Each two answers, and a preference: the better one wins with the probability that Bradley and Terry say."""
    first, second, preferences = [], [], []
    for term, own in zip(terms, answers, strict=True):
        for one, other in zip(own[::2], own[1::2], strict=True):
            margin = judge(term, one) - judge(term, other)
            chance = torch.tensor(margin).sigmoid()
            won = float(torch.rand((), generator=rng) < chance)
            preferences.append(won if margin else 0.5)
            first.append(answer_features(term, one))
            second.append(answer_features(term, other))
    return torch.stack(first), torch.stack(second), torch.tensor(preferences)


def scores_and_rights(
    terms: Sequence[str], answers: Answers, weights: Float[Tensor, " F"]
) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"]]:
    """The score of each answer, and 1 where it is right."""
    pairs = list(zip(terms, answers, strict=True))
    scores = [[float(answer_features(t, a).double() @ weights) for a in own] for t, own in pairs]
    rights = [[float(is_right(t, a)) for a in own] for t, own in pairs]
    return torch.tensor(scores).double(), torch.tensor(rights).double()
