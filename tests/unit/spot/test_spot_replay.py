"""Replays of policies, and the optimum, on traces short enough for calculation by hand."""

import pytest

from control_plane.spot.comparison import compare_policies
from control_plane.spot.deadline_policies import (
    HOUR_MS,
    DeadlineJob,
    JobSnapshot,
    MachineKind,
    Policy,
    greedy_policy,
    on_demand_policy,
    reserved_slack_policy,
    uniform_progress_policy,
)
from control_plane.spot.optimum import optimum_cost
from control_plane.spot.replay import ReplayResult, replay_policy, trace_job
from control_plane.spot.traces import SpotTrace

MINUTE = 60_000


def trace(market: str, price: float = 0.25) -> SpotTrace:
    """Return a trace from a sign per tick of 5 minutes, `s` for available spot machines."""
    return SpotTrace(5 * MINUTE, tuple(sign == "s" for sign in market), (price,) * len(market))


def job(market: SpotTrace, work: int, deadline: int, changeover: int) -> DeadlineJob:
    return trace_job(market, work * MINUTE, deadline * MINUTE, changeover * MINUTE)


def signs(result: ReplayResult) -> str:
    return "".join(
        {"wait": ".", "spot": "s", "on-demand": "D"}[machine] for machine in result.machines
    )


def always_spot(job: DeadlineJob, standing: JobSnapshot) -> MachineKind:
    return MachineKind.SPOT if standing.spot_available else MachineKind.NONE


def test_machine_is_paid_from_changeover_to_end_of_work() -> None:
    market = trace("......")
    result = replay_policy(on_demand_policy, job(market, 12, 30, 7), market)
    # 7 minutes of changeover and 12 of work end after 19 minutes, in the fourth tick.
    assert (signs(result), result.finished_ms) == ("DDDD", 19 * MINUTE)
    assert result.cost == pytest.approx(19 / 60)
    assert (result.starts, result.losses, result.on_demand_ms) == (1, 0, 19 * MINUTE)


def test_lost_spot_machine_costs_another_changeover() -> None:
    market = trace("ss.sss")
    result = replay_policy(always_spot, job(market, 10, 30, 3), market)
    # 7 minutes of work in the first two ticks. Then 3 minutes of changeover and 3 of work.
    assert (signs(result), result.finished_ms) == ("ss.ss", 21 * MINUTE)
    assert result.cost == pytest.approx(0.25 * 16 / 60)
    assert (result.starts, result.losses, result.spot_ms) == (2, 1, 16 * MINUTE)


def test_interrupted_changeover_is_paid() -> None:
    market = trace("s.s...")
    result = replay_policy(always_spot, job(market, 10, 30, 7), market)
    assert result.finished_ms is None
    assert result.cost == pytest.approx(0.25 * 10 / 60)


def test_work_after_deadline_is_not_finished() -> None:
    market = trace("....")
    # 5 + 13 = 18 minutes, and the deadline lies within the fourth tick.
    assert (
        replay_policy(on_demand_policy, job(market, 13, 18, 5), market).finished_ms == 18 * MINUTE
    )
    assert replay_policy(on_demand_policy, job(market, 13, 17, 5), market).finished_ms is None


def test_each_tick_has_its_price() -> None:
    market = SpotTrace(5 * MINUTE, (True,) * 3, (0.2, 0.4, 0.3))
    result = replay_policy(always_spot, job(market, 12, 15, 0), market)
    # 5 minutes at 0.2, 5 at 0.4 and 2 at 0.3.
    assert result.cost == pytest.approx((1 + 2 + 0.6) / 60)


@pytest.mark.parametrize(
    ("policy", "course"),
    [
        # 30 minutes of work due after 60, changeover 1. After 40 minutes, 14 are done and the
        # slack is 4. So the work goes on-demand and stays on-demand, although spot machines return.
        (greedy_policy, ".....sssDDDD"),
        # The expected progress is ep(t) = t / 2. At 5, the work is behind. At 15, 9 minutes are
        # done, more than ep(17) = 8.5 but less than ep(20) = 10. At 25, 13 are less than
        # ep(27) = 13.5. At 30, 18 are more than ep(32) = 16. At 40, 27 are far more than
        # ep(40) = 20. A spot machine at 45 finishes the work.
        (uniform_progress_policy, ".DD.DDss.s"),
        # At 40, slack 4 requires on-demand. At 45, slack 3 is more than two changeovers.
        (reserved_slack_policy, ".....sssDssD"),
    ],
)
def test_courses_of_policies(policy: Policy, course: str) -> None:
    market = trace(".....sss.ss.")
    result = replay_policy(policy, job(market, 30, 60, 1), market)
    assert (signs(result), result.finished_ms is not None) == (course, True)


@pytest.mark.parametrize(
    ("market", "work", "deadline", "changeover", "cost"),
    [
        # Spot machines only: (20 + 5) * 0.25.
        ("ssssss", 20, 30, 5, 6.25),
        # No spot machines: 20 + 5 on-demand.
        ("......", 20, 30, 5, 25.0),
        # A single tick is not worth a changeover: on-demand alone costs 10 + 5.
        ("s.....", 10, 30, 5, 15.0),
        # 10 + 5 on the spot machine in the middle: 3.75.
        (".sss..", 10, 30, 5, 3.75),
        # Without changeover: 5 on-demand, and 15 on spot machines at a quarter of the price.
        ("s.ss", 20, 20, 0, 8.75),
        # Two periods need two changeovers of 1. The first period does 4 of the work, the second 6.
        ("s.ss..", 10, 30, 1, 3.0),
        # The deadline lies within a tick: 5 + 12 = 17.
        ("......", 12, 17, 5, 17.0),
    ],
)
def test_optimum_of_small_traces(
    market: str, work: int, deadline: int, changeover: int, cost: float
) -> None:
    market_trace = trace(market)
    cost_hours = optimum_cost(job(market_trace, work, deadline, changeover), market_trace)
    assert cost_hours == pytest.approx(cost / 60)


def test_infeasible_deadline_has_no_optimum() -> None:
    market = trace("......")
    assert optimum_cost(job(market, 26, 30, 5), market) is None


def test_optimum_uses_cheap_ticks() -> None:
    market = SpotTrace(5 * MINUTE, (True,) * 4, (0.9, 0.3, 0.2, 0.8))
    # 10 minutes of work without changeovers: 5 at 0.3 and 5 at 0.2.
    assert optimum_cost(job(market, 10, 20, 0), market) == pytest.approx(2.5 / 60)


def test_comparison_has_a_sign_per_tick() -> None:
    market = trace("ss..ss")
    comparison = compare_policies(job(market, 10, 30, 0), market)
    assert (comparison["market"], comparison["availability"]) == ("ss..ss", pytest.approx(4 / 6))
    # The 10 minutes of work cost a quarter of the on-demand price.
    assert comparison["optimum_share"] == pytest.approx(0.25)
    courses = {policy["policy"]: policy["course"] for policy in comparison["policies"]}
    assert courses["reserved slack"] == courses["greedy"] == "ss"
    assert courses["on-demand"] == "DD"
    assert comparison["policies"][0]["finished_seconds"] == 600


def test_costs_are_in_hours_of_an_on_demand_machine() -> None:
    market = trace("." * 12)
    result = replay_policy(on_demand_policy, trace_job(market, HOUR_MS, HOUR_MS, 0), market)
    assert result.cost == pytest.approx(1.0)
