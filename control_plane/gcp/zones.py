"""Zones of Google Cloud, and the regions that they are in, by their names."""

import re
from typing import Final

_ZONE: Final = re.compile(r"(?P<region>[a-z]+-[a-z]+[0-9]+)-[a-z0-9]+")


def region_of(zone: str) -> str:
    """The region of a zone, "" for what is no zone's name."""
    found = _ZONE.fullmatch(zone)
    return found["region"] if found else ""
