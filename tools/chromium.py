"""Where Chromium is on this machine, and how it is started: it prints the book and tests the site."""

import os
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MISSING = (
    "there is no Chromium here: install one (Debian and Ubuntu: apt-get install chromium; macOS: brew install "
    "--cask chromium), or name its program in the variable CHROMIUM"
)
# Chromium itself calls home; with these it does not, so what is seen is the page's own doing.
FLAGS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]


def find_chromium() -> str | None:
    """The program, or None."""
    found = [os.environ.get("CHROMIUM"), *map(shutil.which, NAMES)]
    return next((path for path in found if path), None)
