"""A chapter in JupyterLab, as `make lab` shows it: boxes are boxes, and no solution stands open."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import test_site as site

browser = site.browser
ROOT = Path(__file__).resolve().parents[2]
CHAPTERS, TRUST = ROOT / "chapters", ROOT / "tools" / "trust.py"
NAME = "11_generating.ipynb"
# All cells at once, whether they are on the screen or not; and no news from elsewhere.
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/themes": {"theme": "JupyterLab Dark"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of JupyterLab in a folder with one chapter."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / NAME).write_bytes((CHAPTERS / NAME).read_bytes())
    for name, values in SETTINGS.items():
        path = folder / f"settings/@jupyterlab/{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
    options = [
        f"--port={address.rpartition(':')[2]}", "--port-retries=0", "--no-browser", "--allow-root",
        "--IdentityProvider.token=", f"--LabApp.user_settings_dir={folder / 'settings'}",
        f"--LabApp.workspaces_dir={folder / 'workspaces'}",
    ]  # fmt: skip
    kinds = ("CONFIG", "DATA", "RUNTIME")
    own = os.environ | {f"JUPYTER_{kind}_DIR": str(folder / kind.lower()) for kind in kinds}
    subprocess.run([sys.executable, TRUST, folder / NAME], env=own, check=True)
    log = (folder / "log").open("wb")
    command = [sys.executable, "-m", "jupyterlab", str(folder), *options]
    server = subprocess.Popen(command, stdout=log, stderr=log, env=own)
    try:
        wait_for(f"{address}/api", server, folder / "log")
        yield address
    finally:
        server.terminate()
        server.wait(30)
        log.close()


def wait_for(url: str, server: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    pytest.fail(f"JupyterLab did not start: {log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def page(browser, lab):
    page = browser.new_page()
    page.goto(f"{lab}/lab/tree/{NAME}")
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
    last = json.loads((CHAPTERS / NAME).read_text(encoding="utf-8"))["cells"][-1]
    heading = re.search(r"## (.*)", "".join(last["source"]))[1]
    page.get_by_role("heading", name=heading).wait_for(timeout=60_000)
    yield page
    page.close()


def test_directives_are_shown_not_told(page):
    shown = page.locator(".jp-Notebook").inner_text()
    assert len(shown) > 10_000
    assert re.findall(r":::|\{(?:admonition|dropdown|eq|numref)\}", shown) == []
    assert page.locator(".jp-Notebook details").count() >= 7  # hints, predictions, folds
    assert page.locator(".jp-Notebook details[open]").count() == 0


def test_no_solution_stands_open(page):
    cells = json.loads((CHAPTERS / NAME).read_text(encoding="utf-8"))["cells"]
    solutions = [
        re.search(r"def (\w+)", "".join(cell["source"]))[1]
        for cell in cells
        if "solution" in cell["metadata"].get("tags", [])
    ]
    assert len(solutions) >= 3
    sources = page.locator(".jp-Notebook .jp-CodeCell .jp-InputArea .cm-content").all_inner_texts()
    assert len(sources) > 8
    assert [name for name in solutions if any(f"def {name}(" in text for text in sources)] == []


def test_the_figure_with_settings_is_drawn_and_answers(page):
    """Without a cell having been run: that needs trust, which `make lab` gives."""
    look = page.locator(".tt-look")
    assert look.locator(".tt-drawing").is_visible()
    ink = look.evaluate("look => getComputedStyle(look).color")
    assert min(map(int, re.findall(r"\d+", ink)[:3])) > 150  # light letters on the dark page
    before = look.locator(".tt-words").inner_text()
    look.locator("[type=range]").first.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "before => document.querySelector('.tt-look .tt-words').innerText !== before", arg=before
    )
