"""Launches and drains for requests that exclude agents."""

from dataclasses import replace

from control_plane.scheduling.reservations import OverdueSize
from provisioner.model import Demand, JobDemand, Launch
from tests.unit.provisioner.fleet_table import (
    BUSY,
    IDLE,
    SMALL,
    idle_instance,
    instance,
    job_demand,
    launch_counts,
    running_with,
    scale_plan,
    starting_instance,
    state_changes,
)


def excluding(*sizes: int, without: tuple[str, ...]) -> JobDemand:
    return replace(job_demand(*sizes), excluded_agents=without)


def test_idle_excluded_instance_does_not_prevent_a_launch() -> None:
    fleet = [(idle_instance("a", 1), running_with(IDLE))]
    plan = scale_plan(fleet, excluding(4, without=("a",)))
    assert (plan.launches, state_changes(plan)) == ((Launch(SMALL, 1),), {})


def test_starting_instance_serves_the_request() -> None:
    fleet = [
        (idle_instance("a", 1), running_with(IDLE)),
        (starting_instance("b"), running_with(None)),
    ]
    assert scale_plan(fleet, excluding(4, without=("a",))).launches == ()


def test_gang_counts_only_other_idle_instances() -> None:
    fleet = [(idle_instance(name, 1), running_with(IDLE)) for name in ("a", "b")]
    plan = scale_plan(fleet, excluding(12, without=("a",)))
    assert launch_counts(plan) == {SMALL.name: 2}
    # Without the exclusion, one further instance is enough.
    assert launch_counts(scale_plan(fleet, job_demand(12))) == {SMALL.name: 1}


def test_excluded_idle_instance_leaves_when_the_pool_is_full() -> None:
    fleet = [(idle_instance("a", 1), running_with(IDLE)), (instance("b"), running_with(BUSY))]
    plan = scale_plan(fleet, excluding(4, without=("a",)), max_instances=2, min_instances=2)
    assert state_changes(plan) == {"a": "DRAINING"}
    # After its end, the new instance starts.
    plan = scale_plan(fleet[1:], excluding(4, without=("a",)), max_instances=2)
    assert launch_counts(plan) == {SMALL.name: 1}


def test_excluded_instance_leaves_for_an_overdue_gang() -> None:
    fleet = [(idle_instance(name, 1), running_with(IDLE)) for name in ("a", "b")]
    overdue = Demand((excluding(8, without=("a",)),), overdue=(OverdueSize(8),))
    plan = scale_plan(fleet, demand=overdue, max_instances=2)
    assert state_changes(plan) == {"a": "DRAINING"}
    # Without the exclusion, both instances serve the gang.
    usual = Demand((job_demand(8),), overdue=(OverdueSize(8),))
    assert state_changes(scale_plan(fleet, demand=usual, max_instances=2)) == {}


def test_busy_and_other_idle_instances_stay_when_the_pool_is_full() -> None:
    fleet = [(instance("a"), running_with(BUSY)), (idle_instance("b", 1), running_with(IDLE))]
    plan = scale_plan(fleet, excluding(4, without=("a",)), max_instances=2)
    assert state_changes(plan) == {}


def test_excluded_idle_instance_stays_while_the_pool_has_room() -> None:
    fleet = [(idle_instance("a", 1), running_with(IDLE))]
    plan = scale_plan(fleet, excluding(4, without=("a",)), max_instances=2)
    assert state_changes(plan) == {}


def test_excluded_idle_instance_ends_after_its_idle_time() -> None:
    fleet = [(idle_instance("a", 60), running_with(IDLE))]
    plan = scale_plan(fleet, excluding(4, without=("a",)))
    assert state_changes(plan) == {"a": "DRAINING"}
