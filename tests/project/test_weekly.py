"""What runs every week: the book without Jupyter Book 1, and the links to other sites."""

import http.server
import json
import re
import sys
import threading
from pathlib import Path

import pytest
import yaml

import book_next
import links

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "book" / "_ext"))
tested_book = pytest.importorskip("tested_book")


# ------------------------------------------------------------------------------ the way out


def test_the_way_out_shares_all_versions_but_those_of_sphinx():
    now = "# pins\n\ntorch==2.13.0  # the models\nsphinx==7.4.7\njupyter-book==1.0.4.post1\n"
    later = "# others\n\nsphinx==9.0.4  # the build\n"
    listed = book_next.requirements(now, later)
    assert (
        listed == "# pins\n\ntorch==2.13.0  # the models\n# others\n\nsphinx==9.0.4  # the build\n"
    )


def test_what_the_way_out_takes():
    files = [ROOT / name for name in ("requirements.txt", "requirements-next.txt")]
    listed = book_next.requirements(*(path.read_text(encoding="utf-8") for path in files))
    names = re.findall(r"^([\w-]+)==", listed, re.MULTILINE)
    assert len(names) == len(set(names)), "one version of each"
    assert {"torch", "sphinx", "myst-nb", "sphinx-book-theme"} <= set(names)
    assert book_next.NOT_NEEDED.isdisjoint(names)
    written = set(re.findall(r"^([\w-]+)==", files[0].read_text(encoding="utf-8"), re.MULTILINE))
    assert written >= book_next.NOT_NEEDED, "what is not there cannot be left out"


def test_the_settings_of_the_way_out(tmp_path):
    conf = tmp_path / "conf.py"
    conf.write_text(
        "extensions = ['myst_nb', 'jupyter_book', 'sphinx_thebe', 'tested_book']\n"
        "language = 'en'\ncomments_config = {}\n"
    )
    wanted = {"extensions": ["myst_nb", "tested_book"], "language": "en", "nitpicky": True}
    assert book_next.settings(conf) == wanted


@pytest.mark.parametrize(
    ("signature", "shown"),
    [
        ("(x, act=<function relu at 0x7f>)", ("(x, act=...)", "T")),
        ("(x, parts=<factory>)", ("(x, parts=...)", "T")),
        ("(x=2)", ("(x=2)", "T")),
        ("(n: ~typing.Annotated[int, AtLeast(1)])", ("(n: PositiveInt)", "T")),
        ("", None),
        (None, None),
    ],
)
def test_what_has_no_signature_keeps_none(signature, shown):
    """Sphinx 8.2 and later refuse an empty one, for a module say."""
    assert tested_book.short_signature(None, "function", "f", None, None, signature, "T") == shown


# ----------------------------------------------------------------------------- outside links


class Site(http.server.BaseHTTPRequestHandler):
    """Answers under two addresses, and refuses robots under one of them."""

    def do_HEAD(self):
        self.send_response({"/here": 200, "/closed": 403}.get(self.path, 404))
        self.end_headers()

    def do_GET(self):
        self.do_HEAD()

    def log_message(self, *words):
        """Say nothing."""


@pytest.fixture
def site():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_broken_link_is_found_with_its_place(tmp_path, site, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    book = tmp_path / "book"
    book.mkdir()
    (book / "_config.yml").write_text("title: Small\nexecute: {execute_notebooks: 'off'}\n")
    (book / "_toc.yml").write_text("{format: jb-book, root: one}")
    (book / "one.md").write_text(
        f"# One\n\n[a]({site}/here)\n\n[b]({site}/gone)\n\n[c]({site}/closed)\n"
    )
    (found,) = links.broken(book, tmp_path / "out")
    assert found.startswith(f"one.md:5: {site}/gone (404")


@pytest.mark.slow
def test_a_check_that_fails_is_no_book_without_broken_links(tmp_path):
    (tmp_path / "_toc.yml").write_text("{format: jb-book, root: nowhere}")
    assert links.broken(tmp_path, tmp_path / "out") is None


# -------------------------------------------------------------------------------- workflows

WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    for path in (ROOT / ".github" / "workflows").glob("*.yml")
}


def test_every_command_of_make_in_a_workflow_is_there():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    asked = {}
    for name, jobs in WORKFLOWS.items():
        runs = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
        asked[name] = {word for run in runs for word in re.findall(r"^make ([a-z-]+)", run, re.M)}
        assert asked[name] <= targets
    assert asked["weekly"] == {"book-next", "judge-soak", "links", "malformed"}
    assert asked["publish"] == {"book"}


def test_workflows_have_time_enough():
    """Three times what the recorded run took: machines for everybody are slower, and run other things."""
    minutes = {
        job: facts["timeout-minutes"] for jobs in WORKFLOWS.values() for job, facts in jobs.items()
    }
    record = json.loads((ROOT / "book" / "tested.json").read_text(encoding="utf-8"))
    book = next(step["seconds"] for step in record["steps"] if step["name"] == "book")
    assert minutes["everything"] * 60 >= 3 * record["seconds"]
    assert minutes["everything"] >= 90
    assert min(minutes.values()) * 60 >= 3 * book
