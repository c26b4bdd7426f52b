"""Removing checkpoints from a bucket: every object whose key begins with a checkpoint's own path.

There are no folders in a bucket, so none is left empty, and what is deleted is gone for good. A
path is built from ids that the cluster gave, as for folders.
"""

from collections.abc import Iterator

from control_plane.collection.folders import check_parts
from detcloud.s3 import Bucket


class BucketFiles:
    """The CheckpointFiles of a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def remove(self, parts: tuple[str, ...], *, prune: bool = False) -> Iterator[None]:
        check_parts(parts)
        beginning = "/".join((*parts, ""))
        # First, so that nothing that was cut short appears in the end.
        self._bucket.abandon_uploads(beginning)
        yield
        for key, _ in self._bucket.listed(beginning):
            self._bucket.delete(key)
            yield

    def sync(self, parts: tuple[str, ...]) -> None:
        pass

    def remove_empty(self, parts: tuple[str, ...]) -> None:
        pass

    def place(self, parts: tuple[str, ...]) -> str:
        return f"{'/'.join(parts)} in {self._bucket.place}"
