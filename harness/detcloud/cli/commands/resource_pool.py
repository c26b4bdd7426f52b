"""`detcloud resource-pool`, and `detcloud cluster apply` for a file that describes all pools."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.failures import RefusedConfigError
from detcloud.cli.framework.options import add_overrides_option, add_yes_option, confirm
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.hints import print_warnings
from detcloud.cli.rendering.output import (
    add_output_options,
    print_items,
    print_record,
    print_value,
)
from detcloud.cli.rendering.quantities import dollars_text
from detcloud.cli.rendering.replacements import print_replacement_sums
from detcloud.cli.rendering.table import (
    Column,
    Item,
    cell_text,
    field_column,
    time_column,
)
from detcloud.client import Client
from detcloud.client.records import AppliedConfiguration
from detcloud.client.replacement_records import ReplacementSums
from detcloud.client.resource_pool import ResourcePool
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError
from detcloud.shared.plurals import count_text

BOOT_LINES_MAX = 15
REPLACEMENT_DAYS = 30
NOT_FOUND = 404
# The number of offerings that the list shows for a pool; `--json` shows more.
PRICES_MAX = 3
ACTIONS = {"create": "created", "change": "changed", "remove": "removed", "keep": "unchanged"}


def _scheduler_text(pool: Item) -> str:
    """Return the type of a pool's scheduler, for example `priority`, with `, preemptive` if the
    scheduler may preempt trials.
    """
    scheduler = pool["scheduler"]
    return f"{scheduler['type']}, preemptive" if scheduler["preemption"] else str(scheduler["type"])


def _offering_text(offering: Item) -> str:
    """Return a text about failed launches of an offering: the count and the last error message. If
    launches are now rare, the text says so.
    """
    failed = f"{offering['offering']} failed {count_text(offering['errors'], 'time')}"
    given_up = ", one launch attempt an hour" if offering["given_up"] else ""
    return f"{failed}{given_up}: {offering['message']}"


def _prices_text(pool: Item) -> str | None:
    """Return the cheapest offerings with hourly prices, for example `g5.xlarge a spot $0.30`. An
    unknown price is shown as `(no price)`.

    At most PRICES_MAX offerings are shown, followed by the number of further offerings. Return None
    for a pool without offerings.
    """
    offerings = pool.get("offerings") or []
    texts = [
        f"{offering['instance_type']} {offering['zone']} {offering['market']} "
        + (
            cell_text(dollars_text(offering["price_per_hour"]))
            if offering["price_per_hour"]
            else "(no price)"
        )
        for offering in offerings[:PRICES_MAX]
    ]
    more = len(offerings) - PRICES_MAX
    return ", ".join([*texts, *([f"{more} more"] if more > 0 else [])]) or None


def _cost_text(pool: Item) -> str | None:
    """Return the pool's cost of this month, with a budget if the pool has a budget, and the idle
    part. Return None if the cost is unknown.
    """
    costs = pool.get("costs")
    if costs is None:
        return None
    budget = "" if costs["budget"] is None else f" of {dollars_text(costs['budget'])}"
    spent, idle = dollars_text(costs["instance_cost"]), dollars_text(costs["idle_cost"])
    return f"{spent}{budget}, of which idle {idle}"


COLUMNS = (
    field_column("Name", "name"),
    Column("Scheduler", _scheduler_text),
    field_column("State", "state"),
    field_column("Slots", "slots"),
    field_column("Free", "free_slots"),
    field_column("Running", "running"),
    field_column("Queued", "queued"),
    field_column("Agents", "agents"),
    field_column("Instances", "instances", drop_rank=1),
    field_column("Description", "description", drop_rank=2),
)
PRICES = Column("Cheapest, hourly", _prices_text, drop_rank=3)
DETAILS = (
    *COLUMNS,
    PRICES,
    Column("Default for", lambda pool: ", ".join(pool["default_for"]) or None),
    Column("Fitting", lambda pool: pool["scheduler"]["fitting_policy"]),
    Column("Default priority", lambda pool: pool["scheduler"]["default_priority"]),
    Column("Provider", lambda pool: (pool["config"]["provider"] or {}).get("type")),
    field_column("Waits", "waits"),
    # Clusters of older versions do not send the times of quiet hours.
    time_column("Quiet until", "quiet_until_ms"),
    time_column("Next quiet hours", "next_quiet_ms"),
    Column("Cost this month", _cost_text),
    Column("No instances", lambda pool: pool["fleet"]["trouble"] or pool["fleet"]["waits"]),
    # Clusters of older versions do not send `warning`.
    Column("Warning", lambda pool: pool["fleet"].get("warning", "")),
    Column("Offerings", lambda pool: "; ".join(map(_offering_text, pool["fleet"]["offerings"]))),
)
INSTANCE_COLUMNS = (
    field_column("Instance", "id"),
    field_column("Type", "instance_type"),
    field_column("Zone", "zone", drop_rank=2),
    field_column("Market", "market", drop_rank=1),
    field_column("Slots", "slots"),
    field_column("State", "state"),
    time_column("Launched", "launched_ms", drop_rank=3),
    field_column("Reason", "reason"),
)


def list_pools(arguments: Namespace) -> int:
    """Print the resource pools as text, CSV, JSON or YAML, with a column of prices if a pool has
    offerings. Return 0. JSON and YAML have all fields.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses the request.
    """
    pools = [pool.data for pool in connect(arguments).resource_pools()]
    has_prices = any(pool.get("offerings") for pool in pools)
    print_items((*COLUMNS, PRICES) if has_prices else COLUMNS, pools, arguments)
    return 0


def add_describe_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `describe_pool`: POOL and the output form (`--json`, `--yaml` or
    `--csv`).
    """
    add_name_argument(parser)
    add_output_options(parser)


def describe_pool(arguments: Namespace) -> int:
    """Print a pool as text, CSV, JSON or YAML, and return 0.

    As text, also print the pool's instances, the sums of its replacements by cause, if any, and
    the last BOOT_LINES_MAX lines of the output of each instance that did not boot. JSON and YAML
    have all fields, and the sums as `replacements`. CSV has the pool alone.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such pool, or another request
            failed.
    """
    pool = connect(arguments).resource_pool(arguments.name)
    sums = None if arguments.form == "csv" else _replacement_sums(pool)
    print_record(DETAILS, {**pool.data, **({"replacements": sums} if sums else {})}, arguments)
    if arguments.form == "text" and pool.data["instance_list"]:
        print()
        print_items(INSTANCE_COLUMNS, pool.data["instance_list"], arguments)
    if sums and arguments.form == "text":
        print_replacement_sums({**sums}, arguments, REPLACEMENT_DAYS)
    # Clusters of older versions do not send `failed_boots`.
    for boot in pool.data["fleet"].get("failed_boots", ()) if arguments.form == "text" else ():
        print(f"\nInstance {boot['id']} ({boot['instance_type']}) did not boot; its last output:")
        print("\n".join(f"  {line}" for line in boot["boot_log"].splitlines()[-BOOT_LINES_MAX:]))
    return 0


def _replacement_sums(pool: ResourcePool) -> ReplacementSums | None:
    """Return the sums of the last REPLACEMENT_DAYS. Return None from a cluster of an older version.

    Raises DetcloudError if the cluster refuses the request for another reason.
    """
    try:
        return pool.replacements(REPLACEMENT_DAYS)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return None


def create_pool(arguments: Namespace) -> int:
    """Create a pool in the cluster, print a confirmation, and return 0. Without FILE and
    `--config`, the pool has the default settings.

    Raises:
        RefusedConfigError: the cluster refused the file.
        DetcloudError: a pool with this name exists, the file cannot be read, no cluster is
            available, or the cluster refuses the request.
    """
    client = connect(arguments)
    if any(pool.name == arguments.name for pool in client.resource_pools()):
        raise DetcloudError(
            f"pool {arguments.name} exists; `detcloud resource-pool set` changes it"
        )
    _send_settings(client, arguments)
    print(f"pool {arguments.name} was created")
    return 0


def set_pool(arguments: Namespace) -> int:
    """Change a pool in the cluster, print a confirmation, and return 0. FILE replaces all settings,
    and `--config` changes single settings.

    Raises:
        RefusedConfigError: the cluster refused the file.
        DetcloudError: neither FILE nor `--config` was given, or the file cannot be read. Or the
            pool does not exist, no cluster is available, or the cluster refuses the request.
    """
    if arguments.file is None and not arguments.overrides:
        raise DetcloudError(
            "nothing to change: give FILE, or --config, such as --config scheduler.type=priority"
        )
    client = connect(arguments)
    client.resource_pool(arguments.name)
    _send_settings(client, arguments)
    print(f"pool {arguments.name} was set")
    return 0


def drain_pool(arguments: Namespace) -> int:
    """Stop a pool from starting trials, print the number of running trials, and return 0. The user
    is not asked.

    Running trials can finish. The pool refuses new jobs until `undrain`.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such pool, or refuses, for
            example because the user is not an administrator.
    """
    pool = connect(arguments).resource_pool(arguments.name)
    pool.drain()
    print(f"pool {pool.name} starts no more trials; {count_text(pool.running, 'trial')} can finish")
    return 0


def undrain_pool(arguments: Namespace) -> int:
    """Let a pool start trials and accept jobs again, print a confirmation, and return 0.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such pool, or refuses, for
            example because the user is not an administrator.
    """
    pool = connect(arguments).resource_pool(arguments.name)
    pool.undrain()
    print(f"pool {pool.name} starts trials again")
    return 0


def add_remove_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `remove_pool`: POOL and `--yes`."""
    add_name_argument(parser)
    add_yes_option(parser)


def remove_pool(arguments: Namespace) -> int:
    """Remove a pool after confirmation, and print the result. Return 1 if the user declined,
    otherwise 0.

    Raises:
        DetcloudError: the pool does not exist or has jobs, agents or instances, no cluster is
            available, or the cluster refuses. Or stdin is not a terminal and `--yes` is missing.
    """
    pool = connect(arguments).resource_pool(arguments.name)
    if not confirm(f"Remove pool {cell_text(pool.name)}?", arguments):
        print("nothing was removed")
        return 1
    pool.remove()
    print(f"pool {cell_text(pool.name)} was removed")
    return 0


def add_apply_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `apply_configuration`: the path FILE, `--dry-run`, and the output form
    (`--json` or `--yaml`).
    """
    parser.add_argument("file", type=Path, metavar="FILE", help="a cluster configuration")
    parser.add_argument("--dry-run", action="store_true", help="only show what would change")
    add_output_options(parser, csv=False)


def apply_configuration(arguments: Namespace) -> int:
    """Apply a cluster configuration file, print the changes, and return 0. Pools that the file
    lacks are removed. The user is not asked.

    With `--dry-run`, change nothing. As text, warnings are printed to stderr. With `--json` or
    `--yaml`, print the whole answer, warnings included.

    Raises:
        RefusedConfigError: the cluster refused the file.
        DetcloudError: the file cannot be read, no cluster is available, or the cluster refuses for
            another reason.
    """
    applied = apply_configuration_file(
        connect(arguments), arguments.file, dry_run=arguments.dry_run
    )
    if arguments.form != "text":
        print_value(applied, arguments.form)
    else:
        print_applied_changes(applied)
    return 0


def apply_configuration_file(
    client: Client, file: Path, *, dry_run: bool = False
) -> AppliedConfiguration:
    """Apply a cluster configuration to the cluster's pools and settings, and return the changes.
    Pools that the file lacks are removed. Nothing is printed.

    Args:
        file: the YAML file.
        dry_run: whether to only compute the changes.

    Raises:
        RefusedConfigError: the cluster refused the file. The message has a line for each problem.
        DetcloudError: the file cannot be read, the cluster refuses for another reason, or does not
            answer.
    """
    try:
        return client.configure(file, dry_run=dry_run)
    except ApiError as error:
        if error.code == "invalid":
            raise RefusedConfigError(str(file), error) from None
        raise


def print_applied_changes(applied: AppliedConfiguration) -> None:
    """Print a line for each pool and, if changed, for the cluster's settings, to stdout. Unchanged
    pools are included.

    Warnings are printed to stderr. After a dry run, the lines on changes say `would be`.
    """
    would = "would be " if applied["dry_run"] else ""
    if applied["shared"]:
        print(f"the cluster {would}changed: {', '.join(applied['shared'])}")
    for change in applied["changes"]:
        outcome = ACTIONS[change["action"]]
        if change["action"] != "keep":
            outcome = f"{would}{outcome}"
        fields = f": {', '.join(change['fields'])}" if change["fields"] else ""
        print(f"pool {change['resource_pool']} {outcome}{fields}")
    print_warnings(applied.get("warnings", []))


def add_name_argument(parser: ArgumentParser) -> None:
    """Add the required argument POOL, stored unchecked as the text `name`."""
    parser.add_argument("name", metavar="POOL", help="the pool's name")


def add_set_arguments(parser: ArgumentParser) -> None:
    """Add the required argument POOL, stored as `name`, and the settings for `create_pool` and
    `set_pool`.

    The settings are the optional path FILE, None by default, and `--config`, stored as the list
    `overrides`.
    """
    add_name_argument(parser)
    parser.add_argument(
        "file",
        type=Path,
        nargs="?",
        metavar="FILE",
        help="a YAML file with fields of the pool, as in an entry of resource_pools",
    )
    add_overrides_option(parser, example="scheduler.type=priority")


def _send_settings(client: Client, arguments: Namespace) -> None:
    """Create or change the pool of the arguments in the cluster, and print warnings to stderr.

    Raises:
        RefusedConfigError: the cluster refused the file. The message has a line for each problem.
        DetcloudError: the file cannot be read, or the cluster refuses settings without a file,
            refuses for another reason, or does not answer.
    """
    try:
        pool = client.set_resource_pool(
            arguments.name, arguments.file, overrides=arguments.overrides
        )
    except ApiError as error:
        if error.code == "invalid" and arguments.file is not None:
            raise RefusedConfigError(str(arguments.file), error) from None
        raise
    # Clusters of older versions send no warnings.
    print_warnings(pool.data.get("warnings", []))


HANDLERS: Handlers = {
    "resource-pool list": Handler(add_output_options, list_pools),
    "resource-pool describe": Handler(add_describe_arguments, describe_pool),
    "resource-pool create": Handler(add_set_arguments, create_pool),
    "resource-pool set": Handler(add_set_arguments, set_pool),
    "resource-pool drain": Handler(add_name_argument, drain_pool),
    "resource-pool undrain": Handler(add_name_argument, undrain_pool),
    "resource-pool remove": Handler(add_remove_arguments, remove_pool),
    "cluster apply": Handler(add_apply_arguments, apply_configuration),
}
