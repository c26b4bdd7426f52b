"""The reports of a process on the disk of a machine, by writer and offset."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from control_plane.agents.reports import Report

Line = dict[str, Any]
AGENT = "agent"
"""The writer of reports about the container, the log, hangs, the use and the exit."""
AGENT_KINDS = frozenset({"container", "log_policy", "exited", "hang", "stacks", "use", "low_use"})
"""The kinds of reports that the agent writes."""
LINE_BYTES = 100


@dataclass
class ReportStream:
    """The reports of a process, which survive the end of the agent's process."""

    lines: list[tuple[str, int, Line]] = field(default_factory=list)
    """The reports in order: writer, end offset and content."""
    _offsets: dict[str, int] = field(default_factory=dict)

    def append(self, line: Line, rank: int) -> None:
        """Append a report to the agent's stream or to the stream of the process's rank.

        Reports about the container, the log, hangs, the use and the exit belong to the agent's
        stream.
        """
        writer = AGENT if line["kind"] in AGENT_KINDS else str(rank)
        self._offsets[writer] = self._offsets.get(writer, 0) + LINE_BYTES
        self.lines.append((writer, self._offsets[writer], line))

    @property
    def has_exit(self) -> bool:
        """Whether the reports contain an exit."""
        return any(line["kind"] == "exited" for _, _, line in self.lines)

    def unacknowledged_reports(self, allocation: str, acked: Mapping[str, int]) -> list[Report]:
        """Return the reports that the cluster has not acknowledged, in order, the exit last.

        Args:
            allocation: the allocation of the process, as `TRIAL_ID.EPOCH`.
            acked: the acknowledged offset of each writer.
        """
        trial_id, epoch = map(int, allocation.split("."))
        # The cluster must receive all reports of the trial before the exit.
        lines = sorted(self.lines, key=lambda line: line[2]["kind"] == "exited")
        return [
            Report(trial_id, epoch, writer, offset, line)
            for writer, offset, line in lines
            if offset > acked.get(writer, 0)
        ]
