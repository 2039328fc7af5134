"""The addresses of the repository and of the site, from book/site.yml or the environment."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import yaml

FILE = Path(__file__).resolve().parents[1] / "site.yml"
REPOSITORY = re.compile(r"https://github\.com/([\w.-]+)/([\w.-]+)")
SITE = re.compile(r"https?://[\w.:-]+(/[^\s?#]*)?")


@dataclass(frozen=True)
class Addresses:
    """Where the book lives; an empty repository or site is not known."""

    repository: str
    site: str  # ends in /
    branch: str
    notebooks: str

    @property
    def base(self) -> str:
        """The path of the site on its host. A site without an address is taken to have a host of its own."""
        return urlsplit(self.site).path or "/"

    @property
    def project(self) -> str:
        """OWNER/NAME of the repository."""
        return "/".join(REPOSITORY.fullmatch(self.repository).groups())

    def source(self, path: str, kind: str = "blob") -> str:
        """Return the address of a file of the repository: `blob` to read it, `edit` to change it."""
        return f"{self.repository}/{kind}/{self.branch}/{path}"


def read_addresses(file: Path = FILE) -> Addresses:
    """Read the addresses; the environment goes before the file.

    Raises: ValueError for a key that is missing or unknown, and for an address of another form.
    """
    named = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    wanted = set(Addresses.__annotations__)
    if set(named) != wanted:
        raise ValueError(
            f"{file.name} must have the keys {sorted(wanted)}, and has {sorted(named)}"
        )
    for key in ("repository", "site", "notebooks"):
        named[key] = os.environ.get(f"TESTED_TRANSFORMER_{key.upper()}", named[key] or "")
    repository = named["repository"].removesuffix("/").removesuffix(".git")
    if repository and not REPOSITORY.fullmatch(repository):
        raise ValueError(
            f"repository must be https://github.com/OWNER/NAME or empty, and is {repository!r}"
        )
    site = named["site"]
    if site and not SITE.fullmatch(site):
        raise ValueError(
            f"site must be an address such as https://example.org/book/, and is {site!r}"
        )
    site = site.rstrip("/") + "/" if site else ""
    return Addresses(repository, site, named["branch"], named["notebooks"])
