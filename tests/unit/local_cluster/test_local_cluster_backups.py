"""Tests of backups of an embedded cluster, restores, and state files copied by hand."""

import io
import json
import os
import shutil
import tarfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from control_plane.local import state_places
from control_plane.restoration.incarnation import read_incarnation
from control_plane.restoration.restart import SKIPPED_IDS, read_next_ids
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Put, Unavailable
from local_cluster import backups
from local_cluster.backup_archive import (
    DESCRIPTION,
    BackupDescription,
    BackupInvalid,
    write_backup,
)
from local_cluster.embedded_cluster import EmbeddedCluster, build_embedded_cluster
from local_cluster.home import HomeFolder, HomeInUse
from local_cluster.restore import restore_backup

COUNTER = Key("counters", "experiment")


@pytest.fixture(autouse=True)
def restored_umask() -> Iterator[None]:
    """Restore the umask after a test, because a backup sets the umask of the process."""
    before = os.umask(0o077)
    os.umask(before)
    yield
    os.umask(before)


@contextmanager
def running_cluster(home: Path) -> Iterator[EmbeddedCluster]:
    cluster = build_embedded_cluster(HomeFolder(home), "me")
    try:
        yield cluster
    finally:
        cluster.mark.advance()
        cluster.table.close()


def give_ids(home: Path, until: int) -> None:
    """Set the next experiment id of a cluster to `until`."""
    with running_cluster(home) as cluster:
        cluster.table.commit((Put(COUNTER, until, b"%d" % until, Expect.ANYTHING),))


def next_id(home: Path) -> int:
    with closing(SqliteTable(home / "state.db")) as table:
        return read_next_ids(table)["experiment"]


def incarnation(home: Path) -> str:
    with closing(SqliteTable(home / "state.db")) as table:
        return read_incarnation(table, "")


def make_backup(home: Path, archive: Path, *flags: str) -> dict[str, object]:
    return _run(home, "backup", *flags, str(archive))


def _run(home: Path, *words: str) -> dict[str, object]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["backups", "--home", str(home), *words])
        output = io.StringIO()
        patch.setattr("sys.stdout", output)
        assert backups.main() == 0
    report: dict[str, object] = json.loads(output.getvalue())
    return report


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return the folder of a cluster with an object and a checkpoint; the next experiment is 5."""
    home = tmp_path / "home"
    give_ids(home, 5)
    for name in ("objects/logs/1/1.1-0-9", "checkpoints/1/1/00000001/u/manifest.json"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    return home


def test_backup_moves_a_cluster_to_a_new_machine(home: Path, tmp_path: Path) -> None:
    make_backup(home, tmp_path / "b.tar", "--checkpoints")
    other = tmp_path / "other"
    report = _run(other, "restore", str(tmp_path / "b.tar"))
    assert (report["kept"], report["experiments"]) == (None, 0)
    for name in (
        "token",
        "signing.key",
        "objects/logs/1/1.1-0-9",
        "checkpoints/1/1/00000001/u/manifest.json",
    ):
        assert (other / name).read_bytes() == (home / name).read_bytes(), name
        assert (other / name).stat().st_mode & 0o077 == 0
    # Ids issued after the backup are unknown, so that the restore skips ids.
    assert next_id(other) == 5 + SKIPPED_IDS["experiment"]
    with running_cluster(other) as cluster, running_cluster(home) as former:
        assert cluster.adapters.cluster_id == former.adapters.cluster_id
    assert incarnation(other) not in ("", incarnation(home))


def test_restore_continues_after_the_newest_id_and_keeps_old_state(
    home: Path, tmp_path: Path
) -> None:
    make_backup(home, tmp_path / "b.tar")
    (home / "token").write_text("changed-since-with-good-reason-0123456789")
    give_ids(home, 9)
    report = _run(home, "restore", str(tmp_path / "b.tar"))
    assert next_id(home) == 9
    assert (home / "token").read_text().startswith("changed")
    kept = Path(str(report["kept"]))
    with closing(SqliteTable(kept)) as table:
        assert read_next_ids(table)["experiment"] == 9
    # The next start of the server accepts the restored state.
    before = incarnation(home)
    give_ids(home, 10)
    assert incarnation(home) == before


def test_backup_of_a_running_cluster_is_consistent(home: Path, tmp_path: Path) -> None:
    stopped = threading.Event()

    def write_pair(cluster: EmbeddedCluster, number: int) -> None:
        keys = [Key(f"pair#{side}", "n") for side in ("left", "right")]
        puts = [Put(key, number, b"%d" % number, Expect.ANYTHING) for key in keys]
        cluster.table.commit(puts)

    def write_pairs(cluster: EmbeddedCluster) -> None:
        number = 1
        while not stopped.is_set():
            number += 1
            write_pair(cluster, number)

    with running_cluster(home) as cluster:
        write_pair(cluster, 1)
        writer = threading.Thread(target=write_pairs, args=(cluster,))
        writer.start()
        try:
            for n in range(5):
                make_backup(home, tmp_path / f"{n}.tar")
        finally:
            stopped.set()
            writer.join()
    for n in range(5):
        _run(tmp_path / f"{n}", "restore", str(tmp_path / f"{n}.tar"))
        with closing(SqliteTable(tmp_path / f"{n}" / "state.db")) as table:
            left, right = table.get_many([Key("pair#left", "n"), Key("pair#right", "n")])
        assert left is not None
        assert right is not None
        assert left.body == right.body


def test_backup_contains_objects_written_during_the_state_copy(home: Path, tmp_path: Path) -> None:
    def change_objects(state: Path) -> BackupDescription:
        (home / "objects/late").write_text("late")
        (home / "objects/logs/1/1.1-0-9").unlink()
        return BackupDescription("me", 1)

    # The description is requested as soon as the state is copied.
    write_backup(HomeFolder(home), tmp_path / "b.tar", change_objects)
    with tarfile.open(tmp_path / "b.tar") as tar:
        names = tar.getnames()
    assert len(names) == len(set(names))
    assert {"objects/late", "objects/logs/1/1.1-0-9"} <= set(names)


def test_backup_overwrites_no_file_and_removes_failed_archives(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b.tar").write_text("mine")
    monkeypatch.chdir(tmp_path)
    words = ["--home", str(home), "backup", "b.tar"]
    assert backups.main(words) == 1
    assert "b.tar exists already" in capsys.readouterr().err
    assert (tmp_path / "b.tar").read_text() == "mine"
    (tmp_path / "b.tar").unlink()
    (home / "state.db").write_bytes(b"no database" * 1000)
    assert backups.main(words) == 1
    assert "cannot be copied" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert not list(home.glob(".backup-*"))


def test_backup_before_the_first_server_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--home", str(tmp_path / "home"), "backup", str(tmp_path / "b.tar")]
    assert backups.main(words) == 1
    assert "there is nothing to back up" in capsys.readouterr().err


def test_restore_under_a_running_server_is_refused(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_backup(home, tmp_path / "b.tar")
    with HomeFolder(home).claim():
        with pytest.raises(HomeInUse):
            HomeFolder(home).claim()
        words = ["--home", str(home), "restore", str(tmp_path / "b.tar")]
        assert backups.main(words) == 1
    assert "`detcloud down`" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    ["../escaped", "/tmp/escaped", "objects/../../escaped", "objects", "agent/x", "objects//x"],
)
def test_archive_with_foreign_entries_is_refused_before_any_write(
    home: Path, tmp_path: Path, name: str
) -> None:
    make_backup(home, tmp_path / "b.tar")
    before = sorted(home.rglob("*"))
    with tarfile.open(tmp_path / "b.tar", "a") as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(BackupInvalid, match="it has the entry"):
        restore_backup(HomeFolder(home), tmp_path / "b.tar")
    assert sorted(home.rglob("*")) == before
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_archive_with_links_is_refused(home: Path, tmp_path: Path, kind: bytes) -> None:
    make_backup(home, tmp_path / "b.tar")
    with tarfile.open(tmp_path / "b.tar", "a") as tar:
        member = tarfile.TarInfo("objects/link")
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member)
    with pytest.raises(BackupInvalid, match="objects/link"):
        restore_backup(HomeFolder(home), tmp_path / "b.tar")


def test_damaged_archive_leaves_the_state_unchanged(home: Path, tmp_path: Path) -> None:
    make_backup(home, tmp_path / "b.tar")
    content = (tmp_path / "b.tar").read_bytes()
    with tarfile.open(tmp_path / "b.tar") as tar:
        place = tar.getmember("state.db").offset_data
    damaged = {
        "cut": content[: place + 4096],
        "empty": b"",
        "text": b"no archive" * 200,
        "state": content[: place + 100] + b"\xff" * 9000 + content[place + 9100 :],
    }
    state = (home / "state.db").read_bytes()
    for name, broken in damaged.items():
        (tmp_path / name).write_bytes(broken)
        with pytest.raises((BackupInvalid, Unavailable)):
            restore_backup(HomeFolder(home), tmp_path / name)
        assert (home / "state.db").read_bytes() == state
    assert not list(home.glob("state-before-restore*"))
    assert not list(home.glob(".restore-*"))


def test_backup_of_a_later_format_is_refused(home: Path, tmp_path: Path) -> None:
    text = json.dumps(
        {
            "format": 2,
            "version": "9.0",
            "cluster_id": "x",
            "taken_ms": 1,
            "has_checkpoints": False,
        }
    ).encode()
    with tarfile.open(tmp_path / "b.tar", "w") as tar:
        member = tarfile.TarInfo(DESCRIPTION)
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))
    with pytest.raises(BackupInvalid, match=r"format 2, made by detcloud 9\.0"):
        restore_backup(HomeFolder(home), tmp_path / "b.tar")


def test_restore_keeps_the_damaged_state_file_and_skips_ids(home: Path, tmp_path: Path) -> None:
    make_backup(home, tmp_path / "b.tar")
    (home / "state.db").write_bytes(b"no database" * 1000)
    report = _run(home, "restore", str(tmp_path / "b.tar"))
    assert Path(str(report["kept"])).read_bytes() == b"no database" * 1000
    assert next_id(home) == 5 + SKIPPED_IDS["experiment"]


def test_failed_restore_leaves_the_former_state_the_latest(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_backup(home, tmp_path / "b.tar")
    give_ids(home, 9)
    before = incarnation(home)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(state_places, "copy_table_file", fail)
        with pytest.raises(OSError, match="No space"):
            restore_backup(HomeFolder(home), tmp_path / "b.tar")
    with running_cluster(home):
        pass
    assert (next_id(home), incarnation(home)) == (9, before)


def test_manually_restored_old_copy_changes_the_incarnation(home: Path, tmp_path: Path) -> None:
    shutil.copy(home / "state.db", tmp_path / "copy.db")
    give_ids(home, 9)
    assert incarnation(home) == ""
    shutil.copy(tmp_path / "copy.db", home / "state.db")
    give_ids(home, 2_000)
    first = incarnation(home)
    assert first != ""
    # The incarnation changes once: the next start finds the state of the previous server.
    give_ids(home, 2_001)
    assert incarnation(home) == first


def test_foreign_state_changes_the_incarnation_and_skips_no_ids(home: Path, tmp_path: Path) -> None:
    give_ids(tmp_path / "other", 3)
    shutil.copy(tmp_path / "other" / "state.db", home / "state.db")
    with running_cluster(home):
        pass
    assert next_id(home) == 3
    assert incarnation(home) != ""


@pytest.mark.parametrize("text", ["", "[]", '{"number": "x"}', '{"number": null}'])
def test_unreadable_mark_is_ignored(home: Path, text: str) -> None:
    (home / "state-mark.json").write_text(text)
    with running_cluster(home):
        pass
    assert (next_id(home), incarnation(home)) == (5, "")
