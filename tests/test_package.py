"""The wheel: it has every module, the metadata that PyPI needs, and a README whose links work there."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from the source archive, as an installer without a wheel does."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = {
        re.sub(r"^dashboard/", "scrubjay/dashboard/", path.relative_to(ROOT / folder).as_posix())
        for folder in ("client", "server")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == files


def test_pypi_would_accept_the_wheel(wheel):
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", str(wheel)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_links_of_the_readme_are_absolute_and_name_files_that_exist(metadata):
    text = metadata.get_payload()
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert targets
    for target in targets:
        assert target.startswith(("https://", "#")), target
        for prefix in (f"{repository}/blob/main/", repository.replace("github", "raw.githubusercontent") + "/main/"):
            if target.startswith(prefix):
                assert (ROOT / target.removeprefix(prefix).partition("#")[0]).exists(), target


def test_the_metadata_names_the_places_of_the_project(metadata):
    named = {each.split(",")[0] for each in metadata.get_all("Project-URL")}
    assert named == {"Documentation", "Repository", "Issues", "Changelog"}
    assert metadata["License-Expression"] == "MIT"
    assert "Typing :: Typed" in metadata.get_all("Classifier")
