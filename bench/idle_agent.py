"""An agent without processes: `python -m bench.idle_agent URL TOKEN_FILE WORK SLOTS`.

All other parts are the agent's own. A trial runs from its start until its kill, so that a single
writer can report for hundreds of trials.
"""

import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from detcloud.agent.__main__ import write_log_line
from detcloud.agent.agent import Agent
from detcloud.agent.assignment.assignment import Assignment
from detcloud.agent.assignment.model_code import CodeCache
from detcloud.agent.node import Node
from detcloud.agent.runtime import Launch, LoginIssuer, Phase, Status
from detcloud.agent.slots import cpu_slots
from detcloud.agent.sync.enrolment import AgentIdentity
from detcloud.agent.sync.schedule import SyncSchedule
from detcloud.agent.sync.session import Session
from detcloud.shared.http import Transport
from detcloud.shared.notices import FileNotices
from local_cluster.embedded_cluster import POOL

STOP_SECONDS = 1.0


class IdleRuntime:
    """A ContainerRuntime without processes."""

    def __init__(self) -> None:
        self._killed: dict[Path, bool] = {}

    @property
    def owner(self) -> None:
        """Do nothing: no other user writes."""

    def adopt(self, directories: Sequence[Path]) -> None:
        """Do nothing: no trials of an earlier agent exist."""

    def expect_image(self, image: str, issue_login: LoginIssuer | None = None) -> None:
        """Do nothing: trials run without images."""

    def prepare(self, assignment: Assignment, wanted: Callable[[], bool]) -> Launch:
        """Return a launch without a preparation."""
        directory = assignment.directory
        return Launch([], {}, str(directory.code), str(directory.log))

    def start(self, directory: Path, launch: Launch) -> None:
        """Count the trial as running from now on."""
        self._killed[directory] = False

    def poll(self, directory: Path) -> Status:
        """Return RUNNING after a start, ENDED after a kill, ABSENT for an unknown directory."""
        if directory not in self._killed:
            return Status(Phase.ABSENT)
        if self._killed[directory]:
            return Status(Phase.ENDED, "trial", signal=signal.SIGKILL, killed=True)
        return Status(Phase.RUNNING, "trial")

    def kill(self, directory: Path, grace_ms: int, *, saves: bool = False) -> None:
        """Count the trial as ended."""
        self._killed[directory] = True

    def processes(self, directory: Path) -> list[int]:
        """Return an empty list: trials have no processes."""
        return []

    def spawn(self, directory: Path, module: str) -> socket.socket:
        """Refuse to start a process."""
        raise FileNotFoundError(f"{directory} has no process")

    def remove(self, directory: Path) -> None:
        """Do nothing."""

    def release_idle_resources(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def main() -> int:
    """Run until SIGTERM."""
    url, token_file, folder, slots = sys.argv[1:]
    work, pace = Path(folder), SyncSchedule()

    def download(path: str, file: BinaryIO) -> int:
        client = Transport(url, session.token)
        try:
            return client.download(path, file)
        finally:
            client.close()

    devices = cpu_slots(int(slots))
    node = Node(
        work, devices, IdleRuntime(), CodeCache(work / "cache/code", download), write_log_line
    )
    identity = AgentIdentity("fan-in", POOL, devices, "1", "", "127.0.0.1")
    session = Session(
        url, Path(token_file).read_text().strip(), identity, node, pace, write_log_line
    )
    agent = Agent(
        node, pace, session, FileNotices(work / "notice.json"), STOP_SECONDS, write_log_line
    )

    def stop(*_: object) -> None:
        agent.stop_requests += 1

    signal.signal(signal.SIGTERM, stop)
    return 0 if agent.run() is None else 1


if __name__ == "__main__":
    sys.exit(main())
