"""`detcloud model`: manages named models with checkpoints as versions."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from detcloud.cli.commands.model_arguments import (
    add_name_argument,
    add_text_options,
    given_fields,
    load_model,
    metadata_value,
    print_outcome,
)
from detcloud.cli.commands.model_version import VERSION_DETAILS, VERSION_HANDLERS
from detcloud.cli.framework.argument_types import parse_id
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.options import add_yes_option, confirm
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.output import add_output_options, print_items, print_record
from detcloud.cli.rendering.table import Column, field_column, time_column
from detcloud.client.model import SORT_FIELDS
from detcloud.shared.errors import DetcloudError
from detcloud.shared.plurals import count_text

MODEL_FIELDS = ("description", "notes", "labels", "metadata")

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
    Column("Metadata", metadata_value),
    field_column("Notes", "notes"),
)


def add_list_arguments(parser: ArgumentParser) -> None:
    """Add the options of `list_models`: filters, `--all`, the order and the output form (`--json`,
    `--yaml` or `--csv`). `--workspace-names` may be repeated and have several names, separated by
    commas.
    """
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
    """Print the models that match all filters as text, CSV, JSON or YAML, and return 0. Without
    matches, print only the titles, or `[]`.

    By default, the model that changed last comes last. Archived models are omitted without `--all`.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses the request.
    """
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
    """Add the arguments of `describe_model`: NAME, `--version`, None by default, and the output
    form (`--json`, `--yaml` or `--csv`).
    """
    add_name_argument(parser)
    parser.add_argument(
        "--version", type=parse_id, metavar="NUMBER", help="show this version instead of the model"
    )
    add_output_options(parser)


def describe_model(arguments: Namespace) -> int:
    """Print a model as text, CSV, JSON or YAML, or with `--version` a version of the model. Return
    0.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such model or version, or another
            request failed.
    """
    model = load_model(arguments)
    if arguments.version is None:
        print_record(MODEL_DETAILS, model.data, arguments)
    else:
        print_record(VERSION_DETAILS, model.version(arguments.version).data, arguments)
    return 0


def add_create_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `create_model`: NAME, `--workspace-name`, the fields of a model, and the
    output form (`--json`, `--yaml` or `--csv`). The options are None by default.
    """
    parser.add_argument("name", metavar="NAME", help="1 to 128 letters, digits and `_ .+:@()-`")
    parser.add_argument("-w", "--workspace-name", metavar="NAME", help="the workspace of the model")
    parser.add_argument("--description", metavar="TEXT", help="a description of the model")
    add_text_options(parser)
    add_output_options(parser)


def create_model(arguments: Namespace) -> int:
    """Create a model without versions in the cluster, print a confirmation, and return 0. With
    `--json`, `--yaml` or `--csv`, print the model's fields.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses, for example because the name
            exists.
    """
    fields = given_fields(arguments, MODEL_FIELDS)
    if arguments.workspace_name is not None:
        fields["workspace"] = arguments.workspace_name
    model = connect(arguments).create_model(arguments.name, **fields)
    return print_outcome(f"model {model.name} was created", MODEL_DETAILS, model, arguments)


def add_set_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `set_model`: NAME, the fields of a model, None by default, and the
    output form (`--json`, `--yaml` or `--csv`).
    """
    add_name_argument(parser)
    parser.add_argument("--description", metavar="TEXT", help="a description of the model")
    add_text_options(parser)
    add_output_options(parser)


def set_model(arguments: Namespace) -> int:
    """Change the given fields of a model in the cluster, print a confirmation, and return 0. With
    `--json`, `--yaml` or `--csv`, print the model's fields.

    Given labels and metadata replace all existing labels and metadata.

    Raises:
        DetcloudError: no field was given, no cluster is available, or the cluster refuses, for
            example for an archived model.
    """
    fields = fields_to_change(arguments, MODEL_FIELDS)
    model = load_model(arguments)
    model.set(**fields)
    return print_outcome(f"model {model.name} was updated", MODEL_DETAILS, model, arguments)


def add_move_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `move_model`: NAME and the required option `--workspace-name`."""
    add_name_argument(parser)
    parser.add_argument(
        "-w", "--workspace-name", required=True, metavar="NAME", help="the new workspace"
    )


def move_model(arguments: Namespace) -> int:
    """Move a model to the workspace of `--workspace-name`, print the new workspace, and return 0.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such model, or refuses the
            change.
    """
    model = load_model(arguments)
    model.move(arguments.workspace_name)
    print(f"model {model.name} is in workspace {model.workspace}")
    return 0


def archive_model(arguments: Namespace) -> int:
    """Hide a model from lists, print a confirmation, and return 0. An archived model accepts no
    versions and changes.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such model, or refuses the
            change.
    """
    model = load_model(arguments)
    model.archive()
    print(f"model {model.name} is archived")
    return 0


def unarchive_model(arguments: Namespace) -> int:
    """Show an archived model in lists again, print a confirmation, and return 0. The model accepts
    versions and changes again.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such model, or refuses the
            change.
    """
    model = load_model(arguments)
    model.unarchive()
    print(f"model {model.name} is not archived")
    return 0


def add_delete_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `delete_model`: NAME and `--yes`."""
    add_name_argument(parser)
    add_yes_option(parser)


def delete_model(arguments: Namespace) -> int:
    """Delete a model with all versions after confirmation, and print the result. Return 1 if the
    user declined, otherwise 0.

    The checkpoints stay, but the versions no longer keep them from deletion.

    Raises:
        DetcloudError: stdin is not a terminal and `--yes` is missing, no cluster is available, or
            the cluster has no such model or refuses.
    """
    model = load_model(arguments)
    versions = count_text(model.data["versions"], "version")
    if not confirm(f"Delete model {model.name} with {versions}?", arguments):
        print("nothing was deleted")
        return 1
    model.delete()
    print(f"model {model.name} was deleted")
    return 0


def fields_to_change(arguments: Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields among `names` for which options were given, by name. Empty labels are
    removed, so that `--label ''` gives an empty list.

    Args:
        names: attributes of `arguments`, among them `labels`. The error names the options.

    Raises:
        DetcloudError: no option was given.
    """
    fields = given_fields(arguments, names)
    if not fields:
        raise DetcloudError(f"nothing to change: set --{', --'.join(names)}")
    return fields


HANDLERS: Handlers = {
    "model list": Handler(add_list_arguments, list_models),
    "model describe": Handler(add_describe_arguments, describe_model),
    "model create": Handler(add_create_arguments, create_model),
    "model set": Handler(add_set_arguments, set_model),
    "model move": Handler(add_move_arguments, move_model),
    "model archive": Handler(add_name_argument, archive_model),
    "model unarchive": Handler(add_name_argument, unarchive_model),
    "model delete": Handler(add_delete_arguments, delete_model),
    **VERSION_HANDLERS,
}
