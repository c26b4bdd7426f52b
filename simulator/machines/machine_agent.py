"""The session of an agent and the desired states of processes, as docs/agent-protocol.md says.

Subclasses decide when calls are made and what a process does.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

from control_plane.agents.reports import Report
from control_plane.agents.service import SyncResponse
from control_plane.agents.sync_acceptance import SyncRequest
from simulator.machines.report_stream import ReportStream

GRACE_MS = 15_000


class AgentCalls(Protocol):
    """The calls of an agent, which the cluster's service answers."""

    def enrol(
        self, agent: str, pool: str, slots: tuple[tuple[int, str, str, str], ...], version: str
    ) -> int: ...

    def sync(self, agent: str, request: SyncRequest) -> SyncResponse: ...


class MachineProcess(Protocol):
    """A process of an allocation on a machine."""

    @property
    def allocation(self) -> str: ...

    @property
    def reports(self) -> ReportStream: ...

    @property
    def has_ended(self) -> bool: ...

    def apply_directives(self, directives: Mapping[str, Any]) -> None: ...

    def fail(self, reason: str, message: str) -> None: ...

    def kill(self, delay_ms: int) -> None: ...


P = TypeVar("P", bound=MachineProcess)


class MachineAgent(ABC, Generic[P]):
    """The base of agents, which follows the protocol and makes no calls.

    Args:
        slots: the number of the machine's slots.

    Attributes:
        processes: the processes on the machine by allocation, including ended processes that the
            cluster has not forgotten.
        epoch: the epoch of the agent's session. None without a session.
    """

    def __init__(self, name: str, pool: str, slots: int) -> None:
        self.name = name
        self.pool = pool
        self.slots = slots
        self.processes: dict[str, P] = {}
        self.epoch: int | None = None
        self._acked: Mapping[str, Mapping[str, int]] | None = None
        self._calls = 0

    def forget_session(self) -> None:
        """Forget the session, as a restart of the agent's process does. The processes stay."""
        self.epoch, self._acked, self._calls = None, None, 0

    def request_session(self, service: AgentCalls) -> int:
        """Enrol the agent, and return the epoch of the new session. Raises CommandRefused."""
        slots = tuple((n, "cpu", f"{self.name}-{n}", "cpu") for n in range(self.slots))
        return service.enrol(self.name, self.pool, slots, "1")

    def begin_session(self, epoch: int) -> None:
        """Begin the session that the cluster has confirmed."""
        self.epoch, self._acked = epoch, None

    def next_call(self) -> int:
        """Return the number of the next call, and count the call."""
        self._calls += 1
        return self._calls

    def sync_request(self, epoch: int, reports_max: int | None = None) -> SyncRequest:
        """Return the next sync request, with up to `reports_max` reports of all processes.

        Ended processes come first. The first request of a session contains no reports, because the
        agent does not know the acknowledged offsets yet.
        """
        call = self.next_call()
        reports: list[Report] = []
        if self._acked is not None:
            for process in sorted(self.processes.values(), key=lambda item: not item.has_ended):
                reports += self._unacknowledged_reports(process)
        known = tuple(self.processes)
        return SyncRequest(epoch, known, tuple(reports[:reports_max]), call=call)

    def apply_answer(self, answer: SyncResponse) -> bool:
        """Apply the desired states of an answer, and return whether any process must change."""
        self._acked = answer.acked
        is_news = False
        for entry in answer.desired:
            is_news = is_news or "spec" in entry or entry["state"] != "run"
            self._apply_entry(entry)
        return is_news

    @property
    def has_unacknowledged_reports(self) -> bool:
        """Whether any process has reports that the cluster has not acknowledged."""
        return any(map(self._unacknowledged_reports, self.processes.values()))

    def _unacknowledged_reports(self, process: P) -> list[Report]:
        acked = (self._acked or {}).get(process.allocation, {})
        return process.reports.unacknowledged_reports(process.allocation, acked)

    def _apply_entry(self, entry: Mapping[str, Any]) -> None:
        """Apply the desired state of an allocation.

        - "wait": do nothing.
        - "run": start the process, or apply new directives to it. Without a specification, an
          unknown process fails to start.
        - "kill": kill the process after the grace period, at most GRACE_MS. For an unknown process,
          report an exit.
        - "forget": delete an ended process, or kill a running one.
        """
        name = entry["allocation"]
        process = self.processes.get(name)
        match entry["state"]:
            case "wait":
                return
            case "run" if process is not None:
                process.apply_directives(entry["directives"])
            case "run" if "spec" in entry:
                self._start_process(name, entry)
            case "run":
                process = self._add_process(self._make_unstarted_process(name))
                process.fail("start_failed", "the cluster's assignment was refused: it has no spec")
            case "kill":
                if process is None:
                    process = self._add_process(self._make_unstarted_process(name))
                    process.fail("killed", "killed before it was started here")
                process.kill(min(GRACE_MS, entry["grace_ms"]))
            case "forget" if process is not None and process.has_ended:
                del self.processes[name]
            case "forget" if process is not None:
                process.kill(0)

    def _add_process(self, process: P) -> P:
        self.processes[process.allocation] = process
        return process

    @abstractmethod
    def _start_process(self, name: str, entry: Mapping[str, Any]) -> None:
        """Add and start the process of an allocation by the entry's specification."""

    @abstractmethod
    def _make_unstarted_process(self, name: str) -> P:
        """Return a process without a specification, which only reports an exit."""
