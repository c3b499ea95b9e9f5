from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from harness import DRIVERS, Server, fresh_name, schema_for, serving
from scrubjay import Memory
from scrubjay.settings import SETTINGS

# No test depends on the speed of the machine, so examples have no deadline and may be slow to make.
settings.register_profile(
    "scrubjay", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("scrubjay")


def pytest_xdist_auto_num_workers(config):
    """Two workers for each core: a test that waits for a server or a lock leaves the core to another."""
    return 2 * (os.cpu_count() or 1)


def pytest_collection_modifyitems(config, items):
    """Tests of what a file promises run on the drivers of SQLite alone."""
    for_files = [
        item for item in items if item.get_closest_marker("sqlite_file") and "postgres" in item.callspec.params.values()
    ]
    items[:] = [item for item in items if item not in for_files]
    config.hook.pytest_deselected(items=for_files)


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch, tmp_path):
    """No test reads or writes what belongs to the developer."""
    for setting in SETTINGS.values():
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("SCRUBJAY_TIMEOUT", "60")  # not 5: a server on a busy machine may take longer
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Server:
    """One server for all tests that do not need their own; it has no quotas."""
    path = tmp_path_factory.mktemp("server") / "scrubjay.db"
    with serving(path, "--writes-per-day", "0", "--max-bytes", "0", "--durability", "fast") as server:
        yield server


@pytest.fixture(params=["embedded", "server"])
def open_memory(request, tmp_path):
    """A maker of Memory handles that all look at the same data, on either end."""
    yield from memories(request, tmp_path)


def memories(request, tmp_path):
    """The maker for the place that is the parameter of a fixture: embedded, server or postgres."""
    if request.param == "server":
        where = {"url": request.getfixturevalue("server").url, "timeout": 60}
    elif request.param == "postgres":
        where = {"url": schema_for(tmp_path), "durability": "fast"}
    else:
        where = {"path": str(tmp_path / "scrubjay.db"), "durability": "fast"}
    opened = []

    def open_(namespace: str | None = None, **options) -> Memory:
        opened.append(Memory(namespace or fresh_name(), **where, **options))
        return opened[-1]

    open_.where = where
    yield open_
    for memory in opened:
        memory.close()


@pytest.fixture
def memory(open_memory) -> Memory:
    return open_memory()


@pytest.fixture(params=DRIVERS)
def open_driver(request, tmp_path):
    """A maker of stores under either driver, all on one file."""
    opened = []

    def open_(**options):
        opened.append(DRIVERS[request.param](tmp_path / "scrubjay.db", **{"durability": "fast", **options}))
        return opened[-1]

    open_.kind = request.param
    yield open_
    for driver in opened:
        driver.close()


@pytest.fixture
def driver(open_driver):
    return open_driver()
