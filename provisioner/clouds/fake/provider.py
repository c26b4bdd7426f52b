"""A simulated cloud with a given clock and a seeded random generator.

The cloud hides fresh instances and returns outdated lists. Capacity and quotas run out. Calls are
throttled, or time out after they were executed. Machines boot late or never, or vanish. Spot
instances are taken away with and without notice. Every machine is billed, which reveals leaks.

The fate of a machine is sampled at its launch, so a run depends only on the order of the calls.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from control_plane.fleet.records import MS_PER_HOUR, IntentRow, Market, Offering
from control_plane.scheduling.agent_needs import AgentDevice
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

# Ended instances stay in the list for this time.
ENDED_INSTANCE_TTL_MS = 3_600_000


@dataclass(frozen=True)
class FakeRules:
    """The cloud's behaviour. By default, it has no faults.

    A share is a probability from 0 to 1. A pair of times is a range, from which a time is sampled
    uniformly for each machine.
    """

    visible_ms: tuple[int, int] = (0, 0)
    """The time from a machine's launch until it is listed."""
    running_ms: tuple[int, int] = (0, 0)
    """The time from a machine's launch until its status is RUNNING."""
    boot_ms: tuple[int, int] = (0, 0)
    """The time from RUNNING until a machine's agent is up."""
    ending_ms: tuple[int, int] = (0, 0)
    """The time from the request of a machine's end until the machine is gone."""
    stale_ms: int = 0
    """The maximum age of the statuses in a list."""
    throttled_share: float = 0.0
    """The share of calls that are throttled."""
    partial_share: float = 0.0
    """The share of launches of several machines that get fewer than requested."""
    timeout_share: float = 0.0
    """The share of launches that are executed without a response."""
    lost_request_share: float = 0.0
    """The share of launches that are neither executed nor answered."""
    under_way_ms: int = 0
    """The time for which a launch raises LaunchUnderWay."""
    never_boots_share: float = 0.0
    """The share of machines whose agent never comes up."""
    late_boot_share: float = 0.0
    """The share of machines whose boot takes `late_boot_ms` longer."""
    late_boot_ms: int = 900_000
    """The additional time of a late boot."""
    vanishes_share: float = 0.0
    """The share of machines that end without a notice or a request."""
    vanish_ms: tuple[int, int] = (60_000, 3_600_000)
    """The time from the launch until such a machine is gone."""
    interrupted_ms: tuple[int, int] | None = None
    """The time from the launch until a spot machine is taken away; None for never."""
    unannounced_share: float = 0.0
    """The share of interruptions without a notice."""
    notice_ms: int = 120_000
    """The time from an interruption notice until the machine is taken away."""
    rebalance_ms: int = 0
    """The time from a rebalance recommendation until the notice; 0 disables recommendations."""


@dataclass
class FakeMachine:
    """A machine of the cloud. Times are epoch milliseconds and may be in the future."""

    id: str
    offering: Offering
    tags: Mapping[str, str]
    launched_ms: int
    visible_ms: int
    """The time from which the machine is listed."""
    running_ms: int
    """The time from which the machine's status is RUNNING."""
    boots_ms: int | None
    """The time from which the machine's agent is up; None for never."""
    gone_ms: int | None = None
    """The time from which the machine is gone; None while no end is scheduled."""
    notice_at_ms: int | None = None
    """The time of the interruption notice."""
    rebalance_at_ms: int | None = None
    """The time of the rebalance recommendation."""
    asked_ms: int | None = None
    """The time at which the machine's end was requested."""

    def status(self, now_ms: int) -> InstanceStatus:
        """Return the machine's true status at `now_ms`, which a list may lag behind.

        TERMINATED once gone, TERMINATING from the request of the end, else STARTING, and RUNNING
        from `running_ms`.
        """
        if self.gone_ms is not None and now_ms >= self.gone_ms:
            return InstanceStatus.TERMINATED
        if self.asked_ms is not None and now_ms >= self.asked_ms:
            return InstanceStatus.TERMINATING
        return InstanceStatus.RUNNING if now_ms >= self.running_ms else InstanceStatus.STARTING

    def is_billed(self, now_ms: int) -> bool:
        """Whether the machine is billed at `now_ms`: from the launch until the machine is gone."""
        return self.gone_ms is None or now_ms < self.gone_ms

    def is_agent_up(self, now_ms: int) -> bool:
        """Whether the machine's agent runs at `now_ms`: booted, not asked to end and not gone."""
        is_asked = self.asked_ms is not None and now_ms >= self.asked_ms
        is_up = self.boots_ms is not None and now_ms >= self.boots_ms
        return is_up and not is_asked and self.is_billed(now_ms)

    def cost(self, now_ms: int) -> float:
        """Return the machine's cost in dollars from the launch to `now_ms` or to an earlier end.

        An unknown price counts as 0. The time is not rounded.
        """
        until_ms = now_ms if self.gone_ms is None else min(now_ms, self.gone_ms)
        return (until_ms - self.launched_ms) / MS_PER_HOUR * self.offering.price_per_hour


@dataclass(frozen=True)
class _Outcome:
    """The result of a launch request."""

    request: IntentRow
    known_ms: int
    """The time from which the cloud reports the result."""
    ids: tuple[str, ...] = ()
    """The ids of the launched machines."""
    error: CloudError | None = None
    """The error if nothing was launched."""


@dataclass
class FakeCloud:
    """A simulated cloud. `rules`, `capacity` and `quota` may be changed at any time."""

    clock: Callable[[], int]
    """Returns epoch milliseconds."""
    random: Random
    catalog: tuple[Offering, ...]
    """The offerings that the cloud has."""
    rules: FakeRules = field(default_factory=FakeRules)
    devices: Mapping[str, tuple[AgentDevice, ...]] = field(default_factory=dict)
    """The devices of each instance type."""
    capacity: dict[str, int] = field(default_factory=dict)
    """The number of machines of an offering that can exist at once, by offering name."""
    quota: dict[Market, int] = field(default_factory=dict)
    """The number of slots that the account may have on a market."""
    machines: dict[str, FakeMachine] = field(default_factory=dict)
    """All machines that were ever launched, by id."""
    failing: CloudError | None = None
    """An error that every launch raises."""
    boot_logs: dict[str, str] = field(default_factory=dict)
    """The boot logs of machines, by id."""
    boot_log_calls: list[str] = field(default_factory=list)
    """The ids of the machines whose boot logs were requested, in order."""
    _outcomes: dict[str, _Outcome] = field(default_factory=dict)

    def offerings(self) -> tuple[Offering, ...]:
        """Return the catalog, with prices, unchanged. Faults of `rules` do not apply."""
        return self.catalog

    def devices_of(self, instance_type: str) -> tuple[AgentDevice, ...]:
        """Return the entry of `devices` for an instance type. () without an entry."""
        return self.devices.get(instance_type, ())

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        """Launch machines by the rules, capacity and quota; return visible and hidden machines.

        As many machines as available are launched, at least 1. A repeated token launches nothing,
        and returns the machines of the first request, with the present status, ended ones included.
        A repeated request tries a failed launch again. If `rules.under_way_ms` is above 0, a failed
        launch is not tried again: its error is raised after this time, and again at each call.

        Raises:
            ThrottlingError: by chance; nothing is launched then.
            OutcomeUnknown: by chance, before or after the machines were launched; also by chance
                for a repeated token.
            LaunchUnderWay: `rules.under_way_ms` is not over.
            TokenReused: the token belongs to a different request.
            NoCapacity: nothing is left, or too few for a `together` request.
            QuotaExceeded: the quota of the market is used up.
            ConfigurationError: the catalog lacks the offering.
            CloudError: `failing` is set.
        """
        self._throttle_by_chance()
        if self._draw_fault(self.rules.lost_request_share):
            raise OutcomeUnknown("the request was lost")
        outcome = self._outcomes.get(request.token)
        if outcome is None:
            outcome = self._execute_request(request)
        elif outcome.request != request:
            raise TokenReused(f"the token {request.token} belongs to another request")
        if self._draw_fault(self.rules.timeout_share):
            raise OutcomeUnknown("the launch was not answered in time")
        now_ms = self.clock()
        if now_ms < outcome.known_ms:
            raise LaunchUnderWay(f"{request.count} of {request.offering.name} are being launched")
        if outcome.error is not None:
            raise outcome.error
        return tuple(_to_cloud_instance(self.machines[name], now_ms) for name in outcome.ids)

    def list_instances(self, cluster: str, pool: str | None = None) -> Sequence[CloudInstance]:
        """List the visible machines of the cluster, or of a single pool.

        The statuses are up to `rules.stale_ms` old. Machines stay in the list, as TERMINATED, for
        ENDED_INSTANCE_TTL_MS after their end. One age is sampled for the whole list. A status is
        never older than the machine's launch. Raises ThrottlingError by chance.
        """
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
        """Begin to end machines; ignore unknown machines and machines that are not visible yet.

        An end takes `rules.ending_ms`. A repeated request for a machine changes nothing. Raises
        ThrottlingError by chance; then no machine ends.
        """
        self._throttle_by_chance()
        now_ms = self.clock()
        for name in ids:
            machine = self.machines.get(name)
            if machine is not None and now_ms >= machine.visible_ms:
                self.shut_down(name)

    def boot_log(self, instance: str) -> str:
        """Return the boot log that a test has set in `boot_logs`, or ""; record the call.

        Raises ThrottlingError by chance, without a record.
        """
        self._throttle_by_chance()
        self.boot_log_calls.append(instance)
        return self.boot_logs.get(instance, "")

    def shut_down(self, name: str) -> None:
        """Begin to end a machine, which takes `rules.ending_ms`.

        The agent stops at once. An earlier scheduled end stays. Do nothing if the end was requested
        before. A machine that is not visible yet ends too. Raises KeyError for an unknown machine.
        """
        machine, now_ms = self.machines[name], self.clock()
        if machine.asked_ms is None or now_ms < machine.asked_ms:
            machine.asked_ms = now_ms
            gone_ms = now_ms + self._sample_between(self.rules.ending_ms)
            machine.gone_ms = min(gone_ms, machine.gone_ms or gone_ms)

    def interrupt(self, name: str, notice_ms: int | None) -> None:
        """Take a spot or on-demand machine away, `notice_ms` after a notice now.

        With None, the machine is gone at once, without a notice. An earlier scheduled end and
        notice are replaced, also of a machine that is already gone. Raises KeyError for an unknown
        machine.
        """
        machine, now_ms = self.machines[name], self.clock()
        machine.notice_at_ms = None if notice_ms is None else now_ms
        machine.gone_ms = now_ms + (notice_ms or 0)

    def recommend_rebalance(self, name: str) -> None:
        """Let the list recommend replacing a machine, from now on. The machine itself goes on.

        Raises KeyError for an unknown machine.
        """
        self.machines[name].rebalance_at_ms = self.clock()

    def live_machines(self) -> Iterable[FakeMachine]:
        """Return the machines that are billed now, from the launch until the machine is gone."""
        now_ms = self.clock()
        return [machine for machine in self.machines.values() if machine.is_billed(now_ms)]

    def total_cost(self) -> float:
        """Return the cost in dollars of all machines so far, ended machines included."""
        now_ms = self.clock()
        return sum(machine.cost(now_ms) for machine in self.machines.values())

    def _execute_request(self, request: IntentRow) -> _Outcome:
        """Launch machines, store the outcome under the request's token, and return the outcome.

        A failed launch is an outcome with an error, if `rules.under_way_ms` is more than 0.

        Raises:
            CloudError: the launch failed and `rules.under_way_ms` is 0. Nothing is stored, so that
                a repeated request tries the launch again.
        """
        known_ms = self.clock() + self.rules.under_way_ms
        try:
            outcome = _Outcome(request, known_ms, self._launch_machines(request))
        except CloudError as error:
            if not self.rules.under_way_ms:
                raise
            outcome = _Outcome(request, known_ms, error=error)
        self._outcomes[request.token] = outcome
        return outcome

    def _launch_machines(self, request: IntentRow) -> tuple[str, ...]:
        """Add as many machines as available to `machines`; return the machines' ids.

        At least one machine is added, and by chance (`rules.partial_share`) fewer than available.
        After an error, no machine is added.

        Raises:
            ConfigurationError: the catalog lacks the offering.
            NoCapacity: no machine is available, or too few for a request that needs all together.
            QuotaExceeded: the market's quota is used up.
            CloudError: `failing` is set.
        """
        offering = request.offering
        if all(offering.name != item.name for item in self.catalog):
            raise ConfigurationError(f"offering {offering.name} does not exist")
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
        """Return how many machines of an offering can be launched now, at least 1.

        Capacity and quota without an entry are unlimited. The quota does not limit offerings with 0
        slots. Machines count until they are gone.

        Raises:
            NoCapacity: the offering's capacity is used up.
            QuotaExceeded: the quota of the market is used up.
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
        """Return a new machine, number `n` (from 0) of a request, with a sampled fate; add nothing.

        The boot and the end are sampled from `rules` with `random`. The id depends on the number of
        machines so far. Capacity and quota do not matter.
        """
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
        """Return the machine with a sampled end, or unchanged without an end.

        - `rules.vanishes_share` of all machines vanish after `rules.vanish_ms`, without a notice.
        - Every spot machine that does not vanish is interrupted (`_with_interruption`), if
          `rules.interrupted_ms` is set.
        """
        rules = self.rules
        if self._draw_fault(rules.vanishes_share):
            return replace(
                machine, gone_ms=machine.launched_ms + self._sample_between(rules.vanish_ms)
            )
        if rules.interrupted_ms is None or machine.offering.market is not Market.SPOT:
            return machine
        gone_ms = machine.launched_ms + self._sample_between(rules.interrupted_ms)
        return self._with_interruption(machine, gone_ms)

    def _with_interruption(self, machine: FakeMachine, gone_ms: int) -> FakeMachine:
        """Return the machine with an interruption at `gone_ms`, with or without a notice.

        `rules.unannounced_share` of the interruptions have no notice. The others have a notice
        `rules.notice_ms` earlier, or at the launch if the machine lives for a shorter time. If
        `rules.rebalance_ms` is set, a rebalance recommendation precedes the notice by this time,
        and may have a time before the launch.
        """
        rules = self.rules
        if self._draw_fault(rules.unannounced_share):
            return replace(machine, gone_ms=gone_ms)
        notice_at_ms = max(machine.launched_ms, gone_ms - rules.notice_ms)
        advised_ms = notice_at_ms - rules.rebalance_ms if rules.rebalance_ms else None
        return replace(
            machine, gone_ms=gone_ms, notice_at_ms=notice_at_ms, rebalance_at_ms=advised_ms
        )

    def _throttle_by_chance(self) -> None:
        """Raise ThrottlingError for `rules.throttled_share` of the calls."""
        if self._draw_fault(self.rules.throttled_share):
            raise ThrottlingError("too many requests")

    def _draw_fault(self, share: float) -> bool:
        """Return True with probability `share`. A share of 0 draws no random number."""
        return share > 0 and self.random.random() < share

    def _sample_between(self, bounds: tuple[int, int]) -> int:
        """Sample an integer between the bounds, both included. Equal bounds draw no number."""
        return bounds[0] if bounds[0] == bounds[1] else self.random.randint(*bounds)


def _to_cloud_instance(machine: FakeMachine, now_ms: int) -> CloudInstance:
    """Return the entry of a machine in the cloud's list at `now_ms`.

    The entry contains an interruption notice, with the time of the end, and a rebalance
    recommendation, if they are due. The reason for an end is never given.
    """
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
