"""A store in a bucket that a test loses and creates again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from detcloud.shared.bucket_errors import AccessDenied, BucketError, NoSuchBucket, UploadLost
from detcloud.storage import StorageError
from detcloud.storage.patient_store import PatientStore
from tests.unit.storage.memory_store import MemoryStore


class LosableStore:
    """A store in memory. `lose` deletes the bucket with all files.

    The next `lost_uploads` puts fail, because their uploads are gone; the first of these puts has
    the number `loses_uploads_from`. The bucket is lost before the
    put with the number `loses_before_put`, counted from 1; 0 for none. An existing bucket refuses
    the next `refused` requests.
    """

    root = None

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.exists = True
        self.lost_uploads = 0
        self.loses_uploads_from = 1
        self.puts = 0
        self.loses_before_put = 0
        self.refused = 0

    def lose(self) -> None:
        self.exists = False
        self.files.clear()

    def create(self) -> None:
        self.exists = True

    def put(self, key: str, source: Path) -> None:
        self.puts += 1
        if self.puts == self.loses_before_put:
            self.lose()
        with self._translate_errors():
            if self.lost_uploads and self.puts >= self.loses_uploads_from:
                self.lost_uploads -= 1
                raise UploadLost("there is no such upload")
        MemoryStore(self.files).put(key, source)

    def get(self, key: str, destination: Path) -> None:
        with self._translate_errors():
            MemoryStore(self.files).get(key, destination)

    def get_hashed(self, key: str, destination: Path) -> str:
        self.get(key, destination)
        return sha256(destination.read_bytes()).hexdigest()

    def list(self, prefix: str) -> dict[str, int]:
        with self._translate_errors():
            return MemoryStore(self.files).list(prefix)

    def delete(self, key: str) -> None:
        with self._translate_errors():
            MemoryStore(self.files).delete(key)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            if not self.exists:
                raise NoSuchBucket("there is no bucket b")
            if self.refused:
                self.refused -= 1
                raise AccessDenied("403")
            yield
        except BucketError as error:
            raise StorageError(f"storing failed: {error}") from error


class Pauses:
    """The pauses of a store, which take no time.

    After the pause with the number `create_after`, counted from 1, the bucket exists again and has
    the files `restored`.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.count = 0
        self.create_after = 0
        self.restored: dict[str, bytes] = {}
        self.store: LosableStore | None = None

    def __call__(self, seconds: float) -> None:
        self.seconds += seconds
        self.count += 1
        if self.store is not None and self.count == self.create_after:
            self.store.create()
            self.store.files.update(self.restored)


def patient(
    store: LosableStore, pauses: Pauses, *, has_existed: bool = True, trial_folder: str = "3/4"
) -> PatientStore:
    """Return a patient store over `store` with these pauses."""
    pauses.store = store
    return PatientStore(store, trial_folder, has_existed=has_existed, sleep=pauses)
