"""Debian's Chromium, driven by Playwright; run as a program it installs what is missing, proxies included.

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
PROGRAMS = (NAMES, ("nginx",), ("caddy",), ("pgbouncer",))
"""What the tests of the dashboard, of deploy/ and of poolers run; one of each."""
INSTALL = "apt-get install -y --no-install-recommends chromium fonts-liberation nginx-light caddy"
INSTALL_POOLER = "apt-get install -y --no-install-recommends pgbouncer"
"""Separate, because the tests of poolers are skipped where there is no such package."""
PATIENT = ("-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=300")
"""Options of apt-get: another program may be installing something, and a download may break off."""
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
    """Install the browser, the proxies and PgBouncer with apt-get.

    If this user may not, it exits with the command to run; if only the browser is there, the tests of the others are
    skipped.
    """
    path = f"{os.environ['PATH']}:/usr/sbin"
    if all(any(shutil.which(name, path=path) for name in names) for names in PROGRAMS):
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        advice = f"on Debian with: sudo {INSTALL} pgbouncer"
        if not find():
            sys.exit(f"The tests of the dashboard need Chromium. Install it, {advice}")
        print(f"Tests that need nginx, Caddy or PgBouncer are skipped where it is missing. Install them, {advice}")
        return
    print("Installing Chromium, nginx, Caddy and PgBouncer for the tests.", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in ("apt-get update -q", INSTALL, INSTALL_POOLER):
        is_needed = command != INSTALL_POOLER
        program, *arguments = command.split()
        subprocess.run([program, *PATIENT, *arguments], check=is_needed, env=quiet, stdout=subprocess.DEVNULL)


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
