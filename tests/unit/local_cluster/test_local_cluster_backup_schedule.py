"""Scheduled backups of a server, and restores of their archives."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from control_plane.restoration.restart import SKIPPED_IDS, read_next_ids
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Put
from local_cluster.backup_places import BackupPlace, FolderPlace, open_backup_place
from local_cluster.backup_schedule import (
    RECORD,
    RETRY_MS_MAX,
    SCRATCH,
    BackupSchedule,
    BackupThread,
    archive_name,
    old_archives,
)
from local_cluster.certificates import load_or_create_certificate
from local_cluster.cluster_id import read_cluster_id
from local_cluster.embedded_cluster import build_embedded_cluster
from local_cluster.home import HomeFolder
from local_cluster.restore import restore_backup
from tests.integration.embedded_cluster import environment

HOUR_MS = 3_600_000
COUNTER = Key("counters", "experiment")


class Clock:
    def __init__(self) -> None:
        self.ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.ms


class FullPlace(FolderPlace):
    """A folder whose disk is full while `is_full`."""

    is_full = True

    def store(self, name: str, archive: Path) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        super().store(name, archive)


@pytest.fixture(autouse=True)
def imports(monkeypatch: pytest.MonkeyPatch) -> None:
    # The process of a backup imports the server.
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def home(tmp_path: Path) -> HomeFolder:
    """Return the folder of a cluster whose next experiment is 5."""
    home = HomeFolder(tmp_path / "home")
    cluster = build_embedded_cluster(home, "me")
    cluster.table.commit((Put(COUNTER, 5, b"5", Expect.ANYTHING),))
    cluster.mark.advance()
    cluster.table.close()
    return home


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "backups"


Build = Callable[..., BackupThread]


@pytest.fixture
def build(home: HomeFolder, folder: Path, clock: Clock) -> Build:
    def build_thread(keep: int = 2, place: BackupPlace | None = None) -> BackupThread:
        schedule = BackupSchedule(str(folder), 24 * HOUR_MS, keep)
        place = place or open_backup_place(str(folder))
        return BackupThread(home, cluster_id(home), schedule, place, clock)

    return build_thread


def cluster_id(home: HomeFolder) -> str:
    with closing(SqliteTable(home.folder / "state.db")) as table:
        return read_cluster_id(table) or ""


def record(home: HomeFolder) -> dict[str, Any]:
    return home.read_record(RECORD)


def test_backup_is_due_once_in_each_period(
    build: Build, home: HomeFolder, folder: Path, clock: Clock
) -> None:
    thread = build()
    assert thread.run_if_due()
    taken_ms = record(home)["taken_ms"]
    clock.ms = taken_ms + 24 * HOUR_MS - 1
    assert not thread.run_if_due()
    # A restart of the server is no reason for a backup.
    assert not build().run_if_due()
    clock.ms += 1
    assert thread.run_if_due()
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    assert not (home.folder / SCRATCH).exists()


def test_record_describes_the_last_backup(build: Build, home: HomeFolder, folder: Path) -> None:
    build().run_if_due()
    found = record(home)
    archive = folder / found["archive"]
    assert found["size_bytes"] == archive.stat().st_size
    assert (found["place"], found["keep"]) == (str(folder), 2)
    assert archive.name == archive_name(cluster_id(home), found["taken_ms"])
    assert "error" not in found


def test_failure_is_recorded_and_repeated_soon(
    build: Build, home: HomeFolder, folder: Path, clock: Clock
) -> None:
    place = FullPlace(folder)
    thread = build(place=place)
    thread.run_if_due()
    assert "No space left" in record(home)["error"]
    assert "taken_ms" not in record(home)
    clock.ms += RETRY_MS_MAX - 1
    assert not thread.run_if_due()
    clock.ms += 1
    place.is_full = False
    assert thread.run_if_due()
    assert "error" not in record(home)
    assert len(place.names()) == 1


def test_failure_keeps_the_time_of_the_last_backup(
    build: Build, home: HomeFolder, folder: Path, clock: Clock
) -> None:
    build().run_if_due()
    taken_ms = record(home)["taken_ms"]
    clock.ms = taken_ms + 24 * HOUR_MS
    build(place=FullPlace(folder)).run_if_due()
    assert record(home)["taken_ms"] == taken_ms
    assert record(home)["failed_ms"] == clock.ms


def test_damaged_state_is_a_failure(build: Build, home: HomeFolder) -> None:
    thread = build()
    (home.folder / "state.db").write_bytes(b"x" * 5000)
    thread.run_if_due()
    assert record(home)["error"]


def test_only_old_archives_of_this_cluster_are_deleted(
    build: Build, home: HomeFolder, folder: Path
) -> None:
    folder.mkdir()
    own = [archive_name(cluster_id(home), day * 86_400_000) for day in (1, 2, 3)]
    others = [archive_name("ffffffff-other", 1), "notes.txt", f"{own[0]}.old"]
    for name in (*own, *others):
        (folder / name).write_text("x")
    build(keep=2).run_if_due()
    kept = {path.name for path in folder.iterdir()}
    assert kept == {*others, own[2], record(home)["archive"]}


def test_names_sort_by_time() -> None:
    times = [0, 999_000_000_000, 1_800_000_000_000]
    names = [archive_name("c" * 36, time_ms) for time_ms in times]
    assert sorted(names) == names
    assert old_archives(names[::-1], "c" * 36, 1) == names[:2]
    assert old_archives(names, "c" * 36, 3) == []


def test_restored_backup_continues_the_cluster(
    build: Build, home: HomeFolder, folder: Path, tmp_path: Path
) -> None:
    pin = load_or_create_certificate(home, ["lab"]).pin
    token = (home.folder / "token").read_text()
    build().run_if_due()
    other = HomeFolder(tmp_path / "other")
    restore_backup(other, folder / record(home)["archive"])
    with closing(SqliteTable(other.folder / "state.db")) as table:
        assert read_next_ids(table)["experiment"] == 5 + SKIPPED_IDS["experiment"]
    assert (other.folder / "token").read_text() == token
    # Clients and agents have pinned the certificate.
    assert load_or_create_certificate(other, ["lab"]).pin == pin


@pytest.mark.parametrize("text", ["s3://", "ftp://host/x", "gs:///x", "s3://b/x?y=1"])
def test_invalid_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a folder"):
        open_backup_place(text)


def test_record_is_json_without_secrets(build: Build, home: HomeFolder) -> None:
    build().run_if_due()
    text = (home.folder / f"{RECORD}.json").read_text()
    assert (home.folder / "token").read_text().strip() not in text
    assert json.loads(text)["every_ms"] == 24 * HOUR_MS
