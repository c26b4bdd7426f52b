"""Launches for jobs that need certain devices."""

from dataclasses import replace

from control_plane.scheduling.agent_needs import AgentDevice, AgentNeeds
from provisioner.fit_types import with_refused_types
from provisioner.model import Demand, JobDemand
from tests.unit.provisioner.fleet_table import (
    BIG,
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

H100 = AgentNeeds("H100")
TABLE = {"big": (AgentDevice("cuda", "NVIDIA H100 80GB HBM3", 81920),)}
TABLE |= {"small": (AgentDevice("cuda", "Tesla T4", 16384),)}


def devices_of(instance_type: str) -> tuple[AgentDevice, ...]:
    return TABLE.get(instance_type, ())


def needing(*sizes: int, unfit: tuple[str, ...] = ()) -> JobDemand:
    """Return a job that needs H100; the connected agents `unfit` have none."""
    job = replace(job_demand(*sizes), needs=H100, unfit_agents=frozenset(unfit))
    return replace(job, excluded_agents=unfit)


def demand_of(
    *jobs: JobDemand, offered: tuple[object, ...] = (SMALL, BIG), agents: str = ""
) -> Demand:
    rows = [instance(name) for name in agents]
    return with_refused_types(
        Demand(jobs),
        offered,  # type: ignore[arg-type]
        rows,
        agents,
        devices_of,
    )


def test_types_without_the_device_are_refused() -> None:
    plain = job_demand(4)
    demand = demand_of(needing(4), plain)
    assert [job.refused_types for job in demand.jobs] == [{"small"}, frozenset()]


def test_demand_without_needs_is_unchanged() -> None:
    demand = Demand((job_demand(4),))
    assert with_refused_types(demand, (SMALL,), (), (), devices_of) is demand


def test_job_is_left_out_if_no_type_has_the_device() -> None:
    assert demand_of(needing(4), offered=(SMALL,)).jobs == ()


def test_connected_agent_overrules_the_table() -> None:
    # Instance a of the type `small` has the device, although the table has another one.
    assert demand_of(needing(4), agents="a").jobs[0].refused_types == frozenset()
    assert demand_of(needing(4, unfit=("a",)), agents="ab").jobs[0].refused_types == frozenset()
    assert demand_of(needing(4, unfit=("a",)), agents="a").jobs[0].refused_types == {"small"}


def test_unknown_type_is_refused_until_an_agent_has_connected() -> None:
    unknown = replace(SMALL, instance_type="new")
    assert demand_of(needing(4), offered=(unknown, BIG)).jobs[0].refused_types == {"new"}
    rows = [instance("a", offering=unknown)]
    demand = with_refused_types(Demand((needing(4),)), (unknown,), rows, {"a"}, devices_of)
    assert demand.jobs[0].refused_types == frozenset()


def test_fitting_type_is_launched_although_another_is_preferred() -> None:
    offered = {"offerings": (SMALL, BIG)}
    plan = scale_plan((), demand=Demand((job_demand(4),)), **offered)
    assert launch_counts(plan) == {SMALL.name: 1}
    plan = scale_plan((), demand=demand_of(needing(4)), **offered)
    assert launch_counts(plan) == {BIG.name: 1}


def test_gang_is_launched_on_fitting_types() -> None:
    plan = scale_plan((), demand=demand_of(needing(16)), offerings=(SMALL, BIG))
    assert launch_counts(plan) == {BIG.name: 2}


def test_starting_instance_of_another_type_does_not_count() -> None:
    fleet = [(starting_instance("a"), running_with(None))]
    plan = scale_plan(fleet, demand=demand_of(needing(4)), offerings=(SMALL, BIG))
    assert launch_counts(plan) == {BIG.name: 1}
    fleet = [(starting_instance("a", offering=BIG), running_with(None))]
    plan = scale_plan(fleet, demand=demand_of(needing(4)), offerings=(SMALL, BIG))
    assert launch_counts(plan) == {}


def test_unfit_idle_instance_leaves_when_the_pool_is_full() -> None:
    fleet = [(idle_instance("a", 1), running_with(IDLE))]
    demand = demand_of(needing(4, unfit=("a",)), agents="a")
    plan = scale_plan(fleet, demand=demand, offerings=(SMALL, BIG), max_instances=1)
    assert state_changes(plan) == {"a": "DRAINING"}
