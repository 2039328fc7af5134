"""Trust the chapters: JupyterLab shows drawings and figures with settings only of notebooks that it trusts.

Those are the book's own, whose cells a reader runs anyway. What else lies in the folder is left as it is.

Usage: python tools/trust.py [chapters/03_scaling.ipynb ...]
"""

import sys
from pathlib import Path

from nbformat.sign import NotebookNotary

from chapters import chapter_paths, read


def main(arguments: list[str]) -> None:
    """Sign the chapters named, or all, as they are now."""
    notary = NotebookNotary()
    for path in [Path(name) for name in arguments] or chapter_paths():
        notary.sign(read(path))


if __name__ == "__main__":
    main(sys.argv[1:])
