"""An allocation on this node: directory, processes and the cluster's acknowledgements.

Three threads share an allocation. The session's thread applies directives, kills and packs. The
watching thread polls. The launch has a thread, since fetching model code may take minutes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from detcloud.agent.allocation import limits
from detcloud.agent.allocation.agent_report import AgentReport
from detcloud.agent.allocation.clocks import monotonic_ms, now_ms
from detcloud.agent.allocation.directive_merge import merge_notice, merge_stop
from detcloud.agent.allocation.exit_record import (
    LOG_LINES_SHOWN,
    REVISION_MAX,
    exit_record,
    failed_start,
)
from detcloud.agent.allocation.failure_fields import failure_fields
from detcloud.agent.allocation.forwarded_log import ForwardedLog
from detcloud.agent.allocation.forwarded_reports import ForwardedReports
from detcloud.agent.allocation.hang_monitor import HangMonitor
from detcloud.agent.allocation.limited_run import LimitedRun
from detcloud.agent.allocation.log_watch import LogWatch
from detcloud.agent.allocation.scan_result import ScanResult
from detcloud.agent.allocation.start_times import StartTimes
from detcloud.agent.allocation.token_bucket import TokenBucket
from detcloud.agent.allocation.trial_log import log_tail
from detcloud.agent.allocation.trial_reports import PRIORITY_KINDS, ReportLine, ReportReader
from detcloud.agent.assignment.assignment import LaunchImpossible
from detcloud.agent.runtime import LOG_BYTES_MAX, ContainerRuntime, Phase, Status
from detcloud.agent.usage.use_monitor import UseMonitor
from detcloud.shared.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from detcloud.agent.allocation.directory import AllocationDirectory

ALIVE = frozenset({Phase.STARTING, Phase.RUNNING})


class Allocation:
    """An allocation, which passes through PULLING, STARTING, RUNNING and exited, in this order.
    Each state is reported once. `has_priority`: whether an unsent exit or checkpoint waits.
    `start_times` are the durations of the start, which the report of RUNNING contains.
    """

    def __init__(
        self,
        directory: AllocationDirectory,
        runtime: ContainerRuntime,
        log_bytes_max: int = LOG_BYTES_MAX,
        start_times: StartTimes | None = None,
    ) -> None:
        self.directory = directory
        self.start_times = start_times or StartTimes()
        self.allocation = directory.allocation
        # The acknowledged offsets by writer. While the offsets are unknown, nothing is sent.
        self.acked: dict[str, int] | None = None
        self.log = ForwardedLog(directory, log_bytes_max)
        self.has_priority = False
        self._runtime = runtime
        self._reader = ReportReader(directory.out)
        self._reports = ForwardedReports(directory, self._reader)
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
        self._failure: tuple[str, str, bool] | None = None
        self._directives: dict[str, Any] = {"revision": -1}
        self._notice: Notice | None = None
        self._noticed_at = 0.0
        # The stop that a kill requests. Unlike a notice, a stop announces no end of the machine.
        self._stop: Notice | None = None
        self._agent_report_scanned = 0
        # Whether the program is a command, notebook or shell, which does not continue elsewhere.
        self.runs_once = False
        self._limited: LimitedRun | None = None
        self._hangs: HangMonitor | None = None
        self.use = UseMonitor()
        # Returns the fault of the machine by which a trial failed, as `MachineHealth.examine` does.
        self.examine: Callable[[AllocationDirectory, float], str | None] = lambda *_: ""
        self._failed_at = 0.0
        self._log_bytes_max = log_bytes_max
        self._log_watch = LogWatch(directory, None, self._agent_report, log_bytes_max)
        self._lines = TokenBucket(limits.LINES_PER_SECOND, limits.LINES_BURST)

    @classmethod
    def adopt(
        cls,
        directory: AllocationDirectory,
        runtime: ContainerRuntime,
        log_bytes_max: int = LOG_BYTES_MAX,
    ) -> Allocation:
        """Restore an earlier agent's allocation from the stored records and directives.

        Write and start nothing. The launch counts as over, so `poll` records `lost` for a trial
        that never started. Unreadable records count as missing, and so do directives with an
        invalid revision.
        """
        allocation = cls(directory, runtime, log_bytes_max)
        allocation._launching = False
        allocation._read_records()
        directives = directory.read_directives() or {}
        revision = directives.get("revision")
        if type(revision) is int and revision < REVISION_MAX:
            allocation._directives = directives
        allocation.watch_limits(directory.read_spec())
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
    def is_running(self) -> bool:
        """Whether the trial's own program runs."""
        return self.is_active and "RUNNING" in self._states

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
                    self._write_exit(Status(Phase.ENDED, killed=True), "")
                # Under the lock, so that a kill is either seen above or reaches a started trial.
                self._launching = False
        except Exception as error:
            # An impossible request is the trial's own failure, anything else is the machine's.
            reason = "errored" if isinstance(error, LaunchImpossible) else "start_failed"
            reason = reason if self._kill_grace_ms is None else "killed"
            is_lasting = isinstance(error, LaunchImpossible) and error.is_lasting
            with contextlib.suppress(OSError):
                text = f"the trial could not be started: {error}"
                self.record_failure(reason, text, is_lasting=is_lasting)

    def record_failure(self, reason: str, message: str, *, is_lasting: bool = False) -> None:
        """Record the exit of a trial that never ran here. Only the first call counts. `is_lasting`
        marks a failure that a restart would repeat. Raise OSError if the record cannot be written.
        `poll` then repeats the write.
        """
        with self._lock:
            self._failure = self._failure or (reason, message, is_lasting)
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

    def watch_limits(self, spec: Mapping[str, Any] | None) -> None:
        """Watch limits, hangs, use and log policies of the run, as the specification says. `poll`
        then warns in the log, ends an idle run, and appends reports. Set `runs_once`.
        """
        self._log_watch = LogWatch(self.directory, spec, self._agent_report, self._log_bytes_max)
        self.runs_once = (spec or {}).get("runs_once") is True
        self._limited = LimitedRun.of_spec(self.directory, spec, now_ms())
        self._hangs = HangMonitor.of_spec(self.directory, spec, monotonic_ms())
        self.use = UseMonitor.of_spec(spec, self._agent_report.records())

    @property
    def has_idle_timeout(self) -> bool:
        """Whether the agent ends the run when nobody uses it."""
        return self._limited is not None and self._limited.watch.has_idle_timeout

    def note_use(self) -> None:
        """Note that somebody uses the run now."""
        limited, used_ms = self._limited, now_ms()
        if limited is not None:
            limited.watch.note_use(used_ms, used_ms)

    def take_limit_warning(self) -> str:
        """Return the limits' warning that `poll` has found since the last call. "" without one."""
        limited = self._limited
        return "" if limited is None else limited.take_warning()

    def end_warning(self) -> str:
        """Return the warning of the near end for a terminal that is opened now. "" without one."""
        limited = self._limited
        return "" if limited is None else limited.watch.end_warning(now_ms())

    def notify(self, notice: Notice) -> None:
        """Write the machine's notice into the directives of a trial without a recorded exit.

        Before the first directives, only keep the notice for them. Do nothing after the exit, or if
        the notice is unchanged. After an OSError, which passes, `poll` repeats the write.
        """
        with self._lock:
            if not self._exited and notice != self._notice:
                self._noticed_at = self._noticed_at or time.monotonic()
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
                        self._direct_stop(Notice(now_ms() + grace_ms, reason))
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
            if not self._exited:
                self._check_watches()

    def scan_output(self) -> ScanResult:
        """Search for reports and log output that are new since the last scan.

        Return whether urgent and whether deferrable output exists. Set `has_priority` if a line of
        a priority kind, such as a checkpoint, or a record of the exit is new.
        """
        urgent = self._agent_report.urgent_size > self._agent_report_scanned
        self._agent_report_scanned = self._agent_report.urgent_size
        self.has_priority = self.has_priority or (urgent and self._exited)
        deferrable = False
        for lines in self._reports.scan(self.acked or {}):
            deferrable = True
            urgent = urgent or any(line.is_urgent for line in lines)
            self.has_priority = self.has_priority or any(x.kind in PRIORITY_KINDS for x in lines)
        deferrable = self.log.scan() or deferrable
        return ScanResult(urgent, deferrable)

    def acknowledge(self, acked: dict[str, int], log_acked: int) -> None:
        """Set the acknowledged offsets by writer and of the log, even if lower than before.

        The first call also inserts blanks for acknowledged records that a power failure has lost.
        """
        self.acked = acked
        with self._lock:
            self._agent_report.make_room(acked.get("agent", 0))
        self.log.acknowledge(log_acked)

    def charge_lines(self, lines: int) -> None:
        """Charge sent lines to the limit of 1000 lines per second, with bursts of 5000 lines."""
        self._lines.spend(lines)

    @property
    def is_throttled(self) -> bool:
        """Whether the allocation must wait because too many lines were sent."""
        return self._lines.allowance() < 0

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
        elif self._exited:
            killed = self._kill_grace_ms is not None
            acked = self.acked or {}
            lines = self._reports.read_ended(writer, offset, bytes_max, acked, killed=killed)
        else:
            lines = self._reports.read_running(writer, offset, bytes_max)
        return self._reports.replace_refused(writer, lines)

    def replace_refused(self, writer: str, offset: int) -> None:
        """Send a warning, or `?` in the log, in place of the refused part that ends at `offset`.

        `writer` is a rank, `agent`, or `log`. For a rank, write a warning to the trial's log, once.
        """
        if writer == "log":
            self.log.replace_refused(offset)
        else:
            self._reports.note_refused(writer, offset)

    def read_log(self, bytes_max: int) -> tuple[int, str, bool]:
        """Read at most `bytes_max` bytes of the log after the acknowledged offset.

        Return the acknowledged offset, the text, and whether more text follows. A kill lowers the
        limit of the log after the exit. Beyond the limit, the text is a notice, or "".
        """
        killed = self._kill_grace_ms is not None
        return self.log.read(bytes_max, ended=self._exited, killed=killed)

    def log_marks(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the marks of log bytes `start` to `end`: offset, epoch milliseconds first seen."""
        return self.log.marks(start, end)

    def _read_records(self) -> None:
        """Restore the reported states, and whether the exit is recorded, from the records."""
        records = self._agent_report.records()
        self._states = [str(r.get("state")) for r in records if r.get("kind") == "container"]
        self._exited = any(record.get("kind") == "exited" for record in records)

    def _apply_status(self, status: Status) -> None:
        """Record the state or the exit of a polled process. Raises OSError if a write fails.

        A stop by the machine becomes a directive. An unknown process is recorded as the exit `lost`
        or, after a kill request, `killed`.
        """
        if status.stop_deadline_ms is not None and status.phase in ALIVE:
            self._direct_stop(Notice(status.stop_deadline_ms, "the machine stops the trial"))
        if status.phase is Phase.RUNNING:
            self._enter_state("RUNNING")
        elif status.phase is Phase.ENDED:
            self._end(status)
        elif status.phase is Phase.ABSENT:
            message = "the agent stopped before it started the trial"
            self.record_failure("lost" if self._kill_grace_ms is None else "killed", message)

    def _check_watches(self) -> None:
        """Kill an idle run, and report hangs, use and matches. May raise OSError."""
        limited, hangs = self._limited, self._hangs
        if limited is not None and self.is_needed and limited.check(now_ms()):
            self.kill(limited.grace_ms, saves=limited.saves, reason=limited.end_reason)
        if hangs is not None and "RUNNING" in self._states:
            hangs.report_to(self._agent_report, monotonic_ms(), self._directives, self._runtime)
        self.use.report_to(self._agent_report, monotonic_ms())
        self._log_watch.search(ended=False)

    def _end(self, status: Status) -> None:
        """Record the exit, for a failed trial after an examination of the machine. May raise
        OSError.
        """
        fault: str | None = ""
        if (status.code or status.signal is not None) and not status.killed:
            self._failed_at = self._failed_at or time.monotonic()
            fault = self.examine(self.directory, self._failed_at)
        # The cluster must know all matching lines of the log before the exit.
        if fault is not None and self._log_watch.search(ended=True):
            self._write_exit(status, fault)

    def _direct_stop(self, stop: Notice) -> None:
        """Write the stop into the trial's directives, unless an earlier stop is written.

        Raises OSError.
        """
        if self._stop is None or stop.deadline_ms < self._stop.deadline_ms:
            self._stop = stop
            self._write_directives()

    def _request_kill(self, grace_ms: int) -> None:
        """Let the runtime stop the trial. After an OSError, which passes, `poll` tries again."""
        self._kill_unwritten = True
        self._runtime.kill(self.directory.agent, grace_ms, saves=self._kill_saves)
        self._kill_unwritten = False

    def _write_failure(self) -> None:
        """Append the `exited` record of a failed start. Raises OSError.

        Do nothing without a failure, or after a recorded exit.
        """
        if self._exited or self._failure is None:
            return
        self._agent_report.append("exited", **failed_start(*self._failure, self._revision()))
        self._exited = True

    def _enter_state(self, state: str) -> None:
        """Append a `container` record of a state that is not recorded yet. Raises OSError.

        The record of RUNNING has the durations of the start, and the failure of an early pull.
        """
        if state not in self._states:
            fields: dict[str, Any] = {}
            if state == "RUNNING":
                if durations := self.start_times.durations():
                    fields["durations_ms"] = durations
                if failure := self.start_times.early_pull_failure:
                    fields["early_pull_failure"] = failure
            self._agent_report.append("container", state=state, **fields)
            self._states.append(state)
            # The time of the start does not count as idle.
            self.note_use()

    def _write_exit(self, status: Status, fault: str) -> None:
        """Append the `exited` record, and let the runtime free the resources of the ended launch.

        If the trial itself has begun, first record RUNNING, unless it is recorded already. The
        exit's record combines the status, the ranks' `exit` reports and the end of the log.
        `failure_fields` describes a failure. Raises OSError if a write fails.
        """
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
        if record["reason"] == "errored":
            record |= failure_fields(status, self.directory.log, tail, fault, self._reader)
        if self._limited is not None:
            record |= self._limited.exit_fields(record["reason"])
        if self._notice is not None:
            record["notice_age_ms"] = round((time.monotonic() - self._noticed_at) * 1000)
        self.use.finish(self._agent_report)
        self._agent_report.append("exited", **record)
        self._exited = True
        self._runtime.remove(self.directory.agent)

    def _revision(self) -> int:
        """Return the revision of the newest directives, or 0 without directives."""
        return max(0, int(self._directives.get("revision", 0)))

    def _write_directives(self) -> None:
        """Write the directives, merged with the stop and the notice, for the trial.

        Do nothing before the first directives. After an OSError, which passes, `poll` tries again.
        """
        if int(self._directives.get("revision", -1)) < 0:
            return
        self._directives_unwritten = True
        merged = merge_notice(merge_stop(self._directives, self._stop), self._notice)
        self.directory.write_directives(merged)
        self._directives_unwritten = False
