"""The setting `copies`: copies of a stack's state and buckets in another region. Pure.

Both clouds have the same words. Only the form of a region's name differs.
"""

import json
import re
from dataclasses import dataclass
from typing import Final

HOURS_MAX: Final = 168
# The days for which exports of the state are kept.
STATE_DAYS: Final = 14
# The days for which copies keep a deleted object. Deletions reach the copies within hours, so that
# people need some days to notice an emptied bucket.
VERSION_DAYS: Final = 7
_FIELDS: Final = frozenset({"region", "hours", "checkpoints"})


@dataclass(frozen=True)
class Copies:
    """The copies of a stack in another region."""

    region: str
    """The region of the copies."""
    hours: int = 24
    """The hours between two exports of the state, and on Google Cloud between two transfers."""
    checkpoints: bool = True
    """Whether the bucket of checkpoints is copied, besides the bucket of code, logs and metrics."""

    @property
    def buckets(self) -> tuple[str, ...]:
        """The names of the stack's buckets that are copied."""
        return ("objects", "checkpoints") if self.checkpoints else ("objects",)


def expected_copies(region: str) -> str:
    """Return the expected form of the setting, for messages. `region` is an example."""
    return (
        f'a map like {{"region": "{region}", "hours": 24, "checkpoints": true}}; hours is a whole '
        f"number from 1 to {HOURS_MAX}"
    )


def parse_copies(given: object, region: re.Pattern[str]) -> Copies:
    """Return the copies that the map `given` describes. Regions must match the pattern `region`.

    Raise ValueError for any other value.
    """
    if not isinstance(given, dict) or not {"region"} <= set(given) <= _FIELDS:
        raise ValueError("a map")
    copies = Copies(**given)
    is_region = isinstance(copies.region, str) and region.fullmatch(copies.region)
    is_number = isinstance(copies.hours, int) and not isinstance(copies.hours, bool)
    if not is_region or not is_number or not 1 <= copies.hours <= HOURS_MAX:
        raise ValueError("a region, and hours")
    if not isinstance(copies.checkpoints, bool):
        raise ValueError("checkpoints")
    return copies


def decode_copies(text: str, region: re.Pattern[str], example: str) -> Copies:
    """Return the copies that a JSON text describes. Raise ValueError with what was expected."""
    try:
        return parse_copies(json.loads(text), region)
    except ValueError:
        raise ValueError(expected_copies(example)) from None


def find_copy_problems(copies: Copies | None, region: str, key: str, why_no_key: str) -> list[str]:
    """Return a line for each contradiction between `copies` and other valid settings.

    Args:
        region: the region of the stack.
        key: the setting `kmsKey`; empty without a key.
        why_no_key: the reason for which the cloud cannot copy with a key.
    """
    if copies is None:
        return []
    found = []
    if copies.region == region:
        found.append(
            f"detcloud:copies.region is {copies.region}, the region of the stack: expected another "
            "region, which survives the loss of this one"
        )
    if key:
        found.append(f"detcloud:copies and detcloud:kmsKey exclude each other: {why_no_key}")
    return found
