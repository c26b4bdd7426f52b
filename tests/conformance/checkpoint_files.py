"""The contract of the server's side of a checkpoint store.

A suite is a subclass with a `storage` fixture, the `storage` of a trial's specification.
"""

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from control_plane.checkpoint_stores.checkpoint_files import (
    CheckpointFiles,
    FileDigests,
    LargeFile,
    NoSuchFile,
    PartsUpload,
)
from control_plane.checkpoint_stores.trial_storage import display_storage, open_checkpoint_files
from detcloud.shared.bucket_errors import PartsConflict
from detcloud.storage import CheckpointStore, build_store

UUID = "00000000-0000-4000-8000-000000000001"
PARTS = ("3", "4", "1", UUID)
KEY = f"3/4/1/{UUID}/deep/weights"


def hdfs_storage(url: str, user: str) -> dict[str, str]:
    """Return the `storage` of a new folder of HDFS."""
    path = f"/of/a team/{secrets.token_hex(8)}"
    return {"type": "hdfs", "hdfs_url": url, "hdfs_path": path, "user": user}


@dataclass
class Memory:
    """A SessionMemory of a single file."""

    session: str | None = None

    def find(self) -> str | None:
        return self.session

    def keep(self, session: str, instead_of: str | None) -> str:
        assert self.session == instead_of
        self.session = session
        return session

    def forget(self) -> None:
        self.session = None


def large_file(path: str, content: bytes) -> LargeFile:
    """Return the description of a file as announced by the uploader."""
    return LargeFile(path, len(content), hashlib.md5(content).hexdigest())


def send_part(opened: PartsUpload, number: int, content: bytes, folder: Path) -> None:
    """Send a part of a file's content in the way that the upload requests."""
    start = opened.sizes.start_of(number)
    part = content[start : start + opened.sizes.size_of(number)]
    md5 = hashlib.md5(part).hexdigest()
    signed = opened.sign_part(number, md5, 60)
    if signed is None:
        (folder / "part").write_bytes(part)
        opened.store_part(number, md5, str(folder / "part"))
        return
    with urlopen(Request(signed[0], part, dict(signed[1]), method="PUT")):
        pass


class CheckpointFilesContract:
    @pytest.fixture
    def store(self, storage: dict[str, str], tmp_path: Path) -> CheckpointStore:
        """Return the store as a trial sees the files, with a checkpoint of one file."""
        store = build_store(storage)
        (tmp_path / "source").write_bytes(b"abc")
        store.put(KEY, tmp_path / "source")
        return store

    @pytest.fixture
    def files(self, storage: dict[str, str], store: CheckpointStore) -> CheckpointFiles:
        return open_checkpoint_files(storage)

    def test_file_of_a_trial_is_read(self, files: CheckpointFiles) -> None:
        content = files.open_file(KEY)
        assert (content.size, b"".join(content.blocks)) == (3, b"abc")

    @pytest.mark.parametrize("path", [f"{KEY}.2", f"3/4/1/{UUID}/none/weights", "9/9/9/9/9"])
    def test_missing_checkpoint_file_raises_no_such_file(
        self, files: CheckpointFiles, path: str
    ) -> None:
        with pytest.raises(NoSuchFile, match="is not there"):
            files.open_file(path)

    def test_signed_url_needs_no_other_credential(self, files: CheckpointFiles) -> None:
        url = files.signed_url(KEY, 60)
        if url is not None:
            with urlopen(url) as answer:
                assert answer.read() == b"abc"

    def test_removal_of_a_checkpoint_keeps_other_checkpoints(
        self, files: CheckpointFiles, store: CheckpointStore, tmp_path: Path
    ) -> None:
        others = [f"3/4/1/{UUID[:-1]}2/x", f"3/4/1/{UUID}-x/y", "3/4/2/z"]
        for key in others:
            store.put(key, tmp_path / "source")
        for _ in files.remove_folder(PARTS):
            pass
        files.sync_folder(PARTS[:-1])
        assert store.list("3") == {key: 3 for key in sorted(others)}

    def test_removal_of_a_checkpoint_may_be_repeated(
        self, files: CheckpointFiles, store: CheckpointStore
    ) -> None:
        for _ in range(2):
            for _ in files.remove_folder(PARTS, prune=True):
                pass
            files.remove_empty_folders(PARTS[:-1])
        assert store.list("3") == {}

    def test_removal_of_a_file_keeps_other_files(
        self, files: CheckpointFiles, store: CheckpointStore, tmp_path: Path
    ) -> None:
        others = [f"{KEY}.2", f"3/4/1/{UUID}/deep/er/weights", f"3/4/1/{UUID}/\u00fc b.bin"]
        for key in others:
            store.put(key, tmp_path / "source")
        assert files.remove_file(PARTS, "deep/weights") == 1
        assert store.list("3") == {key: 3 for key in sorted(others)}
        assert files.remove_file(PARTS, "\u00fc b.bin") == 1
        # A second removal is no error.
        files.remove_file(PARTS, "deep/weights")
        files.remove_file(PARTS, "none/at/all")
        assert store.list("3") == {key: 3 for key in sorted(others[:2])}

    @pytest.mark.parametrize("parts", [(), ("3",), ("3", ".."), ("3", ""), ("3", "4/1")])
    def test_refuses_parts_outside_a_checkpoint_folder(
        self, files: CheckpointFiles, store: CheckpointStore, parts: tuple[str, ...]
    ) -> None:
        with pytest.raises(ValueError, match="is not the folder"):
            list(files.remove_folder(parts))
        assert store.list("3") == {KEY: 3}

    def test_lists_stored_checkpoints_of_a_trial(
        self, files: CheckpointFiles, store: CheckpointStore, tmp_path: Path
    ) -> None:
        for key in (f"3/4/2/{UUID}/x", f"3/4/1/{UUID[:-1]}2/x", "3/44/1/other/x", "3/4/file"):
            store.put(key, tmp_path / "source")
        listed = sorted(files.list_checkpoints(3, 4))
        assert listed == [("1", UUID), ("1", f"{UUID[:-1]}2"), ("2", UUID)]
        assert list(files.list_checkpoints(3, 5)) == []

    def test_users_are_shown_the_location_without_secrets(
        self, files: CheckpointFiles, storage: dict[str, str]
    ) -> None:
        assert UUID in files.location_text(PARTS)
        shown = display_storage(storage)
        assert shown
        if "secret_key" in storage:
            assert storage["secret_key"] not in shown

    def test_parts_of_a_large_file_outlive_the_uploading_process(
        self,
        files: CheckpointFiles,
        tmp_path: Path,
        set_upload_part_bytes: Callable[[int], None],
    ) -> None:
        # S3's minimum: 11 MiB are parts of 5, 5 and 1 MiB.
        set_upload_part_bytes(5 << 20)
        content = b"0123456789abcdef" * (11 << 16)
        folder, memory = ("5", "6", "0", UUID), Memory()
        file = large_file(f"{'/'.join(folder)}/deep/\u00fc b.bin", content)
        opened = files.upload_in_parts(file, memory)
        if opened is None:
            pytest.skip("files are sent whole there")
        assert opened.stored_parts() == []
        send_part(opened, 1, content, tmp_path)
        assert list(files.list_files(folder)) == []
        later = files.upload_in_parts(file, memory)
        assert later is not None
        assert later.stored_parts() == [1]
        with pytest.raises(OSError, match=r"part 2 of .* is missing"):
            later.join()
        # In any order if the store allows this, and part 3 twice.
        for number in (2, 3) if later.is_in_order else (3, 2, 3):
            send_part(later, number, content, tmp_path)
        for _ in range(2):
            again = files.upload_in_parts(file, memory)
            assert again is not None
            again.join()
            assert list(files.list_files(folder)) == [("deep/\u00fc b.bin", len(content))]
        assert b"".join(files.open_file(file.path).blocks) == content
        assert memory.session is None
        list(files.remove_folder(folder, prune=True))
        assert list(files.list_files(folder)) == []

    def test_abandoned_upload_is_gone_for_a_later_process(
        self,
        files: CheckpointFiles,
        tmp_path: Path,
        set_upload_part_bytes: Callable[[int], None],
    ) -> None:
        # S3's minimum: 6 MiB are parts of 5 and 1 MiB.
        set_upload_part_bytes(5 << 20)
        content = b"0123456789abcdef" * (6 << 16)
        folder, memory = ("5", "6", "0", UUID), Memory()
        file = large_file(f"{'/'.join(folder)}/large", content)
        opened = files.upload_in_parts(file, memory)
        if opened is None:
            pytest.skip("files are sent whole there")
        opened.stored_parts()
        send_part(opened, 1, content, tmp_path)
        for _ in range(2):
            # As by the collector, and again after a crash.
            if memory.session is not None:
                files.end_session(memory.session)
            list(files.remove_folder(folder, prune=True))
        if memory.session is not None:
            # The session's URL stores no more parts.
            with pytest.raises(HTTPError):
                send_part(opened, 2, content, tmp_path)
        later = files.upload_in_parts(file, Memory())
        assert later is not None
        assert later.stored_parts() == []
        assert list(files.list_files(folder)) == []

    def test_join_with_a_wrong_size_is_refused_and_changes_no_file(
        self,
        files: CheckpointFiles,
        tmp_path: Path,
        set_upload_part_bytes: Callable[[int], None],
    ) -> None:
        set_upload_part_bytes(5 << 20)
        content = b"1" * (5 << 20) + b"2" * (1 << 20)
        path, memory = f"5/6/0/{UUID}/large.bin", Memory()

        def open_parts(size: int) -> PartsUpload:
            opened = files.upload_in_parts(LargeFile(path, size), memory)
            if opened is None:
                pytest.skip("files are sent whole there")
            return opened

        opened = open_parts(len(content))
        opened.stored_parts()
        for number in opened.sizes.numbers:
            send_part(open_parts(len(content)), number, content, tmp_path)
        # Google's parts become an object with the last part.
        for size in (len(content) - 1, 1 << 20, len(content) + 1):
            with pytest.raises(PartsConflict):
                open_parts(size).join()
        open_parts(len(content)).join()
        with pytest.raises(PartsConflict, match=f"is stored with {len(content)} bytes"):
            open_parts(1 << 20).join()
        assert b"".join(files.open_file(path).blocks) == content

    def test_uploads_of_users_are_stored_once_and_listed(
        self, files: CheckpointFiles, tmp_path: Path
    ) -> None:
        contents = {"a.bin": b"1" * 70_000, "deep/er/\u00fc b.bin": b"", "deep/c": b"xyz"}
        contents |= {".detcloud-upload-1": b"x", "deep/.put-1": b"y", ".staging/z": b"z"}
        uploads = ("5", "6", "0", UUID)
        assert list(files.list_files(uploads)) == []
        for name, content in contents.items():
            path = f"{'/'.join(uploads)}/{name}"
            (tmp_path / "sent").write_bytes(content)
            digests = FileDigests(
                len(content), hashlib.sha256(content).hexdigest(), hashlib.md5(content).hexdigest()
            )
            signed = files.sign_upload(path, 60, digests)
            if signed is None:
                assert files.store_file(path, str(tmp_path / "sent"))
                assert not files.store_file(path, str(tmp_path / "sent"))
                continue
            other = Request(signed.url, b"2" * len(content), dict(signed.headers), method="PUT")
            if content:
                with pytest.raises(HTTPError):
                    urlopen(other)
            with urlopen(Request(signed.url, content, dict(signed.headers), method="PUT")):
                pass
        assert dict(files.list_files(uploads)) == {
            name: len(content) for name, content in contents.items()
        }
        for name, content in contents.items():
            assert b"".join(files.open_file(f"{'/'.join(uploads)}/{name}").blocks) == content
