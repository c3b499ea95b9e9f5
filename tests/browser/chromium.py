"""Debian's Chromium, driven by Playwright; run as a program it installs what is missing.

Playwright's own browsers come from a host that many networks block, so none is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

NAMES = ("chromium", "chromium-browser", "google-chrome")
INSTALL = "apt-get install -y --no-install-recommends chromium fonts-liberation"
FLAGS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
)


def find() -> str | None:
    """The path of the browser; None if it is not installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def install() -> None:
    """Install the browser with apt-get; exits with the command to run if this user may not."""
    if find():
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        sys.exit(f"The tests of the dashboard need Chromium. Install it, on Debian with: sudo {INSTALL}")
    print("Installing Chromium for the tests of the dashboard.", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in ("apt-get update -q", INSTALL):
        subprocess.run(command.split(), check=True, env=quiet, stdout=subprocess.DEVNULL)


@contextmanager
def browsing() -> Iterator[object]:
    """A browser for as long as the block runs; raises if there is none."""
    from playwright.sync_api import sync_playwright

    path = find()
    if path is None:
        raise RuntimeError(f"Chromium is not installed; run: {INSTALL}")
    root = ("--no-sandbox",) if os.geteuid() == 0 else ()  # Chromium's sandbox does not work for root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*FLAGS, *root])
        try:
            yield browser
        finally:
            browser.close()


if __name__ == "__main__":
    install()
