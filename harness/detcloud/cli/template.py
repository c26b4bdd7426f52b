"""Commands on templates."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from detcloud import DetcloudError
from detcloud.cli.failures import ConfigRefused
from detcloud.cli.options import foreign_option
from detcloud.cli.output import add_output_options, print_items, print_record
from detcloud.cli.session import client_of
from detcloud.cli.table import field, time_column
from detcloud.cli.terminal import clean
from detcloud.client import Client
from detcloud.client.client import config_text
from detcloud.http import ApiError

COLUMNS = (
    field("Name", "name"),
    field("User", "user", spare=1),
    time_column("Created", "created_ms", spare=2),
    time_column("Updated", "updated_ms"),
)
CONFIG_COLUMNS = (*COLUMNS, field("Configuration", "config"))


def listing_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("-d", "--details", action="store_true", help="show the configurations, too")
    add_output_options(parser)


def listing(arguments: Namespace) -> int:
    columns = CONFIG_COLUMNS if arguments.details else COLUMNS
    templates = client_of(arguments).templates()
    print_items(columns, (template.data for template in templates), arguments)
    return 0


def describe_arguments(parser: ArgumentParser) -> None:
    _name_argument(parser)
    add_output_options(parser)


def describe(arguments: Namespace) -> int:
    """Prints the YAML as it was set unless a form is asked for."""
    template = client_of(arguments).template(arguments.name)
    if arguments.form != "text":
        print_record(CONFIG_COLUMNS, template.data, arguments)
        return 0
    for line in template.config.rstrip().split("\n"):
        print(clean(line))
    return 0


def create_arguments(parser: ArgumentParser) -> None:
    _write_arguments(parser)


def create(arguments: Namespace) -> int:
    client = client_of(arguments)
    if any(template.name == arguments.name for template in client.templates()):
        raise DetcloudError(
            f"template {arguments.name} exists; `detcloud template set` replaces it"
        )
    return _written(client, arguments)


def set_arguments(parser: ArgumentParser) -> None:
    _write_arguments(parser)


def set_(arguments: Namespace) -> int:
    return _written(client_of(arguments), arguments)


def remove_arguments(parser: ArgumentParser) -> None:
    _name_argument(parser)


def remove(arguments: Namespace) -> int:
    client_of(arguments).template(arguments.name).remove()
    print(f"template {arguments.name} was removed")
    return 0


def _name_argument(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the template's name")


def _write_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="1 to 64 of A-Za-z0-9._-")
    parser.add_argument("file", type=Path, metavar="FILE", help="a YAML file")
    foreign_option(parser, "-w", "--workspace-name", instead="templates are the cluster's")


def _written(client: Client, arguments: Namespace) -> int:
    try:
        template = client.set_template(arguments.name, config_text(arguments.file))
    except ApiError as error:
        if error.code == "invalid":
            raise ConfigRefused(str(arguments.file), error) from None
        raise
    print(f"template {template.name} was set")
    return 0
