"""The upload of TensorBoard files to a store."""

import os
import shutil
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from detcloud import core
from detcloud.core.event_upload import EventUploader, UploadLimits
from detcloud.shared.event_parts import assemble_files
from detcloud.storage import StorageError, StoreReplaced
from detcloud.storage.types.directory import DirectoryStore
from tests.patience import PROCESS_SECONDS_MAX, wait_until
from tests.unit.core.sealed_store import sealed_storage
from tests.unit.core.trial_files import enter, make_trial

PREFIX = "tensorboard/1/4"
EVENTS = "events.out.tfevents.1.host"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "events ü"
    path.mkdir()
    return path


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


def start_upload(
    folder: Path, store: DirectoryStore, epoch: int = 1, **limits: int
) -> EventUploader:
    """Return a running uploader with short pauses between the scans of `folder`."""
    quick = replace(UploadLimits(pause_seconds_min=0.01), **limits)
    return EventUploader(folder, store, PREFIX, epoch, quick)


def contents(store: DirectoryStore, prefix: str = PREFIX) -> dict[str, bytes]:
    """Return the content of each uploaded file, assembled from the stored parts, by path."""
    root = store.root / prefix
    below = f"{prefix}/"
    stored = [(key.removeprefix(below), size) for key, size in store.list(prefix).items()]
    return {
        file.path: b"".join((root / part.key).read_bytes() for part in file.parts)
        for file in assemble_files(stored)
    }


def is_stored(store: DirectoryStore, expected: dict[str, bytes]) -> bool:
    return contents(store) == expected


class HeldStore(DirectoryStore):
    """Store that blocks every upload until `is_released` is set; sets `is_asked` at an upload."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_asked, self.is_released = threading.Event(), threading.Event()

    def put(self, key: str, source: Path) -> None:
        self.is_asked.set()
        assert self.is_released.wait(PROCESS_SECONDS_MAX)
        super().put(key, source)


def test_files_written_during_the_last_scan_are_stored(folder: Path, tmp_path: Path) -> None:
    store = HeldStore(tmp_path / "held")
    uploader = start_upload(folder, store, 2)
    (folder / EVENTS).write_bytes(b"first")
    assert store.is_asked.wait(PROCESS_SECONDS_MAX)
    # The running scan has already listed the files.
    (folder / f"{EVENTS}.2").write_bytes(b"last")
    closing = threading.Thread(target=uploader.close)
    closing.start()
    wait_until(lambda: uploader.is_closing)
    store.is_released.set()
    closing.join()
    assert contents(store) == {EVENTS: b"first", f"{EVENTS}.2": b"last"}


def test_a_growing_file_is_stored_in_parts(folder: Path, store: DirectoryStore) -> None:
    uploader = start_upload(folder, store, 2)
    (folder / "run").mkdir()
    path, written = folder / "run" / EVENTS, b""
    for block in (b"first", b"", b"second", b"last"):
        with path.open("ab") as file:
            file.write(block)
        written += block
        expected = {f"run/{EVENTS}": written}
        wait_until(partial(is_stored, store, expected))
    (folder / "note.txt").write_bytes(b"just written")
    uploader.close()
    assert contents(store) == {f"run/{EVENTS}": b"firstsecondlast", "note.txt": b"just written"}
    assert len(store.list(PREFIX)) == 4


def test_a_large_file_is_stored_in_limited_parts(folder: Path, store: DirectoryStore) -> None:
    content = os.urandom(3500)
    (folder / EVENTS).write_bytes(content)
    start_upload(folder, store, part_bytes_max=1000).close()
    assert contents(store) == {EVENTS: content}
    assert sorted(store.list(PREFIX).values()) == [500, 1000, 1000, 1000]


def test_a_rewritten_file_is_stored_again_after_settling(
    folder: Path, store: DirectoryStore
) -> None:
    path = folder / "trace.json"
    moment = time.time() - 60
    uploader = start_upload(folder, store)
    for content in (b"a trace", b"another"):
        path.write_bytes(content)
        moment += 1
        os.utime(path, (moment, moment))
        wait_until(partial(is_stored, store, {"trace.json": content}))
    path.write_bytes(b"half")
    time.sleep(0.1)
    assert contents(store) == {"trace.json": b"another"}
    path.write_bytes(b"half and half")
    uploader.close()
    assert contents(store) == {"trace.json": b"half and half"}


def test_a_second_process_continues_the_parts_of_the_first(
    folder: Path, store: DirectoryStore
) -> None:
    path = folder / EVENTS
    path.write_bytes(b"of the first")
    start_upload(folder, store).close()
    with path.open("ab") as file:
        file.write(b", of the second")
    start_upload(folder, store).close()
    assert contents(store) == {EVENTS: b"of the first, of the second"}


class LateStore(DirectoryStore):
    """Store that fails three times."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.failures = 3

    def put(self, key: str, source: Path) -> None:
        if self.failures:
            self.failures -= 1
            raise StorageError("the store is away")
        super().put(key, source)


def test_a_failing_store_is_reported_once_and_retried(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = LateStore(tmp_path / "late")
    (folder / EVENTS).write_bytes(b"events")
    uploader = start_upload(folder, store)
    wait_until(lambda: contents(store) == {EVENTS: b"events"})
    uploader.close()
    assert capsys.readouterr().err.count("the store is away; training goes on") == 1


def test_links_and_files_outside_are_not_stored(
    folder: Path, store: DirectoryStore, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("of the machine")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "folder").symlink_to(tmp_path)
    start_upload(folder, store).close()
    assert store.list(PREFIX) == {}


def test_event_files_are_uploaded_to_a_store_without_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: DirectoryStore
) -> None:
    trial = make_trial(tmp_path, storage=sealed_storage(store.root))
    enter(trial, monkeypatch)
    with core.init() as context:
        context.train.report_training_metrics(1, {"loss": 0.5})
        (context.train.get_tensorboard_path() / "own").write_bytes(b"of the code")
    stored = contents(store, "tensorboard/3/4")
    assert stored.pop("own") == b"of the code"
    [(name, events)] = stored.items()
    assert name.startswith("events.out.tfevents.")
    assert b"training/loss" in events


class ReplacedStore(DirectoryStore):
    """A store whose bucket is lost, with all files, before the second put."""

    puts = 0

    def put(self, key: str, source: Path) -> None:
        self.puts += 1
        if self.puts == 2:
            shutil.rmtree(self.root)
            raise StoreReplaced("the bucket lacks earlier files")
        super().put(key, source)


def test_files_are_stored_again_after_the_loss_of_the_bucket(folder: Path, tmp_path: Path) -> None:
    store = ReplacedStore(tmp_path / "replaced")
    uploader = start_upload(folder, store, pause_seconds_min=3600)
    (folder / EVENTS).write_bytes(b"first")
    (folder / "note.txt").write_bytes(b"second")
    uploader.close()
    assert contents(store) == {EVENTS: b"first", "note.txt": b"second"}
