"""Objects of buckets and versions of objects, for restores. Each cloud implements `Buckets`."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, Protocol

_AT_ONCE: Final = 8


class NoBucket(Exception):
    """A bucket does not exist. The message is its name."""


class ObjectVersion(NamedTuple):
    """A version of an object."""

    key: str
    """The key of the object."""
    version: str
    """The cloud's name of the version; empty for the current content."""
    size: int
    """The size in bytes."""
    created: datetime | None = None
    """The time of the write; None if unknown."""
    ended: datetime | None = None
    """The time at which the version was deleted or replaced; None for the current version."""

    def was_current(self, moment: datetime) -> bool:
        """Return whether the version was the object's current content at a moment."""
        is_written = self.created is None or self.created <= moment
        return is_written and (self.ended is None or moment < self.ended)


class Buckets(Protocol):
    """The buckets of a cloud. Every method raises NoBucket, and the errors of the cloud."""

    def objects(self, bucket: str, prefix: str = "") -> Iterator[ObjectVersion]:
        """Yield the current objects below a prefix, each once, with empty names of versions."""
        ...

    def versions(self, bucket: str, prefix: str = "") -> Iterator[ObjectVersion]:
        """Yield all versions below a prefix, in any order, without markers of deletions.

        A bucket that keeps no versions has the current versions only.
        """
        ...

    def copy(self, source: str, found: ObjectVersion, target: str) -> None:
        """Copy a version from the bucket `source` to the bucket `target`, and keep the key."""
        ...


@dataclass(frozen=True)
class ObjectsCopied:
    """The numbers of a copy."""

    copied: int
    """The objects that were missing or different."""
    unchanged: int
    """The objects that existed already."""


def copy_objects(buckets: Buckets, source: str, target: str) -> ObjectsCopied | None:
    """Copy all current objects of `source` that `target` lacks or has with another size.

    No object is deleted. A repeated call continues. Return None if `source` does not exist. Raise
    NoBucket without `target`, and the errors of the cloud.
    """
    try:
        found = list(buckets.objects(source))
    except NoBucket:
        return None
    present = {item.key: item.size for item in buckets.objects(target)}
    missing = [item for item in found if present.get(item.key) != item.size]
    copy_all(buckets, source, missing, target)
    return ObjectsCopied(len(missing), len(found) - len(missing))


def copy_lost(
    buckets: Buckets, source: str, target: str, moment: datetime | None
) -> ObjectsCopied | None:
    """Copy each object of `source` with a key that `target` lacks, and replace nothing.

    With `moment`, copy the versions of this moment, also if they were deleted since; otherwise the
    current objects. `source` and `target` may be the same bucket. Return None if `source` does not
    exist. Raise NoBucket without `target`, and the errors of the cloud.
    """
    try:
        if moment is None:
            found = list(buckets.objects(source))
        else:
            found = choose_versions(buckets.versions(source), moment)
    except NoBucket:
        return None
    present = {item.key for item in buckets.objects(target)}
    missing = [item for item in found if item.key not in present]
    copy_all(buckets, source, missing, target)
    return ObjectsCopied(len(missing), len(found) - len(missing))


def copy_all(buckets: Buckets, source: str, found: Iterable[ObjectVersion], target: str) -> None:
    """Copy versions, several at a time. Raise the error of the first failed copy."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(lambda item: buckets.copy(source, item, target), found):
            pass


def choose_versions(
    versions: Iterable[ObjectVersion], moment: datetime | None
) -> list[ObjectVersion]:
    """Return the version of each key that was current at `moment`, or the oldest without `moment`.

    The files of checkpoints are written once, so that the oldest version is the written content,
    also if the file was replaced since. Keys that did not exist at `moment` are left out.
    """
    chosen: dict[str, ObjectVersion] = {}
    for found in versions:
        if moment is not None and not found.was_current(moment):
            continue
        before = chosen.get(found.key)
        if before is None or _age(found) < _age(before):
            chosen[found.key] = found
    return list(chosen.values())


def choose_newest(
    versions: Iterable[ObjectVersion], moment: datetime | None
) -> list[ObjectVersion]:
    """Return the version of each key that was current at `moment`, or the newest without `moment`.

    Keys that did not exist at `moment` are left out.
    """
    chosen: dict[str, ObjectVersion] = {}
    for found in versions:
        if moment is not None and not found.was_current(moment):
            continue
        before = chosen.get(found.key)
        if before is None or _age(found) > _age(before):
            chosen[found.key] = found
    return list(chosen.values())


def _age(found: ObjectVersion) -> tuple[bool, float]:
    """Return a sort key: older versions first, and versions without a time last."""
    return found.created is None, found.created.timestamp() if found.created else 0.0
