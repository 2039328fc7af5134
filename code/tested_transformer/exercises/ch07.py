"""The exercises of chapter 7."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from .. import reference
from ..specs.block.spec import BLOCK, ends_normalized
from ..specs.compare import Problem, compare
from ..specs.mistakes import Mutant, mistake, mistakes
from ..specs.norms.spec import LAYER_NORM
from ..specs.spec import SHAPE, Case, Check, Run, Spec

# --- The backward pass of LayerNorm ---------------------------------------------------------------


def _gradient_reference(x, gradient):
    """Entry (i, j) of a token's Jacobian: (1 if i = j - 1/D - y_i y_j / D) / std, y the normalized."""
    found = np.zeros_like(x)
    for token in np.ndindex(x.shape[:-1]):
        numbers, width = x[token], x.shape[-1]
        mean = sum(numbers) / width
        std = np.sqrt(sum((n - mean) ** 2 for n in numbers) / width)
        y = (numbers - mean) / std
        for j in range(width):
            for i in range(width):
                entry = ((i == j) - 1 / x.dtype.type(width) - y[i] * y[j] / width) / std
                found[(*token, j)] += gradient[(*token, i)] * entry
    return found


@mistake(
    "the std held fixed",
    rejected_by="a stretch of x has no effect",
    cause="The standard deviation depends on x too: its term is missing.",
)
def std_held_fixed(x, gradient):
    """The mean is differentiated, the standard deviation is taken for a constant."""
    std = x.std(-1, correction=0, keepdim=True)
    return (gradient - gradient.mean(-1, keepdim=True)) / std


@mistake(
    "mean and std held fixed",
    rejected_by="a shift of x has no effect",
    cause="mean and std are taken for constants; both depend on x.",
)
def both_held_fixed(x, gradient):
    """A scale, and nothing else."""
    return gradient / x.std(-1, correction=0, keepdim=True)


@mistake(
    "the mean held fixed",
    rejected_by="a shift of x has no effect",
    cause="The mean depends on every number of x: its term is missing.",
)
def mean_held_fixed(x, gradient):
    """The standard deviation is differentiated, the mean is taken for a constant."""
    std = x.std(-1, correction=0, keepdim=True)
    y = (x - x.mean(-1, keepdim=True)) / std
    return (gradient - y * (gradient * y).mean(-1, keepdim=True)) / std


@mistake(
    "sums where means belong",
    rejected_by="a shift of x has no effect",
    cause="mean and variance divide by D: so do their derivatives.",
)
def sums_for_means(x, gradient):
    """1/D is missing in both terms."""
    std = x.std(-1, correction=0, keepdim=True)
    y = (x - x.mean(-1, keepdim=True)) / std
    shift, stretch = gradient.sum(-1, keepdim=True), y * (gradient * y).sum(-1, keepdim=True)
    return (gradient - shift - stretch) / std


def _gradient_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *shape, dtype=torch.float64) -> Case:
        return Case(label, {"x": rng.normal(size=shape), "gradient": rng.normal(size=shape)}, dtype)

    return [
        case("one token", 3),
        case("tokens", 2, 4),
        case("as many tokens as features", 5, 5),
        case("a batch", 2, 3, 6),
        case("float32", 3, 8, dtype=torch.float32),
    ]


def _along(direction: Callable[[np.ndarray], np.ndarray]):
    def test(run: Run, case: Case) -> Problem | None:
        along = direction(case.arrays()["x"])  # in the reference's dtype, where sums do not round
        steps = (run.value(case) * along).sum(-1, keepdims=True)
        far = run.expected(case)[1] * np.abs(along).sum(-1).max()
        return compare(np.zeros_like(steps), steps, far)

    return test


LAYER_NORM_GRADIENT = Spec(
    name="ch07.layer_norm_gradient",
    statement="layer_norm_gradient(x, gradient): the gradient of the loss by x, where gradient is that by "
    "y = (x - mean) / std, per token over the last axis, no eps. Both (*batch, D) -> (*batch, D)",
    required=("x", "gradient"),
    reference=_gradient_reference,
    cases=_gradient_cases,
    checks=(
        Check(
            "a shift of x has no effect",
            "Adding one number to all of x does not change y: the entries of the gradient sum to 0.",
            _along(np.ones_like),
        ),
        Check(
            "a stretch of x has no effect",
            "Multiplying x - mean does not change y: the gradient has no part along x - mean.",
            _along(lambda x: x - x.mean(-1, keepdims=True)),
        ),
    ),
    mutants=mistakes(std_held_fixed, both_held_fixed, mean_held_fixed, sums_for_means),
    differentiable=False,
    baseline=lambda x, gradient: torch.autograd.functional.vjp(
        lambda t: (t - t.mean(-1, keepdim=True)) / t.std(-1, correction=0, keepdim=True),
        x, gradient,
    )[1],
    chapter=7,
    points=3,
)  # fmt: skip

# --- A pre-norm stack -----------------------------------------------------------------------------


def _pre(stack: Callable[..., Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The same stack, wired pre-norm."""

    def pre_stack(x, w, gain):
        return stack(x, w, gain, "pre")

    return pre_stack


@mistake(
    "post-norm in place of pre-norm",
    rejected_by="where f(x) = 0, nothing is added",
    cause="norm(x + f(x)) where x + f(norm(x)) is asked for.",
)
def post_stack(x, w, gain):
    """The same numbers wired post-norm, and nothing at the end."""
    return BLOCK.baseline(x, w, gain, "post")


def _pre_cases(rng: np.random.Generator) -> list[Case]:
    """The cases of BLOCK that are wired pre-norm, without dropout."""
    pre = [case for case in BLOCK.cases(rng) if case.arguments["norm_placement"] == "pre"]
    return [
        Case(case.label.removeprefix("pre, "), {n: case.arguments[n] for n in ("x", "w", "gain")},
             case.dtype)
        for case in pre if "dropout" not in case.arguments
    ]  # fmt: skip


def _ends_normalized(run: Run, case: Case) -> Problem | None:
    return ends_normalized(run, case, case.arguments["gain"][-1])


def _carries(run: Run, case: Case) -> Problem | None:
    x, gain = case.arguments["x"], case.arguments["gain"][-1]
    return compare(reference.layer_norm(x, gain, 0 * gain), run.value(case), run.expected(case)[1])


def _long(case: Case) -> bool:
    return case.arguments["x"].shape[0] > 1


_BY_NAME = {mutant.name: mutant for mutant in BLOCK.mutants}


def _of_block(name: str, rejected_by: str) -> Mutant:
    """A mistake of BLOCK, in this function's form."""
    mutant = _BY_NAME[name]
    return replace(mutant, candidate=_pre(mutant.candidate), rejected_by=rejected_by)


PRE_STACK = Spec(
    name="ch07.pre_stack",
    statement="pre_stack(x, w, gain): x = x + tanh(norm_n(x) w[n]) for n = 0 ... N - 1, then norm_N(x); "
    "norm_n(x) = layer_norm(x, gain[n]). x (L, D), w (N, D, D), gain (N + 1, D) -> (L, D)",
    required=("x", "w", "gain"),
    reference=lambda x, w, gain: reference.residual_stack(x, w, gain, "pre"),
    baseline=_pre(BLOCK.baseline),
    cases=_pre_cases,
    checks=(
        Check(
            "where f(x) = 0, nothing is added",
            "With w = 0 every sublayer returns 0: x must reach the final norm as it came.",
            _carries,
            when=lambda case: _long(case) and not bool(case.arguments["w"].any()),
        ),
        Check(
            "the end is normalized",
            "The sum grows with every layer: the last gain belongs to a norm at the end.",
            _ends_normalized,
            when=lambda case: _long(case) and bool(case.arguments["w"].any()),
        ),
    ),
    mutants=mistakes(
        _of_block("the residual takes the normed input", "where f(x) = 0, nothing is added"),
        _of_block("no norm at the end of a pre-norm stack", "where f(x) = 0, nothing is added"),
        _of_block("the norm after the sublayer, on the branch", "equals the reference"),
        post_stack,
    ),
    chapter=7,
    points=2,
)  # fmt: skip

# --- A norm that disappears -----------------------------------------------------------------------


def _fold_reference(weight, bias, matrix, offset):
    """Row o of the answer: matrix[o] times weight, and offset[o] + matrix[o] . bias."""
    rows = []
    for row, constant in zip(matrix, offset, strict=True):
        scaled = [m * w for m, w in zip(row, weight, strict=True)]
        rows.append([*scaled, constant + reference.dot(row, bias)])
    return np.array(rows, dtype=matrix.dtype).reshape(len(matrix), len(weight) + 1)


def _fold_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, d_in, d_out, dtype=torch.float64) -> Case:
        shapes = {"weight": (d_in,), "bias": (d_in,), "matrix": (d_out, d_in), "offset": (d_out,)}
        return Case(label, {n: rng.normal(size=shape) for n, shape in shapes.items()}, dtype)

    return [
        case("as many outputs as inputs", 3, 3),
        case("wider", 3, 5),
        case("narrower", 6, 2),
        case("one output", 4, 1),
        case("float32", 5, 7, torch.float32),
    ]


def _joined(answer, arguments) -> Tensor:
    """(matrix, offset) as one array, the offset as its last column."""
    matrix, offset = answer
    return torch.cat([matrix, offset[:, None]], dim=1)


def folded(weight, bias, matrix, offset):
    """The baseline."""
    return matrix * weight, offset + matrix @ bias


@mistake(
    "the rows scaled",
    rejected_by="RuntimeError",
    cause="weight belongs to the inputs, the columns of an nn.Linear's matrix.",
)
def rows_scaled(weight, bias, matrix, offset):
    """weight meets the outputs."""
    return matrix * weight[:, None], offset + matrix @ bias


@mistake(
    "the bias lost",
    rejected_by="right where y is 0",
    cause="The norm's bias passes the matrix too: offset + matrix @ bias.",
)
def bias_added(weight, bias, matrix, offset):
    """bias is forgotten on its way through the matrix."""
    return matrix * weight, offset


@mistake(
    "the bias scaled",
    rejected_by="right where y is 0",
    cause="weight scales y, not bias: use the matrix from before.",
)
def bias_scaled_too(weight, bias, matrix, offset):
    """The scaled matrix carries the bias."""
    return matrix * weight, offset + (matrix * weight) @ bias


def _same_function(run: Run, case: Case) -> Problem | None:
    """At a normalized token, before and after."""
    a = case.arrays()  # in the reference's dtype, where what follows does not round
    y = np.random.default_rng(0).normal(size=a["weight"].shape)
    wanted = (y * a["weight"] + a["bias"]) @ a["matrix"].T + a["offset"]
    found = run.value(case).astype(wanted.dtype)
    far = run.expected(case)[1] * (np.abs(y).sum() + 1)  # each of a row's numbers is off by this
    return compare(wanted, found[:, :-1] @ y + found[:, -1], far)


def _at_zero(run: Run, case: Case) -> Problem | None:
    expected, far = run.expected(case)
    return compare(expected[:, -1], run.value(case)[:, -1], far)


FOLD_NORM = Spec(
    name="ch07.fold_norm",
    statement="fold_norm(weight, bias, matrix, offset) -> (matrix', offset'): for every y, "
    "(y weight + bias) @ matrix.T + offset = y @ matrix'.T + offset'. weight and bias (D), matrix "
    "(E, D) and offset (E), as in nn.Linear",
    required=("weight", "bias", "matrix", "offset"),
    reference=_fold_reference,
    baseline=folded,
    cases=_fold_cases,
    checks=(
        Check(
            "right where y is 0",
            "At y = 0 the norm gives its bias, and the linear map turns that into matrix @ bias + offset.",
            _at_zero,
        ),
        Check(
            "the same function",
            "For any y, both ways must give the same: weight scales the columns of the matrix.",
            _same_function,
        ),
    ),
    mutants=mistakes(rows_scaled, bias_added, bias_scaled_too),
    read=_joined,
    chapter=7,
    points=2,
)  # fmt: skip

# --- The test that catches a leak between tokens --------------------------------------------------


@dataclass(frozen=True)
class OnTrial:
    """A norm of (B, L, D), right or wrong, with a name for people."""

    name: str
    alone: bool  # does each token see only itself?
    function: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes: (B, L, D) -> (B, L, D)."""
        return self.function(x)

    def __repr__(self) -> str:
        return self.name


def _over(axes: tuple[int, ...], x: Tensor) -> Tensor:
    """Mean 0 and variance 1 over these axes."""
    centered = x - x.mean(axes, keepdim=True)
    return centered / (centered.square().mean(axes, keepdim=True) + 1e-5).sqrt()


def _running_mean(x: Tensor) -> Tensor:
    """Each token less the mean of the tokens up to it."""
    counts = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]
    return _over((2,), x) - 1e-3 * x.cumsum(1) / counts


def _clipped(x: Tensor) -> Tensor:
    """LayerNorm, then a cut at the loudest number of the whole batch before it."""
    return _over((2,), x).clamp(max=float(x.detach().abs().max()) / 2)


def _after(x: Tensor) -> Tensor:
    """The token after each, of the same sample; zeros after the last."""
    return torch.cat([x[:, 1:], 0 * x[:, :1]], dim=1)


def _last_into_first(x: Tensor) -> Tensor:
    """LayerNorm, and in the first token a little of the last."""
    last = (torch.arange(x.shape[1]) == 0)[:, None] * x[:, -1:]
    return _over((2,), x) + (1e-3 * last if x.shape[1] > 1 else 0)


ON_TRIAL = (
    OnTrial("LayerNorm", True, lambda x: _over((2,), x)),
    OnTrial("BatchNorm in training", False, lambda x: _over((0, 1), x)),
    OnTrial("RMSNorm", True, lambda x: x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()),
    OnTrial("LayerNorm over (L, D)", False, lambda x: _over((1, 2), x)),
    OnTrial("BatchNorm in evaluation", True, lambda x: (x - 0.3) / 1.7),
    OnTrial("statistics of each place over the batch", False, lambda x: _over((0,), x)),
    OnTrial("a little of the tokens before", False, _running_mean),
    OnTrial("a cut at the loudest number of the batch", False, _clipped),
    OnTrial("a little of the token after", False, lambda x: _over((2,), x) - 1e-3 * _after(x)),
    OnTrial("a little of the tokens after", False, lambda x: _running_mean(x.flip(1)).flip(1)),
    OnTrial("a little of the sample before", False, lambda x: _over((2,), x) + 1e-3 * x.roll(1, 0)),
    OnTrial("the last token into the first", False, _last_into_first),
)


@mistake(
    "a test without an assertion",
    rejected_by="mixing is caught",
    cause="The comparison is made and its result not used.",
)
def no_assertion(norm):
    """Compare, and return True anyway."""
    return True


@mistake(
    "no answer may change at all",
    rejected_by="right ones pass",
    cause="The changed token's own answer may change; only the others may not.",
)
def changes_everything(norm):
    """Change one token and require that no answer changes."""
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moved = x.clone()
    moved[0, 0] += torch.arange(5)
    return torch.equal(norm(x), norm(moved))


@mistake(
    "samples taken apart, tokens not",
    rejected_by="mixing is caught",
    cause="A sample alone and in a batch are compared; a token has neighbors in its sample too.",
)
def one_sample(norm):
    """Take the batch apart, sample by sample."""
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    apart = torch.cat([norm(sample[None]) for sample in x])
    return torch.allclose(norm(x), apart, atol=1e-12)


@mistake(
    "a batch of one",
    rejected_by="mixing is caught",
    cause="With one sample there is nobody to mix with.",
)
def within_a_sample(norm):
    """Take one sample apart, token by token."""
    x = torch.randn(1, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moved = x.clone()
    moved[:, 1:] = -moved[:, 1:] + torch.arange(5)
    return torch.allclose(norm(x)[:, 0], norm(moved)[:, 0], atol=1e-12)


@mistake(
    "a tolerance above the leak",
    rejected_by="mixing is caught",
    cause="Without mixing the answers are equal up to rounding: 1e-12 in float64.",
)
def too_tolerant(norm):
    """The right comparison, with a tolerance larger than the smallest leak."""
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    apart = torch.stack([torch.stack([norm(t[None, None])[0, 0] for t in s]) for s in x])
    return torch.allclose(norm(x), apart, atol=0.05)


def _right_verdict(alone: bool):
    def test(run: Run, case: Case) -> Problem | None:
        verdict = bool(run.value(case))
        words = {True: "True (each token alone)", False: "False (tokens mix)"}
        return None if verdict == alone else Problem(words[alone], words[verdict])

    return test


IS_PER_TOKEN = Spec(
    name="ch07.is_per_token",
    statement="is_per_token(norm): True if norm, of tensors (B, L, D), gives each token an answer that "
    "depends on that token alone; False if another token of the sample or of the batch can change it",
    required=("norm",),
    reference=lambda norm: norm.alone,
    cases=lambda rng: [Case(str(each), {"norm": each}) for each in ON_TRIAL],
    usual=(SHAPE,),
    checks=(
        Check(
            "right ones pass",
            "This norm looks at one token at a time, and the test says that it does not.",
            _right_verdict(True),
            when=lambda case: case.arguments["norm"].alone,
        ),
        Check(
            "mixing is caught",
            "Here another token changes the answer, and the test does not notice.",
            _right_verdict(False),
            when=lambda case: not case.arguments["norm"].alone,
        ),
    ),
    mutants=mistakes(no_assertion, changes_everything, one_sample, within_a_sample, too_tolerant),
    chapter=7,
    points=3,
)  # fmt: skip

EXERCISES = (
    replace(LAYER_NORM, name="ch07.layer_norm", points=2),
    LAYER_NORM_GRADIENT,
    PRE_STACK,
    FOLD_NORM,
    IS_PER_TOKEN,
)
