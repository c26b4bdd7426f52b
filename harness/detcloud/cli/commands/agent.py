"""`detcloud agent`: lists, describes, enables and disables agents."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.output import add_output_options, print_items, print_record
from detcloud.cli.rendering.table import Column, Item, cell_text, field_column, time_column
from detcloud.client import Agent, Slot


def _use_text(agent: Item) -> str:
    """Return `enabled`, `draining` or `disabled` for an agent or a slot. A missing field `enabled`
    counts as enabled.
    """
    if agent.get("enabled", True):
        return "enabled"
    return "draining" if agent.get("draining") else "disabled"


COLUMNS = (
    field_column("ID", "id"),
    field_column("Name", "name", drop_rank=2),
    field_column("Resource pool", "resource_pool"),
    field_column("Label", "label", drop_rank=2),
    field_column("State", "state"),
    Column("Use", _use_text),
    Column("Slots", lambda agent: len(agent["slots"])),
    Column(
        "Busy", lambda agent: sum(slot.get("allocation") is not None for slot in agent["slots"])
    ),
    field_column("Version", "version", drop_rank=1),
    time_column("Enrolled", "enrolled_ms", drop_rank=3),
)
SLOT_COLUMNS = (
    field_column("Agent", "agent_id"),
    field_column("Resource pool", "resource_pool", drop_rank=2),
    field_column("Slot", "id"),
    field_column("Type", "type"),
    field_column("Name", "name", drop_rank=1),
    field_column("UUID", "uuid", drop_rank=3),
    Column("Use", _use_text),
    field_column("Allocation", "allocation"),
)


def slot_item(slot: Slot) -> Item:
    """Return the fields of a slot for `SLOT_COLUMNS`, extended by `agent_id` and `resource_pool`.
    The slot is unchanged.
    """
    agent = slot.agent
    return {**slot.data, "agent_id": agent.id, "resource_pool": agent.resource_pool}


def list_agents(arguments: Namespace) -> int:
    print_items(COLUMNS, (agent.data for agent in connect(arguments).agents()), arguments)
    return 0


def add_agent_argument(parser: ArgumentParser) -> None:
    """Add the argument AGENT, an id or name, stored as `agent_id`."""
    parser.add_argument("agent_id", metavar="AGENT", help="the agent's id or name")


def add_describe_arguments(parser: ArgumentParser) -> None:
    add_agent_argument(parser)
    add_output_options(parser)


def describe_agent(arguments: Namespace) -> int:
    """Print an agent and, as text, an empty line and the table of the agent's slots. Return 0.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses the request.
    """
    agent = connect(arguments).agent(arguments.agent_id)
    print_record(COLUMNS, agent.data, arguments)
    if arguments.form == "text":
        print()
        print_items(SLOT_COLUMNS, map(slot_item, agent.slots), arguments)
    return 0


def add_enable_arguments(parser: ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("agent_id", nargs="?", metavar="AGENT", help="the agent's id or name")
    which.add_argument("--all", action="store_true", help="all agents in the state ALIVE")
    add_output_options(parser)


def enable_agents(arguments: Namespace) -> int:
    """Enable the selected agents in order, print the new use of each agent, and return 0.

    With `--json`, `--yaml` or `--csv`, print the agents' fields. With `--all`, nothing is printed
    as text if no agent is ALIVE. If an agent fails, earlier agents stay enabled.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses the request.
    """
    agents = _chosen_agents(arguments)
    for agent in agents:
        agent.enable()
    _print_agents(agents, arguments)
    return 0


def add_disable_arguments(parser: ArgumentParser) -> None:
    add_enable_arguments(parser)
    parser.add_argument(
        "--drain", action="store_true", help="let running trials finish (default: preempt trials)"
    )


def disable_agents(arguments: Namespace) -> int:
    """Disable the selected agents in order, print the new use of each agent, and return 0.

    The agents' trials have a short time to store a checkpoint; with `--drain`, running trials may
    finish. If an agent fails, earlier agents stay disabled.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses the request.
    """
    agents = _chosen_agents(arguments)
    for agent in agents:
        agent.disable(drain=arguments.drain)
    _print_agents(agents, arguments)
    return 0


def _chosen_agents(arguments: Namespace) -> list[Agent]:
    """Return the agent that the arguments name, or with `--all` all agents in the state ALIVE.

    The list may be empty with `--all`. The client is stored in `arguments.client`, and `main`
    closes the client.

    Raises:
        DetcloudError: no cluster is available, or the cluster has no such agent.
    """
    client = connect(arguments)
    if arguments.agent_id is not None:
        return [client.agent(arguments.agent_id)]
    return [agent for agent in client.agents() if agent.state == "ALIVE"]


def _print_agents(agents: list[Agent], arguments: Namespace) -> None:
    """Print the agents after a change.

    As text, print a line with the use of each agent. Otherwise print the agents' fields.
    """
    if arguments.form != "text":
        print_items(COLUMNS, (agent.data for agent in agents), arguments)
        return
    for agent in agents:
        print(f"agent {cell_text(agent.id)} is {_use_text(agent.data)}")


HANDLERS: Handlers = {
    "agent list": Handler(add_output_options, list_agents),
    "agent describe": Handler(add_describe_arguments, describe_agent),
    "agent enable": Handler(add_enable_arguments, enable_agents),
    "agent disable": Handler(add_disable_arguments, disable_agents),
}
