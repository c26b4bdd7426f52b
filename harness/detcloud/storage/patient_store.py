"""A trial's store that waits while the bucket of the cluster is lost.

A bucket that somebody deleted is created again by a deployment, and its objects are then restored
(`detcloud deploy restore --objects`). Meanwhile a running trial keeps its work, and a run that
starts does not mistake the empty bucket for damage of its checkpoint.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from detcloud.shared.bucket_errors import BucketError, NoSuchBucket, UploadLost
from detcloud.shared.files import sha256_of
from detcloud.shared.outage import OUTAGE_SECONDS_MAX
from detcloud.storage.store import HashingStore, KeyExists, StorageError, StoreReplaced

T = TypeVar("T")

_REMEDY = "`detcloud deploy restore CLOUD --objects` restores the objects of a lost bucket"


@dataclass(frozen=True)
class Patience:
    """The time limits of a PatientStore, in seconds."""

    pause: float = 10.0
    """The pause between two requests to a lost bucket."""
    write_max: float = OUTAGE_SECONDS_MAX
    """The longest wait before a file is stored, because a failure would lose the trained work."""
    read_max: float = 15 * 60.0
    """The longest wait of a read, which loses no work. A machine is occupied meanwhile."""


PATIENCE = Patience()


class PatientStore:
    """A HashingStore in a bucket that may be lost for some time.

    A bucket is lost if the bucket does not exist and existed before. A bucket that never existed is
    an error at once, because its name is probably wrong. Thread-safe if `store` is.
    """

    root = None

    def __init__(
        self,
        store: HashingStore,
        trial_folder: str,
        *,
        has_existed: bool,
        patience: Patience = PATIENCE,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Create the store. Send nothing yet.

        Args:
            store: the store in the bucket.
            trial_folder: the trial's folder EXPERIMENT/TRIAL, which the trial may list.
            has_existed: whether the bucket is known to have existed before this run. A successful
                request proves this as well.
            patience: the time limits.
            sleep: waits for a number of seconds.
        """
        self._store = store
        self._trial_folder = trial_folder
        self._has_existed = has_existed
        self._patience = patience
        self._sleep = sleep
        # The SHA-256 of files that were stored before StoreReplaced was raised, by key.
        self._stored_in_wait: dict[str, str] = {}

    def put(self, key: str, source: Path) -> None:
        """Store a file as `store` does.

        Without the bucket, wait until the file can be stored, store the file, and then raise
        StoreReplaced. The next call for the same key and content succeeds without a request. Raise
        StoreReplaced at once, without storing the file, if the upload of the file was lost. Raise
        StorageError after `write_max` seconds.
        """
        stored = self._stored_in_wait.pop(key, None)
        if stored is not None and stored == sha256_of(source):
            return
        try:
            self._store.put(key, source)
        except StorageError as error:
            cause = error.__cause__
            if isinstance(cause, NoSuchBucket) and self._has_existed:
                self._store_in_new_bucket(key, source, error)
                self._stored_in_wait[key] = sha256_of(source)
            elif not isinstance(cause, UploadLost):
                raise
            text = f"{error}; now the bucket exists, and lacks earlier files"
            raise StoreReplaced(text) from cause
        self._has_existed = True

    def get(self, key: str, destination: Path) -> None:
        """Copy a file as `store` does. Wait for a lost bucket, and for the trial's files in it."""
        self._read(key, lambda: self._store.get(key, destination))

    def get_hashed(self, key: str, destination: Path) -> str:
        """Copy a file and return the SHA-256 as `store` does. Wait as `get` does."""
        return self._read(key, lambda: self._store.get_hashed(key, destination))

    def list(self, prefix: str) -> dict[str, int]:
        """Return the sizes of files as `store` does, without a wait."""
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        """Delete a file as `store` does, without a wait."""
        self._store.delete(key)

    def _store_in_new_bucket(self, key: str, source: Path, error: StorageError) -> None:
        """Repeat the request that failed with `error`, with pauses, and return after a success.

        Raise the last StorageError after `write_max` seconds, or at once if the file cannot be
        read.
        """
        _write(f"{error}; waiting until the bucket exists again")
        waited = 0.0
        while True:
            self._sleep(self._patience.pause)
            waited += self._patience.pause
            try:
                self._store.put(key, source)
            except KeyExists:
                # The answer to the request before was lost.
                break
            except StorageError as again:
                # The permissions on a new bucket arrive after the bucket.
                is_of_bucket = isinstance(again.__cause__, BucketError)
                if not is_of_bucket or waited >= self._patience.write_max:
                    raise
            else:
                break
        _write("the bucket exists again")

    def _read(self, key: str, request: Callable[[], T]) -> T:
        """Return the result of `request`, which reads a file.

        While the file may come back (`_may_come_back`), repeat the request with pauses. Raise the
        StorageError of the last request after `read_max` seconds.
        """
        waited = 0.0
        while True:
            try:
                result = request()
            except StorageError as error:
                # The permissions on a new bucket arrive after the bucket.
                is_refused = bool(waited) and isinstance(error.__cause__, BucketError)
                if not is_refused and not self._may_come_back(key, error):
                    raise
                if waited >= self._patience.read_max:
                    raise StorageError(f"{error}; {_REMEDY}") from error.__cause__
                if not waited:
                    _write(f"{error}; waiting for the files of this trial: {_REMEDY}")
            else:
                self._has_existed = True
                return result
            self._sleep(self._patience.pause)
            waited += self._patience.pause

    def _may_come_back(self, key: str, error: StorageError) -> bool:
        """Return whether a file that could not be read may be restored.

        True without a bucket that existed before. True for a file of this trial if the bucket has
        no file of the trial at all: such a bucket was created again.
        """
        if isinstance(error.__cause__, NoSuchBucket):
            return self._has_existed
        if not key.startswith(f"{self._trial_folder}/"):
            return False
        try:
            return not self._store.list(self._trial_folder)
        except StorageError as refusal:
            return isinstance(refusal.__cause__, NoSuchBucket) and self._has_existed


def _write(text: str) -> None:
    """Write a line to the trial's log."""
    print(f"[detcloud] {text}", file=sys.stderr, flush=True)
