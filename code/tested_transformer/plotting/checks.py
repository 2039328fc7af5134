"""Checks of what comes in, and rounding, so that the last bits of a float change no picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..errors import argument_error

MAX_CELLS = 16_384
Numbers = torch.Tensor | np.ndarray | Sequence


def numbers(name: str, value: Any) -> np.ndarray:
    """Turn a tensor, array or nested list into a float64 array of its own.

    Raises: TypeError if it holds no real numbers.
    """
    try:
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu()
            value = value.to(torch.float64) if value.is_floating_point() else value
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"dtype {array.dtype}")
    except (TypeError, ValueError, NotImplementedError) as error:  # the last: a device without data
        expected = "a tensor, array or nested list of real numbers"
        raise argument_error(TypeError, name, type(value).__name__, expected) from error
    return array.astype(np.float64)


def of_shape(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Like `numbers`, for a given shape."""
    array = numbers(name, value)
    if array.shape != shape:
        raise argument_error(ValueError, name, f"shape {array.shape}", f"shape {shape}")
    return array


def finite_row(name: str, value: Any, names: Sequence) -> np.ndarray:
    """Like `numbers`, for as many finite numbers as there are names."""
    array = of_shape(name, value, (len(names),))
    if not np.isfinite(array).all():
        raise argument_error(ValueError, name, "an infinite or NaN one", "finite numbers")
    return array


def matrix(name: str, value: Any) -> np.ndarray:
    """Like `numbers`, but with two axes and at least one cell."""
    array = numbers(name, value)
    if array.ndim != 2 or array.size == 0:
        raise argument_error(ValueError, name, f"shape {array.shape}", "a matrix (rows, columns)")
    if array.size > MAX_CELLS:
        raise argument_error(
            ValueError, name, f"{array.size} cells", f"at most {MAX_CELLS}: show a part"
        )
    return array


def matrices(name: str, values: Any) -> list[np.ndarray]:
    """Like `matrix`, for several of one shape."""
    if not isinstance(values, torch.Tensor | np.ndarray | list | tuple):
        raise argument_error(TypeError, name, type(values).__name__, "several matrices")
    arrays = [matrix(f"{name}[{n}]", value) for n, value in enumerate(values)]
    shapes = {array.shape for array in arrays}
    if len(shapes) != 1:
        came = f"shapes {sorted(shapes)}" if shapes else "none"
        raise argument_error(ValueError, name, came, "at least one matrix, all of one shape")
    return arrays


def mask_matrix(name: str, value: Any) -> np.ndarray:
    """Like `matrix`, for a mask."""
    array = matrix(name, value)
    if not np.isin(array, (0.0, 1.0)).all():
        raise argument_error(ValueError, name, "other entries", "True and False, or 0 and 1")
    return array.astype(bool)


def texts(name: str, values: Any, length: int | None = None) -> list[str]:
    """Turn labels into texts.

    Raises: TypeError if they are no list, ValueError if their number is wrong.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise argument_error(TypeError, name, type(values).__name__, "a list of labels")
    labels = [str(value) for value in values]
    if not labels or length not in (None, len(labels)):
        expected = "at least one label" if length is None else f"{length} labels"
        raise argument_error(ValueError, name, len(labels), expected)
    return labels


def known(name: str, mapping: Any, names: Iterable) -> None:
    """Raise unless a mapping speaks only of the names that are drawn."""
    if not isinstance(mapping, Mapping):
        raise argument_error(TypeError, name, type(mapping).__name__, "a dict")
    if odd := [key for key in mapping if not isinstance(key, str)]:
        raise argument_error(TypeError, name, f"the key {odd[0]!r}", "names as keys")
    if strange := [key for key in mapping if key not in names]:
        raise argument_error(ValueError, name, strange, f"names among {list(names)}")


def curve_data(
    x: Any, lines: Any, marks: Any, bands: Any, logs: tuple[bool, bool]
) -> dict[str, Any]:
    """Check and round all that `curves` draws."""
    xs = numbers("x", x)
    if xs.ndim != 1 or not xs.size or not np.isfinite(xs).all():
        raise argument_error(ValueError, "x", f"shape {xs.shape}", "one axis of finite numbers")
    for name, mapping in (("lines", lines), ("bands", bands), ("marks", marks)):
        known(name, mapping, marks if name == "marks" else lines)
    if not lines:
        raise argument_error(ValueError, "lines", "an empty dict", "at least one {name: y}")
    ys = {name: of_shape(f"lines[{name!r}]", y, xs.shape) for name, y in lines.items()}
    around = {n: of_shape(f"bands[{n!r}]", band, (2, xs.size)) for n, band in bands.items()}
    spots = finite_row("marks", list(marks.values()), list(marks))
    xs, spots = rounded("x", [xs, spots], xs, logs[0])
    drawn = [*ys.values(), *around.values()]
    drawn = rounded("lines", drawn, np.concatenate(drawn, axis=None), logs[1])
    return {
        "x": xs,
        "curves": dict(zip(ys, drawn[: len(ys)], strict=True)),
        "bands": dict(zip(around, drawn[len(ys) :], strict=True)),
        "marks": dict(zip(marks, spots.tolist(), strict=True)),
    }


def rounded(name: str, arrays: list, level: np.ndarray, log: bool) -> list[np.ndarray]:
    """Round arrays for one axis: by the spread of all, or each entry by itself if logarithmic."""
    if not log:
        return [settle(array, sensible_decimals(level)) for array in arrays]
    if any((array <= 0).any() for array in arrays):
        raise argument_error(ValueError, name, "0 or less", "numbers above 0 on a logarithmic axis")

    def each(value: float) -> float:
        return float(settle(value, sensible_decimals(np.array([0.0, value]))))

    return [np.vectorize(each, otypes=[float])(array) for array in arrays]


def settle(values: Any, decimals: int) -> np.ndarray | np.float64:
    """Round so that float noise does not show: ties lie beside the numbers that people meet.

    Ordinary rounding sends 0.125 up or down by its last bit; here 1/2, 1/3, 1/8, 1/16 and the
    like are far from any boundary. Infinite and NaN entries stay.

    Shapes: any, kept.

    >>> settle([0.125, 0.12499999, 1 / 3], 2).tolist()
    [0.13, 0.13, 0.33]
    """
    unit = 10.0**decimals
    steps = np.floor(np.asarray(values, dtype=np.float64) * unit + 0.5123)
    return np.round(steps / unit, decimals)


def sensible_decimals(values: np.ndarray) -> int:
    """How many decimals keep about three digits of the spread; none where all numbers are whole.

    Shapes: any.

    >>> [sensible_decimals(np.array(x)) for x in ([0, 0.5], [0.5, 2000.0], [3.0, 16384.0])]
    [4, 0, 0]
    """
    finite = values[np.isfinite(values)]
    largest = np.abs(finite).max(initial=0.0)
    whole = np.abs(finite - np.round(finite)).max(initial=0.0) < 1e-6
    if largest == 0 or (whole and largest > 0.5):
        return 0
    return 3 - math.floor(math.log10(1.0123 * max(np.ptp(finite), 1e-3 * largest)))


def short(value: float) -> str:
    """A number as people write it: three digits, k for thousands, M for millions and so on.

    >>> short(0.12512), short(12345.6), short(-2.0), short(1.3e6)
    ('0.125', '12.3k', '\u22122', '1.3M')
    """
    value = float(f"{value:.3g}")
    for unit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(unit, 1e4):
            return f"{value / unit:.3g}{letter}".replace("-", "\u2212")
    return (f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}").replace("-", "\u2212")
