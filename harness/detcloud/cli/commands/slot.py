"""`detcloud slot`: lists, enables and disables slots of agents."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from detcloud.cli.commands.agent import SLOT_COLUMNS, add_agent_argument, slot_item
from detcloud.cli.framework.argument_types import parse_count
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.output import add_output_options, print_items
from detcloud.cli.rendering.table import cell_text
from detcloud.client import Slot
from detcloud.shared.errors import DetcloudError


def add_list_arguments(parser: ArgumentParser) -> None:
    """Add the options of `list_slots`: `--agent`, None by default, and the output form (`--json`,
    `--yaml` or `--csv`).
    """
    parser.add_argument("--agent", metavar="AGENT", help="list only slots of this agent")
    add_output_options(parser)


def list_slots(arguments: Namespace) -> int:
    """Print the slots of all agents, or of the agent of `--agent`, as text, CSV, JSON or YAML.
    Return 0. Without slots, print only the titles, or `[]`.

    Raises:
        DetcloudError: no cluster is available, no agent has the id and none or several have the
            name, or the request failed.
    """
    client = connect(arguments)
    agents = client.agents() if arguments.agent is None else [client.agent(arguments.agent)]
    items = [slot_item(slot) for agent in agents for slot in agent.slots]
    print_items(SLOT_COLUMNS, items, arguments)
    return 0


def add_slot_arguments(parser: ArgumentParser) -> None:
    """Add the required arguments AGENT, stored as the text `agent_id`, and SLOT, stored as the
    integer `slot_id`.
    """
    add_agent_argument(parser)
    parser.add_argument(
        "slot_id", type=parse_count, metavar="SLOT", help="the slot's number on the agent"
    )


def enable_slot(arguments: Namespace) -> int:
    """Enable a slot of an agent, print a confirmation, and return 0. The cluster may place trials
    on the slot again.

    Raises:
        DetcloudError: the agent or the slot does not exist, no cluster is available, or the cluster
            refuses, for example because the user is not an administrator.
    """
    slot = _load_slot(arguments)
    slot.enable()
    print(f"slot {slot.id} of agent {cell_text(slot.agent.id)} is enabled")
    return 0


def disable_slot(arguments: Namespace) -> int:
    """Disable a slot of an agent, print a confirmation, and return 0. A trial on the slot has 15
    seconds to store a checkpoint. The user is not asked.

    Raises:
        DetcloudError: the agent or the slot does not exist, no cluster is available, or the cluster
            refuses, for example because the user is not an administrator.
    """
    slot = _load_slot(arguments)
    slot.disable()
    print(f"slot {slot.id} of agent {cell_text(slot.agent.id)} is disabled")
    return 0


def _load_slot(arguments: Namespace) -> Slot:
    """Fetch the slot that the arguments AGENT and SLOT name. The client is stored in
    `arguments.client`, and `main` closes the client.

    Raises:
        DetcloudError: the agent does not have the slot, the agent does not exist, no cluster is
            available, or the request failed.
    """
    agent = connect(arguments).agent(arguments.agent_id)
    for slot in agent.slots:
        if slot.id == arguments.slot_id:
            return slot
    known = ", ".join(str(slot.id) for slot in agent.slots) or "none"
    raise DetcloudError(f"agent {agent.id} has no slot {arguments.slot_id}; its slots: {known}")


HANDLERS: Handlers = {
    "slot list": Handler(add_list_arguments, list_slots),
    "slot enable": Handler(add_slot_arguments, enable_slot),
    "slot disable": Handler(add_slot_arguments, disable_slot),
}
