"""The packages for trials that the archive of the agent's code contains.

The agent mounts its code into containers. So a trial has the packages even if its image lacks
them, and without access to a package index (`detcloud/shared/bundled_packages.py`). The packages
are copied from the server's own installation. Only Python code, data and licences are copied, since
the trial's version of Python and processor may differ from the server's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Final


@dataclass(frozen=True)
class PackageBundle:
    """A group of packages that a trial needs together."""

    name: str
    """The name, which is the folder in the archive."""
    distributions: tuple[str, ...]
    """The names of the distributions."""


BUNDLES: Final = (
    PackageBundle("s3", ("botocore", "jmespath", "python-dateutil", "six", "urllib3")),
    PackageBundle(
        "gcs",
        (
            "google-cloud-storage",
            "google-cloud-core",
            "google-api-core",
            "google-auth",
            "google-resumable-media",
            "googleapis-common-protos",
            "google-crc32c",
            "protobuf",
            "requests",
            "certifi",
            "charset-normalizer",
            "idna",
            "urllib3",
        ),
    ),
    PackageBundle("gpu", ("nvidia-ml-py",)),
    PackageBundle("detignore", ("pathspec",)),
)

_COPIED: Final = (".py", ".json", ".json.gz", ".pem")
_LICENCES: Final = ("LICENSE", "LICENCE", "NOTICE", "COPYING", "AUTHORS")
# Folders of which only some entries are copied: descriptions of AWS's services, and Google's
# messages.
_KEPT: Final = {
    PurePosixPath("botocore/data"): frozenset({"s3", "sts"}),
    PurePosixPath("google"): frozenset(
        {"api_core", "auth", "cloud", "oauth2", "protobuf", "resumable_media", "rpc"}
    ),
    # google/cloud/_storage_v2 is the client of another protocol.
    PurePosixPath("google/cloud"): frozenset(
        {"_helpers", "_http", "client", "exceptions", "storage"}
    ),
}


def bundle_files() -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield the place and the content of each file of the bundles, in order.

    The first part of a place is the bundle's name. A bundle is skipped if one of its distributions
    is not installed. Raise OSError if a file cannot be read.
    """
    for bundle in BUNDLES:
        found = {name: _find_distribution(name) for name in bundle.distributions}
        installed = {name: one for name, one in found.items() if one is not None}
        if len(installed) < len(found):
            continue
        files = dict[PurePosixPath, bytes]()
        for name, distribution in installed.items():
            files |= _copied_files(name, distribution)
        for place in sorted(files):
            yield PurePosixPath(bundle.name) / place, files[place]


def _find_distribution(name: str) -> metadata.Distribution | None:
    """Return an installed distribution. Return None without a list of its files."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    return found if found.files else None


def _copied_files(name: str, distribution: metadata.Distribution) -> dict[PurePosixPath, bytes]:
    """Return the copied files of the distribution `name`, by place in the bundle.

    Licences get places that cannot be imported. Raise OSError if a file cannot be read.
    """
    files = dict[PurePosixPath, bytes]()
    for file in distribution.files or ():
        place = _place_of(file, name)
        path = Path(str(distribution.locate_file(file)))
        # The archive of AWS's functions drops unused files, whose names stay listed.
        if place is not None and path.is_file():
            files[place] = path.read_bytes()
    return files


def _place_of(file: PurePosixPath, distribution: str) -> PurePosixPath | None:
    """Return the place of a file in the bundle.

    Return None for a file that is not copied. Records of installation are not copied, because pip
    would take the bundled package for a package of the image.
    """
    if file.is_absolute() or not {"..", "tests", "__pycache__"}.isdisjoint(file.parts):
        return None
    if file.parts[0].endswith(".dist-info"):
        is_licence = file.name.upper().startswith(_LICENCES)
        return PurePosixPath(".licenses", distribution, file.name) if is_licence else None
    for folder, kept in _KEPT.items():
        below = file.parts[len(folder.parts) :]
        is_inside = file.parts[: len(folder.parts)] == folder.parts
        # Files directly in the folder of data describe all services.
        if is_inside and len(below) > 1 and below[0] not in kept:
            return None
    return PurePosixPath(file) if file.name.endswith(_COPIED) else None
