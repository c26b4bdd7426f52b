"""Large files in HDFS, sent in parts and joined by HDFS.

A datanode is late, an answer is lost, two clients compete, or a writer dies.
"""

import hashlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from detcloud.shared.bucket_errors import BucketError, StoreBusy
from detcloud.shared.webhdfs import HdfsFolder
from detcloud.shared.webhdfs_limits import HdfsLimits
from detcloud.shared.webhdfs_upload import HdfsPartsUpload
from tests.conformance.checkpoint_files import hdfs_storage, send_part
from tests.conformance.test_hdfs_folder import KEY, datanode_url, folder, hdfs, stored_files
from tests.emulators.hadoop import Hadoop
from tests.emulators.webhdfs import OWNER, WebHdfs
from tests.patience import wait_until

__all__ = ["folder", "hdfs"]

MIB = 1 << 20
# Four different parts of 1 MiB, the smallest block of HDFS, and a fifth of 8 bytes.
CONTENT = b"".join(bytes([number]) * MIB for number in range(4)) + b"the last"
COUNT = 5


@pytest.fixture(autouse=True)
def _small_parts(set_upload_part_bytes: Callable[[int], None]) -> None:
    set_upload_part_bytes(MIB)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").write_bytes(CONTENT)
    return tmp_path / "source"


def request_count(hdfs: WebHdfs, operation: str) -> int:
    return [name for name, _ in hdfs.asked].count(operation)


def check_stored(hdfs: WebHdfs) -> None:
    """Check that HDFS has the file and no other."""
    assert stored_files(hdfs) == {f"/of/a team/{KEY}": CONTENT}


def folder_with_names(hdfs: WebHdfs, names_bytes_max: int) -> HdfsFolder:
    """Return the folder with a limit on the names of parts in a request."""
    limits = HdfsLimits(names_bytes_max=names_bytes_max)
    return HdfsFolder(hdfs.url, "/of/a team", OWNER, limits=limits)


def upload_of(folder: HdfsFolder) -> HdfsPartsUpload:
    return HdfsPartsUpload(folder, KEY, len(CONTENT))


def send_parts(opened: HdfsPartsUpload, numbers: Any, tmp_path: Path) -> None:
    for number in numbers:
        send_part(opened, number, CONTENT, tmp_path)


def test_large_file_is_sent_in_parts_and_joined_by_few_requests(
    hdfs: WebHdfs, source: Path
) -> None:
    # Room for two names: 2 and 3, then 4 and 5.
    folder = folder_with_names(hdfs, 200)
    assert folder.send(KEY, source)
    assert (request_count(hdfs, "CREATE"), request_count(hdfs, "CONCAT")) == (COUNT, 2)
    check_stored(hdfs)
    assert not folder.send(KEY, source)
    assert request_count(hdfs, "CREATE") == COUNT


def test_broken_datanode_costs_a_part(
    hdfs: WebHdfs, folder: HdfsFolder, source: Path, pauses: list[float]
) -> None:
    # All parts go to the first of two datanodes until that is excluded.
    hdfs.broken_datanodes = 1
    assert folder.send(KEY, source)
    check_stored(hdfs)
    assert request_count(hdfs, "CREATE") == 2 * COUNT


@pytest.mark.parametrize("content", [CONTENT, b"small"])
def test_late_write_of_a_datanode_changes_no_file(
    hdfs: WebHdfs, folder: HdfsFolder, source: Path, content: bytes, pauses: list[float]
) -> None:
    source.write_bytes(content)
    hdfs.late_writes = 1
    assert folder.send(KEY, source)
    assert hdfs.waiting_writes == []
    assert dict(folder.list_objects("3/")) == {KEY: len(content)}
    assert stored_files(hdfs)[f"/of/a team/{KEY}"] == content


def test_lost_answer_to_a_join_does_not_join_twice(
    hdfs: WebHdfs, source: Path, pauses: list[float]
) -> None:
    folder = folder_with_names(hdfs, 200)
    hdfs.lost_answers = ["CONCAT", "RENAME", "CONCAT"]
    assert folder.send(KEY, source)
    check_stored(hdfs)


def test_garbled_part_fails_the_whole_file(hdfs: WebHdfs, folder: HdfsFolder, source: Path) -> None:
    hdfs.garbled_files = 1
    with pytest.raises(BucketError, match="differs from what was sent"):
        folder.send(KEY, source)
    assert stored_files(hdfs) == {}


def test_interrupted_join_is_continued(hdfs: WebHdfs, tmp_path: Path, pauses: list[float]) -> None:
    folder, calls = folder_with_names(hdfs, 1), list[int]()
    send_parts(upload_of(folder), range(1, COUNT + 1), tmp_path)

    def fail_in_third() -> None:
        calls.append(1)
        if len(calls) == 3:
            hdfs.busy_answers = 1000
        else:
            hdfs.before["CONCAT"] = fail_in_third

    hdfs.before["CONCAT"] = fail_in_third
    with pytest.raises(StoreBusy):
        upload_of(folder).join()
    hdfs.busy_answers = 0
    later = upload_of(folder)
    assert later.stored_parts() == [1, 2, 3, 4, 5]
    # Joined parts are not stored again, although their separate files are gone.
    send_parts(later, [1, 2], tmp_path)
    assert later.join()
    check_stored(hdfs)
    # The first part is renamed, then each request joins one of the other four.
    assert request_count(hdfs, "CONCAT") == COUNT - 1


def test_two_concurrent_joins_publish_a_single_file(
    hdfs: WebHdfs, folder: HdfsFolder, tmp_path: Path, pauses: list[float]
) -> None:
    send_parts(upload_of(folder), range(1, COUNT + 1), tmp_path)
    outcomes = list[bool]()
    hdfs.before["CONCAT"] = lambda: outcomes.append(upload_of(folder).join())
    assert not upload_of(folder).join()
    assert outcomes == [True]
    check_stored(hdfs)


def test_new_content_of_a_part_replaces_the_old(
    hdfs: WebHdfs, folder: HdfsFolder, tmp_path: Path
) -> None:
    opened = upload_of(folder)
    (tmp_path / "wrong").write_bytes(b"x" * MIB)
    opened.store_part(2, hashlib.md5(b"x" * MIB).hexdigest(), str(tmp_path / "wrong"))
    assert opened.stored_parts() == [2]
    # A part of the wrong size is ignored.
    (tmp_path / "wrong").write_bytes(b"short")
    opened.store_part(3, hashlib.md5(b"short").hexdigest(), str(tmp_path / "wrong"))
    assert opened.stored_parts() == [2]
    send_parts(opened, range(1, COUNT + 1), tmp_path)
    assert opened.join()
    check_stored(hdfs)


def test_unjoined_parts_are_not_listed_and_go_with_the_folder(
    hdfs: WebHdfs, folder: HdfsFolder, tmp_path: Path
) -> None:
    send_parts(upload_of(folder), [1, 3], tmp_path)
    assert list(folder.list_objects("3/")) == []
    assert folder.list_folders("3/4/1/uuid") == []
    folder.remove_folder("3/4/1/uuid")
    assert stored_files(hdfs) == {}
    assert upload_of(folder).stored_parts() == []


@pytest.mark.parametrize("root", ["/of/a team", "/one,other"])
def test_file_is_sent_whole_if_hdfs_cannot_join(hdfs: WebHdfs, source: Path, root: str) -> None:
    hdfs.files.encrypted = root != "/one,other"
    folder = HdfsFolder(hdfs.url, root, OWNER)
    assert not folder.can_join
    assert folder.send(KEY, source)
    assert (request_count(hdfs, "CREATE"), request_count(hdfs, "CONCAT")) == (1, 0)
    assert stored_files(hdfs) == {f"{root}/{KEY}": CONTENT}


def test_file_is_sent_whole_after_hdfs_refuses_to_join(
    hdfs: WebHdfs, folder: HdfsFolder, source: Path
) -> None:
    assert folder.can_join
    hdfs.files.encrypted = True
    assert folder.send(KEY, source)
    check_stored(hdfs)
    assert not folder.can_join
    folder = HdfsFolder(hdfs.url, "/of/a team", OWNER)
    assert not folder.send(KEY, source)


@pytest.mark.nightly
def test_hadoop_upload_continues_after_a_dead_writer(real_hdfs: Hadoop, tmp_path: Path) -> None:
    """A connection ends in the middle of a part, and the datanode keeps the file open."""
    storage = hdfs_storage(real_hdfs.url, real_hdfs.user)
    folder = HdfsFolder.from_storage(storage, limits=HdfsLimits(names_bytes_max=1))
    send_parts(upload_of(folder), [1, 2], tmp_path)
    checkpoint = f"{storage['hdfs_path']}/{KEY.rpartition('/')[0]}"
    [parts] = [entry.name for entry in folder.paths.entries(checkpoint)]
    staged = f"{checkpoint}/{parts}/.put-dead"
    query = f"CREATE&blocksize={MIB}&overwrite=false"
    place = urlsplit(datanode_url(real_hdfs.url, real_hdfs.user, staged, query))
    with socket.create_connection((str(place.hostname), int(place.port or 0))) as half:
        head = f"PUT {place.path}?{place.query} HTTP/1.1\r\nHost: {place.netloc}\r\n"
        half.sendall(f"{head}Content-Length: {MIB}\r\n\r\n".encode() + CONTENT[: MIB // 2])
        wait_until(lambda: folder.paths.status(staged) is not None)
    later = upload_of(folder)
    assert later.stored_parts() == [1, 2]
    send_parts(later, [3, 4, 5], tmp_path)
    assert later.join()
    folder.fetch(KEY, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT
    # The dead writer's file was removed with the parts.
    names = [entry.name for entry in folder.paths.entries(checkpoint)]
    assert names == ["weights"]
    # A file that a single process stores in parts.
    (tmp_path / "source").write_bytes(CONTENT)
    assert folder.send("3/4/1/uuid/other", tmp_path / "source")
    folder.fetch("3/4/1/uuid/other", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT
