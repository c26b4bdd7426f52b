"""The invariants of the launches and drains of a cloud's instances.

- The instances for a request are launched once, unless some of them are lost. So the launches of a
  pool in an hour are limited by the requests that waited in this hour, the lost instances, and the
  pool's minimum.
- An idle instance is not drained while waiting requests need the instance.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from control_plane.actors import addresses
from control_plane.actors.agent.actor import AgentState
from control_plane.actors.messages.pool import PoolSettings
from control_plane.actors.pool.quiet_hours import quiet_ended_ms
from control_plane.actors.trial.state import TrialState
from control_plane.engine.head import HEAD
from control_plane.fleet.records import InstanceRow, InstanceState
from control_plane.fleet.rows import decode_instance, read_instances, read_intents
from control_plane.scheduling.quiet_hours import period_at
from control_plane.simulation.virtual_clock import VirtualClock
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Put, Row, Write
from simulator.checks.state_checker import InvariantBroken, StateChecker

WINDOW_MS = 3_600_000
# A request that has waited this long was known to the pass that drains an instance.
SEEN_MS = 60_000
# Pools reserve slots for allocations that have waited for 10 minutes (RESERVE_AFTER_MS in
# simulated_cluster.py). A clock that is ahead reserves them a little earlier.
OVERDUE_MS = 9 * 60_000
_ACTIVE = frozenset({InstanceState.STARTING, InstanceState.RUNNING})


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """The sizes and the numbers of instances that a pool may have."""

    sizes: tuple[int, ...]
    """The slots of an instance, for each size."""
    instances_min: int
    """The minimum number of instances."""
    instances_max: int
    """The maximum number of instances."""

    def instances_for(self, slots: int) -> int:
        """Return the largest number of equal instances that a request may need.

        Return 0 if no size fits the request within the maximum.
        """
        counts = [
            1 if slots <= size else slots // size for size in self.sizes if _fits(slots, size)
        ]
        return max((count for count in counts if count <= self.instances_max), default=0)

    def can_serve(self, slots: int, size: int) -> bool:
        """Return whether instances of this size alone can serve a request within the maximum."""
        return _fits(slots, size) and slots <= self.instances_max * size

    def lacks_room(self, slots: int, size: int, there: Sequence[int]) -> bool:
        """Return whether instances of `size` could serve a request, but other instances use up the
        room below the maximum.

        Args:
            slots: the slots of the request.
            there: the sizes of the existing instances.
        """
        others = sum(other != size for other in there)
        wanted = -(-slots // size)
        return self.can_serve(slots, size) and wanted > self.instances_max - others


@dataclass
class _PoolHistory:
    """The recent history of a pool. All times are virtual ms."""

    limits: FleetLimits
    intents: dict[str, int] = field(default_factory=dict)
    """The time at which each open launch was recorded, by the launch's id."""
    launches: list[int] = field(default_factory=list)
    """The times at which the launches of the instances were recorded."""
    losses: list[int] = field(default_factory=list)
    """The times at which instances were lost."""
    requests: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The time at which each allocation last waited, and the instances that it needs."""
    queued_ms: dict[str, int] = field(default_factory=dict)
    """The time since which each allocation is in the queue."""
    rows: dict[str, InstanceRow] = field(default_factory=dict)
    """The last row of each instance, by id."""

    def forget_before(self, ms: int) -> None:
        """Forget launches and requests before `ms`, and losses before `ms` - WINDOW_MS.

        The replacement of a lost instance may be launched up to WINDOW_MS after the loss.
        """
        self.launches = [time for time in self.launches if time >= ms]
        self.losses = [time for time in self.losses if time >= ms - WINDOW_MS]
        self.requests = {
            name: request for name, request in self.requests.items() if request[0] >= ms
        }


class FleetChecker:
    """A checker of the invariants of pools with instances, which follows all commits.

    Each check raises InvariantBroken.

    Args:
        rows: the state table without faults.
        checker: the checker that reports each commit; its `on_commit` is replaced.
        start_ms: the epoch time at which the virtual clock was 0.
    """

    def __init__(
        self, rows: MemoryTable, checker: StateChecker, clock: VirtualClock, start_ms: int
    ) -> None:
        self._table = rows
        self._checker = checker
        self._clock = clock
        self._start_ms = start_ms
        self._pools: dict[str, _PoolHistory] = {}
        self._faulty: set[str] = set()
        checker.on_commit = self._apply_commit

    def add_pool(self, pool: str, limits: FleetLimits) -> None:
        """Check this pool from now on, with an empty history."""
        self._pools[pool] = _PoolHistory(limits)

    def check_launches(self) -> None:
        """Check that the pools launched at most the instances that requests needed in WINDOW_MS.

        Losses and the pool's minimum allow additional launches. The caller repeats this check every
        minute. Raises InvariantBroken.
        """
        for trial in self._checker.actor_states("trial"):
            self._record_request(trial)
        for pool, history in self._pools.items():
            self._record_queue(pool)
            history.forget_before(self._clock.now_ms - WINDOW_MS)
            needed = sum(count for _, count in history.requests.values())
            allowed = needed + len(history.losses) + history.limits.instances_min
            if len(history.launches) > allowed:
                raise InvariantBroken(
                    f"pool {pool} launched {len(history.launches)} instances in an hour for"
                    f" requests that need {needed}, with {len(history.losses)} losses"
                )

    def _apply_commit(self, writes: Sequence[Write]) -> None:
        """Record the requests, launches and instances of a commit, then check the drains in it.

        Raises InvariantBroken.
        """
        drained = []
        for put in (write for write in writes if isinstance(write, Put)):
            kind, _, name = put.key.partition.partition("#")
            if kind == "trial" and put.key.sort == HEAD:
                self._record_request(self._checker.actor_state(put.key.partition))
            elif kind == "agent" and put.key.sort == HEAD:
                self._record_faults(self._checker.actor_state(put.key.partition))
            elif name not in self._pools:
                continue
            elif kind == "pool" and put.key.sort == HEAD:
                self._record_queue(name)
            elif kind == "intents":
                self._pools[name].intents[put.key.sort] = self._clock.now_ms
            elif kind in ("instances", "past-instances"):
                row = decode_instance(Row(put.key, put.revision, put.body))
                if self._record_row(self._pools[name], row):
                    drained.append(row)
        for row in drained:
            self._check_drain(row)

    def _record_queue(self, pool: str) -> None:
        """Record the requests in a pool's queue in the pool's history.

        `queued_ms` then contains the queued requests only, with the time at which each joined. In
        `requests`, each queued request gets the present time and the instances that it needs.
        Requests that left the queue stay in `requests` until `forget_before`.

        The pool launches instances for its queue, even if a trial has already moved elsewhere. The
        pool may not have read the mail about the move yet.
        """
        history, now_ms = self._pools[pool], self._clock.now_ms
        queued = list(self._checker.job_queue(pool).all_requests())
        names = [request.allocation_id for request in queued]
        history.queued_ms = {name: history.queued_ms.get(name, now_ms) for name in names}
        for request in queued:
            count = history.limits.instances_for(request.slots)
            history.requests[request.allocation_id] = now_ms, count

    def _record_request(self, trial: TrialState | None) -> None:
        """Record the present time and the needed instances for a trial that waits for slots.

        Do nothing for None, and for a trial that has slots or waits in a pool without checks.
        """
        allocation = trial.allocation if trial is not None else None
        if trial is None or allocation is None or allocation.places:
            return
        if (history := self._pools.get(allocation.pool)) is not None:
            count = history.limits.instances_for(trial.settings.slots)
            history.requests[f"{trial.trial_id}.{trial.epoch}"] = self._clock.now_ms, count

    def _record_faults(self, agent: AgentState | None) -> None:
        """Count the first fault or exclusion of an agent as a loss, because the pool may replace
        the instance.

        Do nothing for an agent of a pool without checks.
        """
        if agent is None or agent.pool not in self._pools:
            return
        if not (agent.faults or agent.exclusions):
            self._faulty.discard(agent.agent)
        elif agent.agent not in self._faulty:
            self._faulty.add(agent.agent)
            self._pools[agent.pool].losses.append(self._clock.now_ms)

    def _record_row(self, history: _PoolHistory, row: InstanceRow) -> bool:
        """Record an instance's row, and the launch or the loss that the row reports.

        A new row is a launch. A new silence, a new notice and an end other than the drain of an
        idle instance are losses. So is a drain in quiet hours, because the pool launches another
        instance for the waiting request afterwards. Return whether the row newly drains an idle
        instance without a notice.
        """
        now_ms, before = self._clock.now_ms, history.rows.get(row.id)
        history.rows[row.id] = row
        if before is None:
            # A pass with a clock that is a day ahead treats deadlines as missed and immediately
            # launches on-demand instances, so these launches do not count.
            if row.launched_ms - self._start_ms < now_ms + WINDOW_MS:
                history.launches.append(history.intents[row.intent])
            return False
        is_silent = row.silent_ms is not None and before.silent_ms is None
        is_noticed = row.notice_ms is not None and before.notice_ms is None
        has_ended = row.state not in _ACTIVE and before.state in _ACTIVE
        is_drained = has_ended and row.state is InstanceState.DRAINING and row.idle_ms is not None
        is_kept = is_drained and not self._has_quiet_hours(row.pool)
        if is_silent or is_noticed or (has_ended and not is_kept):
            history.losses.append(now_ms)
        return is_drained and row.notice_ms is None

    def _check_drain(self, row: InstanceRow) -> None:
        """Check that waiting requests do not need a drained instance.

        Requests that have waited for less than SEEN_MS do not count. The check is skipped if an
        overdue request needs the room that the instance uses, and for a faulty or excluded
        instance. Raises InvariantBroken.
        """
        size = row.offering.slots
        if self._is_in_the_way(row) or self._is_faulty(row):
            return
        like = [
            instance
            for instance in read_instances(self._table, row.pool)
            if instance.offering.slots == size
        ]
        active = [
            instance_row
            for instance_row in like
            if instance_row.state in _ACTIVE and instance_row.notice_ms is None
        ]
        idle = sum(instance_row.idle_ms is not None for instance_row in active)
        needed = self._count_needed(row, idle + 1 + self._count_coming(row.pool, active))
        if needed > idle:
            raise InvariantBroken(
                f"{needed} idle instances of {size} slots are needed by waiting requests, and"
                f" {idle} are left: {row} is drained"
            )

    def _is_faulty(self, row: InstanceRow) -> bool:
        """Return whether an instance is faulty or excluded. No request waits for the instance."""
        agent = self._checker.actor_state(addresses.agent(row.id))
        return agent is not None and bool(agent.faults or agent.exclusions)

    def _is_in_the_way(self, row: InstanceRow) -> bool:
        """Return whether an overdue request needs the room that this instance uses.

        A request that has waited for OVERDUE_MS needs the room in two cases: instances of this size
        cannot serve it, or instances of another size lack room for it. The second case covers
        requests for which no instance of this size is available.
        """
        history = self._pools[row.pool]
        rows = read_instances(self._table, row.pool)
        sizes = [
            row.offering.slots,
            *(
                instance_row.offering.slots
                for instance_row in rows
                if instance_row.state in _ACTIVE
            ),
        ]
        return any(
            not history.limits.can_serve(request.slots, row.offering.slots)
            or any(
                history.limits.lacks_room(request.slots, size, sizes)
                for size in history.limits.sizes
                if size != row.offering.slots
            )
            for request in self._checker.job_queue(row.pool).all_requests()
            if self._clock.now_ms - history.queued_ms[request.allocation_id] >= OVERDUE_MS
        )

    def _has_quiet_hours(self, pool: str) -> bool:
        """Return whether the pool has quiet hours now, or had quiet hours in the last SEEN_MS."""
        settings = self._checker.part(addresses.pool(pool), "settings")
        if not isinstance(settings, PoolSettings):
            return False
        now_ms = self._start_ms + self._clock.now_ms
        is_quiet = period_at(settings.quiet_periods, now_ms) is not None
        return is_quiet or now_ms - quiet_ended_ms(settings, now_ms) < SEEN_MS

    def _count_coming(self, pool: str, active: Sequence[InstanceRow]) -> int:
        """Return the number of `active` instances that start, plus the room below the maximum."""
        pending = sum(intent.count for intent in read_intents(self._table, pool))
        # Instances that are ending still count against the maximum.
        there = len(read_instances(self._table, pool)) + pending
        room = max(0, self._pools[pool].limits.instances_max - there)
        return sum(instance_row.connected_ms is None for instance_row in active) + room

    def _count_needed(self, row: InstanceRow, available: int) -> int:
        """Return a lower bound of the instances of the row's size that waiting requests need.

        Sum the slots of the requests that fit on a single instance, and round up to whole
        instances. Then add the requests that fill several instances, in ascending order. Skip a
        request if the new sum would exceed `available`, the number of instances that can serve it.
        """
        size = row.offering.slots
        waiting = [slots for slots in self._waiting_slots(row.pool) if _fits(slots, size)]
        needed = -(-sum(slots for slots in waiting if slots <= size) // size)
        for slots in sorted(slots for slots in waiting if slots > size):
            if needed + slots // size <= available:
                needed += slots // size
        return needed

    def _waiting_slots(self, pool: str) -> Iterator[int]:
        """Yield the slots of each request that has waited for SEEN_MS. Of the requests that will
        share a slot, yield only the first.

        Skip requests of jobs with `max_slots`, which may wait because of the job's own limit. Skip
        requests that exclude agents, which may wait for a replacement of the instance. Yield
        nothing in quiet hours, and for SEEN_MS after them.
        """
        if self._has_quiet_hours(pool):
            return
        queue, queued_ms = self._checker.job_queue(pool), self._pools[pool].queued_ms
        waiting: Counter[int] = Counter()
        for request in queue.all_requests():
            if request.excluded_agents:
                continue
            waited_ms = self._clock.now_ms - queued_ms[request.allocation_id]
            row = queue.group(request.group).row
            if waited_ms >= SEEN_MS and row.max_slots is None:
                if waiting[request.group] % row.slot_sharers == 0:
                    yield request.slots
                waiting[request.group] += 1


def _fits(slots: int, size: int) -> bool:
    """Return whether a request fits on a single instance of this size, or fills several exactly."""
    return slots <= size or slots % size == 0
