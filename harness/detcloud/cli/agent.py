"""Commands on agents."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from detcloud.cli.session import cluster_of
from detcloud.cli.table import Column, Item, add_output_options, field, print_items


def _slots(agent: Item) -> object:
    slots = agent.get("slots")
    return len(slots) if isinstance(slots, list) else slots


COLUMNS = (
    Column("ID", lambda agent: agent.get("id") or agent.get("agent_id")),
    field("Name", "name"),
    field("Resource pool", "resource_pool"),
    field("State", "state"),
    Column("Slots", _slots),
    field("Version", "version"),
)


def listing_arguments(parser: ArgumentParser) -> None:
    add_output_options(parser)


def listing(arguments: Namespace) -> int:
    print_items(COLUMNS, cluster_of(arguments).agents(), arguments)
    return 0
