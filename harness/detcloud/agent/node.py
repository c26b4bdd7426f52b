"""The allocations of this node, from their creation or adoption until the cluster forgets them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from detcloud.agent.allocation.allocation import GRACE_MS, Allocation
from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.assignment.assignment import Assignment
from detcloud.agent.assignment.environment import configured_variables
from detcloud.agent.assignment.model_code import CodeReference
from detcloud.agent.runtime import LOG_BYTES_MAX
from detcloud.agent.slots import threads_per_slot
from detcloud.shared.files import delete_tree, read_json_object, write_atomically
from detcloud.shared.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from detcloud.agent.assignment.model_code import CodeCache
    from detcloud.agent.runtime import ContainerRuntime
    from detcloud.agent.slots import Slot
    from detcloud.agent.trial_grants import TrialGrants


class Node:
    """The node's allocations, one for each directory under WORK/allocations."""

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
    ) -> None:
        self._allocations_path = work / "allocations"
        self._trash = work / "trash"
        self._cluster_path = work / "cluster.json"
        self._slots = {slot.id: slot for slot in slots}
        self._threads = threads_per_slot(slots)
        self._log_bytes_max = log_bytes_max
        self._grants = grants
        self._runtime = runtime
        self._code = code
        self._log_line = log_line
        self._allocations: dict[str, Allocation] = {}
        self._notice: Notice | None = None
        self.stopping = False
        self.wake_event = threading.Event()

    def adopt(self) -> None:
        """Take over the directories that an earlier agent left, and finish its deletions."""
        for path in (self._allocations_path, self._trash):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for discarded in self._trash.iterdir():
            self._delete(discarded)
        for path in sorted(self._allocations_path.iterdir()):
            if path.is_symlink() or not (path / "agent").is_dir():
                self._delete(path)
                continue
            try:
                directory = self._directory(path.name)
                self._allocations[path.name] = Allocation.adopt(
                    directory, self._runtime, self._log_bytes_max
                )
            except (OSError, ValueError) as error:
                # The cluster hears no more of it; the others go on.
                self._log_line(f"{path} could not be taken over: {error}")
        active = [x.directory.agent for x in self._allocations.values() if x.is_active]
        self._runtime.adopt(active)
        for name, allocation in self._allocations.items():
            if allocation.verify_end():
                self._log_line(f"{name} is running, although its records say that it has ended")

    def belongs_to(self, incarnation: str) -> bool:
        """Whether this node's allocations may belong to this incarnation of the cluster's state."""
        noted = self._noted_incarnation()
        return noted in ("", incarnation) or not incarnation

    def join(self, incarnation: str) -> None:
        """Record the incarnation, and drop the ended allocations of another one.

        Raises OSError if an allocation still runs, because its name would be assigned again.
        """
        if not self.belongs_to(incarnation):
            for name in self.allocation_ids():
                self._forget_allocation(name)
            if left := self.allocation_ids():
                raise OSError(f"{', '.join(left)} from before the restore are still running")
        if incarnation and incarnation != self._noted_incarnation():
            write_atomically(self._cluster_path, {"incarnation": incarnation})

    def _noted_incarnation(self) -> str:
        noted = read_json_object(self._cluster_path) or {}
        return str(noted.get("incarnation", ""))

    def allocations(self) -> list[Allocation]:
        """All allocations, the exited ones included until the cluster says forget."""
        return list(self._allocations.values())

    def allocation_ids(self) -> list[str]:
        """The ids of the allocations that have a directory."""
        return list(self._allocations)

    def apply_desired_entry(self, entry: dict[str, Any]) -> None:
        """Carry out one entry of the cluster's desired list; a wrong one is logged and ignored."""
        try:
            name, state = str(entry["allocation"]), entry["state"]
            if state == "run":
                self._run_allocation(name, entry)
            elif state == "kill":
                self._kill_allocation(name, int(entry.get("grace_ms", GRACE_MS)))
            elif state == "forget":
                self._forget_allocation(name)
        except (KeyError, TypeError, ValueError, OSError) as error:
            self._log_line(f"an assignment of the cluster could not be applied: {error!r}")

    def acknowledge(self, acked: dict[str, dict[str, int]], logs: dict[str, int]) -> None:
        """Give every allocation the offsets that the cluster has; one not named is at 0."""
        for name, allocation in list(self._allocations.items()):
            allocation.acknowledge(acked.get(name, {}), logs.get(name, 0))

    def forget_offsets(self) -> None:
        """Send nothing until the next answer brings the offsets that the cluster has."""
        for allocation in self.allocations():
            allocation.acked = None

    def notify(self, notice: Notice) -> None:
        """Tell all trials, also those still to come, that the machine ends."""
        self._notice = notice
        self._apply_to_all(lambda allocation: allocation.notify(notice))

    def fence(self, reason: str) -> None:
        """End every trial at once, since it may run elsewhere by now.

        The trials hear `reason` as the notice of a machine's end: it is no failure of theirs.
        """
        notice = Notice(time.time_ns() // 1_000_000, reason)
        self._apply_to_all(lambda allocation: allocation.notify(notice))
        self.kill_all(0)

    def kill_all(self, grace_ms: int) -> None:
        """End every trial."""
        self._apply_to_all(lambda allocation: allocation.kill(grace_ms))

    def release_idle_resources(self) -> None:
        """Release resources of the runtime that are no longer needed."""
        self._runtime.release_idle_resources()

    def close(self) -> None:
        """End the runtime's own processes and threads; the trials go on."""
        self._runtime.close()

    def has_active_allocations(self) -> bool:
        """Whether an exit is still to come."""
        return any(allocation.is_active for allocation in self.allocations())

    def is_acknowledged(self) -> bool:
        """Whether the cluster has every exit."""
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
        elif not self.stopping:
            self._create_allocation(name, entry)

    def _kill_allocation(self, name: str, grace_ms: int) -> None:
        if name not in self._allocations:
            never_started = self._add_allocation(self._directory(name))
            never_started.record_failure("killed", "killed before it was started here")
        self._allocations[name].kill(grace_ms)

    def _forget_allocation(self, name: str) -> None:
        allocation = self._allocations.get(name)
        if allocation is None:
            return
        if allocation.is_active:
            allocation.kill(0)
            return
        discarded = allocation.directory.discard(self._trash)
        del self._allocations[name]
        threading.Thread(target=self._delete, args=(discarded,), daemon=True).start()

    def _create_allocation(self, name: str, entry: dict[str, Any]) -> None:
        allocation = self._add_allocation(self._directory(name))
        try:
            spec, code = dict(entry["spec"]), entry.get("code")
            slot_ids = [int(slot) for slot in entry.get("slots", ())]
            spec["slots"] = slot_ids
            spec["threads"] = self._threads * max(1, len(slot_ids))
            # The variables may be secret: they are in no file of the trial's directory.
            variables = spec.pop("environment_variables", configured_variables(spec.get("config")))
            login = spec.pop("registry_auth", None)
            directives = dict(entry["directives"])
            reference = CodeReference.parse(code) if code else None
            slots = [self._slots[slot] for slot in slot_ids if slot in self._slots]
            about = allocation.directory, spec, slots, self._threads, self._log_bytes_max
            grants = self._grants
            assignment = Assignment(
                *about,
                variables,
                login,
                storage=grants.variables(name, spec) if grants else {},
                issue_login=grants.login_issuer(name, spec) if grants else None,
            )
            allocation.directory.write_spec(spec)
            allocation.apply_directives(directives)
            if self._notice is not None:
                allocation.notify(self._notice)
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
        allocation = Allocation(directory, self._runtime, self._log_bytes_max)
        self._allocations[directory.allocation] = allocation
        self.wake_event.set()
        return allocation

    def _prepare_launch(
        self, allocation: Allocation, assignment: Assignment, code: CodeReference | None
    ) -> Callable[[], None]:
        """Lay out the model code and what the runtime needs; the function that starts the trial."""
        directory = allocation.directory
        if code is not None:
            self._code.unpack(code, directory.code)
        launch = self._runtime.prepare(assignment, lambda: allocation.is_needed)
        if launch.facts:
            allocation.record_environment(launch.facts)

        def start() -> None:
            self._runtime.start(directory.agent, launch)
            self.wake_event.set()

        return start

    def _delete(self, path: Path) -> None:
        try:
            delete_tree(path)
        except OSError as error:
            self._log_line(f"{path} could not be deleted: {error}")
