"""plotting: pictures that are the same on every run, and that everyone can read."""

import copy
import hashlib
import io
import itertools
import os
import subprocess
import sys
import textwrap
from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import nbformat
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection, QuadMesh
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from nbclient import NotebookClient

import tested_transformer
from tested_transformer.plotting import (
    ALLOWED,
    HIDDEN,
    KEY,
    OUTPUT,
    QUERY,
    VALUE,
    arrows,
    bars,
    curves,
    heat_map,
    heat_maps,
    mask_picture,
    mask_pictures,
)
from tested_transformer.plotting.charts import HATCHES
from tested_transformer.plotting.checks import settle
from tested_transformer.plotting.grids import squares
from tested_transformer.plotting.layout import spread
from tested_transformer.plotting.style import (
    CYCLE,
    DIVERGING,
    INK,
    PANEL,
    SEQUENTIAL,
    SOFT,
    contrast,
    in_style,
    luminance,
    text_color,
)

pytestmark = pytest.mark.slow  # drawing: the whole file takes most of a minute

CODE = Path(tested_transformer.__file__).parents[1]
GERMAN = "vier und zwanzig tausend fünf".split()
LONG = "dreißig größer Übermut zwölf acht neun zehn elf eins".split()
CAUSAL = np.tril(np.ones((5, 5), dtype=bool))


def weights(rows, columns, seed=0):
    """Attention weights from one generator; seeds are chosen away from rounding boundaries."""
    scores = np.random.default_rng(seed).normal(size=(rows, columns)) * 2
    shares = np.exp(scores)
    return shares / shares.sum(-1, keepdims=True)


W, X = weights(5, 5), np.linspace(0, 10, 60)
PICTURES = {
    "heat": lambda e=0.0: heat_map(W + e, rows=GERMAN, columns=GERMAN, title="Wer schaut wohin?"),
    "masked": lambda e=0.0: heat_map(W + e, mask=CAUSAL),
    "scores": lambda e=0.0: heat_map(np.where(CAUSAL, W - 0.3, -np.inf) + e, columns=LONG[:5]),
    "large": lambda e=0.0: heat_map(weights(24, 18) + e, color_bar="weight after softmax"),
    "wide": lambda e=0.0: heat_map(weights(3, 9) + e, columns=LONG, title="Breit"),
    "heads": lambda e=0.0: heat_maps(
        np.stack([weights(5, 5, seed) for seed in range(4)]) + e,
        titles=[f"head {n}" for n in range(4)],
        rows=GERMAN,
        columns=GERMAN,
    ),
    "many": lambda e=0.0: heat_maps(
        np.stack([weights(12, 12, seed) for seed in range(8)]) + e, titles=range(8)
    ),
    "mask": lambda e=0.0: mask_picture(CAUSAL, rows=GERMAN, columns=GERMAN, title="Causal"),
    "masks": lambda e=0.0: mask_pictures([CAUSAL, ~CAUSAL, CAUSAL], titles=["a", "b", "c"]),
    "large mask": lambda e=0.0: mask_picture(np.tri(64)),
    "arrows": lambda e=0.0: arrows(W + e, sources=GERMAN, targets=GERMAN, title="Pfeile"),
    "many arrows": lambda e=0.0: arrows(weights(9, 9) + e, sources=LONG, targets=LONG, highlight=4),
    "curves": lambda e=0.0: curves(
        X + e,
        {
            "sine": np.sin(X) + e,
            "cosine": np.cos(X) + e,
            "damped": 0.9 * np.cos(X) + e,
            "decay": np.exp(-X / 3) + e,
        },
        x_label="steps",
        y_label="loss",
        title="Vier Linien mit drei Marken darüber",
        marks={"warm-up": 2.0, "end": 2.5, "late": 8},
        bands={"decay": (np.exp(-X / 3) * 0.9, np.exp(-X / 3) * 1.1)},
    ),
    "logarithmic": lambda e=0.0: curves(
        [64, 128, 256, 512],
        {"plain": np.array([1, 4, 16, 64]) + e, "fused (SDPA)": np.array([2, 3, 5, 9]) + e},
        x_label="length",
        y_label="ms",
        log_x=True,
        log_y=True,
    ),
    "legend": lambda e=0.0: curves(
        X,
        {name: np.exp(-X) + e for name in ("pre-LN", "post-LN", "RMSNorm", "none")},
        x_label="steps",
        y_label="loss",
    ),
    "bars": lambda e=0.0: bars(GERMAN, W[0] + e, y_label="weight", title="Balken"),
    "groups": lambda e=0.0: bars(
        ["d = 64", "d = 128"], {"plain": [1 + e, 2], "tiled": [0.5, 1]}, y_label="ms", title="Two"
    ),
    "long bars": lambda e=0.0: bars(LONG, weights(1, 9)[0] * 1e6 + e, y_label="parameters"),
}
DRAWN = {}


def picture_of(name):
    """A picture of the list above, drawn once."""
    if name not in DRAWN:
        DRAWN[name] = PICTURES[name]()
    return DRAWN[name]


@pytest.fixture(params=PICTURES)
def picture(request):
    return picture_of(request.param)


def run_python(script: str, **environment: str) -> str:
    path = os.pathsep.join([str(CODE), str(Path(__file__).parent)])
    settings = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"} | environment
    command = [sys.executable, "-c", textwrap.dedent(script)]
    return subprocess.run(
        command, env=settings, text=True, capture_output=True, check=True
    ).stdout.strip()


def words(picture) -> list[str]:
    """All texts that the picture shows."""
    found = [text.get_text() for text in picture.figure.findobj(Text) if text.get_visible()]
    return [text for text in found if text]


# --- The same on every run ------------------------------------------------------------------------


def test_svg_is_well_formed_small_and_without_traces(picture):
    root = ElementTree.fromstring(picture.svg)
    assert root.tag.endswith("svg")
    tiny = picture.kind.startswith(
        "8 heat maps"
    )  # whose cells are one picture: as paths they weigh more
    assert bool(list(root.iter("{http://www.w3.org/2000/svg}image"))) == tiny
    assert not list(root.iter("{http://www.w3.org/2000/svg}text"))  # paths: no font is needed
    for trace in ("nan", "matplotlib.org", "dc:date", "Created"):
        assert trace not in picture.svg
    assert len(picture.svg) < 250_000
    assert float(root.get("width").removesuffix("pt")) <= 72 * 6.4


def test_bundle_and_description(picture):
    bundle = picture._repr_mimebundle_()
    assert bundle == {"image/svg+xml": picture.svg, "text/plain": f"Picture({picture.kind})"}
    assert repr(picture) == bundle["text/plain"]


def test_descriptions():
    assert repr(picture_of("heat")) == "Picture(heat map, 5 x 5)"
    assert repr(picture_of("many")) == "Picture(8 heat maps, 12 x 12)"
    assert repr(picture_of("masks")) == "Picture(3 masks, 5 x 5)"
    assert repr(picture_of("arrows")) == "Picture(arrows, 5 to 5)"
    assert repr(picture_of("curves")) == "Picture(4 curves, 60 points)"
    assert repr(picture_of("groups")) == "Picture(2 x 2 bars)"


@pytest.mark.parametrize("noise", [1e-7, -1e-7])
@pytest.mark.parametrize("name", PICTURES)
def test_float_noise_changes_no_byte(name, noise):
    assert PICTURES[name](noise).svg == picture_of(name).svg


def test_two_processes_draw_the_same_bytes_and_leave_pyplot_alone():
    """Another process, with another hash seed, time zone and style, draws what this one draws."""
    names = ("heat", "scores", "mask", "arrows", "curves", "logarithmic", "groups")
    script = f"""
        import hashlib, sys
        import matplotlib as mpl
        import test_plotting
        assert "matplotlib.pyplot" not in sys.modules
        # a reader's own settings
        mpl.rcParams.update({{"font.size": 20, "svg.hashsalt": None, "axes.grid": True}})
        for name in {names}:
            picture = test_plotting.PICTURES[name]()
            print(name, hashlib.sha256(picture.svg.encode()).hexdigest())
        assert mpl.rcParams["font.size"] == 20
        assert "matplotlib.pyplot" not in sys.modules
    """
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    there = run_python(script, PYTHONHASHSEED=seed, TZ="Asia/Shanghai")
    drawn = [hashlib.sha256(picture_of(name).svg.encode()).hexdigest() for name in names]
    assert there.split() == [*itertools.chain(*zip(names, drawn, strict=True))]
    assert len(set(drawn)) == len(names)


def test_nbval_accepts_its_own_outputs_and_nothing_else(tmp_path):
    cells = [
        "from tested_transformer.plotting import *\nfrom tested_transformer.reader.show import show\n"
        "def mine(x):\n    return 2 * x\nshow(heat_map, mine)",
        "heat_map([[0.25, 0.75], [1 / 3, 2 / 3]], rows=['vier', 'fünf'])",
        "curves([1, 2], {'a': [1, 2]}, x_label='x', y_label='y')",
    ]
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    environment = {"PYTHONPATH": str(CODE)}
    NotebookClient(notebook, record_timing=False).execute(env=os.environ | environment)
    assert "this notebook" in notebook.cells[0].outputs[0].data["text/markdown"]
    notebook.cells.append(copy.deepcopy(notebook.cells[1]))
    data = notebook.cells[-1].outputs[0].data
    changed = data["image/svg+xml"].replace("stroke-width: 0.8", "stroke-width: 0.9")
    assert changed != data["image/svg+xml"]
    data["image/svg+xml"] = changed
    nbformat.write(notebook, tmp_path / "cells.ipynb")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbval", "-q", "-p", "no:cacheprovider", "cells.ipynb"],
        cwd=tmp_path,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 3 passed" in run.stdout
    assert "cells.ipynb::Cell 3" in run.stdout


def test_nice_numbers_are_far_from_every_boundary():
    nice = {Fraction(p, q) for q in range(1, 33) for p in range(q + 1)}
    values = np.array(sorted(map(float, nice)))
    for decimals in (2, 3):
        for noise in (1e-7, -1e-7):
            moved = settle(values + noise, decimals)
            np.testing.assert_array_equal(moved, settle(values, decimals))
        error = np.abs(settle(values, decimals) - values).max()
        assert error <= 0.5124 * 10**-decimals


def test_settle_keeps_what_is_not_finite_and_has_no_negative_zero():
    settled = settle([np.inf, -np.inf, np.nan, -1e-9], 3)
    np.testing.assert_array_equal(settled, [np.inf, -np.inf, np.nan, 0.0])
    assert not np.signbit(settled[3])


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.3, 1, 7, 1e4, 1e9])
def test_rounding_follows_the_scale_of_the_data(scale):
    x = np.linspace(0, 1, 50)
    y = scale * np.sin(3 * x)
    drawn = curves(x, {"a": y}, x_label="x", y_label="y").data["curves"]["a"]
    assert 0 < np.abs(drawn - y).max() <= 1e-3 * scale
    shifted = curves(x, {"a": 100 + y}, x_label="x", y_label="y").data["curves"]["a"]
    assert np.abs(shifted - 100 - y).max() <= max(1e-3 * scale, 1e-3)


def test_whole_numbers_stay():
    heights = [123_456_789, 16_384, 7]
    assert bars(["a", "b", "c"], heights, y_label="n").data["heights"].tolist() == heights
    lengths = [64, 16_384, 131_072]
    for log in (False, True):
        picture = curves(lengths, {"a": lengths}, x_label="x", y_label="y", log_x=log, log_y=log)
        assert picture.data["x"].tolist() == picture.data["curves"]["a"].tolist() == lengths
    tiny = heat_map([[1e-8, 2e-8]]).data["weights"]
    np.testing.assert_allclose(tiny, [[1e-8, 2e-8]])


def test_logarithmic_axes_round_each_entry_by_itself():
    y = np.array([1.23456e-6, 1.23456, 1.23456e6, np.nan])
    data = curves([1, 2, 3, 4], {"a": y}, x_label="x", y_label="y", log_y=True).data
    np.testing.assert_allclose(data["curves"]["a"], y, rtol=1e-3)
    assert data["curves"]["a"][1] == 1.235


# --- Readable by everyone -------------------------------------------------------------------------

COLORS = [QUERY, KEY, VALUE, OUTPUT]
BLINDNESS = {  # Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB
    "none": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def seen(color, blindness):
    """CIE Lab coordinates of a color as it is seen."""
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(BLINDNESS[blindness]) @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ linear / [0.9505, 1.0, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("blindness", BLINDNESS)
def test_colors_differ_for_every_kind_of_sight(blindness):
    pairs = [*itertools.combinations(COLORS, 2), (ALLOWED, HIDDEN)]
    pairs += itertools.combinations([color for color, _ in CYCLE[:4]], 2)
    for first, second in pairs:
        distance = np.linalg.norm(seen(first, blindness) - seen(second, blindness))
        assert distance > 12, (first, second, distance)


def test_every_text_color_reads_on_the_panel():
    texts = [*COLORS, INK, SOFT, *(color for color, _ in CYCLE)]
    assert min(contrast(color, PANEL) for color in texts) >= 4.5
    assert contrast(ALLOWED, HIDDEN) >= 4.5
    assert contrast(INK, HIDDEN) >= 4.5


@pytest.mark.parametrize("colors", [SEQUENTIAL, DIVERGING])
def test_numbers_read_on_every_cell(colors):
    for color in colors(np.linspace(0, 1, 256)):
        assert contrast(text_color(color), color) >= 4.5


def test_sequential_colors_grow_darker():
    levels = [luminance(color) for color in SEQUENTIAL(np.linspace(0, 1, 256))]
    assert (np.diff(levels) < 0).all()


def test_lines_differ_in_dashes_as_well_as_in_color():
    dashes = [dashes for _, dashes in CYCLE]
    assert len(set(dashes)) == len(CYCLE) == len({color for color, _ in CYCLE})
    assert len(set(HATCHES)) == len(HATCHES)


def assert_texts_are_apart(picture):
    """Every text is large enough and inside the panel, and none covers another."""
    shown, draw = [], Text.draw
    with in_style(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Text, "draw", lambda text, renderer: shown.append(text) or draw(text, renderer)
        )
        picture.figure.savefig(io.BytesIO(), format="svg")
        texts = [text for text in shown if text.get_text() and text.get_visible()]
        boxes = [(text.get_text(), text.get_window_extent(), text.get_rotation()) for text in texts]
    assert len(boxes) >= 4
    assert min(text.get_fontsize() for text in texts) >= 9.0
    panel = picture.figure.bbox
    for text, box, _ in boxes:
        assert panel.x0 < box.x0 < box.x1 < panel.x1, text
        assert panel.y0 < box.y0 < box.y1 < panel.y1, text
    straight = [(text, box) for text, box, turn in boxes if turn in (0, 90)]
    for (text, box), (other, second) in itertools.combinations(straight, 2):
        gap = max(box.x0 - second.x1, second.x0 - box.x1, box.y0 - second.y1, second.y0 - box.y1)
        assert gap > -0.5, (text, other)


def test_every_text_is_inside_the_panel_and_none_covers_another(picture):
    assert_texts_are_apart(picture)


@pytest.mark.parametrize("log_y", [False, True])
@pytest.mark.parametrize(
    "ends",
    [[1000, 1010], [0.02, 0.0201], [500, 505, 100], [1000, 1010, 990], [50, 51, 49, 50, 500]],
)
def test_names_of_curves_that_end_close_together_are_apart(ends, log_y):
    lines = {f"line {n}": [1e-3, 400, end] for n, end in enumerate(ends)}
    picture = curves([1, 2, 3], lines, x_label="x", y_label="y", log_y=log_y)
    assert set(lines) <= set(words(picture))
    assert_texts_are_apart(picture)


def test_names_of_marks_beyond_the_curves_are_apart():
    marks = {"first": 2, "second": 3, "far away": 100}
    assert_texts_are_apart(
        curves([1, 2, 3], {"a": [1, 2, 3]}, x_label="x", y_label="y", marks=marks)
    )


def test_panel_is_light_and_drawn_first(picture):
    first = ElementTree.fromstring(picture.svg).find(".//{*}g[@id='figure_1']/{*}g/{*}path")
    assert PANEL.lower() in first.get("style")


# --- Each kind ------------------------------------------------------------------------------------


def test_heat_map_labels_numbers_and_data():
    picture = picture_of("heat")
    axes = picture.figure.axes[0]
    assert words(picture).count("vier") == 2
    assert [text.get_text() for text in axes.texts] == [
        f"{value:.2f}" for value in settle(W, 2).flat
    ]
    assert {text.get_color() for text in axes.get_yticklabels()} == {QUERY}
    assert {text.get_color() for text in axes.get_xticklabels()} == {KEY}
    np.testing.assert_allclose(picture.data["weights"], W, atol=6e-4)
    np.testing.assert_array_equal(picture.data["weights"], settle(W, 4))
    assert picture.data["rows"] == GERMAN
    (mesh,) = axes.findobj(QuadMesh)
    np.testing.assert_array_equal(mesh.get_array(), picture.data["weights"])
    assert axes.get_ylim() == (5, 0)  # row 0 above


def test_small_maps_print_numbers_and_large_ones_have_a_scale():
    assert len(heat_map(np.eye(8)).figure.axes) == 1
    assert not heat_map(weights(3, 40)).figure.axes[0].texts
    large = heat_map(np.eye(9))
    assert not large.figure.axes[0].texts
    assert len(large.figure.axes) == 2
    assert "weight" in words(large)
    assert len(heat_map(np.eye(9), color_bar=False).figure.axes) == 1
    assert len(heat_map(np.eye(9), values=True).figure.axes[0].texts) == 81
    assert not heat_map(np.eye(2), values=False, color_bar=False).figure.axes[0].texts
    assert "1.000" in words(heat_map(np.eye(2), decimals=3))


def test_hidden_cells_are_hatched_and_a_leak_through_the_mask_is_printed():
    def hatched(picture):
        patches = [patch for patch in picture.figure.axes[0].patches if patch.get_hatch()]
        return sum(len(patch.get_path().to_polygons()) for patch in patches)

    closed = heat_map(np.where(CAUSAL, W, 0), mask=CAUSAL)
    assert hatched(closed) == 10
    assert len(closed.figure.axes[0].texts) == 15
    leaks = np.count_nonzero(settle(W, 2)[~CAUSAL])
    assert leaks > 5
    assert len(heat_map(W, mask=torch.tensor(CAUSAL)).figure.axes[0].texts) == 15 + leaks
    assert hatched(heat_map(W)) == 0
    broken = heat_map([[np.nan, 1.0], [-np.inf, np.inf]])
    assert hatched(broken) == 3
    assert {"NaN", "\u2212\u221e", "\u221e", "1.00"} <= set(words(broken))


def test_negative_entries_get_two_sided_colors():
    def mesh(picture):
        return picture.figure.axes[0].findobj(QuadMesh)[0]

    drawn = mesh(heat_map([[-1.0, 3.0]]))
    assert drawn.cmap.name == DIVERGING.name
    assert (drawn.norm.vmin, drawn.norm.vmax) == (-3, 3)
    drawn = mesh(heat_map([[1.0, 3.0]]))
    assert drawn.cmap.name == SEQUENTIAL.name
    assert (drawn.norm.vmin, drawn.norm.vmax) == (0, 3)
    drawn = mesh(heat_map([[1.0, 3.0]], vmin=-4, vmax=4))
    assert (drawn.norm.vmin, drawn.norm.vmax) == (-4, 4)


@pytest.mark.parametrize(
    "convert", [np.ndarray.tolist, torch.tensor, np.float32, torch.FloatTensor]
)
def test_lists_arrays_and_tensors_draw_alike(convert):
    value = convert(np.array([[0.25, 0.75], [0.5, 0.5]]))
    if isinstance(value, torch.Tensor):
        value = value.to(torch.bfloat16).requires_grad_()
    assert heat_map(value).svg == heat_map(np.array([[0.25, 0.75], [0.5, 0.5]])).svg


def test_drawing_leaves_the_input_alone():
    array = np.array([[0.123456, 0.9]])
    heat_map(array)
    assert array[0, 0] == 0.123456


def test_several_maps_share_one_scale_and_wrap_into_rows():
    picture = picture_of("many")
    *panels, scale = picture.figure.axes
    norms = {(m.norm.vmin, m.norm.vmax) for axes in panels for m in axes.findobj(QuadMesh)}
    assert norms == {(0.0, picture.data["weights"].max())}
    assert [axes.get_title() for axes in panels] == list("01234567")
    places = [axes.get_position() for axes in panels]
    assert len({round(place.x0, 6) for place in places}) == 3
    assert len({round(place.y0, 6) for place in places}) == 3
    assert not any(a.overlaps(b) for a, b in itertools.combinations(places, 2))
    assert scale.get_position().y1 < min(place.y0 for place in places)
    assert picture.data["weights"].shape == (8, 12, 12)


@pytest.mark.parametrize("shape", [(5, 5), (3, 7), (1, 1), (40, 70)])
def test_mask_shows_a_dark_cell_for_each_true_entry(shape):
    mask = np.random.default_rng(1).random(shape) < 0.5
    picture = mask_picture(mask)
    axes = picture.figure.axes[0]
    _, allowed = axes.patches
    areas = [
        0.5 * abs(np.dot(p[:-1, 0], p[1:, 1]) - np.dot(p[1:, 0], p[:-1, 1]))
        for p in allowed.get_path().to_polygons()
    ]
    assert sum(areas) == pytest.approx(mask.sum() * (0.92**2 if shape[1] < 40 else 1))
    dots = np.stack(axes.lines[0].get_data()[::-1], axis=1) - 0.5
    expected = np.argwhere(mask) if shape[1] < 40 else np.empty((0, 2))
    np.testing.assert_array_equal(dots, expected)
    np.testing.assert_array_equal(picture.data["mask"], mask)
    assert "row may attend to column" in words(picture)


def test_joined_cells_cover_what_single_cells_cover():
    mask = np.random.default_rng(2).random((9, 13)) < 0.6
    inside = [(j + 0.5, i + 0.5) for i in range(9) for j in range(13)]
    covered = squares(mask, 0.0).contains_points(inside)
    single = squares(mask, 0.04).contains_points(inside)
    np.testing.assert_array_equal(covered.reshape(mask.shape), mask)
    np.testing.assert_array_equal(single.reshape(mask.shape), mask)


def test_arrows_are_as_thick_as_their_weights():
    picture = arrows([[0.9, 0.1, 0.001]], sources=["a", "b", "c"], targets=["z"])
    thin, thick = sorted(patch.get_linewidth() for patch in picture.figure.axes[0].patches)
    assert (thin, thick) == pytest.approx((0.6 + 6 * 0.1, 0.6 + 6 * 0.9))
    ends = [p.get_path().vertices[[0, -1]].tolist() for p in picture.figure.axes[0].patches]
    assert [[0.5, 1], [1.5, 0]] in ends  # from source a, above, to the target in the middle
    everything = arrows([[0.9, 0.1, 0.001]], sources="a b c".split(), targets=["z"], threshold=0)
    assert len(everything.figure.axes[0].patches) == 3


def test_arrows_highlight_one_target():
    drawn = arrows(W, sources=GERMAN, targets=GERMAN, highlight=2).figure.axes[0].patches
    colors = {contrast(patch.get_edgecolor(), HIDDEN) > 1 for patch in drawn}
    assert colors == {True, False}
    for patch in drawn:
        of_target = patch.get_path().vertices[-1, 0] == 2.5
        assert of_target == (contrast(patch.get_edgecolor(), HIDDEN) > 1)


def test_whole_numbers_have_whole_ticks():
    ticks = {}
    for name, x in {"whole": range(8, 25), "not": [8, 8.5, 24]}.items():
        picture = curves(x, {"line": x}, x_label="nodes", y_label="right")
        ticks[name] = picture.figure.axes[0].get_xticks()
    assert (ticks["whole"] == ticks["whole"].round()).all()
    assert (ticks["not"] != ticks["not"].round()).any()


def test_curves_are_named_at_their_ends_or_in_a_legend():
    def axes_of(lines):
        return curves([1, 2, 3], lines, x_label="x", y_label="y").figure.axes[0]

    apart = axes_of({"up": [1, 2, 3], "down": [3, 2, 1]})
    assert apart.get_legend() is None
    assert {text.get_text(): text.xy for text in apart.texts} == {"up": (3, 3), "down": (3, 1)}
    assert [text.get_color() for text in apart.texts] == [line.get_color() for line in apart.lines]
    for crowd in (
        {name: [1, 2, 3] for name in "abcdef"},
        {"ends early": [1, 2, np.nan], "b": [1, 2, 3]},
        {"a name that would need more than an inch": [1, 2, 3]},
    ):
        axes = axes_of(crowd)
        assert not axes.texts
        assert [text.get_text() for text in axes.get_legend().get_texts()] == list(crowd)


def test_curves_marks_bands_colors_and_scales():
    picture = curves(
        [1, 10, 100],
        {"a": [1, 10, 100], "b": [2, 20, 200]},
        x_label="length",
        y_label="ms",
        log_x=True,
        log_y=True,
        marks={"here": 10},
        bands={"b": ([1, 10, 100], [3, 30, 300])},
        colors={"a": QUERY},
    )
    axes = picture.figure.axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.lines[0].get_color() == QUERY
    assert axes.lines[0].get_linestyle() != axes.lines[1].get_linestyle()
    assert "here" in words(picture)
    assert picture.data["marks"] == {"here": 10.0}
    (band,) = axes.findobj(PolyCollection)
    corners = {tuple(point) for point in band.get_paths()[0].vertices}
    assert {(1, 1), (1, 3), (100, 100), (100, 300)} <= corners
    np.testing.assert_array_equal(picture.data["bands"]["b"], [[1, 10, 100], [3, 30, 300]])


def test_ticks_of_logarithmic_axes():
    def labels(x, y):
        drawn = curves(x, {"a": y}, x_label="x", y_label="y", log_x=True, log_y=True)
        drawn.svg  # noqa: B018
        axes = drawn.figure.axes[0]
        return [[t.get_text() for t in axis.get_ticklabels()] for axis in (axes.xaxis, axes.yaxis)]

    few, narrow = labels([64, 128, 16384, 200000], [1, 2, 3, 40])
    assert few == ["64", "128", "16384", "200k"]
    assert labels([20000, 50000, 200000], [1, 2, 3])[0] == ["20k", "50k", "200k"]
    assert {"1", "2", "5", "10", "20"} <= set(narrow)
    many, wide = labels(np.geomspace(1, 1e4, 30), np.geomspace(1e-4, 1e3, 30))
    assert all("10^" in text for text in many + wide if text)


@settings(max_examples=60)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=8))
def test_spread_keeps_order_distance_and_mean(places):
    places = np.array(places)
    spots = spread(places, 10)
    assert (np.diff(np.sort(spots)) >= 10 - 1e-9).all()
    order = np.argsort(places, kind="stable")
    assert (np.diff(spots[order]) > 0).all()
    assert spots.mean() == pytest.approx(places.mean(), abs=1e-9)
    free = np.arange(len(places)) * 10.0
    np.testing.assert_allclose(spread(free, 10), free)


def test_bars_have_numbers_hatches_and_a_legend():
    picture = picture_of("groups")
    axes = picture.figure.axes[0]
    assert [container.get_label() for container in axes.containers] == ["plain", "tiled"]
    hatches = [container.patches[0].get_hatch() for container in axes.containers]
    assert len(set(hatches)) == 2
    assert [text.get_text() for text in axes.texts] == ["1", "2", "0.5", "1"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["plain", "tiled"]
    heights = [patch.get_height() for patch in axes.patches]
    assert heights == [1, 2, 0.5, 1]
    np.testing.assert_array_equal(picture.data["heights"]["tiled"], [0.5, 1])
    single = bars(["a", "b"], [1, 2], y_label="n", colors={"": KEY})
    assert single.figure.axes[0].get_legend() is None
    np.testing.assert_array_equal(single.data["heights"], [1, 2])
    assert single.figure.axes[0].patches[0].get_facecolor() == mpl.colors.to_rgba(KEY)


def test_labels_are_never_read_as_formulas():
    picture = heat_map(np.eye(2), rows=["$", "a_b"], columns=["x$y$", "^"])
    labels = picture.figure.axes[0].get_xticklabels() + picture.figure.axes[0].get_yticklabels()
    assert not any(label.get_parse_math() for label in labels)


# --- Complaints -----------------------------------------------------------------------------------


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("draw", "kind", "message"),
    [
        (lambda: heat_map("text"), TypeError, "weights: expected a tensor, .*got str"),
        (lambda: heat_map([[1, 2], [3]]), TypeError, "weights: expected a tensor"),
        (lambda: heat_map([[1j]]), TypeError, "weights: expected .* real numbers"),
        (lambda: heat_map([1.0]), ValueError, r"weights: expected a matrix.*shape \(1,\)"),
        (lambda: heat_map(np.ones((0, 3))), ValueError, "weights: expected a matrix"),
        (lambda: heat_map(np.ones((200, 200))), ValueError, "at most 16384.*got 40000 cells"),
        (lambda: heat_map(W, rows=["a"]), ValueError, "rows: expected 5 labels, got 1"),
        (lambda: heat_map(W, columns="abcde"), TypeError, "columns: expected a list of labels"),
        (
            lambda: heat_map(W, columns=5),
            TypeError,
            "columns: expected an Iterable or None, got int",
        ),
        (lambda: heat_map(W, mask=[[True]]), ValueError, r"mask: expected shape \(5, 5\)"),
        (lambda: heat_map(W, mask=W), ValueError, "mask: expected True and False"),
        (lambda: heat_map(W, decimals=-1), ValueError, "decimals: expected at least 0"),
        (lambda: heat_map([[-1.0]], vmin=0), ValueError, "vmin: expected a bound that cuts off no"),
        (lambda: heat_map([[2.0]], vmax=1), ValueError, "vmax: expected a bound that cuts off no"),
        (lambda: heat_map([[0.0]], vmin=0, vmax=0), ValueError, "vmax: expected more than vmin"),
        (lambda: heat_maps([]), ValueError, "weights: expected at least one matrix"),
        (
            lambda: heat_maps(3),
            TypeError,
            "weights: expected a torch.Tensor or an ndarray or a Sequence, got int",
        ),
        (lambda: heat_maps([W, W[:2]]), ValueError, "all of one shape"),
        (lambda: heat_maps([W, W], titles=["a"]), ValueError, "titles: expected 2 labels, got 1"),
        (lambda: heat_maps([W, W], masks=[CAUSAL]), ValueError, "masks: expected 2"),
        (lambda: mask_picture(W), ValueError, "mask: expected True and False, or 0 and 1"),
        (lambda: mask_pictures([CAUSAL, W]), ValueError, r"masks\[1\]: expected True and False"),
        (lambda: arrows(-W, sources=GERMAN, targets=GERMAN), ValueError, "weights: expected"),
        (lambda: arrows(W, sources=GERMAN[:3], targets=GERMAN), ValueError, "sources: expected 5"),
        (
            lambda: arrows(W, sources=GERMAN, targets=GERMAN, highlight=5),
            ValueError,
            "highlight: expected a target, below 5, got 5",
        ),
        (lambda: bars(["a"], [1, 2], y_label="n"), ValueError, r"heights: expected shape \(1,\)"),
        (lambda: bars(["a"], {"x": [np.nan]}, y_label="n"), ValueError, "heights x: expected fin"),
        (lambda: bars(["a"], {}, y_label="n"), ValueError, "heights: expected at least one name"),
        (lambda: bars([], [], y_label="n"), ValueError, "labels: expected at least one"),
    ],
)
def test_complaints(draw, kind, message):
    with pytest.raises(kind, match=message):
        draw()


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"x": [[1, 2]]}, ValueError, "x: expected one axis of finite numbers"),
        ({"x": [1, np.inf]}, ValueError, "x: expected one axis of finite numbers"),
        ({"lines": {}}, ValueError, "lines: expected at least one"),
        ({"lines": [1, 2]}, TypeError, "lines: expected a mapping, got list"),
        ({"lines": {3: [1, 2]}}, TypeError, "lines: expected names as keys, got the key 3"),
        ({"lines": {"a": [1, 2, 3]}}, ValueError, r"lines\['a'\]: expected shape \(2,\)"),
        ({"bands": {"b": ([1, 2], [1, 2])}}, ValueError, "bands: expected names among"),
        ({"bands": {"a": [1, 2]}}, ValueError, r"bands\['a'\]: expected shape \(2, 2\)"),
        ({"marks": [1]}, TypeError, "marks: expected a mapping or None, got list"),
        ({"marks": {"m": np.nan}}, ValueError, "marks: expected finite numbers"),
        ({"colors": {"b": "red"}}, ValueError, "colors: expected names among"),
        ({"log_y": True, "lines": {"a": [0, 1]}}, ValueError, "lines: expected numbers above 0"),
        ({"log_x": True, "x": [0, 1]}, ValueError, "x: expected numbers above 0"),
    ],
)
def test_complaints_of_curves(change, kind, message):
    arguments = {"x": [1, 2], "lines": {"a": [1, 2]}, "x_label": "x", "y_label": "y"}
    with pytest.raises(kind, match=message):
        curves(**(arguments | change))
