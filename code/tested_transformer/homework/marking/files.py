"""The files of results: what they are called, and how they are written."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from pathlib import Path

from ...reader.saved_parts import replace_whole


def write_whole(path: Path, text: str) -> None:
    """Write a file for others to read, whole or not at all: meanwhile they find the old one."""
    replace_whole(path, text.encode(), mode=0o644)


def file_stem(submission: str) -> str:
    """A file name for any id, without extension: always the same, and no other id's on any file system.

    Letters of the id are kept for people, in lower case; a hash of all of it tells ids apart.
    """
    plain = unicodedata.normalize("NFKD", submission).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:40].strip("-")
    digest = hashlib.sha256(submission.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{words or 'submission'}-{digest}"


def page_name(submission: str) -> str:
    """The file name of the page of an id, safe on any file system."""
    return f"{file_stem(submission)}.html"
