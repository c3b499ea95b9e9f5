"""The project that a program belongs to: a part of the namespaces that adapters choose by themselves.

Two programs that both name their agent "assistant" must not share its conversations, and one program must find its own
again. So a namespace names the folder of the program, with a digest of its path: folders are often named "src" or
"app". SCRUBJAY_PROJECT names the project instead, for a program that moves, or for several that share their agents.
"""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path

from scrubjay.settings import resolve

DIGEST_CHARS = 6
"""Hexadecimal digits of the digest: among 100 folders of one name, two share it with a chance of 1 in 3,000."""


def project_name() -> str:
    """The name of the project that this process runs."""
    given = resolve("project")
    if given:
        return str(given)
    folder = program_folder()
    return f"{folder.name or 'root'}-{sha256(str(folder).encode()).hexdigest()[:DIGEST_CHARS]}"


def program_folder() -> Path:
    """The folder of the program, wherever it is started from.

    A prompt has no file, and the file of uvicorn, pytest or Jupyter belongs to the Python environment: then it is the
    current folder.
    """
    file = sys.executable if getattr(sys, "frozen", False) else getattr(sys.modules["__main__"], "__file__", None)
    if file:
        folder = Path(file).resolve().parent
        if getattr(sys, "frozen", False) or not _is_installed(folder):
            return folder
    return Path.cwd()


def _is_installed(folder: Path) -> bool:
    """Whether the folder belongs to the Python environment."""
    return any(folder.is_relative_to(Path(prefix).resolve()) for prefix in (sys.prefix, sys.base_prefix))
