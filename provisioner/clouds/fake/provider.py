"""A simulated cloud under a given clock and a seeded random generator.

Fresh instances are invisible at first and lists lag behind, capacity and quotas run out, calls are
throttled or break off after they were done, machines boot late, never, or vanish, and spot
instances are taken away with and without notice. All of it is billed, which shows what leaked.

All that chance decides about a machine is sampled when it is launched, so that a run depends on the
order of launches and on nothing else.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from control_plane.fleet.records import MS_PER_HOUR, IntentRow, Market, Offering
from provisioner.clouds.provider import (
    CLUSTER_TAG,
    INTENT_TAG,
    POOL_TAG,
    CloudError,
    CloudInstance,
    ConfigurationError,
    LaunchUnderWay,
    NoCapacity,
    OutcomeUnknown,
    QuotaExceeded,
    ThrottlingError,
    TokenReused,
)
from provisioner.model import InstanceStatus

# Ended instances are listed for so long.
ENDED_INSTANCE_TTL_MS = 3_600_000


@dataclass(frozen=True)
class FakeRules:
    """The cloud's behaviour; shares are of calls or of machines, sampled uniformly. By default
    there are no faults.

    `visible_ms`, `running_ms`, `boot_ms`, `ending_ms`: least and most until a machine is listed, is
    RUNNING, has its agent up (from RUNNING on), and is gone once it was asked to end. `stale_ms`:
    how far a list may lag behind. `late_boot_ms` is added for those that boot late.
    `under_way_ms`: how long it is not told what comes of a launch.
    `interrupted_ms`: least and most until a spot machine is taken away, None for never;
    `notice_ms`: how long before, with notice; a `rebalance_ms` before that leaving it is advised.
    """

    visible_ms: tuple[int, int] = (0, 0)
    running_ms: tuple[int, int] = (0, 0)
    boot_ms: tuple[int, int] = (0, 0)
    ending_ms: tuple[int, int] = (0, 0)
    stale_ms: int = 0
    throttled_share: float = 0.0
    partial_share: float = 0.0
    timeout_share: float = 0.0
    lost_request_share: float = 0.0
    under_way_ms: int = 0
    never_boots_share: float = 0.0
    late_boot_share: float = 0.0
    late_boot_ms: int = 900_000
    vanishes_share: float = 0.0
    vanish_ms: tuple[int, int] = (60_000, 3_600_000)
    interrupted_ms: tuple[int, int] | None = None
    unannounced_share: float = 0.0
    notice_ms: int = 120_000
    rebalance_ms: int = 0


@dataclass
class FakeMachine:
    """A machine of the cloud. `boots_ms`: its agent is up from then on, None: never. `asked_ms`:
    its end was requested; `gone_ms`: it is gone, None: not yet known.
    """

    id: str
    offering: Offering
    tags: Mapping[str, str]
    launched_ms: int
    visible_ms: int
    running_ms: int
    boots_ms: int | None
    gone_ms: int | None = None
    notice_at_ms: int | None = None
    rebalance_at_ms: int | None = None
    asked_ms: int | None = None

    def status(self, now_ms: int) -> InstanceStatus:
        """The machine's true status."""
        if self.gone_ms is not None and now_ms >= self.gone_ms:
            return InstanceStatus.TERMINATED
        if self.asked_ms is not None and now_ms >= self.asked_ms:
            return InstanceStatus.TERMINATING
        return InstanceStatus.RUNNING if now_ms >= self.running_ms else InstanceStatus.STARTING

    def is_billed(self, now_ms: int) -> bool:
        """Whether the machine exists and is billed."""
        return self.gone_ms is None or now_ms < self.gone_ms

    def is_agent_up(self, now_ms: int) -> bool:
        """Whether the machine's agent runs."""
        is_asked = self.asked_ms is not None and now_ms >= self.asked_ms
        is_up = self.boots_ms is not None and now_ms >= self.boots_ms
        return is_up and not is_asked and self.is_billed(now_ms)

    def cost(self, now_ms: int) -> float:
        """The machine's cost in dollars by `now_ms`."""
        until_ms = now_ms if self.gone_ms is None else min(now_ms, self.gone_ms)
        return (until_ms - self.launched_ms) / MS_PER_HOUR * self.offering.price_per_hour


@dataclass(frozen=True)
class _Outcome:
    """The outcome of a request, told from `told_ms` on: machines, or why there are none."""

    request: IntentRow
    told_ms: int
    ids: tuple[str, ...] = ()
    error: CloudError | None = None


@dataclass
class FakeCloud:
    """The cloud; `clock` gives epoch ms. `catalog`: what it offers; `capacity`: the number of
    machines of an offering that can exist, by its name; `quota`: slots that the account may have in
    a market. Both may be changed at any time, as may `rules`.

    `machines` are all machines ever launched, by id: the bill.
    """

    clock: Callable[[], int]
    random: Random
    catalog: tuple[Offering, ...]
    rules: FakeRules = field(default_factory=FakeRules)
    capacity: dict[str, int] = field(default_factory=dict)
    quota: dict[Market, int] = field(default_factory=dict)
    machines: dict[str, FakeMachine] = field(default_factory=dict)
    failing: CloudError | None = None
    boot_logs: dict[str, str] = field(default_factory=dict)
    boot_log_calls: list[str] = field(default_factory=list)
    _outcomes: dict[str, _Outcome] = field(default_factory=dict)

    def offerings(self) -> tuple[Offering, ...]:
        """The catalog."""
        return self.catalog

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        """Launch machines, or fail as the rules say."""
        self._throttle_by_chance()
        if self._draw_fault(self.rules.lost_request_share):
            raise OutcomeUnknown("the request was lost")
        outcome = self._outcomes.get(request.token)
        if outcome is None:
            outcome = self._carry_out(request)
        elif outcome.request != request:
            raise TokenReused(f"the token {request.token} belongs to another request")
        if self._draw_fault(self.rules.timeout_share):
            raise OutcomeUnknown("the launch was not answered in time")
        now_ms = self.clock()
        if now_ms < outcome.told_ms:
            raise LaunchUnderWay(f"{request.count} of {request.offering.name} are made")
        if outcome.error is not None:
            raise outcome.error
        return tuple(_to_cloud_instance(self.machines[name], now_ms) for name in outcome.ids)

    def list_instances(self, cluster: str, pool: str | None = None) -> Sequence[CloudInstance]:
        """List machines, as far as they are visible yet and as old as the rules say."""
        self._throttle_by_chance()
        now_ms = self.clock()
        seen_ms = now_ms - int(self.random.random() * self.rules.stale_ms)
        return [
            _to_cloud_instance(machine, max(seen_ms, machine.launched_ms))
            for machine in self.machines.values()
            if machine.tags[CLUSTER_TAG] == cluster
            and pool in (None, machine.tags[POOL_TAG])
            and now_ms >= machine.visible_ms
            and (machine.gone_ms is None or now_ms < machine.gone_ms + ENDED_INSTANCE_TTL_MS)
        ]

    def terminate(self, ids: Sequence[str]) -> None:
        """End machines; those that are not visible yet are ignored."""
        self._throttle_by_chance()
        now_ms = self.clock()
        for name in ids:
            machine = self.machines.get(name)
            if machine is not None and now_ms >= machine.visible_ms:
                self.shut_down(name)

    def boot_log(self, instance: str) -> str:
        """Return what tests say that it wrote."""
        self._throttle_by_chance()
        self.boot_log_calls.append(instance)
        return self.boot_logs.get(instance, "")

    def shut_down(self, name: str) -> None:
        """End a machine, for any reason: its user, its own timer, the cloud."""
        machine, now_ms = self.machines[name], self.clock()
        if machine.asked_ms is None or now_ms < machine.asked_ms:
            machine.asked_ms = now_ms
            gone_ms = now_ms + self._sample_between(self.rules.ending_ms)
            machine.gone_ms = min(gone_ms, machine.gone_ms or gone_ms)

    def interrupt(self, name: str, notice_ms: int | None) -> None:
        """Take a machine away: immediately, or `notice_ms` after a notice."""
        machine, now_ms = self.machines[name], self.clock()
        machine.notice_at_ms = None if notice_ms is None else now_ms
        machine.gone_ms = now_ms + (notice_ms or 0)

    def recommend_rebalance(self, name: str) -> None:
        """Say that a machine is likely to be taken away."""
        self.machines[name].rebalance_at_ms = self.clock()

    def live_machines(self) -> Iterable[FakeMachine]:
        """The machines that are billed now."""
        now_ms = self.clock()
        return [machine for machine in self.machines.values() if machine.is_billed(now_ms)]

    def total_cost(self) -> float:
        """The cost in dollars of all machines so far."""
        now_ms = self.clock()
        return sum(machine.cost(now_ms) for machine in self.machines.values())

    def _carry_out(self, request: IntentRow) -> _Outcome:
        """Launch machines; a failure that is returned immediately is not remembered."""
        told_ms = self.clock() + self.rules.under_way_ms
        try:
            outcome = _Outcome(request, told_ms, self._launch_machines(request))
        except CloudError as error:
            if not self.rules.under_way_ms:
                raise
            outcome = _Outcome(request, told_ms, error=error)
        self._outcomes[request.token] = outcome
        return outcome

    def _launch_machines(self, request: IntentRow) -> tuple[str, ...]:
        offering = request.offering
        if all(offering.name != item.name for item in self.catalog):
            raise ConfigurationError(f"there is no offering {offering.name}")
        if self.failing is not None:
            raise self.failing
        count = min(request.count, self._available_count(offering))
        if count > 1 and self._draw_fault(self.rules.partial_share):
            count = self.random.randint(1, count - 1)
        if request.together and count < request.count:
            raise NoCapacity(f"there are {count} of {request.count} {offering.instance_type}")
        machines = [self._new_machine(request, n) for n in range(count)]
        self.machines.update((machine.id, machine) for machine in machines)
        return tuple(machine.id for machine in machines)

    def _available_count(self, offering: Offering) -> int:
        """The number of machines of an offering that can be launched, at least one. Raises
        CloudError.
        """
        living = [machine.offering for machine in self.live_machines()]
        room = self.capacity.get(offering.name, 1 << 30) - living.count(offering)
        if room <= 0:
            raise NoCapacity(f"no {offering.instance_type} is left in {offering.zone}")
        quota = self.quota.get(offering.market)
        if quota is not None and offering.slots:
            used = sum(item.slots for item in living if item.market is offering.market)
            room = min(room, (quota - used) // offering.slots)
        if room <= 0:
            raise QuotaExceeded(f"the quota of {quota} {offering.market} slots is used up")
        return room

    def _new_machine(self, request: IntentRow, n: int) -> FakeMachine:
        rules, now_ms = self.rules, self.clock()
        running_ms = now_ms + self._sample_between(rules.running_ms)
        boots_ms = running_ms + self._sample_between(rules.boot_ms)
        if self._draw_fault(rules.late_boot_share):
            boots_ms += rules.late_boot_ms
        never = self._draw_fault(rules.never_boots_share)
        machine = FakeMachine(
            id=f"i-{len(self.machines) + n:06x}",
            offering=request.offering,
            tags={
                CLUSTER_TAG: request.cluster,
                POOL_TAG: request.pool,
                INTENT_TAG: request.id,
            },
            launched_ms=now_ms,
            visible_ms=now_ms + self._sample_between(rules.visible_ms),
            running_ms=running_ms,
            boots_ms=None if never else boots_ms,
        )
        return self._with_sampled_end(machine)

    def _with_sampled_end(self, machine: FakeMachine) -> FakeMachine:
        rules = self.rules
        if self._draw_fault(rules.vanishes_share):
            return replace(
                machine, gone_ms=machine.launched_ms + self._sample_between(rules.vanish_ms)
            )
        if rules.interrupted_ms is None or machine.offering.market is not Market.SPOT:
            return machine
        gone_ms = machine.launched_ms + self._sample_between(rules.interrupted_ms)
        if self._draw_fault(rules.unannounced_share):
            return replace(machine, gone_ms=gone_ms)
        notice_at_ms = max(machine.launched_ms, gone_ms - rules.notice_ms)
        advised_ms = notice_at_ms - rules.rebalance_ms if rules.rebalance_ms else None
        return replace(
            machine, gone_ms=gone_ms, notice_at_ms=notice_at_ms, rebalance_at_ms=advised_ms
        )

    def _throttle_by_chance(self) -> None:
        if self._draw_fault(self.rules.throttled_share):
            raise ThrottlingError("too many requests")

    def _draw_fault(self, share: float) -> bool:
        return share > 0 and self.random.random() < share

    def _sample_between(self, bounds: tuple[int, int]) -> int:
        return bounds[0] if bounds[0] == bounds[1] else self.random.randint(*bounds)


def _to_cloud_instance(machine: FakeMachine, now_ms: int) -> CloudInstance:
    """A machine as the cloud lists it at `now_ms`."""
    noticed = machine.notice_at_ms is not None and now_ms >= machine.notice_at_ms
    advised = machine.rebalance_at_ms is not None and now_ms >= machine.rebalance_at_ms
    return CloudInstance(
        machine.id,
        machine.status(now_ms),
        machine.launched_ms,
        machine.tags,
        machine.gone_ms if noticed else None,
        advised,
        zone=machine.offering.zone,
    )
