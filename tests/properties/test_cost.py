"""The cost of trials never exceeds the cost of the instances, nor the limit."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.actors.cost import cost_of, to_micros
from control_plane.actors.messages.experiment import CostCheckDue, SettingsChanged, TrialMetered
from control_plane.actors.messages.trial import (
    AllocationExited,
    PreemptionRequested,
    SlotsAssigned,
    TrialCreated,
)
from control_plane.actors.records import Place, Status
from control_plane.actors.step import ObservedRow
from control_plane.fleet.records import InstanceRow, InstanceState, Market, Offering
from control_plane.fleet.rows import encode_row
from tests.unit.actors import sample_messages as samples
from tests.unit.actors.actor_harness import START_MS, ActorHarness

POOL = "default"
# A trial that is made to stop has stopped within that, as long as limits last for a while.
KILLED_MS = 2_000
LIMIT = 1_000_000


@given(
    price=st.floats(0, 100),
    slots=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    times=st.lists(st.integers(0, 100_000), min_size=6, max_size=6),
    repeats=st.integers(1, 3),
)
@settings(deadline=None)
def test_sequential_trials_on_an_instance_cost_at_most_the_instance(
    price: float, slots: list[int], times: list[int], repeats: int
) -> None:
    offering = Offering("small", "small", "a", Market.SPOT, 4, price)
    row = InstanceRow("a", POOL, offering, InstanceState.RUNNING, START_MS, "i")
    now_ms, total = START_MS, 0
    for count, elapsed_ms in zip(slots, times, strict=False):
        actor = ActorHarness(
            "trial#4", {(f"instances#{POOL}", "a"): ObservedRow(1, encode_row(row))}
        )
        actor.now_ms = now_ms
        actor.deliver(samples.trial_created())
        actor.deliver(*[SlotsAssigned(1, (Place("a", tuple(range(count))),))] * repeats)
        actor.now_ms = now_ms = now_ms + elapsed_ms
        actor.deliver(*[AllocationExited(1, "preempted")] * repeats)
        assert actor.state.cost_micros >= 0
        assert actor.state.cost_micros == cost_of(to_micros(price) * count // 4, elapsed_ms)
        total += actor.state.cost_micros
    assert total <= cost_of(to_micros(price), now_ms - START_MS)


@dataclass
class Runs:
    """The trials of an experiment on a clock of 500 ms steps; trials obey late."""

    actor: ActorHarness
    numbers: dict[int, int]
    cost: dict[int, int] = field(default_factory=dict)
    running: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    stops_ms: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)

    def start(self, number: int, rate: int) -> None:
        if self.actor.state.status is not Status.ACTIVE or number in self.running:
            return
        epoch = self.epochs[number] = self.epochs.get(number, 0) + 1
        self.running[number] = (epoch, rate, self.actor.now_ms)
        self._tell(number, rate, True)

    def end(self, number: int) -> None:
        if number not in self.running:
            return
        _, rate, since_ms = self.running.pop(number)
        self.stops_ms.pop(number, None)
        cost = cost_of(rate, self.actor.now_ms - since_ms)
        self.cost[number] = self.cost.get(number, 0) + cost
        self._tell(number, 0, False)

    def _tell(self, number: int, rate: int, holds: bool) -> None:
        epoch, now_ms = self.epochs[number], self.actor.now_ms
        message = TrialMetered(number, epoch, self.cost.get(number, 0), rate, now_ms, holds)
        self._hear(message)
        before = self.actor.state
        self.actor.deliver(message)
        assert self.actor.state.bill.cost_micros == before.bill.cost_micros

    def _hear(self, *messages: object) -> None:
        for message in messages:
            self.actor.deliver(message)
            for send in self.actor.sent:
                if isinstance(send.message, PreemptionRequested):
                    self._stop(int(send.to.partition("#")[2]), KILLED_MS)

    def _stop(self, trial_id: int, after_ms: int) -> None:
        """Record when the trial has to stop; trials never stop earlier."""
        number = self.numbers[trial_id]
        if number in self.running:
            due_ms = self.actor.now_ms + after_ms
            self.stops_ms[number] = min(due_ms, self.stops_ms.get(number, due_ms))

    def pass_time(self, steps: int) -> None:
        for _ in range(steps):
            self.actor.now_ms += 500
            due = [timer for timer in self.actor.timers if timer.due_ms <= self.actor.now_ms]
            self.actor.timers = [timer for timer in self.actor.timers if timer not in due]
            self._hear(*[CostCheckDue() for _ in due])
            for number, stop_ms in list(self.stops_ms.items()):
                if stop_ms <= self.actor.now_ms:
                    self.end(number)


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 40_000_000), st.integers(1, 120)),
        max_size=12,
    )
)
@settings(deadline=None, max_examples=60)
def test_cost_of_an_experiment_stays_within_the_limit(steps: list[tuple[int, int, int]]) -> None:
    # With four trials at $10 an hour each, $1 lasts for 90 s. They are stopped 5.6 s before the
    # end, which is more than their 2 s and the tick of 0.5 s.
    actor = ActorHarness("experiment#1")
    actor.deliver(samples.experiment_submitted(samples.random_plan(4)))
    created = actor.all_messages(TrialCreated)
    actor.deliver(SettingsChanged(max_cost=1.0, max_cost_given=True))
    runs = Runs(actor, {trial_created.trial_id: trial_created.number for trial_created in created})
    for number, rate, ticks in steps:
        if number in runs.running:
            runs.end(number)
        else:
            runs.start(number, rate // 4)
        runs.pass_time(ticks)
        spent = actor.state.bill.spent_micros(actor.now_ms)
        direct = sum(runs.cost.values()) + sum(
            cost_of(rate, actor.now_ms - since_ms) for _, rate, since_ms in runs.running.values()
        )
        assert 0 <= spent - direct <= len(runs.running)
        assert spent <= LIMIT
