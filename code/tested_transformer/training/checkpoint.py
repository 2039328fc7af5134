"""Models and half-trained models on disk: whole, or not there at all."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor

from ..data import Vocabulary
from ..models.transformer import Transformer, TransformerConfig
from ..models.whole_folder import write_folder
from ..shapes import checked
from ..special_tokens import SPECIAL
from .trainer import Evaluation, History, Trainer

__all__ = ["CheckpointError", "load_checkpoint", "load_trained", "save_checkpoint", "save_trained"]

FORMAT = 1
KEPT = 2  # checkpoints of a run that stay: the newest, and the one before it


class CheckpointError(ValueError):
    """A folder that holds no whole checkpoint."""


@checked
def save_trained(
    folder: str | Path, model: Transformer, source: Vocabulary, target: Vocabulary
) -> None:
    """Write a model with its configuration and words: model.safetensors and model.json.

    The folder is replaced only when everything is written.

    Raises: TypeError that names the argument; OSError if the folder cannot be written.
    Source: chapter 10.
    """
    write_folder(Path(folder), lambda place: _write_model(place, model, source, target))


@checked
def load_trained(folder: str | Path) -> tuple[Transformer, Vocabulary, Vocabulary]:
    """The model, ready to use (eval mode, on the processor), with its two vocabularies.

    Raises: CheckpointError, which says what is wrong, for a folder that holds no whole model.
    """
    place = Path(folder)
    return _read_model(place, _described(place))


@checked
def save_checkpoint(folder: str | Path, trainer: Trainer) -> Path:
    """Write everything that a trainer needs to go on: FOLDER/step-000400, and keep the one before.

    Nothing is half written: the new checkpoint appears under its name when it is whole.

    Raises: TypeError that names the argument; OSError if the folder cannot be written.
    Source: chapter 10.
    """
    place = Path(folder) / f"step-{trainer.step:06d}"
    write_folder(place, lambda temporary: _write_trainer(temporary, trainer))
    for old in _checkpoints(Path(folder))[:-KEPT]:
        shutil.rmtree(old)
    return place


@checked
def load_checkpoint(folder: str | Path, trainer: Trainer) -> None:
    """Put a trainer where the newest checkpoint of the folder left off.

    The trainer must have been made as the one that was saved: same model, pairs and recipe.

    Raises: CheckpointError if there is none, if the newest is damaged (the message names the one
        before it, which stays), or if it belongs to another recipe or configuration. The trainer is
        then as it was.
    """
    found = _checkpoints(Path(folder))
    if not found:
        raise CheckpointError(f"{folder}: expected a checkpoint, step-..., found none")
    newest = found[-1]
    try:
        report = _described(newest)
        _check_same("recipe", asdict(trainer.recipe), report["recipe"], newest)
        _check_same("config", asdict(trainer.model.config), report["config"], newest)
        optimizer = load_file(newest / "optimizer.safetensors")
        best = newest / "best.safetensors"
        best_weights = load_file(best) if best.exists() else None
    except CheckpointError as error:
        older = f"; {found[-2].name} is still there" if len(found) > 1 else ""
        raise CheckpointError(f"{error}{older}") from None
    load_model(trainer.model, str(newest / "model.safetensors"))
    _put_back(trainer, report, optimizer, best_weights)


# --- Writing --------------------------------------------------------------------------------------


def _write_model(
    place: Path, model: Transformer, source: Vocabulary, target: Vocabulary, **more: Any
) -> None:
    save_model(model, str(place / "model.safetensors"))  # a tied matrix is written once
    report = {
        "format": FORMAT,
        "config": asdict(model.config),
        "source_words": source.words[len(SPECIAL) :],
        "target_words": target.words[len(SPECIAL) :],
        **more,
        "files": {each.name: _digest(each) for each in sorted(place.iterdir())},
    }
    text = json.dumps(report, ensure_ascii=False, indent=1) + "\n"
    (place / "model.json").write_text(text, encoding="utf-8")


def _write_trainer(place: Path, trainer: Trainer) -> None:
    save_file(_flat(trainer.optimizer), place / "optimizer.safetensors")
    if trainer.best_weights is not None:
        _save_state(trainer.best_weights, place / "best.safetensors")
    history = trainer.history
    _write_model(
        place, trainer.model, trainer.source, trainer.target,
        recipe=asdict(trainer.recipe), step=trainer.step, losses=history.losses,
        rates=history.rates, evaluations=[asdict(e) for e in history.evaluations],
    )  # fmt: skip


def _flat(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer state, one tensor a name: "3.exp_avg"."""
    state = optimizer.state_dict()["state"]
    return {f"{n}.{key}": t.contiguous() for n, kept in state.items() for key, t in kept.items()}


def _save_state(state: dict[str, Tensor], path: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- Reading --------------------------------------------------------------------------------------


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-[0-9]*")) if folder.is_dir() else []


def _described(place: Path) -> dict[str, Any]:
    """What model.json says, after every file has been found whole."""
    try:
        report = json.loads((place / "model.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{place}: expected model.json, found none") from None
    except ValueError:
        raise CheckpointError(f"{place}/model.json: cut short or not JSON") from None
    if not isinstance(report, dict) or report.get("format") != FORMAT:
        raise CheckpointError(f"{place}/model.json: expected format {FORMAT}")
    for name, digest in report["files"].items():
        if not (place / name).exists():
            raise CheckpointError(f"{place}: expected {name}, found none")
        if _digest(place / name) != digest:
            raise CheckpointError(f"{place}/{name}: cut short or changed since it was written")
    return report


def _read_model(place: Path, report: dict[str, Any]) -> tuple[Transformer, Vocabulary, Vocabulary]:
    model = Transformer(TransformerConfig(**report["config"])).eval()
    load_model(model, str(place / "model.safetensors"))
    return model, Vocabulary(report["source_words"]), Vocabulary(report["target_words"])


def _check_same(name: str, mine: dict, theirs: dict, place: Path) -> None:
    mine = json.loads(json.dumps(mine))  # as theirs was written: tuples become lists
    for key in sorted(mine.keys() | theirs.keys()):
        if mine.get(key) != theirs.get(key):
            came = f"{key} = {theirs.get(key)!r}, here {mine.get(key)!r}"
            raise CheckpointError(f"{place}: made with another {name}: {came}")


def _put_back(
    trainer: Trainer,
    report: dict[str, Any],
    optimizer: dict[str, Tensor],
    best: dict[str, Tensor] | None,
) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in optimizer.items():
        number, key = name.split(".", 1)
        state.setdefault(int(number), {})[key] = tensor
    groups = trainer.optimizer.state_dict()["param_groups"]
    trainer.optimizer.load_state_dict({"state": state, "param_groups": groups})
    trainer.step, trainer.best_weights = report["step"], best
    trainer.history = History(
        report["losses"], report["rates"], [Evaluation(**e) for e in report["evaluations"]]
    )
