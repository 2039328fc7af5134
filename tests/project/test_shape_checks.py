"""The checks of shapes in signatures: on where they were asked for, and as strict as jaxtyping's."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from beartype import beartype
from jaxtyping import Float, Int, TypeCheckError
from torch import Tensor

from check_shapes_once import check_once
from tested_transformer.layers.blocks import position_ids

checked = check_once(typechecker=beartype)
ROW, WIDE, WORDS = torch.zeros(3), torch.zeros(2, 4), torch.zeros(3).long()


def test_the_package_is_checked_where_it_was_asked_for(pytestconfig):
    asked = pytestconfig.getoption("jaxtyping_packages", None)
    with pytest.raises(TypeCheckError) if asked else nullcontext():
        position_ids(WORDS[None])  # integers, where booleans are asked for


@checked
def product(a: Float[Tensor, "*B L D"], b: Float[Tensor, "D E"]) -> Float[Tensor, "*B L E"]:
    return a @ b


@checked
def longer(x: Float[Tensor, " L"], by: int | None = None) -> Float[Tensor, " L"]:
    return torch.cat([x, x]) if by else x


class Part:
    @checked
    def __init__(self, size: int) -> None:
        self.size = size

    @checked
    def forward(self, x: Float[Tensor, "B L"], y: Float[Tensor, "B L"] | None) -> Tensor:
        return x

    @property
    @checked
    def name(self) -> str:
        return self.size


@checked
@dataclass
class Rows:
    words: Int[Tensor, " L"]
    scores: Float[Tensor, " L"]


def inside(x):
    @checked
    def shaped(x: Float[Tensor, " L"]) -> Float[Tensor, "L L"]:
        return x

    return shaped(x)


def test_what_agrees_passes():
    assert product(torch.ones(5, 2, 3), torch.ones(3, 4)).shape == (5, 2, 4)
    assert longer(ROW) is longer(x=ROW, by=None) is ROW
    assert longer(torch.zeros(7)).shape == (7,)  # another call, another L
    assert Part(3).forward(WIDE, None) is WIDE
    assert Rows(WORDS, ROW).scores is ROW


@pytest.mark.parametrize(
    "call",
    [
        lambda: product(torch.ones(5, 2, 3), torch.ones(4, 4)),  # D is 3, then 4
        lambda: product(torch.ones(3), torch.ones(3, 4)),  # no L
        lambda: product(torch.ones(2, 3).int(), torch.ones(3, 4)),  # no floats
        lambda: product([[1.0]], torch.ones(1, 1)),  # no tensor
        lambda: longer(ROW, by=1),  # the answer's L is 6
        lambda: longer(ROW, by="1"),
        lambda: Part("3"),
        lambda: Part(3).forward(WIDE, WIDE.T),
        lambda: Part(3).name,
        lambda: Rows(WORDS, torch.zeros(4)),
        lambda: Rows(ROW, ROW),
        lambda: inside(ROW),
    ],
)
def test_what_does_not_agree_is_an_error(call):
    with pytest.raises(TypeCheckError):
        call()


@checked
def some(x: Float[Tensor, " L"], count: int, way: Literal["first", "last"]) -> Float[Tensor, " n"]:
    return x[None] if way == "last" else x[: int(count)]


class Changing:
    answer = ROW

    @checked
    def __call__(self, x: Float[Tensor, " L"]) -> Float[Tensor, " L"]:
        return self.answer


@pytest.mark.parametrize(
    "call",
    [
        lambda: product(torch.ones(5, 2, 3), torch.ones(4, 4)),
        lambda: product(torch.ones(5, 2, 3).int(), torch.ones(3, 4)),
        lambda: product(torch.ones(5, 2, 3), [[1.0]]),
        lambda: longer(ROW, by=1),  # like longer(ROW, by=None), but for a plain value
        lambda: some(ROW, 2, "last"),  # the answer has another rank
        lambda: some(ROW, 2, "middle"),
        lambda: some(ROW, 2.5, "first"),
    ],
)
def test_a_call_that_was_right_excuses_no_other(call):
    for _ in range(2):
        product(torch.ones(5, 2, 3), torch.ones(3, 4))
        longer(ROW, by=None)
        some(ROW, 2, "first")
    for _ in range(2):  # and a wrong one is wrong again
        with pytest.raises(TypeCheckError):
            call()


def test_another_answer_to_the_same_arguments_is_checked():
    changing = Changing()
    assert changing(ROW) is changing(ROW) is ROW
    changing.answer = torch.zeros(4)
    for _ in range(2):
        with pytest.raises(TypeCheckError):
            changing(ROW)
    changing.answer = ROW
    assert changing(ROW) is ROW


def test_each_call_is_made_once():
    calls = []

    @checked
    def first(x: Float[Tensor, " L"], count: int) -> Float[Tensor, " n"]:
        calls.append(count)
        return x[:count]

    for count in (1, 1, 2, 2, 1):  # the answer is of another shape, and right
        assert len(first(ROW, count)) == count
    assert calls == [1, 1, 2, 2, 1]
