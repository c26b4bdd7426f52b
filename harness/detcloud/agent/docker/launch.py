"""The launch of a container: a thread that reconciles the engine with the launch's records.

Each round inspects the container and makes a single step. The records are files, and the folder of
the records determines the container's name. A later agent's thread therefore continues where an
earlier agent ended, and a repeated request has no further effect. While the engine does not answer,
nothing changes.

    AGENT/container.json    the container to create, written before the first request to the engine
    AGENT/kill.json         the grace, once a kill is requested
    AGENT/container/        the folder of the supervisor's records, which the container sees
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.agent.assignment.startup_hook import PASSED_FILE
from detcloud.agent.docker.container import LABEL, RECORDS, find_changed_mount
from detcloud.agent.docker.engine import EngineError, EngineUnavailable
from detcloud.agent.docker.exit_status import (
    EndedContainer,
    creation_refused_status,
    engine_unavailable_status,
    exit_status,
)
from detcloud.agent.runtime import Phase, Status, read_stop_deadline
from detcloud.shared.files import read_json_object, read_untrusted_json_object, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable

    from detcloud.agent.docker.engine import EngineClient

REQUEST_FILE = "container.json"
KILL_FILE = "kill.json"
STEADY_SECONDS = 1.0
CLOSE_SECONDS = 0.05
# The time after a request during which the container is polled every CLOSE_SECONDS.
CLOSELY_SECONDS = 3.0
# The states of a container. Only Podman has `stopping`, `stopped` and `initialized`.
RUNNING = ("running", "paused", "restarting", "stopping")
ENDED = ("exited", "dead", "stopped")


@dataclass(frozen=True, slots=True)
class LaunchTimes:
    """The patience of a launch with an engine or a container that does not respond, in seconds."""

    trouble: float = 2.0
    """The pause after a failed request to the engine."""
    start_max: float = 300.0
    """The time after which a launch that could not start its container ends."""
    kill_margin: float = 5.0
    """The time after a kill's grace at which the engine kills a container that still runs."""


class ContainerLaunch:
    """The launch with the records in `directory`. `start_watching` starts the thread.

    The constructor reads container.json, which must exist.
    """

    def __init__(
        self,
        engine: EngineClient,
        directory: Path,
        log_line: Callable[[str], None],
        times: LaunchTimes = LaunchTimes(),
    ) -> None:
        self.name = container_name(directory)
        self._engine = engine
        self._directory = directory
        self._records = directory / RECORDS
        self._log_line = log_line
        self._times = times
        self._request = read_json_object(directory / REQUEST_FILE) or {}
        self._status = Status(Phase.STARTING)
        self._is_up = False
        self._leaving = False
        self._exit_seen = False
        self._grace_seconds: float | None = None
        self._kill_at = 0.0
        self._began_at = self._polled_closely_from = time.monotonic()
        self._trouble = ""
        self._closed = False
        self._wake = threading.Event()

    def start_watching(self) -> None:
        """Start the thread, which creates, starts and watches the container.

        The thread ends with the container, or after `close`.
        """
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def poll(self) -> Status:
        """Return the status that the thread saw last, updated from the supervisor's records.

        Never send a request to the engine. Wake the thread when an exit record appears.
        """
        if self._status.phase is Phase.ENDED or not self._is_up:
            return self._status
        if not self._exit_seen and os.path.lexists(self._records / "exit.json"):
            self._exit_seen = True
            self.wake()
        if self._status.phase is Phase.STARTING and self._stage() == "trial":
            self._status = Status(Phase.RUNNING, "trial")
        if (deadline_ms := read_stop_deadline(self._records)) is not None:
            return replace(self._status, stop_deadline_ms=deadline_ms)
        return self._status

    def wake(self) -> None:
        """Wake the thread to check the container immediately."""
        self._polled_closely_from = time.monotonic()
        self._wake.set()

    def close(self) -> None:
        """Stop the thread. The container continues."""
        self._closed = True
        self._wake.set()

    def _run(self) -> None:
        while not self._closed and self._status.phase is not Phase.ENDED:
            try:
                self._reconcile()
                pause = self._pause()
                self._report_trouble("")
            except (EngineUnavailable, EngineError, OSError) as error:
                pause = self._times.trouble
                self._report_trouble(str(error))
                self._give_up_if_late(str(error))
            self._wake.wait(pause)
            self._wake.clear()

    def _reconcile(self) -> None:
        container = self._engine.inspect_container(self.name)
        if container is not None and _launch_of(container) != self._request.get("launch"):
            # A container of an earlier launch, with a deleted directory, has the same name.
            self._engine.remove_container(self.name)
            container = None
        state = str(container["State"]["Status"]) if container is not None else "absent"
        kill = read_json_object(self._directory / KILL_FILE)
        begun = os.path.lexists(self._records / "begun")
        if state in RUNNING:
            self._is_up = True
            if kill is not None:
                self._pursue_kill(
                    float(kill.get("grace_ms") or 0) / 1000, saves=bool(kill.get("saves"))
                )
        elif state in ENDED or (state == "absent" and begun):
            self._record_end(container or {}, begun=begun, killed=kill is not None)
        elif state != "removing" and kill is not None:
            self._set_end(Status(Phase.ENDED, killed=True))
        elif state == "absent":
            self._create()
        elif state in ("created", "initialized"):
            self._start()

    def _create(self) -> None:
        try:
            self._engine.create_container(self.name, self._request["body"])
        except EngineError as error:
            if error.status != 409:
                self._set_end(creation_refused_status(error))
            # 409: the container exists already, and the next round inspects its launch.
            return
        self._start()

    def _start(self) -> None:
        try:
            # The mounts were checked before the image's pull; other trials may have changed them.
            if strayed := find_changed_mount(self._request["body"]):
                text = f"mount: {strayed} is not what it was when it was checked; mount a folder "
                raise EngineError(400, text + "that no trial replaces, or start again")
            self._engine.start_container(self.name)
        except EngineError as error:
            self._set_end(creation_refused_status(error))
            return
        self._is_up = True
        self._polled_closely_from = time.monotonic()

    def _pursue_kill(self, grace_seconds: float, *, saves: bool) -> None:
        """Send SIGTERM to the supervisor, which ends the trial within the grace.

        First write the request to the supervisor's folder. Repeat this only for a shorter grace.
        When the kill margin after the grace has passed, send SIGKILL to the container.
        """
        now = time.monotonic()
        if self._grace_seconds is None or grace_seconds < self._grace_seconds:
            with contextlib.suppress(OSError):
                # Without the file, the supervisor uses its default grace.
                request = {"grace_ms": grace_seconds * 1000, "saves": saves}
                write_atomically(self._records / KILL_FILE, request, mode=0o444)
            self._engine.signal_container(self.name, signal.SIGTERM)
            self._grace_seconds = grace_seconds
            self._kill_at = now + grace_seconds + self._times.kill_margin
            self._polled_closely_from = now
        elif now >= self._kill_at:
            self._engine.signal_container(self.name, signal.SIGKILL)

    def _record_end(self, container: dict[str, Any], *, begun: bool, killed: bool) -> None:
        record = read_untrusted_json_object(self._records / "exit.json")
        state = container.get("State") or {}
        memory_bytes = int((self._request["body"].get("HostConfig") or {}).get("Memory") or 0)
        printed = "" if begun or not container else self._engine.container_output(self.name)
        self._set_end(
            exit_status(EndedContainer(state, record, begun, killed, memory_bytes), printed)
        )

    def _set_end(self, status: Status) -> None:
        if status.cause and not status.stage:
            self._write_log(status.cause)
        self._status = status

    def _write_log(self, cause: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            descriptor = os.open(str(self._request["log"]), flags)
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as log:
                log.write(f"[detcloud] {cause}\n")

    def _stage(self) -> str:
        """Return the stage that runs, from the supervisor's records, for example `trial`.

        Return "" if nothing has begun, or if no stage is recorded.
        """
        if not self._request.get("has_hook") or os.path.lexists(self._records / PASSED_FILE):
            return "trial" if os.path.lexists(self._records / "begun") else ""
        process = read_untrusted_json_object(self._records / "process.json") or {}
        return str(process.get("stage", ""))

    def _pause(self) -> float:
        close = time.monotonic() - self._polled_closely_from < CLOSELY_SECONDS
        return CLOSE_SECONDS if close else STEADY_SECONDS

    def _report_trouble(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            self._log_line(f"{self.name} could not be monitored, trying again: {trouble}")
        elif self._trouble and not trouble:
            self._log_line(f"{self.name} is monitored again")
        self._trouble = trouble

    def _give_up_if_late(self, trouble: str) -> None:
        """End the launch if the container could not be started in time.

        The trial may then start on another machine. `trouble` becomes the cause of the end.
        """
        begun = self._is_up or os.path.lexists(self._records / "begun")
        if not begun and time.monotonic() - self._began_at > self._times.start_max:
            self._set_end(engine_unavailable_status(trouble))


def container_name(directory: Path) -> str:
    """Return the name of a launch's container, unique among all agents of the machine.

    `directory` is the folder of the launch's records.
    """
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    return f"detcloud-{directory.parent.name}-{digest}"


def _launch_of(container: dict[str, Any]) -> object:
    return ((container.get("Config") or {}).get("Labels") or {}).get(f"{LABEL}launch")
