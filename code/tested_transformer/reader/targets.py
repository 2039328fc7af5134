"""What a command line names: `my_file.py:my_attention`, or `hf:folder` for a saved model."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from ..errors import argument_error

__all__ = ["load_target"]


def load_target(target: str) -> Any:
    """The function or class that a file defines, or the model in a folder. The file's code is run.

    Raises: ValueError that says what is wrong with the target. What the file itself raises is raised.
    """
    if target.startswith("hf:"):
        return _saved_model(Path(target.removeprefix("hf:")))
    path, _, name = target.rpartition(":")
    if not path or not name:
        raise argument_error(ValueError, "target", repr(target), "file.py:name or hf:folder")
    file = Path(path)
    if not file.is_file():
        raise argument_error(ValueError, "target", repr(target), f"a file; there is no {file}")
    found = vars(_executed(file))
    if name not in found:
        own = [each for each, value in found.items() if callable(value) and each[0] != "_"]
        wanted = f"a name that {file.name} defines, such as {', '.join(own[:8]) or 'a function'}"
        raise argument_error(ValueError, "target", repr(name), wanted)
    return found[name]


def _executed(file: Path) -> Any:
    """The module in a file, which may import what lies beside it."""
    sys.path.insert(0, str(file.resolve().parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None:
        raise argument_error(ValueError, "target", repr(str(file)), "a file whose name ends in .py")
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _saved_model(folder: Path) -> Any:
    """What save_pretrained wrote: safetensors alone, and never code from the folder."""
    if not (folder / "config.json").is_file():
        wanted = "a folder with config.json and safetensors"
        raise argument_error(ValueError, "target", f"hf:{folder}", wanted)
    try:
        import transformers
    except ImportError:
        raise argument_error(
            ValueError, "target", f"hf:{folder}", "transformers to be installed"
        ) from None
    config = transformers.AutoConfig.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    names = [name for name in config.architectures or () if hasattr(transformers, name)]
    if not names:
        wanted = "a config whose `architectures` names a class of transformers"
        raise argument_error(ValueError, "target", f"{config.architectures}", wanted)
    return getattr(transformers, names[0]).from_pretrained(
        folder, local_files_only=True, use_safetensors=True, trust_remote_code=False
    )
