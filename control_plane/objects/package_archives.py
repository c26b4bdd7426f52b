"""Keys of archives of installed packages: `packages/EXPERIMENT/KIND/KEY/SHA256`.

KEY names a layer of packages, and SHA256 is the digest of the archive. An archive belongs to one
experiment, since trials execute its content. The list of objects is the only record of archives.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from control_plane.objects.store import ObjectKey, ObjectStore

NAMESPACE = "packages"
ARCHIVE_BYTES_MAX = 4 << 30
"""Limit on the bytes of one archive. S3 takes at most 5 GiB in one request."""
ARCHIVES_MAX = 8
"""Limit on the archives of one experiment."""
EXPERIMENT_BYTES_MAX = 16 << 30
"""Limit on the bytes of all archives of one experiment."""

Kind = Literal["declared", "hook"]

_TEXT = re.compile(
    NAMESPACE + r"/(?P<experiment>[1-9][0-9]{0,15})/(?P<kind>declared|hook)"
    r"/(?P<key>[0-9a-f]{64})/(?P<sha256>[0-9a-f]{64})"
)


@dataclass(frozen=True)
class PackageArchive:
    """A stored archive; `size` is in bytes."""

    experiment_id: int
    kind: str
    key: str
    sha256: str
    size: int

    @property
    def object_key(self) -> ObjectKey:
        return archives_folder(self.experiment_id) / self.kind / self.key / self.sha256


def archives_folder(experiment_id: int) -> ObjectKey:
    """Return the folder of an experiment's archives."""
    return ObjectKey(NAMESPACE) / str(experiment_id)


def list_archives(objects: ObjectStore, folder: ObjectKey) -> Iterator[PackageArchive]:
    """List the archives below a folder; skip objects whose key has another form."""
    for stored in objects.list_objects(folder):
        match = _TEXT.fullmatch(stored.key.text)
        if match is not None:
            experiment_id = int(match["experiment"])
            yield PackageArchive(
                experiment_id, match["kind"], match["key"], match["sha256"], stored.size
            )
