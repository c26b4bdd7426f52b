"""`python -m detcloud.agent`: reads the options, puts the parts together, runs the agent."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from detcloud import __version__
from detcloud.agent.address import own_address
from detcloud.agent.agent import Agent
from detcloud.agent.environment import shared_environment
from detcloud.agent.model_code import CodeCache
from detcloud.agent.node import Node
from detcloud.agent.notices import FileNotices
from detcloud.agent.pace import Pace
from detcloud.agent.runtime import LOG_BYTES_MAX, ProcessRuntime
from detcloud.agent.session import Identity, Session
from detcloud.agent.slots import Slot, SlotsUnknown, discover_slots, threads_per_slot
from detcloud.agent.template import Template
from detcloud.http import Transport

STOP_SECONDS = 20.0
PLAIN_STARTS = "DETCLOUD_PLAIN_STARTS"


class Misconfigured(Exception):
    """The agent cannot start with these options."""


def main() -> int:
    """Run one agent; 0 after a requested stop, 1 when refused, 2 for options that cannot work."""
    os.umask(0o077)
    try:
        return run(_options())
    except (Misconfigured, SlotsUnknown) as error:
        say(str(error))
        return 2


def run(options: argparse.Namespace) -> int:
    """The composition root: builds the agent from its options and runs it."""
    work = options.work_dir.absolute()
    token = _token(options.token_file)
    slots = discover_slots(options.slots)
    with _claimed(work):
        pace = Pace()

        def download(path: str, file: BinaryIO) -> int:
            client = Transport(options.url, session.token)
            try:
                return client.download(path, file)
            finally:
                client.close()

        code = CodeCache(work / "cache/code", download)
        runtime = ProcessRuntime(None if options.plain_starts else _template(work, slots))
        log_bytes_max = options.log_mib << 20
        node = Node(work, slots, runtime, code, say, log_bytes_max=log_bytes_max)
        address = options.address or own_address(options.url)
        told = __version__, options.label, address
        identity = Identity(options.name, options.pool, slots, *told)
        session = Session(options.url, token, identity, node, pace, say)
        notices = FileNotices(work / "preemption-notice.json")
        agent = Agent(node, pace, session, notices, options.stop_seconds, say)

        def stop(*_: object) -> None:
            agent.stop_requests += 1

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        refused = agent.run()
    if refused is not None:
        say(refused)
    return 0 if refused is None else 1


def say(message: str) -> None:
    """One line of the agent's own log."""
    # Where the log is full or gone, the agent goes on without it. Nothing is left in a buffer,
    # whose last flush would decide about the exit code.
    with contextlib.suppress(OSError):
        os.write(2, f"detcloud agent: {message}\n".encode(errors="backslashreplace"))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m detcloud.agent", description="Run this node's share of a cluster's trials."
    )
    parser.add_argument("--url", required=True, help="the cluster, http://HOST:PORT")
    parser.add_argument("--token-file", required=True, type=Path, help="holds the join token")
    parser.add_argument("--name", required=True, help="this agent's name, unique in the cluster")
    parser.add_argument("--pool", required=True, help="the resource pool to join")
    parser.add_argument(
        "--label", default="", help="take only experiments with this resources.agent_label"
    )
    parser.add_argument("--work-dir", required=True, type=Path, help="trial directories and cache")
    parser.add_argument(
        "--address",
        help="host name or IP address at which other agents' trials reach those on this one "
        "(default: the one from which this machine speaks to the cluster)",
    )
    parser.add_argument("--slots", type=int, help="CPU slots instead of the devices found")
    parser.add_argument(
        "--stop-seconds",
        type=float,
        default=STOP_SECONDS,
        help="time for trials to checkpoint when the agent is told to stop",
    )
    parser.add_argument(
        "--log-mib",
        type=_mebibytes,
        default=LOG_BYTES_MAX >> 20,
        help="limit on each trial's log, whose end is kept beyond it (default %(default)s)",
    )
    parser.add_argument(
        "--plain-starts",
        action="store_true",
        default=os.environ.get(PLAIN_STARTS, "") not in ("", "0"),
        help=f"never fork trials from a process with torch imported; also {PLAIN_STARTS}=1",
    )
    return parser.parse_args()


def _mebibytes(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number of MiB from 1, not {text!r}")
    return int(text)


def _template(work: Path, slots: Sequence[Slot]) -> Template | None:
    if sys.platform != "linux":
        # Elsewhere a process that has loaded as much as torch does must not fork.
        return None
    environment = shared_environment(os.environ, threads_per_slot(slots))
    return Template(work / "template", environment, say)


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise Misconfigured(f"the token file {path} could not be read: {error}") from error
    if not token:
        raise Misconfigured(f"the token file {path} is empty; it must hold the pool's join token")
    return token


def _claimed(work: Path) -> BinaryIO:
    """The work directory's lock: two agents in one would start everything twice."""
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = (work / "agent.lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise Misconfigured(
            f"another agent works in {work}; give each its own --work-dir"
        ) from None
    return lock


if __name__ == "__main__":
    sys.exit(main())
