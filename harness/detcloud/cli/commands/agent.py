"""`detcloud agent`: lists, describes, enables and disables agents."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.output import add_output_options, print_items, print_record
from detcloud.cli.rendering.quantities import bytes_text
from detcloud.cli.rendering.table import (
    Column,
    Item,
    cell_text,
    field_column,
    time_column,
    time_text,
)
from detcloud.client import Agent, Slot


def _use_text(agent: Item) -> str:
    """Return a word for the use of an agent or a slot: `enabled`, `occupied`, `closed`, `excluded`,
    `draining` or `disabled`.

    `occupied` is an enabled agent whose machine people use. `closed` is an enabled agent or slot
    with a fault of the machine. `excluded` is an enabled agent that takes no work
    for a while. `draining` is a disabled agent with trials that may finish. A missing field
    `enabled` counts as True, and a missing `draining` as False.
    """
    if agent.get("enabled", True):
        if agent.get("occupancy"):
            return "occupied"
        if agent.get("exclusions"):
            return "excluded"
        is_closed = any(fault["slot"] == agent.get("slot_id") for fault in agent.get("faults", ()))
        return "closed" if is_closed else "enabled"
    return "draining" if agent.get("draining") else "disabled"


def _memory_text(slot: Item) -> str | None:
    """Return the memory of a slot's device, for example `80.0 GiB`. None if unknown."""
    memory_mib = slot.get("memory_mib")
    return bytes_text(memory_mib << 20) if memory_mib else None


def _devices_text(agent: Item) -> str | None:
    """Return the devices of an agent with counts, for example `2 NVIDIA A100 of 80.0 GiB`.

    Return None without slots.
    """
    names = [
        " of ".join(filter(None, (slot.get("name") or slot["type"], _memory_text(slot))))
        for slot in agent["slots"]
    ]
    return ", ".join(f"{count} {name}" for name, count in Counter(names).items()) or None


def _version_text(agent: Item) -> str:
    """Return the agent's release, with a note if the agent runs other code than the cluster."""
    return f"{agent['version']} (behind)" if agent.get("behind") else str(agent["version"])


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
    Column("Devices", _devices_text, drop_rank=2),
    Column("Version", _version_text, drop_rank=1),
    time_column("Enrolled", "enrolled_ms", drop_rank=3),
)
SLOT_COLUMNS = (
    field_column("Agent", "agent_id"),
    field_column("Resource pool", "resource_pool", drop_rank=2),
    field_column("Slot", "id"),
    field_column("Type", "type"),
    field_column("Name", "name", drop_rank=1),
    Column("Memory", _memory_text, drop_rank=1),
    field_column("UUID", "uuid", drop_rank=3),
    Column("Use", _use_text),
    Column(
        "Allocation",
        lambda slot: ", ".join(slot.get("allocations") or ()) or slot.get("allocation"),
    ),
)


def slot_item(slot: Slot) -> Item:
    """Return a copy of a slot's fields for `SLOT_COLUMNS`, with the agent's `agent_id`,
    `resource_pool`, `faults` and `occupancy`. No request is sent.
    """
    agent = slot.agent
    faults = agent.data.get("faults", ())
    own = {
        "agent_id": agent.id,
        "resource_pool": agent.resource_pool,
        "faults": faults,
        "occupancy": agent.data.get("occupancy"),
    }
    return {**slot.data, **own, "slot_id": slot.data["id"]}


def _faults_text(agent: Item) -> str | None:
    """Return the faults of an agent's machine with the slots, or None without a fault."""
    texts = [
        fault["reason"] if fault["slot"] is None else f"slot {fault['slot']}: {fault['reason']}"
        for fault in agent.get("faults", ())
    ]
    return "; ".join(texts) or None


def _exclusions_text(agent: Item) -> str | None:
    """Return the reasons and ends of an agent's exclusions. None without an exclusion."""
    texts = [
        f"until {time_text(known['until_ms'])}: {known['reason']}"
        for known in agent.get("exclusions") or ()
    ]
    return "; ".join(texts) or None


def _occupancy_text(agent: Item) -> str | None:
    """Return the reason, the begin and the rule of a machine's use by people. None without use."""
    known = agent.get("occupancy")
    if not known:
        return None
    rule = "leave with a checkpoint" if known["running"] == "checkpoint" else "finish"
    return f"since {time_text(known['since_ms'])}: {known['reason']}; running trials {rule}"


# The columns that only the description of an agent with a fault, an exclusion or people has.
FAULT_COLUMN = Column("Fault", _faults_text)
EXCLUSION_COLUMN = Column("Excluded", _exclusions_text)
OCCUPANCY_COLUMN = Column("Occupied", _occupancy_text)


def list_agents(arguments: Namespace) -> int:
    """Print all agents as text, CSV, JSON or YAML, lost agents included, and return 0. Without
    agents, print only the titles, or `[]` as JSON or YAML.

    Raises:
        DetcloudError: no cluster is available, or the request failed.
    """
    print_items(COLUMNS, (agent.data for agent in connect(arguments).agents()), arguments)
    return 0


def add_agent_argument(parser: ArgumentParser) -> None:
    """Add the required argument AGENT, an id or name, stored unchecked as the text `agent_id`."""
    parser.add_argument("agent_id", metavar="AGENT", help="the agent's id or name")


def add_describe_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `describe_agent`: AGENT and the output form (`--json`, `--yaml` or
    `--csv`).
    """
    add_agent_argument(parser)
    add_output_options(parser)


def describe_agent(arguments: Namespace) -> int:
    """Print the agent of the argument AGENT and, as text, an empty line and the table of the
    agent's slots. Return 0.

    CSV has the agent's columns without the slots. JSON and YAML have all fields, slots included.

    Raises:
        DetcloudError: no agent has the id and none or several have the name, no cluster is
            available, or the request failed.
    """
    agent = connect(arguments).agent(arguments.agent_id)
    columns = (
        *COLUMNS,
        *((FAULT_COLUMN,) if agent.data.get("faults") else ()),
        *((EXCLUSION_COLUMN,) if agent.data.get("exclusions") else ()),
        *((OCCUPANCY_COLUMN,) if agent.data.get("occupancy") else ()),
    )
    print_record(columns, agent.data, arguments)
    if arguments.form == "text":
        print()
        print_items(SLOT_COLUMNS, map(slot_item, agent.slots), arguments)
    return 0


def add_enable_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `enable_agents`: either AGENT, stored as `agent_id`, or `--all`, and the
    output form (`--json`, `--yaml` or `--csv`).
    """
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("agent_id", nargs="?", metavar="AGENT", help="the agent's id or name")
    which.add_argument("--all", action="store_true", help="all agents in the state ALIVE")
    add_output_options(parser)


def enable_agents(arguments: Namespace) -> int:
    """Enable the agent of the argument AGENT, or with `--all` all agents in the state ALIVE. Return
    0.

    Then print a line with the use of each agent, or with `--json`, `--yaml` or `--csv` the agents'
    fields. As text, nothing is printed if no agent is ALIVE. If an agent fails, earlier agents stay
    enabled and nothing is printed.

    Raises:
        DetcloudError: the agent does not exist, no cluster is available, or the cluster refuses,
            for example because the user is not an administrator.
    """
    agents = _chosen_agents(arguments)
    for agent in agents:
        agent.enable()
    _print_agents(agents, arguments)
    return 0


def add_disable_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `disable_agents`: the arguments of `enable_agents` and `--drain`, False
    by default.
    """
    add_enable_arguments(parser)
    parser.add_argument(
        "--drain", action="store_true", help="let running trials finish (default: preempt trials)"
    )


def disable_agents(arguments: Namespace) -> int:
    """Disable the agent of the argument AGENT, or with `--all` all agents in the state ALIVE.
    Return 0.

    Running trials have 15 seconds to store a checkpoint; with `--drain`, running trials may finish.
    Then print a line with the use of each agent, or with `--json`, `--yaml` or `--csv` the agents'
    fields. If an agent fails, earlier agents stay disabled and nothing is printed.

    Raises:
        DetcloudError: the agent does not exist, no cluster is available, or the cluster refuses,
            for example because the user is not an administrator.
    """
    agents = _chosen_agents(arguments)
    for agent in agents:
        agent.disable(drain=arguments.drain)
    _print_agents(agents, arguments)
    return 0


def _chosen_agents(arguments: Namespace) -> list[Agent]:
    """Fetch the agent with the id or name `agent_id`, or with `--all` all agents in the state
    ALIVE.

    Without ALIVE agents, `--all` gives an empty list. The client is stored in `arguments.client`,
    and `main` closes the client.

    Raises:
        DetcloudError: no agent has the id and none or several have the name, no cluster is
            available, or the request failed.
    """
    client = connect(arguments)
    if arguments.agent_id is not None:
        return [client.agent(arguments.agent_id)]
    return [agent for agent in client.agents() if agent.state == "ALIVE"]


def _print_agents(agents: list[Agent], arguments: Namespace) -> None:
    """Print the agents after a change, to stdout.

    As text, print a line with the use of each agent, and nothing without agents. Otherwise print
    the agents' fields as CSV, JSON or YAML.
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
