"""One allocation on this node: its directory, its process and what the cluster knows of both.

The session's thread directs, kills and packs; the watching thread polls; launching has a thread of
its own, since fetching model code may take minutes. One lock guards the state that
they share, and nothing slow happens under it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detcloud.agent.assignment import LaunchImpossible
from detcloud.agent.exits import LOG_LINES_SHOWN, exited_record
from detcloud.agent.logs import LogMarks, log_size, log_tail, read_log, whole_lines
from detcloud.agent.notices import Notice, with_notice
from detcloud.agent.own_report import OwnReport
from detcloud.agent.reports import FIRST_KINDS, Line, ReportReader, warning_line
from detcloud.agent.runtime import ContainerRuntime, Phase, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from detcloud.agent.directory import AllocationDirectory

GRACE_MS = 15_000
LINES_PER_SECOND = 1000.0
LINES_BURST = 5000.0
SCAN_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class News:
    """What a look at an allocation found: something urgent, or something that may wait a little."""

    urgent: bool = False
    patient: bool = False


class Allocation:
    """The state machine PULLING -> STARTING -> RUNNING -> exited, each step reported once."""

    def __init__(self, directory: AllocationDirectory, runtime: ContainerRuntime) -> None:
        self.directory = directory
        self.allocation = directory.allocation
        # None until an answer told what the cluster has: then nothing may be sent yet.
        self.acked: dict[str, int] | None = None
        self.log_acked = 0
        self.pressing = False
        self._runtime = runtime
        self._reader = ReportReader(directory.out)
        self._own = OwnReport(directory.report)
        self._lock = threading.RLock()
        self._states: list[str] = []
        self._exited = False
        # Set until the launch is over, so that nobody takes an allocation in the making for lost.
        self._launching = True
        self._kill_grace_ms: int | None = None
        # What could not be written, for want of room, and is written as soon as it can be.
        self._kill_untold = False
        self._directives_unwritten = False
        self._failure: tuple[str, str] | None = None
        self._directives: dict[str, Any] = {"revision": -1}
        self._notice: Notice | None = None
        self._scanned: dict[str, int] = {}
        self._log_scanned = 0
        self._log_marks = LogMarks()
        self._own_scanned = 0
        self._allowance = LINES_BURST
        self._allowance_at = time.monotonic()
        self._log_blank_to = 0
        self._refused: set[tuple[str, int]] = set()
        self._in_gang: bool | None = None

    @classmethod
    def adopt(cls, directory: AllocationDirectory, runtime: ContainerRuntime) -> Allocation:
        """Take over what an earlier agent left: its records say how far it came."""
        adopted = cls(directory, runtime)
        adopted._launching = False
        for record in adopted._own.records():
            if record.get("kind") == "container":
                adopted._states.append(str(record.get("state")))
            adopted._exited = adopted._exited or record.get("kind") == "exited"
        adopted._directives = directory.read_directives() or adopted._directives
        return adopted

    @property
    def active(self) -> bool:
        """Whether its exit is not recorded yet."""
        return not self._exited

    @property
    def wanted(self) -> bool:
        """Whether nobody has asked for its end yet."""
        return self._kill_grace_ms is None

    def flushed(self) -> bool:
        """Whether the cluster has acknowledged the agent's last record."""
        return (self.acked or {}).get("agent", 0) >= self._own.size

    def launch(self, prepare: Callable[[], Callable[[], None]]) -> None:
        """Run `prepare` (fetch, lay out), then what it returned (start), unless killed before."""
        try:
            self._enter("PULLING")
            start = prepare()
            with self._lock:
                if self._kill_grace_ms is None:
                    self._enter("STARTING")
                    start()
                else:
                    self._finish(Status(Phase.ENDED, killed=True))
                # Under the lock: a kill comes either before this and is seen above, or after it.
                self._launching = False
        except Exception as error:
            # What the trial itself asks for and cannot have is its failure; the rest is ours.
            reason = "errored" if isinstance(error, LaunchImpossible) else "start_failed"
            reason = reason if self._kill_grace_ms is None else "killed"
            # Without room for the record, `poll` repeats it.
            with contextlib.suppress(OSError):
                self.fail(reason, f"the trial could not be started: {error}")

    def fail(self, reason: str, message: str) -> None:
        """Record an exit of something that never ran here.

        Raises OSError where there is no room for the record; `poll` writes it when there is.
        """
        with self._lock:
            self._failure = self._failure or (reason, message)
            self._launching = False
            self._record_failure()

    def describe(self, facts: Mapping[str, str]) -> None:
        """Record where the trial runs, beside what it says of that itself."""
        with self._lock:
            self._own.append("environment", **facts)

    def direct(self, directives: dict[str, Any]) -> None:
        """Apply the cluster's directives unless newer ones were; the machine's notice stays in.

        Like `notify` and `kill` it raises OSError where there is no room; `poll` repeats it.
        """
        with self._lock:
            if int(directives.get("revision", 0)) < int(self._directives.get("revision", -1)):
                return
            if directives != self._directives:
                self._directives = directives
                self._write_directives()

    def notify(self, notice: Notice) -> None:
        """Tell the trial when its machine ends."""
        with self._lock:
            if not self._exited and notice != self._notice:
                self._notice = notice
                self._write_directives()

    def kill(self, grace_ms: int) -> None:
        """End the trial, now or as soon as it would start; repeats may only shorten the grace."""
        with self._lock:
            if self._exited:
                return
            if self._kill_grace_ms is None or grace_ms < self._kill_grace_ms:
                self._kill_grace_ms = grace_ms
                if not self._launching:
                    self._tell_kill(grace_ms)

    def poll(self) -> None:
        """See how the process is and record what changed, and what could not be recorded before.

        Raises OSError where there is no room to; nothing of it is lost.
        """
        if self._launching:
            # Its lock may be held until it has started.
            return
        with self._lock:
            if self._exited:
                return
            if self._failure is not None:
                self._record_failure()
                return
            if self._directives_unwritten:
                self._write_directives()
            if self._kill_untold and self._kill_grace_ms is not None:
                self._tell_kill(self._kill_grace_ms)
            self._follow(self._runtime.poll(self.directory.agent))

    def look(self) -> News:
        """What was written since the last look, by the trial or by the agent."""
        urgent = self._own.size > self._own_scanned
        self._own_scanned = self._own.size
        self.pressing = self.pressing or (urgent and self._exited)
        patient = False
        for writer in self._reader.writers():
            offset = self._scanned.get(writer, (self.acked or {}).get(writer, 0))
            lines = self._reader.read(writer, offset, SCAN_BYTES)
            if lines:
                self._scanned[writer] = lines[-1].offset
                patient = True
                urgent = urgent or any(line.urgent for line in lines)
                self.pressing = self.pressing or any(x.kind in FIRST_KINDS for x in lines)
        size = log_size(self.directory.log)
        patient = patient or size > self._log_scanned
        self._log_scanned = size
        self._log_marks.seen(size)
        return News(urgent, patient)

    def acknowledge(self, acked: dict[str, int], log_acked: int) -> None:
        """Take over what the cluster says it has, also where that is less than before."""
        self.acked = acked
        self.log_acked = log_acked
        self._log_marks.taken(log_acked)

    def charge(self, lines: int) -> None:
        """Count lines against the rate of a thousand a second with bursts of five thousand."""
        now = time.monotonic()
        refill = (now - self._allowance_at) * LINES_PER_SECOND
        self._allowance = min(LINES_BURST, self._allowance + refill) - lines
        self._allowance_at = now

    @property
    def throttled(self) -> bool:
        """Whether it has to wait because it reported too many lines."""
        self.charge(0)
        return self._allowance < 0

    def writers(self) -> list[str]:
        """The agent first, then the ranks."""
        return ["agent", *self._reader.writers()]

    def lines(self, writer: str, after: int | None, bytes_max: int) -> list[Line]:
        """Lines after that offset, after the acknowledged one with None."""
        offset = (self.acked or {}).get(writer, 0) if after is None else after
        if writer == "agent":
            lines = self._own.lines(offset)
        else:
            lines = self._reader.read(writer, offset, bytes_max)
        return [
            warning_line(line.offset, "the cluster refused a line")
            if (writer, line.offset) in self._refused
            else line
            for line in lines
        ]

    def refuse(self, writer: str, offset: int) -> None:
        """The cluster cannot take what ends at `offset`: send a warning, for a log `?`, instead."""
        if writer == "log":
            self._log_blank_to = offset
        self._refused.add((writer, offset))

    def log(self, bytes_max: int) -> tuple[int, str, bool]:
        """The first unacknowledged byte's offset, text from there, whether more follows."""
        offset = self.log_acked
        if offset < self._log_blank_to:
            return offset, "?" * min(bytes_max, self._log_blank_to - offset), True
        text = read_log(self.directory.log, offset, bytes_max, ended=self._exited)
        following = offset + len(text.encode()) < log_size(self.directory.log) and bool(text)
        if self._shares_log() and not self._exited:
            text = whole_lines(text) or (text if following else "")
        return offset, text, following

    def log_marks(self, start: int, end: int) -> list[tuple[int, int]]:
        """When bytes `start` to `end` of the log were first seen: offsets and epoch ms."""
        return self._log_marks.within(start, end)

    def _shares_log(self) -> bool:
        """Whether the lines of several nodes make one log, in which none may be cut for another."""
        if self._in_gang is None:
            spec = self.directory.read_spec()
            self._in_gang = spec is not None and int(spec.get("nodes", 1)) > 1
        return self._in_gang

    def _follow(self, status: Status) -> None:
        if status.phase is Phase.RUNNING:
            self._enter("RUNNING")
        elif status.phase is Phase.ENDED:
            self._finish(status)
        elif status.phase is Phase.ABSENT:
            lost = "the agent stopped before it had started the trial"
            self.fail("lost" if self._kill_grace_ms is None else "killed", lost)

    def _tell_kill(self, grace_ms: int) -> None:
        self._kill_untold = True
        self._runtime.kill(self.directory.agent, grace_ms)
        self._kill_untold = False

    def _record_failure(self) -> None:
        if self._exited or self._failure is None:
            return
        reason, message = self._failure
        self._own.append(
            "exited",
            code=None,
            signal=None,
            reason=reason,
            directive_revision=self._revision(),
            message=message,
        )
        self._exited = True

    def _enter(self, state: str) -> None:
        if state not in self._states:
            self._own.append("container", state=state)
            self._states.append(state)

    def _finish(self, status: Status) -> None:
        if status.stage == "trial":
            # It may have begun and ended between two looks.
            self._enter("RUNNING")
        exits = [self._reader.last(writer, "exit") for writer in self._reader.writers()]
        record = exited_record(
            status,
            [said for said in exits if said is not None],
            log_tail(self.directory.log, LOG_LINES_SHOWN),
            revision=self._revision(),
            notice=self._notice.reason if self._notice else "",
        )
        self._own.append("exited", **record)
        self._exited = True
        self._runtime.remove(self.directory.agent)

    def _revision(self) -> int:
        return max(0, int(self._directives.get("revision", 0)))

    def _write_directives(self) -> None:
        if int(self._directives.get("revision", -1)) < 0:
            return
        self._directives_unwritten = True
        self.directory.write_directives(with_notice(self._directives, self._notice))
        self._directives_unwritten = False
