"""The setting `dataBuckets` of a stack in any cloud: buckets, or folders in them, that the code of
trials may read or also write.
"""

import re
from dataclasses import dataclass
from typing import Final

ACCESS: Final = ("read", "read-write")
_PREFIX: Final = re.compile(r"[A-Za-z0-9!_.()'/-]{1,512}")


@dataclass(frozen=True)
class DataBucket:
    """A bucket, or a folder in it, that the code of trials may read or also write. A folder ends
    with a slash.
    """

    bucket: str
    folder: str
    writes: bool


def expected_buckets(count_max: int) -> str:
    """Return what a message expects of the setting."""
    return f'a map of at most {count_max} like {{"BUCKET": "read", "BUCKET/FOLDER": "read-write"}}'


def parse_data_buckets(
    given: object, bucket_name: re.Pattern[str], count_max: int
) -> tuple[DataBucket, ...]:
    """Parse the setting's value, in which buckets have such names. Raises ValueError with what was
    expected.
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
    """Return the problem of each bucket that is one of the cluster's own."""
    return [
        f"detcloud:dataBuckets names {bucket.bucket}: expected buckets that are not the cluster's "
        "own, where trials would reach each other's checkpoints"
        for bucket in buckets
        if bucket.bucket in own
    ]
