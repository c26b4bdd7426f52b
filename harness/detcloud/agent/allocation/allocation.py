"""An allocation on this node: directory, processes and the cluster's acknowledgements.

Three threads share an allocation. The session's thread applies directives, kills and packs. The
watching thread polls. The launch has a thread, since fetching model code may take minutes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from detcloud.agent.allocation import limits
from detcloud.agent.allocation.agent_report import AgentReport
from detcloud.agent.allocation.directive_merge import merge_notice
from detcloud.agent.allocation.end_backlog import EndBacklog
from detcloud.agent.allocation.entrypoint_failure import is_lasting_failure
from detcloud.agent.allocation.exit_record import LOG_LINES_SHOWN, REVISION_MAX, exit_record
from detcloud.agent.allocation.scan_result import ScanResult
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
    from collections.abc import Callable, Iterator, Mapping

    from detcloud.agent.allocation.directory import AllocationDirectory

ALIVE = frozenset({Phase.STARTING, Phase.RUNNING})


class Allocation:
    """An allocation, which passes through PULLING, STARTING, RUNNING and exited, in this order.
    Each state is reported once. `has_priority`: whether an unsent exit or checkpoint waits.
    """

    def __init__(
        self,
        directory: AllocationDirectory,
        runtime: ContainerRuntime,
        log_bytes_max: int = LOG_BYTES_MAX,
    ) -> None:
        self.directory = directory
        self.allocation = directory.allocation
        # The acknowledged offsets by writer. While the offsets are unknown, nothing is sent.
        self.acked: dict[str, int] | None = None
        self.log_acked = 0
        self.has_priority = False
        self._runtime = runtime
        self._reader = ReportReader(directory.out)
        self._agent_report = AgentReport(directory.report)
        self._lock = threading.RLock()
        self._states: list[str] = []
        self._exited = False
        # True until the launch is over, so that a starting trial does not count as lost.
        self._launching = True
        self._kill_grace_ms: int | None = None
        self._kill_saves = False
        # Whether a full disk prevented a write, which `poll` repeats.
        self._kill_unwritten = False
        self._directives_unwritten = False
        self._failure: tuple[str, str] | None = None
        self._directives: dict[str, Any] = {"revision": -1}
        self._notice: Notice | None = None
        # The stop that a kill requests. Unlike a notice, a stop announces no end of the machine.
        self._stop: Notice | None = None
        self._scanned: dict[str, int] = {}
        self._log_scanned = 0
        self._log_marks = LogMarks()
        self._agent_report_scanned = 0
        self._allowance = limits.LINES_BURST
        self._allowance_at = time.monotonic()
        self._scan_from = "0"
        self._look_bytes = float(limits.LOOK_BYTES_BURST)
        self._look_at = time.monotonic()
        self._log_refused_to = 0
        self._refused: set[tuple[str, int]] = set()
        # The offset in each report file up to which the trial's log has warnings.
        self._warned: dict[str, int] = {}
        self._warnings = 0
        self._in_gang: bool | None = None
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
        """Restore an earlier agent's allocation from the stored records and directives."""
        allocation = cls(directory, runtime, log_bytes_max)
        allocation._launching = False
        allocation._read_records()
        directives = directory.read_directives() or {}
        revision = directives.get("revision")
        if type(revision) is int and revision < REVISION_MAX:
            allocation._directives = directives
        return allocation

    def verify_end(self) -> bool:
        """Remove a recorded exit if the trial still runs, and return whether this was necessary.
        Only another program can have written such a record. Called once after `adopt`.
        """
        with self._lock:
            if not self._exited or self._runtime.poll(self.directory.agent).phase not in ALIVE:
                return False
            self._agent_report.remove_from("exited")
            self._read_records()
            return True

    @property
    def is_active(self) -> bool:
        """Whether no exit of the trial is recorded yet."""
        return not self._exited

    @property
    def is_needed(self) -> bool:
        """Whether no kill was requested yet."""
        return self._kill_grace_ms is None

    def is_acknowledged(self) -> bool:
        """Whether the cluster has acknowledged the agent's last record of the allocation."""
        return (self.acked or {}).get("agent", 0) >= self._agent_report.size

    def launch(self, prepare: Callable[[], Callable[[], None]]) -> None:
        """Record PULLING, run `prepare`, record STARTING, and run the function from `prepare`.
        After a kill request, record a killed exit and start nothing. After an exception, record the
        exit `killed` (if requested), `errored` (LaunchImpossible) or `start_failed`. Never raise.
        """
        try:
            self._enter_state("PULLING")
            start = prepare()
            with self._lock:
                if self._kill_grace_ms is None:
                    self._enter_state("STARTING")
                    start()
                else:
                    self._write_exit(Status(Phase.ENDED, killed=True))
                # Under the lock, so that a kill is either seen above or reaches a started trial.
                self._launching = False
        except Exception as error:
            # An impossible request is the trial's own failure, anything else is the machine's.
            reason = "errored" if isinstance(error, LaunchImpossible) else "start_failed"
            reason = reason if self._kill_grace_ms is None else "killed"
            with contextlib.suppress(OSError):
                self.record_failure(reason, f"the trial could not be started: {error}")

    def record_failure(self, reason: str, message: str) -> None:
        """Record the exit of a trial that never ran here. Only the first reason and message count.
        Raise OSError if the record cannot be written. `poll` then repeats the write.
        """
        with self._lock:
            self._failure = self._failure or (reason, message)
            self._launching = False
            self._write_failure()

    def record_environment(self, facts: Mapping[str, str]) -> None:
        """Append an `environment` record with facts about the trial's place. May raise OSError."""
        with self._lock:
            self._agent_report.append("environment", **facts)

    def apply_directives(self, directives: dict[str, Any]) -> None:
        """Write the cluster's directives, merged with the machine's notice, for the trial.
        Ignore an older revision or equal directives. After an OSError, `poll` repeats the write.
        """
        with self._lock:
            if int(directives.get("revision", 0)) < int(self._directives.get("revision", -1)):
                return
            if directives != self._directives:
                self._directives = directives
                self._write_directives()

    def notify(self, notice: Notice) -> None:
        """Write the machine's notice into an active trial's directives. OSError if this fails."""
        with self._lock:
            if not self._exited and notice != self._notice:
                self._notice = notice
                self._write_directives()

    def kill(
        self, grace_ms: int, *, saves: bool = False, reason: str = "the trial is stopped"
    ) -> None:
        """Stop the trial within `grace_ms`: direct the trial to stop for `reason`, and let the
        runtime kill the trial. Do nothing unless the grace is shorter than in earlier calls. Before
        the start, only prevent the start. An ended trial sends fewer reports. With `saves`, the
        trial saves a checkpoint first. Raise OSError if a write fails; `poll` repeats the write.
        """
        with self._lock:
            if self._kill_grace_ms is None or grace_ms < self._kill_grace_ms:
                self._kill_grace_ms, self._kill_saves = grace_ms, saves
                if not self._launching and not self._exited:
                    try:
                        self._direct_stop(Notice(time.time_ns() // 1_000_000 + grace_ms, reason))
                    finally:
                        self._request_kill(grace_ms)

    def poll(self) -> None:
        """Record changes of the process's state, and repeat failed writes. Do nothing during the
        launch or after the exit. Raise OSError if a write fails; a later call repeats the write.
        """
        if self._launching:
            return
        with self._lock:
            if self._exited:
                return
            if self._failure is not None:
                self._write_failure()
                return
            # A failing write must delay neither the kill nor the record of the end.
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
        """Search for new reports and log output. Return the kinds, update `has_priority`."""
        urgent = self._agent_report.size > self._agent_report_scanned
        self._agent_report_scanned = self._agent_report.size
        self.has_priority = self.has_priority or (urgent and self._exited)
        deferrable = False
        for writer, lines in self._scan_writers():
            self._scanned[writer] = lines[-1].offset
            deferrable = True
            urgent = urgent or any(line.is_urgent for line in lines)
            self.has_priority = self.has_priority or any(x.kind in PRIORITY_KINDS for x in lines)
        size = log_size(self.directory.log)
        deferrable = deferrable or size > self._log_scanned
        self._log_scanned = size
        self._log_marks.record_size(size)
        return ScanResult(urgent, deferrable)

    def _scan_writers(self) -> Iterator[tuple[str, list[ReportLine]]]:
        """Yield each writer with its new lines, until SCANNED_BYTES_MAX bytes are read.
        The next scan begins with the first writer that was not reached.
        """
        writers = self._reader.writers()
        first = bisect_left(writers, int(self._scan_from), key=int)
        scanned = 0
        for writer in [*writers[first:], *writers[:first]]:
            self._scan_from = writer
            if scanned >= limits.SCANNED_BYTES_MAX:
                return
            offset = self._scanned.get(writer, (self.acked or {}).get(writer, 0))
            if lines := self._read_running(writer, offset, limits.SCAN_BYTES):
                scanned += sum(len(line.raw) for line in lines)
                yield writer, lines
        self._scan_from = "0"

    def _read_running(self, writer: str, offset: int, bytes_max: int) -> list[ReportLine]:
        """Return a running trial's complete lines after `offset`, with warnings for too long lines.
        Skipped bytes of too long lines are limited per second; later calls continue. May be empty.
        """
        now = time.monotonic()
        refill = (now - self._look_at) * limits.LOOK_BYTES_PER_SECOND
        self._look_bytes = min(limits.LOOK_BYTES_BURST, self._look_bytes + refill)
        self._look_at = now
        before = self._reader.skipped_bytes
        lines = self._reader.read_lines(
            writer, offset, bytes_max, look_bytes_max=max(0, int(self._look_bytes))
        )
        self._look_bytes -= self._reader.skipped_bytes - before
        return lines

    def acknowledge(self, acked: dict[str, int], log_acked: int) -> None:
        """Set the acknowledged offsets by writer and of the log, even if lower than before."""
        self.acked = acked
        self.log_acked = log_acked
        with self._lock:
            self._agent_report.make_room(acked.get("agent", 0))
        self._log_marks.discard_before(log_acked)

    def charge_lines(self, lines: int) -> None:
        """Charge sent lines to the limit of 1000 lines per second, with bursts of 5000 lines."""
        now = time.monotonic()
        refill = (now - self._allowance_at) * limits.LINES_PER_SECOND
        self._allowance = min(limits.LINES_BURST, self._allowance + refill) - lines
        self._allowance_at = now

    @property
    def is_throttled(self) -> bool:
        """Whether the allocation must wait because too many lines were sent."""
        self.charge_lines(0)
        return self._allowance < 0

    def writers(self) -> list[str]:
        """Return the writers of reports: `agent`, then the ranks in ascending order."""
        return ["agent", *self._reader.writers()]

    def lines(self, writer: str, after: int | None, bytes_max: int) -> list[ReportLine]:
        """Return a writer's lines after the offset `after`, by default the acknowledged offset.
        For a rank, return about `bytes_max` bytes. Refused lines are replaced by warnings, which
        the trial's log shows once. An ended trial's lines are limited by its backlog.
        """
        offset = (self.acked or {}).get(writer, 0) if after is None else after
        if writer == "agent":
            lines = self._agent_report.lines(offset)
        else:
            if self._exited:
                lines = self._backlog_of_end().lines(writer, offset, bytes_max)
            else:
                lines = self._read_running(writer, offset, bytes_max)
            self._warn_of_lines(writer, lines)
        return [
            warning_line(line.offset, "the cluster refused a line")
            if (writer, line.offset) in self._refused
            else line
            for line in lines
        ]

    def replace_refused(self, writer: str, offset: int) -> None:
        """Send a warning, or `?` in the log, in place of the refused part that ends at `offset`."""
        if writer == "log":
            self._log_refused_to = offset
        elif (writer, offset) not in self._refused and writer != "agent":
            self._warn(writer, "the cluster refused a line, which was skipped")
        self._refused.add((writer, offset))

    def read_log(self, bytes_max: int) -> tuple[int, str, bool]:
        """Read at most `bytes_max` bytes of the log after the acknowledged offset.
        Return the acknowledged offset, the text, and whether more text follows.
        """
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
        """Return the marks of log bytes `start` to `end`: offset, epoch milliseconds first seen."""
        return self._log_marks.marks_between(start, end)

    def _backlog_of_end(self) -> EndBacklog:
        """Return the ended trial's backlog of reports. A kill recomputes it with lower limits."""
        killed = self._kill_grace_ms is not None
        if self._end_backlog is None or killed > self._is_backlog_of_kill:
            self._is_backlog_of_kill = killed
            self._end_backlog = EndBacklog(self._reader, self.acked or {}, killed=killed)
            if notice := self._end_backlog.notice:
                with contextlib.suppress(OSError):
                    self.directory.write_notices([f"[detcloud] out/: {notice}"])
        return self._end_backlog

    def _log_limit(self) -> int:
        """Return the offset up to which the log is sent, which a kill lowers after the exit."""
        if self._exited and self._kill_grace_ms is not None and not self._is_log_cut:
            self._is_log_cut = True
            self._log_bytes_max = min(self._log_bytes_max, self.log_acked + KILLED_LOG_BYTES_MAX)
        return self._log_bytes_max

    def _log_notice(self, limit: int) -> str:
        """Return the notice that replaces the log beyond `limit`, or "" for a shorter log."""
        beyond = log_size(self.directory.log) - limit
        return "\n[detcloud] the rest of the log is not forwarded\n" if beyond > 0 else ""

    def _warn_of_lines(self, writer: str, lines: list[ReportLine]) -> None:
        """Write each line's warning to the trial's log once."""
        before = self._warned.get(writer, 0)
        for line in lines:
            if line.warning and line.offset > before:
                self._warn(writer, line.warning)
                self._warned[writer] = line.offset

    def _warn(self, writer: str, warning: str) -> None:
        self._warnings += 1
        notices = [f"[detcloud] out/report-{writer}.jsonl: {warning}"]
        if self._warnings == limits.WARNINGS_MAX:
            notices.append("[detcloud] further skipped lines are not reported here")
        if self._warnings <= limits.WARNINGS_MAX:
            with contextlib.suppress(OSError):
                self.directory.write_notices(notices)

    def _is_log_shared(self) -> bool:
        """Whether the trial has several nodes, so that log lines must not be mixed."""
        if self._in_gang is None:
            spec = self.directory.read_spec()
            self._in_gang = spec is not None and int(spec.get("nodes", 1)) > 1
        return self._in_gang

    def _read_records(self) -> None:
        """Restore the allocation's states from the agent's records."""
        records = self._agent_report.records()
        self._states = [str(r.get("state")) for r in records if r.get("kind") == "container"]
        self._exited = any(record.get("kind") == "exited" for record in records)

    def _apply_status(self, status: Status) -> None:
        if status.stop_deadline_ms is not None and status.phase in ALIVE:
            self._direct_stop(Notice(status.stop_deadline_ms, "the machine stops the trial"))
        if status.phase is Phase.RUNNING:
            self._enter_state("RUNNING")
        elif status.phase is Phase.ENDED:
            self._write_exit(status)
        elif status.phase is Phase.ABSENT:
            message = "the agent stopped before it started the trial"
            self.record_failure("lost" if self._kill_grace_ms is None else "killed", message)

    def _direct_stop(self, stop: Notice) -> None:
        """Write the stop into the trial's directives, unless an earlier stop is written."""
        if self._stop is None or stop.deadline_ms < self._stop.deadline_ms:
            self._stop = stop
            self._write_directives()

    def _request_kill(self, grace_ms: int) -> None:
        self._kill_unwritten = True
        self._runtime.kill(self.directory.agent, grace_ms, saves=self._kill_saves)
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
            # The trial may have begun and ended between two polls.
            self._enter_state("RUNNING")
        exits = [self._reader.last_record(writer, "exit") for writer in self._reader.writers()]
        tail = log_tail(self.directory.log, LOG_LINES_SHOWN)
        record = exit_record(
            status,
            [report for report in exits if report is not None],
            tail,
            revision=self._revision(),
            notice=self._notice.reason if self._notice else "",
        )
        if record["reason"] == "errored" and is_lasting_failure(
            status, tail, has_reports=self._has_reports()
        ):
            record["lasting"] = True
        self._agent_report.append("exited", **record)
        self._exited = True
        self._runtime.remove(self.directory.agent)

    def _has_reports(self) -> bool:
        """Whether the trial has reported anything except its exit."""
        return any(
            line.kind != "exit"
            for writer in self._reader.writers()
            for line in self._reader.read_lines(writer, 0, limits.SCAN_BYTES)
        )

    def _revision(self) -> int:
        return max(0, int(self._directives.get("revision", 0)))

    def _write_directives(self) -> None:
        if int(self._directives.get("revision", -1)) < 0:
            return
        self._directives_unwritten = True
        merged = merge_notice(merge_notice(self._directives, self._stop), self._notice)
        self.directory.write_directives(merged)
        self._directives_unwritten = False
