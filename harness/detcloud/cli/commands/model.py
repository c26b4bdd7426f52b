"""`detcloud model`: manages named models with checkpoints as versions."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from textwrap import indent
from typing import Any

from detcloud.cli.framework.argument_types import parse_id, parse_uuid_prefix
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.options import add_yes_option, confirm
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.output import (
    add_output_options,
    print_items,
    print_record,
    print_value,
)
from detcloud.cli.rendering.progress import show_progress
from detcloud.cli.rendering.quantities import bytes_text
from detcloud.cli.rendering.table import Column, Item, field_column, time_column
from detcloud.client.model import SORT_FIELDS, Model, ModelVersion
from detcloud.shared.errors import DetcloudError
from detcloud.shared.plurals import count_text

MODEL_FIELDS = ("description", "notes", "labels", "metadata")
VERSION_FIELDS = ("name", "comment", "notes", "labels", "metadata")


def _metadata_value(item: Item) -> object:
    return item.get("metadata") or None


MODEL_COLUMNS = (
    field_column("Name", "name"),
    field_column("Workspace", "workspace", drop_rank=4),
    field_column("Versions", "versions"),
    field_column("Description", "description", drop_rank=1),
    field_column("Labels", "labels", drop_rank=5),
    field_column("Archived", "archived", drop_rank=6),
    field_column("User", "user", drop_rank=3),
    time_column("Created", "created_ms", drop_rank=7),
    time_column("Updated", "updated_ms", drop_rank=2),
)
MODEL_DETAILS = (
    *MODEL_COLUMNS,
    Column("Metadata", _metadata_value),
    field_column("Notes", "notes"),
)
VERSION_COLUMNS = (
    field_column("Version", "number"),
    field_column("Name", "name", drop_rank=2),
    field_column("Checkpoint", "checkpoint_uuid"),
    field_column("Trial", "trial_id", drop_rank=5),
    field_column("Steps", "steps_completed", drop_rank=4),
    field_column("Comment", "comment", drop_rank=1),
    field_column("Labels", "labels", drop_rank=6),
    field_column("User", "user", drop_rank=3),
    time_column("Registered", "created_ms", drop_rank=7),
)
VERSION_DETAILS = (
    field_column("Model", "model"),
    *VERSION_COLUMNS,
    field_column("Experiment", "experiment_id"),
    time_column("Updated", "updated_ms"),
    Column("Metadata", _metadata_value),
    field_column("Notes", "notes"),
)


def add_list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "-w",
        "--workspace-names",
        action="append",
        default=[],
        metavar="NAMES",
        help="only models of these workspaces, separated by commas; may be repeated",
    )
    parser.add_argument("--name", metavar="PART", help="only models whose name contains PART")
    parser.add_argument("--label", help="only models with this label")
    parser.add_argument("--owner", metavar="USER", help="only models of this user")
    parser.add_argument("-a", "--all", action="store_true", help="also list archived models")
    parser.add_argument(
        "--sort-by", choices=SORT_FIELDS, default="last_updated_time", help="default: %(default)s"
    )
    parser.add_argument(
        "--order-by", choices=("asc", "desc"), default="asc", help="default: %(default)s"
    )
    add_output_options(parser)


def list_models(arguments: Namespace) -> int:
    models = connect(arguments).models(
        name=arguments.name,
        workspaces=[name for names in arguments.workspace_names for name in names.split(",")],
        label=arguments.label,
        user=arguments.owner,
        archived=None if arguments.all else False,
        sort_by=arguments.sort_by,
        descending=arguments.order_by == "desc",
    )
    print_items(MODEL_COLUMNS, (model.data for model in models), arguments)
    return 0


def add_describe_arguments(parser: ArgumentParser) -> None:
    add_name_argument(parser)
    parser.add_argument(
        "--version", type=parse_id, metavar="NUMBER", help="show this version instead of the model"
    )
    add_output_options(parser)


def describe_model(arguments: Namespace) -> int:
    model = load_model(arguments)
    if arguments.version is None:
        print_record(MODEL_DETAILS, model.data, arguments)
    else:
        print_record(VERSION_DETAILS, model.version(arguments.version).data, arguments)
    return 0


def add_create_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="1 to 128 letters, digits and `_ .+:@()-`")
    parser.add_argument("-w", "--workspace-name", metavar="NAME", help="the workspace of the model")
    parser.add_argument("--description", metavar="TEXT", help="a description of the model")
    add_text_options(parser)
    add_output_options(parser)


def create_model(arguments: Namespace) -> int:
    fields = given_fields(arguments, MODEL_FIELDS)
    if arguments.workspace_name is not None:
        fields["workspace"] = arguments.workspace_name
    model = connect(arguments).create_model(arguments.name, **fields)
    return print_outcome(f"model {model.name} was created", MODEL_DETAILS, model, arguments)


def add_set_arguments(parser: ArgumentParser) -> None:
    add_name_argument(parser)
    parser.add_argument("--description", metavar="TEXT", help="a description of the model")
    add_text_options(parser)
    add_output_options(parser)


def set_model(arguments: Namespace) -> int:
    """Change the given fields of a model in the cluster, print a confirmation or the new fields,
    and return 0.

    Raises:
        DetcloudError: no field was given, no cluster is available, or the cluster refuses the
            request.
    """
    fields = fields_to_change(arguments, MODEL_FIELDS)
    model = load_model(arguments)
    model.set(**fields)
    return print_outcome(f"model {model.name} was updated", MODEL_DETAILS, model, arguments)


def add_move_arguments(parser: ArgumentParser) -> None:
    add_name_argument(parser)
    parser.add_argument(
        "-w", "--workspace-name", required=True, metavar="NAME", help="the new workspace"
    )


def move_model(arguments: Namespace) -> int:
    model = load_model(arguments)
    model.move(arguments.workspace_name)
    print(f"model {model.name} is in workspace {model.workspace}")
    return 0


def archive_model(arguments: Namespace) -> int:
    model = load_model(arguments)
    model.archive()
    print(f"model {model.name} is archived")
    return 0


def unarchive_model(arguments: Namespace) -> int:
    model = load_model(arguments)
    model.unarchive()
    print(f"model {model.name} is not archived")
    return 0


def add_delete_arguments(parser: ArgumentParser) -> None:
    add_name_argument(parser)
    add_yes_option(parser)


def delete_model(arguments: Namespace) -> int:
    """Delete a model with all versions after confirmation. Return 1 if the user declined, otherwise
    0. The result is printed.

    Raises:
        DetcloudError: stdin is not a terminal and `--yes` is missing, no cluster is available, or
            the cluster refuses the request.
    """
    model = load_model(arguments)
    versions = count_text(model.data["versions"], "version")
    if not confirm(f"Delete model {model.name} with {versions}?", arguments):
        print("nothing was deleted")
        return 1
    model.delete()
    print(f"model {model.name} was deleted")
    return 0


def add_versions_arguments(parser: ArgumentParser) -> None:
    add_name_argument(parser)
    add_output_options(parser)


def list_versions(arguments: Namespace) -> int:
    versions = load_model(arguments).versions()
    print_items(VERSION_COLUMNS, (version.data for version in versions), arguments)
    return 0


def add_register_arguments(parser: ArgumentParser) -> None:
    add_name_argument(parser)
    parser.add_argument(
        "uuid",
        type=parse_uuid_prefix,
        metavar="UUID",
        help="the checkpoint's UUID, or a unique prefix of the UUID",
    )
    add_version_options(parser)
    add_output_options(parser)


def register_version(arguments: Namespace) -> int:
    """Register a checkpoint as the next version of a model, print the number of the version, and
    return 0.

    With `--json`, `--yaml` or `--csv`, print the version's fields.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses the request.
    """
    model = load_model(arguments)
    fields = given_version_fields(arguments)
    version = model.register_version(arguments.uuid, **fields)
    text = f"checkpoint {version.checkpoint_uuid} is version {version.number} of {version.model}"
    return print_outcome(text, VERSION_DETAILS, version, arguments)


def add_set_version_arguments(parser: ArgumentParser) -> None:
    add_name_argument(parser)
    add_number_argument(parser)
    add_version_options(parser)
    add_output_options(parser)


def set_version(arguments: Namespace) -> int:
    """Change the given fields of a version in the cluster, print a confirmation or the new fields,
    and return 0.

    Raises:
        DetcloudError: no field was given, no cluster is available, or the cluster refuses the
            request.
    """
    fields = given_version_fields(arguments)
    if not fields:
        raise DetcloudError("nothing to change; see `detcloud model set-version --help`")
    version = load_model(arguments).version(arguments.number)
    version.set(**fields)
    text = f"version {version.number} of {version.model} was updated"
    return print_outcome(text, VERSION_DETAILS, version, arguments)


def add_delete_version_arguments(parser: ArgumentParser) -> None:
    add_name_argument(parser)
    add_number_argument(parser)
    add_yes_option(parser)


def delete_version(arguments: Namespace) -> int:
    """Delete a version after confirmation. Return 1 if the user declined, otherwise 0. The result
    is printed.

    Raises:
        DetcloudError: stdin is not a terminal and `--yes` is missing, no cluster is available, or
            the cluster refuses the request.
    """
    version = load_model(arguments).version(arguments.number)
    question = f"Delete version {version.number} of {version.model}?"
    if not confirm(question, arguments):
        print("nothing was deleted")
        return 1
    version.delete()
    print(f"version {version.number} of {version.model} was deleted")
    return 0


def add_export_arguments(parser: ArgumentParser) -> None:
    add_name_argument(parser)
    add_number_argument(parser)
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="a folder that does not exist yet or is empty"
    )
    add_output_options(parser, csv=False)


def export_version(arguments: Namespace) -> int:
    """Export a version to a folder, print the code that loads the checkpoint, and return 0.

    The folder is created if needed. With `--json` or `--yaml`, print the manifest.

    Raises:
        DetcloudError: the folder is not empty or cannot be written, a download is damaged, or a
            request failed.
    """
    version = load_model(arguments).version(arguments.number)
    with show_progress(f"{version.model}/{version.number}", bytes_text) as progress:
        manifest = version.export(arguments.folder, progress.update)
    if arguments.form != "text":
        print_value(manifest, arguments.form)
        return 0
    print(f"version {version.number} of {version.model} is in {arguments.folder}")
    if manifest["load"] is None:
        print("only the code that stored the checkpoint can load it")
    else:
        print("to load the checkpoint from that folder:")
        print(indent(manifest["load"], "  "))
    return 0


def add_name_argument(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the model's name")


def add_number_argument(parser: ArgumentParser) -> None:
    parser.add_argument("number", type=parse_id, metavar="NUMBER", help="the version's number")


def add_text_options(parser: ArgumentParser) -> None:
    """Add the options that models and versions share: `--notes`, `--label` and `--metadata`. All
    are None if not given.

    `--label` may be repeated and is stored as the list `labels`. `--metadata` must be a JSON
    object.
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


def add_version_options(parser: ArgumentParser) -> None:
    """Add the options for the fields of a version: `--name`, stored as `version_name`, `--comment`,
    and the options of `add_text_options`.
    """
    parser.add_argument(
        "--name", dest="version_name", metavar="TEXT", help="the name of the version"
    )
    parser.add_argument("--comment", metavar="TEXT", help="a short comment")
    add_text_options(parser)


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
    """Return the fields among `names` for which options were given. Empty labels are removed, and
    an empty list removes all labels.

    Args:
        names: attributes of `arguments`, among them `labels`.
    """
    values = {name: getattr(arguments, name) for name in names}
    if values["labels"] is not None:
        values["labels"] = [label for label in values["labels"] if label]
    return {name: value for name, value in values.items() if value is not None}


def given_version_fields(arguments: Namespace) -> dict[str, Any]:
    """Return the fields of a version for which options were given; empty without options. `name` is
    the value of `--name`.
    """
    model, arguments.name = arguments.name, arguments.version_name
    fields = given_fields(arguments, VERSION_FIELDS)
    arguments.name = model
    return fields


def fields_to_change(arguments: Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields among `names` for which options were given. Empty labels are removed.

    Raises:
        DetcloudError: no option was given.
    """
    fields = given_fields(arguments, names)
    if not fields:
        raise DetcloudError(f"nothing to change: set --{', --'.join(names)}")
    return fields


def print_outcome(
    text: str, columns: tuple[Column, ...], found: Model | ModelVersion, arguments: Namespace
) -> int:
    """Print `text`, or the new fields with `--json`, `--yaml` or `--csv`. Return the exit code 0.

    Args:
        columns: the columns for CSV.
        found: the changed or new object.
    """
    if arguments.form == "text":
        print(text)
    else:
        print_record(columns, found.data, arguments)
    return 0


def load_model(arguments: Namespace) -> Model:
    """Fetch the model of `add_name_argument` from the configured cluster. `main` closes the client.

    Raises:
        DetcloudError: no cluster is available, or the cluster has no such model.
    """
    return connect(arguments).model(arguments.name)


HANDLERS: Handlers = {
    "model list": Handler(add_list_arguments, list_models),
    "model describe": Handler(add_describe_arguments, describe_model),
    "model create": Handler(add_create_arguments, create_model),
    "model set": Handler(add_set_arguments, set_model),
    "model move": Handler(add_move_arguments, move_model),
    "model archive": Handler(add_name_argument, archive_model),
    "model unarchive": Handler(add_name_argument, unarchive_model),
    "model delete": Handler(add_delete_arguments, delete_model),
    "model list-versions": Handler(add_versions_arguments, list_versions),
    "model register-version": Handler(add_register_arguments, register_version),
    "model set-version": Handler(add_set_version_arguments, set_version),
    "model delete-version": Handler(add_delete_version_arguments, delete_version),
    "model export": Handler(add_export_arguments, export_version),
}
