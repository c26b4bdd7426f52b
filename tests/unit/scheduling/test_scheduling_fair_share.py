"""Fair share: starts, preemption and lending."""

from tests.unit.scheduling.clusters import (
    FAIR_SHARE,
    agent,
    job,
    make_plan,
    preempted_allocations,
    running_allocation,
    started_requests,
)


def test_two_jobs_start_up_to_their_shares() -> None:
    # 8 slots, 4 each.
    plan = make_plan(FAIR_SHARE, [agent("a", 8)], job(1, *[1] * 8), job(2, *[1] * 8))
    assert started_requests(plan) == ["1a", "1b", "1c", "1d", "2a", "2b", "2c", "2d"]
    assert plan.wait_reason == "needs 1 slot, 0 free; its share is 4 of 8 slots"


def test_new_job_on_full_cluster_changes_shares() -> None:
    runs = [running_allocation(f"r{n}", n, ("a", 1)) for n in range(1, 9)]
    plan = make_plan(FAIR_SHARE, [agent("a", 8, 0)], job(1, runs=runs), job(2, *[1] * 8))
    # 4 slots each. Job 1 has 8 and preempts the 4 oldest. Job 2 waits for the slots.
    assert preempted_allocations(plan) == ["r1", "r2", "r3", "r4"]
    assert plan.victims[0].reason == "its share is 4 of 8 slots"
    assert started_requests(plan) == []
    assert plan.wait_reason == "needs 1 slot, 0 free"


def test_stopping_allocations_count_as_stopped() -> None:
    runs = [running_allocation(f"r{n}", n, ("a", 1), leaving=n > 6) for n in range(1, 9)]
    plan = make_plan(FAIR_SHARE, [agent("a", 8, 0)], job(1, runs=runs), job(2, *[1] * 8))
    # The excess is 4 slots. Two allocations are already stopping, so 2 more victims are enough.
    assert preempted_allocations(plan) == ["r1", "r2"]


def test_non_preemptible_allocations_stay() -> None:
    runs = [running_allocation(f"r{n}", n, ("a", 2), preemptible=n > 2) for n in range(1, 5)]
    plan = make_plan(FAIR_SHARE, [agent("a", 8, 0)], job(1, runs=runs), job(2, *[1] * 8))
    # r1 and r2 use 4 slots, which are offered first. Job 2 gets the other 4, because job 1 has
    # already had its 2 of the first round and 1 + 1 of the next rounds. The shares are 4 each.
    assert preempted_allocations(plan) == ["r3", "r4"]


def test_share_is_limited_by_max_slots() -> None:
    agents = [agent("a", 8)]
    plan = make_plan(FAIR_SHARE, agents, job(1, *[1] * 8, max_slots=2), job(2, *[1] * 8))
    # Job 1 asks for 2, so job 2 gets 6.
    assert started_requests(plan) == ["1a", "1b", "2a", "2b", "2c", "2d", "2e", "2f"]


def test_smaller_max_slots_preempts_the_oldest() -> None:
    runs = [running_allocation(f"r{n}", n, ("a", 1)) for n in range(1, 4)]
    plan = make_plan(FAIR_SHARE, [agent("a", 8, 5)], job(1, runs=runs, max_slots=1))
    assert preempted_allocations(plan) == ["r1", "r2"]


def test_request_that_never_fits_has_no_share() -> None:
    # 12 slots never fit agents of 8. Otherwise job 2 would block 8 of 16 slots forever.
    agents = [agent("a", 8), agent("b", 8)]
    plan = make_plan(FAIR_SHARE, agents, job(1, *[8] * 2), job(2, 12))
    assert started_requests(plan) == ["1a", "1b"]
    assert plan.wait_reason == "needs 12 slots: agents have 8; it would fit with 8 or 16"


def test_share_below_smallest_request_is_given_up() -> None:
    # 4 slots each. Job 2 needs 8 and gives up its offer, which job 1 gets.
    plan = make_plan(FAIR_SHARE, [agent("a", 8)], job(1, *[1] * 8), job(2, 8))
    assert started_requests(plan) == [f"1{letter}" for letter in "abcdefgh"]


def test_zero_slot_requests_ignore_shares() -> None:
    plan = make_plan(
        FAIR_SHARE, [agent("a", 2, 0, aux_free=2)], job(1, 0, 0, max_slots=0), job(2, 0)
    )
    # Requests start in the order of tickets: the two places go to job 1.
    assert started_requests(plan) == ["1a", "1b"]


def test_request_without_room_waits_for_next_plan() -> None:
    # Shares are 6 each. Job 1 takes the agent of 6 slots. Job 2's request fitted that agent before
    # the plan, so it counts against the share, but finds no place now.
    agents = [agent("a", 6), agent("b", 4), agent("c", 2)]
    plan = make_plan(FAIR_SHARE, agents, job(1, 6), job(2, 6))
    assert started_requests(plan) == ["1a"]
    assert plan.wait_reason == "needs 6 slots on one agent, 4 free on one"


def test_gang_starts_within_the_share() -> None:
    agents = [agent("a", 8), agent("b", 8)]
    plan = make_plan(FAIR_SHARE, agents, job(1, 16), job(2, 0))
    assert started_requests(plan) == ["2a", "1a"]
    assert sorted(place.agent for place in plan.starts[1].placements) == ["a", "b"]


def test_weights_decide_preemption() -> None:
    ones = [running_allocation(f"r{n}", n, ("a", 1)) for n in range(1, 5)]
    twos = [running_allocation(f"s{n}", n + 4, ("a", 1)) for n in range(1, 5)]
    jobs = (job(1, *[1] * 8, runs=ones), job(2, *[1] * 8, runs=twos, weight=3.0))
    # 8 x 1/4 = 2 and 8 x 3/4 = 6.
    assert preempted_allocations(make_plan(FAIR_SHARE, [agent("a", 8, 0)], *jobs)) == ["r1", "r2"]


def test_unusable_slots_of_shares_are_lent() -> None:
    # 6 each, of which trials of 4 slots use 4: the third agent would stay idle.
    agents = [agent(name, 4) for name in "abc"]
    plan = make_plan(FAIR_SHARE, agents, job(1, *[4] * 4), job(2, *[4] * 4))
    assert started_requests(plan) == ["1a", "2a", "1b"]


def test_idle_slots_are_lent_in_turn() -> None:
    # 20/3 = 6 each and an extra slot for the first two: 7, 7, 6. Two idle agents are left, and jobs
    # 1 and 2 get a turn each.
    agents = [agent(name, 4) for name in "abcde"]
    plan = make_plan(FAIR_SHARE, agents, *(job(n, *[4] * 4) for n in (1, 2, 3)))
    assert started_requests(plan) == ["1a", "2a", "3a", "1b", "2b"]


def test_idle_slots_do_not_exceed_a_limit() -> None:
    agents = [agent(name, 4) for name in "abc"]
    plan = make_plan(FAIR_SHARE, agents, job(1, *[4] * 4, max_slots=7), job(2, *[4] * 4))
    assert started_requests(plan) == ["1a", "2a", "2b"]


def test_excess_stays_while_no_request_fits() -> None:
    # 6 each. Job 1 has 8, and job 2 may have 2 more, but asks for 4 at once.
    ones = [running_allocation(f"r{n}", n, (name, 4)) for n, name in enumerate("ab")]
    twos = [running_allocation("s", 2, ("c", 4))]
    jobs = (job(1, 4, runs=ones), job(2, 4, runs=twos))
    plan = make_plan(FAIR_SHARE, [agent(name, 4, 0) for name in "abc"], *jobs)
    assert preempted_allocations(plan) == []
    # Job 3 can use slots of size 1, so job 1 gives back a slot: the shares are 4 each.
    plan = make_plan(FAIR_SHARE, [agent(name, 4, 0) for name in "abc"], *jobs, job(3, *[1] * 8))
    assert preempted_allocations(plan) == ["r0"]


def test_victims_are_on_a_single_agent_if_the_oldest_make_no_room() -> None:
    # 4 each. The oldest four of job 1 would leave 2 free slots on each agent.
    runs = [running_allocation(f"r{n}", n, ("ab"[n % 2], 1)) for n in range(8)]
    agents = [agent("a", 4, 0), agent("b", 4, 0)]
    plan = make_plan(FAIR_SHARE, agents, job(1, runs=runs), job(2, 4))
    assert preempted_allocations(plan) == ["r0", "r2", "r4", "r6"]


def test_no_slots_are_lent_while_allocations_stop() -> None:
    runs = [running_allocation("r", 1, ("a", 4), leaving=True)]
    agents = [agent("a", 4, 0), agent("b", 4), agent("c", 4)]
    plan = make_plan(FAIR_SHARE, agents, job(1, *[4] * 4, runs=runs), job(2, *[4] * 4))
    assert started_requests(plan) == ["2a"]
