"""Metadata values on the command line: `KEY=VALUE`, where dots separate nested keys.

`detcloud.shared.dotted_paths` describes the form of a key.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from detcloud.cli.framework.command_parser import Handler
from detcloud.cli.framework.exit_codes import OK
from detcloud.client.experiment import UNSET
from detcloud.shared.dotted_paths import (
    FORM,
    DottedPath,
    PathInvalid,
    resolve_path,
    split_assignment,
)
from detcloud.shared.errors import InvalidCall
from detcloud.shared.http import ApiError

# Attempts to store a change while other users change the same metadata.
_TRIES_MAX = 5


class MetadataOwner(Protocol):
    """An experiment, a trial or a checkpoint with metadata."""

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata as last fetched."""

    @property
    def data(self) -> dict[str, Any]:
        """All fields as last fetched."""

    def refresh(self) -> None:
        """Fetch the fields again from the cluster.

        Raises:
            DetcloudError: the request failed.
        """

    def set_metadata(self, metadata: dict[str, Any], *, expected_revision: str | None) -> None:
        """Replace the metadata in the cluster if the owner's revision still is `expected_revision`.
        The fields are updated.

        None as `expected_revision` replaces the metadata in any case.

        Raises:
            ApiError: the code is `conflict` if the revision has changed, or another code if the
                cluster refuses the metadata.
        """


def metadata_handler(
    noun: str,
    id_field: str,
    add_owner_argument: Callable[[ArgumentParser], None],
    load_owner: Callable[[Namespace], MetadataOwner],
    *,
    revision: str = "metadata_revision",
) -> Handler:
    """Return the handler of `NOUN set metadata`.

    The handler fetches the owner, merges the values of the command line into the stored metadata,
    prints a confirmation and returns OK. The handler raises the errors of `load_owner`. It raises
    DetcloudError if the cluster refuses the metadata or does not answer, or if other users changed
    the metadata each time. It raises InvalidCall if a path fits several keys.

    Args:
        noun: the noun that the confirmation message shows, such as `trial`.
        id_field: the owner's field with the id for the confirmation message.
        add_owner_argument: adds the argument that names the owner.
        load_owner: fetches the owner.
        revision: the owner's field with the revision of the metadata.
    """

    def add_arguments(parser: ArgumentParser) -> None:
        add_owner_argument(parser)
        _add_values_argument(parser)

    def set_metadata(arguments: Namespace) -> int:
        owner = load_owner(arguments)
        set_metadata_values(owner, arguments.values, revision)
        print(f"the metadata of {noun} {owner.data[id_field]} was set")
        return OK

    return Handler(add_arguments, set_metadata)


def set_metadata_values(
    owner: MetadataOwner, values: Sequence[tuple[DottedPath, Any]], revision: str
) -> None:
    """Merge values into the owner's metadata, and store the result in the cluster. Keys without a
    new value are kept.

    If another user changed the metadata in between, fetch the owner and try again, up to _TRIES_MAX
    times in all. On a cluster without the field `revision`, the last writer wins. A value of UNSET
    removes the key.

    Args:
        owner: the object to change. Its fields are fetched again after a conflict, and updated by
            the change.
        values: paths with new values, merged in this order.
        revision: the name of the owner's field with the revision of the metadata.

    Raises:
        DetcloudError: the cluster refused the metadata, other users changed them each time, or the
            cluster does not answer.
        InvalidCall: a path fits several keys of the metadata. Nothing is stored.
    """
    for tries_left in reversed(range(_TRIES_MAX)):
        metadata = dict(owner.metadata)
        for path, value in values:
            metadata = merge_metadata(metadata, path, value)
        try:
            owner.set_metadata(metadata, expected_revision=owner.data.get(revision))
        except ApiError as error:
            if error.code != "conflict" or not tries_left:
                raise
            owner.refresh()
        else:
            return


def parse_metadata_value(text: str) -> tuple[DottedPath, Any]:
    """Parse `a.b=VALUE` into the path and the value.

    The value is JSON if the text parses as JSON, otherwise the text itself. An empty value is
    UNSET, which removes a key. `detcloud.shared.dotted_paths` describes the form of the path.

    Raises:
        ArgumentTypeError: the text is not of this form, or the path is invalid.
    """
    try:
        path, value = split_assignment(text)
    except PathInvalid as error:
        reason = "is not KEY=VALUE, such as data.version=3" if FORM in str(error) else str(error)
        raise ArgumentTypeError(f"{text!r} {reason}") from None
    if not value:
        return path, UNSET
    try:
        return path, json.loads(value)
    except ValueError:
        return path, value


def merge_metadata(metadata: dict[str, Any], path: DottedPath, value: Any) -> dict[str, Any]:
    """Return a copy of the metadata with a value at the path. The argument is not changed.

    Missing maps on the path are created, and other values on the path are replaced by maps. UNSET
    removes the key at the end of the path. Without the key, UNSET changes nothing.

    Raises:
        InvalidCall: several keys of the metadata fit the path.
    """
    try:
        return _set_value(metadata, resolve_path(path, (metadata,)), value)
    except PathInvalid as error:
        raise InvalidCall(f"metadata {'.'.join(path.names)} {error}") from None


def _set_value(metadata: dict[str, Any], keys: Sequence[str], value: Any) -> dict[str, Any]:
    """Return metadata with `value` at nested keys; UNSET removes the last key. The argument is not
    changed.

    Maps are created where keys are missing or hold other values. UNSET changes nothing in this
    case. The result shares unchanged maps with the argument, and may be the argument.

    Args:
        keys: the keys from the outermost to the innermost; at least one.
    """
    first, *rest = keys
    if not rest:
        others = {key: known for key, known in metadata.items() if key != first}
        return others if value is UNSET else {**others, first: value}
    below = metadata.get(first)
    if value is UNSET and not isinstance(below, dict):
        return metadata
    inner = _set_value(below if isinstance(below, dict) else {}, rest, value)
    return {**metadata, first: inner}


def _add_values_argument(parser: ArgumentParser) -> None:
    """Add the required argument KEY=VALUE, which may be repeated, stored as `values`: a list of
    results of `parse_metadata_value`.
    """
    parser.add_argument(
        "values",
        nargs="+",
        type=parse_metadata_value,
        metavar="KEY=VALUE",
        help="a value, such as data.version=3, which is JSON or plain text; `KEY=` removes the key",
    )
