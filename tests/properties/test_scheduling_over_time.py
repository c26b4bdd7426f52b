"""Schedulers over many plans: preempted allocations leave in any order, and wait again."""

import random

from hypothesis import given
from hypothesis import strategies as st

from control_plane.scheduling.model import SchedulerRules
from control_plane.scheduling.shares import ShareClaim, offer_shares
from tests.properties.pool_over_time import PoolOverTime

PREEMPTION = SchedulerRules("priority", preemption=True)
FAIR_SHARE = SchedulerRules("fair_share")
ROUND_ROBIN = SchedulerRules("round_robin")


@given(
    st.randoms(use_true_random=False),
    st.integers(1, 4),
    st.sampled_from([2, 4, 8]),
    st.sampled_from([41, 42]),
)
def test_job_moved_ahead_gets_slots_after_later_jobs_left(
    chance: random.Random, agents: int, size: int, priority: int
) -> None:
    pool = PoolOverTime({f"a{n}": size for n in range(agents)}, PREEMPTION)
    total = agents * size
    for group in range(10, 10 + chance.randint(1, 3)):
        pool.add_job(group, chance.choice([1, 1, 2]), 2 * total)
    pool.make_plan()
    wanted = size * chance.randint(1, agents)
    pool.add_job(1, wanted, 1, priority=priority)
    departures = 0
    while not pool.held_slots(1):
        pool.make_plan()
        for name in chance.sample(pool.leaving, min(len(pool.leaving), chance.randint(1, 3))):
            pool.end_allocation(name)
            departures += 1
        assert departures <= total
        assert pool.preemptions <= total
        assert pool.leaving or departures
        pool.make_plan()


def random_pool(chance: random.Random, rules: SchedulerRules) -> PoolOverTime:
    """Return a pool with jobs that fill the agents, and further jobs."""
    size = chance.choice([4, 8])
    agents = {f"a{n}": size for n in range(chance.randint(1, 5))}
    if chance.random() < 0.3:
        agents |= {"b": 2, "c": chance.choice([2, 4, 8])}
    pool, total = PoolOverTime(agents, rules), sum(agents.values())
    groups = list(range(1, 8))
    chance.shuffle(groups)
    first = chance.randint(1, 3)
    for number, group in enumerate(groups[: first + chance.randint(1, 4)]):
        if number == first:
            pool.come_to_rest(chance)
        slots = chance.choice([1, 1, 2, 3, 4, 8, 8, 16])
        pool.add_job(
            group,
            slots,
            chance.choice([1, 2, 4, total // slots + 1, total]),
            weight=chance.choice([1.0, 1.0, 2.0, 0.5, 3.0]),
            priority=chance.choice([42, 42, 10, 99]),
            max_slots=chance.choice([None, None, None, max(slots, total // 2)]),
        )
    return pool


@given(
    st.randoms(use_true_random=False),
    st.sampled_from([FAIR_SHARE, PREEMPTION, ROUND_ROBIN, SchedulerRules("priority")]),
)
def test_pool_becomes_stable(chance: random.Random, rules: SchedulerRules) -> None:
    pool = random_pool(chance, rules)
    pool.preemptions = 0
    assert pool.come_to_rest(chance)
    # Each slot is preempted a few times at most for new jobs.
    assert pool.preemptions <= 3 * sum(pool.agents.values())
    rests = pool.make_plan()
    assert not rests.starts
    assert not rests.victims


@given(
    st.randoms(use_true_random=False),
    st.sampled_from([FAIR_SHARE, PREEMPTION, ROUND_ROBIN, SchedulerRules("priority")]),
)
def test_pool_with_excluded_agents_becomes_stable(
    chance: random.Random, rules: SchedulerRules
) -> None:
    pool = random_pool(chance, rules)
    pool.make_plan()
    for name in chance.sample([*pool.running], chance.randint(0, len(pool.running))):
        pool.fail_allocation(name)
        if chance.random() < 0.3:
            pool.make_plan()
    pool.preemptions = 0
    assert pool.come_to_rest(chance)
    assert pool.preemptions <= 3 * sum(pool.agents.values())
    for name, running in pool.running.items():
        assert not {*pool.excluded[name]} & {place.agent for place in running.placements}
    if rules == FAIR_SHARE:
        assert not pool.waiting_that_fit()


def test_shares_that_depend_on_waiting_jobs_do_not_oscillate() -> None:
    """Four trials would leave for a trial of 8 slots; that job then has no usable share."""
    chance = random.Random(33852)
    assert random_pool(chance, FAIR_SHARE).come_to_rest(chance)


@given(st.randoms(use_true_random=False))
def test_stable_fair_share_leaves_no_fitting_slots_idle(chance: random.Random) -> None:
    pool = random_pool(chance, FAIR_SHARE)
    assert pool.come_to_rest(chance)
    assert not pool.waiting_that_fit()


@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_trials_of_a_single_slot_are_shared_by_weight(chance: random.Random, total: int) -> None:
    pool = PoolOverTime({"a": total}, FAIR_SHARE)
    weights = [chance.choice([1.0, 2.0, 0.5, 3.0]) for _ in range(chance.randint(1, 5))]
    for group, weight in enumerate(weights, 1):
        pool.add_job(group, 1, total, weight=weight)
        pool.make_plan()
    assert pool.come_to_rest(chance)
    claims = [ShareClaim(n, (n, n), total, weight) for n, weight in enumerate(weights, 1)]
    offer_shares(claims, total)
    assert [pool.held_slots(one.group) for one in claims] == [one.offered for one in claims]
