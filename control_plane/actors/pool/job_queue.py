"""The jobs of a pool and the queued requests, in three ordered maps.

- `requests` contains the queued requests, by group and ticket.
- `groups` contains each job's settings, as in the job row, and the totals that a scheduler needs. A
  decision reads only the requests of jobs that may start, and writes the leaf of a single job.
- `idle` contains, in the same form, the jobs that neither request nor hold slots, for example
  paused jobs. A decision reads none of them.

Pools that older releases configured have idle jobs in `groups`
(`PoolSettings.stores_idle_jobs_apart`).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from control_plane.actors.job_row import JobRow, decode_job, job_sort_key, jobs_partition
from control_plane.actors.messages.pool import PatienceEnded, PoolSettings
from control_plane.actors.ordered_map import OrderedMap
from control_plane.actors.pool.groups import Group, decode_group, decode_groups, encode_group
from control_plane.actors.step import StepContext
from control_plane.clock_skew import is_from_future
from control_plane.scheduling.agent_needs import AgentNeeds
from control_plane.scheduling.model import ANY_KIND, AllocationRequest, Job, RunningAllocation

# A part of this many entries fits into a write unit of 1 KB.
REQUESTS_PER_PART = 12
GROUPS_PER_PART = 12
# The most groups whose wait a commit corrects. Each group may be in a different part.
RESTARTED_WAITS_MAX = 12
_SUBMITTED_DIGITS = 14


@dataclass(frozen=True, slots=True)
class GroupRequests:
    """The queued requests of a group, as an iterable. Each iteration reads the requests again.

    Of the requests that will share a slot, only the first is included. Requests that exclude
    different agents share no slot, since their agents may differ.
    """

    queue: "JobQueue"
    group: int
    sharers: int = 1
    """The most allocations of the group on a slot."""
    refused_kinds: frozenset[int] = ANY_KIND
    """The kinds of agents that do not meet the needs of the group."""

    def __iter__(self) -> Iterator[AllocationRequest]:
        requests = self.queue.requests(self.group, self.refused_kinds)
        return requests if self.sharers == 1 else self._first_sharers(requests)

    def _first_sharers(self, requests: Iterator[AllocationRequest]) -> Iterator[AllocationRequest]:
        counts: Counter[tuple[str, ...]] = Counter()
        for request in requests:
            if counts[request.excluded_agents] % self.sharers == 0:
                yield request
            counts[request.excluded_agents] += 1


@dataclass(frozen=True, slots=True)
class GroupAllocations:
    """The running allocations of a group, as an iterable. Each iteration reads the allocations
    again.
    """

    running_allocations: Callable[[int], Iterator[RunningAllocation]]
    """Iterates over the running allocations of a group, by the group's number."""
    group: int
    preemptible: bool = True
    """Whether the scheduler may preempt the allocations for other jobs."""

    def __iter__(self) -> Iterator[RunningAllocation]:
        allocations = self.running_allocations(self.group)
        if self.preemptible:
            return allocations
        return (replace(allocation, preemptible=False) for allocation in allocations)


class JobQueue:
    """The jobs and queued requests of the context's pool."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._requests = OrderedMap(context, "requests", REQUESTS_PER_PART)
        self._groups = OrderedMap(context, "groups", GROUPS_PER_PART)
        self._idle = OrderedMap(context, "idle", GROUPS_PER_PART)

    def add(self, request: AllocationRequest) -> bool:
        """Add a request to the queue, and create the request's group if the pool has not stored the
        group.

        Return False, without a change, if a request with the same ticket is queued already.
        """
        key = _request_key(request.group, request.ticket)
        if self._requests.get(key) is not None:
            return False
        excluded = (request.excluded_agents,) if request.excluded_agents else ()
        self._requests.put(key, (request.allocation_id, request.slots, *excluded))
        group = self._group_of(request)
        self._write_group(request.group, _with_pending(group, request, 1))
        return True

    def remove(self, request: AllocationRequest) -> bool:
        """Remove a request from the queue. Return whether the request was queued.

        The request is found by group and ticket, and must have the same allocation id. Otherwise
        nothing changes.
        """
        key = _request_key(request.group, request.ticket)
        stored = self._requests.get(key)
        if not isinstance(stored, list | tuple) or stored[0] != request.allocation_id:
            return False
        self._requests.remove(key)
        queued = replace(request, slots=stored[1], excluded_agents=_excluded_agents(stored))
        self._write_group(request.group, _with_pending(self.group(request.group), queued, -1))
        return True

    def start_request(self, request: AllocationRequest, held_slots: int) -> None:
        """Move a queued request to the running allocations of the request's group.

        The request must be queued; this is not checked.

        Args:
            held_slots: the slots that now count as held. 0 for a start on a slot that another
                allocation of the group holds.
        """
        self._requests.remove(_request_key(request.group, request.ticket))
        group = _with_pending(self.group(request.group), request, -1)
        held = group.held + held_slots
        self._write_group(request.group, replace(group, running=group.running + 1, held=held))

    def add_leaving_slots(self, group: int, slots: int) -> None:
        """Count `slots` more held slots of the group as leaving: their allocations were asked to
        release slots.
        """
        before = self.group(group)
        self._write_group(group, replace(before, leaving=before.leaving + slots))

    def release_slots(self, group: int, slots: int, *, ended: bool, leaving_slots: int) -> None:
        """Count `slots` slots of the group as released. A group without row, requests and slots is
        removed.

        Args:
            ended: Whether an allocation has released its last slots.
            leaving_slots: How many fewer held slots leave. Negative if the remaining allocations of
                a shared slot all leave.
        """
        before = self.group(group)
        after = replace(
            before,
            running=before.running - ended,
            held=before.held - slots,
            leaving=before.leaving - leaving_slots,
        )
        self._write_group(group, after)

    def reload_group(self, group: int) -> bool:
        """Read the group's job row again, and store the settings. Return whether the group has
        changed.

        Without a job row, a group with requests or allocations keeps its settings, and any other
        group is removed. A new stay of the job in this pool restarts the wait.
        """
        before, row = self._read_group(group), self._job_row(group)
        after = replace(before or Group(), has_row=row is not None)
        if row is not None:
            after = replace(after, row=row)
            if row.stay != (before or after).row.stay:
                # The job has left this pool and come back, so the wait begins again.
                after = replace(after, stays_since_ms=None)
        if before is None and row is None:
            return False
        self._write_group(group, after)
        return after != before

    def restart_future_waits(self) -> None:
        """Restart waits of jobs with a recorded start in the future, from a host with a fast clock.

        A start counts as future if it is more than SKEW_MS_MAX after now. The present time replaces
        the start of the wait for slots and of the stay in the pool. A restarted stay sets a
        PatienceEnded timer. At most RESTARTED_WAITS_MAX jobs are corrected in a call.
        """
        now_ms = self._context.now_ms
        future = (
            (number, group)
            for number, group in self.groups_at_work()
            if any(is_from_future(since, now_ms) for since in _times(group))
        )
        for number, group in list(islice(future, RESTARTED_WAITS_MAX)):
            self._write_group(number, group)

    def mark_released(self, group: int) -> None:
        """Mark the group as released: the pool has sent the experiment a WaitEnded. The caller
        sends it.
        """
        self._write_group(group, replace(self.group(group), released=True))

    def group(self, group: int) -> Group:
        """Return a group by number. Return an empty group for an unknown number."""
        return self._read_group(group) or Group()

    def group_at_work(self, group: int) -> Group | None:
        """Return a group that requests or holds slots, by number. Return None for other groups.

        In a pool that does not store idle groups apart, idle groups are returned too.
        """
        stored = self._groups.get(_group_key(group))
        return None if stored is None else decode_group(stored)

    def groups(self) -> Iterator[tuple[int, Group]]:
        """Iterate over pairs of number and group, for all groups.

        Idle groups that are stored apart come first.
        """
        for leaf in self._idle.leaves():
            yield from leaf.compute_once(decode_groups, None)
        yield from self.groups_at_work()

    def groups_at_work(self) -> Iterator[tuple[int, Group]]:
        """Iterate over pairs of number and group, for the groups that request or hold slots.

        In a pool that does not store idle groups apart, the idle groups are included.
        """
        for leaf in self._groups.leaves():
            yield from leaf.compute_once(decode_groups, None)

    def jobs(
        self,
        priority: int,
        running_allocations: Callable[[int], Iterator[RunningAllocation]],
        refused_kinds: Callable[[AgentNeeds], frozenset[int]],
    ) -> Iterator[Job]:
        """Iterate over the groups that request or hold slots, as jobs for the scheduler.

        Args:
            priority: The priority of jobs whose own priority is not set.
            running_allocations: Iterates over the running allocations of a group.
            refused_kinds: Returns the kinds of agents that do not meet needs.
        """
        for number, group in self.groups_at_work():
            if group.is_idle:
                continue
            row = group.row
            holdings = GroupAllocations(running_allocations, number, row.preemptible)
            refused = refused_kinds(row.needs) if group.pending or group.running else ANY_KIND
            requests = GroupRequests(self, number, row.slot_sharers, refused)
            pending = requests if group.pending else ()
            pending_slots = group.pending_slots
            if group.excluding and row.slot_sharers > 1:
                pending_slots = Counter(request.slots for request in pending)
            yield Job(
                group=number,
                submitted_ms=row.submitted_ms,
                weight=row.weight,
                priority=priority if row.priority is None else row.priority,
                position=row.queue_position(),
                max_slots=row.max_slots,
                label=row.label,
                single_agent=row.single_agent,
                pending=pending,
                allocations=holdings if group.running else (),
                pending_slots=pending_slots,
                held_slots=group.held,
                non_preemptible_slots=0 if row.preemptible else group.held,
                leaving_slots=group.leaving,
                excluding=group.excluding,
                slot_sharers=row.slot_sharers,
                waits_since_ms=_waits_since_ms(group),
                refused_kinds=refused,
                needs=row.needs.text if refused else "",
            )

    def requests(
        self, group: int, refused_kinds: frozenset[int] = ANY_KIND
    ) -> Iterator[AllocationRequest]:
        """Iterate over the queued requests of a group, by ticket. An unknown group has none.

        Each request gets `refused_kinds`.
        """
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
                _excluded_agents(value),
                refused_kinds,
            )

    def all_requests(self) -> Iterator[AllocationRequest]:
        """Iterate over all queued requests, by group and ticket.

        Label, `single_agent` and `preemptible` have their defaults, because the groups are not
        read.
        """
        for key, value in self._requests.items():
            assert isinstance(value, list | tuple)
            group, ticket = _parse_request_key(key)
            excluded = _excluded_agents(value)
            yield AllocationRequest(value[0], value[1], ticket, group, excluded_agents=excluded)

    def _group_of(self, request: AllocationRequest) -> Group:
        """Return the group of a request, or a new group if the pool has not stored the group yet.

        A new group gets the settings of the job row. Without a row, the group only gets the time of
        submission from the request's ticket. Nothing is written.
        """
        stored = self._read_group(request.group)
        if stored is not None:
            return stored
        row = self._job_row(request.group)
        if row is not None:
            return Group(row, has_row=True)
        submitted = request.ticket[:_SUBMITTED_DIGITS]
        return Group(JobRow(int(submitted) if submitted.isdigit() else 0))

    def _job_row(self, group: int) -> JobRow | None:
        """Return the job row of a group. Return None if the row does not exist."""
        pool = self._context.address.partition("#")[2]
        row = self._context.row(jobs_partition(pool), job_sort_key(group))
        return decode_job(row.body) if row.revision else None

    def _read_group(self, group: int) -> Group | None:
        """Return a group by number, from the groups at work or the idle groups. Return None if
        unknown.
        """
        stored = self._groups.get(_group_key(group))
        if stored is None and self._settings().stores_idle_jobs_apart:
            stored = self._idle.get(_group_key(group))
        return None if stored is None else decode_group(stored)

    def _time_of_wait(self, group: Group) -> int | None:
        """Return the time since which the group has waited for slots, in epoch ms.

        Return None if the group does not wait, or if the pool reserves no slots.
        """
        if not group.waits_for_slots or self._reserve_after_ms() is None:
            return None
        return self._recorded_time_or_now(group.waits_since_ms or group.row.waits_since_ms)

    def _with_stay(self, number: int, group: Group) -> Group:
        """Return the group with an updated `stays_since_ms`. A new wait sets a PatienceEnded timer.

        A group that does not wait, or that has no patience, gets None and is no longer released.
        """
        if group.row.patience_ms is None or group.running or not group.pending:
            is_unset = group.stays_since_ms is None and not group.released
            return group if is_unset else replace(group, stays_since_ms=None, released=False)
        since_ms = self._recorded_time_or_now(group.stays_since_ms)
        if since_ms == group.stays_since_ms:
            return group
        due_ms = since_ms + group.row.patience_ms
        self._context.set_timer(due_ms, PatienceEnded(number, since_ms))
        return replace(group, stays_since_ms=since_ms, released=False)

    def _recorded_time_or_now(self, recorded_ms: int | None) -> int:
        """Return a recorded time, or the present time if no time was recorded.

        A time in the future, from a host with a fast clock, is replaced by the present time as
        well.
        """
        now_ms = self._context.now_ms
        if recorded_ms is None or is_from_future(recorded_ms, now_ms):
            return now_ms
        return recorded_ms

    def _reserve_after_ms(self) -> int | None:
        """Return `PoolSettings.reserve_after_ms`: the wait after which the pool reserves slots for
        a job, in ms.

        None: the pool reserves no slots.
        """
        return self._settings().reserve_after_ms

    def _settings(self) -> PoolSettings:
        """Return the pool's settings, the defaults if the part does not exist."""
        return self._context.part("settings", PoolSettings) or PoolSettings()

    def _write_group(self, group: int, after: Group) -> None:
        """Write a group with updated waits. A new stay sets a timer for the end of the job's
        patience.

        A group without a row, requests and allocations is removed. An idle group moves to a
        separate map if the pool's settings say `stores_idle_jobs_apart`.
        """
        key, idle_apart = _group_key(group), self._settings().stores_idle_jobs_apart
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
            home.put(key, encode_group(after))


def _times(group: Group) -> Iterator[int]:
    """Iterate over the recorded start times of a group's waits."""
    return (
        since_ms
        for since_ms in (group.waits_since_ms, group.stays_since_ms)
        if since_ms is not None
    )


def _waits_since_ms(group: Group) -> int | None:
    """Return the time since which a group has waited for slots, in epoch ms.

    Return the time of submission if no time was recorded. Return None if the group does not wait.
    """
    if not group.waits_for_slots:
        return None
    return group.row.submitted_ms if group.waits_since_ms is None else group.waits_since_ms


def _with_pending(group: Group, request: AllocationRequest, more: int) -> Group:
    """Return the group with `more` more queued requests like `request`. A negative number removes
    requests.
    """
    slots = request.slots
    count = group.pending.get(slots, 0) + more
    others = {size: number for size, number in group.pending.items() if size != slots}
    group = replace(group, pending={**others, slots: count} if count else others)
    if request.excluded_agents:
        # An older release may have added requests without counting exclusions.
        group = replace(group, excluding=max(0, group.excluding + more))
    return group


def _excluded_agents(stored: Sequence[Any]) -> tuple[str, ...]:
    """Return the excluded agents of a stored request. They are the third value, if any."""
    return tuple(stored[2]) if len(stored) > 2 else ()


def _group_key(group: int) -> str:
    """Return the key of a group in the ordered maps."""
    return f"{group:012d}"


def _request_key(group: int, ticket: str) -> str:
    """Return the key of a request in the ordered map, `GROUP.TICKET`.

    With an empty ticket, the key sorts before all keys of the group.
    """
    return f"{group:012d}.{ticket}"


def _parse_request_key(key: str) -> tuple[int, str]:
    """Return the group's number and the ticket from the key of a request."""
    group, _, ticket = key.partition(".")
    return int(group), ticket
