"""An agent without processes, which runs allocations by a script and calls when a test says so."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from control_plane.agents.service import SyncResponse
from simulator.machines.machine_agent import AgentCalls, MachineAgent
from simulator.machines.report_stream import Line, ReportStream

Script = Callable[["Run"], list[Line]]
"""Returns the next reports of an allocation. A line `exited` ends the allocation."""


@dataclass
class Run:
    """An allocation that follows a script."""

    allocation: str
    spec: Mapping[str, Any] = field(default_factory=dict)
    directives: Mapping[str, Any] = field(default_factory=dict)
    killed: bool = False
    """Whether the cluster has asked for the end. The script decides when the run exits."""
    reports: ReportStream = field(default_factory=ReportStream)
    rounds: int = 0
    """The number of times that the script has run."""

    @property
    def has_ended(self) -> bool:
        """Whether the reports contain an exit."""
        return self.reports.has_exit

    def report(self, line: Line) -> None:
        """Append a report to the run's reports."""
        self.reports.append(line, self.spec.get("rank", 0))

    def apply_directives(self, directives: Mapping[str, Any]) -> None:
        """Replace the directives that the script reads."""
        self.directives = directives

    def fail(self, reason: str, message: str) -> None:
        """Report an exit with this reason."""
        self.report({"kind": "exited", "reason": reason, "message": message})

    def kill(self, delay_ms: int) -> None:
        """Set `killed` at once. The delay is ignored."""
        self.killed = True


class ScriptedAgent(MachineAgent[Run]):
    """An agent with a script and immediate calls, so that a test can act between two calls.

    Args:
        service: answers the calls. A test may replace the service, for example by another host.
        script: the script of all allocations. A test may replace the script.
    """

    def __init__(
        self, service: AgentCalls, name: str, pool: str, slots: int, script: Script
    ) -> None:
        super().__init__(name, pool, slots)
        self.service = service
        self.script = script

    def enrol(self) -> None:
        """Begin a session. Raises CommandRefused, TableError, and Crash if the host crashes."""
        self.begin_session(self.request_session(self.service))

    def sync(self) -> SyncResponse:
        """Make a call with all unacknowledged reports, and apply the answer.

        The first call of a session has no reports. Raises CommandRefused, for example if the
        session has ended. Also raises TableError, and Crash if the host crashes.
        """
        answer = self.service.sync(self.name, self.sync_request(self.epoch or 0))
        self.apply_answer(answer)
        return answer

    def work(self) -> None:
        """Run a round of the script for each running allocation, and keep the reports."""
        for run in self.processes.values():
            if not run.has_ended:
                for line in self.script(run):
                    run.report(line)
                run.rounds += 1

    def _start_process(self, name: str, entry: Mapping[str, Any]) -> None:
        self._add_process(Run(name, entry["spec"], entry["directives"]))

    def _make_unstarted_process(self, name: str) -> Run:
        return Run(name)
