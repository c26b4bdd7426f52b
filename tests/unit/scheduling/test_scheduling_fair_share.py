"""Fair share: who starts and who gives back."""

from tests.unit.scheduling.clusters import (
    FAIR_SHARE,
    agent,
    job,
    make_plan,
    preempted_allocations,
    running_allocation,
    started_requests,
)


def test_two_jobs_start_as_much_as_their_shares_hold() -> None:
    # 8 slots, 4 each.
    plan = make_plan(FAIR_SHARE, [agent("a", 8)], job(1, *[1] * 8), job(2, *[1] * 8))
    assert started_requests(plan) == ["1a", "1b", "1c", "1d", "2a", "2b", "2c", "2d"]
    assert plan.wait_reason == "needs 1 slot, 0 free; its share is 4 of 8 slots"


def test_a_full_cluster_is_shared_anew_when_another_job_comes() -> None:
    runs = [running_allocation(f"r{n}", n, ("a", 1)) for n in range(1, 9)]
    plan = make_plan(FAIR_SHARE, [agent("a", 8, 0)], job(1, runs=runs), job(2, *[1] * 8))
    # 4 each: job 1 has 8 and gives 4 back, the oldest first. Job 2 has to wait for them.
    assert preempted_allocations(plan) == ["r1", "r2", "r3", "r4"]
    assert plan.victims[0].reason == "its share is 4 of 8 slots"
    assert started_requests(plan) == []
    assert plan.wait_reason == "needs 1 slot, 0 free"


def test_who_was_asked_to_leave_before_counts_as_given_back() -> None:
    runs = [running_allocation(f"r{n}", n, ("a", 1), leaving=n > 6) for n in range(1, 9)]
    plan = make_plan(FAIR_SHARE, [agent("a", 8, 0)], job(1, runs=runs), job(2, *[1] * 8))
    # 4 have to go and two leave already, whichever they are.
    assert preempted_allocations(plan) == ["r1", "r2"]


def test_what_cannot_be_preempted_stays() -> None:
    runs = [running_allocation(f"r{n}", n, ("a", 2), preemptible=n > 2) for n in range(1, 5)]
    plan = make_plan(FAIR_SHARE, [agent("a", 8, 0)], job(1, runs=runs), job(2, *[1] * 8))
    # r1 and r2 are 4 slots and count as offered first; of the other 4 job 2 gets all, since job 1
    # has had its 2 of the first round and 1 + 1 of the next ones: 4 each.
    assert preempted_allocations(plan) == ["r3", "r4"]


def test_a_job_never_has_more_than_its_max_slots() -> None:
    agents = [agent("a", 8)]
    plan = make_plan(FAIR_SHARE, agents, job(1, *[1] * 8, max_slots=2), job(2, *[1] * 8))
    # Job 1 asks for 2, so job 2 gets 6.
    assert started_requests(plan) == ["1a", "1b", "2a", "2b", "2c", "2d", "2e", "2f"]


def test_a_smaller_limit_takes_the_oldest_back() -> None:
    runs = [running_allocation(f"r{n}", n, ("a", 1)) for n in range(1, 4)]
    plan = make_plan(FAIR_SHARE, [agent("a", 8, 5)], job(1, runs=runs, max_slots=1))
    assert preempted_allocations(plan) == ["r1", "r2"]


def test_what_can_never_fit_has_no_share() -> None:
    # 12 on agents of 8: job 2 would get 8 of 16 slots, and keep job 1 from them for ever.
    agents = [agent("a", 8), agent("b", 8)]
    plan = make_plan(FAIR_SHARE, agents, job(1, *[8] * 2), job(2, 12))
    assert started_requests(plan) == ["1a", "1b"]
    assert plan.wait_reason == "needs 12 slots: agents have 8; it would fit with 8 or 16"


def test_a_job_that_does_not_get_enough_for_its_smallest_request_gets_nothing() -> None:
    # 4 each; job 2 needs 8 and gives its 4 to job 1.
    plan = make_plan(FAIR_SHARE, [agent("a", 8)], job(1, *[1] * 8), job(2, 8))
    assert started_requests(plan) == [f"1{letter}" for letter in "abcdefgh"]


def test_requests_without_slots_start_whatever_the_shares() -> None:
    plan = make_plan(
        FAIR_SHARE, [agent("a", 2, 0, aux_free=2)], job(1, 0, 0, max_slots=0), job(2, 0)
    )
    # First in, first out: job 1's come first, and there are two places.
    assert started_requests(plan) == ["1a", "1b"]


def test_what_was_chosen_but_finds_no_place_is_left_for_the_next_plan() -> None:
    # Shares are 6 each. One agent of 6 and one of 4 and one of 2: job 1 takes the agent of 6, and
    # so does job 2, for which a place of 6 was free as well when it was asked.
    agents = [agent("a", 6), agent("b", 4), agent("c", 2)]
    plan = make_plan(FAIR_SHARE, agents, job(1, 6), job(2, 6))
    assert started_requests(plan) == ["1a"]
    assert plan.wait_reason == "needs 6 slots on one agent, 4 free on one"


def test_a_gang_starts_within_its_share() -> None:
    agents = [agent("a", 8), agent("b", 8)]
    plan = make_plan(FAIR_SHARE, agents, job(1, 16), job(2, 0))
    assert started_requests(plan) == ["2a", "1a"]
    assert sorted(place.agent for place in plan.starts[1].placements) == ["a", "b"]


def test_weight_decides_who_gives_back() -> None:
    ones = [running_allocation(f"r{n}", n, ("a", 1)) for n in range(1, 5)]
    twos = [running_allocation(f"s{n}", n + 4, ("a", 1)) for n in range(1, 5)]
    jobs = (job(1, *[1] * 8, runs=ones), job(2, *[1] * 8, runs=twos, weight=3.0))
    # 8 x 1/4 = 2 and 8 x 3/4 = 6.
    assert preempted_allocations(make_plan(FAIR_SHARE, [agent("a", 8, 0)], *jobs)) == ["r1", "r2"]


def test_slots_that_shares_cannot_use_whole_go_to_whoever_can() -> None:
    # 6 each, of which trials of 4 slots use 4: the third agent would stay idle.
    agents = [agent(name, 4) for name in "abc"]
    plan = make_plan(FAIR_SHARE, agents, job(1, *[4] * 4), job(2, *[4] * 4))
    assert started_requests(plan) == ["1a", "2a", "1b"]


def test_idle_slots_go_round_in_turns() -> None:
    # 20/3 = 6 each and one more to the first two: 7, 7, 6. Of the two agents left job 1 has one.
    agents = [agent(name, 4) for name in "abcde"]
    plan = make_plan(FAIR_SHARE, agents, *(job(n, *[4] * 4) for n in (1, 2, 3)))
    assert started_requests(plan) == ["1a", "2a", "3a", "1b", "2b"]


def test_idle_slots_do_not_exceed_a_limit() -> None:
    agents = [agent(name, 4) for name in "abc"]
    plan = make_plan(FAIR_SHARE, agents, job(1, *[4] * 4, max_slots=7), job(2, *[4] * 4))
    assert started_requests(plan) == ["1a", "2a", "2b"]


def test_what_exceeds_a_share_stays_while_nobody_could_use_it() -> None:
    # 6 each. Job 1 has 8, and job 2 may have 2 more, but asks for 4 at once.
    ones = [running_allocation(f"r{n}", n, (name, 4)) for n, name in enumerate("ab")]
    twos = [running_allocation("s", 2, ("c", 4))]
    jobs = (job(1, 4, runs=ones), job(2, 4, runs=twos))
    plan = make_plan(FAIR_SHARE, [agent(name, 4, 0) for name in "abc"], *jobs)
    assert preempted_allocations(plan) == []
    # Whoever can use it has it: the shares are 4 each.
    plan = make_plan(FAIR_SHARE, [agent(name, 4, 0) for name in "abc"], *jobs, job(3, *[1] * 8))
    assert preempted_allocations(plan) == ["r0"]


def test_what_is_given_back_is_of_one_agent_where_the_oldest_make_no_room() -> None:
    # 4 each. The oldest four of job 1 would leave 2 free slots on each agent.
    runs = [running_allocation(f"r{n}", n, ("ab"[n % 2], 1)) for n in range(8)]
    agents = [agent("a", 4, 0), agent("b", 4, 0)]
    plan = make_plan(FAIR_SHARE, agents, job(1, runs=runs), job(2, 4))
    assert preempted_allocations(plan) == ["r0", "r2", "r4", "r6"]


def test_nothing_idle_is_lent_while_somebody_leaves() -> None:
    runs = [running_allocation("r", 1, ("a", 4), leaving=True)]
    agents = [agent("a", 4, 0), agent("b", 4), agent("c", 4)]
    plan = make_plan(FAIR_SHARE, agents, job(1, *[4] * 4, runs=runs), job(2, *[4] * 4))
    assert started_requests(plan) == ["2a"]
