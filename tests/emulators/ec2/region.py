"""The state of a simulated region, which tests change directly, and injected faults."""

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
# Terminated instances are listed for an hour.
REMEMBERED_MS = 3_600_000
SPOT_SHARE = 0.3

Params = Mapping[str, Any]
Result = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """A fault of a call: a refusal with `error`, or a lost answer if `error` is None.

    `carried_out`: the call takes effect before the fault. `garbled`: an HTML page takes the place
    of the answer.
    """

    error: Ec2Error | None = None
    carried_out: bool = False
    garbled: bool = False


def made_up_keys(machine: Machine) -> Mapping[str, str]:
    """Keys that open nothing."""
    return {
        "AccessKeyId": "ASIA" + machine.id[2:].upper().zfill(16)[-16:],
        "SecretAccessKey": f"secret-of-{machine.id}",
        "Token": f"session-of-{machine.id}",
    }


@dataclass
class Template:
    """A launch template with a single version."""

    id: str
    name: str
    data: Mapping[str, Any]
    tags: Mapping[str, str]
    created_ms: int


@dataclass
class Region:
    """EC2 in a region. Tests may change public fields at any time.

    `clock`: epoch ms. `visible_ms`, `running_ms`, `ending_ms`: delays until a machine is listed,
    runs, and is terminated after a termination call. `capacity`: numbers of machines by (type,
    zone, market). `quota`: vCPUs by market, "spot" or "on-demand". `not_offered`: (type, zone)
    pairs. `placement_groups`: known names, or None if all names are valid. `reservations`:
    described capacity reservations by id, which launches ignore. `keys`: function for the keys of a
    machine's role in its metadata. `sleepers`: number of next machines that never boot.
    `on_running` and `on_terminated`: hooks that `tend` calls once per machine. `lets_in`: whether a
    call with an Authorization header, or "" without a header, is answered. `page_size_max`: limit
    on the items of a page. `denies`: returns the message of a policy that denies a call, or "".
    `allowed_images` and `refused_images`: state of Allowed AMIs, and the images outside its
    criteria. `public_access` and `excluded`: mode of VPC Block Public Access, and ids of excluded
    VPCs and subnets. `security_groups`: names by id.
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
    denies: Callable[[str, Params], str] = lambda action, params: ""
    allowed_images: str = "disabled"
    refused_images: set[str] = field(default_factory=set)
    public_access: str = "off"
    excluded: list[str] = field(default_factory=list)
    security_groups: dict[str, str] = field(default_factory=dict)
    sleepers: int = 0
    page_size_max: int = 1000
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
    # Answers with their requests, by action and client token.
    answers: dict[tuple[str, str], tuple[str, Result]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _numbers: int = 0

    def __post_init__(self) -> None:
        for place, zone in enumerate(self.zones):
            self.subnets[f"subnet-{place:017x}"] = zone

    def fail(self, action: str, code: str, message: str = "", *, times: int = 1) -> None:
        """Refuse the next calls of an action; nothing is done."""
        text = message or f"{code} was asked for"
        self.faults[action].extend([Fault(Ec2Error(code, text))] * times)

    def lose(self, action: str, *, carried_out: bool = True, times: int = 1) -> None:
        """Lose answers of the next calls. Each call takes effect if `carried_out`."""
        self.faults[action].extend([Fault(None, carried_out)] * times)

    def garble(self, action: str) -> None:
        """Answer the next call of an action with an HTML page, as a proxy; nothing is done."""
        self.faults[action].append(Fault(garbled=True))

    def interrupt(self, name: str, notice_ms: int = 120_000) -> None:
        """Interrupt a spot machine after a notice of `notice_ms`, or at once without a notice for
        0.
        """
        with self.lock:
            machine, now_ms = self.machines[name], self.clock()
            machine.noticed_ms = now_ms if notice_ms else None
            machine.notice_ms = now_ms + notice_ms
            self.tend()

    def advise(self, name: str) -> None:
        """Give a machine a rebalance recommendation."""
        self.machines[name].advised_ms = self.clock()

    def shut_down(self, name: str) -> None:
        """Shut a machine down from inside, which terminates the machine."""
        with self.lock:
            text = "Client.InstanceInitiatedShutdown: Instance initiated shutdown"
            self.machines[name].end(self.clock(), text.partition(":")[0], text)
            self.tend()

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
        """Yield the machines that calls can see, in launch order."""
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
    """Return EC2's catalogue of instance types from moto."""
    # The package is not named by import path, because importing moto's EC2 takes two seconds.
    text = files("moto").joinpath("ec2/resources/instance_types.json.gz").read_bytes()
    catalogue: Mapping[str, Any] = json.loads(gzip.decompress(text))
    return catalogue


def vcpus(instance_type: str) -> int:
    """Return the virtual processors of an instance."""
    count: int = types()[instance_type]["VCpuInfo"]["DefaultVCpus"]
    return count
