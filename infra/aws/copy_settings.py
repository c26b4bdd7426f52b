"""The setting `copies`: copies of a stack's state and buckets in another region. Pure."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

HOURS_MAX: Final = 168
# The days for which exports of the state are kept.
STATE_DAYS: Final = 14
_EXPECTED: Final = (
    'a map like {"region": "us-west-2", "hours": 24, "checkpoints": true}; hours is a whole number '
    f"from 1 to {HOURS_MAX}"
)


@dataclass(frozen=True)
class Copies:
    """The copies of a stack in another region."""

    region: str
    """The region of the copies."""
    hours: int = 24
    """The hours between two exports of the state."""
    checkpoints: bool = True
    """Whether the bucket of checkpoints is replicated, besides the bucket of code and logs."""


def find_inconsistencies(values: Mapping[str, Any]) -> list[str]:
    """Return a line for each contradiction between `copies` and other valid settings.

    `values` maps field names of Settings to parsed values.
    """
    copies: Copies | None = values.get("copies")
    if copies is None:
        return []
    found = []
    if copies.region == values["region"]:
        found.append(
            f"detcloud:copies.region is {copies.region}, the region of the stack: expected another "
            "region, which survives the loss of this one"
        )
    if values.get("kms_key"):
        found.append(
            "detcloud:copies and detcloud:kmsKey exclude each other: a key belongs to one region, "
            "and S3 replicates objects with a key only if another key in the other region is named"
        )
    return found


def _parse_copies(text: str) -> Copies:
    """Return the copies that a JSON map describes. Raise ValueError for other texts."""
    try:
        given = json.loads(text)
    except ValueError:
        raise ValueError(_EXPECTED) from None
    if not isinstance(given, dict) or not {"region"} <= set(given) <= {
        "region",
        "hours",
        "checkpoints",
    }:
        raise ValueError(_EXPECTED)
    copies = Copies(**given)
    is_region = isinstance(copies.region, str) and re.fullmatch(
        r"[a-z]{2}-[a-z]+-[0-9]", copies.region
    )
    is_number = isinstance(copies.hours, int) and not isinstance(copies.hours, bool)
    if not is_region or not is_number or not 1 <= copies.hours <= HOURS_MAX:
        raise ValueError(_EXPECTED)
    if not isinstance(copies.checkpoints, bool):
        raise ValueError(_EXPECTED)
    return copies


PARSERS: Final[dict[str, Callable[[str], object]]] = {"copies": _parse_copies}
