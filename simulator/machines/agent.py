"""A simulated agent, which follows docs/agent-protocol.md like the real agent.

- Reports of trials are on the machine's disk. The agent itself stores no offsets.
- The agent makes a single call at a time, and ignores answers after its timeout.
- If a newer session of the agent exists, the agent kills all its processes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from control_plane.actors.step import CommandRefused
from control_plane.agents.draining import drain_agent
from control_plane.agents.fault_reports import FaultReport, report_faults
from control_plane.agents.service import SyncResponse
from control_plane.simulation.virtual_clock import VirtualClock
from detcloud.shared.dead_tick import TickWatch
from simulator.faults.fault_state import FaultState
from simulator.hosts.hosts import Host
from simulator.hosts.network import Network
from simulator.machines.machine_agent import MachineAgent
from simulator.machines.process import TrialProcess
from simulator.machines.process_environment import EndNotice, ProcessEnvironment
from simulator.machines.report_stream import Line
from simulator.machines.training import Training

PATIENT_MS = 1_500
STEADY_MS = (10_000, 15_000)
BUSY_MS = 1_000
BACKOFF_MS_FIRST, BACKOFF_MS_MAX = 200, 15_000
LINES_PER_CALL = 40
START_MS = (1_000, 20_000)


@dataclass(frozen=True)
class AgentEnvironment:
    """The parts of the simulation that all agents share."""

    clock: VirtualClock
    faults: FaultState
    network: Network
    process_environment: ProcessEnvironment
    training_for: Callable[[Mapping[str, Any]], Training]
    """Returns the training for a process's specification. Equal trials get equal trainings."""
    on_process_start: Callable[["SimulatedAgent", Mapping[str, Any]], None]
    """Called with an agent and a specification before the agent starts the process."""


class SimulatedAgent(MachineAgent[TrialProcess]):
    """An agent on a simulated machine, with the processes of trials on this machine.

    Attributes:
        is_cut_off: whether no call of the agent reaches the API.
        is_down: whether the machine reboots, and nothing runs on it.
        is_gone: whether the machine has ended for good.
        synced_ms: the virtual time of the last answer.
        tick_watch: the watch that detects a dead tick, after which the machine shuts down. None for
            an agent of an older release, and on a machine without a cloud.
        wants_end: whether the machine shuts down because the tick is dead.
    """

    def __init__(self, environment: AgentEnvironment, name: str, pool: str, slots: int) -> None:
        super().__init__(name, pool, slots)
        self.is_cut_off = False
        self.is_gone = False
        self.is_down = False
        self.synced_ms = environment.clock.now_ms
        self.tick_watch: TickWatch | None = None
        self.wants_end = False
        self._environment = environment
        self._run_generation = 0
        self._is_calling = False
        self._is_fencing = False
        self._failures = 0
        self._due_ms = 0
        self._wakes = 0
        self._notice: EndNotice | None = None
        # The number of present faults of each slot. None: of the whole machine.
        self._faults: dict[int | None, int] = {}
        self._reported_faults: tuple[tuple[int | None, str], ...] | None = None
        self._booted_ms = environment.clock.now_ms
        self._enrolled_ms: int | None = None

    def start(self) -> None:
        """Start or restart the agent's process, which keeps the processes and reports on the disk.

        The agent enrols again and ignores answers to earlier calls. Do nothing during a reboot.
        """
        if self.is_down:
            return
        self._run_generation += 1
        self.forget_session()
        if self.tick_watch is not None:
            self.watch_tick()
        self._is_calling, self._is_fencing, self._failures, self._wakes = False, False, 0, 0
        self._wake(0)

    def watch_tick(self) -> None:
        """Let the machine shut down if the tick is dead, as the agents of cloud machines do."""
        clock = self._environment.clock
        self.tick_watch = TickWatch(lambda: clock.now_ms / 1000)

    def reboot(self, minutes: int) -> None:
        """Reboot the machine, which takes this number of minutes.

        All processes end at once. After the reboot, the agent starts and reports them as lost.
        """
        self._run_generation += 1
        self._wakes = 1
        self.is_down = True
        for process in list(self.processes.values()):
            process.vanish()

        def boot() -> None:
            self.is_down = False
            for process in self.processes.values():
                if not process.has_exit:
                    process.fail("lost", "the machine was started again")
            self.start()

        self._call_later(minutes * 60_000, boot)

    def vanish(self) -> None:
        """End the machine and all of the processes for good, without any report."""
        self.is_gone = True
        self._run_generation += 1
        for process in self.processes.values():
            process.vanish()

    def give_notice(self, notice: EndNotice) -> None:
        """Announce the machine's end to all present and future processes of the machine."""
        self._notice = notice
        for process in list(self.processes.values()):
            process.give_notice(notice)

    def break_device(self, slot: int | None, duration_ms: int) -> None:
        """Break a slot for a while, or the whole machine without a slot.

        The processes on a broken slot end as lost. The processes on a machine with a full disk go
        on. The agent reports the fault and its end.
        """
        self._faults[slot] = self._faults.get(slot, 0) + 1
        if slot is not None:
            for process in list(self.processes.values()):
                if slot in process.slots and not process.has_ended:
                    process.fail("lost", "the machine failed: the device is broken")
        self._wake(0)

        def repair() -> None:
            self._faults[slot] -= 1
            if not self._faults[slot]:
                del self._faults[slot]
            self._wake(0)

        clock = self._environment.clock
        clock.call_at(clock.now_ms + duration_ms, repair)

    def break_network(self, duration_ms: int) -> None:
        """Let the machine fail the checks of gangs for a while. Nothing else changes."""
        bad = self._environment.process_environment.bad_networks
        bad[self.name] = bad.get(self.name, 0) + 1

        def repair() -> None:
            bad[self.name] -= 1

        clock = self._environment.clock
        clock.call_at(clock.now_ms + duration_ms, repair)

    @property
    def present_faults(self) -> tuple[tuple[int | None, str], ...]:
        """The faults that the agent reports for the machine."""
        return tuple(
            (slot, "the disk is full" if slot is None else "the device is broken")
            for slot in sorted(self._faults, key=lambda slot: -1 if slot is None else slot)
        )

    @property
    def has_notice(self) -> bool:
        """Whether the machine's end has been announced."""
        return self._notice is not None

    def answer_held_call(self) -> None:
        """Let the agent make the next call within 50 ms, as the end of a long poll does.

        Do nothing if an earlier call is scheduled or the machine has ended.
        """
        self._wake(self._environment.faults.random.randint(5, 50))

    def used_slots(self) -> int:
        """Return the number of slots that running processes use. A shared slot counts once."""
        running = (process for process in self.processes.values() if not process.has_ended)
        return len({slot for process in running for slot in process.slots})

    def _wake_for_report(self, is_urgent: bool) -> None:
        """Schedule a call for a new report: at once if urgent, else within PATIENT_MS."""
        self._wake(0 if is_urgent else PATIENT_MS)

    def _wake(self, delay_ms: int) -> None:
        """Schedule the next call after `delay_ms`, unless an earlier call is scheduled.

        Do nothing after the end of the machine.
        """
        due_ms = self._environment.clock.now_ms + delay_ms
        if self.is_gone or (self._wakes and self._due_ms <= due_ms):
            return
        self._due_ms = due_ms
        self._wakes += 1
        self._call_later(delay_ms, lambda: self._wake_at(due_ms))

    def _wake_at(self, due_ms: int) -> None:
        """Make a call, unless the schedule has changed since this time was chosen."""
        if self._due_ms == due_ms and self._wakes:
            self._wakes = 0
            self._make_call()

    def _call_later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Call `action` after `delay_ms`, unless the agent's process has ended by then."""
        generation = self._run_generation

        def run_unless_gone() -> None:
            if self._run_generation == generation and not self.is_gone:
                action()

        clock = self._environment.clock
        clock.call_at(clock.now_ms + delay_ms, run_unless_gone)

    def _make_call(self) -> None:
        """Enrol if the agent has no session, else sync. Do nothing during another call.

        If the tick is dead and the machine has no work, announce the machine's shutdown instead.
        """
        if self._is_calling or self._is_fencing:
            return
        self._is_calling = True
        generation = self._run_generation
        if self.epoch is None:
            self._call(
                generation, lambda host: self.request_session(host.agents), self._handle_enrolment
            )
        elif self._should_end:
            self._call(
                generation,
                lambda host: drain_agent(host.engine, self.name, by="notice"),
                self._handle_announcement,
            )
        else:
            request = self.sync_request(self.epoch, LINES_PER_CALL)
            epoch, faults = self.epoch, self.present_faults
            is_changed = faults != self._reported_faults

            def sync(host: Host) -> SyncResponse:
                if is_changed:
                    report_faults(host.engine, self.name, epoch, FaultReport(faults))
                return host.agents.sync(self.name, request)

            def handle(answer: SyncResponse) -> None:
                self._reported_faults = faults
                self._handle_answer(answer)

            self._call(generation, sync, handle)

    def _call(
        self, generation: int, operation: Callable[[Host], Any], on_answer: Callable[[Any], None]
    ) -> None:
        """Make a call, and ignore the outcome if the agent's process has ended by then."""

        def handle_answer(answer: Any) -> None:
            if generation == self._run_generation:
                self._is_calling, self._failures = False, 0
                self.synced_ms = self._environment.clock.now_ms
                on_answer(answer)

        def handle_failure(refused: CommandRefused | None) -> None:
            if generation == self._run_generation:
                self._is_calling = False
                self._handle_failure(refused)

        self._environment.network.call(
            operation,
            handle_answer,
            handle_failure,
            is_cut_off=lambda: self.is_cut_off or self.is_gone,
        )

    @property
    def _is_tick_dead(self) -> bool:
        return self.tick_watch is not None and self.tick_watch.is_dead

    @property
    def _should_end(self) -> bool:
        """Whether the machine must announce a shutdown: the tick is dead, and no work is left.

        False after the announcement.
        """
        has_work = self.used_slots() > 0 or self.has_unacknowledged_reports
        return self._is_tick_dead and not has_work and not self.wants_end

    def _handle_announcement(self, answer: None) -> None:
        self.wants_end = True
        self._wake(BUSY_MS)

    def _handle_enrolment(self, epoch: int) -> None:
        self.begin_session(epoch)
        self._reported_faults = None
        if self._enrolled_ms is None:
            self._enrolled_ms = self._environment.clock.now_ms
        self._wake(0)

    def _handle_failure(self, refused: CommandRefused | None) -> None:
        """Schedule the next call with a random back-off after a failed call.

        After the refusals "conflict" and "not_found", the agent enrols again. After "conflict", it
        also kills its processes.

        Args:
            refused: the refusal, or None without an answer.
        """
        self._failures += 1
        delay_ms_max = min(BACKOFF_MS_MAX, BACKOFF_MS_FIRST << min(self._failures, 10))
        delay_ms = self._environment.faults.random.randint(BACKOFF_MS_FIRST, delay_ms_max)
        if refused is not None and refused.code == "conflict":
            self.epoch = None
            self._kill_fenced_trials(delay_ms)
            return
        if refused is not None and refused.code == "not_found":
            self.epoch = None
        self._wake(delay_ms)

    def _kill_fenced_trials(self, delay_ms: int) -> None:
        """Kill all processes, then schedule the next call after `delay_ms`.

        Another agent may already run these trials, so no call is made before the processes end.
        """
        self._is_fencing = True
        for process in list(self.processes.values()):
            process.fence()

        def end_fencing() -> None:
            self._is_fencing = False
            self._wake(delay_ms)

        self._call_later(1, end_fencing)

    def _handle_answer(self, answer: SyncResponse) -> None:
        """Apply the desired state of an answer, and schedule the next call.

        The delay is 0 if reports are left, short if processes changed, and long otherwise. The
        assignments that an agent refuses because of a dead tick are no changes.
        """
        is_news = self.apply_answer(answer) and not self._is_tick_dead
        if self.tick_watch is not None:
            self.tick_watch.record_age(answer.tick_age_ms)
        has_more = self.has_unacknowledged_reports
        random = self._environment.faults.random
        steady_ms = random.randint(*STEADY_MS)
        self._wake(0 if has_more else BUSY_MS if is_news else steady_ms)

    def _start_process(self, name: str, entry: Mapping[str, Any]) -> None:
        """Add the process of an allocation, apply the entry's directives, and schedule the start.

        Call `on_process_start` before, and report the states of the container. If the machine has
        got a notice of its end, give the process this notice.

        By the fault `failed_starts`, the process ends at once with a report of a failed start. On a
        broken slot, the process ends as lost.

        While the tick is dead, do nothing: the cluster repeats the assignment.
        """
        if self._is_tick_dead or self.wants_end:
            return
        environment = self._environment
        spec = entry["spec"]
        environment.on_process_start(self, spec)
        process = TrialProcess(
            name,
            environment.process_environment,
            self._wake_for_report,
            slots=tuple(spec["slots"]),
            rank=spec["node_rank"],
            training=environment.training_for(spec),
            spec=spec,
        )
        self._add_process(process)
        if environment.faults.draw_fault("failed_starts", environment.faults.rates.failed_starts):
            process.fail("start_failed", "the disk is full")
            return
        if any(slot in self._faults for slot in process.slots):
            process.fail("lost", "the machine failed: the device is broken")
            return
        process.apply_directives(entry["directives"])
        for state in ("PULLING", "STARTING"):
            process.report(_container_line(state))
        process.report({**_container_line("RUNNING"), "durations_ms": self._durations_ms()})
        process.start(environment.faults.random.randint(*START_MS))
        if self._notice is not None:
            process.give_notice(self._notice)

    def _durations_ms(self) -> dict[str, int]:
        """Return the ages of the machine and of the agent, and the durations of a start."""
        now_ms = self._environment.clock.now_ms
        enrolled_ms = now_ms if self._enrolled_ms is None else self._enrolled_ms
        ages = {"machine": now_ms - self._booted_ms, "agent": now_ms - enrolled_ms}
        return {**ages, "code": 0, "packages": 0}

    def _make_unstarted_process(self, name: str) -> TrialProcess:
        return TrialProcess(name, self._environment.process_environment, self._wake_for_report)


def _container_line(state: str) -> Line:
    return {"kind": "container", "state": state}
