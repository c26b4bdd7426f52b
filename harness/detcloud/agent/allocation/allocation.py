"""One allocation on this node: its directory, its process and what the cluster knows of both.

Three threads share it: the session's applies directives, kills and packs; the watching one polls;
the launch has its own, since fetching model code may take minutes. One lock guards the shared
state, and nothing slow happens under it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detcloud.agent.allocation.agent_report import AgentReport
from detcloud.agent.allocation.end_backlog import EndBacklog
from detcloud.agent.allocation.exit_record import LOG_LINES_SHOWN, REVISION_MAX, exit_record
from detcloud.agent.allocation.trial_log import (
    KILLED_LOG_BYTES_MAX,
    LOG_NOTICES_BYTES_MAX,
    LogMarks,
    is_hole,
    log_size,
    log_tail,
    read_log,
    whole_lines,
)
from detcloud.agent.allocation.trial_reports import (
    PRIORITY_KINDS,
    ReportLine,
    ReportReader,
    warning_line,
)
from detcloud.agent.assignment.assignment import LaunchImpossible
from detcloud.agent.runtime import LOG_BYTES_MAX, ContainerRuntime, Phase, Status
from detcloud.shared.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from detcloud.agent.allocation.directory import AllocationDirectory

GRACE_MS = 15_000
LINES_PER_SECOND = 1000.0
LINES_BURST = 5000.0
SCAN_BYTES = 64 * 1024
# Notices in a trial's log of lines that are not passed on, from one agent's process.
WARNINGS_MAX = 10
ALIVE = frozenset({Phase.STARTING, Phase.RUNNING})


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The new output of an allocation: something urgent, or something that may wait a little."""

    has_urgent: bool = False
    has_deferrable: bool = False


class Allocation:
    """The state machine PULLING -> STARTING -> RUNNING -> exited, each step reported once."""

    def __init__(
        self,
        directory: AllocationDirectory,
        runtime: ContainerRuntime,
        log_bytes_max: int = LOG_BYTES_MAX,
    ) -> None:
        self.directory = directory
        self.allocation = directory.allocation
        # None until an answer says what the cluster has; nothing may be sent before.
        self.acked: dict[str, int] | None = None
        self.log_acked = 0
        self.has_priority = False
        self._runtime = runtime
        self._reader = ReportReader(directory.out)
        self._agent_report = AgentReport(directory.report)
        self._lock = threading.RLock()
        self._states: list[str] = []
        self._exited = False
        # True until the launch is over, so that a trial that is starting is not taken for lost.
        self._launching = True
        self._kill_grace_ms: int | None = None
        # What the full disk could not take; it is written as soon as there is room.
        self._kill_unwritten = False
        self._directives_unwritten = False
        self._failure: tuple[str, str] | None = None
        self._directives: dict[str, Any] = {"revision": -1}
        self._notice: Notice | None = None
        self._scanned: dict[str, int] = {}
        self._log_scanned = 0
        self._log_marks = LogMarks()
        self._agent_report_scanned = 0
        self._allowance = LINES_BURST
        self._allowance_at = time.monotonic()
        self._log_refused_to = 0
        self._refused: set[tuple[str, int]] = set()
        # Up to where in each report file the trial was told what is not passed on.
        self._warned: dict[str, int] = {}
        self._warnings = 0
        self._in_gang: bool | None = None
        # What is still sent of the reports, and up to where of the log, once the trial has ended.
        self._end_backlog: EndBacklog | None = None
        self._is_backlog_of_kill = False
        self._log_bytes_max = log_bytes_max + LOG_NOTICES_BYTES_MAX
        self._is_log_cut = False

    @classmethod
    def adopt(
        cls,
        directory: AllocationDirectory,
        runtime: ContainerRuntime,
        log_bytes_max: int = LOG_BYTES_MAX,
    ) -> Allocation:
        """The allocation of an earlier agent, in the state that its records tell."""
        allocation = cls(directory, runtime, log_bytes_max)
        allocation._launching = False
        allocation._read_records()
        directives = directory.read_directives() or {}
        revision = directives.get("revision")
        if type(revision) is int and revision < REVISION_MAX:
            allocation._directives = directives
        return allocation

    def verify_end(self) -> bool:
        """Take back an end that the records tell of a trial that runs, which only somebody else can
        have written; whether there was one. Called once, of what was adopted.
        """
        with self._lock:
            if not self._exited or self._runtime.poll(self.directory.agent).phase not in ALIVE:
                return False
            self._agent_report.remove_from("exited")
            self._read_records()
            return True

    @property
    def is_active(self) -> bool:
        """Whether no exit is recorded yet."""
        return not self._exited

    @property
    def is_needed(self) -> bool:
        """Whether no kill was requested yet."""
        return self._kill_grace_ms is None

    def is_acknowledged(self) -> bool:
        """Whether the cluster has acknowledged the agent's last record."""
        return (self.acked or {}).get("agent", 0) >= self._agent_report.size

    def launch(self, prepare: Callable[[], Callable[[], None]]) -> None:
        """Run `prepare` (fetch, lay out), then the start that it returns, unless killed before."""
        try:
            self._enter_state("PULLING")
            start = prepare()
            with self._lock:
                if self._kill_grace_ms is None:
                    self._enter_state("STARTING")
                    start()
                else:
                    self._write_exit(Status(Phase.ENDED, killed=True))
                # Under the lock: a kill comes either before this and is seen above, or after it.
                self._launching = False
        except Exception as error:
            # An impossible request is the trial's own failure; the rest is the machine's.
            reason = "errored" if isinstance(error, LaunchImpossible) else "start_failed"
            reason = reason if self._kill_grace_ms is None else "killed"
            # Without room for the record, `poll` repeats it.
            with contextlib.suppress(OSError):
                self.record_failure(reason, f"the trial could not be started: {error}")

    def record_failure(self, reason: str, message: str) -> None:
        """Record the exit of a trial that never ran here.

        Raises OSError where there is no room for the record; `poll` writes it when there is.
        """
        with self._lock:
            self._failure = self._failure or (reason, message)
            self._launching = False
            self._write_failure()

    def record_environment(self, facts: Mapping[str, str]) -> None:
        """Record facts of where the trial runs, in addition to the trial's own report."""
        with self._lock:
            self._agent_report.append("environment", **facts)

    def apply_directives(self, directives: dict[str, Any]) -> None:
        """Apply the cluster's directives unless they are outdated; the machine's notice stays in.

        `notify`, `kill` and this raise OSError where there is no room; `poll` repeats it.
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
            if self._kill_grace_ms is None or grace_ms < self._kill_grace_ms:
                # Also of one that has ended: its backlog is cut shorter.
                self._kill_grace_ms = grace_ms
                if not self._launching and not self._exited:
                    self._request_kill(grace_ms)

    def poll(self) -> None:
        """Record what changed with the process, and what could not be recorded before.

        Raises OSError where there is no room; nothing is lost.
        """
        if self._launching:
            # The lock may be held until the trial has started.
            return
        with self._lock:
            if self._exited:
                return
            if self._failure is not None:
                self._write_failure()
                return
            # What cannot be written, for want of room or of a folder that the trial removed, holds
            # up neither the kill nor the news of its end.
            try:
                if self._kill_unwritten and self._kill_grace_ms is not None:
                    self._request_kill(self._kill_grace_ms)
            finally:
                try:
                    self._apply_status(self._runtime.poll(self.directory.agent))
                finally:
                    if self._directives_unwritten and not self._exited:
                        self._write_directives()

    def scan_output(self) -> ScanResult:
        """Look for reports and log written since the last scan, by the trial or by the agent."""
        urgent = self._agent_report.size > self._agent_report_scanned
        self._agent_report_scanned = self._agent_report.size
        self.has_priority = self.has_priority or (urgent and self._exited)
        deferrable = False
        for writer in self._reader.writers():
            offset = self._scanned.get(writer, (self.acked or {}).get(writer, 0))
            lines = self._reader.read_lines(writer, offset, SCAN_BYTES)
            if lines:
                self._scanned[writer] = lines[-1].offset
                deferrable = True
                urgent = urgent or any(line.is_urgent for line in lines)
                self.has_priority = self.has_priority or any(
                    x.kind in PRIORITY_KINDS for x in lines
                )
        size = log_size(self.directory.log)
        deferrable = deferrable or size > self._log_scanned
        self._log_scanned = size
        self._log_marks.record_size(size)
        return ScanResult(urgent, deferrable)

    def acknowledge(self, acked: dict[str, int], log_acked: int) -> None:
        """Take over the offsets that the cluster has, also where they are less than before."""
        self.acked = acked
        self.log_acked = log_acked
        with self._lock:
            self._agent_report.make_room(acked.get("agent", 0))
        self._log_marks.discard_before(log_acked)

    def charge_lines(self, lines: int) -> None:
        """Count lines against the limit of a thousand a second with bursts of five thousand."""
        now = time.monotonic()
        refill = (now - self._allowance_at) * LINES_PER_SECOND
        self._allowance = min(LINES_BURST, self._allowance + refill) - lines
        self._allowance_at = now

    @property
    def is_throttled(self) -> bool:
        """Whether the allocation has to wait because it reported too many lines."""
        self.charge_lines(0)
        return self._allowance < 0

    def writers(self) -> list[str]:
        """The writers of reports: the agent, then the ranks."""
        return ["agent", *self._reader.writers()]

    def lines(self, writer: str, after: int | None, bytes_max: int) -> list[ReportLine]:
        """Report lines after that offset, after the acknowledged one with None."""
        offset = (self.acked or {}).get(writer, 0) if after is None else after
        if writer == "agent":
            lines = self._agent_report.lines(offset)
        else:
            if self._exited:
                lines = self._backlog_of_end().lines(writer, offset, bytes_max)
            else:
                lines = self._reader.read_lines(writer, offset, bytes_max)
            self._warn_of_lines(writer, lines)
        return [
            warning_line(line.offset, "the cluster refused a line")
            if (writer, line.offset) in self._refused
            else line
            for line in lines
        ]

    def replace_refused(self, writer: str, offset: int) -> None:
        """Replace the refused part that ends at `offset` by a warning or, in a log, by `?`."""
        if writer == "log":
            self._log_refused_to = offset
        elif (writer, offset) not in self._refused and writer != "agent":
            self._warn(writer, "the cluster refused a line, which was skipped")
        self._refused.add((writer, offset))

    def read_log(self, bytes_max: int) -> tuple[int, str, bool]:
        """The first unacknowledged byte's offset, text from there, whether more follows."""
        offset = self.log_acked
        if offset < self._log_refused_to:
            return offset, "?" * min(bytes_max, self._log_refused_to - offset), True
        limit = self._log_limit()
        if offset < limit and is_hole(self.directory.log, offset):
            limit = self._log_bytes_max = offset
        if offset >= limit:
            return offset, self._log_notice(limit)[offset - limit :][:bytes_max], False
        bytes_max = min(bytes_max, limit - offset)
        text = read_log(self.directory.log, offset, bytes_max, ended=self._exited)
        following = offset + len(text.encode()) < log_size(self.directory.log) and bool(text)
        if self._is_log_shared() and not self._exited:
            text = whole_lines(text) or (text if following else "")
        return offset, text, following

    def log_marks(self, start: int, end: int) -> list[tuple[int, int]]:
        """The marks of bytes `start` to `end` of the log: (offset, epoch ms when first seen)."""
        return self._log_marks.marks_between(start, end)

    def _backlog_of_end(self) -> EndBacklog:
        """The ended trial's reports that are sent; fewer, once somebody has killed it."""
        killed = self._kill_grace_ms is not None
        if self._end_backlog is None or killed > self._is_backlog_of_kill:
            self._is_backlog_of_kill = killed
            self._end_backlog = EndBacklog(self._reader, self.acked or {}, killed=killed)
            if notice := self._end_backlog.notice:
                with contextlib.suppress(OSError):
                    self.directory.write_notices([f"[detcloud] out/: {notice}"])
        return self._end_backlog

    def _log_limit(self) -> int:
        """The offset up to which the log is read: a trial can make one of any size."""
        if self._exited and self._kill_grace_ms is not None and not self._is_log_cut:
            self._is_log_cut = True
            self._log_bytes_max = min(self._log_bytes_max, self.log_acked + KILLED_LOG_BYTES_MAX)
        return self._log_bytes_max

    def _log_notice(self, limit: int) -> str:
        """The text that replaces the log beyond its limit, "" if the log is shorter."""
        beyond = log_size(self.directory.log) - limit
        return "\n[detcloud] the rest of the log is not forwarded\n" if beyond > 0 else ""

    def _warn_of_lines(self, writer: str, lines: list[ReportLine]) -> None:
        """Tell the trial in its log, once, which of its lines are not passed on."""
        before = self._warned.get(writer, 0)
        for line in lines:
            if line.warning and line.offset > before:
                self._warn(writer, line.warning)
                self._warned[writer] = line.offset

    def _warn(self, writer: str, warning: str) -> None:
        self._warnings += 1
        notices = [f"[detcloud] out/report-{writer}.jsonl: {warning}"]
        if self._warnings == WARNINGS_MAX:
            notices.append("[detcloud] further skipped lines are not reported here")
        if self._warnings <= WARNINGS_MAX:
            # A log that cannot be written has no room, or is what the trial made of it.
            with contextlib.suppress(OSError):
                self.directory.write_notices(notices)

    def _is_log_shared(self) -> bool:
        """Whether several nodes write one log, in which their lines must not be mixed."""
        if self._in_gang is None:
            spec = self.directory.read_spec()
            self._in_gang = spec is not None and int(spec.get("nodes", 1)) > 1
        return self._in_gang

    def _read_records(self) -> None:
        """Take the allocation's states from the agent's own records."""
        records = self._agent_report.records()
        self._states = [str(r.get("state")) for r in records if r.get("kind") == "container"]
        self._exited = any(record.get("kind") == "exited" for record in records)

    def _apply_status(self, status: Status) -> None:
        if status.phase is Phase.RUNNING:
            self._enter_state("RUNNING")
        elif status.phase is Phase.ENDED:
            self._write_exit(status)
        elif status.phase is Phase.ABSENT:
            message = "the agent stopped before it started the trial"
            self.record_failure("lost" if self._kill_grace_ms is None else "killed", message)

    def _request_kill(self, grace_ms: int) -> None:
        self._kill_unwritten = True
        self._runtime.kill(self.directory.agent, grace_ms)
        self._kill_unwritten = False

    def _write_failure(self) -> None:
        if self._exited or self._failure is None:
            return
        reason, message = self._failure
        self._agent_report.append(
            "exited",
            code=None,
            signal=None,
            reason=reason,
            directive_revision=self._revision(),
            message=message,
        )
        self._exited = True

    def _enter_state(self, state: str) -> None:
        if state not in self._states:
            self._agent_report.append("container", state=state)
            self._states.append(state)

    def _write_exit(self, status: Status) -> None:
        if status.stage == "trial":
            # It may have begun and ended between two polls.
            self._enter_state("RUNNING")
        exits = [self._reader.last_record(writer, "exit") for writer in self._reader.writers()]
        record = exit_record(
            status,
            [report for report in exits if report is not None],
            log_tail(self.directory.log, LOG_LINES_SHOWN),
            revision=self._revision(),
            notice=self._notice.reason if self._notice else "",
        )
        self._agent_report.append("exited", **record)
        self._exited = True
        self._runtime.remove(self.directory.agent)

    def _revision(self) -> int:
        return max(0, int(self._directives.get("revision", 0)))

    def _write_directives(self) -> None:
        if int(self._directives.get("revision", -1)) < 0:
            return
        self._directives_unwritten = True
        self.directory.write_directives(merge_notice(self._directives, self._notice))
        self._directives_unwritten = False


def merge_notice(directives: Mapping[str, Any], notice: Notice | None) -> dict[str, Any]:
    """The cluster's directives with this machine's notice in them; the earlier deadline counts."""
    if notice is None:
        return dict(directives)
    preempt = directives.get("preempt")
    deadline = preempt.get("deadline_ms") if isinstance(preempt, dict) else None
    if isinstance(deadline, int) and deadline <= notice.deadline_ms:
        return dict(directives)
    return {
        **directives,
        "preempt": {"deadline_ms": notice.deadline_ms, "reason": notice.reason},
    }
