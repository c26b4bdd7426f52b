"""The table in docs/searchers.md: refused hyperparameters and continuation of each searcher."""

import json
from pathlib import Path
from typing import Any

import pytest

from control_plane.config.check import check_config
from control_plane.searchers.method import ExitReason, TrialExitedEarly
from control_plane.searchers.randomness import Generator
from control_plane.searchers.registry import can_continue, searcher_spec, searcher_specs
from control_plane.searchers.search import (
    SearchPlan,
    begin_search,
    expand_creates,
    handle_event,
    make_method,
)
from tests.unit.config.samples import LENGTH, STEP
from tests.unit.config.test_config_searchers import LENGTH_SEARCHERS, STEP_SEARCHERS
from tests.unit.searchers.recording_blob_store import RecordingBlobStore

PAGE = Path(__file__).resolve().parents[3] / "docs" / "searchers.md"
SPACE = {"x": {"type": "int", "minval": 1, "maxval": 9, "count": 3}, "global_batch_size": 8}


def documented_cells() -> dict[str, tuple[str, str, str]]:
    """Return each searcher's cells: refusal in the length era, the step era, and continuation."""
    text = PAGE.read_text("utf-8")
    table = text[text.index("| searcher | a trial that refuses") :].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    return {name.strip("`"): (length, step, goes_on) for name, length, step, goes_on in rows}


def search_plan(base: dict[str, Any], searcher: dict[str, Any]) -> SearchPlan:
    text = {**base, "searcher": {"metric": "loss", **searcher}, "hyperparameters": SPACE}
    return check_config(json.dumps(text)).search_plan()


def is_replaced(plan: SearchPlan) -> bool:
    """Return whether a new trial is requested when the first trial refuses the hyperparameters."""
    blobs, generator = RecordingBlobStore(), Generator.from_seed(plan.seed)
    state = expand_creates(plan, begin_search(plan, blobs).state, generator, 2_000, blobs).state
    before = state.tally.requested
    refusal = TrialExitedEarly(0, ExitReason.INVALID_HP, 0.0)
    step = handle_event(plan, state, generator, refusal, 2_000, blobs)
    return step.state.tally.requested > before


def test_page_names_every_searcher() -> None:
    assert set(documented_cells()) == {spec.name for spec in searcher_specs()}


@pytest.mark.parametrize("name", sorted(spec.name for spec in searcher_specs()))
def test_page_lists_searchers_that_can_continue(name: str) -> None:
    assert documented_cells()[name][2] == ("yes" if can_continue(name) else "no")


@pytest.mark.parametrize("searcher", LENGTH_SEARCHERS, ids=str)
def test_page_describes_refusals_in_length_era(searcher: dict[str, Any]) -> None:
    plan = search_plan({**LENGTH, "records_per_epoch": 100}, searcher)
    is_said = documented_cells()[searcher["name"]][0].startswith("is replaced")
    assert make_method(plan, RecordingBlobStore()).replaces_refused is is_said


@pytest.mark.parametrize("searcher", STEP_SEARCHERS, ids=str)
def test_page_describes_refusals_in_step_era(searcher: dict[str, Any]) -> None:
    plan = search_plan(STEP, searcher)
    is_said = documented_cells()[searcher["name"]][1].startswith("is replaced")
    assert make_method(plan, RecordingBlobStore()).replaces_refused is is_said
    has_era = searcher_spec(searcher["name"]).step_options is not None
    assert has_era is (documented_cells()[searcher["name"]][1] != "does not exist")


ALL_AT_ONCE = {
    "random": {"max_concurrent_trials": 0},
    "async_halving": {"max_concurrent_trials": 9},
    "adaptive_asha": {"max_concurrent_trials": 10},
    "bayesian": {"max_concurrent_trials": 9, "startup_trials": 10},
    "grid": {"max_concurrent_trials": 0},
}


@pytest.mark.parametrize(
    "searcher", [one for one in LENGTH_SEARCHERS if one["name"] != "custom"], ids=str
)
def test_search_replaces_refused_trials_as_declared(searcher: dict[str, Any]) -> None:
    # With all trials open, only a replacement can be requested.
    fields = {**searcher, **ALL_AT_ONCE.get(searcher["name"], {})}
    plan = search_plan({**LENGTH, "records_per_epoch": 100}, fields)
    assert is_replaced(plan) is make_method(plan, RecordingBlobStore()).replaces_refused
