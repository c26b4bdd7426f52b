"""Arguments and fields that the commands on models and on versions of models share."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import Any

from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.output import print_record
from detcloud.cli.rendering.table import Column, Item
from detcloud.client.model import Model, ModelVersion


def add_name_argument(parser: ArgumentParser) -> None:
    """Add the required argument NAME of a model, stored unchecked as the text `name`."""
    parser.add_argument("name", metavar="NAME", help="the model's name")


def load_model(arguments: Namespace) -> Model:
    """Fetch the model of `add_name_argument` from the configured cluster. The client is stored in
    `arguments.client`, and `main` closes the client.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such model, or the request
            failed.
    """
    return connect(arguments).model(arguments.name)


def add_text_options(parser: ArgumentParser) -> None:
    """Add the options that models and versions share: `--notes`, `--label` and `--metadata`. All
    are None if not given.

    `--label` may be repeated and is stored as the list `labels`. `--metadata` is parsed by
    `parse_metadata` into a dict.
    """
    parser.add_argument("--notes", metavar="TEXT", help="notes of any length")
    parser.add_argument(
        "--label",
        dest="labels",
        action="append",
        metavar="LABEL",
        help="a label; may be repeated, and replaces all existing labels; '' removes them",
    )
    parser.add_argument(
        "--metadata", type=parse_metadata, metavar="JSON", help="further metadata, a JSON object"
    )


def parse_metadata(text: str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ArgumentTypeError: the text is not a JSON object.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ArgumentTypeError("expected a JSON object, such as '{\"f1\": 0.9}'")
    return value


def given_fields(arguments: Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields among `names` for which options were given, by name. Empty labels are
    removed, so that `--label ''` gives an empty list. Empty without options.

    Args:
        names: attributes of `arguments`, among them `labels`.
    """
    values = {name: getattr(arguments, name) for name in names}
    if values["labels"] is not None:
        values["labels"] = [label for label in values["labels"] if label]
    return {name: value for name, value in values.items() if value is not None}


def print_outcome(
    text: str, columns: tuple[Column, ...], handle: Model | ModelVersion, arguments: Namespace
) -> int:
    """Print `text`, or the object's fields with `--json`, `--yaml` or `--csv`. Return the exit code
    0.

    Args:
        text: the confirmation for the text form.
        columns: the columns for CSV.
        handle: the changed or new object.
    """
    if arguments.form == "text":
        print(text)
    else:
        print_record(columns, handle.data, arguments)
    return 0


def metadata_value(item: Item) -> object:
    """Return the metadata of a model or version, or None for empty or missing metadata."""
    return item.get("metadata") or None
