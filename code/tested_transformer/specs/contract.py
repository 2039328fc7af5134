"""What every Transformer must do, whoever wrote it: the contract, property by property.

`contract(model)` asks each property of a model and returns a Report. A property has a sentence, and for a
model that breaks it the smallest case and a cure. One that does not apply says why. Batches hold two texts
of different lengths, no two sizes are the same, and seeds are fixed: position 0, a batch of one and a
parameter that starts at zero are where real bugs hide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .adapters import Model, NotApplicable, adapted
from .compare import brief
from .rounding import rounding
from .run import probe
from .surroundings import kept

__all__ = ["PROPERTIES", "Property", "Report", "Result", "contract"]

LENGTH = 9  # tokens of the longer text, where the model takes so many
BIG = 1000.0  # what logits are driven to
FAR = 8180  # a position whose angle a half-precision number cannot hold


@dataclass(frozen=True)
class Property:
    """One thing that must hold: a name, a sentence, a cure, and a test that says what did not hold."""

    name: str
    sentence: str
    cure: str
    test: Callable[[Subject], str | None]


@dataclass(frozen=True)
class Result:
    """What came of one property: "holds", "broken", "does not apply", "raised" or "stopped"."""

    name: str
    outcome: str
    what: str = ""  # the smallest case that breaks it, why it does not apply, the exception


@dataclass(frozen=True)
class Report:
    """What the contract found of a model; as a condition, whether nothing is broken."""

    results: tuple[Result, ...]

    def __bool__(self) -> bool:
        return not self.broken

    @property
    def broken(self) -> list[Result]:
        """What did not hold, raised, or could not be finished."""
        return [each for each in self.results if each.outcome not in ("holds", "does not apply")]

    def __repr__(self) -> str:
        sign = {"holds": "✓", "does not apply": "·"}
        lines = []
        for each in self.results:
            lines.append(f"{sign.get(each.outcome, '✗')} {each.name}: {each.outcome}")
            if each.what:
                lines.append(f"    {each.what}")
            if each.outcome == "broken":
                lines.append(f"    {NAMED[each.name].sentence} {NAMED[each.name].cure}")
        held = sum(each.outcome == "holds" for each in self.results)
        asked = held + len(self.broken)
        rest = len(self.results) - asked
        lines.append(
            f"{held} of {asked} properties hold" + (f", {rest} do not apply." if rest else ".")
        )
        return "\n".join(lines)


@dataclass
class Subject:
    """A model on trial, in evaluation and in float32, with two texts to read."""

    model: Model
    seed: int = 0
    known: dict[str, float] = field(default_factory=dict)  # what its other properties have found
    ids: Tensor = field(init=False)

    def __post_init__(self) -> None:
        if self.model.networks:
            self.model = self.model.copied(lambda module: module.float().eval())
        self.length = min(LENGTH, self.model.max_length)
        if self.model.window is not None:  # longer than the window, whatever it is
            self.length = min(max(LENGTH, self.model.window + 3), self.model.max_length)
        self.ids = self.text(2, self.length)

    def text(self, batch: int, length: int, seed: int = 0) -> Tensor:
        """Ids, none of them the filler."""
        generator = torch.Generator().manual_seed(1000 * self.seed + seed)
        ids = torch.randint(0, self.model.vocab_size - 1, (batch, length), generator=generator)
        return ids + (ids >= self.model.filler)

    @torch.no_grad()
    def logits(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """The model's logits, without the mask where all tokens are real."""
        return self.model.logits(ids) if mask is None else self.model.logits(ids, mask)

    @property
    def tolerance(self) -> float:
        """What rounding can do to the logits of the two texts, twice: see rounding.py."""
        if "tolerance" not in self.known:
            exact = self.logits(self.ids)
            unit = torch.finfo(exact.dtype).eps
            shaken = rounding_of(self.model, self.ids, exact.dtype)
            self.known["tolerance"] = 2 * (shaken + 4 * unit * float(exact.abs().max()))
        return self.known["tolerance"]

    def differ(self, one: Tensor, other: Tensor, where: Tensor | None = None) -> str | None:
        """Where two answers that should be the same are not, by text and token; all count, or some."""
        if one.shape != other.shape:
            return f"the shapes are {tuple(one.shape)} and {tuple(other.shape)}"
        far = (one - other).abs().flatten(2).amax(-1) if one.ndim > 2 else (one - other).abs()
        wrong = ~(far <= self.tolerance)
        wrong = (wrong if where is None else wrong & where).nonzero()
        if not len(wrong):
            return None
        text, token = wrong[0].tolist()
        off = float(far[text, token])
        if off != off:
            return f"text {text}, token {token}: NaN, as from a query whose keys are all masked"
        return f"text {text}, token {token}: off by {brief(off)}"


@torch.no_grad()
def rounding_of(model: Model, ids: Tensor, dtype: torch.dtype, **options: Any) -> float:
    """What rounding to a dtype can do to the logits, computed in float64 where the model can."""

    def formula(model: Model = model) -> dict[str, np.ndarray]:
        return {"": model.logits(ids, **options).double().numpy()}

    if model.networks:
        wide = model.in_float64()
        try:
            return rounding(lambda: formula(wide), dtype, counts=True)[""]
        except Exception:  # it casts to a dtype of its own: then in that
            model = model.copied(lambda module: module.float())
    return rounding(lambda: formula(model), dtype, counts=True)[""]


def contract(
    model: Any, *, only: Sequence[str] = (), vocab_size: int | None = None, seed: int = 0
) -> Report:
    """Ask every property of a model, or only the named ones.

    Raises: TypeError or ValueError that name the argument.
    """
    adapter = adapted(model, vocab_size=vocab_size)
    return Report(tuple(results_of(adapter, only, seed)))


def results_of(model: Model, only: Sequence[str] = (), seed: int = 0) -> Iterator[Result]:
    """One result after the other."""
    known: dict[str, float] = {}
    for each in PROPERTIES:
        if not only or each.name in only:
            yield _result_of(each, model, seed, known)


def _result_of(each: Property, model: Model, seed: int, known: dict[str, float]) -> Result:
    """What came of one property; nothing that the model does is raised."""
    try:
        with kept():
            found = each.test(Subject(model, seed, known))
    except NotApplicable as reason:
        return Result(each.name, "does not apply", f"{reason}.")
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        return Result(each.name, "raised", f"{type(error).__name__}: {text}")
    return Result(each.name, "holds") if found is None else Result(each.name, "broken", f"{found}.")


# --- Reading a text in pieces ---------------------------------------------------------------------


def cached_equals_uncached(subject: Subject) -> str | None:
    """The whole text at once, and in chunks of 1, 2, the window and one more, twice over."""
    model, ids = subject.model, subject.ids
    whole = subject.logits(ids)
    window = model.window or 3
    for chunk in (1, 2, window, window + 1):
        for time in ("", ", in a second text"):  # something of the first may be left
            found = subject.differ(whole, _in_chunks(model, ids, chunk))
            if found:
                return f"in chunks of {chunk}{time}: {found}"
    return None


@torch.no_grad()
def _in_chunks(model: Model, ids: Tensor, chunk: int) -> Tensor:
    cache, answers = model.new_cache(), []
    for part in ids.split(chunk, dim=1):
        answer, cache = model.step(part, cache)
        answers.append(answer)
    return torch.cat(answers, dim=1)


@torch.no_grad()
def reordered_cache(subject: Subject) -> str | None:
    """Read a beginning, let the texts change places, and read on."""
    model, ids = subject.model, subject.ids
    half, rows = subject.length // 2, torch.tensor([1, 0])
    _, cache = model.step(ids[:, :half], model.new_cache())
    cache = model.reorder(cache, rows)
    answer, _ = model.step(ids[rows][:, half:], cache)
    return subject.differ(subject.logits(ids[rows])[:, half:], answer)


@torch.no_grad()
def cache_with_padding(subject: Subject) -> str | None:
    """A text padded on the left: in one pass, token by token, and token by token after its first half."""
    model = subject.model
    ids, mask = _padded(subject, "left", subject.length - 3)
    whole = subject.logits(ids, mask)
    for first in (1, subject.length // 2 + 2):
        cache, answers, start = model.new_cache(), [], 0
        for end in range(first, ids.shape[1] + 1):
            answer, cache = model.step(ids[:, start:end], cache, mask[:, :end])
            answers.append(answer)
            start = end
        found = subject.differ(whole, torch.cat(answers, dim=1), mask)
        if found:
            return f"{first} at first, then one by one: {found}"
    return None


# --- What must not matter -------------------------------------------------------------------------


def _padded(subject: Subject, side: str, length: int) -> tuple[Tensor, Tensor]:
    """The two texts, the second cut to a length and padded on a side, and the mask."""
    if not subject.model.takes_mask:
        raise NotApplicable("the model takes no mask")
    mask = torch.ones_like(subject.ids, dtype=torch.bool)
    ids, missing = subject.ids.clone(), subject.length - length
    if side == "left":
        mask[1, :missing] = False
        ids[1, missing:] = subject.ids[1, :length]
    else:
        mask[1, length:] = False
    return ids.masked_fill(~mask, subject.model.filler), mask


def batch_equals_single(subject: Subject) -> str | None:
    """A short text alone, and beside a longer one, padded left and right."""
    for length in (1, subject.length // 2, subject.length - 1):
        alone = subject.logits(subject.ids[1:, :length])
        for side in ("right", "left"):
            ids, mask = _padded(subject, side, length)
            answer = subject.logits(ids, mask)[1:]
            answer = answer[:, -length:] if side == "left" else answer[:, :length]
            found = subject.differ(alone, answer)
            if found:
                return f"a text of {length} beside one of {subject.length}, padded {side}: {found}"
    return None


@torch.no_grad()
def packed_equals_separate(subject: Subject) -> str | None:
    """Three texts of different lengths alone, and one after the other in one row."""
    third = max(1, subject.length // 4)
    texts = list(subject.ids[1:].split([third, 2 * third, subject.length - 3 * third], dim=1))
    alone = torch.cat([subject.logits(text) for text in texts], dim=1)
    return subject.differ(alone, subject.model.packed(texts))


@torch.no_grad()
def source_padding_does_not_matter(subject: Subject) -> str | None:
    """A source alone, and padded on the right."""
    source = subject.text(1, 7, seed=2)
    for length in (1, 4):
        mask = torch.arange(7)[None] < length
        alone = subject.model.from_source(subject.ids[:1], source[:, :length], mask[:, :length])
        padded = subject.model.from_source(subject.ids[:1], source, mask)
        found = subject.differ(alone, padded)
        if found:
            return f"a source of {length}, padded to 7: {found}"
    return None


def masked_tokens_do_not_matter(subject: Subject) -> str | None:
    """Change the ids under a mask; the real tokens must not notice."""
    if subject.model.pad_id is not None:
        raise NotApplicable("a masked token is the padding id, and no other")
    others = subject.text(2, subject.length, seed=1)
    for side in ("right", "left"):
        ids, mask = _padded(subject, side, subject.length // 2)
        before = subject.logits(ids, mask)
        after = subject.logits(torch.where(mask, ids, others), mask)
        found = subject.differ(before, after, mask)
        if found:
            return f"padding on the {side} changed: {found}"
    return None


def no_future_leak(subject: Subject) -> str | None:
    """Change what comes after a token, at every token: by outputs, then by gradients."""
    if not subject.model.causal:
        raise NotApplicable("every token may depend on every other")
    before, others = subject.logits(subject.ids), subject.text(2, subject.length, seed=1)
    for end in range(1, subject.length):
        ids = torch.cat([subject.ids[:, :end], others[:, end:]], dim=1)
        found = subject.differ(before[:, :end], subject.logits(ids)[:, :end])
        if found:
            return f"tokens from {end} on changed: {found}"
    return _leak_in_gradients(subject)


def _leak_in_gradients(subject: Subject) -> str | None:
    """The gradient of a token's logits by the embeddings of later ones."""
    vectors: list[Tensor] = []

    def watch(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        vectors.append(output.detach().requires_grad_())
        return vectors[-1]

    table = next((m for n in subject.model.networks for m in n.modules()
                  if isinstance(m, nn.Embedding) and m.num_embeddings == subject.model.vocab_size), None)  # fmt: skip
    if table is None:
        return None
    handle = table.register_forward_hook(watch)
    try:
        logits = subject.model.logits(subject.ids)
    finally:
        handle.remove()
    if len(vectors) != 1 or vectors[0].shape[1] != subject.length:
        return None
    for token in range(subject.length - 1):
        (gradient,) = torch.autograd.grad(logits[:, token].sum(), vectors, retain_graph=True)
        later = gradient[:, token + 1 :].abs().flatten(2).amax(-1)
        if later.any():
            text, ahead = later.nonzero()[0].tolist()
            return f"text {text}: the gradient of token {token} reaches token {token + 1 + ahead}"
    return None


# --- What must matter -----------------------------------------------------------------------------


def every_parameter_learns(subject: Subject) -> str | None:
    """Backpropagate from the logits of a model whose parameters are all a little off."""

    def shake(module: nn.Module) -> None:
        generator = torch.Generator().manual_seed(subject.seed)
        with torch.no_grad():
            for parameter in module.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter += 0.05 * noise.to(parameter.dtype)

    model = subject.model.copied(shake)
    logits = model.logits(subject.ids)
    (logits * probe(logits)).sum().backward()
    dead = [
        name
        for name, parameter in model.network.named_parameters()
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any())
    ]
    unexpected = [name for name in dead if not any(part in name for part in model.without_gradient)]
    if unexpected:
        return f"no gradient: {', '.join(unexpected[:6])}"
    named = model.network.named_parameters()
    wild = [n for n, p in named if p.grad is not None and not torch.isfinite(p.grad).all()]
    return f"gradients of NaN or infinity: {', '.join(wild[:6])}" if wild else None


def order_matters(subject: Subject) -> str | None:
    """Exchange two earlier tokens: the last one must notice."""
    ids = subject.ids[:1].clone()
    ids[0, :2] = (subject.model.filler + torch.tensor([1, 2])) % subject.model.vocab_size
    turned = ids.clone()
    turned[0, :2] = ids[0, :2].flip(0)
    near = slice(0, min(4, subject.length))
    before, after = subject.logits(ids[:, near]), subject.logits(turned[:, near])
    return _unmoved(
        subject, before[:, -1], after[:, -1], "tokens 0 and 1 exchanged: the last token"
    )


@torch.no_grad()
def mask_matters(subject: Subject) -> str | None:
    """Mask a real token: a later one must notice."""
    ids, mask = _padded(subject, "left", subject.length)
    mask[:, 0] = False
    if subject.model.pad_id is not None:
        ids = ids.masked_fill(~mask, subject.model.pad_id)
    options = {}
    if subject.model.takes_positions:  # the same ones: what counts is the mask
        options["position_ids"] = torch.arange(subject.length).expand(2, -1)
    before = subject.model.logits(subject.ids, **options)
    after = subject.model.logits(ids, mask, **options)
    return _unmoved(subject, before[:, 1], after[:, 1], "token 0 masked: token 1")


@torch.no_grad()
def positions_matter(subject: Subject) -> str | None:
    """Count positions backward: the last token must notice."""
    if not subject.model.takes_positions:
        raise NotApplicable("the model takes no positions")
    forward = torch.arange(subject.length).expand(2, -1)
    before, after = (
        subject.model.logits(subject.ids, position_ids=ids)[:, -1]
        for ids in (forward, forward.flip(1))
    )
    return _unmoved(subject, before, after, "positions counted backward: the last token")


def _unmoved(subject: Subject, before: Tensor, after: Tensor, what: str) -> str | None:
    """What to say of logits that should differ by more than rounding. NaN proves nothing: others tell of it."""
    far = float((before - after).abs().max())
    return f"{what}'s logits change by {brief(far)}" if far <= subject.tolerance else None


# --- Numbers --------------------------------------------------------------------------------------


@torch.no_grad()
def large_values_stay_finite(subject: Subject) -> str | None:
    """Scale all matrices until the logits pass 1000, and set sinks to 20 and routing biases to 12."""
    for factor in (1, 4, 16, 64):

        def scale(module: nn.Module, factor: int = factor) -> None:
            named = [*module.named_parameters(), *module.named_buffers()]
            seen = set()
            for name, tensor in named:
                if not tensor.is_floating_point() or tensor.data_ptr() in seen:
                    continue
                seen.add(tensor.data_ptr())
                if "sink" in name:
                    tensor.fill_(20.0)
                elif "correction_bias" in name:
                    tensor.copy_(torch.linspace(0.0, 12.0, tensor.numel()).view_as(tensor))
                elif tensor.ndim > 1 and isinstance(tensor, nn.Parameter) and "_log" not in name:
                    tensor *= factor  # a logarithm, such as a state space's decay, is no matrix

        logits = subject.model.copied(scale).logits(subject.ids)
        if not torch.isfinite(logits).all():
            return f"matrices times {factor}: logits of NaN or infinity"
        if float(logits.abs().max()) > BIG:
            break
    return None


def evaluation_is_deterministic(subject: Subject) -> str | None:
    """The same call twice, under two random seeds."""
    torch.manual_seed(1)
    first = subject.logits(subject.ids)
    torch.manual_seed(2)
    second = subject.logits(subject.ids)
    return None if torch.equal(first, second) else "two calls in eval() give different logits"


def training_differs_by_dropout_alone(subject: Subject) -> str | None:
    """train() without any dropout gives what eval() gives."""
    model = subject.model.copied(_train_without_dropout)
    with torch.no_grad(), _NoDropout():
        return subject.differ(subject.logits(subject.ids), model.logits(subject.ids))


class _NoDropout(TorchFunctionMode):
    """What drops by a function, not by a module, drops nothing."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function is functional.scaled_dot_product_attention:
            if len(args) > 4:  # query, key, value, mask, dropout
                return function(*args[:4], 0.0, *args[5:], **kwargs)
            return function(*args, **kwargs | {"dropout_p": 0.0})
        if "dropout" in getattr(function, "__name__", ""):
            return args[0] if args else kwargs["input"]
        return function(*args, **kwargs)


def _train_without_dropout(module: nn.Module) -> None:
    module.train()
    for part in module.modules():
        for name, value in list(vars(part).items()):
            if "dropout" in name and isinstance(value, float):
                setattr(part, name, 0.0)
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0


def checkpointing_changes_no_gradient(subject: Subject) -> str | None:
    """The gradients of training, with what the backward pass needs saved and recomputed."""
    model = subject.model.checkpointed().copied(_train_without_dropout)
    plain = subject.model.copied(_train_without_dropout)
    before, after = _gradients(plain, subject.ids), _gradients(model, subject.ids)
    for name, gradient in before.items():
        if name not in after:
            return f"no gradient of {name}"
        largest = float(gradient.abs().max())
        rounded = 16 * torch.finfo(gradient.dtype).eps * largest  # the same terms in another order
        far = (after[name] - gradient).abs()
        if bool(((far > rounded) | (far.isnan() & ~gradient.isnan())).any()):
            return f"the gradient of {name}: off by {brief(float(far.max()))}"
    return None


def _gradients(model: Model, ids: Tensor) -> dict[str, Tensor]:
    torch.manual_seed(0)  # for dropout by a function; checkpointing draws what was drawn
    logits = model.logits(ids)
    (logits * probe(logits)).sum().backward()
    named = model.network.named_parameters()
    return {name: parameter.grad for name, parameter in named if parameter.grad is not None}


@torch.no_grad()
def low_precision_agrees(subject: Subject) -> str | None:
    """bfloat16 against float32 with the same rounded weights, at the beginning and far from it."""
    low = subject.model.copied(lambda module: module.bfloat16())
    exact = subject.model.copied(lambda module: module.bfloat16().float())
    allowed = rounding_of(exact, subject.ids, torch.bfloat16)
    allowed += 4 * torch.finfo(torch.bfloat16).eps * float(exact.logits(subject.ids).abs().max())
    for start in (0, FAR) if _reaches(exact, FAR + subject.length) else (0,):
        options = {}
        if start:
            places = torch.arange(start, start + subject.length)
            options["position_ids"] = places.expand(2, -1)
        answers = [model.logits(subject.ids, **options).float() for model in (low, exact)]
        far = float((answers[0] - answers[1]).abs().max())
        if not far <= allowed:
            return f"off by {brief(far)} from position {start} on, where rounding explains {brief(allowed)}"
    return None


def _reaches(model: Model, length: int) -> bool:
    """Whether positions so large can be given."""
    try:
        model.logits(torch.ones(1, 1, dtype=torch.long), position_ids=torch.tensor([[length - 1]]))
    except Exception:  # a table of positions that ends before, or no argument of that name
        return False
    return model.takes_positions and model.causal


# --- Around the model -----------------------------------------------------------------------------


def saved_and_loaded_is_the_same(subject: Subject) -> str | None:
    """Into a model with other numbers, whose shared parameters stay shared."""
    other = subject.model.saved_and_loaded()
    found = subject.differ(subject.logits(subject.ids), other.logits(subject.ids).detach())
    if found:
        return found
    ties = [_shared(model.network) for model in (subject.model, other)]
    return None if ties[0] == ties[1] else f"shared parameters {ties[0]} became {ties[1]}"


def _shared(module: nn.Module) -> list[list[str]]:
    """The names that mean one parameter."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return sorted(each for each in names.values() if len(each) > 1)


def every_variant_agrees(subject: Subject) -> str | None:
    """The same model by other kernels."""
    variants = list(subject.model.variants())
    if not variants:
        raise NotApplicable("there is one way to compute it")
    before = subject.logits(subject.ids)
    for name, other in variants:
        with torch.no_grad():
            found = subject.differ(before, other.logits(subject.ids))
        if found:
            return f"{name}: {found}"
    return None


def greedy_generation_is_argmax(subject: Subject) -> str | None:
    """What it generates is the argmax of its own logits, token after token, until the end token."""
    model, start = subject.model, subject.ids[:, : subject.length // 2]
    new = min(4, model.max_length - start.shape[1])
    mask = torch.ones_like(start, dtype=torch.bool)
    prefix, ends = start, []
    for _ in range(new):
        ends.append(subject.logits(prefix)[:, -1].argmax(-1))
        prefix = torch.cat([prefix, ends[-1][:, None]], dim=1)
    wanted = torch.stack(ends, dim=1)
    if not torch.equal(model.generate(start, mask, new, None), wanted):
        got = model.generate(start, mask, new, None)
        return f"expected {wanted.tolist()}, the argmax of the logits, got {got.tolist()}"
    row = wanted[0].tolist()
    eos = next((token for token in row[1:] + row[:1] if token != model.filler), None)
    if eos is None:  # padding, which follows the end, could not be told from the end
        return None
    stopped = model.generate(start, mask, new, eos)[0].tolist()
    first = row.index(eos)
    if stopped[: first + 1] != row[: first + 1] or eos in stopped[first + 1 :]:
        return f"expected an end after {eos}, got {stopped}"
    return None


def inputs_stay(subject: Subject) -> str | None:
    """Ids and mask are as they were after a call."""
    ids = subject.ids.clone()
    mask = torch.ones_like(ids, dtype=torch.bool) if subject.model.takes_mask else None
    subject.logits(ids, None if mask is None else mask)
    if not torch.equal(ids, subject.ids):
        return "the ids were changed"
    return None if mask is None or bool(mask.all()) else "the mask was changed"


PROPERTIES = (
    Property("cached = uncached",
             "Tokens fed in chunks with a cache must get the logits of one pass.",
             "Look at the position of a cached token, the causal offset, and what the window keeps.",
             cached_equals_uncached),
    Property("the cache follows its rows",
             "When the texts of a batch change places, what is cached of them must move along.",
             "Reorder keys, values, lengths and masks together.", reordered_cache),
    Property("cached = uncached, with padding",
             "A padded text gives the same logits token by token as in one pass.",
             "Count real tokens for positions; extend the mask by each step.", cache_with_padding),
    Property("batch = single",
             "A text gets the same logits alone and padded beside a longer one.",
             "Mask padding in every layer, and count positions from the first real token.",
             batch_equals_single),
    Property("packed = separate", "Texts packed into one row get the logits that each gets alone.",
             "Begin positions anew with each text; mask texts from each other in every kind of layer.",
             packed_equals_separate),
    Property("padding of the source does not matter",
             "A padded source gives the logits of the source alone.",
             "Pass the encoder's mask to the encoder and to cross-attention, of every layer.",
             source_padding_does_not_matter),
    Property("masked tokens do not matter",
             "What stands under the mask must not reach the others.",
             "Look for a mask that is inverted, dropped in a layer, or added with too small a number.",
             masked_tokens_do_not_matter),
    Property("no future leak",
             "A token's logits must not depend on later tokens, nor send them a gradient.",
             "Check the causal mask of every kind of layer, pooling and normalization over time too.",
             no_future_leak),
    Property("every parameter learns",
             "Each parameter gets a finite gradient, or the adapter says why it gets none.",
             "A part is not called, detached, or its output is multiplied by zero; NaN: a -inf or a division by 0.",
             every_parameter_learns),
    Property("order matters", "Exchanging two earlier tokens must change a later token's logits.",
             "No positions reach the model.", order_matters),
    Property("the mask has an effect", "Masking a real token must change a later token's logits.",
             "The mask is accepted and not used.", mask_matters),
    Property("position IDs have an effect", "Other position IDs must change the logits.",
             "The argument is accepted and not used.", positions_matter),
    Property("large values stay finite",
             "With logits of 1000, sinks of 20 and routing biases of 12 all numbers are finite.",
             "Subtract the maximum before an exponential; divide by a sum only with its bound.",
             large_values_stay_finite),
    Property("evaluation is deterministic", "In eval() the same call gives the same logits.",
             "Something draws random numbers outside of training.", evaluation_is_deterministic),
    Property("training differs by dropout alone", "In train() with every dropout at 0 nothing changes.",
             "A layer behaves otherwise in training: batch statistics, noise, a skipped branch, scaling.",
             training_differs_by_dropout_alone),
    Property("checkpointing changes no gradient",
             "Gradient checkpointing recomputes activations; gradients are the same.",
             "What a layer changes beside its output is done twice; an argument is not passed on.",
             checkpointing_changes_no_gradient),
    Property("low precision agrees",
             "In bfloat16 the logits differ from float32's by rounding alone.",
             "Compute angles, norms and softmax in float32.", low_precision_agrees),
    Property("saved and loaded", "A state dict read into another model gives the same logits.",
             "Register buffers and parameters, keep ties.", saved_and_loaded_is_the_same),
    Property("all ways to compute agree", "Other kernels give the same logits.",
             "Compare scale, mask and dropout of the ways.", every_variant_agrees),
    Property("greedy generation is argmax",
             "Generation gives the argmax of the model's own logits, and ends after the end token.",
             "Look at the cache, the positions and the stop condition.", greedy_generation_is_argmax),
    Property("inputs stay", "A call changes neither ids nor mask.",
             "Operations whose name ends in _ work in place.", inputs_stay),
)  # fmt: skip
NAMED = {each.name: each for each in PROPERTIES}
