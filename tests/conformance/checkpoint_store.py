"""The contract of checkpoint stores: a suite is a subclass with a `store` fixture."""

import hashlib
from pathlib import Path

import pytest

from detcloud.storage import (
    CheckpointStore,
    HashingStore,
    KeyExists,
    KeyNotFound,
    StorageError,
)

KEY = "3/4/1/uuid/state_dict.pth"


class CheckpointStoreContract:
    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        path = tmp_path / "source"
        path.write_bytes(b"abc")
        return path

    def test_stored_file_is_read_unchanged(
        self, store: CheckpointStore, source: Path, tmp_path: Path
    ) -> None:
        store.put(KEY, source)
        store.get(KEY, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == b"abc"

    def test_empty_file_is_stored(
        self, store: CheckpointStore, source: Path, tmp_path: Path
    ) -> None:
        source.write_bytes(b"")
        store.put(KEY, source)
        store.get(KEY, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == b""

    @pytest.mark.parametrize("content", [b"", b"abc", b"0123456789" * 100_000])
    def test_hash_of_a_copy_in_a_bucket_is_that_of_the_content(
        self, store: CheckpointStore, source: Path, tmp_path: Path, content: bytes
    ) -> None:
        # Folders have no transfer during which the content could be hashed.
        assert isinstance(store, HashingStore) == (store.root is None)
        if not isinstance(store, HashingStore):
            return
        source.write_bytes(content)
        store.put(KEY, source)
        assert store.get_hashed(KEY, tmp_path / "copy") == hashlib.sha256(content).hexdigest()
        assert (tmp_path / "copy").read_bytes() == content
        with pytest.raises(KeyNotFound):
            store.get_hashed(f"{KEY}.other", tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == content

    def test_stored_file_is_not_overwritten(
        self, store: CheckpointStore, source: Path, tmp_path: Path
    ) -> None:
        store.put(KEY, source)
        source.write_bytes(b"other")
        with pytest.raises(KeyExists):
            store.put(KEY, source)
        store.get(KEY, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == b"abc"

    def test_stored_file_does_not_follow_changes_of_the_source(
        self, store: CheckpointStore, source: Path, tmp_path: Path
    ) -> None:
        store.put(KEY, source)
        source.write_bytes(b"changed")
        store.get(KEY, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == b"abc"

    def test_missing_key_raises_key_not_found(self, store: CheckpointStore, tmp_path: Path) -> None:
        with pytest.raises(KeyNotFound):
            store.get(KEY, tmp_path / "copy")

    def test_listing_has_the_sizes_below_a_prefix(
        self, store: CheckpointStore, source: Path
    ) -> None:
        for key in ("3/4/1/a/x", "3/4/1/a/deep/y", "3/4/1/ab/z"):
            store.put(key, source)
        assert store.list("3/4/1/a") == {"3/4/1/a/x": 3, "3/4/1/a/deep/y": 3}
        assert store.list("3/4/1/ab/z") == {"3/4/1/ab/z": 3}
        assert store.list("3/5") == {}

    def test_deletion_of_a_key_may_be_repeated(self, store: CheckpointStore, source: Path) -> None:
        store.put(KEY, source)
        store.put("3/4/1/uuid/other", source)
        store.delete(KEY)
        store.delete(KEY)
        assert store.list("3") == {"3/4/1/uuid/other": 3}

    def test_deleted_key_can_be_stored_again(self, store: CheckpointStore, source: Path) -> None:
        store.put(KEY, source)
        store.delete(KEY)
        store.put(KEY, source)
        assert store.list("3") == {KEY: 3}

    @pytest.mark.parametrize(
        "name",
        [
            *("\u00e9", "e\u0301", "\u4e2d", "\U0001f600", "a\u202eb", "weights.", ".hidden"),
            *("a b", " a ", "%2e%2e", "a+b", "a#b?c&d=e", "*", "~41", "a:b", "\"'<>|", "x" * 200),
            # Names that stores use for unfinished uploads.
            *(".detcloud-upload-1", ".put-1", ".staging"),
        ],
    )
    def test_odd_file_name_is_kept_apart_from_similar_names(
        self, store: CheckpointStore, source: Path, tmp_path: Path, name: str
    ) -> None:
        key, near = f"3/4/1/uuid/{name}", "3/4/1/uuid/e"
        store.put(key, source)
        store.put(near, source)
        store.get(key, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == b"abc"
        assert store.list("3") == {key: 3, near: 3}
        store.delete(key)
        assert store.list("3") == {near: 3}

    def test_names_that_differ_in_case_are_separate_files(
        self, store: CheckpointStore, source: Path
    ) -> None:
        for name in ("Weights", "weights"):
            store.put(f"3/4/1/uuid/{name}", source)
        assert store.list("3") == {"3/4/1/uuid/Weights": 3, "3/4/1/uuid/weights": 3}

    @pytest.mark.parametrize(
        "key",
        [
            *("", "/etc/x", "a//b", "../x", "a/../b", "a\\b", "a\n", ".", "a\0", "a\x7f", "a\x85"),
            *("a\udcff", "x" * 256, "\u00fc" * 128, "/".join(["x" * 200] * 6)),
        ],
    )
    def test_refuses_keys_outside_the_store(
        self, store: CheckpointStore, source: Path, key: str
    ) -> None:
        with pytest.raises(StorageError):
            store.put(key, source)
        with pytest.raises(StorageError):
            store.get(key, source)
        with pytest.raises(StorageError):
            store.list(key)
        with pytest.raises(StorageError):
            store.delete(key)
