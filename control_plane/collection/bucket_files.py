"""Removal of checkpoints from a bucket: every object whose key begins with a checkpoint's own path.

There are no folders in a bucket, so none is left empty, and what is deleted is gone for good. A
path is built from ids that the cluster gave, as for folders.
"""

from collections.abc import Iterator, Mapping

from control_plane.collection.folder_files import check_parts
from detcloud.shared.s3 import Bucket, BucketPlace, bucket_of


def open_bucket_files(storage: Mapping[str, str]) -> "BucketFiles":
    """Open the bucket of a spec's `storage`. Raises OSError."""
    return BucketFiles(bucket_of(BucketPlace.from_storage(storage)))


class BucketFiles:
    """The CheckpointFiles of a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def remove_folder(self, parts: tuple[str, ...], *, prune: bool = False) -> Iterator[None]:
        check_parts(parts)
        prefix = "/".join((*parts, ""))
        # First, so that nothing that was cut short appears in the end.
        self._bucket.abort_uploads(prefix)
        yield
        for key, _ in self._bucket.list_objects(prefix):
            self._bucket.delete(key)
            yield

    def sync_folder(self, parts: tuple[str, ...]) -> None:
        pass

    def remove_empty_folders(self, parts: tuple[str, ...]) -> None:
        pass

    def location_text(self, parts: tuple[str, ...]) -> str:
        return f"{'/'.join(parts)} in {self._bucket.place}"
