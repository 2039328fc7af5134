"""Models as transformers stores them: config.json and safetensors, read and written."""

from __future__ import annotations

import json
import pkgutil
import re
import shutil
from collections.abc import Iterable, Mapping, Set
from contextlib import ExitStack
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ..bounds import one_of
from ..errors import argument_error, shape_of, type_of
from ..shapes import checked
from . import families
from .family import Family, dropout_options, option_error, set_dropout
from .whole_folder import write_folder

__all__ = ["from_pretrained", "save_pretrained"]

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


def discovered() -> dict[str, Family]:
    """Every family, by model_type."""
    names = [f"{families.__name__}.{each.name}" for each in pkgutil.iter_modules(families.__path__)]
    found = [import_module(name).FAMILY for name in names]
    return {family.model_type: family for family in found}


FAMILIES = discovered()


@checked
def from_pretrained(folder: str | Path) -> nn.Module:
    """The model that `save_pretrained` of transformers wrote into a folder: same weights, same logits.

    Families are found by `model_type` in `models/families`: gpt2, openai-gpt, gpt_bigcode, gpt_neox, gptj,
    gpt_oss, llama, mistral, mixtral, qwen3, bitnet, falcon, bloom, mpt, deepseek_v2, deepseek_v3, deepseek_v32, bert, albert,
    roformer, xlnet, bart, mbart, marian, t5, vit, whisper, mamba, mamba2 and rwkv.
    `architectures` in config.json names the head, or none (GPT2Model and the like). Weights keep the
    dtype in which they are stored; the model is on the processor and in eval mode, its dropout that of the
    configuration. Padding is known by `attention_mask` alone.

    config.json may say what changes no number (see IGNORED in family.py: token IDs, initialization,
    defaults of generation); it is kept as `model.their_config` and written back by `save_pretrained`.
    Everything else that is not understood is an error.

    Raises: FileNotFoundError for a folder without config.json or weights; ValueError for an unknown
        model_type, an option that is not supported, weights that are missing, left over, cut short or of
        another shape; TypeError for an option of a wrong type.
    Source: transformers, PreTrainedModel.from_pretrained and save_pretrained.
    """
    place = Path(folder)
    family, theirs = described(place)
    options = family.options(theirs)
    with torch.device("meta"):
        model = family.build(family.read(options))
    with ExitStack() as opened:
        fill(model, family, stored_in(place, family, opened))
    set_dropout(model, family, options)
    for name in family.frozen_padding:
        freeze_padding(model.get_submodule(name), theirs.get("pad_token_id"))
    model.their_config = dict(theirs)
    return model.eval()


@checked
def save_pretrained(model: nn.Module, folder: str | Path) -> None:
    """Write a model so that transformers, and `from_pretrained`, load one with the same logits.

    The family is the one it was loaded from, with all options as they were, or the first that has all
    of the model's. A model that was never loaded has no token IDs for beginning, end and padding. Dropout where
    transformers has none, inside the feed-forward network, acts in training only and is not written.
    The folder appears when everything is written; other files of a folder that holds a model already,
    such as its tokenizer, stay.

    Raises: TypeError that names the argument; ValueError for a model that no family has (the message
        names the option), or a folder that holds something else; OSError if it cannot be written.
    Source: transformers, PreTrainedModel.from_pretrained and save_pretrained.
    """
    place = Path(folder)
    family, theirs = written(model)
    theirs |= dropout_options(model, family)
    theirs.pop("torch_dtype", None)
    theirs["dtype"] = str(next(model.parameters()).dtype).removeprefix("torch.")
    headless = family.options(theirs)["architectures"] == family.headless
    left_out, state = family.base if headless else "", model.state_dict(keep_vars=True)
    weights = family.weights(model)
    tensors = {each.name.removeprefix(left_out): each.to_disk(state) for each in weights}

    def write(temporary: Path) -> None:
        keep_others(place, temporary)
        save_file(tensors, temporary / WEIGHTS, metadata={"format": "pt"})
        text = json.dumps(theirs, indent=2, sort_keys=True) + "\n"
        (temporary / CONFIG).write_text(text, encoding="utf-8")

    write_folder(place, write)


# --- config.json ----------------------------------------------------------------------------------


def described(place: Path) -> tuple[Family, dict[str, Any]]:
    """The family and the options that config.json names."""
    theirs = read_json(place, CONFIG)
    kind = theirs.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise option_error("model_type", kind, one_of(FAMILIES))
    return FAMILIES[kind], theirs


def read_json(place: Path, name: str) -> dict[str, Any]:
    """A JSON file that holds names and values."""
    if not (place / name).is_file():
        raise argument_error(FileNotFoundError, "folder", f"{place} without one", f"a {name} in it")
    try:
        values = json.loads((place / name).read_text(encoding="utf-8"))
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise argument_error(ValueError, name, "a file that is cut short or none", "a JSON object")
    return values


def freeze_padding(table: nn.Embedding, pad_token_id: Any) -> None:
    """Give the row of the padding token no gradient; -1 is the last one, as in torch."""
    rows = table.num_embeddings
    if pad_token_id is None:
        return
    if type(pad_token_id) is not int or not -rows <= pad_token_id < rows:
        raise option_error("pad_token_id", pad_token_id, f"an int from {-rows} to {rows - 1}")
    table.padding_idx = pad_token_id % rows


def written(model: nn.Module) -> tuple[Family, dict[str, Any]]:
    """The family of a model, and its config.json.

    What a family writes is read again: if anything comes back changed, the family does not have it.
    """
    config, kept = getattr(model, "config", None), getattr(model, "their_config", {})
    families = {name: each for name, each in FAMILIES.items() if type(config) is each.config}
    if not families:
        wanted = f"a {one_of(sorted({each.build.__name__ for each in FAMILIES.values()}))}"
        raise argument_error(TypeError, "model", type_of(model), wanted)
    if kept and not differences(config, FAMILIES[kept["model_type"]], kept):
        return FAMILIES[kept["model_type"]], dict(kept)
    found = {}
    for family in families.values():
        options = family.write(config)
        try:
            changed = differences(config, family, options)
        except (TypeError, ValueError):  # its words cannot even say it
            continue
        if not changed:
            ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
            named = {"model_type": family.model_type, "architectures": [family.architectures[0]]}
            return family, named | ids | options
        found[family.model_type] = changed
    nearest = min(found, key=lambda name: len(found[name]))
    wanted = ", ".join(f"{name} = {value!r}" for name, value in found[nearest].items())
    came = ", ".join(f"{name} = {getattr(config, name)!r}" for name in found[nearest])
    raise argument_error(ValueError, "model.config", came, f"{wanted}, as {nearest} has it")


def differences(config: Any, family: Family, options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that come back as others, with what they come back as; the ones that act nowhere may."""
    back = family.read(family.options(options))
    positions = getattr(config, "positions", None)
    idle = {"dropout"}
    idle |= set() if positions == "learned" else {"max_length", "position_offset"}
    idle |= set() if getattr(config, "head", True) else {"tied_output", "logit_bias"}
    idle |= set() if positions == "rotary" else {"rotary_base", "rotary_dim", "rotary_scaling"}
    idle |= set() if positions in ("rotary", "sinusoidal") else {"position_layout"}
    names = [each.name for each in fields(config) if each.name not in idle]
    pairs = {name: (getattr(config, name), getattr(back, name)) for name in names}
    return {name: theirs for name, (mine, theirs) in pairs.items() if mine != theirs}


# --- Weights --------------------------------------------------------------------------------------


def stored_in(place: Path, family: Family, opened: ExitStack) -> dict[str, Any]:
    """The tensors of all files, by their names; each is read when it is asked for."""
    found = {}
    for path in weight_files(place):
        try:
            file = opened.enter_context(safe_open(path, framework="pt"))
        except (SafetensorError, OSError) as error:
            raise argument_error(ValueError, path.name, str(error), "a whole file") from None
        names = file.keys()
        check_none("stored twice", found.keys() & {newer(name, family) for name in names}, family)
        found |= {newer(name, family): (file, name) for name in names}
    return found


def newer(name: str, family: Family) -> str:
    """The name that a tensor has today."""
    for pattern, now in family.renamed.items():
        name = re.sub(pattern, now, name)
    return name


def weight_files(place: Path) -> list[Path]:
    """The one file of weights, or all that the index names."""
    if (place / WEIGHTS).is_file():
        return [place / WEIGHTS]
    if not (place / INDEX).is_file():
        wanted = f"{WEIGHTS} or {INDEX} in it"
        raise argument_error(FileNotFoundError, "folder", f"{place} without one", wanted)
    names = read_json(place, INDEX).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise argument_error(ValueError, f"{INDEX}, weight_map", repr(names), "a file per tensor")
    for name in sorted(set(names.values())):
        if Path(name).name != name or not (place / name).is_file():
            raise argument_error(
                FileNotFoundError, "folder", "none", f"{name}, which {INDEX} names"
            )
    return [place / name for name in sorted(set(names.values()))]


def fill(model: nn.Module, family: Family, stored: dict[str, Any]) -> None:
    """Give a model on the meta device its weights; all of them, and no others."""
    weights, repeated = family.stored(model)
    names = {each.name for each in weights}
    stored = whole_names(stored, family.base, names | repeated.keys())
    stored = {first: stored[n] for n, first in repeated.items() if n in stored} | stored
    absent = family.may_be_missing - stored.keys()
    check_none("missing", names - stored.keys() - absent, family)
    others = stored.keys() - names - repeated.keys()
    left = [name for name in others if not re.fullmatch(family.leftovers, name)]
    check_none("left over", left, family)
    shapes, state, dtypes = model.state_dict(), {}, {}
    for weight in weights:
        if weight.name in absent:
            continue
        file, name = stored[weight.name]
        tensor = file.get_tensor(name)
        wanted = weight.to_disk(shapes).shape
        if tensor.shape != wanted:
            came = f"shape {shape_of(tensor)}"
            raise argument_error(ValueError, weight.name, came, f"shape {(*wanted,)}")
        if not (tensor.dtype == torch.float32 and re.fullmatch(family.float32, weight.name)):
            dtypes.setdefault(tensor.dtype, weight.name)
        state |= weight.from_disk(tensor, shapes)
    check_dtypes(dtypes)
    check_repeated(stored, repeated)
    zeros = [name for weight in weights if weight.name in absent for name in weight.ours]
    state |= {name: torch.zeros(shapes[name].shape, dtype=next(iter(dtypes))) for name in zeros}
    assign(model, state)


def whole_names(stored: dict[str, Any], base: str, known: Set[str]) -> dict[str, Any]:
    """The names with the base that the file of a model without a head leaves out."""
    if any(name.startswith(base) for name in stored):
        return stored
    return {base + n if base + n in known else n: kept for n, kept in stored.items()}


def assign(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Put the tensors in the model; what it uses in several places stays one parameter."""
    ours, tensors = model.state_dict(keep_vars=True), {}
    for name, tensor in state.items():
        is_parameter = isinstance(ours[name], nn.Parameter)
        tensors[id(ours[name])] = nn.Parameter(tensor) if is_parameter else tensor
    whole = {name: tensors[id(each)] for name, each in ours.items() if id(each) in tensors}
    model.load_state_dict(whole, assign=True)
    dtype = next(iter(state.values())).dtype
    for name, buffer in model.named_buffers():
        if buffer.is_meta and not buffer.numel():  # it only says in which dtype to compute
            place, _, last = name.rpartition(".")
            setattr(model.get_submodule(place), last, torch.empty(0, dtype=dtype))


def check_none(what: str, names: Iterable[str], family: Family) -> None:
    """Raise if weights are missing or left over, with their names."""
    names = sorted(names)
    if names:
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        came = f"{', '.join(names[:4])}{more} {what}"
        wanted = f"the weights of {' or '.join(family.architectures)}"
        raise argument_error(ValueError, "folder", came, wanted)


def check_dtypes(dtypes: Mapping[torch.dtype, str]) -> None:
    """Raise unless all weights have one floating point dtype."""
    if len(dtypes) > 1 or not all(dtype.is_floating_point for dtype in dtypes):
        came = " and ".join(f"{dtype} ({name})" for dtype, name in dtypes.items())
        raise argument_error(ValueError, "folder", came, "weights of one floating point dtype")


def check_repeated(stored: Mapping[str, Any], repeated: Mapping[str, str]) -> None:
    """Raise if a tensor that stands twice on disk is not the same both times."""
    for name, first in repeated.items():
        if name in stored:
            both = [file.get_tensor(own) for file, own in (stored[name], stored[first])]
            if not torch.equal(*both):
                wanted = f"{first} once more, to which config.json ties it"
                raise argument_error(ValueError, name, "another matrix", wanted)


def keep_others(place: Path, temporary: Path) -> None:
    """Copy what is no part of the model from the folder that is about to be replaced."""
    if not place.exists():
        return
    if not place.is_dir() or (any(place.iterdir()) and not (place / CONFIG).is_file()):
        wanted = f"a new or empty folder, or one with {CONFIG}"
        raise argument_error(ValueError, "folder", str(place), wanted)
    ours = shutil.ignore_patterns("*.safetensors", INDEX, CONFIG)
    shutil.copytree(place, temporary, ignore=ours, dirs_exist_ok=True)
