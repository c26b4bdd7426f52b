"""The state of one simulated region, which tests change directly, and the faults in it."""

import gzip
import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from tests.emulators.ec2.machine import Ec2Error, Machine

ACCOUNT = "123456789012"
# An ended instance is shown for so long.
REMEMBERED_MS = 3_600_000
SPOT_SHARE = 0.3

Params = Mapping[str, Any]
Result = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """A fault of a call: it is refused with `error`, or its answer is lost if that is None;
    `carried_out`: only after it was done.
    """

    error: Ec2Error | None = None
    carried_out: bool = False


def made_up_keys(machine: Machine) -> Mapping[str, str]:
    """Keys that open nothing."""
    return {
        "AccessKeyId": "ASIA" + machine.id[2:].upper().zfill(16)[-16:],
        "SecretAccessKey": f"secret-of-{machine.id}",
        "Token": f"session-of-{machine.id}",
    }


@dataclass
class Template:
    """A launch template in its only version."""

    id: str
    name: str
    data: Mapping[str, Any]
    tags: Mapping[str, str]
    created_ms: int


@dataclass
class Region:
    """EC2 in one region. `clock` gives epoch ms; whatever is public may be changed at any time.

    `visible_ms`, `running_ms`, `ending_ms`: until a machine is shown, runs, and is gone once it was
    asked to end. `capacity`: machines there may be, by (type, zone, market); `quota`: vCPUs there
    may be, by market, which is "spot" or "on-demand"; `not_offered`: types that a zone does not
    have; `placement_groups`: their names, None where any is taken; `reservations`: of capacity, as
    they are described, by their ids; launches look at none. `keys`: those of a machine's role, as
    its metadata names them. `sleepers`: so many of the next machines never boot. Of each other one
    `on_running` and `on_terminated` hear once; see `tend`. `lets_in` says whether a call with an
    Authorization header, "" for none, is answered at all.
    """

    clock: Callable[[], int]
    name: str = "us-east-1"
    zones: tuple[str, ...] = ("us-east-1a", "us-east-1b", "us-east-1c")
    visible_ms: int = 0
    running_ms: int = 0
    ending_ms: int = 0
    capacity: dict[tuple[str, str, str], int] = field(default_factory=dict)
    quota: dict[str, int] = field(default_factory=dict)
    not_offered: set[tuple[str, str]] = field(default_factory=set)
    spot_prices: dict[tuple[str, str], float] = field(default_factory=dict)
    images: dict[str, str] = field(default_factory=lambda: {"ami-0123456789abcdef0": "/dev/xvda"})
    placement_groups: set[str] | None = None
    reservations: dict[str, Result] = field(default_factory=dict)
    sleepers: int = 0
    keys: Callable[[Machine], Mapping[str, str]] = made_up_keys
    lets_in: Callable[[str], bool] = lambda authorization: True
    on_running: Callable[[Machine], None] = lambda machine: None
    on_terminated: Callable[[Machine], None] = lambda machine: None
    machines: dict[str, Machine] = field(default_factory=dict)
    templates: dict[str, Template] = field(default_factory=dict)
    subnets: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    faults: dict[str, deque[Fault]] = field(default_factory=lambda: defaultdict(deque))
    metadata_tokens: dict[str, tuple[str, int]] = field(default_factory=dict)
    # Answers by action and client token, with the request that each belongs to.
    answers: dict[tuple[str, str], tuple[str, Result]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _numbers: int = 0

    def __post_init__(self) -> None:
        for place, zone in enumerate(self.zones):
            self.subnets[f"subnet-{place:017x}"] = zone

    def fail(self, action: str, code: str, message: str = "", *, times: int = 1) -> None:
        """Refuse the next calls of an action; nothing is done."""
        said = message or f"{code} was asked for"
        self.faults[action].extend([Fault(Ec2Error(code, said))] * times)

    def lose(self, action: str, *, carried_out: bool = True, times: int = 1) -> None:
        """Break off the connection of the next calls, after they were carried out or before."""
        self.faults[action].extend([Fault(None, carried_out)] * times)

    def interrupt(self, name: str, notice_ms: int = 120_000) -> None:
        """Take a spot machine away, `notice_ms` after a notice; 0: without one."""
        with self.lock:
            machine, now_ms = self.machines[name], self.clock()
            machine.noticed_ms = now_ms if notice_ms else None
            machine.notice_ms = now_ms + notice_ms
            self.tend()

    def advise(self, name: str) -> None:
        """Tell a machine that it is likely to be taken away."""
        self.machines[name].advised_ms = self.clock()

    def shut_down(self, name: str) -> None:
        """Shut a machine down from inside, which by its template ends it."""
        with self.lock:
            text = "Client.InstanceInitiatedShutdown: Instance initiated shutdown"
            self.machines[name].end(self.clock(), text.partition(":")[0], text)
            self.tend()

    def tend(self) -> None:
        """Let due events happen, and call the hooks. Servers do it before each call and at each
        beat; tests with a clock of their own do it themselves.
        """
        with self.lock:
            now_ms = self.clock()
            for machine in list(self.machines.values()):
                self._tend(machine, now_ms)

    def _tend(self, machine: Machine, now_ms: int) -> None:
        if machine.notice_ms is not None and now_ms >= machine.notice_ms:
            code = "Server.SpotInstanceTermination"
            machine.end(machine.notice_ms, code, f"{code}: Spot instance termination")
        state = machine.state(now_ms)
        hook = {"running": self.on_running, "terminated": self.on_terminated}.get(state)
        if hook is None or state in machine.heard:
            return
        machine.heard.add(state)
        if state == "terminated" or machine.boots:
            hook(machine)

    def billed_machines(self) -> list[Machine]:
        """Return the machines that are billed."""
        now_ms = self.clock()
        return [machine for machine in self.machines.values() if machine.is_billed(now_ms)]

    def visible_machines(self) -> Iterable[Machine]:
        """Return the machines that calls know of, in the order of their launch."""
        now_ms = self.clock()
        for machine in self.machines.values():
            over_ms = (machine.asked_ms or now_ms) + machine.ending_ms
            if now_ms >= machine.visible_ms and now_ms < over_ms + REMEMBERED_MS:
                yield machine

    def number(self) -> int:
        """Return the next number, from 1."""
        self._numbers += 1
        return self._numbers

    def answer_once(self, action: str, params: Params, make: Callable[[], Result]) -> Result:
        """Return the answer to a request, which is carried out once for each client token."""
        token = params.get("ClientToken")
        if not token:
            return make()
        request = json.dumps(params, sort_keys=True, default=str)
        known = self.answers.get((action, token))
        if known is None:
            self.answers[action, token] = (request, make())
        elif known[0] != request:
            raise Ec2Error(
                "IdempotentParameterMismatch",
                "Arguments on this idempotent request are inconsistent with arguments used in "
                "previous request(s).",
            )
        return self.answers[action, token][1]

    def spot_price(self, instance_type: str, zone: str) -> float:
        """Return dollars an hour; a little more in each further zone."""
        usual = vcpus(instance_type) * 0.1 * SPOT_SHARE * (1 + self.zones.index(zone) / 10)
        return self.spot_prices.get((instance_type, zone), round(usual, 4))


@cache
def types() -> Mapping[str, Any]:
    """EC2's catalogue, as moto keeps it."""
    # Not by the name of the package that they are in: to import all of that takes two seconds.
    text = files("moto").joinpath("ec2/resources/instance_types.json.gz").read_bytes()
    found: Mapping[str, Any] = json.loads(gzip.decompress(text))
    return found


def vcpus(instance_type: str) -> int:
    """Return the virtual processors of an instance."""
    found: int = types()[instance_type]["VCpuInfo"]["DefaultVCpus"]
    return found
