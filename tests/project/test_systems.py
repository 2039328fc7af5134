"""The table of architectures is true: its code, Specs, tests and pages are there, and speak of each other."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import yaml

from tested_transformer.reader.public_names import public_names
from tested_transformer.specs import SPECS

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))

import generate  # noqa: E402

SYSTEMS = yaml.safe_load((ROOT / "book" / "systems.yml").read_text(encoding="utf-8"))


def said(row: dict) -> re.Pattern:
    """The names by which a page or a test may speak of it."""
    names = [row["code"].rpartition(".")[2], row.get("spec", ""), *row.get("named", [])]
    return re.compile("|".join(rf"\b{re.escape(name)}\b" for name in names if name))


@pytest.mark.parametrize("row", SYSTEMS, ids=lambda row: row["system"])
def test_a_system_is_where_the_table_says(row):
    module, _, name = row["code"].rpartition(".")
    assert hasattr(importlib.import_module(f"tested_transformer.{module}"), name)
    assert row.get("spec", next(iter(SPECS))) in SPECS
    assert row["page"].removeprefix("deeper/").startswith(f"{row['chapter']:02}_")
    for path in (row["tests"], f"chapters/{row['page']}.ipynb"):
        assert said(row).search((ROOT / path).read_text(encoding="utf-8")), path


def test_the_rows_are_in_the_order_of_the_chapters_and_name_each_system_once():
    chapters = [row["chapter"] for row in SYSTEMS]
    assert chapters == sorted(chapters)
    assert len({row["system"] for row in SYSTEMS}) == len(SYSTEMS)


def test_what_is_not_there_is_noticed():
    row = SYSTEMS[0] | {"code": "layers.self_attention.none_such", "spec": "none such"}
    with pytest.raises(AssertionError):
        test_a_system_is_where_the_table_says(row)


def test_code_leads_to_the_reference_where_the_reference_has_it():
    modules = public_names()
    entries = "".join(generate.entries(*each) for each in generate.folders(modules).items())
    referred = re.findall(r"\{py:\w+\}`~([\w.]+)`", generate.systems(SYSTEMS, modules))
    missing = [name for name in referred if f":: {name}\n" not in entries]
    assert not missing
    assert len(referred) > 0.9 * len(SYSTEMS)
