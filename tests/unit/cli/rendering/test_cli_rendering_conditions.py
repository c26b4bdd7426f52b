"""Conditions in tables, CSV and answers of older clusters."""

from typing import Any

import pytest

from control_plane.actors.records import Status
from control_plane.queries.conditions import experiment_condition
from detcloud.cli.rendering.columns import EXPERIMENT_COLUMNS, TRIAL_COLUMNS
from detcloud.cli.rendering.conditions import condition_text
from detcloud.cli.rendering.table import render_csv, render_table

EXPERIMENT: dict[str, Any] = {
    "id": 7,
    "state": "ACTIVE",
    "condition": "queued",
    "trials": {"errored": 2},
}


@pytest.mark.parametrize("status", Status)
def test_states_of_older_clusters_have_the_same_words(status: Status) -> None:
    word = experiment_condition(status, running=1, queued=0)
    assert condition_text({"state": status}) == word


@pytest.mark.parametrize(
    ("allocation", "condition"),
    [
        (None, "queued"),
        ({"state": "PENDING"}, "queued"),
        ({"state": "PULLING"}, "starting"),
        ({"state": "RUNNING"}, "running"),
        ({"state": "TERMINATING"}, "preempted"),
    ],
)
def test_trials_of_older_clusters_follow_the_allocation(
    allocation: dict[str, str] | None, condition: str
) -> None:
    assert condition_text({"state": "ACTIVE", "allocation": allocation}) == condition


def test_unknown_state_is_unchanged() -> None:
    assert condition_text({"state": "FROZEN"}) == "FROZEN"


def test_tables_have_words_and_csv_has_stored_states() -> None:
    cells = [
        cell.strip() for cell in render_table(EXPERIMENT_COLUMNS, [EXPERIMENT], None).split("|")
    ]
    assert "queued" in cells
    assert "ACTIVE" not in cells
    assert render_csv(EXPERIMENT_COLUMNS, [EXPERIMENT]).splitlines()[1].split(",")[3] == "ACTIVE"


def test_failed_trials_are_red_if_there_are_any() -> None:
    table = render_table(EXPERIMENT_COLUMNS, [EXPERIMENT], None, colour=True)
    assert "\x1b[31m     2\x1b[0m" in table
    without = render_table(
        EXPERIMENT_COLUMNS, [{**EXPERIMENT, "trials": {"errored": 0}}], None, True
    )
    assert "\x1b[31m" not in without


def test_title_of_failures_is_the_former_one_in_csv() -> None:
    trial = {"state": "ERROR", "condition": "failed", "restarts": 1}
    assert "| Failures |" in render_table(TRIAL_COLUMNS, [trial], None)
    assert ",Restarts," in render_csv(TRIAL_COLUMNS, [trial])
