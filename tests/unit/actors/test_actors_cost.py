"""The cost of trials and experiments: rates from the assignment of slots to the release.

Instances cost $3.60 an hour, which is 1,000 micro-dollars a second, and have 4 slots.
"""

from dataclasses import replace

import pytest

from control_plane.actors.cost import decode_usage, render_dollars, to_micros
from control_plane.actors.messages.experiment import (
    ActivateRequested,
    CostCheckDue,
    SettingsChanged,
    TrialMetered,
)
from control_plane.actors.messages.trial import (
    AllocationExited,
    AllocationLost,
    ExperimentStatusChanged,
    PreemptionRequested,
    SlotsAssigned,
)
from control_plane.actors.messages.trial_use import UseReported
from control_plane.actors.records import Place, Status
from control_plane.actors.step import CommandRefused, ObservedRow
from control_plane.actors.use import Use
from control_plane.fleet.records import InstanceRow, InstanceState, Market, Offering
from control_plane.fleet.rows import encode_row
from tests.unit.actors import sample_messages as samples
from tests.unit.actors.actor_harness import START_MS, ActorHarness

PRICE = 3.6
POOL = "default"
USAGE = f"usage#{POOL}"
TWO, FOUR = 500, 1_000  # micro-dollars a second for so many slots


def _row(name: str, price: float = PRICE) -> ObservedRow:
    offering = Offering("small", "small", "a", Market.ON_DEMAND, 4, price)
    row = InstanceRow(name, POOL, offering, InstanceState.RUNNING, 0, "i")
    return ObservedRow(1, encode_row(row))


def _trial(*names: str, price: float = PRICE) -> ActorHarness:
    actor = ActorHarness("trial#5")
    for name in names:
        actor.rows[f"instances#{POOL}", name] = _row(name, price)
    actor.deliver(samples.trial_created())
    return actor


def _place(agent: str, slots: int) -> Place:
    return Place(agent, tuple(range(slots)))


def _slots_assigned(*places: Place) -> SlotsAssigned:
    return SlotsAssigned(1, places)


class TestTrials:
    def test_sharer_pays_its_part_of_the_slot(self) -> None:
        actor = ActorHarness("trial#5")
        actor.rows[f"instances#{POOL}", "a"] = _row("a")
        settings = replace(samples.trial_settings(), slot_sharers=2)
        actor.deliver(samples.trial_created(of=settings), _slots_assigned(_place("a", 1)))
        actor.deliver(UseReported(1, Use(10_000, 6_000, 0, 2_000)))
        actor.now_ms += 10_000
        actor.deliver(AllocationExited(1, "preempted"))
        # Half of one of 4 slots for 10 s.
        assert actor.state.cost_micros == 10 * TWO // 4
        (usage,) = [row for (part, _), row in actor.rows.items() if part == USAGE]
        stored = decode_usage(usage.body)
        assert (stored.slots, stored.slot_ms) == (0.5, 5_000)
        assert stored.use == Use(5_000, 3_000, 0, 1_000)

    def test_allocation_costs_a_share_of_the_instance(self) -> None:
        actor = _trial("a")
        actor.deliver(_slots_assigned(_place("a", 2)))
        metered = TrialMetered(3, 1, 0, TWO * 3600, START_MS, True)
        assert actor.messages_to("experiment#1") == [metered]
        actor.now_ms += 10_000
        actor.deliver(AllocationExited(1, "preempted"))
        # 2 of 4 slots for 10 s.
        assert actor.state.cost_micros == 10 * TWO
        assert actor.messages_to("experiment#1") == [
            TrialMetered(3, 1, 10 * TWO, 0, actor.now_ms, False)
        ]
        (usage,) = [row for (part, _), row in actor.rows.items() if part == USAGE]
        assert decode_usage(usage.body).micros == 10 * TWO

    def test_repeated_or_late_messages_add_no_cost(self) -> None:
        actor = _trial("a")
        actor.deliver(_slots_assigned(_place("a", 2)))
        actor.now_ms += 10_000
        actor.deliver(_slots_assigned(_place("a", 2)), AllocationExited(1, "preempted"))
        actor.now_ms += 10_000
        actor.deliver(AllocationExited(1, "preempted"), _slots_assigned(_place("a", 2)))
        assert actor.state.cost_micros == 10 * TWO
        assert actor.messages_to("experiment#1") == []

    @pytest.mark.parametrize("names", [(), ("a",)])
    def test_unpriced_allocations_send_no_meter(self, names: tuple[str, ...]) -> None:
        actor = _trial(*names, price=0)
        actor.deliver(_slots_assigned(_place("a", 2)))
        assert actor.messages_to("experiment#1") == []
        actor.now_ms += 10_000
        actor.deliver(AllocationExited(1, "preempted"))
        assert actor.state.cost_micros == 0
        assert not [key for key in actor.rows if key[0] == USAGE]

    def test_machine_that_enrolled_before_the_instance_row_has_costs(self) -> None:
        actor = _trial()
        actor.deliver(_slots_assigned(_place("a", 4)))
        actor.rows[f"instances#{POOL}", "a"] = _row("a")
        actor.now_ms += 10_000
        actor.deliver(AllocationExited(1, "preempted"))
        assert actor.state.cost_micros == 10 * FOUR

    def test_lost_machine_costs_until_the_last_sign_of_life(self) -> None:
        actor = _trial("a")
        actor.deliver(_slots_assigned(_place("a", 4)))
        heard_ms = actor.now_ms + 10_000
        actor.now_ms += 40_000
        actor.deliver(AllocationLost(1, "gone", "a", heard_ms))
        assert actor.state.cost_micros == 10 * FOUR

    def test_gang_costs_each_machine_until_the_loss(self) -> None:
        actor = _trial("a", "b")
        actor.deliver(_slots_assigned(_place("a", 4), _place("b", 4)))
        heard_ms = actor.now_ms + 10_000
        actor.now_ms += 40_000
        actor.deliver(AllocationLost(1, "gone", "b", heard_ms))
        assert [message.rate_micros for message in actor.all_messages(TrialMetered)] == [
            2 * FOUR * 3600,
            FOUR * 3600,
        ]
        actor.now_ms += 10_000
        actor.deliver(AllocationExited(1, "killed", node_rank=0, nodes=2))
        # b for 10 s, a for 50 s.
        assert actor.state.cost_micros == (10 + 50) * FOUR

    def test_costs_of_allocations_add_up(self) -> None:
        actor = _trial("a")
        actor.deliver(_slots_assigned(_place("a", 4)))
        actor.now_ms += 10_000
        actor.deliver(AllocationExited(1, "preempted"))
        actor.deliver(SlotsAssigned(2, (_place("a", 2),)))
        actor.now_ms += 4_000
        actor.deliver(
            ExperimentStatusChanged(Status.STOPPING_KILLED), AllocationExited(2, "killed")
        )
        assert actor.state.cost_micros == 10 * FOUR + 4 * TWO


HOUR_RATE = FOUR * 3600  # 1,000 micro-dollars a second


def _experiment(max_cost: float | None) -> ActorHarness:
    actor = ActorHarness("experiment#1")
    actor.deliver(samples.experiment_submitted())
    actor.deliver(SettingsChanged(max_cost=max_cost, max_cost_given=True))
    return actor


def _deliver_metered(
    actor: ActorHarness, cost: int, rate: int, holds: bool = True, epoch: int = 1
) -> None:
    actor.deliver(TrialMetered(0, epoch, cost, rate, actor.now_ms, holds))


class TestExperiments:
    def test_experiment_costs_the_sum_of_all_trials(self) -> None:
        actor = _experiment(None)
        _deliver_metered(actor, 0, HOUR_RATE)
        actor.now_ms += 5_000
        assert actor.state.bill.spent_micros(actor.now_ms) == 5 * FOUR
        assert actor.state.bill.worked_time_ms(actor.now_ms) == 5_000
        _deliver_metered(actor, 5 * FOUR, 0, holds=False)
        before = actor.state
        _deliver_metered(actor, 5 * FOUR, 0, holds=False)
        _deliver_metered(actor, 0, HOUR_RATE)
        assert actor.state == before
        actor.now_ms += 60_000
        assert actor.state.bill.spent_micros(actor.now_ms) == 5 * FOUR
        assert actor.state.bill.worked_time_ms(actor.now_ms) == 5_000

    def test_experiment_is_paused_before_the_limit_and_killed_near_the_limit(self) -> None:
        # $1 lasts for 1,000 s: the experiment is paused 60 s before the end, and killed 15 s
        # before.
        actor = _experiment(1.0)
        _deliver_metered(actor, 0, HOUR_RATE)
        began_ms = actor.now_ms
        assert actor.timers[-1].due_ms == began_ms + 940_000
        actor.now_ms = began_ms + 940_000
        actor.deliver(CostCheckDue())
        assert actor.state.status is Status.PAUSED
        assert actor.state.message == (
            "the experiment has come to its max_cost of $1.00 (spent: $0.9400): raise it with"
            " `detcloud experiment set max-cost 1 AMOUNT`, then activate it"
        )
        assert actor.timers[-1].due_ms == began_ms + 985_000
        actor.now_ms = began_ms + 985_000
        actor.deliver(CostCheckDue())
        (stop,) = actor.all_messages(PreemptionRequested)
        assert stop.forced
        assert stop.epoch == 1

    def test_small_limits_have_shorter_times(self) -> None:
        # 40 s: a quarter is 10 s, and a quarter of that 2.5 s.
        actor = _experiment(0.04)
        _deliver_metered(actor, 0, HOUR_RATE)
        assert actor.timers[-1].due_ms == actor.now_ms + 30_000

    def test_more_machines_bring_the_limit_nearer(self) -> None:
        actor = _experiment(1.0)
        _deliver_metered(actor, 0, HOUR_RATE)
        actor.now_ms += 100_000
        actor.deliver(TrialMetered(0, 2, 100 * FOUR, 4 * HOUR_RATE, actor.now_ms, True))
        # $0.90 at 4,000 a second: 225 s, of which the last 60 are for stopping.
        assert actor.timers[-1].due_ms == actor.now_ms + 165_000

    def test_superfluous_cost_checks_schedule_no_further_checks(self) -> None:
        # Three trials bring the limit nearer, twice; then only the first goes on.
        actor = _experiment(1.0)
        began_ms = actor.now_ms
        for number in range(3):
            actor.deliver(TrialMetered(number, 1, 0, HOUR_RATE, began_ms, True))
        for number in (1, 2):
            actor.deliver(TrialMetered(number, 1, 0, 0, began_ms, False))
        looks = [timer.due_ms - began_ms for timer in actor.timers]
        assert looks == [940_000, 440_000, 273_333]
        for due_ms in reversed(looks):
            assert actor.state.status is Status.ACTIVE
            actor.now_ms = began_ms + due_ms
            actor.deliver(CostCheckDue())
        assert actor.state.status is Status.PAUSED
        # The first check schedules the check at 940 s, which pauses the experiment and schedules
        # the kill.
        again = [timer.due_ms - began_ms for timer in actor.timers[len(looks) :]]
        assert again == [940_000, 985_000]

    def test_paused_experiment_continues_only_with_a_higher_limit(self) -> None:
        actor = _experiment(1.0)
        _deliver_metered(actor, 0, HOUR_RATE)
        actor.now_ms += 940_000
        actor.deliver(CostCheckDue())
        _deliver_metered(actor, 950 * FOUR, 0, holds=False)
        with pytest.raises(CommandRefused, match=r"max_cost of \$1.00"):
            actor.deliver(ActivateRequested())
        actor.deliver(SettingsChanged(max_cost=2.0, max_cost_given=True))
        assert actor.state.message == ""
        actor.deliver(ActivateRequested())
        assert actor.state.status is Status.ACTIVE

    def test_lower_limit_is_enforced_immediately(self) -> None:
        actor = _experiment(None)
        _deliver_metered(actor, 0, HOUR_RATE)
        actor.now_ms += 100_000
        actor.deliver(SettingsChanged(max_cost=0.05, max_cost_given=True))
        assert actor.state.status is Status.PAUSED
        assert actor.all_messages(PreemptionRequested)

    @pytest.mark.parametrize("amount", [0, -1])
    def test_limit_must_be_positive(self, amount: float) -> None:
        with pytest.raises(CommandRefused, match="max_cost must be an amount"):
            _experiment(amount)


def test_amounts_are_exact() -> None:
    assert to_micros(0.1) + to_micros(0.2) == to_micros(0.3) == 300_000
    assert render_dollars(12_400_000) == "$12.40"
    assert render_dollars(1_234) == "$0.0012"
    assert render_dollars(0) == "$0.00"
