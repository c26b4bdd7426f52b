"""The node's allocations, from creation or adoption until the cluster orders to forget them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from detcloud.agent.allocation.allocation import Allocation
from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.allocation.limits import GRACE_MS
from detcloud.agent.allocation.start_times import CODE, PACKAGES, StartTimes
from detcloud.agent.assignment.agent_user import AgentUserUnavailable, set_agent_user
from detcloud.agent.assignment.assignment import Assignment
from detcloud.agent.assignment.environment import configured_variables
from detcloud.agent.assignment.model_code import CodeReference
from detcloud.agent.assignment.rendezvous_port import PortTaken, replace_taken_port
from detcloud.agent.assignment.slot_sharing import slot_sharers
from detcloud.agent.assignment.startup_hook import clean_hook
from detcloud.agent.cache_limits import CacheLimits, prune_caches
from detcloud.agent.node_layers import NodeLayers
from detcloud.agent.package_cache import OWNERS, held_experiments, remove_experiments
from detcloud.agent.runtime import LOG_BYTES_MAX
from detcloud.agent.slots import threads_per_slot
from detcloud.shared.files import delete_tree, read_json_object, write_atomically
from detcloud.shared.notices import Notice

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from detcloud.agent.assignment.model_code import CodeCache
    from detcloud.agent.health.machine_health import MachineHealth
    from detcloud.agent.people.people_watch import OccupancyWatch
    from detcloud.agent.runtime import ContainerRuntime
    from detcloud.agent.slots import Slot
    from detcloud.agent.trial_grants import TrialGrants

# The cluster accepts at most this number of experiments in a call.
CACHED_MAX = 100
PRUNE_SECONDS = 600.0


class Node:
    """The node's allocations, each with a directory below WORK/allocations.

    The session's thread and the watching thread share the object. `stopping` prevents new trials.
    `refuses_new` delays new trials until the flag is cleared; the cluster keeps them assigned.
    `wake_event` is set when an allocation was added or a trial was started.
    """

    def __init__(
        self,
        work: Path,
        slots: list[Slot],
        runtime: ContainerRuntime,
        code: CodeCache,
        log_line: Callable[[str], None],
        *,
        log_bytes_max: int = LOG_BYTES_MAX,
        grants: TrialGrants | None = None,
        cache_limits: CacheLimits | None = None,
    ) -> None:
        self._allocations_path = work / "allocations"
        self._trash = work / "trash"
        self._work = work
        self._environments = work / "environments"
        self._cache_limits = cache_limits or CacheLimits()
        self._prune_at = 0.0
        self._cluster_path = work / "cluster.json"
        self._slots = {slot.id: slot for slot in slots}
        self._threads = threads_per_slot(slots)
        self._log_bytes_max = log_bytes_max
        self._grants = grants
        self._layers = NodeLayers(work, runtime, grants.archives, log_line) if grants else None
        self._runtime = runtime
        self._code = code
        self._log_line = log_line
        self._allocations: dict[str, Allocation] = {}
        self._notice: Notice | None = None
        self._enrolled_at: float | None = None
        self.stopping = False
        self.refuses_new = False
        # The examination of failed trials. None: no failure is the machine's.
        self.health: MachineHealth | None = None
        # The watch over the use of the machine by people. None without options for people.
        self.people: OccupancyWatch | None = None
        self.wake_event = threading.Event()

    def adopt(self) -> None:
        """Take over the allocations of an earlier agent. Called once, before all other methods.

        Create the folders of the node if needed. Delete discarded and incomplete allocations and
        unfinished transfers of layers. Log and skip a directory that cannot be read. Allocations
        that run although their records contain an end become active again.
        """
        for path in (self._allocations_path, self._trash):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._layers is not None:
            self._layers.clean()
        for discarded in self._trash.iterdir():
            self._delete(discarded)
        for path in sorted(self._allocations_path.iterdir()):
            if path.is_symlink() or not (path / "agent").is_dir():
                self._delete(path)
                continue
            try:
                directory = self._directory(path.name)
                directory.restore_owner()
                adopted = Allocation.adopt(directory, self._runtime, self._log_bytes_max)
                adopted.examine = self._examine
                self._allocations[path.name] = adopted
            except (OSError, ValueError) as error:
                # The cluster gets no reports of this allocation; the other allocations continue.
                self._log_line(f"{path} could not be taken over: {error}")
        active = [x.directory.agent for x in self._allocations.values() if x.is_active]
        self._runtime.adopt(active)
        for name, allocation in self._allocations.items():
            if allocation.verify_end():
                self._log_line(f"{name} is running, although its records say that it has ended")

    def belongs_to(self, incarnation: str) -> bool:
        """Whether this node's allocations may belong to this incarnation of the cluster's state.

        True if the recorded incarnation is equal, or if either is unknown ("").
        """
        noted = self._noted_incarnation()
        return noted in ("", incarnation) or not incarnation

    def join(self, incarnation: str) -> None:
        """Record the incarnation of the cluster's state; "" changes nothing.

        If the allocations belong to another incarnation, first forget all ended allocations and
        delete the packages of all experiments. Raise OSError if an allocation still runs, because
        the cluster would reuse its name; the trial is killed then. Also raise OSError if a file
        cannot be written.
        """
        if not self.belongs_to(incarnation):
            for name in self.allocation_ids():
                self._forget_allocation(name)
            if left := self.allocation_ids():
                raise OSError(f"{', '.join(left)} from before the restore are still running")
            # A restored cluster reuses the ids of experiments.
            remove_experiments(self._environments, held_experiments(self._environments))
        if incarnation and incarnation != self._noted_incarnation():
            write_atomically(self._cluster_path, {"incarnation": incarnation})

    def _noted_incarnation(self) -> str:
        noted = read_json_object(self._cluster_path) or {}
        return str(noted.get("incarnation", ""))

    def allocations(self) -> list[Allocation]:
        """Return a list of all allocations, including ended ones that were not forgotten yet."""
        return list(self._allocations.values())

    def allocation_ids(self) -> list[str]:
        """Return the ids of all allocations, including ended ones that were not forgotten yet."""
        return list(self._allocations)

    def allocation_processes(self, name: str) -> list[int]:
        """Return the ids of an active allocation's processes on this machine.

        Return an empty list for an unknown or ended allocation.
        """
        allocation = self._allocations.get(name)
        if allocation is None or not allocation.is_active:
            return []
        return self._runtime.processes(allocation.directory.agent)

    def spawn(self, name: str, module: str) -> socket.socket | None:
        """Start a module of this package in an active allocation. Return a socket of the process.

        The socket is input and output. Return None for an unknown or ended allocation. Raise
        OSError if the start fails.
        """
        directory = self.active_directory(name)
        return None if directory is None else self._runtime.spawn(directory.agent, module)

    def active_directory(self, name: str) -> AllocationDirectory | None:
        """Return the directory of an active allocation. None for an unknown or ended allocation."""
        allocation = self._allocations.get(name)
        return None if allocation is None or not allocation.is_active else allocation.directory

    def note_use(self, name: str) -> None:
        """Note that somebody uses an allocation, for example through a tunnel."""
        allocation = self._allocations.get(name)
        if allocation is not None:
            allocation.note_use()

    @property
    def has_gpus(self) -> bool:
        """Whether a slot of this node is an NVIDIA GPU or a MIG instance."""
        return any(slot.type == "cuda" for slot in self._slots.values())

    def find_slots(self, ids: Sequence[int]) -> list[Slot]:
        """Return the slots of this node by id, in the order of `ids`. Skip unknown ids."""
        return [self._slots[slot] for slot in ids if slot in self._slots]

    def end_warning(self, name: str) -> str:
        """Return the warning before the end of an allocation by `max_duration`. "" without one."""
        allocation = self._allocations.get(name)
        return "" if allocation is None else allocation.end_warning()

    def apply_desired_entry(self, entry: dict[str, Any]) -> None:
        """Apply an entry of the cluster's desired state: run, kill or forget an allocation.

        `run` starts a new trial in a thread, or updates the directives of an existing allocation. A
        new trial is ignored while `stopping` or `refuses_new` is set.
        `kill` stops a trial. A killed allocation that is unknown here is recorded as ended.
        `forget` discards an ended allocation and its directory, and kills an active one. Another
        state is ignored. A malformed entry and an OSError are logged, not raised.
        """
        try:
            name, state = str(entry["allocation"]), entry["state"]
            if state == "run":
                self._run_allocation(name, entry)
            elif state == "kill":
                self._kill_allocation(name, entry)
            elif state == "forget":
                self._forget_allocation(name)
        except (KeyError, TypeError, ValueError, OSError) as error:
            self._log_line(f"an assignment of the cluster could not be applied: {error!r}")

    def expect_image(self, image: str, *, needs_login: bool = False) -> None:
        """Prepare the runtime for a first trial that probably runs in this image. Never block.

        `needs_login` is whether the pull needs a login of the cluster.
        """
        grants = self._grants if needs_login else None
        self._runtime.expect_image(image, grants.fetch_early_login if grants else None)

    def cached_experiments(self) -> list[int]:
        """Return the ids of experiments with packages on this machine, the lowest CACHED_MAX."""
        return held_experiments(self._environments)[:CACHED_MAX]

    def forget_experiments(self, experiments: Sequence[int]) -> None:
        """Delete the packages of ended experiments in a thread. Log failures.

        Do nothing for an empty list.
        """

        def remove() -> None:
            try:
                remove_experiments(self._environments, experiments)
            except OSError as error:
                self._log_line(f"packages of ended experiments could not be deleted: {error}")

        if experiments:
            threading.Thread(target=remove, daemon=True).start()

    def acknowledge(self, acked: dict[str, dict[str, int]], logs: dict[str, int]) -> None:
        """Pass the cluster's acknowledged offsets to every allocation.

        `acked` maps an allocation to the byte offset for each writer of reports. `logs` maps an
        allocation to the offset in its log. Missing allocations and writers count as 0.
        """
        for name, allocation in list(self._allocations.items()):
            allocation.acknowledge(acked.get(name, {}), logs.get(name, 0))

    def note_enrolment(self) -> None:
        """Note the time of the agent's first enrolment. Later calls change nothing."""
        if self._enrolled_at is None:
            self._enrolled_at = time.monotonic()

    def forget_offsets(self) -> None:
        """Mark all acknowledged offsets as unknown: nothing is sent before the next answer."""
        for allocation in self.allocations():
            allocation.acked = None

    def notify(self, notice: Notice) -> None:
        """Notify all current and future trials that the machine ends. Log a trial's OSError."""
        self._notice = notice
        self._apply_to_all(lambda allocation: allocation.notify(notice))

    def fence(self, reason: str) -> None:
        """Kill all trials without a grace, because they may already run on another machine.

        First notify the trials of an immediate end of the machine for this `reason`, so that the
        exits do not count as failures of the trials. Future trials are not notified.
        """
        notice = Notice(time.time_ns() // 1_000_000, reason)
        self._apply_to_all(lambda allocation: allocation.notify(notice))
        self.kill_all(0)

    def kill_all(self, grace_ms: int) -> None:
        """Stop all trials, with SIGKILL after `grace_ms` milliseconds. Log a trial's OSError."""
        self._apply_to_all(lambda allocation: allocation.kill(grace_ms))

    def stop_single_runs(self, grace_ms: int) -> None:
        """Stop the commands, notebooks and shells, with SIGKILL after `grace_ms` milliseconds.

        Their programs do not end by themselves after a notice. Log a trial's OSError.
        """

        def stop(allocation: Allocation) -> None:
            if allocation.runs_once:
                allocation.kill(grace_ms)

        self._apply_to_all(stop)

    def release_idle_resources(self) -> None:
        """Do periodic cleanup work: called about twice a second.

        Release unused resources of the runtime. Queue the layers of running trials for archiving.
        Every PRUNE_SECONDS, shrink the caches to their limits in a thread.
        """
        self._runtime.release_idle_resources()
        if self._layers is not None:
            self._layers.archive_running()
        if time.monotonic() >= self._prune_at:
            self._prune_at = time.monotonic() + PRUNE_SECONDS
            if (self._environments / OWNERS).is_dir():
                threading.Thread(target=self._prune_caches, daemon=True).start()

    def _prune_caches(self) -> None:
        try:
            prune_caches(self._work, self._cache_limits, time.time())
        except OSError as error:
            self._log_line(f"caches in {self._environments} could not be shrunk: {error}")

    def close(self) -> None:
        """End the runtime's own processes and threads. The trials continue."""
        self._runtime.close()

    def has_active_allocations(self) -> bool:
        """Whether an allocation has no recorded exit."""
        return any(allocation.is_active for allocation in self.allocations())

    def is_acknowledged(self) -> bool:
        """Whether the cluster has acknowledged the agent's last record of every allocation."""
        return all(allocation.is_acknowledged() for allocation in self.allocations())

    def _apply_to_all(self, action: Callable[[Allocation], None]) -> None:
        for allocation in self.allocations():
            try:
                action(allocation)
            except OSError as error:
                self._log_line(
                    f"{allocation.allocation} could not be notified yet, trying again: {error}"
                )

    def _run_allocation(self, name: str, entry: dict[str, Any]) -> None:
        allocation = self._allocations.get(name)
        if allocation is not None:
            allocation.apply_directives(entry["directives"])
        elif not (self.stopping or self.refuses_new):
            self._create_allocation(name, entry)

    def _kill_allocation(self, name: str, entry: dict[str, Any]) -> None:
        """Apply the entry's directives and kill the allocation after the entry's grace.

        If the directives contain `preempt`, the trial may save a checkpoint during the grace. An
        allocation that is unknown here is created and recorded as killed before its start.
        """
        if name not in self._allocations:
            never_started = self._add_allocation(self._directory(name))
            never_started.record_failure("killed", "killed before it was started here")
        allocation = self._allocations[name]
        directives = entry.get("directives") or {}
        preempt = directives.get("preempt") or {}
        reason = str(preempt.get("reason") or "the trial is stopped")
        try:
            if directives:
                allocation.apply_directives(directives)
        finally:
            grace_ms = int(entry.get("grace_ms", GRACE_MS))
            allocation.kill(grace_ms, saves=bool(preempt), reason=reason)

    def _forget_allocation(self, name: str) -> None:
        allocation = self._allocations.get(name)
        if allocation is None:
            return
        if allocation.is_active:
            allocation.kill(0)
            return
        discarded = allocation.directory.discard(self._trash)
        del self._allocations[name]
        if self._layers is not None:
            self._layers.forget(name)
        threading.Thread(target=self._delete, args=(discarded,), daemon=True).start()

    def _create_allocation(self, name: str, entry: dict[str, Any]) -> None:
        allocation = self._add_allocation(self._directory(name))
        try:
            spec, code = dict(entry["spec"]), entry.get("code")
            set_agent_user(allocation.directory, spec)
            slot_ids = [int(slot) for slot in entry.get("slots", ())]
            spec["slots"] = slot_ids
            threads = self._threads * max(1, len(slot_ids))
            spec["threads"] = max(1, threads // slot_sharers(spec))
            # The variables may contain secrets, which must not be written to the spec file.
            variables = spec.pop("environment_variables", configured_variables(spec.get("config")))
            login = spec.pop("registry_auth", None)
            packages = spec.pop("packages", None)
            directives = dict(entry["directives"])
            reference = CodeReference.parse(code) if code else None
            slots = self.find_slots(slot_ids)
            about = allocation.directory, spec, slots, self._threads, self._log_bytes_max
            grants = self._grants
            assignment = Assignment(
                *about,
                variables,
                login,
                storage=grants.variables(name, spec) if grants else {},
                issue_login=grants.login_issuer(name, spec) if grants else None,
                code_sha256=reference.sha256 if reference else "",
                packages=packages,
                keeps_kernels=self._cache_limits.kernels > 0,
                layers=self._layers.begin(allocation, spec) if self._layers else None,
                start_times=allocation.start_times,
            )
            replace_taken_port(spec, allocation.directory)
            allocation.directory.write_spec(spec)
            allocation.watch_limits(spec)
            allocation.apply_directives(directives)
            if self._notice is not None:
                allocation.notify(self._notice)
        except (AgentUserUnavailable, PortTaken) as error:
            allocation.record_failure("start_failed", str(error))
            return
        except OSError as error:
            allocation.record_failure(
                "start_failed", f"the trial's directory could not be written: {error}"
            )
            return
        except Exception as error:
            allocation.record_failure(
                "start_failed", f"the cluster's assignment was refused: {error!r}"
            )
            return

        def prepare() -> Callable[[], None]:
            return self._prepare_launch(allocation, assignment, reference)

        threading.Thread(target=allocation.launch, args=(prepare,), daemon=True).start()

    def _directory(self, name: str) -> AllocationDirectory:
        return AllocationDirectory(self._allocations_path, name, self._runtime.owner)

    def _add_allocation(self, directory: AllocationDirectory) -> Allocation:
        directory.create()
        start_times = StartTimes(lambda: self._enrolled_at)
        allocation = Allocation(directory, self._runtime, self._log_bytes_max, start_times)
        allocation.examine = self._examine
        self._allocations[directory.allocation] = allocation
        self.wake_event.set()
        return allocation

    def _examine(self, directory: AllocationDirectory, failed_at: float) -> str | None:
        """Return the fault of this machine by which a trial failed, or "".

        Return None while the answer is not known. `failed_at` is a time of `time.monotonic`.
        """
        if self.health is None:
            return ""
        slots = (directory.read_spec() or {}).get("slots") or ()
        return self.health.examine(directory.path, slots, failed_at)

    def _prepare_launch(
        self, allocation: Allocation, assignment: Assignment, code: CodeReference | None
    ) -> Callable[[], None]:
        """Prepare the start of a trial, and return the function that starts the trial.

        Unpack the model code. Rewrite a startup hook of Windows editors for Unix shells, and write
        a notice about the changes to the trial's log. Prepare the runtime's launch, and append
        facts about the trial's place to the agent's records. The returned function also sets
        `wake_event`.

        Raise LaunchImpossible if the trial's request cannot be met, or any other exception for a
        problem of the machine.
        """
        directory, times = allocation.directory, allocation.start_times
        if code is not None:
            with times.measure(CODE):
                self._code.unpack(code, directory.code)
        if assignment.has_hook:
            directory.write_notices([f"[detcloud] {text}" for text in clean_hook(directory.code)])
        launch = self._runtime.prepare(assignment, lambda: allocation.is_needed)
        if launch.facts:
            allocation.record_environment(launch.facts)

        def start() -> None:
            if len(launch.stages) > 1:
                # The stages before the trial install packages and run the hook.
                times.begin(PACKAGES)
            self._runtime.start(directory.agent, launch)
            self.wake_event.set()

        return start

    def _delete(self, path: Path) -> None:
        try:
            delete_tree(path)
        except OSError as error:
            self._log_line(f"{path} could not be deleted: {error}")
