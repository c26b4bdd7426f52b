"""The state of a simulated project, which tests change directly, and injected faults."""

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
    """A fault of a call: a refusal with `error`, an answer with `content`, or a lost answer.

    `carried_out`: the call takes effect before the fault.
    """

    error: GceError | None = None
    carried_out: bool = False
    content: Result | None = None


@dataclass
class Operation:
    """An operation in `place`, zones/ZONE or regions/REGION, that ends at `done_ms` and then shows
    `errors`.
    """

    name: str
    place: str
    kind: str
    target: str
    started_ms: int
    done_ms: int
    group: str = ""
    request_id: str = ""
    target_id: str = ""
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
    """Compute Engine in a project. Tests may change public fields at any time.

    `clock`: epoch ms. `visible_ms`, `staging_ms`, `running_ms`, `ending_ms`: delays until a machine
    is listed, is staged, runs, and is gone after a delete. `operation_ms`: duration of a bulk
    insert. `capacity`: numbers of machines by (type, zone, market). `quota`: GPUs by market, "spot"
    or "on-demand". `not_offered`: (type, zone) pairs. `late`: missing capacity fails the operation,
    not the call. `bulk_refused`: bulk inserts are not allowed. `unreachable`: zones that lists omit
    with a warning. `sleepers`: number of next machines that never boot. `on_running`, `on_notice`
    (with the remaining seconds) and `on_terminated`: hooks that `tend` calls once per machine.
    `lets_in`: whether a call with an Authorization header, or "" without a header, is answered.
    `page_size_max`: limit on the items of a page. `on_call`: called with method, names in the path
    and body of each answered call. An error of the hook refuses the call.
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
    bulk_refused: bool = False
    unreachable: set[str] = field(default_factory=set)
    bulk_operations_max: int = 10
    sleepers: int = 0
    page_size_max: int = 500
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
    # Operations by (place, request id).
    requests: dict[tuple[str, str], Operation] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _numbers: int = 0

    @property
    def url(self) -> str:
        """The common prefix of the URLs of the project's resources."""
        return f"https://www.googleapis.com/compute/v1/projects/{self.name}"

    def fail(
        self, action: str, status: int, reason: str, message: str = "", *, times: int = 1
    ) -> None:
        """Refuse the next calls of an action; nothing is done."""
        text = message or f"{reason} was asked for"
        self.faults[action].extend([Fault(GceError(status, reason, text))] * times)

    def lose(self, action: str, *, carried_out: bool = True, times: int = 1) -> None:
        """Lose answers of the next calls. Each call takes effect if `carried_out`."""
        self.faults[action].extend([Fault(None, carried_out)] * times)

    def replace_answer(self, action: str, content: Result) -> None:
        """Answer the next call of an action with this content; nothing is done."""
        self.faults[action].append(Fault(content=content))

    def forget_requests(self) -> None:
        """Forget the ids of requests, so that a repeated request is a new request."""
        self.requests.clear()

    def preempt(self, name: str) -> None:
        """Preempt a spot machine.

        The notice is immediate. The shutdown begins after the notice period of the machine's
        scheduling, by default 0 s, and takes 30 s.
        """
        with self.lock:
            machine, now_ms = self.machines[name], self.clock()
            scheduling = machine.properties.get("scheduling", {})
            notice = int((scheduling.get("preemptionNoticeDuration") or {}).get("seconds", 0))
            machine.preempted_ms = now_ms + notice * 1000
            self.on_notice(machine, notice + PREEMPTION_MS // 1000)
            self.tend()

    def shut_down(self, name: str) -> None:
        """Shut a machine down from inside. The machine stays as terminated."""
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
        """Let due events happen and call the hooks.

        Servers do this before each call and at each beat. Tests with a separate clock call this
        method.
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
        """Add an operation to the list of operations."""
        name = f"operation-{self.number():013d}"
        operation = Operation(name, place, kind, target, started_ms, done_ms)
        self.operations.append(operation)
        return operation

    def shown_operation(self, operation: Operation) -> Result:
        """Return an operation in the API's format."""
        now_ms = self.clock()
        kind = operation.place.partition("s/")[0]
        description: Result = {
            "kind": "compute#operation",
            "name": operation.name,
            "operationType": operation.kind,
            "targetLink": operation.target,
            "status": operation.status(now_ms),
            "insertTime": moment(operation.started_ms),
            kind: f"{self.url}/{operation.place}",
        }
        if operation.group:
            description["operationGroupId"] = operation.group
        if operation.target_id:
            description["targetId"] = operation.target_id
        if operation.request_id:
            description["clientOperationId"] = operation.request_id
        if operation.locations:
            locations = {key: {"status": "CREATING"} for key in operation.locations}
            is_over = description["status"] == "DONE"
            description["instancesBulkInsertOperationMetadata"] = {
                "perLocationStatus": operation.locations if is_over else locations
            }
        if operation.errors and description["status"] == "DONE":
            description["error"] = {"errors": operation.errors}
            description |= {"httpErrorStatusCode": 503, "httpErrorMessage": "SERVICE UNAVAILABLE"}
        return description

    def billed_machines(self) -> list[Machine]:
        """Return the machines that are billed."""
        now_ms = self.clock()
        return [machine for machine in self.machines.values() if machine.is_billed(now_ms)]

    def visible_machines(self) -> Iterator[Machine]:
        """Yield the machines that calls can see, in the order of their insert."""
        now_ms = self.clock()
        for machine in self.machines.values():
            if now_ms >= machine.visible_ms and machine.state(now_ms) != "GONE":
                yield machine

    def number(self) -> int:
        """Return the next number, from 1."""
        self._numbers += 1
        return self._numbers
