import os
from pathlib import Path

import pytest

from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.store import Method, ObjectConflict, ObjectKey, ObjectNotFound, SignedUrl


class RecordingSigner:
    """A signer that returns the arguments in the URL instead of a signature."""

    def sign(
        self,
        method: Method,
        key: ObjectKey,
        *,
        size: int | None,
        sha256: str | None,
        expires_ms: int,
    ) -> SignedUrl:
        return SignedUrl(method, f"{key}?{size}&{sha256}", {}, expires_ms)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
def store(root: Path) -> DirectoryObjectStore:
    return DirectoryObjectStore(root, RecordingSigner())


def test_object_is_stored_as_the_file_of_the_key(store: DirectoryObjectStore, root: Path) -> None:
    store.put(ObjectKey("checkpoints/1/2/model.pt"), b"weights")
    assert (root / "checkpoints/1/2/model.pt").read_bytes() == b"weights"


def test_file_of_a_trial_is_an_object(store: DirectoryObjectStore, root: Path) -> None:
    (root / "checkpoints/1").mkdir(parents=True)
    (root / "checkpoints/1/model.pt").write_bytes(b"weights")
    assert b"".join(store.get(ObjectKey("checkpoints/1/model.pt"))) == b"weights"


def test_puts_leave_no_partial_file(store: DirectoryObjectStore, root: Path) -> None:
    key = ObjectKey("logs/1")
    store.put(key, b"a")
    store.put(key, b"b")
    store.put(key, b"c", if_absent=True)
    with pytest.raises(ObjectConflict):
        store.put(key / "below", b"d")
    assert list((root / ".partial").iterdir()) == []


def test_only_old_partial_files_are_swept(root: Path) -> None:
    partial = root / ".partial"
    partial.mkdir(parents=True)
    (partial / "old").write_bytes(b"")
    os.utime(partial / "old", (0, 0))
    (partial / "new").write_bytes(b"")
    DirectoryObjectStore(root, RecordingSigner())
    assert [path.name for path in partial.iterdir()] == ["new"]


def test_linked_file_is_no_object(store: DirectoryObjectStore, root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (root / "logs").mkdir()
    (root / "logs/link").symlink_to(tmp_path / "secret")
    assert store.size(ObjectKey("logs/link")) is None
    assert list(store.list_objects(ObjectKey("logs/link"))) == []
    with pytest.raises(ObjectNotFound):
        store.get(ObjectKey("logs/link"))


def test_linked_folder_is_not_followed(
    store: DirectoryObjectStore, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"secret")
    (root / "logs").mkdir()
    (root / "logs/link").symlink_to(outside)
    key = ObjectKey("logs/link/file")
    assert store.size(key) is None
    assert list(store.list_objects(ObjectKey("logs/link"))) == []
    with pytest.raises(ObjectNotFound):
        store.get(key)
    with pytest.raises(ObjectConflict):
        store.put(key, b"x")
    store.delete(key)
    assert (outside / "file").read_bytes() == b"secret"


def test_put_replaces_a_link_and_keeps_the_target(
    store: DirectoryObjectStore, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "target").write_bytes(b"kept")
    (root / "logs").mkdir()
    (root / "logs/link").symlink_to(tmp_path / "target")
    store.put(ObjectKey("logs/link"), b"new")
    assert (tmp_path / "target").read_bytes() == b"kept"
    assert b"".join(store.get(ObjectKey("logs/link"))) == b"new"


def test_put_if_absent_over_a_link_conflicts(store: DirectoryObjectStore, root: Path) -> None:
    (root / "logs").mkdir()
    (root / "logs/link").symlink_to("nowhere")
    with pytest.raises(ObjectConflict):
        store.put(ObjectKey("logs/link"), b"new", if_absent=True)


def test_pipe_in_the_store_blocks_no_call(store: DirectoryObjectStore, root: Path) -> None:
    (root / "logs").mkdir()
    os.mkfifo(root / "logs/pipe")
    assert list(store.list_objects(ObjectKey("logs/pipe"))) == []
    with pytest.raises(ObjectNotFound):
        store.get(ObjectKey("logs/pipe"))


def test_listing_omits_files_without_a_valid_key(store: DirectoryObjectStore, root: Path) -> None:
    folder = root / "checkpoints/1"
    folder.mkdir(parents=True)
    for name in (b"good", b"back\\slash", b"new\nline", b"\xff\xfe", b"half%"):
        (folder / os.fsdecode(name)).write_bytes(b"")
    (folder / "link").symlink_to("good")
    os.mkfifo(folder / "pipe")
    assert [str(listed.key) for listed in store.list_objects(ObjectKey("checkpoints/1"))] == [
        "checkpoints/1/good"
    ]


def test_folder_cannot_be_overwritten(store: DirectoryObjectStore) -> None:
    store.put(ObjectKey("logs/1/2"), b"x")
    for if_absent in (True, False):
        with pytest.raises(ObjectConflict, match="logs/1"):
            store.put(ObjectKey("logs/1"), b"y", if_absent=if_absent)


def test_store_leaves_no_descriptor_open(store: DirectoryObjectStore) -> None:
    key = ObjectKey("logs/1/2/3")
    store.put(key, b"x")
    before = len(list(Path("/dev/fd").iterdir()))
    store.get(key)
    b"".join(store.get(key))
    list(store.list_objects(ObjectKey("logs/1")))
    store.size(ObjectKey("logs/none"))
    with pytest.raises(ObjectNotFound):
        store.get(ObjectKey("logs/1"))
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_signer_makes_signed_urls(store: DirectoryObjectStore) -> None:
    signed = store.signed_url("PUT", ObjectKey("logs/1"), size=3, sha256="ab", expires_ms=7)
    assert signed == SignedUrl("PUT", "logs/1?3&ab", {}, 7)
