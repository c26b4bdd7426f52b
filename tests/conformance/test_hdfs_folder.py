"""A folder of HDFS beyond the conformance suites: namenodes, datanodes and lost answers.

A nightly test compares the HDFS model of the suites with Hadoop.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from detcloud.shared.bucket_errors import BucketError, NoSuchKey, StoreBusy
from detcloud.shared.webhdfs import HdfsFolder
from detcloud.shared.webhdfs_limits import HdfsLimits
from detcloud.storage import StorageError, build_store
from tests.emulators.hadoop import Hadoop
from tests.emulators.webhdfs import OWNER, WebHdfs, webhdfs

pytestmark = pytest.mark.usefixtures("pauses")

KEY = "3/4/1/uuid/weights"
CONTENT = bytes(range(256)) * 40


@pytest.fixture
def hdfs() -> Iterator[WebHdfs]:
    with webhdfs() as started:
        yield started


@pytest.fixture
def folder(hdfs: WebHdfs) -> HdfsFolder:
    return HdfsFolder(hdfs.url, "/of/a team", OWNER)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").write_bytes(CONTENT)
    return tmp_path / "source"


def stored_files(hdfs: WebHdfs) -> dict[str, bytes]:
    return {path: content for path, content in hdfs.files.contents.items() if content is not None}


def test_standby_namenode_is_skipped_and_the_active_namenode_is_remembered(
    hdfs: WebHdfs, folder: HdfsFolder, source: Path, pauses: list[float]
) -> None:
    hdfs.active = 1
    assert folder.send(KEY, source)
    hdfs.active, hdfs.standby_requests = 0, 0
    for _ in range(2):
        assert folder.object_size(KEY) == len(CONTENT)
    # Only the first of two requests was sent to the standby namenode.
    assert hdfs.standby_requests == 1
    assert pauses == []


def test_namenode_that_refuses_a_request_is_remembered(hdfs: WebHdfs, folder: HdfsFolder) -> None:
    hdfs.active = 1
    for _ in range(2):
        assert folder.object_size(KEY) is None
    assert hdfs.standby_requests == 1


def test_error_without_an_active_namenode_names_all_namenodes(
    hdfs: WebHdfs, folder: HdfsFolder, pauses: list[float]
) -> None:
    hdfs.active = 2
    with pytest.raises(BucketError, match="no namenode responds") as refused:
        folder.object_size(KEY)
    assert all(f"{url}: 403 StandbyException" in str(refused.value) for url in hdfs.namenodes)
    # Six rounds with pauses in between.
    assert len(pauses) == 5


def test_busy_namenode_raises_store_busy(
    hdfs: WebHdfs, folder: HdfsFolder, pauses: list[float]
) -> None:
    hdfs.busy_answers = 2
    folder.remove_folder("3")
    hdfs.busy_answers = 100
    with pytest.raises(StoreBusy, match="503 RetriableException Server too busy"):
        folder.remove_folder("3")
    assert len(pauses) == 2 + 5


def test_lost_datanode_is_replaced(
    hdfs: WebHdfs, folder: HdfsFolder, source: Path, tmp_path: Path
) -> None:
    hdfs.broken_datanodes = 1
    assert folder.send(KEY, source)
    folder.fetch(KEY, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT
    hdfs.broken_datanodes = 2
    with pytest.raises(BucketError, match=r"datanode .* does not answer"):
        folder.send("3/other", source)


def test_hdfs_writer_wins_despite_a_lost_answer_to_the_rename(
    hdfs: WebHdfs, folder: HdfsFolder, source: Path
) -> None:
    hdfs.lost_answers = ["RENAME"]
    assert folder.send(KEY, source)
    assert [name for name, _ in hdfs.asked].count("RENAME") == 2
    assert list(stored_files(hdfs)) == [f"/of/a team/{KEY}"]


def test_second_of_two_hdfs_writers_leaves_no_file(
    hdfs: WebHdfs, folder: HdfsFolder, source: Path
) -> None:
    # A competing writer finishes after this writer has looked for the file.
    path = f"/of/a team/{KEY}"
    hdfs.before["RENAME"] = lambda: hdfs.files.write(path, b"other", OWNER, overwrite=False)
    assert not folder.send(KEY, source)
    assert stored_files(hdfs) == {path: b"other"}


def test_garbled_hdfs_file_is_not_published(
    hdfs: WebHdfs, folder: HdfsFolder, source: Path
) -> None:
    hdfs.garbled_files = 1
    with pytest.raises(BucketError, match="differs from what was sent"):
        folder.send(KEY, source)
    assert stored_files(hdfs) == {}
    assert folder.send(KEY, source)


def test_hdfs_download_resumes_after_a_break(hdfs: WebHdfs, source: Path, tmp_path: Path) -> None:
    limits = HdfsLimits(fetched_part_bytes=3000)
    folder = HdfsFolder(hdfs.url, "/of/a team", OWNER, limits=limits)
    folder.send(KEY, source)
    hdfs.cut_answers = 3
    folder.fetch(KEY, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT
    hdfs.cut_answers = 1000
    with pytest.raises(BucketError, match="cannot be read"):
        folder.fetch(KEY, tmp_path / "copy")


def test_truncated_answer_of_a_namenode_is_requested_again(
    hdfs: WebHdfs, folder: HdfsFolder, source: Path, pauses: list[float]
) -> None:
    folder.send(KEY, source)
    hdfs.cut_metadata = 2
    assert list(folder.list_objects("3/")) == [(KEY, len(CONTENT))]
    assert len(pauses) == 2
    hdfs.cut_metadata = 100
    with pytest.raises(BucketError, match=r"no namenode responds: .*breaks off"):
        folder.object_size(KEY)


@pytest.mark.parametrize(
    "content",
    [
        *(
            b"",
            b"<html>",
            b"[]",
            b"{}",
            b'{"FileStatus": 5}',
            b'{"FileStatuses": {"FileStatus": 5}}',
        ),
        b'{"FileStatus": {}, "FileStatuses": {"FileStatus": [{}]}}',
        b'{"FileStatus": {"type": "FILE", "length": "x", "fileId": 1, "pathSuffix": ""}, '
        b'"FileStatuses": {"FileStatus": [{"type": "FILE", "length": -1, "pathSuffix": "a"}]}}',
    ],
)
def test_unexpected_answer_of_hdfs_is_a_bucket_error(
    hdfs: WebHdfs, folder: HdfsFolder, content: bytes
) -> None:
    for work in (
        lambda: folder.object_size(KEY),
        lambda: list(folder.list_objects("3/")),
        lambda: folder.open(KEY),
        lambda: folder.list_folders("3"),
    ):
        hdfs.other_answers = [content]
        with pytest.raises(BucketError, match="unexpected answer"):
            work()


def test_unfinished_hdfs_files_are_not_listed(
    hdfs: WebHdfs, folder: HdfsFolder, source: Path
) -> None:
    hdfs.files.write("/of/a team/3/4/.put-0", b"", OWNER, overwrite=False)
    assert folder.send("3/4/x", source)
    assert list(folder.list_objects("3/")) == [("3/4/x", len(CONTENT))]
    # A user's file whose name begins like an unfinished file is a separate file.
    assert folder.send("3/4/.put-0", source)
    assert dict(folder.list_objects("3/")) == {"3/4/x": len(CONTENT), "3/4/.put-0": len(CONTENT)}
    with pytest.raises(NoSuchKey):
        folder.open("3/4")


def test_names_that_hdfs_misreads_are_escaped(
    hdfs: WebHdfs, folder: HdfsFolder, source: Path, tmp_path: Path
) -> None:
    key = "3/a b+c;d%e~f:g/ü"
    folder.send(key, source)
    # The bytes of ü are C3 BC.
    assert list(stored_files(hdfs)) == ["/of/a team/3/a~20b~2Bc~3Bd~25e~7Ef~3Ag/~C3~BC"]
    assert list(folder.list_objects("3/")) == [(key, len(CONTENT))]
    folder.fetch(key, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT


def test_refused_write_names_the_remedy_without_the_login(hdfs: WebHdfs, source: Path) -> None:
    url = hdfs.namenodes[0].replace("//", "//me:canary@")
    fields = {"type": "hdfs", "hdfs_url": url, "hdfs_path": "/of", "user": "other"}
    with pytest.raises(StorageError, match="set a user with write permission") as refused:
        build_store(fields).put(KEY, source)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("url", ["", ";"])
def test_empty_namenode_url_is_refused(url: str) -> None:
    with pytest.raises(BucketError, match="http://host:port was expected"):
        HdfsFolder(url, "/of")


@pytest.mark.parametrize("request_name", ["remove_folder", "delete", "object_size", "open"])
def test_empty_key_is_refused(
    hdfs: WebHdfs, folder: HdfsFolder, source: Path, request_name: str
) -> None:
    assert folder.send(KEY, source)
    with pytest.raises(BucketError, match="'' is not a valid name of a stored file"):
        getattr(folder, request_name)("")
    assert dict(folder.list_objects("")) == {KEY: len(CONTENT)}
    assert folder.list_folders("") == ["3"]


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def datanode_url(url: str, user: str, path: str, query: str) -> str:
    """Request the creation of a file, and return the URL that receives the content."""
    target = f"{url}/webhdfs/v1{quote(path)}?op={query}&user.name={user}"
    with pytest.raises(urllib.error.HTTPError) as redirected:
        urllib.request.build_opener(_Stay).open(urllib.request.Request(target, method="PUT"))
    assert redirected.value.code == 307
    return str(redirected.value.headers["Location"])


def outcome(url: str, user: str, method: str, path: str, query: str, body: bytes | None) -> Any:
    """Return the parts of the answer that a client depends on."""
    opener = urllib.request.build_opener(_Stay)
    target = f"{url}/webhdfs/v1{path}?op={query}&user.name={user}"
    try:
        answer = opener.open(urllib.request.Request(target, method=method))
    except urllib.error.HTTPError as error:
        if error.code != 307:
            return error.code, json.loads(error.read())["RemoteException"]["exception"]
        request = urllib.request.Request(error.headers["Location"], body, method=method)
        try:
            answer = opener.open(request)
        except urllib.error.HTTPError as refused:
            return refused.code, json.loads(refused.read())["RemoteException"]["exception"]
    with answer:
        content = answer.read()
    if not query.startswith(("GETFILESTATUS", "LISTSTATUS")):
        return answer.status, content.replace(b" ", b"")
    parsed = json.loads(content)
    statuses = parsed["FileStatuses"]["FileStatus"] if "FileStatuses" in parsed else [parsed]
    shown = ("pathSuffix", "type", "length")
    return [[item.get("FileStatus", item)[name] for name in shown] for item in statuses]


MIB = "blocksize=1048576"
REQUESTS = [
    ("PUT", "/a/b", "MKDIRS", None),
    ("PUT", "/a/b", "MKDIRS", None),
    ("PUT", "/a/x:y", "MKDIRS", None),
    ("GET", "/none", "GETFILESTATUS", None),
    ("GET", "/none", "LISTSTATUS", None),
    ("GET", "/none", "OPEN", None),
    ("DELETE", "/none", "DELETE&recursive=false", None),
    ("PUT", "/a/b/f", "CREATE&overwrite=true", b"abc"),
    ("PUT", "/a/b/f", "CREATE&overwrite=false", b"abc"),
    ("GET", "/a/b/f", "GETFILESTATUS", None),
    ("GET", "/a/b/f", "LISTSTATUS", None),
    ("GET", "/a/b", "LISTSTATUS", None),
    ("GET", "/a/b/f", "OPEN&offset=1&length=1", None),
    ("GET", "/a/b/f", "OPEN&offset=7&length=1", None),
    ("PUT", "/a/b/f", "RENAME&destination=/a/b/g", None),
    ("PUT", "/a/b/f", "RENAME&destination=/a/b/h", None),
    ("PUT", "/a/b/f", "CREATE&overwrite=true", b""),
    ("GET", "/a/b/f", "OPEN", None),
    ("PUT", "/a/b/f", "RENAME&destination=/a/b/g", None),
    ("PUT", "/a/b/f", "RENAME&destination=/a/none/g", None),
    ("PUT", "/a/b/f", "RENAME&destination=/a", None),
    ("GET", "/a", "LISTSTATUS", None),
    ("DELETE", "/a/b", "DELETE&recursive=false", None),
    ("DELETE", "/a/b", "DELETE&recursive=true", None),
    ("DELETE", "/a/b", "DELETE&recursive=true", None),
    ("DELETE", "/a/f", "DELETE&recursive=false", None),
    ("DELETE", "/a", "DELETE&recursive=false", None),
    *(("PUT", f"/c/{name}", f"CREATE&overwrite=false&{MIB}", name.encode()) for name in "1234"),
    ("PUT", "/c/small", "CREATE&overwrite=false&blocksize=512", b"x"),
    ("PUT", "/c/larger", "CREATE&overwrite=false&blocksize=2097152", b"x"),
    ("PUT", "/c/empty", f"CREATE&overwrite=false&{MIB}", b""),
    ("PUT", "/c/d/far", f"CREATE&overwrite=false&{MIB}", b"x"),
    ("POST", "/c/1", "CONCAT&sources=/c/2,/c/none", None),
    ("POST", "/c/none", "CONCAT&sources=/c/2", None),
    ("POST", "/c/1", "CONCAT&sources=/c/1", None),
    ("POST", "/c/1", "CONCAT&sources=/c/2,/c/2", None),
    ("POST", "/c/1", "CONCAT&sources=/c/empty", None),
    ("POST", "/c/1", "CONCAT&sources=/c/d/far", None),
    ("POST", "/c/1", "CONCAT&sources=/c/larger", None),
    ("GET", "/c", "LISTSTATUS", None),
    # In the order that is named, and again, as after a lost answer.
    ("POST", "/c/1", "CONCAT&sources=/c/3,/c/2", None),
    ("GET", "/c/1", "OPEN", None),
    ("POST", "/c/1", "CONCAT&sources=/c/3,/c/2", None),
    ("POST", "/c/1", "CONCAT&sources=/c/4", None),
    ("GET", "/c/1", "OPEN", None),
    ("GET", "/c", "LISTSTATUS", None),
]


@pytest.mark.nightly
def test_hdfs_model_answers_as_hadoop(real_hdfs: Hadoop) -> None:
    with webhdfs() as model:
        for request in REQUESTS:
            expected = outcome(real_hdfs.url, real_hdfs.user, *request)
            assert outcome(model.namenodes[0], OWNER, *request) == expected, request
        for url, user in ((real_hdfs.url, "other"), (model.namenodes[0], "other")):
            refused = outcome(url, user, "PUT", "/z", "CREATE&overwrite=true", b"x")
            assert refused == (403, "AccessControlException")
