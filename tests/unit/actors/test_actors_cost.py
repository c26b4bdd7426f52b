"""What trials and experiments cost: rates from the assignment of slots to their release.

Instances cost $3.60 an hour, which is 1,000 micro-dollars a second, and have 4 slots.
"""

import pytest

from control_plane.actors.cost import dollars_text, micros_of, read_usage
from control_plane.actors.experiment_messages import (
    ActivateRequested,
    CostLookDue,
    SettingsChanged,
    TrialMetered,
)
from control_plane.actors.records import Place, Status
from control_plane.actors.step import Refused, RowSeen
from control_plane.actors.trial_messages import (
    AllocationExited,
    AllocationLost,
    ExperimentStatusChanged,
    PreemptionRequested,
    SlotsAssigned,
)
from control_plane.fleet.records import InstanceRow, InstanceState, Market, Offering
from control_plane.fleet.rows import encode
from tests.unit.actors import samples
from tests.unit.actors.desk import START_MS, Desk

PRICE = 3.6
POOL = "default"
USAGE = f"usage#{POOL}"
TWO, FOUR = 500, 1_000  # micro-dollars a second for so many slots


def _row(name: str, price: float = PRICE) -> RowSeen:
    offering = Offering("small", "small", "a", Market.ON_DEMAND, 4, price)
    row = InstanceRow(name, POOL, offering, InstanceState.RUNNING, 0, "i")
    return RowSeen(1, encode(row))


def _trial(*names: str, price: float = PRICE) -> Desk:
    desk = Desk("trial#5")
    for name in names:
        desk.rows[f"instances#{POOL}", name] = _row(name, price)
    desk.tell(samples.created())
    return desk


def _place(agent: str, slots: int) -> Place:
    return Place(agent, tuple(range(slots)))


def _assigned(*places: Place) -> SlotsAssigned:
    return SlotsAssigned(1, places)


class TestTrials:
    def test_an_allocation_costs_its_share_of_the_instance(self) -> None:
        desk = _trial("a")
        desk.tell(_assigned(_place("a", 2)))
        told = TrialMetered(3, 1, 0, TWO * 3600, START_MS, True)
        assert desk.sent_to("experiment#1") == [told]
        desk.now_ms += 10_000
        desk.tell(AllocationExited(1, "preempted"))
        # 2 of 4 slots for 10 s.
        assert desk.state.cost_micros == 10 * TWO
        assert desk.sent_to("experiment#1") == [TrialMetered(3, 1, 10 * TWO, 0, desk.now_ms, False)]
        (usage,) = [row for (part, _), row in desk.rows.items() if part == USAGE]
        assert read_usage(usage.body).micros == 10 * TWO

    def test_what_is_repeated_or_late_costs_nothing_more(self) -> None:
        desk = _trial("a")
        desk.tell(_assigned(_place("a", 2)))
        desk.now_ms += 10_000
        desk.tell(_assigned(_place("a", 2)), AllocationExited(1, "preempted"))
        desk.now_ms += 10_000
        desk.tell(AllocationExited(1, "preempted"), _assigned(_place("a", 2)))
        assert desk.state.cost_micros == 10 * TWO
        assert desk.sent_to("experiment#1") == []

    @pytest.mark.parametrize("names", [(), ("a",)])
    def test_what_has_no_price_is_not_talked_of(self, names: tuple[str, ...]) -> None:
        desk = _trial(*names, price=0)
        desk.tell(_assigned(_place("a", 2)))
        assert desk.sent_to("experiment#1") == []
        desk.now_ms += 10_000
        desk.tell(AllocationExited(1, "preempted"))
        assert desk.state.cost_micros == 0
        assert not [key for key in desk.rows if key[0] == USAGE]

    def test_a_machine_that_enrolled_before_its_row_was_written_costs_all_the_same(self) -> None:
        desk = _trial()
        desk.tell(_assigned(_place("a", 4)))
        desk.rows[f"instances#{POOL}", "a"] = _row("a")
        desk.now_ms += 10_000
        desk.tell(AllocationExited(1, "preempted"))
        assert desk.state.cost_micros == 10 * FOUR

    def test_a_machine_that_is_lost_costs_until_it_was_last_heard_of(self) -> None:
        desk = _trial("a")
        desk.tell(_assigned(_place("a", 4)))
        heard_ms = desk.now_ms + 10_000
        desk.now_ms += 40_000
        desk.tell(AllocationLost(1, "gone", "a", heard_ms))
        assert desk.state.cost_micros == 10 * FOUR

    def test_of_a_gang_each_machine_costs_while_it_is_there(self) -> None:
        desk = _trial("a", "b")
        desk.tell(_assigned(_place("a", 4), _place("b", 4)))
        heard_ms = desk.now_ms + 10_000
        desk.now_ms += 40_000
        desk.tell(AllocationLost(1, "gone", "b", heard_ms))
        assert [it.rate_micros for it in desk.ever_sent(TrialMetered)] == [
            2 * FOUR * 3600,
            FOUR * 3600,
        ]
        desk.now_ms += 10_000
        desk.tell(AllocationExited(1, "killed", node_rank=0, nodes=2))
        # b for 10 s, a for 50 s.
        assert desk.state.cost_micros == (10 + 50) * FOUR

    def test_allocations_add_up(self) -> None:
        desk = _trial("a")
        desk.tell(_assigned(_place("a", 4)))
        desk.now_ms += 10_000
        desk.tell(AllocationExited(1, "preempted"))
        desk.tell(SlotsAssigned(2, (_place("a", 2),)))
        desk.now_ms += 4_000
        desk.tell(ExperimentStatusChanged(Status.STOPPING_KILLED), AllocationExited(2, "killed"))
        assert desk.state.cost_micros == 10 * FOUR + 4 * TWO


HOUR_RATE = FOUR * 3600  # 1,000 micro-dollars a second


def _experiment(max_cost: float | None) -> Desk:
    desk = Desk("experiment#1")
    desk.tell(samples.submitted())
    desk.tell(SettingsChanged(max_cost=max_cost, max_cost_given=True))
    return desk


def _metered(desk: Desk, cost: int, rate: int, holds: bool = True, epoch: int = 1) -> None:
    desk.tell(TrialMetered(0, epoch, cost, rate, desk.now_ms, holds))


class TestExperiments:
    def test_it_costs_what_its_trials_do(self) -> None:
        desk = _experiment(None)
        _metered(desk, 0, HOUR_RATE)
        desk.now_ms += 5_000
        assert desk.state.bill.spent_micros(desk.now_ms) == 5 * FOUR
        assert desk.state.bill.worked_until_ms(desk.now_ms) == 5_000
        _metered(desk, 5 * FOUR, 0, holds=False)
        before = desk.state
        _metered(desk, 5 * FOUR, 0, holds=False)
        _metered(desk, 0, HOUR_RATE)
        assert desk.state == before
        desk.now_ms += 60_000
        assert desk.state.bill.spent_micros(desk.now_ms) == 5 * FOUR
        assert desk.state.bill.worked_until_ms(desk.now_ms) == 5_000

    def test_it_is_paused_before_its_limit_and_killed_shortly_before(self) -> None:
        # $1 lasts for 1,000 s: it is asked to stop 60 s before that and made to 15 s before.
        desk = _experiment(1.0)
        _metered(desk, 0, HOUR_RATE)
        began_ms = desk.now_ms
        assert desk.timers[-1].due_ms == began_ms + 940_000
        desk.now_ms = began_ms + 940_000
        desk.tell(CostLookDue())
        assert desk.state.status is Status.PAUSED
        assert desk.state.message == (
            "the experiment has come to its max_cost of $1.00 (spent: $0.9400): raise it with"
            " `detcloud experiment set max-cost 1 AMOUNT`, then activate it"
        )
        assert desk.timers[-1].due_ms == began_ms + 985_000
        desk.now_ms = began_ms + 985_000
        desk.tell(CostLookDue())
        (stop,) = desk.ever_sent(PreemptionRequested)
        assert stop.forced
        assert stop.epoch == 1

    def test_small_limits_have_shorter_times(self) -> None:
        # 40 s: a quarter of it is 10 s, and a quarter of that 2.5 s.
        desk = _experiment(0.04)
        _metered(desk, 0, HOUR_RATE)
        assert desk.timers[-1].due_ms == desk.now_ms + 30_000

    def test_more_machines_bring_the_limit_nearer(self) -> None:
        desk = _experiment(1.0)
        _metered(desk, 0, HOUR_RATE)
        desk.now_ms += 100_000
        desk.tell(TrialMetered(0, 2, 100 * FOUR, 4 * HOUR_RATE, desk.now_ms, True))
        # $0.90 at 4,000 a second: 225 s, of which the last 60 are for stopping.
        assert desk.timers[-1].due_ms == desk.now_ms + 165_000

    def test_looks_that_are_not_needed_any_more_ask_for_no_others(self) -> None:
        # Three trials bring the limit nearer, twice; then only the first goes on.
        desk = _experiment(1.0)
        began_ms = desk.now_ms
        for number in range(3):
            desk.tell(TrialMetered(number, 1, 0, HOUR_RATE, began_ms, True))
        for number in (1, 2):
            desk.tell(TrialMetered(number, 1, 0, 0, began_ms, False))
        looks = [timer.due_ms - began_ms for timer in desk.timers]
        assert looks == [940_000, 440_000, 273_333]
        for due_ms in reversed(looks):
            assert desk.state.status is Status.ACTIVE
            desk.now_ms = began_ms + due_ms
            desk.tell(CostLookDue())
        assert desk.state.status is Status.PAUSED
        # The first of them sees to it that there is one in time; the last is for those who stay.
        again = [timer.due_ms - began_ms for timer in desk.timers[len(looks) :]]
        assert again == [940_000, 985_000]

    def test_it_goes_on_only_with_a_higher_limit(self) -> None:
        desk = _experiment(1.0)
        _metered(desk, 0, HOUR_RATE)
        desk.now_ms += 940_000
        desk.tell(CostLookDue())
        _metered(desk, 950 * FOUR, 0, holds=False)
        with pytest.raises(Refused, match=r"max_cost of \$1.00"):
            desk.tell(ActivateRequested())
        desk.tell(SettingsChanged(max_cost=2.0, max_cost_given=True))
        assert desk.state.message == ""
        desk.tell(ActivateRequested())
        assert desk.state.status is Status.ACTIVE

    def test_a_lower_limit_is_in_force_at_once(self) -> None:
        desk = _experiment(None)
        _metered(desk, 0, HOUR_RATE)
        desk.now_ms += 100_000
        desk.tell(SettingsChanged(max_cost=0.05, max_cost_given=True))
        assert desk.state.status is Status.PAUSED
        assert desk.ever_sent(PreemptionRequested)

    @pytest.mark.parametrize("amount", [0, -1])
    def test_no_limit_is_nothing_or_less(self, amount: float) -> None:
        with pytest.raises(Refused, match="max_cost must be an amount"):
            _experiment(amount)


def test_amounts_are_exact() -> None:
    assert micros_of(0.1) + micros_of(0.2) == micros_of(0.3) == 300_000
    assert dollars_text(12_400_000) == "$12.40"
    assert dollars_text(1_234) == "$0.0012"
    assert dollars_text(0) == "$0.00"
