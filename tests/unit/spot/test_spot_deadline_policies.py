"""Decisions of policies at single moments, with 60 minutes of work due 100 minutes after
submission.
"""

import pytest

from control_plane.spot.deadline_policies import (
    DeadlineJob,
    JobSnapshot,
    MachineKind,
    Policy,
    greedy_policy,
    on_demand_policy,
    reserve_ms,
    reserved_slack_policy,
    slack_ms,
    uniform_progress_policy,
)

MINUTE = 60_000
NONE, SPOT, ON_DEMAND = MachineKind.NONE, MachineKind.SPOT, MachineKind.ON_DEMAND


def job(changeover: int = 5, spell: int = 60, deadline: int = 100) -> DeadlineJob:
    return DeadlineJob(
        work_ms=60 * MINUTE,
        submitted_ms=0,
        deadline_ms=deadline * MINUTE,
        changeover_ms=changeover * MINUTE,
        tick_ms=5 * MINUTE,
        loss_interval_ms=spell * MINUTE,
    )


def snapshot(
    now: int,
    done: int,
    machine: MachineKind = NONE,
    *,
    spot: bool = False,
    starting: int = 0,
    price: float = 0.3,
) -> JobSnapshot:
    return JobSnapshot(now * MINUTE, done * MINUTE, machine, starting * MINUTE, spot, price, 1.0)


POLICIES = (on_demand_policy, greedy_policy, uniform_progress_policy, reserved_slack_policy)
SPOT_POLICIES = POLICIES[1:]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("machine", MachineKind)
def test_finished_work_uses_no_machine(policy: Policy, machine: MachineKind) -> None:
    assert policy(job(), snapshot(70, 60, machine, spot=True)) is NONE


@pytest.mark.parametrize("policy", SPOT_POLICIES)
@pytest.mark.parametrize(
    ("standing", "chosen"),
    [
        # Slack 100 - 60 = 40: far more than two changeovers of 5.
        (snapshot(0, 0, spot=True), SPOT),
        # Slack (100 - 60) - (60 - 30) = 10, just two changeovers.
        (snapshot(60, 30, spot=True), SPOT),
        (snapshot(61, 30, spot=True), ON_DEMAND),
        # A spot machine is kept until lost: the slack (100 - 65) - 30 = 5 is a changeover.
        (snapshot(65, 30, SPOT, spot=True), SPOT),
        # The spot machine is starting. Its start takes 5 of the slack of 10, and 5 are left to
        # change over to on-demand.
        (snapshot(60, 30, SPOT, spot=True, starting=5), SPOT),
        # The start is overdue: another 5 minutes would leave 3, too few for a changeover of 5.
        (snapshot(62, 30, SPOT, spot=True, starting=5), ON_DEMAND),
        # The work is late in any case and stays on the cheaper machine.
        (snapshot(69, 30, SPOT, spot=True), SPOT),
        # No spot machine, slack 9: at the next decision, the slack would be less than a changeover.
        (snapshot(61, 30), ON_DEMAND),
        (snapshot(95, 30), ON_DEMAND),
    ],
)
def test_safety_net_and_exploitation(
    policy: Policy, standing: JobSnapshot, chosen: MachineKind
) -> None:
    assert policy(job(), standing) is chosen


@pytest.mark.parametrize("policy", SPOT_POLICIES)
def test_tick_reduces_slack_for_waiting(policy: Policy) -> None:
    # Changeover 1, tick 5: slack 5 is more than 2 changeovers, but 0 are left at the next decision.
    assert policy(job(changeover=1), snapshot(65, 30)) is ON_DEMAND


@pytest.mark.parametrize(
    ("standing", "chosen"),
    [
        (snapshot(0, 0), NONE),
        # Slack (100 - 60) - 30 = 10: 10 - 5 (tick) = 5 is the changeover.
        (snapshot(60, 30), NONE),
        (snapshot(60, 30, ON_DEMAND, spot=True), ON_DEMAND),
        (snapshot(10, 10, ON_DEMAND, spot=True), ON_DEMAND),
    ],
)
def test_greedy_uses_on_demand_at_safety_net_until_the_end(
    standing: JobSnapshot, chosen: MachineKind
) -> None:
    assert greedy_policy(job(), standing) is chosen


@pytest.mark.parametrize(
    ("standing", "chosen"),
    [
        # ep(20) = 20 * 60 / 100 = 12.
        (snapshot(20, 12), NONE),
        (snapshot(20, 11), ON_DEMAND),
        # The policy uses spot machines although the work is behind.
        (snapshot(20, 0, spot=True), SPOT),
        # On-demand until cp >= ep(20 + 2 * 5) = 18, with or without spot machines.
        (snapshot(20, 17, ON_DEMAND, spot=True), ON_DEMAND),
        (snapshot(20, 18, ON_DEMAND, spot=True), SPOT),
        (snapshot(20, 18, ON_DEMAND), NONE),
    ],
)
def test_uniform_progress_follows_expected_progress(
    standing: JobSnapshot, chosen: MachineKind
) -> None:
    assert uniform_progress_policy(job(), standing) is chosen


@pytest.mark.parametrize(
    ("standing", "chosen"),
    [
        # Behind uniform progress, with slack 100 - 20 - 60 = 20. A tick and a changeover take 10,
        # and the reserve is 2 * 5 * (1 + 60/60) = 20, so the work does not wait.
        (snapshot(20, 0), ON_DEMAND),
        # Slack 30 is the tick, the changeover and the reserve.
        (snapshot(10, 0), NONE),
        (snapshot(11, 0), ON_DEMAND),
        # With 30 minutes of work left, the reserve is 15 and slack 25 suffices.
        (snapshot(45, 30), NONE),
        (snapshot(46, 30), ON_DEMAND),
        # From on-demand back to spot as soon as that is safe, never to no machine.
        (snapshot(20, 0, ON_DEMAND, spot=True), SPOT),
        (snapshot(60, 30, ON_DEMAND, spot=True), SPOT),
        (snapshot(61, 30, ON_DEMAND, spot=True), ON_DEMAND),
        (snapshot(1, 1, ON_DEMAND), ON_DEMAND),
    ],
)
def test_reserved_slack_waits_while_slack_exceeds_reserve(
    standing: JobSnapshot, chosen: MachineKind
) -> None:
    assert reserved_slack_policy(job(), standing) is chosen


@pytest.mark.parametrize(
    ("standing", "chosen"),
    [
        # Without a machine, 60 + 5 minutes at 1.0 on-demand or at the spot price.
        (snapshot(0, 0, spot=True, price=0.99), SPOT),
        (snapshot(0, 0, spot=True, price=1.0), NONE),
        # 2 minutes of work cost 2 on-demand and (2 + 5) * 0.3 = 2.1 on a spot machine.
        (snapshot(0, 58, ON_DEMAND, spot=True), ON_DEMAND),
        # 3 minutes of work cost 3 on-demand and (3 + 5) * 0.3 = 2.4 on a spot machine.
        (snapshot(0, 57, ON_DEMAND, spot=True), SPOT),
        # The 60 minutes on the present spot machine at 1.08 cost 64.8. On-demand takes 60 + 5 = 65.
        (snapshot(0, 0, SPOT, spot=True, price=1.08), SPOT),
        # At 1.09, the spot machine costs 65.4. The slack is enough to wait for another price.
        (snapshot(0, 0, SPOT, spot=True, price=1.09), NONE),
        (snapshot(61, 30, SPOT, spot=True, price=3.0), ON_DEMAND),
    ],
)
def test_reserved_slack_chooses_by_price(standing: JobSnapshot, chosen: MachineKind) -> None:
    assert reserved_slack_policy(job(), standing) is chosen


def test_reserve_is_two_changeovers_per_spell_and_two_more() -> None:
    # 2 * 5 * (1 + 60/240) = 12.5 minutes, and 10 without work left.
    assert reserve_ms(job(spell=240), snapshot(0, 0)) == 750_000
    assert reserve_ms(job(spell=240), snapshot(0, 60)) == 600_000


def test_slack_is_time_left_minus_work_left() -> None:
    assert slack_ms(job(), snapshot(30, 10)) == (70 - 50) * MINUTE
    assert slack_ms(job(), snapshot(90, 10)) == (10 - 50) * MINUTE


def test_deadline_is_feasible_if_on_demand_meets_it() -> None:
    assert job(deadline=65).is_feasible
    assert not job(deadline=64).is_feasible
