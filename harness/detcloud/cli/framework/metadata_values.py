"""Values of metadata on the command line: `KEY=VALUE`, with dots between the keys on the way."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from typing import Any

from detcloud.client.experiment import UNSET


def parse_metadata_value(text: str) -> tuple[list[str], Any]:
    """Parse `a.b=VALUE` into the keys on the way and the value, UNSET for none."""
    path, equals, value = text.partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        raise ArgumentTypeError(f"{text!r} is not KEY=VALUE, such as data.version=3")
    if not value:
        return keys, UNSET
    try:
        return keys, json.loads(value)
    except ValueError:
        return keys, value


def merge_metadata(metadata: dict[str, Any], keys: list[str], value: Any) -> dict[str, Any]:
    """Return metadata with a value at the end of a path, or without it for UNSET."""
    first, *rest = keys
    if not rest:
        others = {key: known for key, known in metadata.items() if key != first}
        return others if value is UNSET else {**others, first: value}
    below = metadata.get(first)
    inner = merge_metadata(below if isinstance(below, dict) else {}, rest, value)
    return {**metadata, first: inner}
