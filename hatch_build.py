"""Metadata of the package that depends on where the repository is: its addresses, and the links of the README.

`make package REPOSITORY=https://…` names the repository. Without it the metadata has no address, and the README that
PyPI shows has the words of its links without the links.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

BRANCH = "main"
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)")
"""A picture or a link that names a file of the repository."""
WITHOUT_LINKS = """
The pages that this text names are in the source archive: `pip download --no-deps --no-binary scrubjay scrubjay`.
"""


class CustomMetadataHook(MetadataHookInterface):
    """Sets the fields that pyproject.toml calls dynamic; those of a source archive are in it already."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository = os.environ.get("REPOSITORY", "").rstrip("/")
        if "readme" not in metadata:
            text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
            metadata["readme"] = {"content-type": "text/markdown", "text": readme(text, repository)}
        if "urls" not in metadata and repository:
            metadata["urls"] = urls(repository)


def urls(repository: str) -> dict[str, str]:
    return {
        "Documentation": f"{repository}/blob/{BRANCH}/docs/index.md",
        "Repository": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/{BRANCH}/CHANGELOG.md",
    }


def readme(text: str, repository: str) -> str:
    """The README as PyPI shows it, without the repository beside it: links are absolute, or are no links."""

    def replace(found: re.Match[str]) -> str:
        mark, words, target = found.groups()
        if repository:
            return f"{mark}[{words}]({repository}/{'raw' if mark else 'blob'}/{BRANCH}/{target})"
        return "" if mark else words

    return LINK.sub(replace, text) + ("" if repository else WITHOUT_LINKS)
