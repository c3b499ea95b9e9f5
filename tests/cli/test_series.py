"""Backups in a series: on a schedule, of which the newest are kept."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from harness import clean_environment, run_command, run_text, serving
from scrubjay import Memory
from scrubjay.cli import series

MOMENTS = [f"scrubjay-2026010{day}T000000.000000Z.db" for day in range(1, 5)]


def test_durations_have_a_unit():
    assert [series.parse_duration(text) for text in ("90s", "30m", "1h", "2d")] == [90, 1800, 3600, 172_800]
    for text in ("1", "0h", "1.5h", "-1h", "hourly"):
        with pytest.raises(ValueError, match="30m, 1h or 1d"):
            series.parse_duration(text)


def test_only_the_newest_backups_are_kept_and_other_files_are_left_alone(tmp_path):
    folder, path = tmp_path / "backups", tmp_path / "db"
    Memory("ns", path=path).set("k", 1)
    folder.mkdir()
    for name in (*MOMENTS, "scrubjay-mine.db", "notes.txt"):
        (folder / name).write_text("")
    done = run_command("backup", "--keep", "3", folder, "--path", path)
    assert done.returncode == 0, done.stderr
    kept = series.list_backups(folder)
    assert [each.name for each in kept[:2]] == MOMENTS[2:]
    assert len(kept) == 3
    assert {"scrubjay-mine.db", "notes.txt"} <= {each.name for each in folder.iterdir()}
    with Memory("ns", path=kept[-1]) as memory:
        assert memory.get("k") == 1


def test_two_backups_in_a_second_are_two_files(tmp_path):
    Memory("ns", path=tmp_path / "db").set("k", 1)
    for _ in range(3):
        done = run_text("backup", "--keep", "2", tmp_path / "backups", "--path", tmp_path / "db")
        assert done.returncode == 0, done.stderr
    assert len(series.list_backups(tmp_path / "backups")) == 2


def test_a_series_of_no_backups_is_refused(tmp_path):
    done = run_text("backup", "--keep", "0", tmp_path / "backups", "--path", tmp_path / "db")
    assert done.returncode == 2
    assert "argument --keep: '0' is not a whole number from 1 up" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flags", [[], ["--force"]])
def test_a_folder_is_a_place_for_a_series_of_backups_and_not_for_one(tmp_path, flags):
    Memory("ns", path=tmp_path / "db").set("k", 1)
    done = run_text("backup", *flags, tmp_path, "--path", tmp_path / "db")
    assert done.returncode != 0
    assert f"{tmp_path} is a folder; name a file in it, or pass --keep N" in done.stderr


def test_a_name_that_ends_with_a_slash_is_a_folder_whether_it_exists_or_not(tmp_path):
    Memory("ns", path=tmp_path / "db").set("k", 1)
    done = run_text("backup", f"{tmp_path / 'new'}/", "--path", tmp_path / "db")
    assert done.returncode == 1
    assert f"{tmp_path / 'new'}/ is a folder; name a file in it, or pass --keep N" in done.stderr
    assert not (tmp_path / "new").exists()


def test_backups_of_a_server_are_made_until_the_process_is_stopped(tmp_path):
    folder = tmp_path / "new" / "backups"
    with serving(tmp_path / "db", "--durability", "fast") as server, Memory("ns", url=server.url) as memory:
        memory.set("k", 1)
        words = ["backup", "--every", "1s", "--keep", "2", str(folder), "--url", server.url]
        process = subprocess.Popen(
            [sys.executable, "-m", "scrubjay", *words], stdout=subprocess.PIPE, text=True, env=clean_environment()
        )
        try:
            made = [process.stdout.readline().split(":")[0] for _ in range(4)]
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
    assert process.returncode == 0
    assert sorted(set(made)) == made
    assert len(series.list_backups(folder)) == 2


def test_a_backup_that_failed_is_tried_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(series, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr("signal.signal", lambda _number, handler: handlers.append(handler))
    handlers, attempts = [], []

    def make(target) -> None:
        attempts.append(target)
        if len(attempts) < 3:
            raise OSError("the disk is full")
        handlers[0]()

    series.back_up_forever(tmp_path, make, None, 3600)
    assert len(attempts) == 3
    assert capsys.readouterr().err.count("the disk is full; the next attempt is in 0 seconds") == 2


def test_a_restart_does_not_make_a_backup_before_its_time(tmp_path):
    assert series._age_left(tmp_path, 3600) == 0
    (tmp_path / f"{series.datetime.now(series.UTC):{series.NAME}}").write_text("")
    assert 3500 < series._age_left(tmp_path, 3600) <= 3600
    (tmp_path / "scrubjay-29990101T000000.000000Z.db").write_text("")
    assert series._age_left(tmp_path, 3600) == 3600, "a clock that was wrong does not stop the backups for years"


def test_a_folder_that_cannot_be_made_ends_a_series_at_its_start(tmp_path):
    path = tmp_path / "db"
    Memory("ns", path=path).set("k", 1)
    for folder, code, reason in ((path, 1, "is not a folder"), (path / "below", 3, "name one that can be written")):
        done = run_command("backup", "--every", "1h", folder, "--path", path)
        assert (done.returncode, reason in done.stderr.decode()) == (code, True), done.stderr
