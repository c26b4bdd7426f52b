"""The jobs of a pool and their queued requests.

Three ordered maps in parts. `requests` holds the queued requests, by group and ticket; `groups`
holds for each job its settings as its row has them, and the totals that a scheduler needs: a
decision reads requests only of jobs that may start, and writes the leaf of one job. `idle` holds
in the same form the jobs that neither request nor hold slots, such as paused ones, so that a
decision reads none of them; pools that were configured by releases without it, see
`PoolSettings.idle_apart`, have those in `groups` too.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice

from control_plane.actors.job_row import JobRow, decode_job, job_sort_key, jobs_partition
from control_plane.actors.messages.pool import PatienceEnded, PoolSettings
from control_plane.actors.ordered_map import Entries, OrderedMap
from control_plane.actors.step import StepContext
from control_plane.clock_skew import is_from_future
from control_plane.scheduling.model import AllocationRequest, Job, RunningAllocation

# As many as a write unit of 1 KB holds.
REQUESTS_PER_PART = 12
GROUPS_PER_PART = 12
# Groups whose wait is corrected in one commit: each may be in a part of its own.
RESTARTED_WAITS_MAX = 12
_SUBMITTED_DIGITS = 14
_DEFAULTS = asdict(JobRow())


@dataclass(frozen=True, slots=True)
class Group:
    """A job: its settings, the number of its queued requests by their slots, and what it holds.

    `has_row`: its job row exists. `running` counts allocations, `held` their slots; `leaving`
    counts those of them whose allocations were asked to release them. `waits_since_ms`: since when
    it has waited for slots and held none, in a pool that reserves slots. Of a job that prefers
    several pools: `stays_since_ms`, since when nothing of it has run though it waits; `released`:
    the pool has told it that it may leave.
    """

    row: JobRow = field(default_factory=JobRow)
    has_row: bool = False
    pending: Mapping[int, int] = field(default_factory=dict)
    running: int = 0
    held: int = 0
    leaving: int = 0
    waits_since_ms: int | None = None
    stays_since_ms: int | None = None
    released: bool = False

    @property
    def waits_for_slots(self) -> bool:
        """Whether the job holds no slots and waits for some."""
        return not self.held and any(self.pending)

    @property
    def is_idle(self) -> bool:
        """Whether the job neither requests slots nor holds an allocation."""
        return not (self.pending or self.running or self.held)


@dataclass(frozen=True, slots=True)
class GroupRequests:
    """The queued requests of a group, read while they are iterated."""

    queue: "JobQueue"
    group: int

    def __iter__(self) -> Iterator[AllocationRequest]:
        return self.queue.requests(self.group)


@dataclass(frozen=True, slots=True)
class GroupAllocations:
    """The running allocations of a group, read while they are iterated."""

    running_allocations: Callable[[int], Iterator[RunningAllocation]]
    group: int
    preemptible: bool = True

    def __iter__(self) -> Iterator[RunningAllocation]:
        found = self.running_allocations(self.group)
        return found if self.preemptible else (replace(one, preemptible=False) for one in found)


class JobQueue:
    """The jobs and queued requests of the pool that the context is of."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._requests = OrderedMap(context, "requests", REQUESTS_PER_PART)
        self._groups = OrderedMap(context, "groups", GROUPS_PER_PART)
        self._idle = OrderedMap(context, "idle", GROUPS_PER_PART)

    def add(self, request: AllocationRequest) -> bool:
        """Add a request to the queue; False if it is there already."""
        key = _request_key(request.group, request.ticket)
        if self._requests.get(key) is not None:
            return False
        self._requests.put(key, (request.allocation_id, request.slots))
        known = self._group_of(request)
        self._write_group(request.group, _with_pending(known, request.slots, 1))
        return True

    def remove(self, request: AllocationRequest) -> bool:
        """Remove the request of this allocation, ticket and group; whether it was queued."""
        key = _request_key(request.group, request.ticket)
        found = self._requests.get(key)
        if not isinstance(found, list | tuple) or found[0] != request.allocation_id:
            return False
        self._requests.remove(key)
        self._write_group(request.group, _with_pending(self.group(request.group), found[1], -1))
        return True

    def start_request(self, request: AllocationRequest) -> None:
        """Move a request from the queue to its group's running allocations."""
        self._requests.remove(_request_key(request.group, request.ticket))
        group = _with_pending(self.group(request.group), request.slots, -1)
        held = group.held + request.slots
        self._write_group(request.group, replace(group, running=group.running + 1, held=held))

    def add_leaving_slots(self, group: int, slots: int) -> None:
        """Count slots of the group whose allocation was asked to release them."""
        known = self.group(group)
        self._write_group(group, replace(known, leaving=known.leaving + slots))

    def release_slots(self, group: int, slots: int, *, ended: bool, leaving: bool) -> None:
        """Count slots that the group released; `ended`: the last ones of an allocation."""
        known = self.group(group)
        freed = replace(
            known,
            running=known.running - ended,
            held=known.held - slots,
            leaving=known.leaving - (slots if leaving else 0),
        )
        self._write_group(group, freed)

    def reload_group(self, group: int) -> bool:
        """Read the group's job row again; whether the group has changed. One whose row is gone
        keeps its settings while it requests or holds anything.
        """
        known, row = self._read_group(group), self._job_row(group)
        after = replace(known or Group(), has_row=row is not None)
        if row is not None:
            after = replace(after, row=row)
            if row.stay != (known or after).row.stay:
                # It has been in another pool since, so its wait begins again.
                after = replace(after, stays_since_ms=None)
        if known is None and row is None:
            return False
        self._write_group(group, after)
        return after != known

    def restart_future_waits(self) -> None:
        """Set the start of waits that were recorded with a future time to now."""
        now_ms = self._context.now_ms
        future = (
            (number, group)
            for number, group in self.groups_at_work()
            if any(is_from_future(since, now_ms) for since in _times(group))
        )
        for number, group in list(islice(future, RESTARTED_WAITS_MAX)):
            self._write_group(number, group)

    def mark_released(self, group: int) -> None:
        """Record that the group was told that it may leave for another pool."""
        self._write_group(group, replace(self.group(group), released=True))

    def group(self, group: int) -> Group:
        """A group by number; an empty one if there is none."""
        return self._read_group(group) or Group()

    def groups(self) -> Iterator[tuple[int, Group]]:
        """All groups; those that are kept apart since they are idle come first."""
        for leaf in self._idle.leaves():
            yield from leaf.compute_once(_decode_groups, None)
        yield from self.groups_at_work()

    def groups_at_work(self) -> Iterator[tuple[int, Group]]:
        """The groups that request or hold slots, by number; a pool that does not keep idle ones
        apart has them among these.
        """
        for leaf in self._groups.leaves():
            yield from leaf.compute_once(_decode_groups, None)

    def jobs(
        self, priority: int, running_allocations: Callable[[int], Iterator[RunningAllocation]]
    ) -> Iterator[Job]:
        """The groups that request or hold slots, as the scheduler's jobs. `priority` is that of a
        job without one.
        """
        for number, group in self.groups_at_work():
            if group.is_idle:
                continue
            row = group.row
            holdings = GroupAllocations(running_allocations, number, row.preemptible)
            yield Job(
                group=number,
                submitted_ms=row.submitted_ms,
                weight=row.weight,
                priority=priority if row.priority is None else row.priority,
                position=row.queue_position(),
                max_slots=row.max_slots,
                label=row.label,
                single_agent=row.single_agent,
                pending=GroupRequests(self, number) if group.pending else (),
                allocations=holdings if group.running else (),
                pending_slots=group.pending,
                held_slots=group.held,
                non_preemptible_slots=0 if row.preemptible else group.held,
                leaving_slots=group.leaving,
                waits_since_ms=_waits_since_ms(group),
            )

    def requests(self, group: int) -> Iterator[AllocationRequest]:
        """The queued requests of a group, by ticket."""
        row = self.group(group).row
        for key, value in self._requests.items(_request_key(group, "")):
            number, ticket = _parse_request_key(key)
            if number != group:
                return
            assert isinstance(value, list | tuple)
            yield AllocationRequest(
                value[0],
                value[1],
                ticket,
                group,
                row.label,
                row.single_agent,
                row.preemptible,
            )

    def all_requests(self) -> Iterator[AllocationRequest]:
        """All queued requests, by group and ticket."""
        for key, value in self._requests.items():
            assert isinstance(value, list | tuple)
            group, ticket = _parse_request_key(key)
            yield AllocationRequest(value[0], value[1], ticket, group)

    def _group_of(self, request: AllocationRequest) -> Group:
        """The group of a request, which may be the first that the pool learns of it."""
        known = self._read_group(request.group)
        if known is not None:
            return known
        row = self._job_row(request.group)
        if row is not None:
            return Group(row, has_row=True)
        submitted = request.ticket[:_SUBMITTED_DIGITS]
        return Group(JobRow(int(submitted) if submitted.isdigit() else 0))

    def _job_row(self, group: int) -> JobRow | None:
        pool = self._context.address.partition("#")[2]
        seen = self._context.row(jobs_partition(pool), job_sort_key(group))
        return decode_job(seen.body) if seen.revision else None

    def _read_group(self, group: int) -> Group | None:
        found = self._groups.get(_group_key(group))
        if found is None and self._settings().idle_apart:
            found = self._idle.get(_group_key(group))
        return None if found is None else _decode_group(found)

    def _time_of_wait(self, group: Group) -> int | None:
        """The time since when the group waits from now on, if that concerns the scheduler."""
        if not group.waits_for_slots or self._reserve_after_ms() is None:
            return None
        return self._recorded_time_or_now(group.waits_since_ms or group.row.waits_since_ms)

    def _with_stay(self, number: int, group: Group) -> Group:
        """The group with the time since when it waits to leave for another pool; a timer tells when
        that has been for long enough.
        """
        if group.row.patience_ms is None or group.running or not group.pending:
            is_reset = group.stays_since_ms is None and not group.released
            return group if is_reset else replace(group, stays_since_ms=None, released=False)
        since_ms = self._recorded_time_or_now(group.stays_since_ms)
        if since_ms == group.stays_since_ms:
            return group
        due_ms = since_ms + group.row.patience_ms
        self._context.set_timer(due_ms, PatienceEnded(number, since_ms))
        return replace(group, stays_since_ms=since_ms, released=False)

    def _recorded_time_or_now(self, known_ms: int | None) -> int:
        """A time that was recorded, or now where none was or it is in the future."""
        now_ms = self._context.now_ms
        return now_ms if known_ms is None or is_from_future(known_ms, now_ms) else known_ms

    def _reserve_after_ms(self) -> int | None:
        return self._settings().reserve_after_ms

    def _settings(self) -> PoolSettings:
        return self._context.part("settings", PoolSettings) or PoolSettings()

    def _write_group(self, group: int, after: Group) -> None:
        """Write a group, or remove one that has no row and neither requests nor holds anything."""
        key, idle_apart = _group_key(group), self._settings().idle_apart
        home: OrderedMap | None = None
        if after.has_row or not after.is_idle:
            if (since_ms := self._time_of_wait(after)) != after.waits_since_ms:
                after = replace(after, waits_since_ms=since_ms)
            after = self._with_stay(group, after)
            home = self._idle if idle_apart and after.is_idle else self._groups
        if home is not self._groups:
            self._groups.remove(key)
        if home is not self._idle and idle_apart:
            self._idle.remove(key)
        if home is not None:
            home.put(key, _encode_group(after))


def _times(group: Group) -> Iterator[int]:
    """The recorded start times of a group's waits."""
    return (
        since_ms
        for since_ms in (group.waits_since_ms, group.stays_since_ms)
        if since_ms is not None
    )


def _waits_since_ms(group: Group) -> int | None:
    """The time since when a group waits; that of its submission where none was recorded."""
    if not group.waits_for_slots:
        return None
    return group.row.submitted_ms if group.waits_since_ms is None else group.waits_since_ms


def _with_pending(group: Group, slots: int, more: int) -> Group:
    """The group with `more` queued requests of `slots` slots."""
    count = group.pending.get(slots, 0) + more
    others = {size: number for size, number in group.pending.items() if size != slots}
    return replace(group, pending={**others, slots: count} if count else others)


def _group_key(group: int) -> str:
    return f"{group:012d}"


def _request_key(group: int, ticket: str) -> str:
    return f"{group:012d}.{ticket}"


def _parse_request_key(key: str) -> tuple[int, str]:
    group, _, ticket = key.partition(".")
    return int(group), ticket


def _decode_groups(entries: Entries, _: None) -> tuple[tuple[int, Group], ...]:
    return tuple((int(key), _decode_group(value)) for key, value in entries)


# Compact, since a part holds several groups: numbers, then the settings that are not defaults.
def _encode_group(group: Group) -> list[object]:
    pending = {str(slots): count for slots, count in group.pending.items()}
    numbers = [int(group.has_row), group.running, group.held, group.leaving]
    fields = ((name, getattr(group.row, name)) for name in _DEFAULTS)
    settings = {name: value for name, value in fields if value != _DEFAULTS[name]}
    times = [group.waits_since_ms, group.stays_since_ms, int(group.released) or None]
    while times and times[-1] is None:
        times.pop()
    return [[*numbers, *times], pending, settings]


def _decode_group(value: object) -> Group:
    assert isinstance(value, list | tuple)
    (listed, running, held, leaving, *since), pending, settings = value
    counts = {int(slots): count for slots, count in pending.items()}
    waits_since_ms, stays_since_ms, released = (*since, None, None, None)[:3]
    row = JobRow(**settings)
    numbers = (running, held, leaving, waits_since_ms, stays_since_ms, bool(released))
    return Group(row, bool(listed), counts, *numbers)
