"""The versions of a model: lists, registers, changes, deletes and exports versions."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from textwrap import indent
from typing import Any

from detcloud.cli.commands.model_arguments import (
    add_name_argument,
    add_text_options,
    given_fields,
    load_model,
    metadata_value,
    print_outcome,
)
from detcloud.cli.framework.argument_types import parse_id, parse_uuid_prefix
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.options import add_yes_option, confirm
from detcloud.cli.rendering.output import add_output_options, print_items, print_value
from detcloud.cli.rendering.progress import show_progress
from detcloud.cli.rendering.quantities import bytes_text
from detcloud.cli.rendering.table import Column, field_column, time_column
from detcloud.shared.errors import DetcloudError

VERSION_FIELDS = ("name", "comment", "notes", "labels", "metadata")

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
    Column("Metadata", metadata_value),
    field_column("Notes", "notes"),
)


def add_versions_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `list_versions`: NAME and the output form (`--json`, `--yaml` or
    `--csv`).
    """
    add_name_argument(parser)
    add_output_options(parser)


def list_versions(arguments: Namespace) -> int:
    """Print the versions of a model as text, CSV, JSON or YAML, newest first, and return 0. Without
    versions, print only the titles, or `[]`.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such model, or another request
            failed.
    """
    versions = load_model(arguments).versions()
    print_items(VERSION_COLUMNS, (version.data for version in versions), arguments)
    return 0


def add_register_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `register_version`: NAME, the UUID of a checkpoint or a beginning of the
    UUID, the fields of a version, and the output form (`--json`, `--yaml` or `--csv`).
    """
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
    return 0. The version keeps the checkpoint from deletion.

    With `--json`, `--yaml` or `--csv`, print the version's fields.

    Raises:
        DetcloudError: no cluster is available, no checkpoint or several begin with the prefix, or
            the cluster refuses, for example for an archived model.
    """
    model = load_model(arguments)
    fields = given_version_fields(arguments)
    version = model.register_version(arguments.uuid, **fields)
    text = f"checkpoint {version.checkpoint_uuid} is version {version.number} of {version.model}"
    return print_outcome(text, VERSION_DETAILS, version, arguments)


def add_set_version_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `set_version`: NAME, NUMBER, the fields of a version, and the output
    form (`--json`, `--yaml` or `--csv`).
    """
    add_name_argument(parser)
    add_number_argument(parser)
    add_version_options(parser)
    add_output_options(parser)


def set_version(arguments: Namespace) -> int:
    """Change the given fields of a version in the cluster, print a confirmation, and return 0. With
    `--json`, `--yaml` or `--csv`, print the version's fields.

    Given labels and metadata replace all existing labels and metadata.

    Raises:
        DetcloudError: no field was given, no cluster is available, the cluster has no such model or
            version, or refuses the change.
    """
    fields = given_version_fields(arguments)
    if not fields:
        raise DetcloudError("nothing to change; see `detcloud model set-version --help`")
    version = load_model(arguments).version(arguments.number)
    version.set(**fields)
    text = f"version {version.number} of {version.model} was updated"
    return print_outcome(text, VERSION_DETAILS, version, arguments)


def add_delete_version_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `delete_version`: NAME, NUMBER and `--yes`."""
    add_name_argument(parser)
    add_number_argument(parser)
    add_yes_option(parser)


def delete_version(arguments: Namespace) -> int:
    """Delete a version after confirmation, and print the result. Return 1 if the user declined,
    otherwise 0.

    The checkpoint stays, but this version no longer keeps the checkpoint from deletion.

    Raises:
        DetcloudError: stdin is not a terminal and `--yes` is missing, no cluster is available, or
            the cluster has no such version or refuses.
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
    """Add the arguments of `export_version`: NAME, NUMBER, the path DIR, stored as `folder`, and
    the output form (`--json` or `--yaml`).
    """
    add_name_argument(parser)
    add_number_argument(parser)
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="a folder that does not exist yet or is empty"
    )
    add_output_options(parser, csv=False)


def export_version(arguments: Namespace) -> int:
    """Export a version to a folder, print the code that loads the checkpoint, and return 0. The
    folder gets the checkpoint, the model code, the configuration and manifest.json.

    The folder is created if needed. With `--json` or `--yaml`, print the manifest. After an error,
    the files of the export are deleted. A progress line is drawn on stderr.

    Raises:
        DetcloudError: the folder is not empty or cannot be written, a download is damaged, or the
            cluster has no such version. Or no cluster is available, or another request failed.
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


def add_number_argument(parser: ArgumentParser) -> None:
    """Add the required argument NUMBER of a version, parsed by `parse_id` and stored as the integer
    `number`.
    """
    parser.add_argument("number", type=parse_id, metavar="NUMBER", help="the version's number")


def add_version_options(parser: ArgumentParser) -> None:
    """Add the options for the fields of a version: `--name`, stored as `version_name`, `--comment`,
    and the options of `add_text_options`. All are None if not given.
    """
    parser.add_argument(
        "--name", dest="version_name", metavar="TEXT", help="the name of the version"
    )
    parser.add_argument("--comment", metavar="TEXT", help="a short comment")
    add_text_options(parser)


def given_version_fields(arguments: Namespace) -> dict[str, Any]:
    """Return the fields of a version for which options were given, by name; empty without options.
    `name` is the value of `--name`, not the argument NAME of the model.
    """
    model, arguments.name = arguments.name, arguments.version_name
    fields = given_fields(arguments, VERSION_FIELDS)
    arguments.name = model
    return fields


VERSION_HANDLERS: Handlers = {
    "model list-versions": Handler(add_versions_arguments, list_versions),
    "model register-version": Handler(add_register_arguments, register_version),
    "model set-version": Handler(add_set_version_arguments, set_version),
    "model delete-version": Handler(add_delete_version_arguments, delete_version),
    "model export": Handler(add_export_arguments, export_version),
}
