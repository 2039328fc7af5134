"""Serve the built site on this machine as a static host would: compressed, and kept by the browser for a while.

Usage: python tools/serve.py [--port 8000]
"""

import argparse
import errno
import functools
import gzip
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

# From tools/chapters.py, which needs more than Python has by itself; `make serve` needs no environment.
SITE = Path(__file__).resolve().parents[1] / "_build" / "html"
TEXT = (".html", ".css", ".js", ".svg", ".json", ".txt", ".ipynb", ".xml", ".md", ".inv")
KEEP = 600  # seconds, what GitHub Pages tells a browser


@functools.cache
def compressed(path: str, changed: float) -> bytes:
    """A file as it travels; made once, until the file changes."""
    return gzip.compress(Path(path).read_bytes(), 9)


class StaticHost(SimpleHTTPRequestHandler):
    """Files of one folder, gzipped for who takes it."""

    protocol_version = "HTTP/1.1"  # one connection carries many files
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {
        ".js": "text/javascript",
        ".svg": "image/svg+xml",
        ".woff2": "font/woff2",
        ".ipynb": "application/x-ipynb+json",
    }

    def __init__(self, *arguments, base: str = "/", **options):
        self.base = base
        super().__init__(*arguments, **options)

    def translate_path(self, path):
        """The file at an address; the site may live below the root of its host."""
        return super().translate_path("/" + path.removeprefix(self.base))

    def send_head(self):
        """Answer with the headers, and return what follows them."""
        path = Path(self.translate_path(self.path))
        if path.is_dir() and self.path.partition("?")[0].endswith("/"):
            path /= "index.html"
        takes = "gzip" in self.headers.get("Accept-Encoding", "")
        if not (takes and path.is_file() and path.suffix in TEXT):
            return super().send_head()
        body = compressed(str(path), path.stat().st_mtime)
        self.send_response(200)
        kind = self.guess_type(str(path))
        self.send_header(
            "Content-Type", kind + ("; charset=utf-8" if kind.startswith("text/") else "")
        )
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Vary", "Accept-Encoding")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return BytesIO(body)

    def send_error(self, code, message=None, explain=None):
        """Answer a wrong address with the site's own page, where it has one."""
        lost = Path(self.directory) / "404.html"
        if code != 404 or not lost.is_file():
            return super().send_error(code, message, explain)
        body = lost.read_bytes()
        self.send_response(404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def end_headers(self):
        """Add what every answer says."""
        self.send_header("Cache-Control", f"max-age={KEEP}")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, *arguments):
        """Say nothing for each file: a page has dozens."""


class Server(ThreadingHTTPServer):
    """One thread a connection; a second server on a taken port is an error on every system."""

    daemon_threads = True
    allow_reuse_address = sys.platform != "win32"


def start(folder: Path = SITE, port: int = 0, base: str = "/") -> Server:
    """Serve a folder in the background, below a path of the host; port 0 takes a free one."""
    handler = functools.partial(StaticHost, directory=str(folder), base=base)
    server = Server(("127.0.0.1", port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main() -> int:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", default="8000")
    port = parser.parse_args().port
    if not (port.isdecimal() and int(port) < 2**16):
        print(
            f"PORT is a number from 0 to 65535, not {port}: make serve PORT=8001", file=sys.stderr
        )
        return 1
    if not (SITE / "index.html").is_file():
        print("There is no site yet: run make book first.", file=sys.stderr)
        return 1
    try:
        server = start(port=int(port))
    except OSError as error:
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        why = "something else uses it, or it needs other rights" if taken else error
        print(f"Port {port} cannot be had ({why}): make serve PORT=8001", file=sys.stderr)
        return 1
    print(f"Open http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
