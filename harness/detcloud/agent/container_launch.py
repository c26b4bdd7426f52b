"""One launch of a container: a thread that brings the engine to what the launch's records ask for.

It takes one look and one step at a time. The records are files and the container's name follows
from their folder, so the thread of a later agent goes on where an earlier one ended, and what was
asked for twice happens once. An engine that does not answer changes nothing; it is asked again.

    AGENT/container.json    what to create, written before anything is asked of the engine
    AGENT/kill.json         the grace, once the end is wanted
    AGENT/container/        what the container sees of it: the supervisor's folder
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.agent.container import LABEL, RECORDS, strayed_mount
from detcloud.agent.container_exit import Ended, away_status, ended_status, refused_status
from detcloud.agent.directory import read_object, read_untrusted, write_atomically
from detcloud.agent.docker_api import EngineAway, EngineRefused
from detcloud.agent.runtime import Phase, Status
from detcloud.agent.startup_hook import PASSED

if TYPE_CHECKING:
    from collections.abc import Callable

    from detcloud.agent.docker_api import Engine

ASKED = "container.json"
KILL = "kill.json"
STEADY_SECONDS = 1.0
CLOSE_SECONDS = 0.05
# How long it is looked at closely after something was asked for.
CLOSELY_SECONDS = 3.0
TROUBLE_SECONDS = 2.0
START_SECONDS_MAX = 300.0
# The supervisor kills in time; where it does not, the engine does.
KILL_MARGIN_SECONDS = 5.0


class ContainerLaunch:
    """The launch whose records lie in `directory`; `begin` starts the thread."""

    def __init__(self, engine: Engine, directory: Path, say: Callable[[str], None]) -> None:
        self.name = container_name(directory)
        self._engine = engine
        self._directory = directory
        self._records = directory / RECORDS
        self._say = say
        self._asked = read_object(directory / ASKED) or {}
        self._status = Status(Phase.STARTING)
        self._up = False
        self._leaving = False
        self._exit_seen = False
        self._grace_seconds: float | None = None
        self._kill_at = 0.0
        self._began_at = self._closely_from = time.monotonic()
        self._trouble = ""
        self._closed = False
        self._wake = threading.Event()

    def begin(self) -> None:
        """Look after the container until it has ended or the launch is closed."""
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def poll(self) -> Status:
        """The present status, from what the thread has seen. Never asks the engine."""
        if self._status.phase is Phase.ENDED or not self._up:
            return self._status
        if not self._exit_seen and os.path.lexists(self._records / "exit.json"):
            self._exit_seen = True
            self.wake()
        if self._status.phase is Phase.STARTING and self._stage() == "trial":
            self._status = Status(Phase.RUNNING, "trial")
        return self._status

    def wake(self) -> None:
        """There is something new to look at."""
        self._closely_from = time.monotonic()
        self._wake.set()

    def close(self) -> None:
        """Let the thread end; the container goes on."""
        self._closed = True
        self._wake.set()

    def _run(self) -> None:
        while not self._closed and self._status.phase is not Phase.ENDED:
            try:
                self._turn()
                pause = self._pause()
                self._tell("")
            except (EngineAway, EngineRefused, OSError) as error:
                pause = TROUBLE_SECONDS
                self._tell(str(error))
                self._give_up(str(error))
            self._wake.wait(pause)
            self._wake.clear()

    def _turn(self) -> None:
        found = self._engine.inspect(self.name)
        if found is not None and _launch_of(found) != self._asked.get("launch"):
            # Of a launch whose directory is gone; the name is ours.
            self._engine.remove(self.name)
            found = None
        state = str(found["State"]["Status"]) if found is not None else "absent"
        kill = read_object(self._directory / KILL)
        begun = os.path.lexists(self._records / "begun")
        if state in ("running", "paused", "restarting"):
            self._up = True
            if kill is not None:
                self._pursue_kill(float(kill.get("grace_ms") or 0) / 1000)
        elif state in ("exited", "dead") or (state == "absent" and begun):
            self._ended(found or {}, begun=begun, killed=kill is not None)
        elif state != "removing" and kill is not None:
            self._over(Status(Phase.ENDED, killed=True))
        elif state == "absent":
            self._create()
        elif state == "created":
            self._start()

    def _create(self) -> None:
        try:
            self._engine.create(self.name, self._asked["body"])
        except EngineRefused as error:
            if error.status != 409:
                self._over(refused_status(error))
            # 409: it was made already. The next look tells by whom.
            return
        self._start()

    def _start(self) -> None:
        try:
            # What was checked was there before the image was pulled, and other trials write there.
            if strayed := strayed_mount(self._asked["body"]):
                text = f"mount: {strayed} is not what it was when it was checked; mount a folder "
                raise EngineRefused(400, text + "that no trial replaces, or start again")
            self._engine.start(self.name)
        except EngineRefused as error:
            self._over(refused_status(error))
            return
        self._up = True
        self._closely_from = time.monotonic()

    def _pursue_kill(self, grace_seconds: float) -> None:
        """SIGTERM to the supervisor, which ends the trial; past the grace the engine does."""
        now = time.monotonic()
        if self._grace_seconds is None or grace_seconds < self._grace_seconds:
            with contextlib.suppress(OSError):
                # Without it the supervisor gives no grace.
                write_atomically(
                    self._records / KILL, {"grace_ms": grace_seconds * 1000}, mode=0o444
                )
            self._engine.signal(self.name, signal.SIGTERM)
            self._grace_seconds = grace_seconds
            self._kill_at = now + grace_seconds + KILL_MARGIN_SECONDS
            self._closely_from = now
        elif now >= self._kill_at:
            self._engine.signal(self.name, signal.SIGKILL)

    def _ended(self, found: dict[str, Any], *, begun: bool, killed: bool) -> None:
        record = read_untrusted(self._records / "exit.json")
        state = found.get("State") or {}
        memory_bytes = int((self._asked["body"].get("HostConfig") or {}).get("Memory") or 0)
        printed = "" if begun or not found else self._engine.output(self.name)
        self._over(ended_status(Ended(state, record, begun, killed, memory_bytes), printed))

    def _over(self, status: Status) -> None:
        if status.cause and not status.stage:
            self._write_log(status.cause)
        self._status = status

    def _write_log(self, cause: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            descriptor = os.open(str(self._asked["log"]), flags)
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as log:
                log.write(f"[detcloud] {cause}\n")

    def _stage(self) -> str:
        """What runs: the last of the stages unless a hook comes before it."""
        if not self._asked.get("has_hook") or os.path.lexists(self._records / PASSED):
            return "trial" if os.path.lexists(self._records / "begun") else ""
        process = read_untrusted(self._records / "process.json") or {}
        return str(process.get("stage", ""))

    def _pause(self) -> float:
        close = time.monotonic() - self._closely_from < CLOSELY_SECONDS
        return CLOSE_SECONDS if close else STEADY_SECONDS

    def _tell(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            self._say(f"{self.name} could not be looked after, trying again: {trouble}")
        elif self._trouble and not trouble:
            self._say(f"{self.name} is looked after again")
        self._trouble = trouble

    def _give_up(self, trouble: str) -> None:
        """What could not even be started for minutes may start elsewhere."""
        begun = self._up or os.path.lexists(self._records / "begun")
        if not begun and time.monotonic() - self._began_at > START_SECONDS_MAX:
            self._over(away_status(trouble))


def container_name(directory: Path) -> str:
    """The same for the same records, and another for those of any other agent on the machine."""
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    return f"detcloud-{directory.parent.name}-{digest}"


def _launch_of(found: dict[str, Any]) -> object:
    return ((found.get("Config") or {}).get("Labels") or {}).get(f"{LABEL}launch")
