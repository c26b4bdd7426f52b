"""Values of metadata on the command line: `KEY=VALUE`, with dots between the keys on the way."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from typing import Any, Protocol

from detcloud.client.experiment import UNSET
from detcloud.shared.http import ApiError

# How often a change is tried that somebody else's came before.
_TRIES_MAX = 5


class MetadataOwner(Protocol):
    """An experiment, a trial or a checkpoint."""

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata as of the latest look."""

    @property
    def data(self) -> dict[str, Any]:
        """All that the latest look told."""

    def refresh(self) -> None:
        """Look again."""

    def set_metadata(self, metadata: dict[str, Any], *, expected_revision: str | None) -> None:
        """Replace the metadata, if the owner has that revision still."""


def add_metadata_values_argument(parser: ArgumentParser) -> None:
    """Add the values that `set metadata` merges into what is there."""
    parser.add_argument(
        "values",
        nargs="+",
        type=parse_metadata_value,
        metavar="KEY=VALUE",
        help="such as data.version=3, where the value is JSON or else text; `KEY=` removes the key",
    )


def set_metadata_values(
    owner: MetadataOwner, values: Sequence[tuple[list[str], Any]], revision: str
) -> None:
    """Merge values into the metadata, which others may change at the same moment. `revision`: the
    name of the field that says whether they did; a cluster without it takes what comes last.
    """
    for tries_left in reversed(range(_TRIES_MAX)):
        metadata = dict(owner.metadata)
        for keys, value in values:
            metadata = merge_metadata(metadata, keys, value)
        try:
            owner.set_metadata(metadata, expected_revision=owner.data.get(revision))
        except ApiError as error:
            if error.code != "conflict" or not tries_left:
                raise
            owner.refresh()
        else:
            return


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
