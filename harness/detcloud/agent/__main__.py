"""`python -m detcloud.agent`: reads the options, puts the parts together, runs the agent."""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import sys
from pathlib import Path
from typing import BinaryIO

from detcloud import __version__
from detcloud.agent.agent import Agent
from detcloud.agent.model_code import CodeCache
from detcloud.agent.node import Node
from detcloud.agent.notices import FileNotices
from detcloud.agent.pace import Pace
from detcloud.agent.runtime import ProcessRuntime
from detcloud.agent.session import Identity, Session
from detcloud.agent.slots import SlotsUnknown, discover_slots
from detcloud.http import Client

STOP_SECONDS = 20.0


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
            client = Client(options.url, session.token)
            try:
                return client.download(path, file)
            finally:
                client.close()

        node = Node(work, slots, ProcessRuntime(), CodeCache(work / "cache/code", download), say)
        identity = Identity(options.name, options.pool, slots, __version__)
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
    print(f"detcloud agent: {message}", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m detcloud.agent", description="Run this node's share of a cluster's trials."
    )
    parser.add_argument("--url", required=True, help="the cluster, http://HOST:PORT")
    parser.add_argument("--token-file", required=True, type=Path, help="holds the join token")
    parser.add_argument("--name", required=True, help="this agent's name, unique in the cluster")
    parser.add_argument("--pool", required=True, help="the resource pool to join")
    parser.add_argument("--work-dir", required=True, type=Path, help="trial directories and cache")
    parser.add_argument("--slots", type=int, help="CPU slots instead of the devices found")
    parser.add_argument(
        "--stop-seconds",
        type=float,
        default=STOP_SECONDS,
        help="time for trials to checkpoint when the agent is told to stop",
    )
    return parser.parse_args()


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
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
