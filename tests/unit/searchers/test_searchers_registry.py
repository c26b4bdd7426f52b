"""A searcher from outside the package, which only registers a specification.

`sequential` trains trials in sequence until the metric of a trial is good enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import pytest
from pydantic import TypeAdapter

from control_plane.actors.messages.experiment import ExperimentSubmitted
from control_plane.config.__main__ import main
from control_plane.config.check import check_config
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.preview import Bracket, Rung, preview_search
from control_plane.config.problems import ConfigInvalid
from control_plane.config.reference import render_reference
from control_plane.engine.actor_types import ACTOR_TYPES
from control_plane.field_types import MaxLength
from control_plane.findings import Finding
from control_plane.searchers import registry
from control_plane.searchers.era_rules import LENGTH_ERA, SearchRules
from control_plane.searchers.method import (
    Create,
    Event,
    MethodState,
    MethodStep,
    SearchMethod,
    Shutdown,
    Tally,
    TrialClosed,
    TrialExitedEarly,
    TrialLengthReached,
)
from control_plane.searchers.methods.random import SPEC as RANDOM
from control_plane.searchers.methods.random import RandomSearch
from control_plane.searchers.options import TrialCountOptions
from control_plane.searchers.search import SearchPlan, SearchState
from control_plane.searchers.spec import PreviewPart, SearcherSpec
from control_plane.simulation.submission import simulated_submission
from tests.unit.searchers import driven_search
from tests.unit.searchers.driven_search import DrivenSearch


class SequentialOptions(TrialCountOptions):
    """Trials in sequence, until the metric of a trial is good enough."""

    max_length: MaxLength
    """How long a trial trains: {batches: n}, {records: n} or {epochs: n}."""
    good_enough: float
    """The metric below which no further trial is made."""
    warm_up_trials: int = 0
    """Trials that are made in any case."""


@dataclass(frozen=True, slots=True)
class SequentialPlan:
    kind: Literal["sequential"]
    max_length: int
    max_trials: int
    good_enough: float
    rules: SearchRules


@dataclass(frozen=True, slots=True)
class SequentialState(MethodState):
    kind: Literal["sequential"]
    created: int
    is_done: bool = False


class SequentialSearch(SearchMethod[SequentialState]):
    def __init__(self, plan: SequentialPlan) -> None:
        self._plan = plan

    def first_step(self) -> MethodStep[SequentialState]:
        return MethodStep(SequentialState("sequential", 1), (self._make_create(),))

    def on_event(self, state: SequentialState, event: Event) -> MethodStep[SequentialState]:
        match event:
            case TrialLengthReached(metric=metric) if metric < self._plan.good_enough:
                return MethodStep(replace(state, is_done=True))
            case TrialClosed() | TrialExitedEarly() if self._needs_more(state):
                return MethodStep(replace(state, created=state.created + 1), (self._make_create(),))
            case _:
                return MethodStep(state)

    def progress(self, state: SequentialState, tally: Tally) -> float:
        return tally.closed / self._plan.max_trials

    def _needs_more(self, state: SequentialState) -> bool:
        return not state.is_done and state.created < self._plan.max_trials

    def _make_create(self) -> Create:
        return Create(1, "Sampled", 0, self._plan.max_length, closed=True)


def make_plan(options: SequentialOptions, rules: SearchRules) -> SequentialPlan:
    length = options.max_length.count
    return SequentialPlan("sequential", length, options.max_trials, options.good_enough, rules)


def find_problems(options: SequentialOptions, rules: SearchRules) -> Iterator[Finding]:
    if options.warm_up_trials > options.max_trials:
        message = f"must be at most max_trials ({options.max_trials})"
        yield Finding(("warm_up_trials",), message, "", options.warm_up_trials)


SPEC = SearcherSpec[SequentialOptions, SequentialPlan](
    name="sequential",
    length_options=SequentialOptions,
    plan_type=SequentialPlan,
    state_type=SequentialState,
    make_plan=make_plan,
    make_method=lambda plan, space, blobs: SequentialSearch(plan),
    trial_count=lambda options, plan, space: plan.max_trials,
    # Trial i of the preview reports i, so that good_enough 0 creates all trials.
    preview=lambda plan: [PreviewPart(plan, depends_on_results=True)],
    find_problems=find_problems,
)
PLAN = SequentialPlan("sequential", 5, 4, 0.5, LENGTH_ERA)
CONFIG = """
name: outside
entrypoint: python3 train.py
hyperparameters: {lr: {type: double, minval: 0, maxval: 1}}
searcher:
  name: sequential
  metric: loss
  max_length: {batches: 5}
  max_trials: 4
  good_enough: 0.5
"""


@pytest.fixture(autouse=True)
def _register_sequential(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register `sequential` during each test."""
    for table in ("_specs", "_specs_by_plan_type"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    registry.register(SPEC)
    monkeypatch.setattr(driven_search, "STATE", TypeAdapter(SearchState))


def check_with(**fields: object) -> ExperimentConfig:
    overrides = [f"searcher.{name}={value}" for name, value in fields.items()]
    return check_config(CONFIG, overrides=overrides)


def problems_with(**fields: object) -> list[str]:
    with pytest.raises(ConfigInvalid) as caught:
        check_with(**fields)
    return [f"{problem.path} {problem.message}" for problem in caught.value.problems]


def test_configuration_can_name_registered_searcher() -> None:
    config = check_with()
    assert config.search_plan().method == PLAN
    assert (config.trials, config.unit, config.time_metric) == (4, "batches", "")
    assert ExperimentConfig.from_json(config.to_json()) == config
    assert config.masked_values()["searcher"] == {
        "name": "sequential",
        "metric": "loss",
        "smaller_is_better": True,
        "source_trial_id": None,
        "source_checkpoint_uuid": None,
        "max_trials": 4,
        "max_length": {"batches": 5},
        "good_enough": 0.5,
        "warm_up_trials": 0,
    }


def test_configuration_errors_name_options_of_registered_searcher() -> None:
    assert problems_with(max_trials=0) == ["searcher.max_trials must be at least 1, not 0"]
    assert problems_with(good_enoug=1) == ["searcher.good_enoug is not a known field"]
    assert problems_with(warm_up_trials=5) == [
        "searcher.warm_up_trials must be at most max_trials (4)"
    ]
    assert "sequential" in problems_with(name="sequentia")[0]
    # The step era has no searcher `sequential`.
    step_era = CONFIG.replace("max_length: {batches: 5}", "max_steps: 5")
    with pytest.raises(ConfigInvalid, match="must be one of"):
        check_config(step_era)


def test_registered_searcher_has_preview() -> None:
    # Trial 0 reports 0, below 0.5: the preview creates no other trial.
    assert preview_search(check_with()).brackets == (Bracket((Rung(5, 1, 1, 1),)),)
    preview = preview_search(check_with(good_enough=0))
    # 4 trials of 5 batches.
    assert preview.brackets == (Bracket((Rung(5, 4, 4, 4),)),)
    assert (preview.batches, preview.is_example) == (20, True)


def test_command_and_reference_list_registered_searcher(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path_factory.mktemp("outside") / "config.yaml"
    file.write_text(CONFIG)
    assert main([str(file)]) == 0
    out = capsys.readouterr().out
    assert "searcher:        sequential (minimizes loss)" in out
    assert "total:           at most 20 batches" in out
    row = "| `good_enough` | number | required | The metric below which no further trial is made. |"
    assert row in render_reference()


def test_driver_runs_registered_searcher_and_stores_state() -> None:
    # The driver of the tests encodes and decodes the state between all steps.
    search = DrivenSearch(PLAN)
    for trial, metric in enumerate((0.9, 0.7)):
        search.report_result(trial, metric)
        search.end_trial(trial)
    assert search.progress == 0.5
    search.report_result(2, 0.4)
    search.end_trial(2)
    assert search.shutdowns == [Shutdown(failure=False)]
    assert search.state.method == SequentialState("sequential", 3, is_done=True)


def test_plan_of_registered_searcher_is_stored_with_experiment() -> None:
    plan = check_with().search_plan()
    plans = TypeAdapter(SearchPlan)
    for leaves_out_defaults in (False, True):
        stored = plans.dump_json(plan, exclude_defaults=leaves_out_defaults)
        assert plans.validate_json(stored) == plan
    submission = simulated_submission(check_with())
    # The adapters of a new table are made after the registration.
    experiment = replace(ACTOR_TYPES["experiment"])
    name, body = experiment.encode_message(submission)
    decoded = experiment.decode_message(name, TypeAdapter(dict[str, object]).validate_json(body))
    assert isinstance(decoded, ExperimentSubmitted)
    assert decoded == submission


def test_builtin_searchers_are_registered_under_module_names() -> None:
    names = [spec.name for spec in registry.searcher_specs()]
    # `sequential` has the default listing order and is the last.
    assert names[0] == "single"
    assert names[-2:] == ["custom", "sequential"]
    assert registry.searcher_spec("random") is RANDOM


def test_rejects_second_searcher_with_same_name() -> None:
    with pytest.raises(ValueError, match="a searcher sequential is already registered"):
        registry.register(SPEC)


@dataclass(frozen=True, slots=True)
class AmbiguousPlan:
    """A plan with the same stored fields as SinglePlan; `kind` has a default and is not stored."""

    max_length: int
    rules: SearchRules
    kind: Literal["ambiguous"] = "ambiguous"


def test_rejects_plan_type_with_same_stored_fields() -> None:
    ambiguous: registry.AnySpec = SPEC
    ambiguous = replace(ambiguous, name="ambiguous", plan_type=AmbiguousPlan)
    with pytest.raises(ValueError, match="look like those of single"):
        registry.register(ambiguous)


@dataclass(frozen=True, slots=True)
class OtherPlan:
    """A plan with the fields of SequentialPlan and another value of `kind`, which is stored."""

    kind: Literal["other"]
    max_length: int
    max_trials: int
    good_enough: float
    rules: SearchRules


def test_accepts_plan_type_with_same_fields_and_other_kind() -> None:
    other: registry.AnySpec = SPEC
    registry.register(replace(other, name="other", plan_type=OtherPlan))
    assert registry.searcher_spec("other").plan_type is OtherPlan


def test_rejects_same_plan_type_with_other_state_type() -> None:
    other = replace(RANDOM, name="other", make_method=lambda plan, space, blobs: RandomSearch(plan))
    with pytest.raises(ValueError, match="have the same plan_type"):
        registry.register(other)
