"""The setting `dataBuckets` of a stack: buckets or folders that trials' code may read or write."""

import re
from dataclasses import dataclass
from typing import Final

ACCESS: Final = ("read", "read-write")
_PREFIX: Final = re.compile(r"[A-Za-z0-9!_.()'/-]{1,512}")


@dataclass(frozen=True)
class DataBucket:
    """A bucket or a folder of a bucket that trials' code may read."""

    bucket: str
    """The bucket's name."""
    folder: str
    """The folder with a slash at the end; empty for the whole bucket."""
    writes: bool
    """Whether trials' code may also write."""


def expected_buckets(count_max: int) -> str:
    """Return the text for messages that describes a valid setting with at most `count_max` keys."""
    return f'a map of at most {count_max} like {{"BUCKET": "read", "BUCKET/FOLDER": "read-write"}}'


def parse_data_buckets(
    given: object, bucket_name: re.Pattern[str], count_max: int
) -> tuple[DataBucket, ...]:
    """Return the data buckets of the setting's value `given`, a map from place to access.

    A place is BUCKET or BUCKET/FOLDER, and the access a value of ACCESS. Slashes around a folder do
    not matter. Raise ValueError with a text of what was expected if `given` is no map, has more
    than `count_max` entries or an invalid entry. Bucket names must match `bucket_name`.
    """
    expected = expected_buckets(count_max)
    if not isinstance(given, dict) or len(given) > count_max:
        raise ValueError(expected)
    found = []
    for place, access in given.items():
        bucket, _, folder = place.partition("/")
        folder = f"{folder.strip('/')}/" if folder.strip("/") else ""
        is_place = bucket_name.fullmatch(bucket) and (not folder or _PREFIX.fullmatch(folder))
        if not is_place or access not in ACCESS:
            raise ValueError(expected)
        found.append(DataBucket(bucket, folder, writes=access == "read-write"))
    return tuple(found)


def find_own_buckets(buckets: tuple[DataBucket, ...], own: tuple[str, ...]) -> list[str]:
    """Return a line for each data bucket that is among the cluster's own buckets `own`.

    Folders of these buckets count too. Return [] if no data bucket is among `own`.
    """
    return [
        f"detcloud:dataBuckets names {bucket.bucket}: expected buckets that are not the cluster's "
        "own, where trials would reach each other's checkpoints"
        for bucket in buckets
        if bucket.bucket in own
    ]
