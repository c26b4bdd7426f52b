"""The setting `copies` of a stack on AWS. Pure."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from infra.copy_settings import decode_copies, find_copy_problems

_REGION: Final = re.compile(r"[a-z]{2}-[a-z]+-[0-9]")
_WHY_NO_KEY: Final = (
    "a key belongs to one region, and S3 replicates objects with a key only if another key in the "
    "other region is named"
)


def find_inconsistencies(values: Mapping[str, Any]) -> list[str]:
    """Return a line for each contradiction between `copies` and other valid settings.

    `values` maps field names of Settings to parsed values.
    """
    key = values.get("kms_key") or ""
    return find_copy_problems(values.get("copies"), values["region"], key, _WHY_NO_KEY)


PARSERS: Final[dict[str, Callable[[str], object]]] = {
    "copies": partial(decode_copies, region=_REGION, example="us-west-2")
}
