"""Reservations: the job, the agents and the duration."""

from collections.abc import Sequence
from typing import Any

import pytest

from control_plane.scheduling.model import AgentCapacity, Job, SchedulerRules
from control_plane.scheduling.reservations import Reservation, renew_reservation
from tests.unit.scheduling.clusters import (
    FAIR_SHARE,
    PREEMPTION,
    PRIORITY,
    ROUND_ROBIN,
    agent,
    job,
    running_allocation,
)

AFTER_MS, NOW_MS = 600, 1000
DUE_MS = NOW_MS - AFTER_MS


def reservation_of(
    jobs: Sequence[Job],
    agents: Sequence[AgentCapacity],
    rules: SchedulerRules = FAIR_SHARE,
    current: Reservation | None = None,
    after_ms: int | None = AFTER_MS,
    last_slots: int = 0,
) -> Reservation | None:
    return renew_reservation(
        jobs,
        agents,
        rules,
        current,
        after_ms=after_ms,
        now_ms=NOW_MS,
        started=7,
        last_slots=last_slots,
    )


def waiting(group: int, *slots: int, since_ms: int = DUE_MS, **settings: Any) -> Job:
    return job(group, *slots, waits_since_ms=since_ms, **settings)


def test_slots_are_held_for_job_after_wait() -> None:
    assert reservation_of([waiting(1, 8)], [agent("a", 8, 3)]) == Reservation(1, 8, ("a",), 7)
    assert reservation_of([waiting(1, 8, since_ms=DUE_MS + 1)], [agent("a", 8, 3)]) is None
    assert reservation_of([job(1, 8)], [agent("a", 8, 3)]) is None
    assert reservation_of([waiting(1, 8)], [agent("a", 8, 3)], after_ms=None) is None


def test_preemption_needs_no_reservation() -> None:
    assert reservation_of([waiting(1, 8)], [agent("a", 8, 3)], PREEMPTION) is None


def test_job_with_slots_gets_no_reservation() -> None:
    runs = [running_allocation("1z", 1, ("a", 1))]
    assert reservation_of([waiting(2, 4, runs=runs)], [agent("a", 8, 3)]) is None


@pytest.mark.parametrize("rules", [FAIR_SHARE, ROUND_ROBIN, PRIORITY], ids=lambda one: one.kind)
def test_single_slot_is_reserved_unless_by_priority(
    rules: SchedulerRules,
) -> None:
    """In a priority pool, no request behind overtakes a request for a single slot."""
    held = reservation_of([waiting(1, 1)], [agent("a", 8, 0)], rules)
    assert held == (None if rules == PRIORITY else Reservation(1, 1, ("a",), 7))


def test_single_and_multiple_slot_reservations_alternate() -> None:
    jobs = [waiting(n, 1 if n < 3 else 4, since_ms=n) for n in (1, 2, 3, 4)]
    agents = [agent("a", 8, 0)]
    for last_slots, group in [(0, 3), (1, 3), (4, 1)]:
        held = reservation_of(jobs, agents, last_slots=last_slots)
        assert held is not None
        assert held.group == group
    # Without jobs of the other kind, no turn is skipped.
    for only, last_slots in [(jobs[:2], 1), (jobs[2:], 4)]:
        held = reservation_of(only, agents, last_slots=last_slots)
        assert held is not None
        assert held.group == only[0].group


@pytest.mark.parametrize(
    ("agents", "names"),
    [
        # Agent b with 5 free slots lacks fewer of 6 than a with 4. Of equal agents, the smaller
        # wins.
        ([agent("a", 8, 4), agent("b", 8, 5)], ("b",)),
        ([agent("a", 8, 4), agent("b", 6, 4)], ("b",)),
        ([agent("a", 8, 8, draining=True), agent("b", 8, 0)], ("b",)),
        # Without a large enough agent, the gang gets whole agents: the two least used of three.
        ([agent("a", 3, 0), agent("b", 3, 2), agent("c", 3, 1)], ("b", "c")),
        ([agent("a", 4), agent("b", 4)], ()),
        ([agent("a", 8, label="x")], ()),
    ],
)
def test_chooses_agents_lacking_fewest_slots(
    agents: Sequence[AgentCapacity], names: tuple[str, ...]
) -> None:
    held = reservation_of([waiting(1, 6)], agents)
    assert (held.agents if held else ()) == names


def test_oldest_or_most_important_job_is_first() -> None:
    jobs = [
        waiting(1, 12, since_ms=100),
        waiting(2, 8, since_ms=200),
        waiting(3, 8, since_ms=300, priority=10),
    ]
    agents = [agent("a", 8, 0)]
    # 12 never fit on 8.
    for rules, group in ((FAIR_SHARE, 2), (ROUND_ROBIN, 2), (PRIORITY, 3)):
        held = reservation_of(jobs, agents, rules)
        assert held is not None
        assert held.group == group


def test_reservation_stays_while_job_waits_and_fits() -> None:
    current = Reservation(2, 8, ("b",), 3)
    agents = [agent("a", 8, 7), agent("b", 8, 0)]
    jobs = [waiting(1, 8, since_ms=0), waiting(2, 8)]
    assert reservation_of(jobs, agents, current=current) == current
    later = Reservation(1, 8, ("a",), 7)
    # The job has gone, the agent has gone or drains, the agent is too small, or the job's limit is.
    assert reservation_of(jobs[:1], agents, current=current) == later
    assert reservation_of(jobs, agents[:1], current=current) == later
    drains = agent("b", 8, 0, draining=True)
    assert reservation_of(jobs, [agents[0], drains], current=current) == later
    assert reservation_of(jobs, [agents[0], agent("b", 4)], current=current) == later
    limited = waiting(2, 8, max_slots=4)
    assert reservation_of([jobs[0], limited], agents, current=current) == later


def test_more_important_job_replaces_reservation() -> None:
    current = Reservation(2, 8, ("a",), 3)
    jobs = [waiting(1, 8, priority=10), waiting(2, 8, since_ms=0)]
    agents = [agent("a", 8, 0)]
    assert reservation_of(jobs, agents, PRIORITY, current) == Reservation(1, 8, ("a",), 7)
    assert reservation_of(jobs, agents, ROUND_ROBIN, current) == current
