"""Two real folders that a service and a user's end keep the same over a socket."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from detcloud.client.folder_sync import (
    FAILURES_SHOWN,
    SENTENCES_MAX,
    TRANSFER_SHARE,
)
from detcloud.client.ignore_rules import IgnoreRules
from detcloud.client.sync_thread import SyncThread
from detcloud.client.trial_folder import TrialFolder
from detcloud.shared.archive_limits import ArchiveInvalid
from detcloud.shared.folder_sync.folder import (
    FileEntry,
    FileRefused,
    FolderReplaced,
    SyncedFolder,
)
from detcloud.shared.folder_sync.frames import FolderLinkBroken, receive_frame, send_frame
from detcloud.shared.folder_sync.synced_names import SyncedNames
from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.client.folder_pair import SIZE_MAX, Pair


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with Pair(tmp_path) as made:
        yield made


def test_changes_of_both_sides_are_transferred(pair: Pair) -> None:
    (pair.here / "a").mkdir()
    (pair.here / "a" / "b.py").write_bytes(b"mine")
    (pair.there / "c.txt").write_bytes(b"theirs")
    assert pair.sync.finish()
    (pair.here / "a" / "b.py").unlink()
    (pair.there / "c.txt").write_bytes(b"new")
    assert pair.sync.finish()
    assert pair.names(pair.here) == pair.names(pair.there) == {"c.txt": b"new"}
    assert not (pair.there / "a").exists()
    assert pair.reports == []


def test_conflict_keeps_both_contents(pair: Pair) -> None:
    (pair.here / "a").write_bytes(b"mine")
    (pair.there / "a").write_bytes(b"theirs")
    assert pair.sync.finish()
    both = {"a": b"mine", "a.detcloud-theirs": b"theirs"}
    assert pair.names(pair.here) == pair.names(pair.there) == both
    assert len(pair.reports) == 1


def test_deletion_by_the_machine_keeps_a_copy(pair: Pair) -> None:
    (pair.here / "a").write_bytes(b"mine")
    assert pair.sync.finish()
    (pair.there / "a").unlink()
    assert pair.sync.finish()
    assert pair.names(pair.here) == {}
    assert pair.names(pair.backups) == {"1/a": b"mine"}
    assert str(pair.backups) in pair.reports[0]


def test_file_that_the_upload_lacks_is_sent_instead_of_deleted(pair: Pair) -> None:
    (pair.here / "a").write_bytes(b"mine")
    (pair.here / "b").write_bytes(b"mine")
    digest = hashlib.sha256(b"mine").hexdigest()
    (pair.there / "b").write_bytes(b"mine")
    pair.sync.adopt({"a": digest, "b": digest})
    assert pair.sync.finish()
    assert pair.names(pair.here) == pair.names(pair.there) == {"a": b"mine", "b": b"mine"}


def test_links_special_and_large_files_of_the_machine_stay_there(pair: Pair) -> None:
    (pair.there / "link").symlink_to("/etc/passwd")
    (pair.there / "folder").symlink_to("/etc")
    os.mkfifo(pair.there / "pipe")
    with (pair.there / "huge").open("wb") as file:
        file.truncate(10**12)
    for name in (".GIT", "ignored"):
        (pair.there / name).mkdir()
        (pair.there / name / "config").write_bytes(b"[core]")
    (pair.here / "keep").write_bytes(b"")
    assert not pair.sync.finish()
    # A large file may be the result of long work.
    assert pair.sync.missing == ["huge"]
    assert sorted(pair.names(pair.here)) == ["ignored/config", "keep"]
    [report] = pair.reports
    assert all(name in report for name in ("link", "folder", "pipe", "huge"))


def test_sentences_about_the_machine_are_bounded_and_have_one_line(pair: Pair) -> None:
    for number in range(SENTENCES_MAX + 5):
        (pair.there / f"{number}\nhint").symlink_to("/etc")
        pair.sync.run_round(is_fresh=True)
    assert len(pair.reports) == SENTENCES_MAX
    assert pair.reports[0].startswith("not kept the same: 0?hint (")
    assert "left out" in pair.reports[-1]


def test_links_of_this_machine_are_not_followed(pair: Pair, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (pair.here / "out").symlink_to(outside)
    (pair.there / "out").mkdir()
    (pair.there / "out" / "a").write_bytes(b"theirs")
    assert pair.sync.finish()
    assert list(outside.iterdir()) == []


def test_files_of_the_machine_are_bounded_together(pair: Pair) -> None:
    for number in range(5):
        (pair.there / str(number)).write_bytes(bytes([number]) * SIZE_MAX)
    assert not pair.sync.finish()
    # Three files of SIZE_MAX fit into 3 * SIZE_MAX.
    assert len(pair.names(pair.here)) == 3


def test_ignored_names_of_the_machine_never_arrive(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / ".detignore").write_text("data/\n")
    names = IgnoreRules(tmp_path / "here").names
    refused = ["data/a", "x/data/a", ".git/config", "x/.GIT/hooks/a", ".detignore", ".DetIgnore"]
    assert [name for name in refused if names.allows_file(name)] == []
    assert names.allows_file("x/a")


def test_changed_detignore_acts_on_both_sides(pair: Pair) -> None:
    (pair.here / "data").mkdir()
    (pair.here / "data" / "a").write_bytes(b"mine")
    assert pair.sync.finish()
    (pair.here / ".detignore").write_text("data/\n")
    (pair.there / "data" / "b").write_bytes(b"theirs")
    (pair.there / "data" / "a").unlink()
    assert pair.sync.finish()
    # No excluded file was deleted or fetched.
    assert sorted(pair.names(pair.here)) == [".detignore", "data/a"]
    (pair.here / ".detignore").write_text("[:alpha:]\n")
    assert pair.sync.finish()
    assert "the former rules stay" in pair.reports[0]
    (pair.here / ".detignore").unlink()
    assert pair.sync.finish()
    both = {"data/a": b"mine", "data/b": b"theirs"}
    assert pair.names(pair.here) == pair.names(pair.there) == both


def test_excluded_files_of_the_machine_are_not_read(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = SyncedFolder._read_entry

    def note(self: SyncedFolder, name: str, *arguments: Any) -> None:
        read.append(name)
        original(self, name, *arguments)

    monkeypatch.setattr(SyncedFolder, "_read_entry", note)
    (pair.here / ".detignore").write_text("data/\n")
    (pair.there / "data").mkdir()
    (pair.there / "data" / "huge").write_bytes(b"theirs")
    (pair.there / "a").write_bytes(b"theirs")
    pair.sync.adopt({})
    assert read == ["a"]


def test_another_folder_at_the_same_path_deletes_nothing(pair: Pair) -> None:
    (pair.here / "a").write_bytes(b"mine")
    assert pair.sync.finish()
    pair.here.rename(pair.here.with_name("unmounted"))
    pair.here.mkdir()
    with pytest.raises(FolderReplaced):
        pair.sync.finish()
    assert pair.names(pair.there) == {"a": b"mine"}


def test_failed_file_is_tried_again_later_and_named(pair: Pair) -> None:
    (pair.there / "a").write_bytes(b"theirs")
    (pair.there / ("x" * 250)).write_bytes(b"theirs")
    (pair.here / ("x" * 250)).write_bytes(b"mine")
    # The name of the copy would be too long for a file system.
    attempts = 0
    for _ in range(30):
        attempts += pair.sync.run_round()
        pair.seconds += 1
    # The delays are 2, 4, 8 and 16 seconds: attempts begin at 0, 2, 6 and 14.
    assert attempts == 4
    assert pair.names(pair.here) == {"a": b"theirs", "x" * 250: b"mine"}
    assert len(pair.reports) == 1
    assert attempts >= FAILURES_SHOWN
    assert not pair.sync.finish()
    assert pair.sync.missing == ["x" * 250]


def test_large_log_is_not_transferred_all_the_time(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = pair.there / "log"
    log.write_bytes(b"1")
    fetch = TrialFolder.fetch

    def take_a_second(self: TrialFolder, name: str, entry: FileEntry) -> Iterator[bytes]:
        pair.seconds += 1
        return fetch(self, name, entry)

    monkeypatch.setattr(TrialFolder, "fetch", take_a_second)
    assert pair.sync.run_round()
    log.write_bytes(b"12")
    pair.seconds += TRANSFER_SHARE - 1
    assert not pair.sync.run_round()
    pair.seconds += 1
    assert pair.sync.run_round(is_fresh=True)
    assert pair.names(pair.here) == {"log": b"12"}
    log.write_bytes(b"123")
    assert pair.sync.finish()
    assert pair.names(pair.here) == {"log": b"123"}


def test_deleted_file_of_the_machine_no_longer_counts(pair: Pair) -> None:
    for number in range(5):
        (pair.there / "a").write_bytes(bytes([number]) * SIZE_MAX)
        assert pair.sync.finish()
        (pair.here / "a").unlink()
        assert pair.sync.finish()
    assert pair.reports == []


@pytest.mark.parametrize("name", ["../a", "/etc/a", "a/../../b", "a//b", "", ".", "a\x00b", "C:/a"])
def test_hostile_names_are_refused_by_the_folder(pair: Pair, name: str) -> None:
    with pytest.raises(ArchiveInvalid, match="name"):
        pair.folder.write(name, [], replaced=None)
    with pytest.raises(FileRefused):
        pair.trial.send(name, [], replaced=None, is_executable=False)
    assert pair.names(pair.here.parent) == {}


def answer_once(answers: list[dict[str, object]]) -> socket.socket:
    """Return a connection whose other end sends answers to the first request."""
    user, other = socket.socketpair()

    def answer() -> None:
        # The user's end closes the connection after an invalid answer.
        with other, contextlib.suppress(FolderLinkBroken):
            receive_frame(other)
            for fields in answers:
                send_frame(other, fields)

    threading.Thread(target=answer, daemon=True).start()
    return user


@pytest.mark.parametrize(
    "entries",
    [
        "text",
        [["a", "short", 1, False]],
        [["a", "0" * 64, -1, False]],
        [["a"]],
        [{"name": "a"}],
    ],
)
def test_invalid_listing_ends_the_connection(entries: object) -> None:
    with answer_once([{"entries": entries}, {"done": True}]) as connection:
        trial = TrialFolder(connection, file_bytes_max=SIZE_MAX)
        with pytest.raises(FolderLinkBroken):
            trial.scan(SyncedNames())


def test_names_that_lead_out_of_the_folder_are_not_listed() -> None:
    names = ["../a", "/a", "a/../../b", "a/.", "\ud800"]
    entries = [[name, "0" * 64, 1, False] for name in [*names, "good"]]
    answers: list[dict[str, object]] = json.loads(
        json.dumps([{"entries": entries}, {"done": True}])
    )
    with answer_once(answers) as connection:
        content = TrialFolder(connection, file_bytes_max=SIZE_MAX).scan(SyncedNames())
        assert list(content.files) == ["good"]
        assert set(content.unknown) == set(names)


def test_replacement_is_refused_after_a_change(pair: Pair) -> None:
    (pair.here / "a").write_bytes(b"new")
    old = hashlib.sha256(b"old").hexdigest()
    attempts: list[Callable[[], object]] = [
        lambda: pair.folder.write("a", [b"theirs"], replaced=old),
        lambda: pair.folder.write("a", [b"theirs"], replaced=None),
        lambda: pair.folder.delete("a", old),
    ]
    for attempt in attempts:
        with pytest.raises(FileRefused, match="changed meanwhile"):
            attempt()
    assert pair.names(pair.here) == {"a": b"new"}


def test_incomplete_content_is_not_sent(pair: Pair) -> None:
    def blocks() -> Iterator[bytes]:
        yield b"n"
        raise FileRefused("the disk failed")

    with pytest.raises(FileRefused, match="the disk failed"):
        pair.trial.send("a", blocks(), replaced=None, is_executable=False)
    assert pair.names(pair.there) == {}
    # The connection is still usable.
    (pair.here / "a").write_bytes(b"new")
    assert pair.sync.finish()
    assert pair.names(pair.there) == {"a": b"new"}


def test_service_sends_one_notice_of_a_change(pair: Pair) -> None:
    pair.trial.scan(SyncedNames())
    (pair.there / "a").write_bytes(b"theirs")
    assert pair.trial.wait_for_change(60)
    assert list(pair.trial.scan(SyncedNames()).files) == ["a"]


def test_many_files_are_transferred(pair: Pair) -> None:
    for number in range(600):
        (pair.here / f"{number}").write_bytes(b"")
    assert pair.sync.finish()
    assert len(pair.names(pair.there)) == 600


def test_file_that_grows_while_read_has_its_former_content(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pair.there / "log").write_bytes(b"old")
    blocks = SyncedFolder._blocks

    def grow(self: SyncedFolder, file: BinaryIO, size: int | None = None) -> Iterator[bytes]:
        with (pair.there / "log").open("ab") as writer:
            writer.write(b"new")
        return blocks(self, file, size)

    monkeypatch.setattr(SyncedFolder, "_blocks", grow)
    pair.sync.run_round()
    assert pair.names(pair.here) == {"log": b"old"}
    monkeypatch.undo()
    assert pair.sync.finish()
    assert pair.names(pair.here) == pair.names(pair.there) == {"log": b"oldnewnew"}


def test_file_that_is_cut_while_sent_is_sent_again(pair: Pair) -> None:
    (pair.here / "a").write_bytes(b"long")
    content = pair.folder.scan()
    (pair.here / "a").write_bytes(b"1")
    assert b"".join(pair.folder.read("a", content.files["a"].size)) == b"1"
    assert pair.sync.finish()
    assert pair.names(pair.there) == {"a": b"1"}


def test_secret_file_stays_secret(pair: Pair) -> None:
    (pair.here / "key").write_bytes(b"mine")
    (pair.here / "key").chmod(0o600)
    assert pair.sync.finish()
    (pair.there / "key").write_bytes(b"theirs")
    assert pair.sync.finish()
    assert (pair.here / "key").read_bytes() == b"theirs"
    assert (pair.here / "key").stat().st_mode & 0o777 == 0o600


def test_file_system_without_second_names(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    (pair.here / "a").write_bytes(b"mine")
    assert pair.sync.finish()
    assert pair.names(pair.there) == {"a": b"mine"}


def test_thread_transfers_the_last_changes(pair: Pair) -> None:
    thread = SyncThread(pair.sync, pair.reports.append)
    (pair.there / "a").write_bytes(b"theirs")
    thread.hurry()
    (pair.here / "b").write_bytes(b"mine")
    assert thread.finish(PROCESS_SECONDS_MAX)
    both = {"a": b"theirs", "b": b"mine"}
    assert pair.names(pair.here) == pair.names(pair.there) == both
    assert pair.reports == []


def test_thread_reports_the_end_of_the_connection(pair: Pair) -> None:
    thread = SyncThread(pair.sync, pair.reports.append)
    pair.served.shutdown(socket.SHUT_RDWR)
    assert not thread.finish(PROCESS_SECONDS_MAX)
    assert "no longer kept the same" in pair.reports[0]
