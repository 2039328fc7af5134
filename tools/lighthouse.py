"""Lighthouse, which judges a page as it comes to a phone: where it is on this machine, and one report of it.

`make test` installs it, in the version of tests/browser/lighthouse/package-lock.json, where there are node
and npm. LIGHTHOUSE in the environment names another: the file lighthouse/cli/index.js of an installation.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INSTALLED = ROOT / ".venv" / "lighthouse" / "node_modules" / "lighthouse" / "cli" / "index.js"
NODE = 18  # the oldest that it runs on
# Chromium itself calls home; with these it does not.
FLAGS = "--headless --no-sandbox --disable-background-networking --disable-component-update --no-first-run"


def find_lighthouse() -> list[str]:
    """The beginning of a command that runs it.

    Raises: LookupError that says what is missing.
    """
    node = shutil.which("node")
    if not node or not shutil.which("npm"):
        raise LookupError("Lighthouse needs node and npm")
    said = subprocess.run([node, "--version"], capture_output=True, text=True).stdout.strip()
    version = re.match(r"v(\d+)", said)
    if not version or int(version[1]) < NODE:
        raise LookupError(f"Lighthouse needs node {NODE} or later, and this is {said}")
    program = Path(os.environ.get("LIGHTHOUSE") or INSTALLED)
    if not program.is_file():
        raise LookupError("Lighthouse is not installed: make test does it, where npm has a network")
    return [node, str(program)]


def judge(url: str, *options: str, chromium: str | None = None) -> dict:
    """One report on a page, phone profile; further options as Lighthouse's own."""
    environment = os.environ | ({"CHROME_PATH": chromium} if chromium else {})
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [*find_lighthouse(), url, "--quiet", "--no-enable-error-reporting", *options]
        command += [f"--chrome-flags={FLAGS}", "--output=json", f"--output-path={report}"]
        subprocess.run(command, check=True, env=environment)
        return json.loads(report.read_text(encoding="utf-8"))
