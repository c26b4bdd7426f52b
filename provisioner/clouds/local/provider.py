"""Instances that are agent processes on this machine, each with its own folder.

    FOLDER/ID/instance.json   the launch request, and the process as it was started
    FOLDER/ID/agent.log
    FOLDER/ID/work            the agent's; a preemption-notice.json in it is a notice

An instance is its agent and everything that the agent started: it has ended when none of that is
left, so that nothing of it still runs while its trials go on elsewhere. The folder outlives this
process; an hour after the end it is removed.
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
# More than an agent takes that lets its trials checkpoint and reports their exits.
STOP_MS_MAX = 17_000
ENDED_INSTANCE_TTL_MS = 3_600_000
SLOTS_MAX = 1024
BOOT_LOG_BYTES_MAX = 64 * 1024

# One server at a time works in a folder, with several threads and objects.
_CHANGING = threading.RLock()

AgentCommand = Callable[[str, IntentRow, Path], Sequence[str]]
"""The command line of an agent of that name, for a request, with that work directory."""


@dataclass(frozen=True, slots=True)
class _Record:
    """An instance's file. `pid` None: it is about to be started. `place`: the address of the server
    that its agent calls; `asked_ms`: its end was requested; `ended_ms`: nothing of it is left.
    """

    request: IntentRow
    launched_ms: int
    place: str
    pid: int | None = None
    started_ticks: int = 0
    asked_ms: int | None = None
    ended_ms: int | None = None


_RECORD = lazy_adapter(_Record)


class LocalProcesses:
    """The instances in `folder`. `place` is the address of the server that their agents call:
    instances whose agents call another one are of no use any more. `clock` gives epoch ms.
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
        """One offering: this machine, with as many slots as the settings say."""
        slots = json.loads(self._section).get("instance_slots", 1)
        if not isinstance(slots, int) or not 0 < slots <= SLOTS_MAX:
            raise ConfigurationError(f"instance_slots must be from 1 to {SLOTS_MAX}, not {slots!r}")
        return (Offering("local", "process", "", Market.ON_DEMAND, slots),)

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        """Start agents. The ids come of the token, so what a crash left is found again."""
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
        """List instances. It also completes the end of those that were terminated or died."""
        with _CHANGING:
            found = [
                (name, self._update_record(name, record)) for name, record in self._read_records()
            ]
        return [
            self._to_cloud_instance(name, record)
            for name, record in found
            if record.request.cluster == cluster and pool in (None, record.request.pool)
        ]

    def terminate(self, ids: Sequence[str]) -> None:
        """Send SIGTERM now, and SIGKILL to what is left after 17 s."""
        with _CHANGING:
            for name in ids:
                record = self._read_record(name)
                if record is not None and record.asked_ms is None and record.ended_ms is None:
                    self._write_record(name, replace(record, asked_ms=self._clock()))
                    _send_signal(_agent_process(record), signal.SIGTERM)

    def boot_log(self, instance: str) -> str:
        """Return the end of the agent's log."""
        try:
            with (self._folder / instance / "agent.log").open("rb") as log_file:
                size = log_file.seek(0, os.SEEK_END)
                log_file.seek(max(0, size - BOOT_LOG_BYTES_MAX))
                return log_file.read().decode(errors="replace")
        except OSError:
            return ""

    def _ensure_started(self, name: str, request: IntentRow) -> _Record:
        """The instance's record, after its agent was started unless it was before."""
        record = self._read_record(name)
        if record is None:
            record = _Record(request, self._clock(), self._place)
            (self._folder / name / "work").mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write_record(name, record)
        if record.pid is None and record.ended_ms is None and record.asked_ms is None:
            left = next(self._processes(name), None)
            process = left if left is not None else self._spawn_agent(name, request)
            record = replace(record, pid=process.pid, started_ticks=process.started_ticks)
            self._write_record(name, record)
        return record

    def _spawn_agent(self, name: str, request: IntentRow) -> Process:
        folder = self._folder / name
        with (folder / "agent.log").open("ab") as output:
            child = subprocess.Popen(
                self._command(name, request, folder / "work"),
                env=self._environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # A Ctrl-C in the server's terminal is not theirs.
                start_new_session=True,
            )
        # It may outlive this object: it is waited for by its id, see _reap_child.
        child.returncode = 0
        found = read_process(child.pid)
        return found or Process(child.pid, os.getpid(), 0, "")

    def _update_record(self, name: str, record: _Record) -> _Record:
        now_ms = self._clock()
        if record.ended_ms is not None:
            if now_ms - record.ended_ms > ENDED_INSTANCE_TTL_MS:
                with contextlib.suppress(OSError):
                    delete_tree(self._folder / name)
            return record
        # A difference either way, since the clock may have been ahead when the record was written.
        if record.pid is None and abs(now_ms - record.launched_ms) < STOP_MS_MAX:
            return record
        _reap_child(record.pid)
        is_late = record.asked_ms is not None and abs(now_ms - record.asked_ms) > STOP_MS_MAX
        if is_alive(_agent_process(record)) and not is_late:
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
        request = record.request
        tags = {CLUSTER_TAG: request.cluster, POOL_TAG: request.pool, INTENT_TAG: request.id}
        notice = FileNotices(self._folder / name / "work" / NOTICE_FILE).poll()
        notice_ms = None if notice is None else notice.deadline_ms
        return CloudInstance(name, self._status(record), record.launched_ms, tags, notice_ms)

    def _status(self, record: _Record) -> InstanceStatus:
        if record.ended_ms is not None:
            return InstanceStatus.TERMINATED
        if record.asked_ms is not None:
            return InstanceStatus.TERMINATING
        if record.place != self._place:
            return InstanceStatus.STOPPED
        return InstanceStatus.STARTING if record.pid is None else InstanceStatus.RUNNING

    def _processes(self, name: str) -> Iterator[Process]:
        """The agent, its supervisors and their trials, by what their commands and environments
        name; not a shell that somebody opened in the folder.
        """
        folder = os.fsencode(self._folder / name) + b"/"
        for entry in PROC.iterdir() if PROC.is_dir() else ():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                ours = folder in words and b"detcloud" in words
                if ours or folder in (entry / "environ").read_bytes():
                    found = read_process(int(entry.name))
                    if found is not None:
                        yield found

    def _read_records(self) -> Iterator[tuple[str, _Record]]:
        folders = sorted(self._folder.iterdir()) if self._folder.is_dir() else []
        for folder in folders:
            record = self._read_record(folder.name)
            if record is not None:
                yield folder.name, record

    def _read_record(self, name: str) -> _Record | None:
        if "/" in name or name.startswith("."):
            return None
        try:
            return _RECORD().validate_json((self._folder / name / "instance.json").read_bytes())
        except (OSError, ValueError):
            return None

    def _write_record(self, name: str, record: _Record) -> None:
        path = self._folder / name / "instance.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(record)), encoding="utf-8")
        fresh.replace(path)


def _agent_process(record: _Record) -> Process:
    return Process(record.pid or 0, 0, record.started_ticks, "")


def _send_signal(process: Process, number: int) -> None:
    if process.pid and is_alive(process):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def _reap_child(pid: int | None) -> None:
    """Reap a child of ours that has ended."""
    if pid is not None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
