"""A node without an agent, which runs real trial processes in a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from detcloud.agent.allocation.allocation import Allocation
from detcloud.agent.assignment.model_code import CodeCache
from detcloud.agent.node import Node
from detcloud.agent.processes.fork_server import ForkServer
from detcloud.agent.processes.runtime import ProcessRuntime
from detcloud.agent.runtime import LOG_BYTES_MAX, ContainerRuntime
from detcloud.agent.slots import cpu_slots
from tests.integration.agent_cluster import tar
from tests.patience import poll_until

SECONDS_MAX = 60.0
opened: list[TrialNode] = []
"""Those of the test that runs, to be closed after it."""


class TrialNode:
    """A node that starts trials from files; `log` has the node's log lines."""

    def __init__(
        self,
        folder: Path,
        fork_server: ForkServer | None = None,
        *,
        log_bytes_max: int = LOG_BYTES_MAX,
        runtime: ContainerRuntime | None = None,
        spec: Mapping[str, Any] | None = None,
    ) -> None:
        """`spec` is part of every trial's specification unless `begin` overrides it.

        The caller closes the fork server.
        """
        self.folder = folder
        self._spec = spec or {}
        self.log: list[str] = []
        self._archives: dict[str, bytes] = {}
        cache = CodeCache(folder / "cache", self._download)
        self.runtime = runtime or ProcessRuntime(fork_server)
        self._is_shared = fork_server is not None
        log_line, slots = self.log.append, cpu_slots(1)
        self.node = Node(folder, slots, self.runtime, cache, log_line, log_bytes_max=log_bytes_max)
        self.node.adopt()
        opened.append(self)

    def begin(self, name: str, files: Mapping[str, str | bytes], **spec: Any) -> Allocation:
        """Request a trial with `files` as model code; `spec` overrides fields of in/spec.json."""
        archive = tar(files)
        digest = hashlib.sha256(archive).hexdigest()
        self._archives[digest] = archive
        code = {"sha256": digest, "size": len(archive), "path": digest}
        directives = {"revision": 1, "length": 4, "closed": True}
        entry = {"allocation": name, "state": "run", "directives": directives, "slots": [0]}
        storage = {"type": "directory", "path": str(self.folder / "store" / name)}
        base = {"version": 1, "entrypoint": "model_def:Trial", "config": {}, "storage": storage}
        base |= {"epoch": 1, "trial_id": 1, "experiment_id": 1, "trial_seed": 7}
        self.node.apply_desired_entry(
            {**entry, "spec": {**base, **self._spec, **spec}, "code": code}
        )
        return next(one for one in self.node.allocations() if one.allocation == name)

    def run(self, name: str, files: Mapping[str, str | bytes], **spec: Any) -> Allocation:
        """Run a trial from the start to the recorded exit."""
        allocation = self.begin(name, files, **spec)
        self.watch(allocation)
        return allocation

    def watch(self, allocation: Allocation, done: Callable[[], object] | None = None) -> None:
        """Watch a trial until it is `done`, by default until the exit is recorded."""

        def look() -> object:
            if found := done() if done is not None else not allocation.is_active:
                return found
            allocation.poll()
            allocation.scan_output()
            return None

        what = f"an end of {allocation.allocation}" if done is None else "a state of the trial"
        poll_until(look, SECONDS_MAX, what, pause_seconds=0.005)

    def abandon(self) -> None:
        """Close the node as if the agent were killed: the trials continue."""
        opened.remove(self)
        self.runtime.close()

    def close(self) -> None:
        """End all trials and the runtime."""
        self.node.kill_all(0)
        for allocation in self.node.allocations():
            self.watch(allocation)
        if not self._is_shared:
            self.runtime.close()

    def _download(self, path: str, file: BinaryIO) -> int:
        return file.write(self._archives[path])


def exit_record(allocation: Allocation) -> dict[str, Any]:
    """The agent's record of an exit."""
    lines = allocation.lines("agent", 0, 1 << 20)
    return next(line.fields for line in lines if line.kind == "exited")


def report_lines(allocation: Allocation) -> list[dict[str, Any]]:
    """The lines that the trial reported."""
    return [line.fields for line in allocation.lines("0", 0, 1 << 20)]


def log_text(allocation: Allocation) -> str:
    """The text of the trial's log."""
    return allocation.directory.log.read_text()


def command(pid: int) -> str:
    """Return the command line of a process; a forked trial has the fork server's."""
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
