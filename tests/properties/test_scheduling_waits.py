"""The bound on a job's wait, in streams of smaller trials and in overloaded pools."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.scheduling.model import AgentCapacity, Job, SchedulePlan, SchedulerRules
from control_plane.scheduling.reservations import (
    Reservation,
    keep_allocations,
    renew_reservation,
)
from control_plane.scheduling.schedule import schedule_jobs, wait_reasons
from tests.properties.pool_over_time import PoolOverTime
from tests.properties.test_scheduling import random_pool

FAIR_SHARE = SchedulerRules("fair_share")
ROUND_ROBIN = SchedulerRules("round_robin")
PREEMPTION = SchedulerRules("priority", preemption=True)
# The schedulers that do not immediately make room for a job of the same rank.
PATIENT = [FAIR_SHARE, SchedulerRules("priority"), ROUND_ROBIN]
# All times are in minutes: the wait before slots are reserved, the longest run, and the longest
# time until a preempted trial has left.
WAIT, RUN_MAX, LEAVE_MAX = 10, 20, 3
# From the submission until a job has its slots: the wait, earlier runs on the agents, and in a fair
# share the borrowers.
BOUND = WAIT + RUN_MAX + LEAVE_MAX
# The average number of preemptions of a slot in a minute.
GIVEN_UP_MAX = 2


def wait_max(before: int) -> int:
    """Return the longest wait of a job when `before` jobs have waited longer.

    Slots are reserved in turn for a job of one slot and for a job of several. Each takes until
    earlier runs have left.
    """
    return WAIT + 2 * (before + 1) * (BOUND - WAIT)


class PoolWithClock(PoolOverTime):
    """A pool planned each minute, with reservations after `wait` minutes.

    None disables reservations.
    """

    def __init__(self, agents: dict[str, int], rules: SchedulerRules, wait: int | None) -> None:
        super().__init__(agents, rules)
        self.minute = 0
        self.reservation: Reservation | None = None
        self._wait = wait
        self._last_slots = 0
        self.since: dict[int, int] = {}
        self._kept_until: dict[str, int] = {}
        self._ends: dict[str, int] = {}

    def run_minute(self, chance: random.Random, run_max: int = RUN_MAX) -> SchedulePlan:
        """End completed runs, and plan.

        Preempted trials leave within a few minutes, and wait again.
        """
        self.minute += 1
        for name in [name for name, at in self._ends.items() if at <= self.minute]:
            del self._ends[name]
            if self.running[name].leaving:
                self.end_allocation(name)
            else:
                self.complete_allocation(name)
        plan = self.make_plan()
        for start in plan.starts:
            self._ends[start.request.allocation_id] = self.minute + chance.randint(1, run_max)
        for victim in plan.victims:
            name = victim.allocation.allocation_id
            leaves = self.minute + chance.randint(1, LEAVE_MAX)
            self._ends[name] = min(self._ends[name], leaves)
        return plan

    def plan(self) -> SchedulePlan:
        jobs, agents = self.snapshot()
        self.reservation = renew_reservation(
            jobs,
            agents,
            self.rules,
            self.reservation,
            after_ms=self._wait,
            now_ms=self.minute,
            started=self.started,
            last_slots=self._last_slots,
        )
        if self.reservation:
            self._last_slots = self.reservation.slots
        plan = schedule_jobs(jobs, agents, self.rules, 10**6, reservation=self.reservation)
        for start in plan.starts:
            if self.reservation and start.request.group == self.reservation.group:
                self._kept_until[start.request.allocation_id] = self.minute + WAIT
        return plan

    def snapshot(self) -> tuple[list[Job], list[AgentCapacity]]:
        jobs, agents = super().snapshot()
        waiting = [job.group for job in jobs if job.pending_slots and not job.held_slots]
        self.since = {group: self.since.get(group, self.minute) for group in waiting}
        kept = {
            name: self.running[name].group
            for name, until in self._kept_until.items()
            if name in self.running and self.minute < until
        }
        timed = (replace(job, waits_since_ms=self.since.get(job.group)) for job in jobs)
        return list(keep_allocations(timed, kept)), agents

    def reasons(self) -> dict[int, str]:
        jobs, agents = self.snapshot()
        return wait_reasons(jobs, agents, self.rules, reservation=self.reservation)


def minutes_until_each_starts(
    pool: PoolWithClock,
    sizes: Sequence[int],
    chance: random.Random,
    *,
    coming: float,
    minutes: int,
) -> list[int]:
    """Add single-slot jobs each minute, and jobs of `sizes` once the pool is busy.

    Return the minutes until each of the latter first starts, for the started jobs.
    """
    group = 0
    large: set[int] = set()
    waits: dict[int, int] = {}
    for minute in range(-RUN_MAX, minutes):
        small = int(coming + chance.random())
        for slots in [1] * small + [*sizes] * (minute == 0):
            group += 1
            pool.add_job(group, slots, 1)
            large |= {group} if minute == 0 and slots > 1 else set()
        for start in pool.run_minute(chance).starts:
            if start.request.group in large:
                waits.setdefault(start.request.group, minute)
        if large and len(waits) == len(sizes):
            break
    return sorted(waits.values())


def random_pool_and_sizes(
    chance: random.Random, rules: SchedulerRules
) -> tuple[PoolWithClock, list[int]]:
    size, count = chance.choice([2, 4, 8]), chance.randint(1, 4)
    pool = PoolWithClock({f"a{n}": size for n in range(count)}, rules, WAIT)
    fitting = [*range(2, size), *(size * whole for whole in range(1, count + 1))]
    return pool, chance.choices(fitting, k=chance.randint(1, 2))


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from(PATIENT))
def test_every_fitting_job_starts_within_the_bound(seed: int, rules: SchedulerRules) -> None:
    chance = random.Random(seed)
    pool, sizes = random_pool_and_sizes(chance, rules)
    waits = minutes_until_each_starts(
        pool,
        sizes,
        chance,
        coming=chance.choice([0.3, 0.7, 1.5]),
        minutes=2 * BOUND + 1,
    )
    assert len(waits) == len(sizes)
    for place, wait in enumerate(waits):
        assert wait <= wait_max(place), (waits, sizes)


def add_random_jobs(pool: PoolWithClock, chance: random.Random, first: int, load: float) -> None:
    """Add jobs, numbered from `first`, with a demand of `load` times the pool's slots."""
    total = sum(pool.agents.values())
    size = max(pool.agents.values())
    # A trial runs for (1 + RUN_MAX) / 2 minutes on the average.
    wanted = load * total / ((1 + RUN_MAX) / 2) + chance.random()
    while wanted >= 1:
        slots, count = chance.choice([1, 1, 1, size, total]), chance.choice([1, 1, 1, 2, 3])
        wanted -= slots * count
        if wanted >= 0 or slots == 1:
            pool.add_job(first, slots, count, weight=chance.choice([1.0, 1.0, 3.0]))
            first += 1


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from([FAIR_SHARE, ROUND_ROBIN]))
def test_every_job_of_an_overloaded_pool_starts_within_the_bound(
    seed: int, rules: SchedulerRules
) -> None:
    """Also for jobs of single slots and of several trials, whenever the job has no slots."""
    chance = random.Random(seed)
    pool, _ = random_pool_and_sizes(chance, rules)
    ahead: dict[tuple[int, int], int] = {}
    for minute in range(4 * BOUND):
        add_random_jobs(pool, chance, 100 * minute, load=1.5)
        pool.run_minute(chance)
        pool.snapshot()
        for group, since in pool.since.items():
            longer = sum((at, other) < (since, group) for other, at in pool.since.items())
            before = ahead.setdefault((group, since), longer)
            assert pool.minute - since <= wait_max(before), (group, before)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.integers(0, 2**32))
def test_priority_pool_serves_single_slot_trials_in_queue_order(seed: int) -> None:
    """Trials of a single slot wait only for trials ahead in the queue."""
    chance = random.Random(seed)
    pool, _ = random_pool_and_sizes(chance, SchedulerRules("priority"))
    for minute in range(2 * BOUND):
        add_random_jobs(pool, chance, 100 * minute, load=1.5)
        started = [start.request for start in pool.run_minute(chance).starts]
        jobs, _ = pool.snapshot()
        first = min((job.group for job in jobs if 1 in job.pending_slots), default=10**9)
        held = pool.reservation.group if pool.reservation else None
        assert all(one.group <= first or one.group == held or one.slots > 1 for one in started)


@pytest.mark.parametrize("rules", PATIENT, ids=lambda rules: rules.kind)
def test_stream_of_small_jobs_starves_a_gang_only_without_reservations(
    rules: SchedulerRules,
) -> None:
    """Jobs of a single slot, nine in ten minutes with 10 minutes on average, use 9 of 16 slots.

    The gang needs all 16 at the same moment.
    """
    waits = {
        wait: minutes_until_each_starts(
            PoolWithClock({"a": 8, "b": 8}, rules, wait),
            [16],
            random.Random(1),
            coming=0.9,
            minutes=240,
        )
        for wait in (None, WAIT)
    }
    assert waits[None] == []
    (held,) = waits[WAIT]
    assert held <= BOUND


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from(PATIENT))
def test_second_plan_with_unchanged_facts_is_empty(seed: int, rules: SchedulerRules) -> None:
    """Also while slots are reserved, lent and taken back."""
    chance = random.Random(seed)
    pool, sizes = random_pool_and_sizes(chance, rules)
    for minute in range(2 * WAIT):
        coming = [1] * chance.randint(0, 2) + [*sizes] * (minute == 5)
        for number, slots in enumerate(coming):
            pool.add_job(10 * minute + number, slots, 1)
        pool.run_minute(chance)
        again = pool.make_plan()
        assert not again.starts
        assert not again.victims


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.integers(0, 2**32), st.sampled_from(PATIENT), st.integers(0, 5))
def test_plan_with_reserved_slots_assigns_slots_once(
    seed: int, rules: SchedulerRules, starts_max: int
) -> None:
    cluster = random_pool(random.Random(seed))
    jobs = [replace(job, waits_since_ms=job.group) for job in cluster.jobs]
    reservation = renew_reservation(
        jobs, cluster.agents, rules, None, after_ms=0, now_ms=100, started=500_000
    )
    whole = schedule_jobs(jobs, cluster.agents, rules, 10**6, reservation=reservation)
    part = schedule_jobs(jobs, cluster.agents, rules, starts_max, reservation=reservation)
    assert part.starts == whole.starts[:starts_max]
    names = [start.request.allocation_id for start in whole.starts]
    assert len(set(names)) == len(names)
    going = [victim.allocation.allocation_id for victim in whole.victims]
    assert len(set(going)) == len(going)
    for agent in cluster.agents:
        given = [p.slots for s in whole.starts for p in s.placements if p.agent == agent.agent]
        assert sum(given) <= agent.free
        assert given.count(0) <= agent.aux_free
    for job in jobs:
        slots = sum(one.request.slots for one in whole.starts if one.request.group == job.group)
        assert not slots or job.max_slots is None or job.held_slots + slots <= job.max_slots
    reasons = wait_reasons(jobs, cluster.agents, rules, reservation=reservation)
    waiting = {job.group for job in jobs for one in job.pending if one.allocation_id not in names}
    assert reasons.keys() == waiting


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from([*PATIENT, PREEMPTION]))
def test_slot_is_preempted_a_few_times_a_minute_at_most(seed: int, rules: SchedulerRules) -> None:
    """Jobs come and go, and preempted trials leave at once.

    Only the rules keep trials from alternating.
    """
    chance = random.Random(seed)
    pool, sizes = random_pool_and_sizes(chance, rules)
    total, group = sum(pool.agents.values()), 0
    for _ in range(3 * WAIT):
        pool.minute += 1
        before = pool.preemptions
        for job in {one.group for one in pool.running.values() if chance.random() < 0.1}:
            pool.remove_job(job)
        for slots in chance.choices([1, 1, *sizes], k=chance.randint(0, 4)):
            group += 1
            priority, weight = chance.choice([42, 42, 10]), chance.choice([1.0, 3.0])
            trials = chance.choice([1, 1, 3])
            pool.add_job(group, slots, trials, priority=priority, weight=weight)
        assert pool.come_to_rest(chance)
        assert pool.preemptions - before <= GIVEN_UP_MAX * total
