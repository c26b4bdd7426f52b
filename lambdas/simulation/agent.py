"""An agent without a machine of its own: it follows docs/agent-protocol.md as the real one does.

What its trials reported lies on the machine's disk; the agent keeps no numbers. It makes one call
at a time, drops answers that come after it gave up, and kills everything when another session
has replaced its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from control_plane.actors.step import Refused
from control_plane.agents.reports import Report
from control_plane.agents.service import SyncAnswer, SyncRequest
from control_plane.simulation.clock import Clock
from lambdas.simulation.disturbed import Weather
from lambdas.simulation.hosts import Host
from lambdas.simulation.network import Network
from lambdas.simulation.process import AGENT, Desk, Line, Notice, Process
from lambdas.simulation.training import Training

GRACE_MS = 15_000
PATIENT_MS = 1_500
STEADY_MS = (10_000, 15_000)
BUSY_MS = 1_000
BACKOFF_MS_FIRST, BACKOFF_MS_MAX = 200, 15_000
LINES_PER_CALL = 40
START_MS = (1_000, 20_000)


class Trainings(Protocol):
    """What processes train, by their specifications."""

    def training(self, spec: Mapping[str, Any]) -> Training:
        """The same for the same trial, wherever it runs."""


@dataclass(frozen=True)
class Surroundings:
    """What every agent lives in. `begins` hears of each process that one is told to run."""

    clock: Clock
    weather: Weather
    network: Network
    desk: Desk
    trainings: Trainings
    begins: Callable[["Agent", Mapping[str, Any]], None]


class Agent:
    """An agent's process and its trials'. While `cut_off` no call gets through, while `down`
    nothing runs on the machine.
    """

    def __init__(self, world: Surroundings, name: str, pool: str, slots: int) -> None:
        self.name = name
        self.pool = pool
        self.slots = slots
        self.runs: dict[str, Process] = {}
        self.cut_off = False
        self.gone = False
        self.down = False
        self.synced_ms = world.clock.now_ms
        self._world = world
        self._epoch: int | None = None
        self._acked: Mapping[str, Mapping[str, int]] | None = None
        self._calls = 0
        self._life = 0
        self._calling = False
        self._fencing = False
        self._failures = 0
        self._due_ms = 0
        self._wakes = 0
        self._notice: Notice | None = None

    def start(self) -> None:
        """The agent's process begins, with whatever lies on the disk."""
        if self.down:
            return
        self._life += 1
        self._epoch, self._acked, self._calls = None, None, 0
        self._calling, self._fencing, self._failures, self._wakes = False, False, 0, 0
        self._wake(0)

    def reboot(self, minutes: int) -> None:
        """The machine starts again: processes are gone, and their agent says so afterwards."""
        self._life += 1
        self._wakes = 1
        self.down = True
        for run in list(self.runs.values()):
            run.vanish()

        def up() -> None:
            self.down = False
            for run in self.runs.values():
                if not run.has_exit:
                    run.fail("lost", "the machine was started again")
            self.start()

        self._later(minutes * 60_000, up)

    def vanish(self) -> None:
        """The machine is gone for good."""
        self.gone = True
        self._life += 1
        for run in self.runs.values():
            run.vanish()

    def notify(self, notice: Notice) -> None:
        """The machine learns when it ends."""
        self._notice = notice
        for run in list(self.runs.values()):
            run.notify(notice)

    @property
    def noticed(self) -> bool:
        """Whether the machine's end has been announced."""
        return self._notice is not None

    def stir(self) -> None:
        """A call that is held somewhere is answered: something changed."""
        self._wake(self._world.weather.random.randint(5, 50))

    def held_slots(self) -> int:
        """Slots that a process uses, whatever the cluster knows of it."""
        return sum(len(run.slots) for run in self.runs.values() if not run.ended)

    def _told(self, urgent: bool) -> None:
        self._wake(0 if urgent else PATIENT_MS)

    def _wake(self, delay_ms: int) -> None:
        """Makes the next call no later than that."""
        due_ms = self._world.clock.now_ms + delay_ms
        if self.gone or (self._wakes and self._due_ms <= due_ms):
            return
        self._due_ms = due_ms
        self._wakes += 1
        self._later(delay_ms, lambda: self._woken(due_ms))

    def _woken(self, due_ms: int) -> None:
        if self._due_ms == due_ms and self._wakes:
            self._wakes = 0
            self._turn()

    def _later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Does something unless the process has ended by then."""
        life = self._life

        def due() -> None:
            if self._life == life and not self.gone:
                action()

        clock = self._world.clock
        clock.at(clock.now_ms + delay_ms, due)

    def _turn(self) -> None:
        if self._calling or self._fencing:
            return
        self._calling = True
        life = self._life
        if self._epoch is None:
            self._call(life, self._enrol, self._enrolled)
        else:
            request = self._packed(self._epoch)
            self._call(life, lambda host: host.agents.sync(self.name, request), self._answered)

    def _call(
        self, life: int, operation: Callable[[Host], Any], answered: Callable[[Any], None]
    ) -> None:
        def heard(answer: Any) -> None:
            if life == self._life:
                self._calling, self._failures = False, 0
                self.synced_ms = self._world.clock.now_ms
                answered(answer)

        def failed(refused: Refused | None) -> None:
            if life == self._life:
                self._calling = False
                self._failed(refused)

        self._world.network.call(
            operation, heard, failed, cut_off=lambda: self.cut_off or self.gone
        )

    def _enrol(self, host: Host) -> int:
        slots = tuple((n, "cpu", f"{self.name}-{n}", "cpu") for n in range(self.slots))
        return host.agents.enrol(self.name, self.pool, slots, "1")

    def _enrolled(self, epoch: int) -> None:
        self._epoch, self._acked = epoch, None
        self._wake(0)

    def _failed(self, refused: Refused | None) -> None:
        self._failures += 1
        most = min(BACKOFF_MS_MAX, BACKOFF_MS_FIRST << min(self._failures, 10))
        delay_ms = self._world.weather.random.randint(BACKOFF_MS_FIRST, most)
        if refused is not None and refused.code == "conflict":
            self._epoch = None
            self._stop_fenced(delay_ms)
            return
        if refused is not None and refused.code == "not_found":
            self._epoch = None
        self._wake(delay_ms)

    def _stop_fenced(self, delay_ms: int) -> None:
        """Its trials may run elsewhere by now: they end before anything else."""
        self._fencing = True
        for run in list(self.runs.values()):
            run.fence()

        def ended() -> None:
            self._fencing = False
            self._wake(delay_ms)

        self._later(1, ended)

    def _packed(self, epoch: int) -> SyncRequest:
        self._calls += 1
        reports: list[Report] = []
        if self._acked is not None:
            acked = self._acked
            runs = sorted(self.runs.values(), key=lambda run: not run.ended)
            for run in runs:
                reports += _unacknowledged(run, acked.get(run.allocation, {}))
        known = tuple(self.runs)
        return SyncRequest(epoch, known, tuple(reports[:LINES_PER_CALL]), call=self._calls)

    def _answered(self, answer: SyncAnswer) -> None:
        self._acked = answer.acked
        is_news = False
        for entry in answer.desired:
            is_news = is_news or "spec" in entry or entry["state"] != "run"
            self._apply(entry)
        pending = any(
            _unacknowledged(run, self._acked.get(run.allocation, {})) for run in self.runs.values()
        )
        random = self._world.weather.random
        steady_ms = random.randint(*STEADY_MS)
        self._wake(0 if pending else BUSY_MS if is_news else steady_ms)

    def _apply(self, entry: Mapping[str, Any]) -> None:
        name = entry["allocation"]
        run = self.runs.get(name)
        match entry["state"]:
            case "wait":
                return
            case "run" if run is not None:
                run.direct(entry["directives"])
            case "run":
                self._create(name, entry)
            case "kill":
                if run is None:
                    run = self._added(Process(name, self._world.desk, self._told))
                    run.fail("killed", "killed before it was started here")
                run.kill(min(GRACE_MS, entry["grace_ms"]))
            case "forget" if run is not None and run.ended:
                del self.runs[name]
            case "forget" if run is not None:
                run.kill(0)

    def _create(self, name: str, entry: Mapping[str, Any]) -> None:
        world = self._world
        if "spec" not in entry:
            run = self._added(Process(name, world.desk, self._told))
            run.fail("start_failed", "the cluster's assignment was refused: it has no spec")
            return
        spec = entry["spec"]
        world.begins(self, spec)
        run = Process(
            name,
            world.desk,
            self._told,
            slots=tuple(spec["slots"]),
            rank=spec["node_rank"],
            training=world.trainings.training(spec),
            spec=spec,
        )
        self._added(run)
        if world.weather.strikes("failed_starts", world.weather.chances.failed_starts):
            run.fail("start_failed", "the disk is full")
            return
        run.direct(entry["directives"])
        for state in ("PULLING", "STARTING", "RUNNING"):
            run.report(_container(state))
        run.start(world.weather.random.randint(*START_MS))
        if self._notice is not None:
            run.notify(self._notice)

    def _added(self, run: Process) -> Process:
        self.runs[run.allocation] = run
        return run


def _container(state: str) -> Line:
    return {"kind": "container", "state": state}


def _unacknowledged(run: Process, acked: Mapping[str, int]) -> list[Report]:
    trial_id, epoch = map(int, run.allocation.split("."))
    # The exit comes after everything that the trial said.
    lines = sorted(run.lines, key=lambda line: line[0] == AGENT and line[2]["kind"] == "exited")
    return [
        Report(trial_id, epoch, writer, offset, line)
        for writer, offset, line in lines
        if offset > acked.get(writer, 0)
    ]
