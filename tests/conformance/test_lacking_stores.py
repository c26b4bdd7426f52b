"""Every operation of every store at a server that refuses or ignores an optional feature."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles, FileDigests
from control_plane.checkpoint_stores.trial_storage import open_checkpoint_files
from detcloud.shared.bucket_errors import BucketError
from detcloud.storage import CheckpointStore, KeyExists, KeyNotFound, StorageError
from tests.conformance.checkpoint_files import (
    KEY,
    PARTS,
    Memory,
    hdfs_storage,
    large_file,
    send_part,
)
from tests.conformance.lacking_stores import (
    AZURE_NAMES,
    GCS_NAMES,
    HDFS_NAMES,
    ODD_ANSWERS,
    S3_NAMES,
    lacking,
    storage_behind,
)
from tests.conformance.small_stores import build_small_store
from tests.conformance.stores_under_test import open_store
from tests.emulators.lacking_front import Feature, LackingFront, MissingFeature, lacking_front
from tests.emulators.webhdfs import OWNER
from tests.thinning import every

MIB = 1 << 20
SMALL = b"abc"
# Several parts for all stores, whose smallest parts have 5 MiB.
LARGE = b"".join(bytes([number]) * MIB for number in range(6)) + b"the last"
FEATURES = {"s3": S3_NAMES, "gcs": GCS_NAMES, "azure": AZURE_NAMES, "hdfs": HDFS_NAMES}


@dataclass
class Stack:
    """A store behind a front, for a trial and for the server."""

    front: LackingFront
    storage: dict[str, str]
    folder: Path

    @property
    def store(self) -> CheckpointStore:
        """Return the store of a new trial process, with small parts."""
        return build_small_store(self.storage)

    @property
    def files(self) -> CheckpointFiles:
        """Return the server's side of the store."""
        return open_checkpoint_files(self.storage)

    def put(self, content: bytes, key: str = KEY) -> None:
        """Store a file as by a trial."""
        (self.folder / "source").write_bytes(content)
        self.store.put(key, self.folder / "source")

    def check(self, content: bytes, key: str = KEY) -> None:
        """Read a file as by a trial, and compare the content."""
        self.store.get(key, self.folder / "copy")
        check_same((self.folder / "copy").read_bytes(), content)


@pytest.fixture(autouse=True)
def _small_parts(set_upload_part_bytes: Callable[[int], None]) -> None:
    """Cut users' uploads into the smallest parts that S3 accepts."""
    set_upload_part_bytes(5 * MIB)


def check_same(content: bytes, expected: bytes) -> None:
    """Compare contents without a diff, which takes pytest minutes for large contents."""
    assert len(content) == len(expected)
    is_same = content == expected
    assert is_same


def check_contents(stack: Stack) -> None:
    for content in (SMALL, LARGE, b""):
        key = f"{KEY}-{len(content)}"
        stack.put(content, key)
        stack.check(content, key)


def check_many_files_of_one_process(stack: Stack) -> None:
    """Check that a process learns a store's missing features from the first files."""
    store = stack.store
    for number in range(3):
        for content in (LARGE, SMALL):
            (stack.folder / "source").write_bytes(content)
            store.put(f"{KEY}-{number}-{len(content)}", stack.folder / "source")
            store.get(f"{KEY}-{number}-{len(content)}", stack.folder / "copy")
            check_same((stack.folder / "copy").read_bytes(), content)


def check_nothing_is_overwritten(stack: Stack) -> None:
    for content in (SMALL, LARGE):
        key = f"{KEY}-{len(content)}"
        stack.put(content, key)
        for other in (b"other", LARGE[::-1]):
            with pytest.raises(KeyExists):
                stack.put(other, key)
        stack.check(content, key)


def check_missing(stack: Stack) -> None:
    stack.put(SMALL)
    stack.store.delete(KEY)
    with pytest.raises(KeyNotFound):
        stack.check(SMALL)
    assert stack.store.list("3") == {}
    stack.put(SMALL)
    assert stack.store.list("3") == {KEY: 3}


def check_server_reads(stack: Stack) -> None:
    for content in (SMALL, LARGE):
        key = f"{KEY}-{len(content)}"
        stack.put(content, key)
        opened = stack.files.open_file(key)
        assert opened.size == len(content)
        check_same(b"".join(opened.blocks), content)
        if url := stack.files.signed_url(key, 60):
            with urlopen(url) as answer:
                check_same(answer.read(), content)


def check_uploads(stack: Stack) -> None:
    md5, sha256 = (hashlib.new(name, SMALL).hexdigest() for name in ("md5", "sha256"))
    signed = stack.files.sign_upload(KEY, 60, FileDigests(len(SMALL), sha256, md5))
    if signed is None:
        (stack.folder / "source").write_bytes(SMALL)
        assert stack.files.store_file(KEY, str(stack.folder / "source"))
    else:
        with urlopen(Request(signed.url, SMALL, dict(signed.headers), method="PUT")):
            pass
    stack.check(SMALL)


def check_uploads_in_parts(stack: Stack) -> None:
    memory, large = Memory(), large_file(KEY, LARGE)
    opened = stack.files.upload_in_parts(large, memory)
    if opened is None:
        # Then the file is sent whole.
        digests = FileDigests(len(LARGE), hashlib.sha256(LARGE).hexdigest(), large.md5)
        signed = stack.files.sign_upload(KEY, 60, digests)
        if signed is None:
            (stack.folder / "source").write_bytes(LARGE)
            assert stack.files.store_file(KEY, str(stack.folder / "source"))
        else:
            with urlopen(Request(signed.url, LARGE, dict(signed.headers), method="PUT")):
                pass
    else:
        for number in opened.sizes.numbers:
            opened = stack.files.upload_in_parts(large, memory)
            assert opened is not None
            if number not in opened.stored_parts():
                send_part(opened, number, LARGE, stack.folder)
        last = stack.files.upload_in_parts(large, memory)
        assert last is not None
        last.join()
        assert not last.join() or opened.is_in_order
    stack.check(LARGE)


def check_removal(stack: Stack) -> None:
    for content in (SMALL, LARGE):
        stack.put(content, f"{KEY}-{len(content)}")
    stack.put(SMALL, "3/4/2/other/x")
    assert dict(stack.files.list_files(PARTS)) == {
        "deep/weights-3": 3,
        f"deep/weights-{len(LARGE)}": len(LARGE),
    }
    assert sum(stack.files.remove_folder(PARTS)) >= 1
    assert stack.store.list("3") == {"3/4/2/other/x": 3}


OPERATIONS: dict[str, Callable[[Stack], None]] = {
    "contents": check_contents,
    "many files": check_many_files_of_one_process,
    "writing again": check_nothing_is_overwritten,
    "missing": check_missing,
    "server reads": check_server_reads,
    "uploads": check_uploads,
    "uploads in parts": check_uploads_in_parts,
    "removal": check_removal,
}
# Features that the real service always has. An operation that needs a missing feature fails with an
# error of the store that says why.
REQUIRED = {
    ("gcs", Feature.CHECKSUMS, MissingFeature.REFUSES): "501",
    ("gcs", Feature.CONDITIONS, MissingFeature.REFUSES): "501",
    ("azure", Feature.CHECKSUMS, MissingFeature.REFUSES): "UnsupportedHeader",
    ("azure", Feature.RANGES, MissingFeature.REFUSES): "UnsupportedHeader",
    (
        "azure",
        Feature.RANGES,
        MissingFeature.IGNORES,
    ): "Requests for ranges have to be answered with ranges",
    ("azure", Feature.MATCHES, MissingFeature.REFUSES): "UnsupportedHeader",
    ("azure", Feature.UPLOAD_LISTS, MissingFeature.REFUSES): "UnsupportedHeader",
    ("azure", Feature.UPLOAD_LISTS, MissingFeature.IGNORES): "part 1 of .* is missing",
    ("hdfs", Feature.RANGES, MissingFeature.REFUSES): "not supported",
    ("hdfs", Feature.JOINS, MissingFeature.REFUSES): "HDFS joins no parts",
    ("hdfs", Feature.JOINS, MissingFeature.IGNORES): "HDFS joins no parts",
}
# Many S3-compatible stores exist; servers of other protocols resemble the services. The gate has
# every operation at a store that refuses, and the most expensive operations at a store that
# ignores.
OFTEN = ("contents", "server reads", "uploads in parts")


def is_in_gate(kind: str, lack: MissingFeature, operation: str) -> bool:
    """Return whether a combination is tested outside nightly runs, too."""
    return kind == "s3" and (lack is MissingFeature.REFUSES or operation in OFTEN)


LACKING = [
    pytest.param(
        *(kind, feature, lack, operation),
        marks=() if is_in_gate(kind, lack, operation) else pytest.mark.nightly,
    )
    for kind, names in FEATURES.items()
    for feature in names
    for lack in MissingFeature
    for operation in OPERATIONS
]


@pytest.fixture
def open_stack(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, Callable[[str], LackingFront]], Any]:
    """Return a function that opens a new store of a type behind a front."""
    served = request.getfixturevalue("serve_front")

    def open_behind(kind: str, make: Callable[[str], LackingFront]) -> Stack:
        if kind == "hdfs":
            # The first namenode is the active namenode.
            url = request.getfixturevalue("model_hdfs").namenodes[0]
            storage = hdfs_storage(url, OWNER)
        elif kind == "gcs":
            url = request.getfixturevalue("resumable_gcs").url
            bucket = request.getfixturevalue("gcs_server").new_bucket()
            storage = {"type": "gcs", "bucket": bucket}
        else:
            opened = open_store(kind, tmp_path, request)
            url, storage = opened.url, dict(opened.storage)
        front = served(make(url))
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", front.url)
        folder = tmp_path / "files"
        folder.mkdir()
        return Stack(front, storage_behind(storage, url, front.url), folder)

    return open_behind


@pytest.fixture
def serve_front() -> Iterator[Callable[[LackingFront], LackingFront]]:
    """Yield a function that serves a front until the test ends."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda front: stack.enter_context(lacking_front(front))


@pytest.mark.parametrize(("kind", "feature", "lack", "operation"), LACKING)
def test_store_may_lack_a_feature(
    open_stack: Any, kind: str, feature: Feature, lack: MissingFeature, operation: str
) -> None:
    stack = open_stack(kind, lambda url: lacking(kind, feature, lack, url))
    required = REQUIRED.get((kind, feature, lack))
    try:
        OPERATIONS[operation](stack)
    except (StorageError, BucketError) as error:
        # A refusal may only cause an error of the store.
        if required is None or not re.search(required, str(error)):
            raise


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("kind", "oddity"),
    every(2, [(kind, name) for kind, odd in ODD_ANSWERS.items() for name in odd]),
)
def test_store_may_answer_oddly(open_stack: Any, kind: str, oddity: str, operation: str) -> None:
    change = ODD_ANSWERS[kind][oddity]
    OPERATIONS[operation](open_stack(kind, lambda url: LackingFront(url, change=change)))
