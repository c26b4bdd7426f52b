import math
from dataclasses import replace
from time import process_time
from uuid import UUID

import numpy as np
import pytest
from pydantic import TypeAdapter

from control_plane.searchers.era_rules import LENGTH_ERA, STEP_ERA, SearchRules
from control_plane.searchers.method import (
    Create,
    CreateTrial,
    Event,
    ExitReason,
    MethodPlan,
    Shutdown,
    Tally,
    TrialClosed,
    TrialExitedEarly,
    TrialLengthReached,
    TrialProgressed,
)
from control_plane.searchers.methods.grid import GridPlan
from control_plane.searchers.methods.random import RandomPlan
from control_plane.searchers.methods.single import SinglePlan
from control_plane.searchers.randomness import Generator
from control_plane.searchers.search import (
    SearchPlan,
    SearchState,
    SearchStep,
    TrialOperation,
    begin_search,
    completed_share,
    expand_creates,
    handle_event,
)
from control_plane.searchers.space import Categorical, Const, Double, Group, Int, Log

SPACE = Group(
    {
        "lr": Log(10, -4, -1, 3),
        "units": Int(8, 64, 3),
        "dropout": Double(0.2, 0.8, 2),
        "act": Categorical(("relu", "tanh")),
        "batch": Const(64),
    }
)
SEED = 1234


def search_plan(method: MethodPlan, space: Group = SPACE) -> SearchPlan:
    return SearchPlan(method, space, SEED)


class RunningSearch:
    """A search with a generator. The test sends events."""

    def __init__(self, plan: SearchPlan, create_max: int = 100) -> None:
        self.plan = plan
        self.create_max = create_max
        self.generator = Generator.from_seed(plan.seed)
        self.state = begin_search(plan).state
        self.begun = self.accept_step(expand_creates(plan, self.state, self.generator, create_max))

    def send_event(self, event: Event) -> tuple[TrialOperation, ...]:
        return self.accept_step(
            handle_event(self.plan, self.state, self.generator, event, self.create_max)
        )

    def accept_step(self, step: SearchStep) -> tuple[TrialOperation, ...]:
        self.state = step.state
        return step.operations

    @property
    def progress(self) -> float:
        return completed_share(self.plan, self.state)


def created_trials(operations: tuple[TrialOperation, ...]) -> list[CreateTrial]:
    return [op for op in operations if isinstance(op, CreateTrial)]


@pytest.mark.parametrize("rules", [STEP_ERA, LENGTH_ERA])
def test_create_draws_hyperparameters_then_request_id_then_seed(rules: SearchRules) -> None:
    state = np.random.RandomState(SEED)
    running = RunningSearch(search_plan(RandomPlan(9, 50, 0, rules)))
    assert len(running.begun) == 50
    for trial, create in enumerate(created_trials(running.begun)):
        hparams: dict[str, object] = {
            "act": ("relu", "tanh")[state.randint(2)],
            "batch": 64,
            "dropout": 0.2 + (0.8 - 0.2) * state.random_sample(),
            "lr": 10 ** (-4 + 3 * state.random_sample()),
            # 8..63 in the step era, 8..64 in the length era
            "units": 8 + state.randint(57 if rules is LENGTH_ERA else 56),
        }
        request_id = str(UUID(bytes=state.bytes(16), version=4))
        seed = state.randint(2**31)
        assert create == CreateTrial(trial, request_id, seed, hparams, length=9, closed=True)


@pytest.mark.parametrize("rules", [STEP_ERA, LENGTH_ERA])
def test_grid_create_draws_no_hyperparameters(rules: SearchRules) -> None:
    space = Group({"a": Categorical(("x", "y")), "b": Int(0, 10, 3)})
    state = np.random.RandomState(SEED)
    points = [{"a": a, "b": b} for a in ("x", "y") for b in (0, 5, 10)]
    operations = created_trials(RunningSearch(search_plan(GridPlan(9, 0, rules), space)).begun)
    assert [op.hparams for op in operations] == (points if rules is STEP_ERA else points[::-1])
    for create in operations:
        assert create.request_id == str(UUID(bytes=state.bytes(16), version=4))
        assert create.seed == state.randint(2**31)


def test_request_id_is_random_uuid() -> None:
    for create in created_trials(
        RunningSearch(search_plan(RandomPlan(9, 100, 0, LENGTH_ERA))).begun
    ):
        request_id = UUID(create.request_id)
        assert (request_id.version, request_id.variant) == (4, "specified in RFC 4122")
        assert str(request_id) == create.request_id
        assert 0 <= create.seed < 2**31


def test_begin_search_draws_no_word() -> None:
    step = begin_search(search_plan(RandomPlan(9, 3, 16, LENGTH_ERA)))
    assert (step.operations, step.more) == ((), True)
    assert step.state.position == Generator.from_seed(SEED).position
    assert (step.state.tally.requested, step.state.tally.created) == (3, 0)


def test_creates_are_expanded_in_chunks() -> None:
    plan = search_plan(RandomPlan(9, 5, 0, LENGTH_ERA))
    generator = Generator.from_seed(SEED)
    state = begin_search(plan).state
    sizes = []
    operations: tuple[TrialOperation, ...] = ()
    more = True
    while more:
        step = expand_creates(plan, state, generator, create_max=2)
        state, more = step.state, step.more
        sizes.append(len(step.operations))
        operations += step.operations
    assert sizes == [2, 2, 1]
    assert operations == RunningSearch(plan).begun


def test_different_creates_are_expanded_in_order() -> None:
    plan = search_plan(RandomPlan(9, 4, 0, LENGTH_ERA))
    creates = [Create(2, "Sampled", 0, length, closed=False) for length in (5, 9)]
    state = replace(begin_search(plan).state, backlog=tuple(creates))
    generator = Generator.from_seed(SEED)
    lengths = []
    for _ in range(4):
        step = expand_creates(plan, state, generator, create_max=1)
        state = step.state
        lengths += [(create.trial, create.length) for create in created_trials(step.operations)]
    assert lengths == [(0, 5), (1, 5), (2, 9), (3, 9)]


def test_backlog_merges_consecutive_creates_and_keeps_order() -> None:
    # 100 points wait, and each ended trial adds one more: a single decreasing sequence
    plan = search_plan(GridPlan(9, 100, LENGTH_ERA), Group({"n": Int(0, 199, 200)}))
    running = RunningSearch(plan, create_max=1)
    for trial in range(50):
        running.send_event(TrialClosed(trial, 0.0))
    (waiting,) = running.state.backlog
    # 150 requested, 51 created: 99 wait, the first for point 199 - 51
    assert (waiting.count, waiting.first_point) == (99, 148)


def test_replacements_of_invalid_trials_are_appended_to_backlog() -> None:
    running = RunningSearch(search_plan(RandomPlan(9, 30, 0, LENGTH_ERA)), create_max=1)
    for trial in range(20):
        running.send_event(TrialExitedEarly(trial, ExitReason.INVALID_HP, 0.0))
    # 30 + 20 requested, 1 + 20 created
    assert [create.count for create in running.state.backlog] == [29]


def test_search_shuts_down_with_last_trial() -> None:
    running = RunningSearch(search_plan(RandomPlan(9, 2, 1, LENGTH_ERA)))
    assert running.send_event(TrialLengthReached(0, 9, 0.5)) == ()
    assert [op.trial for op in created_trials(running.send_event(TrialClosed(0, 0.0)))] == [1]
    assert running.send_event(TrialClosed(1, 0.0)) == (Shutdown(failure=False),)
    assert running.state.shutdown


@pytest.mark.parametrize(
    ("rules", "reason", "shutdown"),
    [
        (LENGTH_ERA, ExitReason.ERRORED, Shutdown(failure=True)),
        (LENGTH_ERA, ExitReason.USER_CANCELED, Shutdown(failure=False, cancel=True)),
        (LENGTH_ERA, ExitReason.USER_REQUESTED_STOP, Shutdown(failure=False)),
        (LENGTH_ERA, ExitReason.INVALID_HP, Shutdown(failure=False)),
        (STEP_ERA, ExitReason.ERRORED, Shutdown(failure=True)),
        (STEP_ERA, ExitReason.USER_CANCELED, Shutdown(failure=True)),
        (STEP_ERA, ExitReason.INVALID_HP, Shutdown(failure=True)),
    ],
)
def test_search_ends_like_all_trials(
    rules: SearchRules, reason: ExitReason, shutdown: Shutdown
) -> None:
    running = RunningSearch(search_plan(SinglePlan(9, rules)))
    assert running.send_event(TrialExitedEarly(0, reason, 3.0)) == (shutdown,)


@pytest.mark.parametrize("other", [ExitReason.USER_REQUESTED_STOP, ExitReason.ERRORED])
def test_search_is_canceled_only_if_all_trials_are_canceled(other: ExitReason) -> None:
    # 2 requested: 1 canceled < 2, 1 errored < 2.
    running = RunningSearch(search_plan(RandomPlan(9, 2, 0, LENGTH_ERA)))
    running.send_event(TrialExitedEarly(0, ExitReason.USER_CANCELED, 3.0))
    assert running.send_event(TrialExitedEarly(1, other, 3.0)) == (Shutdown(failure=False),)


@pytest.mark.parametrize("rules", [STEP_ERA, LENGTH_ERA])
def test_search_with_a_good_trial_does_not_fail(rules: SearchRules) -> None:
    running = RunningSearch(search_plan(RandomPlan(9, 3, 0, rules)))
    running.send_event(TrialExitedEarly(0, ExitReason.ERRORED, 0.0))
    running.send_event(TrialClosed(2, 0.0))
    assert running.send_event(TrialExitedEarly(1, ExitReason.ERRORED, 0.0)) == (
        Shutdown(failure=False),
    )


def test_replaced_trials_count_as_requested_in_failure_rule() -> None:
    # 1 of 2 requested trials errored: the search does not fail
    running = RunningSearch(search_plan(RandomPlan(9, 1, 16, LENGTH_ERA)))
    (replacement,) = created_trials(
        running.send_event(TrialExitedEarly(0, ExitReason.INVALID_HP, 0.0))
    )
    assert replacement.trial == 1
    assert running.send_event(TrialExitedEarly(1, ExitReason.ERRORED, 0.0)) == (
        Shutdown(failure=False),
    )


@pytest.mark.parametrize("rules", [STEP_ERA, LENGTH_ERA])
def test_plan_without_trials_shuts_down_at_once(rules: SearchRules) -> None:
    plan = search_plan(GridPlan(9, 16, rules), Group({}))
    step = begin_search(plan)
    assert (step.operations, step.more) == ((Shutdown(failure=True),), False)
    assert step.state.shutdown
    assert completed_share(plan, step.state) == 1.0


@pytest.mark.parametrize("trial", [-1, 2, 3])
def test_ignores_event_of_unknown_trial(trial: int) -> None:
    running = RunningSearch(search_plan(RandomPlan(9, 3, 2, LENGTH_ERA)))
    before = running.state
    assert running.send_event(TrialClosed(trial, 0.0)) == ()
    assert running.state == before


def test_ignores_event_while_no_trial_is_open() -> None:
    plan = search_plan(RandomPlan(9, 2, 1, LENGTH_ERA))
    running = RunningSearch(plan)
    running.create_max = 0  # the next trial is requested, not yet created
    assert running.send_event(TrialExitedEarly(0, ExitReason.ERRORED, 1.0)) == ()
    before = running.state
    assert running.send_event(TrialExitedEarly(0, ExitReason.ERRORED, 1.0)) == ()
    assert running.state == before
    assert handle_event(plan, before, running.generator, TrialClosed(0, 1.0), 1).more


def test_ignores_event_after_shutdown() -> None:
    running = RunningSearch(search_plan(SinglePlan(9, LENGTH_ERA)))
    open_still = replace(running.state, shutdown=True)
    late = handle_event(running.plan, open_still, running.generator, TrialClosed(0, 9.0), 1)
    assert late == SearchStep(open_still, (), more=False)
    running.send_event(TrialClosed(0, 9.0))
    before = running.state
    assert running.send_event(TrialExitedEarly(0, ExitReason.ERRORED, 9.0)) == ()
    assert running.state == before


def test_step_era_progress_follows_workloads() -> None:
    running = RunningSearch(search_plan(RandomPlan(4, 2, 0, STEP_ERA)))
    # (4 + 1) * 2 = 10 workloads
    assert running.progress == 0.0
    running.send_event(TrialProgressed(0, 3.0))
    assert running.progress == 0.3
    running.send_event(TrialProgressed(0, 1.0))
    running.send_event(TrialLengthReached(0, 4, 0.9))
    assert running.progress == 0.5
    running.send_event(TrialClosed(0, 4.0))
    assert running.progress == 0.5
    running.send_event(TrialProgressed(1, 2.0))
    assert running.progress == 0.7
    running.send_event(TrialExitedEarly(1, ExitReason.ERRORED, 2.0))
    assert running.progress == 1.0  # completed, despite missing work


def test_length_era_progress_follows_units_and_closed_trials() -> None:
    running = RunningSearch(search_plan(RandomPlan(100, 4, 2, LENGTH_ERA)))
    # 100 * 4 = 400 units
    running.send_event(TrialProgressed(0, 30.0))
    assert running.progress == 30 / 400
    running.send_event(TrialProgressed(1, 50.0))
    assert running.progress == 80 / 400
    running.send_event(TrialExitedEarly(1, ExitReason.ERRORED, 50.0))
    assert running.progress == 130 / 400
    running.send_event(TrialExitedEarly(0, ExitReason.INVALID_HP, 30.0))
    assert running.progress == 100 / 400
    # trials 2 and 3 were created; trial 3 replaces the invalid trial
    running.send_event(TrialClosed(2, 0.0))
    running.send_event(TrialClosed(3, 0.0))
    assert running.progress == 300 / 400
    assert running.send_event(TrialClosed(4, 0.0)) == (Shutdown(failure=False),)
    assert running.progress == 1.0


@pytest.mark.parametrize(
    ("units", "expected"), [(math.nan, 0.0), (math.inf, 0.0), (-5.0, 0.0), (500.0, 1.0)]
)
def test_progress_is_clamped_to_0_and_1(units: float, expected: float) -> None:
    running = RunningSearch(search_plan(SinglePlan(100, LENGTH_ERA)))
    state = replace(running.state, tally=Tally(1, 1, open_units=units))
    assert completed_share(running.plan, state) == expected


@pytest.mark.parametrize("units", [math.nan, math.inf, -1.0])
def test_rejects_units_that_are_negative_or_not_finite(units: float) -> None:
    running = RunningSearch(search_plan(SinglePlan(100, LENGTH_ERA)))
    events = (
        TrialProgressed(0, units),
        TrialClosed(0, units),
        TrialExitedEarly(0, ExitReason.ERRORED, units),
    )
    for event in events:
        with pytest.raises(ValueError, match="trial 0 reported"):
            running.send_event(event)


def test_open_units_are_0_without_open_trials() -> None:
    running = RunningSearch(search_plan(RandomPlan(1, 3, 1, LENGTH_ERA)))
    for _ in range(3):
        running.send_event(TrialProgressed(0, 0.1))
    assert running.state.tally.open_units > 0.3
    running.send_event(TrialClosed(0, 0.3))
    assert running.state.tally.open_units == 0.0


def test_open_units_stay_nonnegative() -> None:
    running = RunningSearch(search_plan(RandomPlan(9, 3, 3, LENGTH_ERA)))
    running.send_event(TrialProgressed(0, 2.0))
    running.send_event(TrialExitedEarly(1, ExitReason.INVALID_HP, 5.0))
    assert running.state.tally.open_units == 0.0
    running.send_event(TrialProgressed(2, 3.0))
    assert running.progress == 3 / 27


def test_rejects_generator_at_other_position() -> None:
    plan = search_plan(RandomPlan(9, 3, 1, LENGTH_ERA))
    generator = Generator.from_seed(SEED)
    generator.draw_word()
    with pytest.raises(AssertionError):
        expand_creates(plan, begin_search(plan).state, generator, 1)


def test_stored_state_stays_small_for_many_trials() -> None:
    running = RunningSearch(search_plan(RandomPlan(10**9, 10**9, 0, LENGTH_ERA)))
    running.send_event(TrialProgressed(99, 0.1 + 0.2))
    running.send_event(TrialExitedEarly(98, ExitReason.ERRORED, 0.0))
    codec = TypeAdapter(SearchState)
    stored = codec.dump_json(running.state)
    assert len(stored) < 600
    assert codec.validate_json(stored) == running.state


@pytest.mark.parametrize(
    "method",
    [RandomPlan(9, 3, 1, LENGTH_ERA), SinglePlan(9, STEP_ERA), GridPlan(9, 2, LENGTH_ERA)],
)
def test_plan_reads_back_from_json(method: MethodPlan) -> None:
    codec = TypeAdapter(SearchPlan)
    plan = search_plan(method)
    restored = codec.validate_json(codec.dump_json(plan))
    assert (restored.method, restored.seed) == (plan.method, plan.seed)
    assert RunningSearch(restored).begun == RunningSearch(plan).begun


@pytest.mark.parametrize(
    "method", [RandomPlan(9, 10_000, 0, LENGTH_ERA), GridPlan(9, 10_000, LENGTH_ERA)]
)
def test_10000_creates_expand_fast(method: MethodPlan) -> None:
    # 10 * 10 * 10 * 10 * 1 = 10,000 points
    space = Group({f"p{i}": Double(0, 1, 10) for i in range(4)} | {"p4": Int(0, 9, 1)})
    started = process_time()
    assert len(RunningSearch(search_plan(method, space), create_max=10_000).begun) == 10_000
    # Takes 0.1 to 0.2 s of processor time.
    assert process_time() - started < 2
