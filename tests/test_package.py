"""The wheel: it has every module, the metadata that PyPI needs, and a README whose links work there."""

from __future__ import annotations

import email
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://git.example.org/memory/scrubjay"


def build(source: Path, folder: Path, *flags: str, repository: str = "") -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", *flags, "--outdir", str(folder), str(source)]
    environment = {**os.environ, "REPOSITORY": repository}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    build(ROOT, folder, "--sdist", repository=REPOSITORY)
    (made,) = folder.glob("*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(archive, tmp_path_factory) -> Path:
    """The wheel, built from the source archive, as an installer without a wheel does: it does not know REPOSITORY."""
    folder = tmp_path_factory.mktemp("dist")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    build(folder / archive.name.removesuffix(".tar.gz"), folder, "--wheel")
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
    targets = re.findall(r"\]\(([^)]+)\)", metadata.get_payload())
    assert targets
    for target in targets:
        assert target.startswith(("https://", "#")), target
        if target.startswith(REPOSITORY):
            name = re.sub(rf"^{REPOSITORY}/(blob|raw)/main/", "", target).partition("#")[0]
            assert (ROOT / name).exists(), target


def test_the_metadata_names_the_places_of_the_project(metadata):
    places = dict(each.split(", ") for each in metadata.get_all("Project-URL"))
    assert set(places) == {"Documentation", "Repository", "Issues", "Changelog"}
    assert all(place.startswith(REPOSITORY) for place in places.values())


def test_without_an_address_no_place_is_invented_and_the_source_archive_has_the_pages(archive):
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    metadata = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("REPOSITORY", raising=False)
        module.CustomMetadataHook(str(ROOT), {}).update(metadata)
    assert set(metadata) == {"readme"}
    assert "The tutorial covers" in metadata["readme"]["text"]
    assert not re.search(r"\]\((?!https?:|#)", metadata["readme"]["text"])
    assert not re.search(r"github\.com|!\[", metadata["readme"]["text"])
    with tarfile.open(archive) as packed:
        packed_names = {name.partition("/")[2] for name in packed.getnames()}
    named = {target for _, _, target in module.LINK.findall((ROOT / "README.md").read_text())}
    for target in named - {"CONTRIBUTING.md", "examples"}:
        assert target.partition("#")[0] in packed_names, target


def test_the_metadata_has_licence_and_classifiers(metadata):
    assert metadata["License-Expression"] == "MIT"
    assert "Typing :: Typed" in metadata.get_all("Classifier")
