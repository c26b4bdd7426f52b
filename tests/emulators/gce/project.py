"""The state of one simulated project, which tests change directly, and the faults in it."""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.emulators.gce.machine import GceError, Machine, moment

# Until a preempted machine is switched off.
PREEMPTION_MS = 30_000

Result = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """A fault of a call: it is refused with `error`, or its answer is lost if that is None;
    `carried_out`: only after it was done.
    """

    error: GceError | None = None
    carried_out: bool = False


@dataclass
class Operation:
    """An operation in `place`, zones/ZONE or regions/REGION, which is over at `done_ms`. `errors`
    are shown from then on.
    """

    name: str
    place: str
    kind: str
    target: str
    started_ms: int
    done_ms: int
    group: str = ""
    request_id: str = ""
    errors: list[dict[str, str]] = field(default_factory=list)
    locations: dict[str, dict[str, Any]] = field(default_factory=dict)

    def status(self, now_ms: int) -> str:
        """Return the status."""
        return "DONE" if now_ms >= self.done_ms else "RUNNING"


IMAGE_FAMILIES = (
    "projects/ubuntu-os-accelerator-images/global/images/family/"
    "ubuntu-accelerator-2404-amd64-with-nvidia-580",
    "projects/p1/global/images/family/ours",
)


@dataclass
class Project:
    """Compute Engine in one project. `clock` gives epoch ms; whatever is public may be changed at
    any time.

    `visible_ms`, `staging_ms`, `running_ms`, `ending_ms`: until a machine is shown, is staged,
    runs, and is gone once it was asked to end; `operation_ms`: until a bulk insert is over.
    `capacity`: machines there may be, by (type, zone, market); `quota`: GPUs there may be, by
    market, which is "spot" or "on-demand"; `not_offered`: types that a zone does not have. `late`:
    what cannot be had is told by the operation and not by the call. `unreachable`: zones whose
    machines no list has, which says so. `sleepers`: so many of the next machines never boot. Of
    each other one `on_running` and `on_terminated` hear once, and `on_notice`, with the seconds
    that are left; see `tend`. `lets_in` says whether a call with an Authorization header, "" for
    none, is answered at all; `on_call` hears of each that is answered: its method, the names in its
    path and its body.
    """

    clock: Callable[[], int]
    name: str = "p1"
    zones: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {
            "us-central1": ("us-central1-a", "us-central1-b", "us-central1-c"),
            "europe-west4": ("europe-west4-a", "europe-west4-b"),
        }
    )
    visible_ms: int = 0
    staging_ms: int = 0
    running_ms: int = 0
    ending_ms: int = 0
    operation_ms: int = 0
    capacity: dict[tuple[str, str, str], int] = field(default_factory=dict)
    quota: dict[str, int] = field(default_factory=dict)
    not_offered: set[tuple[str, str]] = field(default_factory=set)
    late: bool = False
    unreachable: set[str] = field(default_factory=set)
    bulk_operations_max: int = 10
    sleepers: int = 0
    lets_in: Callable[[str], bool] = lambda authorization: True
    on_call: Callable[[str, Mapping[str, str], Mapping[str, Any]], None] = (
        lambda action, names, body: None
    )
    on_running: Callable[[Machine], None] = lambda machine: None
    on_notice: Callable[[Machine, int], None] = lambda machine, seconds: None
    on_terminated: Callable[[Machine], None] = lambda machine: None
    machines: dict[str, Machine] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    faults: dict[str, deque[Fault]] = field(default_factory=lambda: defaultdict(deque))
    # Operations by the place and id of the request that they were made by.
    requests: dict[tuple[str, str], Operation] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _numbers: int = 0

    @property
    def url(self) -> str:
        """The beginning of the URLs of its resources."""
        return f"https://www.googleapis.com/compute/v1/projects/{self.name}"

    def fail(
        self, action: str, status: int, reason: str, message: str = "", *, times: int = 1
    ) -> None:
        """Refuse the next calls of an action; nothing is done."""
        said = message or f"{reason} was asked for"
        self.faults[action].extend([Fault(GceError(status, reason, said))] * times)

    def lose(self, action: str, *, carried_out: bool = True, times: int = 1) -> None:
        """Break off the connection of the next calls, after they were carried out or before."""
        self.faults[action].extend([Fault(None, carried_out)] * times)

    def forget_requests(self) -> None:
        """Forget the ids of requests: one that is repeated is another one."""
        self.requests.clear()

    def preempt(self, name: str) -> None:
        """Take a spot machine away: it is told at once, its shutdown begins with that or, where its
        scheduling asks for more, after as long, and 30 s later it is switched off.
        """
        with self.lock:
            machine, now_ms = self.machines[name], self.clock()
            scheduling = machine.properties.get("scheduling", {})
            notice = int((scheduling.get("preemptionNoticeDuration") or {}).get("seconds", 0))
            machine.preempted_ms = now_ms + notice * 1000
            self.on_notice(machine, notice + PREEMPTION_MS // 1000)
            self.tend()

    def shut_down(self, name: str) -> None:
        """Shut a machine down from inside: it is terminated, and stays."""
        with self.lock:
            machine, now_ms = self.machines[name], self.clock()
            machine.end(now_ms, self.ending_ms, delete=False)
            self._record("compute.instances.guestTerminate", machine, now_ms)

    def delete(self, machine: Machine) -> Operation:
        """Begin to delete a machine."""
        now_ms = self.clock()
        machine.end(now_ms, self.ending_ms, delete=True)
        operation = self._record("delete", machine, now_ms)
        operation.done_ms = now_ms + self.ending_ms
        return operation

    def tend(self) -> None:
        """Let due events happen, and call the hooks. Servers do it before each call and at each
        beat; tests with a clock of their own do it themselves.
        """
        with self.lock:
            now_ms = self.clock()
            for machine in list(self.machines.values()):
                self._tend(machine, now_ms)

    def _tend(self, machine: Machine, now_ms: int) -> None:
        due_ms = machine.preempted_ms
        if due_ms is not None and now_ms >= due_ms and "preempted" not in machine.heard:
            machine.heard.add("preempted")
            action = machine.properties["scheduling"].get("instanceTerminationAction")
            machine.end(due_ms, PREEMPTION_MS, delete=action == "DELETE")
            self._record("compute.instances.preempted", machine, due_ms)
        state = machine.state(now_ms)
        if state == "GONE":
            state = "TERMINATED"
        hook = {"RUNNING": self.on_running, "TERMINATED": self.on_terminated}.get(state)
        if hook is None or state in machine.heard:
            return
        machine.heard.add(state)
        if state == "TERMINATED" or machine.boots:
            hook(machine)

    def _record(self, kind: str, machine: Machine, now_ms: int) -> Operation:
        target = f"{self.url}/zones/{machine.zone}/instances/{machine.name}"
        return self.add_operation(kind, f"zones/{machine.zone}", target, now_ms, now_ms)

    def add_operation(
        self, kind: str, place: str, target: str, started_ms: int, done_ms: int
    ) -> Operation:
        """Add an operation to those that are listed."""
        name = f"operation-{self.number():013d}"
        operation = Operation(name, place, kind, target, started_ms, done_ms)
        self.operations.append(operation)
        return operation

    def shown_operation(self, operation: Operation) -> Result:
        """Return an operation as the API shows it."""
        now_ms = self.clock()
        kind = operation.place.partition("s/")[0]
        shown: Result = {
            "kind": "compute#operation",
            "name": operation.name,
            "operationType": operation.kind,
            "targetLink": operation.target,
            "status": operation.status(now_ms),
            "insertTime": moment(operation.started_ms),
            kind: f"{self.url}/{operation.place}",
        }
        if operation.group:
            shown["operationGroupId"] = operation.group
        if operation.request_id:
            shown["clientOperationId"] = operation.request_id
        if operation.locations:
            locations = {key: {"status": "CREATING"} for key in operation.locations}
            is_over = shown["status"] == "DONE"
            shown["instancesBulkInsertOperationMetadata"] = {
                "perLocationStatus": operation.locations if is_over else locations
            }
        if operation.errors and shown["status"] == "DONE":
            shown["error"] = {"errors": operation.errors}
            shown |= {"httpErrorStatusCode": 503, "httpErrorMessage": "SERVICE UNAVAILABLE"}
        return shown

    def billed_machines(self) -> list[Machine]:
        """Return the machines that are billed."""
        now_ms = self.clock()
        return [machine for machine in self.machines.values() if machine.is_billed(now_ms)]

    def visible_machines(self) -> Iterator[Machine]:
        """Return the machines that calls know of, in the order of their insert."""
        now_ms = self.clock()
        for machine in self.machines.values():
            if now_ms >= machine.visible_ms and machine.state(now_ms) != "GONE":
                yield machine

    def number(self) -> int:
        """Return the next number, from 1."""
        self._numbers += 1
        return self._numbers
