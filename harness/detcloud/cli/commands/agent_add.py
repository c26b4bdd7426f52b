"""`detcloud agent add` and `detcloud agent join-line`: install agents on machines."""

from __future__ import annotations

import io
import shlex
import sys
import threading
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.exit_codes import FAILED, OK
from detcloud.cli.framework.session import connect
from detcloud.cli.machines.machine_setup import AgentPackage, Step, install_agent
from detcloud.cli.machines.ssh_connection import Destination, SshConnection, parse_destination
from detcloud.cli.rendering.output import add_output_options, print_value
from detcloud.cli.rendering.table import cell_text
from detcloud.client import Agent, Client, Token
from detcloud.shared.address_list import split_addresses
from detcloud.shared.errors import DetcloudError
from detcloud.shared.pins import find_pin
from detcloud.shared.plurals import count_text

MACHINES_AT_ONCE = 8
LISTED_SECONDS_MAX = 60.0
POLL_SECONDS = 0.3
TOKEN_MINUTES = 60


@dataclass
class Result:
    """The result of adding a machine."""

    machine: str
    agent: str = ""
    state: str = "failed"
    """`added`, or `failed`."""
    error: str = ""
    slots: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, str]] = field(default_factory=list)
    seconds: float = 0.0


def parse_machine(text: str) -> Destination:
    """Parse a machine of the command line. Raise ArgumentTypeError for another text."""
    try:
        return parse_destination(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def add_ssh_arguments(parser: ArgumentParser) -> None:
    """Add `--ssh-option` and `--user-install`, for commands that work on machines."""
    parser.add_argument(
        "--ssh-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of OpenSSH as for `ssh -o` (may be repeated)",
    )
    parser.add_argument(
        "--user-install",
        action="store_true",
        help="install for the user of the connection, without root",
    )


def add_setting_arguments(parser: ArgumentParser) -> None:
    """Add the settings of the installed agent."""
    parser.add_argument("--pool", metavar="POOL", help="the resource pool (default: the only pool)")
    parser.add_argument("--name", help="the agent's name (default: the name of the machine)")
    parser.add_argument("--label", help="the agent's label, for resources.agent_label")
    parser.add_argument(
        "--server",
        metavar="URL",
        help="the address of the cluster for the machine (default: the address of this command)",
    )
    parser.add_argument(
        "--pin",
        metavar="sha256:DIGEST",
        help="the pin of the server's certificate (default: the pin of `detcloud login`)",
    )
    parser.add_argument(
        "--python", metavar="PATH", help="the machine's Python whose packages trials use"
    )
    parser.add_argument("--work-dir", metavar="FOLDER", help="the folder of trials and caches")
    parser.add_argument(
        "--no-updates", action="store_true", help="let the agent update on request only"
    )
    parser.add_argument(
        "--agent-option",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="an option of the agent, such as --agent-option=--cpu-slots=2 (may be repeated)",
    )


def add_add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `add_agents`."""
    parser.add_argument(
        "machines",
        type=parse_machine,
        nargs="*",
        metavar="MACHINE",
        help="ssh://[USER@]HOST[:PORT]; without a machine, print the line to paste there",
    )
    add_setting_arguments(parser)
    add_ssh_arguments(parser)
    add_output_options(parser, csv=False)


def add_agents(arguments: Namespace) -> int:
    """Install an agent on each machine through OpenSSH, and wait for the agents in the cluster.

    The exit code is 0 if all machines were added. A machine with an agent is repaired. Each machine
    has a join token of its own, which is good once and is revoked at the end. Steps are printed to
    stderr; `--json` and `--yaml` print the results. Without machines, act as `print_join_line`.

    Raises:
        DetcloudError: the pool is not clear, `--name` names several machines, or a request failed.
    """
    if not arguments.machines:
        return print_join_line(arguments)
    if arguments.name and len(arguments.machines) > 1:
        raise DetcloudError("--name names one agent; add several machines without --name")
    client = connect(arguments)
    options = installer_options(arguments, client)
    package = fetch_package(client)
    lock = threading.Lock()

    def add_one(machine: Destination) -> Result:
        def report(step: Step) -> None:
            with lock:
                print(f"{machine.text}: {step.check}: {_step_text(step)}", file=sys.stderr)

        return _add_machine(client, machine, package, options, arguments, report)

    with ThreadPoolExecutor(MACHINES_AT_ONCE) as pool:
        results = list(pool.map(add_one, arguments.machines))
    if arguments.form != "text":
        print_value([vars(result) for result in results], arguments.form)
    else:
        for result in results:
            print(_result_text(result))
    return OK if all(result.state == "added" for result in results) else FAILED


def _add_machine(
    client: Client,
    machine: Destination,
    package: AgentPackage,
    options: dict[str, Any],
    arguments: Namespace,
    report: Callable[[Step], None],
) -> Result:
    """Add a machine, and return the result. Errors of the machine are a part of the result."""
    result, began = Result(machine.text), time.monotonic()
    token: Token | None = None

    def keep_step(step: Step) -> None:
        result.steps.append(step._asdict())
        report(step)

    try:
        is_alone = len(arguments.machines) == 1 and sys.stdin.isatty()
        connection = SshConnection(machine, arguments.ssh_option, is_interactive=is_alone)
        with connection:
            token = create_join_token(client, options["pool"], machine.text)
            wanted = {**options, "token": token.token}
            result.agent = install_agent(connection, package, wanted, keep_step)
            agent = wait_until_listed(client, result.agent)
        result.slots = [slot.data for slot in agent.slots]
        result.state = "added"
    except DetcloudError as error:
        result.error = str(error)
        keep_step(Step("add", "error", str(error)))
    if token is not None and (result.state == "added" or not result.agent):
        # The machine has a credential now, or no agent. An agent that is late still needs it.
        token.revoke()
    result.seconds = round(time.monotonic() - began, 1)
    return result


def add_line_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `print_join_line`."""
    add_setting_arguments(parser)
    parser.add_argument("--user-install", action="store_true", help="install without root")
    add_output_options(parser, csv=False)


def print_join_line(arguments: Namespace) -> int:
    """Print a command that installs an agent when pasted on a machine; return 0.

    The command contains a new join token, which is good for one agent within an hour.

    Raises:
        DetcloudError: the pool is not clear, or a request failed.
    """
    client = connect(arguments)
    options = installer_options(arguments, client)
    token = create_join_token(client, options["pool"], "a pasted line")
    assert token.token is not None
    words = ["--url", options["url"], "--token", token.token, "--pool", options["pool"]]
    for name in ("name", "label", "pin", "python"):
        if options.get(name):
            words += [f"--{name}", options[name]]
    words += ["--work-dir", options["work_dir"]] if options.get("work_dir") else []
    words += ["--user-install"] if options["user_install"] else []
    words += ["--no-updates"] if arguments.no_updates else []
    words += ["--", *options["options"]] if options.get("options") else []
    line = _paste_line(client, options, words)
    if arguments.form != "text":
        print_value({"line": line, "token_id": token.id, "expires_ms": token.expires_ms})
        return OK
    print(line)
    print(
        f"paste this line on the machine within {TOKEN_MINUTES} minutes; it adds one agent",
        file=sys.stderr,
    )
    return OK


def _paste_line(client: Client, options: dict[str, Any], words: list[str]) -> str:
    """Return the command that downloads and starts the installer.

    With a pin, curl cannot check the certificate, so that the command checks the digest of the
    script. The script itself then checks the pin.
    """
    shell = "sh" if options["user_install"] else "sudo sh"
    quoted = " ".join(map(shlex.quote, words))
    address = shlex.quote(f"{split_addresses(options['url'])[0]}/api/v1/agent-installer")
    if not options.get("pin"):
        return f"curl -fsSL {address} | {shell} -s -- {quoted}"
    import hashlib

    digest = hashlib.sha256(_download(client, "/api/v1/agent-installer")).hexdigest()
    check = f'echo "{digest}  $f" | sha256sum -c --quiet'
    return f"f=$(mktemp) && curl -kfsSL {address} -o $f && {check} && {shell} $f {quoted}; rm -f $f"


def installer_options(arguments: Namespace, client: Client) -> dict[str, Any]:
    """Return the options of the installer without a token. Options that are missing are left out.

    Raises:
        DetcloudError: `--pool` is missing and the cluster has several pools, or a request failed.
    """
    pool = arguments.pool or _only_pool(client)
    url = arguments.server or client.url
    # A server presents a single certificate for every address, as all servers of a cluster do.
    first = split_addresses(client.url)[0]
    known_pin = find_pin(first) if url.startswith("https://") else None
    chosen = {
        "url": url,
        "pool": pool,
        "name": arguments.name,
        "label": arguments.label,
        "pin": arguments.pin or known_pin,
        "python": arguments.python,
        "work_dir": arguments.work_dir,
        "options": arguments.agent_option,
    }
    options: dict[str, Any] = {name: value for name, value in chosen.items() if value}
    options["user_install"] = arguments.user_install
    if arguments.no_updates:
        options["updates"] = False
    return options


def fetch_package(client: Client) -> AgentPackage:
    """Download the agent's code and the installer from the cluster. Raise DetcloudError."""
    code = client.get("/agent-code")
    archive = _download(client, f"/api/v1/agent-code/{code['sha256']}")
    script = _download(client, "/api/v1/agent-installer")
    return AgentPackage(code["version"], code["sha256"], archive, script)


def create_join_token(client: Client, pool: str, machine: str) -> Token:
    """Create a join token for a single agent. Raise DetcloudError."""
    return client.create_token(
        role="join",
        resource_pool=pool,
        description=f"detcloud agent add {machine}"[:200],
        expires_minutes=TOKEN_MINUTES,
        once=True,
    )


def wait_until_listed(client: Client, name: str) -> Agent:
    """Wait until the agent is connected with the code of the cluster, and return the agent.

    Raises:
        DetcloudError: the agent does not connect within LISTED_SECONDS_MAX, or a request failed.
    """
    until = time.monotonic() + LISTED_SECONDS_MAX
    while time.monotonic() < until:
        for agent in client.agents():
            is_new = agent.data.get("behind") is not True
            if agent.id == name and agent.state == "ALIVE" and is_new:
                return agent
        time.sleep(POLL_SECONDS)
    raise DetcloudError(
        f"agent {name} was installed, but did not connect within {LISTED_SECONDS_MAX:.0f} s; "
        "look at its log on the machine"
    )


def _download(client: Client, path: str) -> bytes:
    content = io.BytesIO()
    client.http.download(path, content)
    return content.getvalue()


def _only_pool(client: Client) -> str:
    """Return the only pool of the cluster. Raise DetcloudError if there are several pools."""
    names = [pool.name for pool in client.resource_pools()]
    if len(names) == 1:
        return str(names[0])
    listed = ", ".join(sorted(map(str, names)))
    raise DetcloudError(f"name the resource pool with --pool; the cluster has {listed}")


def _step_text(step: Step) -> str:
    text = cell_text(step.text)
    return text if step.state == "ok" else f"{step.state}: {text}"


def _result_text(result: Result) -> str:
    """Return the line for a machine."""
    machine = cell_text(result.machine)
    if result.state != "added":
        return f"{machine} was not added: {cell_text(result.error)}"
    slots = count_text(len(result.slots), "slot")
    return f"agent {cell_text(result.agent)} on {machine} has {slots} ({result.seconds} s)"


HANDLERS: Handlers = {
    "agent add": Handler(add_add_arguments, add_agents),
    "agent join-line": Handler(add_line_arguments, print_join_line),
}
