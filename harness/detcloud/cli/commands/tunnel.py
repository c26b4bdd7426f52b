"""`detcloud tunnel`: connects ports of this machine with ports of a running trial."""

from __future__ import annotations

import contextlib
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace

from detcloud.cli.framework.argument_types import parse_id
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.exit_codes import FAILED, INTERRUPTED
from detcloud.cli.framework.session import connect
from detcloud.cli.framework.sigterm import exit_at_sigterm
from detcloud.cli.rendering.proxy_ports import proxy_ports
from detcloud.cli.rendering.terminal import sanitize
from detcloud.client import Client
from detcloud.client.tunnel import (
    ADDRESS,
    PortPair,
    UserTunnel,
    close_listeners,
    open_listeners,
)
from detcloud.shared.errors import DetcloudError

PORT_MAX = 65_535
IDLE_MINUTES = 60
MINUTES_MAX = 30 * 24 * 60
# Each connection needs a descriptor; some systems allow 256 at first.
_DESCRIPTORS = 4_096


def add_tunnel_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `run_tunnel`: ID, PORT as the list `pairs`, `--idle-timeout` and
    `--trial`.
    """
    parser.add_argument(
        "id", type=parse_id, metavar="ID", help="an experiment, command, notebook or shell"
    )
    parser.add_argument(
        "pairs",
        type=parse_port_pair,
        nargs="*",
        metavar="[LOCAL:]PORT",
        help="a port of the trial, and the port of this machine that leads to it (default: the "
        "same number; 0 chooses a free port). Without ports, the ports of environment.proxy_ports "
        "are opened",
    )
    parser.add_argument(
        "--idle-timeout",
        type=parse_minutes,
        default=IDLE_MINUTES,
        metavar="MINUTES",
        help="close the tunnel after this time without a byte, with a warning before (default: "
        f"{IDLE_MINUTES}; 0: never)",
    )
    parser.add_argument("--trial", action="store_true", help="ID is a trial, not an experiment")


def parse_port_pair(text: str) -> PortPair:
    """Parse `PORT` or `LOCAL:PORT`.

    Raises:
        ArgumentTypeError: a part is not a port.
    """
    local, separator, remote = text.rpartition(":")
    if not separator:
        local = remote
    if not _is_port(remote) or int(remote) == 0 or not _is_port(local):
        raise ArgumentTypeError(
            f"{text!r} is not a port; expected PORT or LOCAL:PORT, such as 8888 or 9000:8888"
        )
    return PortPair(int(local), int(remote))


def parse_minutes(text: str) -> int:
    """Parse a number of minutes, 0 to MINUTES_MAX.

    Raises:
        ArgumentTypeError: the text is no such number.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= 6 and int(text) <= MINUTES_MAX):
        raise ArgumentTypeError(
            f"{text!r} is no time in minutes; expected 0 to {MINUTES_MAX}, where 0 is never"
        )
    return int(text)


def run_tunnel(arguments: Namespace) -> int:
    """Carry connections to ports of a running trial until Ctrl-C or the end of the tunnel.

    The ports are listed on stderr at once. Connections wait until the trial's machine has answered.
    Refused connections are reported on stderr. Return INTERRUPTED after Ctrl-C, and FAILED, with
    the reason on stderr, if the tunnel has ended. The handler of SIGTERM is replaced: the signal
    closes the tunnel, and ends the process with 128 + the signal's number.

    Raises:
        DetcloudError: no cluster is available, a port of this machine is not available, several
            trials of the experiment run, or the cluster refuses the tunnel. Or no port was named,
            and the configuration names none.
    """
    client = connect(arguments)
    # Scripts start background processes with SIGINT ignored, so SIGTERM must close the tunnel too.
    exit_at_sigterm()
    trial_id = (
        arguments.id
        if arguments.trial
        else find_only_trial(client, arguments.id, "tunnel --trial {} PORT")
    )
    pairs = arguments.pairs or _configured_pairs(client, trial_id)
    _raise_descriptor_limit()
    listeners = open_listeners(pairs)
    try:
        idle_seconds = arguments.idle_timeout * 60
        tunnel = UserTunnel(client, trial_id, listeners, _report, idle_seconds)
        for listener, port in listeners:
            local = listener.getsockname()[1]
            _report(f"{ADDRESS}:{local} leads to port {port} of trial {trial_id}; Ctrl-C ends it")
        try:
            _report(tunnel.run())
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            tunnel.close()
    finally:
        close_listeners(listeners)
    return FAILED


def find_only_trial(client: Client, experiment_id: int, command: str) -> int:
    """Return the id of the only running trial of an experiment, command, notebook or shell.

    Args:
        client: the connection to the cluster.
        experiment_id: the experiment, command, notebook or shell.
        command: the words after `detcloud` that choose a trial, with `{}` for its id.

    Raises:
        DetcloudError: no trial or several trials run.
    """
    running = [
        trial.id
        for trial in client.experiment(experiment_id).trials()
        if trial.data["allocation"] is not None
    ]
    if len(running) > 1:
        raise DetcloudError(
            f"{len(running)} trials of experiment {experiment_id} run: choose one with "
            f"`detcloud {command.format(running[0])}`; `detcloud trial list {experiment_id}` "
            "lists them"
        )
    if not running:
        raise DetcloudError(
            f"no trial of {experiment_id} runs now; a connection leads to a running trial: see "
            "`detcloud job list`"
        )
    return running[0]


def _configured_pairs(client: Client, trial_id: int) -> list[PortPair]:
    """Return a pair for each port of `environment.proxy_ports` in the configuration of a trial.

    The local port is the same number, or a free port if that number is not available.

    Raises:
        DetcloudError: the configuration names no ports, or a request failed.
    """
    experiment_id = client.trial(trial_id).experiment_id
    ports = proxy_ports(client.experiment(experiment_id).config)
    if not ports:
        raise DetcloudError(
            f"{experiment_id} has no environment.proxy_ports, so name the ports, such as "
            f"`detcloud tunnel {experiment_id} 8888`"
        )
    return [PortPair(port, port, can_move=True) for port in ports]


def _raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as a tunnel can use, if the system permits."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # Windows has no such module.

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
        if 0 <= soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _report(text: str) -> None:
    """Print a sentence about the tunnel to stderr."""
    print(f"tunnel: {sanitize(text)}", file=sys.stderr, flush=True)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) <= PORT_MAX


HANDLERS: Handlers = {"tunnel": Handler(add_tunnel_arguments, run_tunnel)}
