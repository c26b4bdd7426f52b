"""The names of Google Cloud's zones, and the regions in these names."""

import re
from typing import Final

_ZONE: Final = re.compile(r"(?P<region>[a-z]+-[a-z]+[0-9]+)-[a-z0-9]+")


def region_of(zone: str) -> str:
    """Return the region of a zone by the zone's name: "us-central1" for "us-central1-a".

    Return "" if the text does not have the form of a zone's name.
    """
    found = _ZONE.fullmatch(zone)
    return found["region"] if found else ""
