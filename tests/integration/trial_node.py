"""A node without an agent around it, which runs real trial processes in a folder."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from detcloud.agent.allocation import Allocation
from detcloud.agent.model_code import CodeCache
from detcloud.agent.node import Node
from detcloud.agent.runtime import LOG_BYTES_MAX, ContainerRuntime, ProcessRuntime
from detcloud.agent.slots import cpu_slots
from detcloud.agent.template import Template
from tests.integration.agent_cluster import tar

SECONDS_MAX = 60.0
opened: list[TrialNode] = []
"""Those of the test that runs, to be closed after it."""


class TrialNode:
    """Starts trials from files; what it says is kept in `said`."""

    def __init__(
        self,
        folder: Path,
        template: Template | None = None,
        *,
        log_bytes_max: int = LOG_BYTES_MAX,
        runtime: ContainerRuntime | None = None,
        spec: Mapping[str, Any] | None = None,
    ) -> None:
        """`spec` is what all its trials' specs say unless `begin` is told otherwise. The template
        is its maker's, who closes it.
        """
        self.folder = folder
        self._spec = spec or {}
        self.said: list[str] = []
        self._archives: dict[str, bytes] = {}
        cache = CodeCache(folder / "cache", self._download)
        self.runtime = runtime or ProcessRuntime(template)
        self._is_shared = template is not None
        say, slots = self.said.append, cpu_slots(1)
        self.node = Node(folder, slots, self.runtime, cache, say, log_bytes_max=log_bytes_max)
        self.node.adopt()
        opened.append(self)

    def begin(self, name: str, files: dict[str, str], **spec: Any) -> Allocation:
        """Ask for a trial; `files` are its model code, `spec` what in/spec.json says beside."""
        archive = tar(files)
        digest = hashlib.sha256(archive).hexdigest()
        self._archives[digest] = archive
        code = {"sha256": digest, "size": len(archive), "path": digest}
        directives = {"revision": 1, "length": 4, "closed": True}
        entry = {"allocation": name, "state": "run", "directives": directives, "slots": [0]}
        storage = {"type": "directory", "path": str(self.folder / "store" / name)}
        base = {"version": 1, "entrypoint": "model_def:Trial", "config": {}, "storage": storage}
        base |= {"epoch": 1, "trial_id": 1, "experiment_id": 1, "trial_seed": 7}
        self.node.apply({**entry, "spec": {**base, **self._spec, **spec}, "code": code})
        return next(one for one in self.node.allocations() if one.allocation == name)

    def run(self, name: str, files: dict[str, str], **spec: Any) -> Allocation:
        """A trial from its start to its recorded exit."""
        allocation = self.begin(name, files, **spec)
        self.look(allocation)
        return allocation

    def look(self, allocation: Allocation, done: Callable[[], object] | None = None) -> None:
        """Look after it until it is `done`, by default until its exit is recorded."""
        give_up_at = time.monotonic() + SECONDS_MAX
        while not (done() if done is not None else not allocation.active):
            assert time.monotonic() < give_up_at, f"{allocation.allocation} did not get there"
            time.sleep(0.005)
            allocation.poll()
            allocation.look()

    def abandon(self) -> None:
        """Its agent is gone; its trials go on."""
        opened.remove(self)
        self.runtime.close()

    def close(self) -> None:
        """End what still runs."""
        self.node.kill_all(0)
        for allocation in self.node.allocations():
            self.look(allocation)
        if not self._is_shared:
            self.runtime.close()

    def _download(self, path: str, file: BinaryIO) -> int:
        return file.write(self._archives[path])


def exited(allocation: Allocation) -> dict[str, Any]:
    """The record of its exit."""
    lines = allocation.lines("agent", 0, 1 << 20)
    return next(line.fields for line in lines if line.kind == "exited")


def reported(allocation: Allocation) -> list[dict[str, Any]]:
    """What the trial reported."""
    return [line.fields for line in allocation.lines("0", 0, 1 << 20)]


def printed(allocation: Allocation) -> str:
    """Its log."""
    return allocation.directory.log.read_text()


def command(pid: int) -> str:
    """The command line of a process, which a forked trial has from its template."""
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
