"""Population-based training on small populations, worked out by hand."""

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from control_plane.searchers.era_rules import LENGTH_ERA, STEP_ERA
from control_plane.searchers.exploration import Exploration
from control_plane.searchers.method import (
    Close,
    CreateTrial,
    Event,
    ExitReason,
    Shutdown,
    TrainTo,
    TrialClosed,
    TrialExitedEarly,
    TrialLengthReached,
    TrialProgressed,
)
from control_plane.searchers.methods import pbt
from control_plane.searchers.methods.pbt import PopulationPlan
from control_plane.searchers.randomness import Generator
from control_plane.searchers.search import (
    SearchPlan,
    SearchStep,
    TrialOperation,
    begin_search,
    completed_share,
    expand_creates,
    handle_event,
    has_more,
)
from control_plane.searchers.space import Double, Group
from tests.unit.searchers.driven_search import STATE
from tests.unit.searchers.recording_blob_store import RecordingBlobStore

SPACE = Group({"x": Double(0.0, 1.0)})
# No value is resampled: the value of a copy is 0.5 or 1.5 times the original's value.
HALVES = Exploration(resample_probability=0.0, perturb_factor=0.5)
# Rounds of length 10 with 4 trials; trunc(0.25 * 4) = 1 trial is replaced.
PLAN = PopulationPlan(10, 4, 3, 0.25, HALVES, smaller_is_better=True, rules=STEP_ERA)


class Search:
    """A search. The test sends the reports of the trials."""

    def __init__(self, method: PopulationPlan = PLAN, create_max: int = 100) -> None:
        self.plan = SearchPlan(method, SPACE, 7)
        self.blobs = RecordingBlobStore()
        self.generator = Generator.from_seed(7)
        self.create_max = create_max
        self.created: list[CreateTrial] = []
        self.state = begin_search(self.plan, self.blobs).state
        self._expand_all()

    def send_event(self, event: Event) -> list[TrialOperation]:
        step = handle_event(
            self.plan, self.state, self.generator, event, self.create_max, self.blobs
        )
        self.state = step.state
        created = [op for op in step.operations if isinstance(op, CreateTrial)]
        self.created += created
        return [*step.operations, *self._expand_all()]

    def report_result(self, trial: int, length: int, metric: float) -> list[TrialOperation]:
        return self.send_event(TrialLengthReached(trial, length, metric))

    def run_round(self, length: int, metrics: dict[int, float]) -> list[TrialOperation]:
        """Report a result of each trial at `length`; return the operations after the last result.

        Fail if an earlier result has operations.
        """
        *first, last = metrics.items()
        for trial, metric in first:
            assert self.report_result(trial, length, metric) == []
        return self.report_result(last[0], length, last[1])

    @property
    def progress(self) -> float:
        return completed_share(self.plan, self.state)

    def _expand_all(self) -> list[TrialOperation]:
        operations: list[TrialOperation] = []
        while self.state.backlog:
            step = expand_creates(
                self.plan, self.state, self.generator, self.create_max, self.blobs
            )
            self.state = step.state
            operations += step.operations
        self.created += [op for op in operations if isinstance(op, CreateTrial)]
        return operations


def operations_of_type(operations: Iterable[TrialOperation], kind: type) -> list[TrialOperation]:
    return [operation for operation in operations if isinstance(operation, kind)]


def test_whole_population_is_created_at_start() -> None:
    created = Search().created
    assert [(one.trial, one.length, one.closed, one.parent) for one in created] == [
        (trial, 10, False, None) for trial in range(4)
    ]


def test_copy_of_best_trial_replaces_worst_after_round() -> None:
    search = Search()
    operations = search.run_round(10, {0: 3.0, 1: 1.0, 2: 4.0, 3: 2.0})
    # Sorted: 1, 3, 0, 2. The worst is closed, the best is copied, all but the worst train on.
    close, *trains, copy = operations
    assert close == Close(2)
    assert trains == [TrainTo(1, 20), TrainTo(3, 20), TrainTo(0, 20)]
    assert isinstance(copy, CreateTrial)
    assert (copy.trial, copy.parent, copy.length, copy.closed) == (4, 1, 10, False)


def test_perturb_factor_changes_hyperparameters_of_copy() -> None:
    search = Search()
    search.run_round(10, {0: 3.0, 1: 1.0, 2: 4.0, 3: 2.0})
    original, copy = (float(str(search.created[trial].hparams["x"])) for trial in (1, 4))
    assert copy in (original * 0.5, min(original * 1.5, 1.0))


def test_copy_counts_rounds_from_creation() -> None:
    search = Search()
    search.run_round(10, {0: 3.0, 1: 1.0, 2: 4.0, 3: 2.0})
    for trial in (0, 1, 3):
        assert search.report_result(trial, 20, float(trial + 10)) == []
    # The length of the copy is 10 in the second round. The copy is the best and is copied.
    operations = search.report_result(4, 10, 1.0)
    assert operations_of_type(operations, TrainTo) == [
        TrainTo(4, 20),
        TrainTo(0, 30),
        TrainTo(1, 30),
    ]
    assert operations_of_type(operations, Close) == [Close(3)]
    copy = search.created[-1]
    assert (copy.trial, copy.parent, copy.length) == (5, 4, 10)


def test_all_trials_are_closed_after_last_round() -> None:
    search = Search(replace(PLAN, num_rounds=1))
    operations = search.run_round(10, {0: 3.0, 1: 1.0, 2: 4.0, 3: 2.0})
    assert sorted(str(op) for op in operations) == [str(Close(trial)) for trial in range(4)]
    for trial in range(3):
        assert search.send_event(TrialClosed(trial, 10.0)) == []
    assert search.send_event(TrialClosed(3, 10.0)) == [Shutdown(failure=False)]


def test_larger_metric_is_better() -> None:
    search = Search(replace(PLAN, smaller_is_better=False))
    operations = search.run_round(10, {0: 3.0, 1: 1.0, 2: 4.0, 3: 2.0})
    assert operations_of_type(operations, Close) == [Close(1)]
    assert search.created[-1].parent == 2


def test_equal_metrics_are_ranked_by_request_ids() -> None:
    search = Search()
    operations = search.run_round(10, dict.fromkeys(range(4), 1.0))
    ranked = sorted(range(4), key=lambda trial: search.created[trial].request_id)
    assert operations_of_type(operations, Close) == [Close(ranked[-1])]
    assert search.created[-1].parent == ranked[0]


@pytest.mark.parametrize(
    ("fraction", "size", "replaced"), [(0.0, 4, 0), (0.5, 4, 2), (0.5, 5, 2), (0.2, 4, 0)]
)
def test_replaced_share_is_rounded_down(fraction: float, size: int, replaced: int) -> None:
    plan = replace(PLAN, population_size=size, truncate_fraction=fraction)
    search = Search(plan)
    operations = search.run_round(10, {trial: float(trial) for trial in range(size)})
    assert operations_of_type(operations, Close) == [
        Close(trial) for trial in range(size - replaced, size)
    ]
    assert [one.parent for one in search.created[size:]] == list(range(replaced))
    # Each round but the last replaces the same number of trials.
    assert plan.max_trials == size + 2 * replaced


def test_failed_trial_stays_worst_and_is_neither_closed_nor_copied() -> None:
    search = Search(replace(PLAN, population_size=5, truncate_fraction=0.2))
    for trial in (1, 2):
        assert search.send_event(TrialExitedEarly(trial, ExitReason.ERRORED, 0.0)) == []
    operations = search.run_round(10, {0: 1.0, 3: 2.0, 4: 3.0})
    # One of the two failed trials is replaced. The other stays a member and is not closed.
    assert operations_of_type(operations, Close) == []
    assert operations_of_type(operations, TrainTo) == [
        TrainTo(0, 20),
        TrainTo(3, 20),
        TrainTo(4, 20),
    ]
    assert search.created[-1].parent == 0
    # That member has a result already. The round ends after four more results and replaces it.
    operations = search.run_round(20, {0: 5.0, 3: 2.0, 4: 3.0})
    assert operations == []
    operations = search.report_result(5, 10, 4.0)
    assert operations_of_type(operations, Close) == []
    assert search.created[-1].parent == 3


def test_trial_that_fails_while_waiting_loses_result() -> None:
    search = Search()
    assert search.report_result(1, 10, 1.0) == []
    assert search.send_event(TrialExitedEarly(1, ExitReason.USER_CANCELED, 0.0, length=10)) == []
    operations = search.run_round(10, {0: 3.0, 2: 4.0, 3: 2.0})
    assert operations_of_type(operations, Close) == []
    assert search.created[-1].parent == 3
    assert operations_of_type(operations, TrainTo) == [
        TrainTo(3, 20),
        TrainTo(0, 20),
        TrainTo(2, 20),
    ]


def test_search_fails_if_all_trials_fail() -> None:
    search = Search()
    for trial in range(3):
        assert search.send_event(TrialExitedEarly(trial, ExitReason.INVALID_HP, 0.0)) == []
    assert search.send_event(TrialExitedEarly(3, ExitReason.ERRORED, 0.0)) == [
        Shutdown(failure=True)
    ]


def test_failed_best_trials_shrink_population() -> None:
    search = Search(replace(PLAN, truncate_fraction=0.5))
    for trial in (0, 1, 2):
        search.send_event(TrialExitedEarly(trial, ExitReason.ERRORED, 0.0))
    operations = search.report_result(3, 10, 1.0)
    # The best two are trial 3 and a failed trial, which is not copied. Two failed trials are
    # replaced.
    assert operations_of_type(operations, Close) == []
    assert operations_of_type(operations, TrainTo) == [TrainTo(3, 20)]
    assert [one.parent for one in search.created[4:]] == [3]
    # The round ends after the results of the two open trials.
    assert search.report_result(3, 20, 1.0) == []
    operations = search.report_result(4, 10, 2.0)
    assert operations_of_type(operations, TrainTo) == [TrainTo(3, 30), TrainTo(4, 20)]


def test_unexpected_reports_change_no_state() -> None:
    search = Search()
    assert search.report_result(0, 10, 1.0) == []
    before = search.state.method
    assert search.report_result(0, 10, 0.5) == []
    assert search.report_result(1, 20, 0.5) == []
    assert search.state.method == before


def test_copies_do_not_depend_on_chunk_size() -> None:
    metrics = {trial: float(trial) for trial in range(8)}
    plan = replace(PLAN, population_size=8, truncate_fraction=0.5)
    at_once, slowly = Search(plan), Search(plan, create_max=1)
    at_once.run_round(10, metrics)
    slowly.run_round(10, metrics)
    assert at_once.created == slowly.created
    assert len(slowly.created) == 12


def test_step_era_progress_counts_steps_validations_and_checkpoints() -> None:
    search = Search(replace(PLAN, num_rounds=2))
    # 2 * 4 * 10 steps + 2 * 4 validations + 1 * 1 checkpoint = 89 workloads.
    search.send_event(TrialProgressed(0, 10.0))
    search.report_result(0, 10, 1.0)
    assert search.progress == pytest.approx(11 / 89)
    for trial in (1, 2, 3):
        search.send_event(TrialProgressed(trial, 10.0))
        search.report_result(trial, 10, 2.0)
    assert search.progress == pytest.approx(45 / 89)


def test_length_era_progress_counts_training() -> None:
    search = Search(replace(PLAN, num_rounds=2, rules=LENGTH_ERA))
    search.send_event(TrialProgressed(0, 10.0))
    search.report_result(0, 10, 1.0)
    assert search.progress == pytest.approx(10 / 80)


def test_large_population_is_stored_in_small_blobs() -> None:
    search = Search(replace(PLAN, population_size=1_000))
    operations = search.run_round(10, {trial: float(trial) for trial in range(1_000)})
    assert len(operations_of_type(operations, Close)) == 250
    assert len(search.created) == 1_250
    assert max(map(len, search.blobs.contents.values())) <= 1_000


class LargeSearch(Search):
    """A search that creates few trials per step.

    `log`: all operations. `most_blobs`: the largest number of blobs that one step wrote.
    """

    def __init__(self, method: PopulationPlan, create_max: int) -> None:
        self.most_blobs = 0
        self.log: list[TrialOperation] = []
        super().__init__(method, create_max)

    def send_event(self, event: Event) -> list[TrialOperation]:
        self.take_event(event)
        return self._expand_all()

    def take_event(self, event: Event) -> None:
        """Send an event without expanding further creates and closes."""
        self.blobs.written.clear()
        self._add(
            handle_event(self.plan, self.state, self.generator, event, self.create_max, self.blobs)
        )

    def expand_once(self) -> bool:
        """Run one step of expansion. Return False if nothing is left to expand."""
        if not has_more(self.state):
            return False
        self.blobs.written.clear()
        self._add(
            expand_creates(self.plan, self.state, self.generator, self.create_max, self.blobs)
        )
        return True

    def _expand_all(self) -> list[TrialOperation]:
        while self.expand_once():
            pass
        return []

    def _add(self, step: SearchStep) -> None:
        self.state = STATE.validate_json(STATE.dump_json(step.state))
        self.log += step.operations
        self.created += [op for op in step.operations if isinstance(op, CreateTrial)]
        self.most_blobs = max(self.most_blobs, len(set(self.blobs.written)))


def run_population(search: LargeSearch, draw: Random, exits: float, between: float) -> None:
    """Run a search to the end, with random results and exits.

    Args:
        exits: the probability that an open trial exits before the next result.
        between: the probability that a result arrives before all creates and closes are expanded.
    """
    lengths: dict[int, int] = {}
    live: set[int] = set()
    seen = 0
    while True:
        while seen < len(search.log):
            match search.log[seen]:
                case CreateTrial(trial=trial, length=length) | TrainTo(trial=trial, length=length):
                    lengths[trial] = length or 0
                    live.add(trial)
                case Close(trial=trial) if trial in live:
                    lengths.pop(trial, None)
                    live.remove(trial)
                    search.take_event(TrialClosed(trial, 0.0))
            seen += 1
        if search.state.shutdown:
            return
        if live and draw.random() < exits:
            # Trials that train and trials that wait for the end of the round can exit.
            trial = draw.choice(sorted(live))
            lengths.pop(trial, None)
            live.remove(trial)
            search.take_event(TrialExitedEarly(trial, ExitReason.ERRORED, 0.0))
            continue
        if lengths and (draw.random() < between or not has_more(search.state)):
            trial = draw.choice(sorted(lengths))
            length = lengths.pop(trial)
            metric = Random(f"{trial} after {length}").random()
            search.take_event(TrialLengthReached(trial, length, metric))
        else:
            assert search.expand_once(), "the search waits for nothing"


@pytest.mark.parametrize("create_max", [1, 7, 48])
@pytest.mark.parametrize("seed", range(20))
def test_round_changed_in_steps_equals_round_changed_in_a_single_step(
    monkeypatch: pytest.MonkeyPatch, seed: int, create_max: int
) -> None:
    def run(at_once: int) -> object:
        monkeypatch.setattr(pbt, "_MEMBERS_AT_ONCE", at_once)
        search = LargeSearch(PopulationPlan(5, 20, 4, 0.3, HALVES, True, STEP_ERA), create_max)
        # Without events between expansions, the order of the operations does not matter.
        run_population(search, Random(seed), exits=0.0, between=0.0)
        hparams = [(op.trial, op.parent, dict(op.hparams)) for op in search.created]
        return hparams, search.state.tally

    assert run(1_000) == run(3)


@pytest.mark.parametrize("seed", range(40))
def test_trials_can_fail_while_round_is_changed_in_steps(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(pbt, "_MEMBERS_AT_ONCE", 3)
    draw = Random(seed)
    plan = PopulationPlan(5, draw.randint(4, 30), 4, 0.5, HALVES, True, STEP_ERA)
    search = LargeSearch(plan, draw.randint(1, 5))
    run_population(search, draw, exits=draw.choice((0.0, 0.02, 0.3)), between=draw.random())
    assert search.state.tally.requested == search.state.tally.closed
    assert len({op.trial for op in search.created}) == len(search.created)


@pytest.mark.parametrize("population", [1_000, 1_001, 2_000, 5_000])
@pytest.mark.parametrize("rounds", [1, 2])
def test_steps_of_large_population_fit_into_commits(population: int, rounds: int) -> None:
    plan = PopulationPlan(5, population, rounds, 0.5, HALVES, True, STEP_ERA)
    search = LargeSearch(plan, create_max=48)
    for trial in range(population):
        search.send_event(TrialLengthReached(trial, 5, (trial * 7919) % population))
    # A commit also contains the head, the journal, messages, the generator and up to seven parts.
    assert search.most_blobs <= 90
    assert len(search.created) == population + (rounds - 1) * (population // 2)
