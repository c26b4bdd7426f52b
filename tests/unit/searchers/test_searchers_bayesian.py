import pytest

from control_plane.searchers.era_rules import LENGTH_ERA, STEP_ERA, SearchRules
from control_plane.searchers.method import (
    Create,
    CreateTrial,
    ExitReason,
    MethodStep,
    SuggestedPoints,
    SuggestionFailed,
    Tally,
    TrialClosed,
    TrialExitedEarly,
    TrialLengthReached,
)
from control_plane.searchers.methods.bayesian import (
    BayesianPlan,
    BayesianSearch,
    BayesianState,
    parse_hparams,
)
from control_plane.searchers.stored_points import load_point
from tests.unit.searchers.recording_blob_store import RecordingBlobStore

# 5 trials, 2 concurrent; requests to the model begin after 1 result.
PLAN = BayesianPlan(9, 5, 2, 1, LENGTH_ERA)


def sampled_create(count: int) -> Create:
    return Create(count, "Sampled", first_point=0, length=9, closed=True)


def suggested_create(count: int, first: int) -> Create:
    return Create(count, "Kept", first_point=first, length=9, closed=True)


def make_search(rules: SearchRules = LENGTH_ERA) -> BayesianSearch:
    return BayesianSearch(BayesianPlan(9, 5, 2, 1, rules), RecordingBlobStore())


def asking_state(asked: int, answered: int) -> BayesianState:
    return BayesianState(counted=5, results=4, asked=asked, answered=answered)


@pytest.mark.parametrize("rules", [LENGTH_ERA, STEP_ERA])
@pytest.mark.parametrize(("trials", "concurrent", "first"), [(5, 2, 2), (5, 16, 5)])
def test_first_trials_are_sampled_up_to_concurrency_limit(
    rules: SearchRules, trials: int, concurrent: int, first: int
) -> None:
    search = BayesianSearch(BayesianPlan(9, trials, concurrent, 1, rules), RecordingBlobStore())
    assert search.first_step() == MethodStep(BayesianState(first), (sampled_create(first),))


def test_trials_are_sampled_before_startup_results() -> None:
    search = make_search()
    state = search.first_step().state
    without = search.on_event(state, TrialExitedEarly(0, ExitReason.ERRORED, 1.0))
    assert without.operations == (sampled_create(1),)
    reached = search.on_event(without.state, TrialLengthReached(1, 9, 0.5)).state
    asked = search.on_event(reached, TrialClosed(1, 9.0))
    assert asked == MethodStep(BayesianState(counted=4, results=1, asked=1))
    assert asked.state.awaits_external_input
    assert not reached.awaits_external_input


def test_max_trials_limits_requests() -> None:
    state = asking_state(2, 2)
    assert make_search().on_event(state, TrialClosed(4, 9.0)) == MethodStep(state)


def test_invalid_trial_is_replaced_in_length_era() -> None:
    ended = TrialExitedEarly(4, ExitReason.INVALID_HP, 0.0)
    assert make_search().on_event(asking_state(2, 2), ended) == MethodStep(asking_state(3, 2))
    assert make_search(STEP_ERA).on_event(asking_state(2, 2), ended) == MethodStep(
        asking_state(2, 2)
    )


def test_suggestion_creates_trial() -> None:
    blobs = RecordingBlobStore()
    search = BayesianSearch(PLAN, blobs)
    step = search.on_external_input(asking_state(3, 1), SuggestedPoints(1, ({"x": 1},)))
    assert step == MethodStep(asking_state(3, 2), (suggested_create(1, 1),))
    both = search.on_external_input(step.state, SuggestedPoints(2, ({"x": 2}, {"x": 3})))
    # The answer contains more points than open requests. The additional points are ignored.
    assert both == MethodStep(asking_state(3, 3), (suggested_create(1, 2),))
    assert [load_point(blobs, number).hparams for number in (1, 2)] == [{"x": 1}, {"x": 2}]


@pytest.mark.parametrize("first", [0, 2, 7, -1])
def test_out_of_order_suggestion_changes_no_state(first: int) -> None:
    blobs = RecordingBlobStore()
    search = BayesianSearch(PLAN, blobs)
    state = asking_state(3, 1)
    assert search.on_external_input(state, SuggestedPoints(first, ({"x": 1},))) == MethodStep(state)
    assert search.on_external_input(state, SuggestionFailed(first, "no")) == MethodStep(state)
    assert blobs.written == []


def test_unrequested_suggestion_changes_no_state() -> None:
    state = asking_state(3, 3)
    assert make_search().on_external_input(state, SuggestedPoints(3, ({"x": 1},))) == MethodStep(
        state
    )
    assert make_search().on_external_input(state, SuggestionFailed(3, "no")) == MethodStep(state)


def test_failed_suggestion_creates_sampled_trial() -> None:
    step = make_search().on_external_input(asking_state(3, 1), SuggestionFailed(1, "no"))
    assert step == MethodStep(asking_state(3, 2), (sampled_create(1),))


def test_blob_contains_hyperparameters_of_eight_trials() -> None:
    blobs = RecordingBlobStore()
    search = BayesianSearch(PLAN, blobs)
    state = BayesianState(1)
    for trial in range(9):
        made = CreateTrial(trial, "id", 7, {"x": trial}, 9, True)
        assert search.on_trial_created(state, made) == state
    assert [one["x"] for one in parse_hparams(blobs.contents["tried/0"])] == [
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        7,
    ]
    assert list(parse_hparams(blobs.contents["tried/1"])) == [{"x": 8}]


def test_progress_counts_training_of_all_trials() -> None:
    # 2 of 5 have ended and 3 of 9 batches of a third are done: (2 * 9 + 3) / (5 * 9).
    tally = Tally(requested=3, created=3, closed=2, units=21.0, open_units=3.0)
    assert make_search().progress(asking_state(1, 1), tally) == pytest.approx(21 / 45)
