"""A Bayesian search under any legal order of events and suggestions, some late or repeated."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from control_plane.searchers.era_rules import LENGTH_ERA, STEP_ERA
from control_plane.searchers.method import (
    CreateTrial,
    Event,
    ExitReason,
    ExternalInput,
    Shutdown,
    SuggestedPoints,
    SuggestionFailed,
    TrialClosed,
    TrialExitedEarly,
    TrialLengthReached,
    TrialProgressed,
)
from control_plane.searchers.methods.bayesian import BayesianPlan, BayesianState
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
    handle_external_input,
)
from control_plane.searchers.space import Double, Group
from tests.unit.searchers.recording_blob_store import RecordingBlobStore

LENGTH = 4
# Invalid trials are replaced without a limit, so a run has to stop making them.
INVALID_MAX = 4
EPSILON = 1e-12
STATE = TypeAdapter(SearchState)

plans = st.builds(
    BayesianPlan,
    st.just(LENGTH),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from([LENGTH_ERA, STEP_ERA]),
)


@dataclass
class Run:
    """A search with the state stored after every step."""

    method: BayesianPlan
    create_max: int
    open: dict[int, int] = field(default_factory=dict)
    created: list[CreateTrial] = field(default_factory=list)
    ends: list[Shutdown] = field(default_factory=list)
    invalid: int = 0
    sent: list[ExternalInput] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plan = SearchPlan(self.method, Group({"x": Double(0.0, 1.0)}), 7)
        self.generator = Generator.from_seed(7)
        self.blobs = RecordingBlobStore()
        self.done = self.forfeited = 0.0
        self._accept_step(begin_search(self.plan, self.blobs))

    @property
    def waiting(self) -> BayesianState:
        assert isinstance(self.state.method, BayesianState)
        return self.state.method

    def advance(self, data: st.DataObject) -> None:
        """Let the search, the adviser, a trial or a repetition take a step."""
        who = ["search"] * self.more + ["adviser"] * self.waiting.awaits_external_input
        who += ["trial"] * bool(self.open) + ["repeat"] * bool(self.sent)
        assert set(who) - {"repeat"}, "the search waits for no trial"
        match data.draw(st.sampled_from(who)):
            case "search":
                self._accept_step(
                    expand_creates(
                        self.plan, self.state, self.generator, self.create_max, self.blobs
                    )
                )
            case "adviser":
                self._send_input(self._draw_input(data))
            case "repeat":
                before = self.waiting
                advice = data.draw(st.sampled_from(self.sent))
                self._send_input(advice)
                assert self.waiting.answered == before.answered, advice
            case "trial":
                trial = data.draw(st.sampled_from(sorted(self.open)))
                event = self._draw_event(data, trial)
                self._accept_step(
                    handle_event(
                        self.plan, self.state, self.generator, event, self.create_max, self.blobs
                    )
                )

    def _draw_input(self, data: st.DataObject) -> ExternalInput:
        number = self.waiting.answered
        count = data.draw(st.integers(0, 3))
        # A unique value identifies the trial of a suggestion.
        points = tuple({"x": 100.0 + number + i} for i in range(count))
        advice: ExternalInput = (
            SuggestedPoints(number, points) if points else SuggestionFailed(number, "no")
        )
        self.sent.append(advice)
        return advice

    def _send_input(self, advice: ExternalInput) -> None:
        self._accept_step(
            handle_external_input(
                self.plan, self.state, self.generator, advice, self.create_max, self.blobs
            )
        )

    def _draw_event(self, data: st.DataObject, trial: int) -> Event:
        units = self.open[trial]
        if data.draw(st.integers(0, 5)) == 0:
            reasons = [
                r for r in ExitReason if self.invalid < INVALID_MAX or not r.is_invalid_hparams
            ]
            reason = data.draw(st.sampled_from(reasons))
            del self.open[trial]
            self.invalid += reason.is_invalid_hparams
            if reason.is_invalid_hparams:
                self.forfeited = units / LENGTH / self.method.max_trials
            return TrialExitedEarly(trial, reason, float(min(units, LENGTH)))
        self.open[trial] += 1
        if units < LENGTH:
            return TrialProgressed(trial, 1.0)
        if units == LENGTH:
            return TrialLengthReached(trial, LENGTH, data.draw(st.floats()))
        del self.open[trial]
        return TrialClosed(trial, float(LENGTH))

    def _accept_step(self, step: SearchStep) -> None:
        self.state = STATE.validate_json(STATE.dump_json(step.state))
        assert self.state == step.state
        self.more = step.more
        operations: tuple[TrialOperation, ...] = step.operations
        creates = [op for op in operations if isinstance(op, CreateTrial)]
        self.created += creates
        self.open.update((create.trial, 0) for create in creates)
        self.ends += [op for op in operations if isinstance(op, Shutdown)]
        before, self.done = self.done, completed_share(self.plan, self.state)
        assert before - self.forfeited - EPSILON <= self.done <= 1
        self.forfeited = 0.0


@settings(deadline=None, derandomize=True)
@given(plans, st.integers(1, 9), st.data())
def test_bayesian_search_ends_with_all_trials_closed(
    plan: BayesianPlan, create_max: int, data: st.DataObject
) -> None:
    run = Run(plan, create_max)
    while not run.state.shutdown:
        assert len(run.open) <= plan.max_concurrent_trials
        run.advance(data)
    replaced = run.invalid if plan.rules is LENGTH_ERA else 0
    assert len(run.created) == plan.max_trials + replaced
    assert [create.trial for create in run.created] == list(range(len(run.created)))
    assert not run.open
    assert not run.waiting.awaits_external_input
    assert run.done == 1.0
    assert len(run.ends) == 1


@settings(deadline=None, derandomize=True)
@given(plans, st.integers(1, 9), st.data())
def test_suggestion_becomes_a_single_trial(
    plan: BayesianPlan, create_max: int, data: st.DataObject
) -> None:
    run = Run(plan, create_max)
    while not run.state.shutdown:
        run.advance(data)
    drawn_instead = sum(isinstance(advice, SuggestionFailed) for advice in run.sent)
    values = [float(str(create.hparams["x"])) for create in run.created]
    suggested = [value for value in values if value >= 100]
    assert sorted(set(suggested)) == sorted(suggested)
    assert len(suggested) == run.waiting.asked - drawn_instead
