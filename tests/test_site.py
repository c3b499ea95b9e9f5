"""The documentation as a site: it builds in strict mode, its links resolve, and it loads nothing from elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://git.example.org/memory/scrubjay"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "REPOSITORY": REPOSITORY}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    return folder


class Links(HTMLParser):
    """The links of a page, its anchors, and what a browser loads for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if given.get("id"):
            self.anchors.add(given["id"])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif tag in ("script", "img", "iframe") and given.get("src"):
            self.loaded.append(given["src"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "preconnect", "icon"):
            self.loaded.append(given["href"])


def test_every_page_of_the_documentation_is_in_the_site(site):
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).exists(), page


def test_no_heading_is_a_row_of_the_table_before_it(site):
    assert [page.name for page in site.rglob("*.html") if "<td>#" in page.read_text()] == []


def test_every_link_within_the_site_resolves(site):
    pages = {page: Links(page.read_text()) for page in site.rglob("*.html") if page.name != "404.html"}
    for page, found in pages.items():
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{page.name}: {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].anchors, f"{page.name}: {link}"


def test_a_link_to_a_file_of_the_repository_names_one_that_exists(site):
    links = {link for page in site.rglob("*.html") for link in Links(page.read_text()).links}
    named = {link.removeprefix(f"{REPOSITORY}/blob/main/") for link in links if f"{REPOSITORY}/blob/main/" in link}
    assert named
    for name in named:
        assert (ROOT / urlsplit(name).path).exists(), name


def test_the_site_loads_nothing_from_other_servers(site):
    for page in site.rglob("*.html"):
        assert [each for each in Links(page.read_text()).loaded if urlsplit(each).netloc] == [], page
