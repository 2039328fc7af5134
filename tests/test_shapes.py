"""@checked: what each kind of annotation refuses, in which words, and where it stays out of the way."""

from __future__ import annotations

import inspect
import math
import pickle
import subprocess
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from beartype import beartype
from jaxtyping import Bool, Float, Int, Shaped, TypeCheckError
from torch import Tensor, nn

from check_shapes_once import check_once
from tested_transformer.bounds import (
    Above,
    AtLeast,
    AtMost,
    Below,
    Device,
    Divides,
    NonNegativeInt,
    OneOf,
    PositiveFloat,
    PositiveInt,
    Probability,
    Where,
)
from tested_transformer.layers.cache import AttentionCache, KeyValueCache
from tested_transformer.shapes import check_fields, checked, extremes

ROOT = Path(__file__).parents[1]
Mask = Bool[Tensor, "#L #S"] | Bool[Tensor, "*#batch #L #S"]
Even = Annotated[int, Where("an even number", lambda n: n % 2 == 0)]


@checked(any_dtype="bias")
def attend(
    query: Float[Tensor, "*batch L d"],
    key: Float[Tensor, "*batch S d"],
    value: Float[Tensor, "*batch S dv"],
    *,
    mask: Mask | None = None,
    bias: Float[Tensor, "#L #S"] | None = None,
) -> Float[Tensor, "*batch L dv"]:
    """Attention without a scale."""
    scores = query @ key.mT
    scores = scores if bias is None else scores + bias
    scores = scores if mask is None else scores.masked_fill(~mask, -math.inf)
    return torch.softmax(scores, dim=-1) @ value


@checked
def plain(
    flag: bool = False,
    count: PositiveInt | None = None,
    size: NonNegativeInt = 0,
    number: float | None = None,
    scale: PositiveFloat = 1.0,
    p: Probability = 0.0,
    weight: Annotated[float, Above(0), Below(1)] = 0.5,
    name: str = "",
    side: Literal["left", "right"] = "left",
    level: Literal[0, 1] = 0,
    order: Literal["post", "pre", "deep"] | None = "post",
    activation: Annotated[str, OneOf(("relu", "gelu", "silu"))] = "relu",
    late: Annotated[int | None, AtLeast(1)] = None,
    heads: Annotated[int, AtLeast(1), Divides("width")] = 1,
    width: Even | None = 8,
    function: Callable[[Tensor], Tensor] | None = None,
    module: nn.Linear | None = None,
    device: torch.device | str | None = None,
    whatever: Any = None,
    untold=None,
    **options: int,
) -> str:
    return "right"


@checked(V="vocab", nonempty="L")
def embed(ids: Annotated[Int[Tensor, "B L"], AtLeast(0), Below("vocab")], vocab: int) -> int:
    return vocab


@checked(V="vocab")
def pick(
    logits: Float[Tensor, "B V"],
    vocab: int | None,
    lengths: Annotated[Int[Tensor, " B"], AtLeast(0)] | None = None,
    allowed: Bool[Tensor, " V"] | None = None,
) -> Tensor:
    return logits


@checked(nonempty="S", S="num_keys")
def hide(mask: Mask, scores: Float[Tensor, "*batch L S"], num_keys: int | None = None) -> Tensor:
    return scores.masked_fill(~mask, -math.inf)


@checked
def soften(
    x: Float[Tensor, "B 3 ..."], by: float | Float[Tensor, ""] | Float[Tensor, " B"] = 1.0
) -> Tensor:
    return x


@checked
def either(x: Int[Tensor, "B L"] | Float[Tensor, "B L D"], y: Shaped[Tensor, "B L+1"]) -> Tensor:
    return x


@checked
def both(*masks: Mask | None) -> int:
    return len(masks)


class Layer(nn.Module):
    @checked
    def __init__(self, d_model: PositiveInt, *, dropout: Probability = 0.0) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, d_model)

    @checked(D="self.inner.in_features")
    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        return self.inner(x)

    @classmethod
    @checked
    def wide(cls, times: PositiveInt) -> Layer:
        return cls(8 * times)


@dataclass(frozen=True)
class Config:
    vocab: PositiveInt
    d_model: Even = 8
    heads: Annotated[int, AtLeast(1), Divides("d_model")] = 2
    pad_id: Annotated[int, AtLeast(0), Below("self.last")] | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def last(self) -> int:
        return self.vocab - 1


Q, K, V = torch.zeros(2, 3, 5, 8), torch.zeros(2, 3, 6, 8), torch.zeros(2, 3, 6, 7)
KEEP, IDS = torch.ones(5, 6, dtype=torch.bool), torch.tensor([[0, 4, 2]])
FLOATS, BOOLS = "a floating point dtype", "torch.bool (True = may attend)"
MASK = (
    "mask: expected shape (L, S) = (5, 6) or (*batch, L, S) = (2, 3, 5, 6) as in query and key, "
    "or 1 in any axis, got shape"
)

RIGHT = {
    "four axes": lambda: attend(Q, K, V),
    "two axes": lambda: attend(Q[0, 0], K[0, 0], V[0, 0]),
    "half precision": lambda: attend(Q.half(), K.half(), V.half()),
    "by keyword": lambda: attend(value=V, key=K, query=Q),
    "parameters": lambda: attend(nn.Parameter(Q), K, V),
    "no queries": lambda: attend(Q[:, :, :0], K, V),
    "no batch": lambda: attend(Q[:0], K[:0], V[:0]),
    "values of nothing": lambda: attend(Q, K, V[..., :0]),
    "a mask for all": lambda: attend(Q, K, V, mask=KEEP),
    "a mask for all queries": lambda: attend(Q, K, V, mask=KEEP[:1]),
    "a mask for each sample": lambda: attend(Q, K, V, mask=KEEP.expand(2, 1, 5, 6)),
    "a bias of another dtype": lambda: attend(Q, K, V, bias=KEEP.half()),
    "nothing": lambda: plain(),
    "None": lambda: plain(count=None, late=None, number=None, order=None, width=None, heads=3),
    "a NumPy number": lambda: plain(number=np.float32(2), scale=np.float64(2)),
    "a whole number as a number": lambda: plain(number=-3, p=0),
    "choices": lambda: plain(side="right", order="deep", activation="silu", name="any"),
    "a divisor": lambda: plain(heads=4, width=12),
    "a function": lambda: plain(function=torch.sin, module=nn.Linear(1, 1)),
    "a device": lambda: (plain(device="cpu"), plain(device=torch.device("cpu"))),
    "anything": lambda: plain(whatever=object(), untold=object(), more="keywords"),
    "ids": lambda: embed(IDS, 5),
    "no ids": lambda: embed(IDS[:0], 5),
    "ids as bytes": lambda: embed(IDS.byte(), 5),
    "ids without values": lambda: embed(IDS.to("meta"), 1),
    "a size from an argument": lambda: pick(torch.zeros(2, 9), 9),
    "no size from an argument": lambda: pick(torch.zeros(2, 9), None),
    "a mask before the scores": lambda: hide(KEEP.expand(2, 1, 5, 6), Q @ K.mT),
    "a number or a tensor": lambda: soften(torch.zeros(2, 3)),
    "a tensor or a number": lambda: soften(torch.zeros(2, 3, 4, 5), torch.tensor(1.0)),
    "a tensor of another rank": lambda: soften(torch.zeros(2, 3, 4, 5), torch.ones(2)),
    "one kind of dtype": lambda: either(IDS, torch.zeros(1, 9)),
    "the other kind of dtype": lambda: either(torch.zeros(1, 3, 4), IDS),
    "no masks": lambda: both(None, None),
    "masks": lambda: both(KEEP, None, KEEP[None, :1], KEEP[None, None].expand(1, 3, 5, 6)[0]),
    "masks that broadcast": lambda: both(KEEP.expand(2, 1, 5, 6), KEEP.expand(1, 3, 5, 6), KEEP),
    "a layer": lambda: Layer(8)(torch.zeros(1, 2, 8)),
    "a method of the class": lambda: Layer.wide(2)(torch.zeros(1, 2, 16)),
    "a config": lambda: Config(5, pad_id=3),
}  # fmt: skip

# a wrong call, and the whole message; TypeError for types and dtypes, ValueError for the rest
WRONG_TYPE = {
    "a list": (lambda: attend([[1.0]], K, V), "query: expected a torch.Tensor, got list"),
    "an array": (lambda: attend(Q, K.numpy(), V), "key: expected a torch.Tensor, got ndarray"),
    "no tensor": (lambda: attend(Q, K, None), "value: expected a torch.Tensor, got NoneType"),
    "integers": (lambda: attend(Q.long(), K, V), f"query: expected {FLOATS}, got torch.int64"),
    "complex": (lambda: attend(Q, K, V.cfloat()), f"value: expected {FLOATS}, got torch.complex64"),
    "dtypes": (lambda: attend(Q, K, V.half()),
               "value: expected query's dtype torch.float32, got torch.float16"),
    "a mask of bytes": (lambda: attend(Q, K, V, mask=KEEP.byte()),
                        f"mask: expected {BOOLS}, got torch.uint8"),
    "a mask as a list": (lambda: attend(Q, K, V, mask=[True]),
                         "mask: expected a torch.Tensor or None, got list"),
    "a bias of booleans": (lambda: attend(Q, K, V, bias=KEEP),
                           f"bias: expected {FLOATS}, got torch.bool"),
    "float ids": (lambda: embed(IDS / 1, 5), "ids: expected an integer dtype, got torch.float32"),
    "boolean ids": (lambda: embed(IDS > 0, 5), "ids: expected an integer dtype, got torch.bool"),
    "neither kind": (lambda: either(KEEP, IDS),
                     f"x: expected an integer dtype or {FLOATS}, got torch.bool"),
    "1 for True": (lambda: plain(1), "flag: expected True or False, got int"),
    "True for 1": (lambda: plain(count=True), "count: expected an int or None, got bool"),
    "2.0 for 2": (lambda: plain(size=2.0), "size: expected an int, got float"),
    "a NumPy int": (lambda: plain(size=np.int64(2)), "size: expected an int, got int64"),
    "a string for a number": (lambda: plain(scale="1"), "scale: expected a number, got str"),
    "True for 1.0": (lambda: plain(number=True), "number: expected a number or None, got bool"),
    "a tensor for a number": (lambda: plain(p=torch.ones(1)), "p: expected a number, got Tensor"),
    "a number for a name": (lambda: plain(name=3), "name: expected a string, got int"),
    "a number for a choice": (lambda: plain(activation=3), "activation: expected a string, got int"),
    "no function": (lambda: plain(function=3), "function: expected a function or None, got int"),
    "no Linear": (lambda: plain(module=torch.sin),
                  "module: expected an nn.Linear or None, got builtin_function_or_method"),
    "no device": (lambda: plain(device=3),
                  "device: expected a torch.device or a string or None, got int"),
    "a string for a tensor": (lambda: soften(torch.zeros(2, 3), "1"),
                              "by: expected a torch.Tensor or a number, got str"),
    "a mask among masks": (lambda: both(KEEP, None, KEEP.byte()),
                           f"masks[2]: expected {BOOLS}, got torch.uint8"),
    "a size of a layer": (lambda: Layer(8.0), "d_model: expected an int, got float"),
    "a vector of a layer": (lambda: Layer(8)([1.0]), "x: expected a torch.Tensor, got list"),
    "a method's argument": (lambda: Layer.wide(None), "times: expected an int, got NoneType"),
    "a field": (lambda: Config(5, pad_id="0"), "pad_id: expected an int or None, got str"),
    "an argument too few": (lambda: attend(Q, K), "missing 1 required positional argument"),
    "an argument too many": (lambda: attend(Q, K, V, KEEP), "takes 3 positional arguments"),
    "an unknown argument": (lambda: attend(Q, K, V, masks=KEEP), "unexpected keyword"),
}  # fmt: skip

WRONG_VALUE = {
    "a vector": (lambda: attend(Q[0, 0, 0], K, V),
                 "query: expected at least 2 axes (*batch, L, d), got shape (8,)"),
    "a head dimension": (lambda: attend(Q, K[..., :7], V),
                         "key: expected shape (*batch, S, d) = (2, 3, S, 8) as in query, "
                         "got shape (2, 3, 6, 7)"),
    "a batch axis less": (lambda: attend(Q, K[0], V),
                          "key: expected shape (*batch, S, d) = (2, 3, S, 8) as in query, "
                          "got shape (3, 6, 8)"),
    "lengths": (lambda: attend(Q, K, V[:, :, :5]),
                "value: expected shape (*batch, S, dv) = (2, 3, 6, dv) as in query and key, "
                "got shape (2, 3, 5, 7)"),
    "devices": (lambda: attend(Q, K.to("meta"), V), "key: expected query's device cpu, got meta"),
    "a device of a mask": (lambda: attend(Q, K, V, mask=KEEP.to("meta")),
                           "mask: expected query's device cpu, got meta"),
    "empty heads": (lambda: attend(Q[..., :0], K[..., :0], V),
                    "query: expected d of at least 1 in (*batch, L, d), got shape (2, 3, 5, 0)"),
    "a mask turned round": (lambda: attend(Q, K, V, mask=KEEP.T), f"{MASK} (6, 5)"),
    "a mask between the ranks": (lambda: attend(Q, K, V, mask=KEEP[None]), f"{MASK} (1, 5, 6)"),
    "a mask of another batch": (lambda: attend(Q, K, V, mask=KEEP.expand(3, 1, 5, 6)),
                                f"{MASK} (3, 1, 5, 6)"),
    "a mask that would widen": (lambda: attend(Q[:, :, :1], K, V, mask=KEEP), "(L, S) = (1, 6)"),
    "a bias of rank 1": (lambda: attend(Q, K, V, bias=Q[0, 0, 0]),
                         "bias: expected 2 axes (L, S), got shape (8,)"),
    "0 for a count": (lambda: plain(count=0), "count: expected at least 1, got 0"),
    "-1 for a size": (lambda: plain(size=-1), "size: expected at least 0, got -1"),
    "NaN": (lambda: plain(number=math.nan), "number: expected a finite number, got nan"),
    "infinity": (lambda: plain(scale=math.inf), "scale: expected a finite number, got inf"),
    "a scale of 0": (lambda: plain(scale=0), "scale: expected a number above 0, got 0"),
    "certainty": (lambda: plain(p=1.0), "p: expected a probability in [0, 1), got 1.0"),
    "less than never": (lambda: plain(p=-0.1), "p: expected a probability in [0, 1), got -0.1"),
    "two bounds": (lambda: plain(weight=1.0),
                   "weight: expected a number above 0 and a number below 1, got 1.0"),
    "neither choice": (lambda: plain(side="up"), "side: expected \"left\" or \"right\", got 'up'"),
    "no choice": (lambda: plain(side=None), 'side: expected "left" or "right", got None'),
    "True for the choice 1": (lambda: plain(level=True), "level: expected 0 or 1, got True"),
    "none of three": (lambda: plain(order=Q),
                      'order: expected one of "post", "pre", "deep", got tensor('),
    "no name of these": (lambda: plain(activation="tanh"),
                         'activation: expected one of "relu", "gelu", "silu", got \'tanh\''),
    "no divisor": (lambda: plain(heads=3),
                   "heads: expected at least 1 and a number that divides width = 8, got 3"),
    "no heads": (lambda: plain(heads=0), "heads: expected at least 1 and"),
    "odd": (lambda: plain(width=3), "width: expected an even number, got 3"),
    "ids too large": (lambda: embed(IDS, 4), "ids: expected at least 0 and a number below vocab = 4, "
                      "got 0 to 4"),
    "ids of rank 1": (lambda: embed(IDS[0], 5), "ids: expected 2 axes (B, L), got shape (3,)"),
    "no tokens": (lambda: embed(IDS[:, :0], 5),
                  "ids: expected L of at least 1 in (B, L), got shape (1, 0)"),
    "another vocabulary": (lambda: pick(torch.zeros(2, 9), 8),
                           "logits: expected shape (B, V) = (B, 8) as in vocab, got shape (2, 9)"),
    "a vocabulary of 0": (lambda: pick(torch.zeros(2, 9), 0), "(B, V) = (B, 0) as in vocab"),
    "a vocabulary that a tensor sets": (lambda: pick(torch.zeros(2, 9), None, allowed=KEEP[0]),
                                        "allowed: expected shape (V,) = (9,) as in logits"),
    "a mask that would widen the scores": (lambda: hide(KEEP, (Q @ K.mT)[:, :, :1]), "(L, S) = (1, 6)"),
    "a bound of an Optional": (lambda: plain(late=0), "late: expected at least 1, got 0"),
    "another batch": (lambda: pick(torch.zeros(2, 9), None, IDS[0]),
                      "lengths: expected shape (B,) = (2,) as in logits, got shape (3,)"),
    "an axis of 4": (lambda: soften(torch.zeros(2, 4, 5)),
                     "x: expected shape (B, 3, ...), got shape (2, 4, 5)"),
    "one axis": (lambda: soften(torch.zeros(2)), "x: expected at least 2 axes (B, 3, ...), got"),
    "a tensor of no rank": (lambda: soften(torch.zeros(2, 3), torch.ones(2, 3)),
                            "by: expected shape () or (B,) = (2,) as in x, got shape (2, 3)"),
    "no finite number": (lambda: soften(torch.zeros(2, 3), math.nan), "by: expected a finite"),
    "kinds of other ranks": (lambda: either(IDS[None], IDS), "x: expected 2 axes (B, L), got"),
    "masks that do not fit": (lambda: both(KEEP, None, KEEP.T), "masks[2]: expected shape (L, S) = "
                              "(5, 6) or (*batch, L, S) = (*batch, 5, 6) as in masks[0], or 1"),
    "masks of many ranks": (lambda: both(KEEP[None], KEEP[None, None]), "= (1, 5, 6) as in masks[0]"),
    "masks of other batches": (lambda: both(KEEP.expand(2, 1, 5, 6), KEEP.expand(1, 3, 5, 6),
                                            KEEP.expand(4, 1, 5, 6)), "(2, 3, 5, 6) as in masks[0]"),
    "the width of a layer": (lambda: Layer(8)(torch.zeros(1, 2, 9)),
                             "x: expected shape (B, L, D) = (B, L, 8) as in "
                             "self.inner.in_features, got shape (1, 2, 9)"),
    "dropout of a layer": (lambda: Layer(8, dropout=1.5), "dropout: expected a probability"),
    "a field of 0": (lambda: Config(0), "vocab: expected at least 1, got 0"),
    "fields": (lambda: Config(5, heads=3), "heads: expected at least 1 and a number that divides "
               "d_model = 8, got 3"),
    "a property": (lambda: Config(5, pad_id=4), "pad_id: expected at least 0 and a number below "
                   "self.last = 4, got 4"),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_right_calls(name):
    RIGHT[name]()


@pytest.mark.parametrize("name", WRONG_TYPE)
def test_wrong_types(name):
    call, message = WRONG_TYPE[name]
    with pytest.raises(TypeError) as caught:
        call()
    assert type(caught.value) is TypeError
    assert message in str(caught.value)


@pytest.mark.parametrize("name", WRONG_VALUE)
def test_wrong_shapes_and_values(name):
    call, message = WRONG_VALUE[name]
    with pytest.raises(ValueError, match="expected") as caught:
        call()
    assert type(caught.value) is ValueError
    assert message in str(caught.value)


def test_bounds_that_include_their_limit():
    @checked
    def share(part: Annotated[float, AtLeast(0), AtMost(1)]) -> float:
        return part

    assert [share(0), share(1)] == [0, 1]
    with pytest.raises(ValueError, match=r"part: expected at least 0 and at most 1, got 1\.5"):
        share(1.5)
    assert repr(AtLeast(0)) == "AtLeast(0)"


def test_nothing_is_divided_by_0():
    @checked
    def split(parts: Annotated[int, Divides(8)]) -> int:
        return 8 // parts

    assert split(4) == 2
    with pytest.raises(ValueError, match="parts: expected a number that divides 8, got 0"):
        split(0)


def test_an_error_of_a_bound_may_be_a_type_error():
    floating = Where("a floating point dtype", lambda dtype: dtype.is_floating_point, TypeError)

    def zeros(dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(1, dtype=dtype)

    zeros.__annotations__["dtype"] = Annotated[torch.dtype, floating]
    zeros = checked(zeros)
    assert zeros(torch.float16).dtype == torch.float16
    with pytest.raises(TypeError, match="dtype: expected a floating point dtype, got torch.int64"):
        zeros(torch.int64)


def test_values_on_a_device_are_not_read():
    class Elsewhere(Tensor):
        device = torch.device("cuda")

    assert extremes(IDS) == (0, 4)
    assert extremes(IDS.as_subclass(Elsewhere)) == extremes(IDS[:0]) == ()


# --- Where it stays out of the way ----------------------------------------------------------------


def test_the_plain_function_is_kept():
    source = inspect.getsource(attend.__wrapped__)
    assert "def attend(" in source
    assert "softmax(scores, dim=-1) @ value" in source
    assert attend.__doc__ == "Attention without a scale."
    assert str(inspect.signature(attend)) == str(inspect.signature(attend.__wrapped__))
    assert pickle.loads(pickle.dumps(attend)) is attend


@pytest.mark.plain_types
def test_compiles_in_one_graph():
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    q, k, v = torch.rand(2, 3, 5, 8), torch.rand(2, 3, 6, 8), torch.rand(2, 3, 6, 7)
    torch.testing.assert_close(compiled(q, k, v, mask=KEEP), attend(q, k, v, mask=KEEP))
    layer = Layer(8)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(q[0]), layer(q[0]))


@pytest.mark.plain_types
@pytest.mark.parametrize("strict", [True, False])
def test_exports_with_dynamic_lengths(strict):
    class Attend(nn.Module):
        def forward(self, query, key, value):
            return attend(query, key, value)

    queries, keys = torch.export.Dim("queries", min=2), torch.export.Dim("keys", min=2)
    shapes = {"query": {1: queries}, "key": {1: keys}, "value": {1: keys}}
    q, k, v = torch.rand(3, 5, 8), torch.rand(3, 6, 8), torch.rand(3, 6, 7)
    program = torch.export.export(Attend(), (q, k, v), dynamic_shapes=shapes, strict=strict)
    longer = torch.rand(3, 9, 8), torch.rand(3, 11, 8), torch.rand(3, 11, 7)
    torch.testing.assert_close(program.module()(*longer), attend(*longer))


def test_works_under_vmap():
    q, k, v = torch.rand(2, 3, 5, 8), torch.rand(2, 3, 6, 8), torch.rand(2, 3, 6, 7)
    torch.testing.assert_close(torch.vmap(attend)(q, k, v), attend(q, k, v))
    assert torch.vmap(lambda ids: torch.ones(()) * embed(ids, 1))(IDS[None]).tolist() == [1.0]
    with pytest.raises(ValueError, match="query: expected at least 2 axes"):
        torch.vmap(attend)(q[:, 0, 0], k, v)


def test_gradients_flow():
    q, k, v = (torch.rand(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    assert torch.autograd.gradcheck(attend, (q, k, v))


def test_beside_the_checks_of_jaxtyping():
    """The import hook puts its decorator below ours: our message comes first, and it checks the rest."""

    @checked
    @check_once(typechecker=beartype)
    def shorten(
        x: Float[Tensor, "B L"], mask: Mask | None = None, by: PositiveInt = 1
    ) -> Float[Tensor, "B L"]:
        return x[:, by - 1 :]

    x = torch.zeros(2, 4)
    assert shorten(x, torch.ones(1, 4, dtype=torch.bool)) is not None
    with pytest.raises(ValueError, match="^by: expected at least 1, got 0$"):
        shorten(x, by=0)
    with pytest.raises(ValueError, match="^x: expected 2 axes"):
        shorten(x[0])
    with pytest.raises(TypeCheckError):
        shorten(x, by=2)  # what is returned has another L


def test_without_jaxtyping_nothing_is_checked():
    """tools/bare.py stands in for it on a GPU machine."""
    script = """
import importlib.util
import bare
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "jaxtyping" else real(name, *more)
assert bare.stand_in()
from tested_transformer.functional.masks import causal_mask, combine_masks
from tested_transformer.shapes import check_fields
assert not hasattr(causal_mask, "__wrapped__")
check_fields(object())
print(combine_masks(causal_mask(2), None).tolist())
"""
    path = f"{ROOT / 'code'}:{ROOT / 'tools'}"
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[[True, False], [True, True]]", done.stderr


class Kept(typing.NamedTuple):
    top: Float[Tensor, "*batch L"]
    rest: Float[Tensor, "*batch L d"]


@checked
def join(first: Kept, second: Kept) -> Kept:
    return second


@checked(nonempty="S")
def choose(
    scores: Float[Tensor, "B S"], choice: Annotated[Int[Tensor, " B"], AtLeast(0), Below("S")]
) -> Tensor:
    return scores.gather(1, choice[:, None])


def test_a_limit_may_be_the_size_of_a_letter():
    assert choose(torch.zeros(2, 3), torch.tensor([0, 2])).shape == (2, 1)
    for _ in range(2):  # also when a call of these shapes has passed
        with pytest.raises(ValueError, match="choice: .* and a number below S = 3, got 0 to 3"):
            choose(torch.zeros(2, 3), torch.tensor([0, 3]))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'scores'"):
        choose(choice=torch.tensor([0]))


def test_fields_of_a_named_tuple_are_arguments():
    kept = Kept(torch.zeros(2, 3), torch.zeros(2, 3, 4))
    for _ in range(2):
        assert join(kept, kept) is kept
    wrong = {
        r"second\.rest: expected shape .* as in first\.top and first\.rest": kept._replace(
            rest=torch.zeros(2, 3, 5)
        ),
        r"second\.top: expected first\.top's dtype": kept._replace(top=torch.zeros(2, 3).double()),
        r"second\.top: expected a torch\.Tensor, got list": kept._replace(top=[1.0]),
        "second: expected a Kept, got tuple": tuple(kept),
    }
    for message, other in wrong.items():
        with pytest.raises((TypeError, ValueError), match=message):
            join(kept, other)


class Store:
    """Something that keeps a tensor, and holds the next ones to it."""

    def __init__(self) -> None:
        self._kept: Tensor | None = None
        self.next: Store | None = None

    @checked(like="self._kept", B="self._kept.shape.0")
    def add(self, x: Float[Tensor, "B d"]) -> None:
        self._kept = x

    @checked(D="other._kept.shape.1", like="x")
    def compare(self, x: Float[Tensor, "B D"], *, other: Store | None = None) -> None:
        """Another store, perhaps."""


def test_sizes_and_dtype_of_what_is_kept():
    store, x = Store(), torch.zeros(2, 3)
    for _ in range(2):
        store.add(x)
    with pytest.raises(
        ValueError, match=r"x: expected shape \(B, d\) = \(2, d\) as in self.kept, got"
    ):
        store.add(x[:1])
    with pytest.raises(
        TypeError, match=r"x: expected Store's dtype torch.float32, got torch.float64"
    ):
        store.add(x.double())
    with pytest.raises(ValueError, match="x: expected Store's device cpu, got meta"):
        store.add(x.to("meta"))
    with torch.autocast("cpu"):
        store.add(x.bfloat16())  # autocast makes it fit: no dtype is wrong
    with pytest.raises(TypeError, match=r"expected Store's dtype torch.bfloat16"):
        store.add(x)
    store.compare(x)
    store.compare(x[:, :3], other=store)
    with pytest.raises(ValueError, match=r"x: expected shape \(B, D\) = \(B, 3\) as in other.kept"):
        store.compare(x[:, :2], other=store)
    with pytest.raises(TypeError, match="other: expected a Store or None, got int"):
        store.compare(x, other=3)


def test_a_bool_of_numpy_is_told_from_python_s():
    @checked
    def ask(flag: bool) -> bool:
        return flag

    with pytest.raises(TypeError, match=r"flag: expected True or False, got numpy\.bool"):
        ask(np.bool_(True))


def test_a_device_must_be_one_of_this_machine():
    def place(device: torch.device | str | None = None) -> None:
        return None

    place.__annotations__["device"] = Device | None
    place = checked(place)
    place("cpu")
    place(torch.device("meta"))
    for device in ("x", "cuda:99", torch.device("cuda:99")):
        with pytest.raises(
            ValueError, match='device: expected a device of this machine, such as "cpu"'
        ):
            place(device)


def test_a_protocol_that_can_be_asked_is():
    @checked
    def fill(cache: AttentionCache, other: Unasked) -> None:
        return None

    fill(KeyValueCache(), 3)
    with pytest.raises(TypeError, match="cache: expected an AttentionCache, got dict"):
        fill({}, 3)


class Unasked(typing.Protocol):
    """A protocol without @runtime_checkable: anything passes."""

    length: int


def test_a_right_call_does_not_excuse_the_next():
    @checked(D="size")
    def scale(
        x: Float[Tensor, "B D"],
        size: int,
        ids: Annotated[Int[Tensor, " B"], AtLeast(0)],
        flag: bool,
    ) -> None:
        return None

    x, ids = torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)
    for _ in range(2):
        scale(x, 3, ids, True)
    wrong = [
        (x, 4, ids, True), (x, 3, ids - 1, True), (x, 3, ids, 1), (x.long(), 3, ids, True),
        (x[:1], 3, ids, True), (x, 3, None, True),
    ]  # fmt: skip
    for call in wrong:
        with pytest.raises((TypeError, ValueError)):
            scale(*call)
