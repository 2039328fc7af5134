"""Folders that are whole, or not there at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from ..shapes import checked

__all__ = ["write_folder"]


@checked
def write_folder(place: Path, write: Callable[[Path], None]) -> None:
    """Write into a temporary folder beside the place, then let it take the place's name."""
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        write(temporary)
        temporary.chmod(0o755)  # mkdtemp lets nobody else in, nor does safetensors
        for path in filter(Path.is_file, temporary.iterdir()):
            path.chmod(0o644)
        replaced = temporary.with_name(temporary.name + "-old")
        if place.exists():
            os.replace(place, replaced)
        os.replace(temporary, place)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
