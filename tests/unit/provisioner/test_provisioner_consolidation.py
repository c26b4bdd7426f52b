"""Decisions on spare instances.

Instances have 4 slots and idle agents stay for 20 minutes unless a test says otherwise.
"""

from dataclasses import replace

import pytest

from control_plane.fleet.records import FleetRow, InstanceRow
from provisioner.consolidation import count_spare
from provisioner.model import ConnectedAgent, ObservedInstance
from tests.unit.provisioner.fleet_table import (
    MINUTE_MS,
    NOW_MS,
    SMALL,
    SPOT,
    idle_instance,
    instance,
    job_demand,
    running_with,
    scale_plan,
    starting_instance,
    state_changes,
)

Pair = tuple[InstanceRow, ObservedInstance]


def agent(*work: int, slots: int = 4, closed: int = 0) -> ConnectedAgent:
    """Return an agent on an instance of `slots`, with allocations `work` and disabled slots."""
    return ConnectedAgent(not work, True, work, slots - sum(work) - closed)


def spare_since(*minutes: float) -> FleetRow:
    """Return a fleet with a spare mark for each of `minutes` ago."""
    marks = tuple(NOW_MS - int(minute * MINUTE_MS) for minute in minutes)
    return FleetRow("p", passed_ms=NOW_MS - 5_000, spare_ms={SMALL.slots: marks})


def idle_and_busy(minutes: float = 1) -> list[Pair]:
    """Return instance a, idle for `minutes`, and b with 2 of 4 slots free."""
    return [
        (idle_instance("a", minutes), running_with(agent())),
        (instance("b"), running_with(agent(2))),
    ]


@pytest.mark.parametrize(
    ("agents", "spare"),
    [
        # An idle instance is spare, and does not receive the work of others.
        ([agent(), agent(4)], 1),
        # The work of 2 slots fits into the other instance's 2 free slots.
        ([agent(2), agent(2)], 1),
        # With three half-full instances, the work of the first fills the second, so 1 is spare.
        ([agent(2), agent(2), agent(2)], 1),
        # Four half-full instances fit into two, so 2 are spare.
        ([agent(2)] * 4, 2),
        # The third instance has 2 of 4 slots free and receives the work of the first and second.
        ([agent(1), agent(1), agent(2)], 2),
        # 3 slots do not fit into 2, and the work of a full instance does not fit anywhere.
        ([agent(3), agent(2)], 0),
        ([agent(4), agent(4)], 0),
        # A disabled slot receives no work.
        ([agent(2), agent(2, closed=1)], 1),
        ([agent(3), agent(1, closed=1)], 1),
        ([agent(2, 1), agent(2, closed=1)], 0),
        # Work without slots stays where it is.
        ([agent(0), agent(2)], 1),
        ([agent(0), agent(0, 2)], 0),
        # A single instance is spare only without work.
        ([agent(1)], 0),
        ([agent()], 1),
    ],
)
def test_instance_is_spare_if_the_work_fits_into_other_instances(
    agents: list[ConnectedAgent], spare: int
) -> None:
    assert count_spare((4, connected_agent) for connected_agent in agents)[4] == spare


def test_work_fits_only_into_instances_of_the_same_size() -> None:
    # 2 slots would fit into the 6 free slots of 8, but later work might not fit into 4.
    assert not +count_spare([(4, agent(2)), (8, agent(2, slots=8))])


class TestEnds:
    def test_idle_instance_drains_after_a_spare_idle_period(self) -> None:
        # The instance is idle for only a minute, but a single instance has sufficed for 20 minutes.
        plan = scale_plan(idle_and_busy(), fleet=spare_since(20))
        assert state_changes(plan) == {"a": "DRAINING"}
        assert plan.changed_rows[0].reason == (
            "fewer instances were enough for 1200 s, and it has no work"
        )
        # No further instance is spare after the drain.
        assert plan.fleet.spare_ms.get(SMALL.slots, ()) == ()

    def test_instance_stays_before_the_spare_idle_period_ends(self) -> None:
        plan = scale_plan(idle_and_busy(), fleet=spare_since(19.9))
        assert not state_changes(plan)
        assert plan.fleet.spare_ms == spare_since(19.9).spare_ms

    def test_busy_instances_are_not_drained(self) -> None:
        pairs = [(instance(name), running_with(agent(2))) for name in "ab"]
        plan = scale_plan(pairs, fleet=spare_since(60))
        assert not plan.changed_rows
        assert plan.fleet.spare_ms == spare_since(60).spare_ms

    def test_drains_as_many_as_were_spare_for_the_idle_period(self) -> None:
        # Three instances are idle. Two have been spare for 20 minutes, the third for 5.
        pairs = [(idle_instance(name, 1), running_with(agent())) for name in "abc"]
        plan = scale_plan(pairs, fleet=spare_since(30, 20, 5))
        assert len(state_changes(plan)) == 2
        assert plan.fleet.spare_ms == spare_since(5).spare_ms

    def test_idle_timeout_uses_up_a_spare_mark(self) -> None:
        # With a single spare mark of 20 minutes, only the instance with 20 idle minutes drains.
        pairs = [
            (idle_instance("a", 20), running_with(agent())),
            (instance("b"), running_with(agent(2))),
        ]
        plan = scale_plan(pairs, fleet=spare_since(20))
        assert list(state_changes(plan)) == ["a"]
        assert plan.fleet.spare_ms.get(SMALL.slots, ()) == ()

    def test_minimum_stays(self) -> None:
        assert not state_changes(
            scale_plan(idle_and_busy(), fleet=spare_since(20), min_instances=2)
        )

    def test_on_demand_share_stays(self) -> None:
        # Half of the remaining instances must be on demand: `a` stays, and the spot `c` drains.
        pairs = [
            (idle_instance("a", 1), running_with(agent())),
            (instance("b", offering=SPOT), running_with(agent(2))),
        ]
        plan = scale_plan(pairs, fleet=spare_since(20), on_demand_base=0.5)
        assert not state_changes(plan)
        pairs.append((idle_instance("c", 1, offering=SPOT), running_with(agent())))
        plan = scale_plan(pairs, fleet=spare_since(20, 20), on_demand_base=0.5)
        assert list(state_changes(plan)) == ["c"]


class TestMarks:
    def test_mark_follows_the_spare_count(self) -> None:
        plan = scale_plan(idle_and_busy())
        assert plan.fleet.spare_ms == {SMALL.slots: (NOW_MS,)}
        full = [(instance(name), running_with(agent(4))) for name in "ab"]
        assert scale_plan(full, fleet=spare_since(19)).fleet.spare_ms == {}

    @pytest.mark.parametrize(
        "more",
        [
            [(starting_instance("c"), running_with(None))],
            [(instance("c"), running_with(None))],
            [(instance("c", notice_ms=NOW_MS + 60_000), running_with(agent(1)))],
        ],
        ids=["a starting instance", "an instance without agent", "an instance with a notice"],
    )
    def test_no_instance_is_spare_beside(self, more: list[Pair]) -> None:
        plan = scale_plan([*idle_and_busy(), *more], fleet=spare_since(20))
        assert not state_changes(plan)
        assert plan.fleet.spare_ms == {}

    def test_no_instance_is_spare_while_a_servable_request_waits(self) -> None:
        fleet = spare_since(20)
        assert not state_changes(scale_plan(idle_and_busy(), job_demand(3), fleet=fleet))
        # Requests beyond the job's limit, or without a fitting offering, do not count.
        for demand in (job_demand(3, room=0), job_demand(7)):
            assert state_changes(scale_plan(idle_and_busy(), demand, fleet=fleet))

    def test_future_spare_mark_becomes_the_present_time(self) -> None:
        plan = scale_plan(idle_and_busy(), fleet=spare_since(-600))
        assert plan.fleet.spare_ms == {SMALL.slots: (NOW_MS,)}

    def test_gap_without_passes_restarts_spare_marks(self) -> None:
        fleet = replace(spare_since(30), resumed_ms=NOW_MS - 5 * MINUTE_MS)
        assert not state_changes(scale_plan(idle_and_busy(), fleet=fleet))
