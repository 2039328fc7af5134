"""Judge a function, or hold a model to the contract: `python -m tested_transformer --help`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from tqdm import tqdm

from .reader.assertions import EVERY_SPEC, known, spec_named
from .reader.subprocesses import results_apart, verdict_apart
from .specs.contract import PROPERTIES, Report

NO_JAIL = "The code that you name is run in a process of its own, without a jail: name none that you do not trust."


def main(arguments: Sequence[str] | None = None) -> int:
    """0: right. 1: something is wrong. 2: it could not be tried."""
    options = parser().parse_args(arguments)
    try:
        return options.run(options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """Two commands."""
    every = argparse.ArgumentParser(
        prog="python -m tested_transformer", description=f"{__doc__} {NO_JAIL}"
    )
    commands = every.add_subparsers(required=True, metavar="command")
    judging = commands.add_parser(
        "judge", help="a function against a Spec", description=f"Is a function right? {NO_JAIL}"
    )
    judging.add_argument("target", nargs="?", help="my_file.py:my_attention")
    judging.add_argument("--spec", help="what it should be; --list shows them")
    judging.add_argument("--list", action="store_true", help="list the Specs")
    judging.set_defaults(run=run_judge, limit=120.0)
    keeping = commands.add_parser(
        "contract", help="a model against the contract",
        description=f"Does a model keep the contract? {NO_JAIL}",
    )  # fmt: skip
    keeping.add_argument("target", help="my_file.py:make_model, or hf:folder (safetensors)")
    keeping.add_argument("--only", action="append", default=[], help="a property; may be repeated")
    keeping.add_argument("--vocab-size", type=int, help="where no embedding tells it")
    keeping.set_defaults(run=run_contract, limit=60.0)
    for command in (judging, keeping):
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--limit", type=float, help="seconds for one answer")
        command.add_argument("--json", action="store_true", help="print JSON")
    return every


def run_judge(options: argparse.Namespace) -> int:
    """Print the verdict."""
    if options.list:
        print(
            *(f"{name:26} {spec.statement.splitlines()[0]}" for name, spec in EVERY_SPEC.items()),
            sep="\n",
        )
        return 0
    if options.target is None or options.spec is None:
        raise ValueError(
            "judge needs a target and --spec: judge my_file.py:my_attention --spec attention"
        )
    spec_named(options.spec)
    verdict = verdict_apart(options.target, options.spec, limit=options.limit, seed=options.seed)
    print(json.dumps(verdict, indent=1) if options.json else verdict["text"])
    return 0 if verdict["passed"] else 1


def run_contract(options: argparse.Namespace) -> int:
    """Print the report."""
    names = known(options.only) or [each.name for each in PROPERTIES]
    answers = results_apart(
        options.target, names, limit=options.limit, vocab_size=options.vocab_size, seed=options.seed
    )
    shown = tqdm(
        answers, total=len(names), unit="property", disable=not sys.stderr.isatty(), leave=False
    )
    report = Report(tuple(shown))
    print(json.dumps([vars(each) for each in report.results], indent=1) if options.json else report)
    return 0 if report else 1


if __name__ == "__main__":
    sys.exit(main())
