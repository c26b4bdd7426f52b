"""Commands on agents and their slots."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from detcloud import DetcloudError
from detcloud.cli.options import count
from detcloud.cli.output import add_output_options, print_items, print_record
from detcloud.cli.session import client_of
from detcloud.cli.table import Column, Item, cell_text, field, time_column
from detcloud.client import Agent, Slot


def _use_text(agent: Item) -> str:
    if agent.get("enabled", True):
        return "enabled"
    return "draining" if agent.get("draining") else "disabled"


COLUMNS = (
    field("ID", "id"),
    field("Name", "name", spare=2),
    field("Resource pool", "resource_pool"),
    field("Label", "label", spare=2),
    field("State", "state"),
    Column("Use", _use_text),
    Column("Slots", lambda agent: len(agent["slots"])),
    Column(
        "Busy", lambda agent: sum(slot.get("allocation") is not None for slot in agent["slots"])
    ),
    field("Version", "version", spare=1),
    time_column("Enrolled", "enrolled_ms", spare=3),
)
SLOT_COLUMNS = (
    field("Agent", "agent_id"),
    field("Resource pool", "resource_pool", spare=2),
    field("Slot", "id"),
    field("Type", "type"),
    field("Name", "name", spare=1),
    field("UUID", "uuid", spare=3),
    Column("Use", _use_text),
    field("Allocation", "allocation"),
)


def listing_arguments(parser: ArgumentParser) -> None:
    add_output_options(parser)


def listing(arguments: Namespace) -> int:
    print_items(COLUMNS, (agent.data for agent in client_of(arguments).agents()), arguments)
    return 0


def describe_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("agent_id", metavar="AGENT", help="its id or name")
    add_output_options(parser)


def describe(arguments: Namespace) -> int:
    agent = client_of(arguments).agent(arguments.agent_id)
    print_record(COLUMNS, agent.data, arguments)
    if arguments.form == "text":
        print()
        print_items(SLOT_COLUMNS, map(_slot_item, agent.slots), arguments)
    return 0


def enable_arguments(parser: ArgumentParser) -> None:
    _which_arguments(parser)


def enable(arguments: Namespace) -> int:
    agents = _chosen(arguments)
    for agent in agents:
        agent.enable()
    return _told(agents, arguments)


def disable_arguments(parser: ArgumentParser) -> None:
    _which_arguments(parser)
    parser.add_argument(
        "--drain", action="store_true", help="let what runs there finish (default: preempt it)"
    )


def disable(arguments: Namespace) -> int:
    agents = _chosen(arguments)
    for agent in agents:
        agent.disable(drain=arguments.drain)
    return _told(agents, arguments)


def slots_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--agent", metavar="AGENT", help="only this agent's")
    add_output_options(parser)


def slots(arguments: Namespace) -> int:
    client = client_of(arguments)
    agents = client.agents() if arguments.agent is None else [client.agent(arguments.agent)]
    found = [_slot_item(slot) for agent in agents for slot in agent.slots]
    print_items(SLOT_COLUMNS, found, arguments)
    return 0


def enable_slot_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("agent_id", metavar="AGENT", help="its id or name")
    parser.add_argument("slot_id", type=count, metavar="SLOT", help="its number on the agent")


def enable_slot(arguments: Namespace) -> int:
    slot = _slot(arguments)
    slot.enable()
    print(f"slot {slot.id} of agent {cell_text(slot.agent.id)} is enabled")
    return 0


def disable_slot_arguments(parser: ArgumentParser) -> None:
    enable_slot_arguments(parser)


def disable_slot(arguments: Namespace) -> int:
    slot = _slot(arguments)
    slot.disable()
    print(f"slot {slot.id} of agent {cell_text(slot.agent.id)} is disabled")
    return 0


def _which_arguments(parser: ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("agent_id", nargs="?", metavar="AGENT", help="its id or name")
    which.add_argument("--all", action="store_true", help="every agent that is alive")
    add_output_options(parser)


def _chosen(arguments: Namespace) -> list[Agent]:
    client = client_of(arguments)
    if arguments.agent_id is not None:
        return [client.agent(arguments.agent_id)]
    return [agent for agent in client.agents() if agent.state == "ALIVE"]


def _told(agents: list[Agent], arguments: Namespace) -> int:
    if arguments.form != "text":
        print_items(COLUMNS, (agent.data for agent in agents), arguments)
        return 0
    for agent in agents:
        print(f"agent {cell_text(agent.id)} is {_use_text(agent.data)}")
    return 0


def _slot(arguments: Namespace) -> Slot:
    agent = client_of(arguments).agent(arguments.agent_id)
    for slot in agent.slots:
        if slot.id == arguments.slot_id:
            return slot
    known = ", ".join(str(slot.id) for slot in agent.slots) or "none"
    raise DetcloudError(f"agent {agent.id} has no slot {arguments.slot_id}; it has {known}")


def _slot_item(slot: Slot) -> Item:
    agent = slot.agent
    return {**slot.data, "agent_id": agent.id, "resource_pool": agent.resource_pool}
