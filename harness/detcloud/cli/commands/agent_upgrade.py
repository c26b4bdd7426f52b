"""`detcloud agent upgrade` and `detcloud agent remove`."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from detcloud.cli.commands.agent import COLUMNS, add_agent_argument
from detcloud.cli.commands.agent_add import add_ssh_arguments, parse_machine
from detcloud.cli.framework.argument_types import parse_count, parse_seconds
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.exit_codes import OK
from detcloud.cli.framework.session import connect
from detcloud.cli.machines.machine_setup import Step, remove_agent
from detcloud.cli.machines.ssh_connection import SshConnection
from detcloud.cli.rendering.output import add_output_options, print_items, print_note
from detcloud.cli.rendering.table import cell_text
from detcloud.client import Agent, Client
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError

AT_ONCE = 2
UPGRADE_SECONDS = 180.0
POLL_SECONDS = 0.5
# The command that removes an agent on its own machine.
LOCAL_REMOVAL = (
    "echo '{}' | sudo /opt/detcloud/versions/current/bin/python -P -m detcloud.agent.machine remove"
)


def add_upgrade_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `upgrade_agents`: AGENT, repeatable, the pace and the output form."""
    parser.add_argument(
        "agents",
        nargs="*",
        metavar="AGENT",
        help="the agents' names (default: all connected agents that are behind the cluster)",
    )
    parser.add_argument(
        "--at-once",
        type=parse_count,
        default=AT_ONCE,
        metavar="N",
        help="agents that restart at the same time (default %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=parse_seconds,
        default=UPGRADE_SECONDS,
        metavar="SECONDS",
        help="the time for each agent to come back (default %(default).0f)",
    )
    add_output_options(parser)


def upgrade_agents(arguments: Namespace) -> int:
    """Let agents start the code of the cluster, a few at a time, and wait for each agent.

    Trials continue, and nothing is drained. The first agent that does not come back in time ends
    the command with exit code 1, and later agents are not restarted. Only agents of
    `detcloud agent add` can be upgraded.

    Raises:
        DetcloudError: an agent does not exist or cannot be upgraded, or a request failed.
    """
    client = connect(arguments)
    chosen = _choose_agents(client, arguments.agents)
    for group in _groups(chosen, max(1, arguments.at_once)):
        for agent in group:
            agent.upgrade()
            _tell(arguments, f"agent {cell_text(agent.id)} starts the code of the cluster")
        late = _wait_for(client, group, arguments.timeout)
        if late:
            listed = ", ".join(cell_text(agent.id) for agent in late)
            raise DetcloudError(
                f"agent {listed} did not come back within {arguments.timeout:.0f} s; no other "
                "agent was restarted. Look at the log of the agent on its machine"
            )
    if arguments.form != "text":
        names = {agent.id for agent in chosen}
        print_items(
            COLUMNS, (agent.data for agent in client.agents() if agent.id in names), arguments
        )
    elif not chosen:
        print("no connected agent is behind the cluster")
    return OK


def _choose_agents(client: Client, names: Sequence[str]) -> list[Agent]:
    """Return the named agents that are behind, or all connected agents that are behind.

    Agents that the provisioner or a package installed are only returned if they are named.
    """
    if names:
        named = [client.agent(name) for name in names]
        return [agent for agent in named if agent.data.get("behind")]
    return [
        agent
        for agent in client.agents()
        if agent.state == "ALIVE" and agent.data.get("behind") and agent.data.get("updatable")
    ]


def _groups(agents: Sequence[Agent], size: int) -> Iterator[Sequence[Agent]]:
    for start in range(0, len(agents), size):
        yield agents[start : start + size]


def _wait_for(client: Client, agents: Sequence[Agent], seconds: float) -> list[Agent]:
    """Wait until the agents run the code of the cluster, and return the late agents."""
    until = time.monotonic() + seconds
    late = list(agents)
    while late and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        new = {
            agent.id
            for agent in client.agents()
            if agent.state == "ALIVE" and not agent.data.get("behind")
        }
        late = [agent for agent in late if agent.id not in new]
    return late


def _tell(arguments: Namespace, text: str) -> None:
    print(text, file=sys.stdout if arguments.form == "text" else sys.stderr, flush=True)


def add_remove_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `remove_agents`."""
    add_agent_argument(parser)
    parser.add_argument(
        "--ssh",
        type=parse_machine,
        metavar="MACHINE",
        help="also delete the agent on its machine, ssh://[USER@]HOST[:PORT]",
    )
    parser.add_argument(
        "--now", action="store_true", help="preempt running trials (default: let trials finish)"
    )
    add_ssh_arguments(parser)


def remove_machine(arguments: Namespace) -> int:
    """Drain an agent, revoke the credential of the machine, and return 0.

    The wait for running trials has no limit. With `--ssh`, then stop the agent, and delete its
    user, files and service on the machine. Otherwise, print the command for the machine. Removing
    a removed agent again is possible, so that a failed removal is continued.

    Raises:
        DetcloudError: the agent does not exist or belongs to the provisioner, the machine cannot be
            reached, or a request failed.
    """
    client = connect(arguments)
    name = arguments.agent_id
    _remove_from_cluster(client, name, is_drained=not arguments.now)
    print(f"agent {cell_text(name)} was removed from the cluster")
    if arguments.ssh is None:
        print_note(f"the agent may still be installed; run on its machine: {LOCAL_REMOVAL}")
        return OK

    def report(step: Step) -> None:
        print(f"{arguments.ssh.text}: {step.check}: {cell_text(step.text)}", file=sys.stderr)

    connection = SshConnection(
        arguments.ssh, arguments.ssh_option, is_interactive=sys.stdin.isatty()
    )
    with connection:
        remove_agent(connection, report, is_user_install=arguments.user_install)
    return OK


def _remove_from_cluster(client: Client, name: str, *, is_drained: bool) -> None:
    """Disable the agent, wait until no trial runs there, and remove the agent.

    Raises:
        DetcloudError: the agent does not exist, or a request failed.
    """
    path = f"/agents/{quote(name, safe='')}"
    listed = {agent.id: agent for agent in client.agents()}
    is_waiting = False
    if name in listed and listed[name].state == "ALIVE":
        listed[name].disable(drain=is_drained)
    while True:
        try:
            client.delete(path)
        except ApiError as error:
            if error.code != "conflict" or "runs" not in error.message:
                raise
            if not is_waiting:
                print(f"waiting for the trials on agent {cell_text(name)} ...", file=sys.stderr)
            is_waiting = True
            time.sleep(POLL_SECONDS)
        else:
            return


HANDLERS: Handlers = {
    "agent upgrade": Handler(add_upgrade_arguments, upgrade_agents),
    "agent remove": Handler(add_remove_arguments, remove_machine),
}
