"""The watch over a run that may hang: detection, stacks in the log, and lines for the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detcloud.agent.allocation.hang_watch import HangWatch
from detcloud.agent.allocation.output_growth import OutputGrowth
from detcloud.agent.allocation.printed_stacks import parse_places, request_stacks
from detcloud.agent.allocation.trial_log import log_size, read_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from detcloud.agent.allocation.agent_report import AgentReport
    from detcloud.agent.allocation.directory import AllocationDirectory
    from detcloud.agent.runtime import ContainerRuntime

STACKS_MS = 3_000
"""The time in which processes print their stacks, in ms."""
STACKS_BYTES_MAX = 2 << 20
LOOK_MS = 500
"""The shortest time between two looks at the output, in ms."""


class HangMonitor:
    """The hangs of a run on this node.

    The first node detects hangs. The other nodes of a gang print stacks when the directives have
    the number of a new hang.
    """

    def __init__(
        self, directory: AllocationDirectory, timeout_ms: int, rank: int, now_ms: int
    ) -> None:
        """Begin to watch.

        Args:
            directory: the allocation's directory.
            timeout_ms: the shortest silence that counts as a hang.
            rank: the rank of the node.
            now_ms: the present time, in ms of a clock that nobody sets.
        """
        self._directory = directory
        self._rank = rank
        self._growth = OutputGrowth(directory)
        self._watch = HangWatch(timeout_ms, now_ms)
        # The number of hangs for which this node has printed stacks.
        self._printed = 0
        self._look_at_ms = 0
        # The time at which the stacks are complete, and the size of the log before them.
        self._stacks_due_ms: int | None = None
        self._log_start = 0

    @classmethod
    def of_spec(
        cls, directory: AllocationDirectory, spec: Mapping[str, Any] | None, now_ms: int
    ) -> HangMonitor | None:
        """Return a monitor for a specification with `hang_timeout_ms`, or None."""
        spec = spec or {}
        timeout_ms, rank = spec.get("hang_timeout_ms"), spec.get("node_rank", 0)
        if type(timeout_ms) is not int or timeout_ms <= 0 or type(rank) is not int:
            return None
        return cls(directory, timeout_ms, rank, now_ms)

    def report_to(
        self,
        report: AgentReport,
        now_ms: int,
        directives: Mapping[str, Any],
        runtime: ContainerRuntime,
    ) -> None:
        """Append records of hangs to the agent's report. Raise OSError if a write fails."""
        for record in self.check(
            now_ms, directives, lambda: runtime.processes(self._directory.agent)
        ):
            report.append(record.pop("kind"), **record)

    def check(
        self, now_ms: int, directives: Mapping[str, Any], processes: Callable[[], list[int]]
    ) -> Iterator[dict[str, Any]]:
        """Yield lines for the cluster about hangs, and let the processes print stacks.

        Args:
            now_ms: the present time, in ms of the same clock.
            directives: the directives of the cluster.
            processes: returns the ids of the run's processes.
        """
        if self._stacks_due_ms is not None:
            if now_ms < self._stacks_due_ms:
                return
            yield from self._read_stacks()
            return
        if now_ms < self._look_at_ms:
            return
        self._look_at_ms = now_ms + LOOK_MS
        requested = directives.get("hang")
        if self._rank != 0:
            if type(requested) is int and requested > self._printed:
                self._print_stacks(now_ms, processes, requested)
            return
        if self._growth.look() and self._watch.note_output(now_ms):
            yield {"kind": "hang", "silent_ms": 0}
        if silent_ms := self._watch.check(now_ms):
            yield {"kind": "hang", "silent_ms": silent_ms, "timeout_ms": self._watch.limit_ms}
            self._print_stacks(now_ms, processes, self._printed + 1)

    def _print_stacks(self, now_ms: int, processes: Callable[[], list[int]], number: int) -> None:
        self._printed = number
        self._log_start = log_size(self._directory.log)
        if request_stacks(processes()):
            self._stacks_due_ms = now_ms + STACKS_MS

    def _read_stacks(self) -> Iterator[dict[str, Any]]:
        """Yield the line with the places of the processes. The stacks are no output of the run."""
        self._stacks_due_ms = None
        text = read_log(self._directory.log, self._log_start, STACKS_BYTES_MAX, ended=True)
        self._growth.look()
        if places := parse_places(text, self._rank):
            yield {"kind": "stacks", "places": sorted(places.items())}
