import os
from pathlib import Path

import pytest

from control_plane.objects.directory import DirectoryStore
from control_plane.objects.store import Key, Method, ObjectConflict, ObjectMissing, SignedUrl


class Unsigned:
    """A signer for tests that sign nothing but look at what they were asked to sign."""

    def sign(
        self, method: Method, key: Key, *, size: int | None, sha256: str | None, expires_ms: int
    ) -> SignedUrl:
        return SignedUrl(method, f"{key}?{size}&{sha256}", {}, expires_ms)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
def store(root: Path) -> DirectoryStore:
    return DirectoryStore(root, Unsigned())


def test_an_object_is_the_file_of_its_key(store: DirectoryStore, root: Path) -> None:
    store.put(Key("checkpoints/1/2/model.pt"), b"weights")
    assert (root / "checkpoints/1/2/model.pt").read_bytes() == b"weights"


def test_a_file_that_a_trial_wrote_is_an_object(store: DirectoryStore, root: Path) -> None:
    (root / "checkpoints/1").mkdir(parents=True)
    (root / "checkpoints/1/model.pt").write_bytes(b"weights")
    assert b"".join(store.get(Key("checkpoints/1/model.pt"))) == b"weights"


def test_no_partial_file_stays_behind(store: DirectoryStore, root: Path) -> None:
    key = Key("logs/1")
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
    DirectoryStore(root, Unsigned())
    assert [path.name for path in partial.iterdir()] == ["new"]


def test_a_linked_file_is_no_object(store: DirectoryStore, root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (root / "logs").mkdir()
    (root / "logs/link").symlink_to(tmp_path / "secret")
    assert store.size(Key("logs/link")) is None
    assert list(store.list(Key("logs/link"))) == []
    with pytest.raises(ObjectMissing):
        store.get(Key("logs/link"))


def test_a_linked_folder_leads_nowhere(store: DirectoryStore, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"secret")
    (root / "logs").mkdir()
    (root / "logs/link").symlink_to(outside)
    key = Key("logs/link/file")
    assert store.size(key) is None
    assert list(store.list(Key("logs/link"))) == []
    with pytest.raises(ObjectMissing):
        store.get(key)
    with pytest.raises(ObjectConflict):
        store.put(key, b"x")
    store.delete(key)
    assert (outside / "file").read_bytes() == b"secret"


def test_a_put_replaces_a_link_and_not_its_target(
    store: DirectoryStore, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "target").write_bytes(b"kept")
    (root / "logs").mkdir()
    (root / "logs/link").symlink_to(tmp_path / "target")
    store.put(Key("logs/link"), b"new")
    assert (tmp_path / "target").read_bytes() == b"kept"
    assert b"".join(store.get(Key("logs/link"))) == b"new"


def test_a_link_in_the_way_of_if_absent_is_a_conflict(store: DirectoryStore, root: Path) -> None:
    (root / "logs").mkdir()
    (root / "logs/link").symlink_to("nowhere")
    with pytest.raises(ObjectConflict):
        store.put(Key("logs/link"), b"new", if_absent=True)


def test_a_planted_pipe_holds_nobody_up(store: DirectoryStore, root: Path) -> None:
    (root / "logs").mkdir()
    os.mkfifo(root / "logs/pipe")
    assert list(store.list(Key("logs/pipe"))) == []
    with pytest.raises(ObjectMissing):
        store.get(Key("logs/pipe"))


def test_a_listing_leaves_out_what_no_key_can_name(store: DirectoryStore, root: Path) -> None:
    folder = root / "checkpoints/1"
    folder.mkdir(parents=True)
    for name in (b"good", b"back\\slash", b"new\nline", b"\xff\xfe", b"half%"):
        (folder / os.fsdecode(name)).write_bytes(b"")
    (folder / "link").symlink_to("good")
    os.mkfifo(folder / "pipe")
    assert [str(found.key) for found in store.list(Key("checkpoints/1"))] == ["checkpoints/1/good"]


def test_a_folder_cannot_be_overwritten(store: DirectoryStore) -> None:
    store.put(Key("logs/1/2"), b"x")
    for if_absent in (True, False):
        with pytest.raises(ObjectConflict, match="logs/1"):
            store.put(Key("logs/1"), b"y", if_absent=if_absent)


def test_descriptors_are_given_back(store: DirectoryStore) -> None:
    key = Key("logs/1/2/3")
    store.put(key, b"x")
    before = len(list(Path("/dev/fd").iterdir()))
    store.get(key)
    b"".join(store.get(key))
    list(store.list(Key("logs/1")))
    store.size(Key("logs/none"))
    with pytest.raises(ObjectMissing):
        store.get(Key("logs/1"))
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_signing_is_left_to_the_signer(store: DirectoryStore) -> None:
    signed = store.signed_url("PUT", Key("logs/1"), size=3, sha256="ab", expires_ms=7)
    assert signed == SignedUrl("PUT", "logs/1?3&ab", {}, 7)
