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


def random_pool(chance: random.Random, rules: SchedulerRules, *, kinds: int = 1) -> PoolOverTime:
    """Return a pool with jobs that fill the agents, and further jobs.

    With several `kinds` of agents, most jobs refuse some kinds.
    """
    size = chance.choice([4, 8])
    agents = {f"a{n}": size for n in range(chance.randint(1, 5))}
    if chance.random() < 0.3:
        agents |= {"b": 2, "c": chance.choice([2, 4, 8])}
    pool, total = PoolOverTime(agents, rules), sum(agents.values())
    if kinds > 1:
        pool.kinds = {name: chance.randrange(kinds) for name in agents}
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
            refused_kinds=some_kinds(chance, kinds),
        )
    return pool


def some_kinds(chance: random.Random, kinds: int) -> frozenset[int]:
    """Return fewer than `kinds` kinds of agents."""
    if kinds == 1:
        return frozenset()
    return frozenset(chance.sample(range(kinds), chance.randrange(kinds)))


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


@given(
    st.randoms(use_true_random=False),
    st.integers(2, 3),
    st.sampled_from([FAIR_SHARE, PREEMPTION, ROUND_ROBIN, SchedulerRules("priority")]),
)
def test_pool_of_unequal_agents_becomes_stable(
    chance: random.Random, kinds: int, rules: SchedulerRules
) -> None:
    pool = random_pool(chance, rules, kinds=kinds)
    pool.make_plan()
    for name in chance.sample([*pool.running], chance.randint(0, len(pool.running) // 2)):
        pool.fail_allocation(name)
    pool.preemptions = 0
    assert pool.come_to_rest(chance)
    assert pool.preemptions <= 3 * sum(pool.agents.values())
    for running in pool.running.values():
        refused = pool.refused_agents(running.group)
        assert not refused & {place.agent for place in running.placements}
    if rules == FAIR_SHARE:
        assert not pool.waiting_that_fit()


@given(
    st.randoms(use_true_random=False),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.integers(1, 20),
    st.sampled_from([FAIR_SHARE, PREEMPTION]),
)
def test_job_with_needs_gets_its_share_of_the_agents_that_meet_them(
    chance: random.Random, plain: list[int], special: list[int], count: int, rules: SchedulerRules
) -> None:
    agents = {f"p{n}": size for n, size in enumerate(plain)}
    agents |= {f"s{n}": size for n, size in enumerate(special)}
    pool = PoolOverTime(agents, rules)
    pool.kinds = {name: int(name.startswith("s")) for name in agents}
    total = sum(plain) + sum(special)
    pool.add_job(1, 1, 2 * total)
    pool.make_plan()
    pool.add_job(2, 1, count, priority=1, refused_kinds=frozenset({0}))
    assert pool.come_to_rest(chance)
    usable = min(count, sum(special))
    # Half of an odd number of slots is rounded up for one of the two jobs.
    least = min(usable, total // 2) if rules == FAIR_SHARE else usable
    assert least <= pool.held_slots(2) <= usable
    assert pool.held_slots(1) == total - pool.held_slots(2)


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
