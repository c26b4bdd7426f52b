"""The allocations of this node: adopted at start, created, directed, killed and forgotten."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from detcloud.agent.allocation import GRACE_MS, Allocation
from detcloud.agent.assignment import Assignment
from detcloud.agent.directory import AllocationDirectory, delete_tree
from detcloud.agent.environment import configured_variables
from detcloud.agent.model_code import CodeReference
from detcloud.agent.notices import Notice
from detcloud.agent.runtime import LOG_BYTES_MAX
from detcloud.agent.slots import threads_per_slot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from detcloud.agent.model_code import CodeCache
    from detcloud.agent.runtime import ContainerRuntime
    from detcloud.agent.slots import Slot


class Node:
    """Keeps one Allocation per directory under WORK/allocations."""

    def __init__(
        self,
        work: Path,
        slots: list[Slot],
        runtime: ContainerRuntime,
        code: CodeCache,
        say: Callable[[str], None],
        *,
        log_bytes_max: int = LOG_BYTES_MAX,
        storage_variables: Callable[[str], dict[str, str]] | None = None,
    ) -> None:
        self._allocations_path = work / "allocations"
        self._trash = work / "trash"
        self._slots = {slot.id: slot for slot in slots}
        self._threads = threads_per_slot(slots)
        self._log_bytes_max = log_bytes_max
        self._storage_variables = storage_variables
        self._runtime = runtime
        self._code = code
        self._say = say
        self._allocations: dict[str, Allocation] = {}
        self._notice: Notice | None = None
        self.stopping = False
        self.stirred = threading.Event()

    def adopt(self) -> None:
        """Take over the directories that an earlier agent left, and finish its deletions."""
        for path in (self._allocations_path, self._trash):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self._trash.iterdir():
            self._delete(left)
        for path in sorted(self._allocations_path.iterdir()):
            if path.is_symlink() or not (path / "agent").is_dir():
                self._delete(path)
                continue
            directory = self._directory(path.name)
            self._allocations[path.name] = Allocation.adopt(directory, self._runtime)
        active = [one.directory.agent for one in self._allocations.values() if one.active]
        self._runtime.adopt(active)

    def allocations(self) -> list[Allocation]:
        """All of them, the exited ones included until the cluster says forget."""
        return list(self._allocations.values())

    def known(self) -> list[str]:
        """The ids whose directory exists."""
        return list(self._allocations)

    def apply(self, entry: dict[str, Any]) -> None:
        """Make one entry of the desired list true. A wrong entry is told and changes nothing."""
        try:
            name, state = str(entry["allocation"]), entry["state"]
            if state == "run":
                self._run(name, entry)
            elif state == "kill":
                self._kill(name, int(entry.get("grace_ms", GRACE_MS)))
            elif state == "forget":
                self._forget(name)
        except (KeyError, TypeError, ValueError, OSError) as error:
            self._say(f"an entry of the cluster could not be followed: {error!r}")

    def acknowledge(self, acked: dict[str, dict[str, int]], logs: dict[str, int]) -> None:
        """Hand every allocation what the cluster has of it; what is not named is at 0."""
        for name, allocation in list(self._allocations.items()):
            allocation.acknowledge(acked.get(name, {}), logs.get(name, 0))

    def forget_acknowledged(self) -> None:
        """Offsets come from the next answer; until then nothing is sent."""
        for allocation in self.allocations():
            allocation.acked = None

    def notify(self, notice: Notice) -> None:
        """Tell all trials, also those still to come, that the machine ends."""
        self._notice = notice
        self._tell_all(lambda allocation: allocation.notify(notice))

    def fence(self, reason: str) -> None:
        """End every trial that is here at once: it may run elsewhere by now. That is a loss of the
        agent, as `reason` tells, and no trial's doing.
        """
        notice = Notice(time.time_ns() // 1_000_000, reason)
        self._tell_all(lambda allocation: allocation.notify(notice))
        self.kill_all(0)

    def kill_all(self, grace_ms: int) -> None:
        """End every trial."""
        self._tell_all(lambda allocation: allocation.kill(grace_ms))

    def tend(self) -> None:
        """Let the runtime free what it needs no more."""
        self._runtime.tend()

    def close(self) -> None:
        """End what the runtime keeps beside the trials."""
        self._runtime.close()

    def active(self) -> bool:
        """Whether an exit is still to come."""
        return any(allocation.active for allocation in self.allocations())

    def flushed(self) -> bool:
        """Whether the cluster has every exit."""
        return all(allocation.flushed() for allocation in self.allocations())

    def _tell_all(self, tell: Callable[[Allocation], None]) -> None:
        for allocation in self.allocations():
            try:
                tell(allocation)
            except OSError as error:
                self._say(f"{allocation.allocation} could not be told yet, trying again: {error}")

    def _run(self, name: str, entry: dict[str, Any]) -> None:
        allocation = self._allocations.get(name)
        if allocation is not None:
            allocation.direct(entry["directives"])
        elif not self.stopping:
            self._create(name, entry)

    def _kill(self, name: str, grace_ms: int) -> None:
        if name not in self._allocations:
            never_started = self._added(self._directory(name))
            never_started.fail("killed", "killed before it was started here")
        self._allocations[name].kill(grace_ms)

    def _forget(self, name: str) -> None:
        allocation = self._allocations.get(name)
        if allocation is None:
            return
        if allocation.active:
            allocation.kill(0)
            return
        discarded = allocation.directory.discard(self._trash)
        del self._allocations[name]
        threading.Thread(target=self._delete, args=(discarded,), daemon=True).start()

    def _create(self, name: str, entry: dict[str, Any]) -> None:
        allocation = self._added(self._directory(name))
        try:
            spec, code = dict(entry["spec"]), entry.get("code")
            held = [int(slot) for slot in entry.get("slots", ())]
            spec["slots"] = held
            spec["threads"] = self._threads * max(1, len(held))
            # They are the trial's environment, and in no file of its directory.
            variables = spec.pop("environment_variables", configured_variables(spec.get("config")))
            login = spec.pop("registry_auth", None)
            directives = dict(entry["directives"])
            reference = CodeReference.parse(code) if code else None
            slots = [self._slots[slot] for slot in held if slot in self._slots]
            about = allocation.directory, spec, slots, self._threads, self._log_bytes_max
            assignment = Assignment(*about, variables, login, self._storage(name, spec))
            allocation.directory.write_spec(spec)
            allocation.direct(directives)
            if self._notice is not None:
                allocation.notify(self._notice)
        except OSError as error:
            allocation.fail("start_failed", f"the trial's directory could not be written: {error}")
            return
        except Exception as error:
            allocation.fail("start_failed", f"the cluster's assignment was refused: {error!r}")
            return

        def prepare() -> Callable[[], None]:
            return self._prepared(allocation, assignment, reference)

        threading.Thread(target=allocation.launch, args=(prepare,), daemon=True).start()

    def _storage(self, name: str, spec: dict[str, Any]) -> dict[str, str]:
        given = (spec.get("storage") or {}).get("credentials") == "given"
        if not given or self._storage_variables is None:
            return {}
        return self._storage_variables(name)

    def _directory(self, name: str) -> AllocationDirectory:
        return AllocationDirectory(self._allocations_path, name, self._runtime.owner)

    def _added(self, directory: AllocationDirectory) -> Allocation:
        directory.create()
        allocation = Allocation(directory, self._runtime)
        self._allocations[directory.allocation] = allocation
        self.stirred.set()
        return allocation

    def _prepared(
        self, allocation: Allocation, assignment: Assignment, code: CodeReference | None
    ) -> Callable[[], None]:
        """Lay out the model code and what the runtime needs; what is returned starts the trial."""
        directory = allocation.directory
        if code is not None:
            self._code.unpack(code, directory.code)
        launch = self._runtime.prepare(assignment, lambda: allocation.wanted)
        if launch.facts:
            allocation.describe(launch.facts)

        def start() -> None:
            self._runtime.start(directory.agent, launch)
            self.stirred.set()

        return start

    def _delete(self, path: Path) -> None:
        try:
            delete_tree(path)
        except OSError as error:
            self._say(f"{path} could not be deleted: {error}")
