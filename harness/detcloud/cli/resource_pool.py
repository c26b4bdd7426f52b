"""Commands on resource pools, and on the configuration file that describes them all."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from detcloud import DetcloudError
from detcloud.cli.config import overrides_argument
from detcloud.cli.cost import money
from detcloud.cli.failures import ConfigRefused
from detcloud.cli.options import add_yes_option, confirmed
from detcloud.cli.output import add_output_options, print_items, print_record, print_value
from detcloud.cli.session import client_of
from detcloud.cli.table import Column, Item, cell_text, field, time_column
from detcloud.cli.terminal import counted
from detcloud.client import Client, ResourcePool
from detcloud.client.records import ConfigurationApplied
from detcloud.http import ApiError

ACTIONS = {"create": "created", "change": "changed", "remove": "removed", "keep": "unchanged"}


def _scheduler_text(pool: Item) -> str:
    scheduler = pool["scheduler"]
    return f"{scheduler['type']}, preemptive" if scheduler["preemption"] else str(scheduler["type"])


def _health_text(offering: Item) -> str:
    failed = f"{offering['offering']} failed {counted(offering['errors'], 'time')}"
    given_up = ", given up" if offering["given_up"] else ""
    return f"{failed}{given_up}: {offering['message']}"


def _costs_text(pool: Item) -> str | None:
    costs = pool.get("costs")
    if costs is None:
        return None
    budget = "" if costs["budget"] is None else f" of {money(costs['budget'])}"
    return f"{money(costs['instance_cost'])}{budget}, of which idle {money(costs['idle_cost'])}"


COLUMNS = (
    field("Name", "name"),
    Column("Scheduler", _scheduler_text),
    field("State", "state"),
    field("Slots", "slots"),
    field("Free", "free_slots"),
    field("Running", "running"),
    field("Queued", "queued"),
    field("Agents", "agents"),
    field("Instances", "instances", spare=1),
    field("Description", "description", spare=2),
)
WHOLE_COLUMNS = (
    *COLUMNS,
    Column("Default for", lambda pool: ", ".join(pool["default_for"]) or None),
    Column("Fitting", lambda pool: pool["scheduler"]["fitting_policy"]),
    Column("Default priority", lambda pool: pool["scheduler"]["default_priority"]),
    Column("Provider", lambda pool: (pool["config"]["provider"] or {}).get("type")),
    field("Waits", "waits"),
    Column("Cost this month", _costs_text),
    Column("No instances", lambda pool: pool["fleet"]["trouble"] or pool["fleet"]["waits"]),
    Column("Offerings", lambda pool: "; ".join(map(_health_text, pool["fleet"]["offerings"]))),
)
INSTANCE_COLUMNS = (
    field("Instance", "id"),
    field("Type", "instance_type"),
    field("Zone", "zone", spare=2),
    field("Market", "market", spare=1),
    field("Slots", "slots"),
    field("State", "state"),
    time_column("Launched", "launched_ms", spare=3),
    field("Reason", "reason"),
)


def listing_arguments(parser: ArgumentParser) -> None:
    add_output_options(parser)


def listing(arguments: Namespace) -> int:
    pools = client_of(arguments).resource_pools()
    print_items(COLUMNS, (pool.data for pool in pools), arguments)
    return 0


def describe_arguments(parser: ArgumentParser) -> None:
    _name_argument(parser)
    add_output_options(parser)


def describe(arguments: Namespace) -> int:
    pool = client_of(arguments).resource_pool(arguments.name)
    print_record(WHOLE_COLUMNS, pool.data, arguments)
    if arguments.form == "text" and pool.data["instance_list"]:
        print()
        print_items(INSTANCE_COLUMNS, pool.data["instance_list"], arguments)
    return 0


def create_arguments(parser: ArgumentParser) -> None:
    _write_arguments(parser)


def create(arguments: Namespace) -> int:
    client = client_of(arguments)
    if any(pool.name == arguments.name for pool in client.resource_pools()):
        raise DetcloudError(
            f"pool {arguments.name} exists; `detcloud resource-pool set` changes it"
        )
    _written(client, arguments)
    print(f"pool {arguments.name} was created")
    return 0


def set_arguments(parser: ArgumentParser) -> None:
    _write_arguments(parser)


def set_(arguments: Namespace) -> int:
    if arguments.file is None and not arguments.overrides:
        raise DetcloudError("say what to set: FILE, or --config such as scheduler.type=priority")
    client = client_of(arguments)
    client.resource_pool(arguments.name)
    _written(client, arguments)
    print(f"pool {arguments.name} was set")
    return 0


def drain_arguments(parser: ArgumentParser) -> None:
    _name_argument(parser)


def drain(arguments: Namespace) -> int:
    pool = client_of(arguments).resource_pool(arguments.name)
    pool.drain()
    print(f"pool {pool.name} starts nothing more; {counted(pool.running, 'trial')} may finish")
    return 0


def undrain_arguments(parser: ArgumentParser) -> None:
    _name_argument(parser)


def undrain(arguments: Namespace) -> int:
    pool = client_of(arguments).resource_pool(arguments.name)
    pool.undrain()
    print(f"pool {pool.name} starts work again")
    return 0


def remove_arguments(parser: ArgumentParser) -> None:
    _name_argument(parser)
    add_yes_option(parser)


def remove(arguments: Namespace) -> int:
    """Returns 1 when the user said no."""
    pool = client_of(arguments).resource_pool(arguments.name)
    if not confirmed(f"Remove pool {cell_text(pool.name)}?", arguments):
        print("nothing was removed")
        return 1
    pool.remove()
    print(f"pool {cell_text(pool.name)} was removed")
    return 0


def apply_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="a cluster configuration")
    parser.add_argument("--dry-run", action="store_true", help="only tell what would change")
    add_output_options(parser, csv=False)


def apply(arguments: Namespace) -> int:
    applied = applied_file(client_of(arguments), arguments.file, dry_run=arguments.dry_run)
    if arguments.form != "text":
        print_value(applied, arguments.form)
    else:
        print_applied(applied)
    return 0


def applied_file(client: Client, file: Path, *, dry_run: bool = False) -> ConfigurationApplied:
    """Makes the pools what the file says; ConfigRefused with a line for each problem of it."""
    try:
        return client.configure(file, dry_run=dry_run)
    except ApiError as error:
        if error.code == "invalid":
            raise ConfigRefused(str(file), error) from None
        raise


def print_applied(applied: ConfigurationApplied) -> None:
    """A line for each pool."""
    would = "would be " if applied["dry_run"] else ""
    if applied["shared"]:
        print(f"the cluster {would}changed: {', '.join(applied['shared'])}")
    for change in applied["changes"]:
        done = ACTIONS[change["action"]]
        shown = done if change["action"] == "keep" else f"{would}{done}"
        fields = f": {', '.join(change['fields'])}" if change["fields"] else ""
        print(f"pool {change['resource_pool']} {shown}{fields}")


def _name_argument(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="POOL", help="the pool's name")


def _write_arguments(parser: ArgumentParser) -> None:
    _name_argument(parser)
    parser.add_argument(
        "file",
        type=Path,
        nargs="?",
        metavar="FILE",
        help="a YAML file with its fields, as an entry of resource_pools has them",
    )
    overrides_argument(parser)


def _written(client: Client, arguments: Namespace) -> ResourcePool:
    try:
        return client.set_resource_pool(
            arguments.name, arguments.file, overrides=arguments.overrides
        )
    except ApiError as error:
        if error.code == "invalid" and arguments.file is not None:
            raise ConfigRefused(str(arguments.file), error) from None
        raise
