"""Build the site clean, with every warning an error, and say where to open it.

Usage: python tools/build_book.py [--since SECONDS]    seconds since 1970 when the work began
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time

from chapters import ROOT

SITE = ROOT / "_build" / "html"
RUN_JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"


def write_front_door() -> None:
    """Give the page that only leads on to the first page what its head says, for search and previews."""
    first = (SITE / "book" / "index.html").read_text(encoding="utf-8")
    kept = r'<title>.*?</title>|<meta (?:name|property)="(?:description|og:|twitter:)[^>]*>|<link rel="canonical"[^>]*>'
    head = "\n".join(re.findall(kept, first, re.DOTALL))
    (SITE / "index.html").write_text(
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{head}\n'
        '<link rel="icon" href="data:,">\n'  # else a browser asks the host for one, in vain, or stops half way
        '<meta http-equiv="refresh" content="0; url=book/index.html">\n</head>\n'
        '<body><p><a href="book/index.html">The Tested Transformer</a></p></body>\n</html>\n',
        encoding="utf-8",
    )


def main() -> int:
    """Generate the pages, build, and print the address of the front page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--since", type=float, default=time.time())
    began = parser.parse_args().since
    environment = {**os.environ, "PYTHONUTF8": "1"}

    # An incremental build hides warnings, so there is none.
    for old in ("_build/html", "_build/.doctrees", "_build/jupyter_execute", "book/generated"):
        shutil.rmtree(ROOT / old, ignore_errors=True)
    build = ["-c", RUN_JUPYTER_BOOK, "build", "--all", "-W", "-n", "--keep-going", "."]
    for arguments in (["tools/generate.py"], build):
        command = [sys.executable, *arguments]
        failed = subprocess.run(command, cwd=ROOT, env=environment).returncode
        if failed:
            print(
                f"\nThe book did not build ({time.time() - began:.0f} s): warnings are errors, see above."
            )
            return 1
    write_front_door()
    print(f"\nBuilt in {time.time() - began:.0f} s. Open {(SITE / 'index.html').as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
