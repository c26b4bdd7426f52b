"""`detcloud template`: stores parts of configurations on the cluster."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.failures import RefusedConfigError
from detcloud.cli.framework.options import add_replaced_option
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.output import add_output_options, print_items, print_record
from detcloud.cli.rendering.table import field_column, time_column
from detcloud.cli.rendering.terminal import sanitize
from detcloud.client import Client
from detcloud.client.config_text import read_config_text
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError

COLUMNS = (
    field_column("Name", "name"),
    field_column("User", "user", drop_rank=1),
    time_column("Created", "created_ms", drop_rank=2),
    time_column("Updated", "updated_ms"),
)
CONFIG_COLUMNS = (*COLUMNS, field_column("Configuration", "config"))


def add_list_arguments(parser: ArgumentParser) -> None:
    """Add the options of `list_templates`: `--details` and the output form (`--json`, `--yaml` or
    `--csv`).
    """
    parser.add_argument("-d", "--details", action="store_true", help="also show the configurations")
    add_output_options(parser)


def list_templates(arguments: Namespace) -> int:
    """Print the templates as text, CSV, JSON or YAML, and return 0. With `--details`, the table
    also has the configurations. Without templates, print only the titles, or `[]`.

    Raises:
        DetcloudError: no cluster is available, or the request failed.
    """
    columns = CONFIG_COLUMNS if arguments.details else COLUMNS
    templates = connect(arguments).templates()
    print_items(columns, (template.data for template in templates), arguments)
    return 0


def add_describe_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `describe_template`: NAME and the output form (`--json`, `--yaml` or
    `--csv`).
    """
    add_name_argument(parser)
    add_output_options(parser)


def describe_template(arguments: Namespace) -> int:
    """Print the YAML of a template, or all fields with `--json`, `--yaml` or `--csv`. Return 0.

    Control characters of the YAML are replaced, and blanks and empty lines at the end are omitted.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such template, or the request
            failed.
    """
    template = connect(arguments).template(arguments.name)
    if arguments.form != "text":
        print_record(CONFIG_COLUMNS, template.data, arguments)
        return 0
    for line in template.config.rstrip().split("\n"):
        print(sanitize(line))
    return 0


def create_template(arguments: Namespace) -> int:
    """Create a template in the cluster from the YAML file FILE, print a confirmation, and return 0.

    Raises:
        RefusedConfigError: the cluster refused the file.
        DetcloudError: a template with this name exists, the file cannot be read, no cluster is
            available, or the cluster refuses for another reason.
    """
    client = connect(arguments)
    if any(template.name == arguments.name for template in client.templates()):
        raise DetcloudError(
            f"template {arguments.name} exists; `detcloud template set` replaces it"
        )
    _send_template(client, arguments)
    return 0


def set_template(arguments: Namespace) -> int:
    """Create or replace a template in the cluster from the YAML file FILE, print a confirmation,
    and return 0. The user is not asked.

    Raises:
        RefusedConfigError: the cluster refused the file.
        DetcloudError: the file cannot be read, no cluster is available, or the cluster refuses for
            another reason.
    """
    _send_template(connect(arguments), arguments)
    return 0


def remove_template(arguments: Namespace) -> int:
    """Delete a template from the cluster, print a confirmation, and return 0. The user is not
    asked. Experiments that used the template are not changed.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such template, or refuses the
            request.
    """
    connect(arguments).template(arguments.name).remove()
    print(f"template {arguments.name} was removed")
    return 0


def add_name_argument(parser: ArgumentParser) -> None:
    """Add the required argument NAME of a template, stored unchecked as the text `name`."""
    parser.add_argument("name", metavar="NAME", help="the template's name")


def add_set_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `create_template` and `set_template`: NAME and the path FILE.
    `--workspace-name` of Determined ends with a usage error.
    """
    parser.add_argument("name", metavar="NAME", help="1 to 64 letters, digits and `._-`")
    parser.add_argument("file", type=Path, metavar="FILE", help="a YAML file with settings")
    add_replaced_option(parser, "-w", "--workspace-name", instead="templates belong to the cluster")


def _send_template(client: Client, arguments: Namespace) -> None:
    """Create or replace a template in the cluster from the file of the arguments, and print a
    confirmation.

    Raises:
        RefusedConfigError: the cluster refused the file. The message has a line for each problem.
        DetcloudError: the file cannot be read, or the cluster refuses for another reason or does
            not answer.
    """
    try:
        template = client.set_template(arguments.name, read_config_text(arguments.file))
    except ApiError as error:
        if error.code == "invalid":
            raise RefusedConfigError(str(arguments.file), error) from None
        raise
    print(f"template {template.name} was set")


HANDLERS: Handlers = {
    "template list": Handler(add_list_arguments, list_templates),
    "template describe": Handler(add_describe_arguments, describe_template),
    "template create": Handler(add_set_arguments, create_template),
    "template set": Handler(add_set_arguments, set_template),
    "template remove": Handler(add_name_argument, remove_template),
}
