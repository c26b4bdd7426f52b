"""Decisions on instances that the pool could do without; slots are 4 and idle agents are kept for
20 minutes unless said otherwise.
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
    """An agent with allocations of these slots, on an instance of `slots`."""
    return ConnectedAgent(not work, True, work, slots - sum(work) - closed)


def spare_since(*minutes: float) -> FleetRow:
    """A fleet that had one spare instance so many minutes ago, a second one so many, and so on."""
    marks = tuple(NOW_MS - int(minute * MINUTE_MS) for minute in minutes)
    return FleetRow("p", passed_ms=NOW_MS - 5_000, spare_ms={SMALL.slots: marks})


def idle_and_busy(minutes: float = 1) -> list[Pair]:
    """Instance a has been idle for so long, b has two free slots of 4."""
    return [
        (idle_instance("a", minutes), running_with(agent())),
        (instance("b"), running_with(agent(2))),
    ]


@pytest.mark.parametrize(
    ("agents", "spare"),
    [
        # One without work is spare, and no place for the work of others.
        ([agent(), agent(4)], 1),
        # The 2 of one fit into the 2 free slots of the other.
        ([agent(2), agent(2)], 1),
        # Of three that are half full one fits into another, whose place is then taken: 1.
        ([agent(2), agent(2), agent(2)], 1),
        # 2 + 2 and 2 + 2: two.
        ([agent(2)] * 4, 2),
        # 1 + 1 + 2: the first goes to the third (2 free of 4), then 1 are free: the second as well.
        ([agent(1), agent(1), agent(2)], 2),
        # 3 fit into no 2, and what fills an instance, such as a gang's part, into nothing.
        ([agent(3), agent(2)], 0),
        ([agent(4), agent(4)], 0),
        # A slot that people have closed takes nothing.
        ([agent(2), agent(2, closed=1)], 1),
        ([agent(3), agent(1, closed=1)], 1),
        ([agent(2, 1), agent(2, closed=1)], 0),
        # Work without slots stays where it is.
        ([agent(0), agent(2)], 1),
        ([agent(0), agent(0, 2)], 0),
        # None is spare alone, but for one without work.
        ([agent(1)], 0),
        ([agent()], 1),
    ],
)
def test_an_instance_is_spare_if_its_work_fits_into_another(
    agents: list[ConnectedAgent], spare: int
) -> None:
    assert count_spare((4, connected_agent) for connected_agent in agents)[4] == spare


def test_work_moves_to_instances_of_the_same_size_only() -> None:
    # 2 of 4 would fit into the 6 free of 8, and what comes next might not fit into 4.
    assert not +count_spare([(4, agent(2)), (8, agent(2, slots=8))])


class TestEnds:
    def test_one_without_work_goes_once_there_was_a_spare_one_for_as_long(self) -> None:
        # Idle for a minute only; the work of 20 minutes would have fitted on one.
        plan = scale_plan(idle_and_busy(), fleet=spare_since(20))
        assert state_changes(plan) == {"a": "DRAINING"}
        assert plan.changed_rows[0].reason == (
            "fewer instances were enough for 1200 s, and it has no work"
        )
        # There is no other spare one then.
        assert plan.fleet.spare_ms.get(SMALL.slots, ()) == ()

    def test_a_moment_too_early_it_stays(self) -> None:
        plan = scale_plan(idle_and_busy(), fleet=spare_since(19.9))
        assert not state_changes(plan)
        assert plan.fleet.spare_ms == spare_since(19.9).spare_ms

    def test_nothing_that_runs_is_drained(self) -> None:
        pairs = [(instance(name), running_with(agent(2))) for name in "ab"]
        plan = scale_plan(pairs, fleet=spare_since(60))
        assert not plan.changed_rows
        assert plan.fleet.spare_ms == spare_since(60).spare_ms

    def test_as_many_go_as_were_spare_for_as_long(self) -> None:
        # Three are idle, two could be done without for 20 minutes, the third for 5.
        pairs = [(idle_instance(name, 1), running_with(agent())) for name in "abc"]
        plan = scale_plan(pairs, fleet=spare_since(30, 20, 5))
        assert len(state_changes(plan)) == 2
        assert plan.fleet.spare_ms == spare_since(5).spare_ms

    def test_one_that_was_idle_for_too_long_is_one_of_them(self) -> None:
        # One is spare, for 20 minutes: the one that was idle for as long goes, and no other.
        pairs = [
            (idle_instance("a", 20), running_with(agent())),
            (instance("b"), running_with(agent(2))),
        ]
        plan = scale_plan(pairs, fleet=spare_since(20))
        assert list(state_changes(plan)) == ["a"]
        assert plan.fleet.spare_ms.get(SMALL.slots, ()) == ()

    def test_the_minimum_stays(self) -> None:
        assert not state_changes(
            scale_plan(idle_and_busy(), fleet=spare_since(20), min_instances=2)
        )

    def test_the_share_on_demand_stays(self) -> None:
        # Half of what is left, one, is to be on demand: the one on demand stays, a spot one goes.
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
    def test_a_spare_one_is_marked_and_the_mark_goes_with_it(self) -> None:
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
        ids=["starts", "is away", "has to go"],
    )
    def test_none_is_spare_while_another_one(self, more: list[Pair]) -> None:
        plan = scale_plan([*idle_and_busy(), *more], fleet=spare_since(20))
        assert not state_changes(plan)
        assert plan.fleet.spare_ms == {}

    def test_none_is_spare_while_anything_waits_that_an_instance_could_serve(self) -> None:
        fleet = spare_since(20)
        assert not state_changes(scale_plan(idle_and_busy(), job_demand(3), fleet=fleet))
        # What may have no more slots, or fits nowhere, waits for something else.
        for demand in (job_demand(3, room=0), job_demand(7)):
            assert state_changes(scale_plan(idle_and_busy(), demand, fleet=fleet))

    def test_one_of_a_clock_that_was_ahead_is_of_now(self) -> None:
        plan = scale_plan(idle_and_busy(), fleet=spare_since(-600))
        assert plan.fleet.spare_ms == {SMALL.slots: (NOW_MS,)}

    def test_a_time_without_passes_does_not_count(self) -> None:
        fleet = replace(spare_since(30), resumed_ms=NOW_MS - 5 * MINUTE_MS)
        assert not state_changes(scale_plan(idle_and_busy(), fleet=fleet))
