"""The invariants of instances of a cloud: how many are launched, and which are drained.

A request gets the instances that it needs once, unless some of them are lost. So what a pool
launches in an hour is bounded by what waited in that hour, what was lost, and its minimum. An idle
instance is not drained while requests wait for which it is needed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from control_plane.actors.trial.state import TrialState
from control_plane.engine.head import HEAD
from control_plane.fleet.records import InstanceRow, InstanceState
from control_plane.fleet.rows import decode_instance, read_instances, read_intents
from control_plane.simulation.virtual_clock import VirtualClock
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Put, Row, Write
from lambdas.simulation.state_checker import InvariantBroken, StateChecker

WINDOW_MS = 3_600_000
# What has waited for so long was seen by the pass that drains an instance.
SEEN_MS = 60_000
# Pools hold slots for allocations that have waited for so long (simulated_cluster.py), by clocks
# that may be ahead.
OVERDUE_MS = 9 * 60_000
_ACTIVE = frozenset({InstanceState.STARTING, InstanceState.RUNNING})


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """The limits of a pool's instances: the slots of each size that there is, and their number."""

    sizes: tuple[int, ...]
    instances_min: int
    instances_max: int

    def instances_for(self, slots: int) -> int:
        """The most instances that a request of so many slots is launched."""
        counts = [
            1 if slots <= size else slots // size for size in self.sizes if _fits(slots, size)
        ]
        return max((count for count in counts if count <= self.instances_max), default=0)

    def can_serve(self, slots: int, size: int) -> bool:
        """Whether instances of one size can serve a request of so many slots below the maximum."""
        return _fits(slots, size) and slots <= self.instances_max * size

    def lacks_room(self, slots: int, size: int, there: Sequence[int]) -> bool:
        """Whether instances of one size could serve a request, if no others of these sizes
        existed.
        """
        others = sum(other != size for other in there)
        wanted = -(-slots // size)
        return self.can_serve(slots, size) and wanted > self.instances_max - others


@dataclass
class _PoolHistory:
    """The history of a pool; times are virtual ms. `intents`: when each was written; `launches` and
    `losses` of instances; `requests` by allocation: when it waited last, and the instances that it
    needs; `queued_ms`: since when each allocation is in the queue.
    """

    limits: FleetLimits
    intents: dict[str, int] = field(default_factory=dict)
    launches: list[int] = field(default_factory=list)
    losses: list[int] = field(default_factory=list)
    requests: dict[str, tuple[int, int]] = field(default_factory=dict)
    queued_ms: dict[str, int] = field(default_factory=dict)
    rows: dict[str, InstanceRow] = field(default_factory=dict)

    def forget_before(self, ms: int) -> None:
        """Forget what was before; a loss may be made up for until a window later."""
        self.launches = [time for time in self.launches if time >= ms]
        self.losses = [time for time in self.losses if time >= ms - WINDOW_MS]
        self.requests = {
            name: request for name, request in self.requests.items() if request[0] >= ms
        }


class FleetChecker:
    """Checks the instances of pools; each check raises InvariantBroken."""

    def __init__(
        self, rows: MemoryTable, checker: StateChecker, clock: VirtualClock, start_ms: int
    ) -> None:
        self._table = rows
        self._checker = checker
        self._clock = clock
        self._start_ms = start_ms
        self._pools: dict[str, _PoolHistory] = {}
        checker.on_commit = self._apply_commit

    def add_pool(self, pool: str, limits: FleetLimits) -> None:
        """Begin to check a pool."""
        self._pools[pool] = _PoolHistory(limits)

    def check_launches(self) -> None:
        """Check, each minute, that no pool launches more than what waits needs."""
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
        drained = []
        for put in (write for write in writes if isinstance(write, Put)):
            kind, _, name = put.key.partition.partition("#")
            if kind == "trial" and put.key.sort == HEAD:
                self._record_request(self._checker.actor_state(put.key.partition))
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
        """Record the requests in the pool's queue, and since when each is there.

        What waits there is launched for, even if its trial went elsewhere: the pool has not read
        that yet, where its last attempts to read its mail failed.
        """
        history, now_ms = self._pools[pool], self._clock.now_ms
        queued = list(self._checker.job_queue(pool).all_requests())
        names = [request.allocation_id for request in queued]
        history.queued_ms = {name: history.queued_ms.get(name, now_ms) for name in names}
        for request in queued:
            count = history.limits.instances_for(request.slots)
            history.requests[request.allocation_id] = now_ms, count

    def _record_request(self, trial: TrialState | None) -> None:
        """Record that a trial waits for slots."""
        allocation = trial.allocation if trial is not None else None
        if trial is None or allocation is None or allocation.places:
            return
        if (history := self._pools.get(allocation.pool)) is not None:
            count = history.limits.instances_for(trial.settings.slots)
            history.requests[f"{trial.trial_id}.{trial.epoch}"] = self._clock.now_ms, count

    def _record_row(self, history: _PoolHistory, row: InstanceRow) -> bool:
        """Record an instance's launch or loss; return whether it is drained for being idle."""
        now_ms, before = self._clock.now_ms, history.rows.get(row.id)
        history.rows[row.id] = row
        if before is None:
            # A pass whose clock is ahead takes deadlines for missed, and buys on demand at once.
            if row.launched_ms - self._start_ms < now_ms + WINDOW_MS:
                history.launches.append(history.intents[row.intent])
            return False
        is_silent = row.silent_ms is not None and before.silent_ms is None
        is_noticed = row.notice_ms is not None and before.notice_ms is None
        has_ended = row.state not in _ACTIVE and before.state in _ACTIVE
        is_drained = has_ended and row.state is InstanceState.DRAINING and row.idle_ms is not None
        if is_silent or is_noticed or (has_ended and not is_drained):
            history.losses.append(now_ms)
        return is_drained and row.notice_ms is None

    def _check_drain(self, row: InstanceRow) -> None:
        """Check that the other idle instances are enough for the requests that have waited, unless
        one that instances of another size alone can serve has waited too long for room.
        """
        size = row.offering.slots
        if self._is_in_the_way(row):
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

    def _is_in_the_way(self, row: InstanceRow) -> bool:
        """Whether a request of several slots has waited too long that no number of such instances
        below the maximum can serve, or that those of another size can, once this one has left them
        the room: of its own size none may be to be had.
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

    def _count_coming(self, pool: str, active: Sequence[InstanceRow]) -> int:
        """The instances that start, and that may be launched besides."""
        pending = sum(intent.count for intent in read_intents(self._table, pool))
        # Those that end still count against the maximum.
        there = len(read_instances(self._table, pool)) + pending
        room = max(0, self._pools[pool].limits.instances_max - there)
        return sum(instance_row.connected_ms is None for instance_row in active) + room

    def _count_needed(self, row: InstanceRow, available: int) -> int:
        """The least number of whole instances like this one that waiting requests need; those over
        several count if as many as they need are available.
        """
        size = row.offering.slots
        waiting = [slots for slots in self._waiting_slots(row.pool) if _fits(slots, size)]
        needed = -(-sum(slots for slots in waiting if slots <= size) // size)
        for slots in sorted(slots for slots in waiting if slots > size):
            if needed + slots // size <= available:
                needed += slots // size
        return needed

    def _waiting_slots(self, pool: str) -> Iterator[int]:
        """The slots of each request that has waited and whose job has no limit for which it may."""
        queue, queued_ms = self._checker.job_queue(pool), self._pools[pool].queued_ms
        for request in queue.all_requests():
            waited_ms = self._clock.now_ms - queued_ms[request.allocation_id]
            if waited_ms >= SEEN_MS and queue.group(request.group).row.max_slots is None:
                yield request.slots


def _fits(slots: int, size: int) -> bool:
    """Whether a request fits on one instance of that size, or fills several."""
    return slots <= size or slots % size == 0
