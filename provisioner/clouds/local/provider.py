"""The CloudProvider of the local machine: an instance is an agent process with a folder.

    FOLDER/ID/instance.json   the launch request and the agent's process
    FOLDER/ID/agent.log       the agent's output
    FOLDER/ID/work            the agent's work directory; a file preemption-notice.json in it is an
                              interruption notice

An instance consists of its agent and all processes that the agent started. It has ended when none
of them is left, so that no trial of it still runs while the trial is restarted elsewhere. Instances
outlive the server's process. An instance's folder is deleted an hour after its end.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from control_plane.adapters import lazy_adapter
from control_plane.fleet.records import IntentRow, Market, Offering
from control_plane.scheduling.agent_needs import AgentDevice
from detcloud.shared.files import delete_tree
from detcloud.shared.notices import FileNotices
from detcloud.shared.processes import PROC, Process, is_alive, read_process
from provisioner.clouds.provider import (
    CLUSTER_TAG,
    INTENT_TAG,
    POOL_TAG,
    CloudError,
    CloudInstance,
    ConfigurationError,
    TokenReused,
)
from provisioner.model import InstanceStatus

log = logging.getLogger(__name__)

NOTICE_FILE = "preemption-notice.json"
# An agent needs less time to let all trials checkpoint and to report the exits.
STOP_MS_MAX = 17_000
ENDED_INSTANCE_TTL_MS = 3_600_000
SLOTS_MAX = 1024
BOOT_LOG_BYTES_MAX = 64 * 1024

# A folder belongs to a single server process with several threads and provider objects.
_CHANGING = threading.RLock()

AgentCommand = Callable[[str, IntentRow, Path], Sequence[str]]
"""Returns the command line of an agent, given its name, the launch request and its directory."""


@dataclass(frozen=True, slots=True)
class _Record:
    """The content of an instance's file `instance.json`."""

    request: IntentRow
    launched_ms: int
    place: str
    """The address of the server that the agent calls."""
    pid: int | None = None
    """The agent's process id; None before the process was started."""
    started_ticks: int = 0
    """The start time of the agent's process, from /proc, in clock ticks."""
    asked_ms: int | None = None
    """The time at which the end was requested."""
    ended_ms: int | None = None
    """The time at which no process of the instance was left."""


_RECORD = lazy_adapter(_Record)


class LocalProcesses:
    """The instances in a folder.

    Args:
        command: returns an agent's command line.
        place: the address of the server that agents call. Instances whose agents call a different
            address are listed as STOPPED.
        clock: returns epoch milliseconds.
        environment: the environment of agents; this process's own if None.
        section: the provider's settings as JSON.
    """

    def __init__(
        self,
        folder: Path,
        command: AgentCommand,
        place: str,
        clock: Callable[[], int],
        *,
        environment: Mapping[str, str] | None = None,
        section: str = "{}",
    ) -> None:
        self._folder = folder
        self._command = command
        self._place = place
        self._clock = clock
        self._environment = dict(os.environ if environment is None else environment)
        self._section = section

    def offerings(self) -> tuple[Offering, ...]:
        """Return the single offering `local`, with the slots from the settings.

        Without `instance_slots` in the settings, the offering has one slot. The offering is on
        demand, without a zone and a price. Raises ConfigurationError unless the slots are an
        integer from 1 to SLOTS_MAX.
        """
        slots = json.loads(self._section).get("instance_slots", 1)
        if not isinstance(slots, int) or not 0 < slots <= SLOTS_MAX:
            raise ConfigurationError(f"instance_slots must be from 1 to {SLOTS_MAX}, not {slots!r}")
        return (Offering("local", "process", "", Market.ON_DEMAND, slots),)

    def devices_of(self, instance_type: str) -> tuple[AgentDevice, ...]:
        """Return the processors of the machine, which the agents of all instances report."""
        return (AgentDevice("cpu", ""),)

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        """Start the request's agents that were not started before; return the request's instances.

        Create each instance's folder and record. All instances are launched, whatever the machine's
        capacity. Instance ids are derived from the token. Instances from before a crash are
        therefore recognized and not started again, ended ones included, until their folders are
        deleted. A repeated request returns the instances of the first request, with their present
        status.

        Raises:
            ConfigurationError: the offering has no slots.
            TokenReused: the token belongs to a different request.
            CloudError: an agent or a file could not be created; other agents of the request may
                run. A repeated request starts only the missing agents.
        """
        if request.offering.slots < 1:
            raise ConfigurationError(f"offering {request.offering.name} has no slots")
        with _CHANGING:
            names = [f"local-{request.token[:12]}-{n}" for n in range(request.count)]
            for name in names:
                record = self._read_record(name)
                if record is not None and record.request != request:
                    raise TokenReused(f"the token of {name} belongs to another request")
            try:
                records = [self._ensure_started(name, request) for name in names]
            except OSError as error:
                raise CloudError(f"no agent could be started: {error}") from error
            return tuple(map(self._to_cloud_instance, names, records))

    def list_instances(self, cluster: str, pool: str | None = None) -> Sequence[CloudInstance]:
        """List the instances of the cluster, or of a single pool, after completing due ends.

        The ends are completed for all clusters and pools, also for those that are not listed. Kill
        processes of instances that were terminated STOP_MS_MAX ago or whose agent died. Record
        ends, and delete the folders of instances that ended an hour ago; these are listed a last
        time. Ended instances are TERMINATED. Notices in the folders are included. Unreadable
        records are skipped. Raises OSError if a record cannot be written.
        """
        with _CHANGING:
            records = [
                (name, self._update_record(name, record)) for name, record in self._read_records()
            ]
        return [
            self._to_cloud_instance(name, record)
            for name, record in records
            if record.request.cluster == cluster and pool in (None, record.request.pool)
        ]

    def terminate(self, ids: Sequence[str]) -> None:
        """Record the requests for the instances' ends, and send SIGTERM to the agents.

        Ignore unknown and ended instances, and repeated requests. Do not wait for the ends. After
        STOP_MS_MAX, the next call of `list_instances` sends SIGKILL to the processes that are left.
        Raises OSError if a record cannot be written; earlier ids in `ids` have been requested then.
        """
        with _CHANGING:
            for name in ids:
                record = self._read_record(name)
                if record is not None and record.asked_ms is None and record.ended_ms is None:
                    self._write_record(name, replace(record, asked_ms=self._clock()))
                    _send_signal(_agent_process(record), signal.SIGTERM)

    def boot_log(self, instance: str) -> str:
        """Return the last BOOT_LOG_BYTES_MAX of the agent's log as text, or "" without a log.

        Return "" also for an unknown instance and an unreadable log. Bytes that are not valid UTF-8
        are replaced. Secrets are not masked.
        """
        try:
            with (self._folder / instance / "agent.log").open("rb") as log_file:
                size = log_file.seek(0, os.SEEK_END)
                log_file.seek(max(0, size - BOOT_LOG_BYTES_MAX))
                return log_file.read().decode(errors="replace")
        except OSError:
            return ""

    def _ensure_started(self, name: str, request: IntentRow) -> _Record:
        """Start an instance's agent, unless done before, and return the instance's record.

        Create the folder and the record of a new instance. An instance that has ended or was asked
        to end is not started again. If a process of the instance already runs, record that process
        in place of a new one. Raises OSError if a file or the process cannot be created; a record
        may stay then, and a repeated call continues.
        """
        record = self._read_record(name)
        if record is None:
            record = _Record(request, self._clock(), self._place)
            (self._folder / name / "work").mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write_record(name, record)
        if record.pid is None and record.ended_ms is None and record.asked_ms is None:
            running = next(self._processes(name), None)
            process = running if running is not None else self._spawn_agent(name, request)
            record = replace(record, pid=process.pid, started_ticks=process.started_ticks)
            self._write_record(name, record)
        return record

    def _spawn_agent(self, name: str, request: IntentRow) -> Process:
        """Start and return an agent process that outlives the server and writes to agent.log.

        The output is appended to the log. Do not wait for the agent. Raises OSError if the process
        or the log file cannot be created.
        """
        folder = self._folder / name
        with (folder / "agent.log").open("ab") as output:
            child = subprocess.Popen(
                self._command(name, request, folder / "work"),
                env=self._environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # A Ctrl-C in the server's terminal must not reach agents.
                start_new_session=True,
            )
        # Popen must not wait for the child; `_reap_child` waits by process id.
        child.returncode = 0
        return read_process(child.pid) or Process(child.pid, os.getpid(), 0, "")

    def _update_record(self, name: str, record: _Record) -> _Record:
        """Complete the end of an instance with a dead or late agent; return the present record.

        Kill all processes of an instance that is to end (`_is_to_end`), and write the time of the
        end once all are gone. If a process is still alive, or the instance is not to end, return
        the record unchanged. Delete the folder of an instance that ended more than
        ENDED_INSTANCE_TTL_MS ago; errors of the deletion are ignored. Raises OSError if the record
        cannot be written.
        """
        now_ms = self._clock()
        if record.ended_ms is not None:
            if now_ms - record.ended_ms > ENDED_INSTANCE_TTL_MS:
                with contextlib.suppress(OSError):
                    delete_tree(self._folder / name)
            return record
        if not _is_to_end(record, now_ms):
            return record
        left = list(self._processes(name))
        for process in left:
            _send_signal(process, signal.SIGKILL)
        _reap_child(record.pid)
        if any(map(is_alive, left)):
            return record
        ended = replace(record, ended_ms=now_ms)
        self._write_record(name, ended)
        return ended

    def _to_cloud_instance(self, name: str, record: _Record) -> CloudInstance:
        """Return an instance for a record, with the interruption notice from the instance's folder.

        The notice is the time in the file, or None without a notice file. The status is that of the
        record (`_status`), and no process is examined.
        """
        request = record.request
        tags = {CLUSTER_TAG: request.cluster, POOL_TAG: request.pool, INTENT_TAG: request.id}
        notice = FileNotices(self._folder / name / "work" / NOTICE_FILE).poll()
        notice_ms = None if notice is None else notice.deadline_ms
        return CloudInstance(name, self._status(record), record.launched_ms, tags, notice_ms)

    def _status(self, record: _Record) -> InstanceStatus:
        """Return the status that an instance's record shows; the process is not examined.

        TERMINATED if the record has an end, TERMINATING if `terminate` was requested, STOPPED if
        the agent calls another server. Otherwise RUNNING, or STARTING before the process was
        started.
        """
        if record.ended_ms is not None:
            return InstanceStatus.TERMINATED
        if record.asked_ms is not None:
            return InstanceStatus.TERMINATING
        if record.place != self._place:
            return InstanceStatus.STOPPED
        return InstanceStatus.STARTING if record.pid is None else InstanceStatus.RUNNING

    def _processes(self, name: str) -> Iterator[Process]:
        """Yield the live processes of an instance, from /proc: the agent, supervisors and trials.

        A process belongs to the instance if its environment contains the instance's folder, or its
        command is detcloud's own with the folder (`_is_own_command`). A shell in the folder, and a
        command that reads the agent's log, do not count. Of processes of other users, only the
        command is readable. This process is skipped. Yield nothing on a system without /proc.
        """
        folder = os.fsencode(self._folder / name) + b"/"
        for entry in PROC.iterdir() if PROC.is_dir() else ():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                ours = _is_own_command((entry / "cmdline").read_bytes(), folder)
                if ours or folder in (entry / "environ").read_bytes():
                    process = read_process(int(entry.name))
                    if process is not None:
                        yield process

    def _read_records(self) -> Iterator[tuple[str, _Record]]:
        """Yield the id and the record of each instance in the folder, by id.

        Skip unreadable records. Yield nothing if the folder is missing.
        """
        folders = sorted(self._folder.iterdir()) if self._folder.is_dir() else []
        for folder in folders:
            record = self._read_record(folder.name)
            if record is not None:
                yield folder.name, record

    def _read_record(self, name: str) -> _Record | None:
        """Read an instance's record. Return None for an invalid id, or without a readable file.

        An invalid id contains "/" or begins with a point.
        """
        if "/" in name or name.startswith("."):
            return None
        try:
            return _RECORD().validate_json((self._folder / name / "instance.json").read_bytes())
        except (OSError, ValueError):
            return None

    def _write_record(self, name: str, record: _Record) -> None:
        """Replace an instance's record file atomically. The folder must exist.

        Raises OSError if the file cannot be written; the former record stays then.
        """
        path = self._folder / name / "instance.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(record)), encoding="utf-8")
        fresh.replace(path)


def _is_own_command(command: bytes, folder: bytes) -> bool:
    """Whether a command line, from /proc, is detcloud's own and names the folder.

    True if a word contains the folder, and another word contains "detcloud". The folder's own path
    may contain "detcloud", so a user's command with this path alone does not count.
    """
    words = command.split(b"\0")
    others = [word for word in words if folder not in word]
    return len(others) < len(words) and any(b"detcloud" in word for word in others)


def _is_to_end(record: _Record, now_ms: int) -> bool:
    """Whether the end of an instance must be completed now. A dead agent is reaped.

    True if the agent is dead, or lives STOP_MS_MAX after the request for its end. An agent that was
    never started counts as dead STOP_MS_MAX after the launch.
    """
    # `abs` because the clock may have been ahead when the record was written.
    if record.pid is None and abs(now_ms - record.launched_ms) < STOP_MS_MAX:
        return False
    _reap_child(record.pid)
    is_late = record.asked_ms is not None and abs(now_ms - record.asked_ms) > STOP_MS_MAX
    return is_late or not is_alive(_agent_process(record))


def _agent_process(record: _Record) -> Process:
    """Return the recorded process of an agent; process id 0 if the agent was not started."""
    return Process(record.pid or 0, 0, record.started_ticks, "")


def _send_signal(process: Process, number: int) -> None:
    """Send a signal to a live process; ignore an ended process, or a process of another user.

    Send nothing for the process id 0, or if the id now belongs to a process with another start.
    """
    if process.pid and is_alive(process):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def _reap_child(pid: int | None) -> None:
    """Reap an ended child process without waiting, so that no zombie stays.

    Do nothing for None, for a child that still runs, and for a process that is no child.
    """
    if pid is not None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
