"""Hooks of MkDocs: pages of the root folder join the site, and links to other files lead to the repository.

If the address of the repository is not known, such a link is its words alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, normpath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def on_config(config: Any) -> Any:
    """The navigation: the pages that docs/index.md links to, in its sections and in its order."""
    _, *sections = re.split(r"^## (.*)$", (ROOT / "docs" / "index.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    config.nav = ["index.md"]
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        pages = [page.removeprefix("../") for page in re.findall(r"\]\(([^)#:]+\.md)\)", text)]
        config.nav.append({title: list(dict.fromkeys(pages))})
    return config


def on_files(files: Any, *, config: Any) -> Any:
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_rest: Any) -> str:
    """Rewrite the links that leave docs/."""
    # A page of the root is in docs/ on the site, so its own links start one folder above.
    here = "." if page.file.src_uri in ROOT_PAGES else f"docs/{dirname(page.file.src_uri)}"

    def rewrite(found: re.Match[str]) -> str:
        words, link, anchor = found[1], found[2], found[3] or ""
        target = normpath(f"{here}/{link}")
        if target.startswith("docs/") and here != ".":
            return found[0]
        if target.startswith("docs/"):
            return f"[{words}]({target.removeprefix('docs/')}{anchor})"
        if target in ROOT_PAGES:
            return f"[{words}]({'../' * page.file.src_uri.count('/')}{target}{anchor})"
        return f"[{words}]({config.repo_url}/blob/main/{target}{anchor})" if config.repo_url else words

    return re.sub(r"\[([^\]]*)\]\(((?!https?:|#)[^)#\s]+)(#[^)]*)?\)", rewrite, markdown)
