import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PosixPath
from typing import Any, ClassVar

import pytest

from detcloud.storage import KeyExists, StorageError
from detcloud.storage.types.directory import DirectoryStore
from tests.conformance.checkpoint_store import KEY
from tests.unit.core.full_disk import files_of_at_most


def test_a_link_out_of_the_store_is_refused(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    (tmp_path / "store").mkdir()
    (tmp_path / "secret").write_text("x")
    (tmp_path / "store" / "out").symlink_to(tmp_path)
    with pytest.raises(StorageError, match="leads out of the store"):
        store.get("out/secret", tmp_path / "copy")


def test_error_for_a_link_loop_names_the_path(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "a").symlink_to("b")
    (tmp_path / "store" / "b").symlink_to("a")
    (tmp_path / "source").write_text("x")
    for use in (
        lambda: store.get("a/weights", tmp_path / "copy"),
        lambda: store.put("a/weights", tmp_path / "source"),
        lambda: store.list("a"),
        lambda: store.delete("a/weights"),
    ):
        with pytest.raises(StorageError, match=f"{tmp_path}/store/a.* links that lead to each"):
            use()
    looping = DirectoryStore(tmp_path / "store" / "b" / "root")
    with pytest.raises(StorageError, match="links that lead to each other"):
        looping.list("3")


def test_failed_writes_leave_no_partial_file(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("x")
    store = DirectoryStore(tmp_path / "store")
    store.put(KEY, source)
    with pytest.raises(KeyExists):
        store.put(KEY, source)
    with files_of_at_most(0), pytest.raises(StorageError, match="File too large"):
        store.put(f"{KEY}.2", source)
    assert list((tmp_path / "store" / ".staging").iterdir()) == []
    assert store.list("3") == {KEY: 1}


def test_remains_of_a_killed_writer_are_removed_after_a_day(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("x")
    store = DirectoryStore(tmp_path / "store")
    staging = tmp_path / "store" / ".staging"
    staging.mkdir(parents=True)
    for name, age_seconds in (("young", 3600), ("old", 25 * 3600)):
        (staging / name).write_text("half")
        os.utime(staging / name, (time.time() - age_seconds,) * 2)
    store.put(KEY, source)
    assert [left.name for left in staging.iterdir()] == ["young"]


@pytest.mark.parametrize(
    ("key", "prefix"),
    [("3/4/1/uuid/a", ["uuid"]), ("3/4/1/uuid/deep/b", ["uuid"]), ("short/c", [])],
)
def test_an_unfinished_write_is_named_after_its_checkpoint(
    tmp_path: Path, key: str, prefix: list[str]
) -> None:
    # By the name, the collector removes unfinished files of a killed process.
    staging = tmp_path / "store" / ".staging"
    os.mkfifo(tmp_path / "source")
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(DirectoryStore(tmp_path / "store").put, key, tmp_path / "source")
        # The pipe has a reader once the write has begun.
        with (tmp_path / "source").open("wb") as source:
            (name,) = [path.name for path in staging.iterdir()]
            source.write(b"x")
        written.result()
    assert name.split(".")[:-1] == prefix
    assert (tmp_path / "store" / key).read_bytes() == b"x"


class WatchedPath(PosixPath):
    """A path whose files call `before_rename` before they are renamed, once."""

    before_rename: ClassVar[list[Callable[[], None]]] = []

    def rename(self, target: Any) -> Any:
        if self.before_rename:
            self.before_rename.pop()()
        return super().rename(target)


@pytest.mark.usefixtures("_no_hard_links")
def test_first_of_two_writers_succeeds_without_hard_links(tmp_path: Path) -> None:
    store = DirectoryStore(WatchedPath(tmp_path / "store"))
    for name in ("first", "second"):
        (tmp_path / name).write_text(name)

    def write_second() -> None:
        # The second write starts after the first write has found the key free.
        with pytest.raises(KeyExists):
            store.put("3/4/1/uuid/a", tmp_path / "second")

    WatchedPath.before_rename.append(write_second)
    store.put("3/4/1/uuid/a", tmp_path / "first")
    assert WatchedPath.before_rename == []
    assert (tmp_path / "store/3/4/1/uuid/a").read_text() == "first"
    with pytest.raises(KeyExists):
        store.put("3/4/1/uuid/a", tmp_path / "second")
    assert list((tmp_path / "store/.staging").iterdir()) == []


def test_parent_folders_of_a_stored_file_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    real = os.fsync

    def record_sync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record_sync)
    (tmp_path / "source").write_text("x")
    DirectoryStore(tmp_path / "store").put("3/4/1/file", tmp_path / "source")
    folders = [tmp_path, *(tmp_path / "store" / part for part in ("", "3", "3/4", "3/4/1"))]
    assert {folder.stat().st_ino for folder in folders} <= synced


def test_last_deletion_removes_empty_folders(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("x")
    store = DirectoryStore(tmp_path / "store")
    store.put(KEY, source)
    store.delete(KEY)
    assert not (tmp_path / "store" / "3").exists()


def test_a_fast_clock_does_not_remove_foreign_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A file server stamps the files by its own clock.
    staging = tmp_path / "store" / ".staging"
    staging.mkdir(parents=True)
    (staging / "uuid.other").write_bytes(b"half of it")
    (tmp_path / "source").write_bytes(b"abc")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 10 * 24 * 3600)
    DirectoryStore(tmp_path / "store").put("1/2/3/uuid/x", tmp_path / "source")
    assert [path.name for path in staging.iterdir()] == ["uuid.other"]
