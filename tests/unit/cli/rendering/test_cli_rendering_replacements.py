"""Texts of replacements on the command line."""

from typing import Any

import pytest

from detcloud.cli.rendering.replacements import phase_name, replacements_text, sum_title

REPLACEMENT: dict[str, Any] = {
    "experiment_id": 1,
    "trial_id": 4,
    "cause": "notice",
    "reason": "taken away",
    "from_epoch": 1,
    "from_agent_id": "a",
    "epoch": 2,
    "agent_ids": ["b"],
    "begun_ms": 0,
    "ended_ms": 95_000,
    "attempts": 0,
    "duration_ms": 95_000,
    "phases": [
        {"phase": "checkpoint", "duration_ms": 3_000},
        {"phase": "boot", "duration_ms": 91_950},
        {"phase": "first_step", "duration_ms": 50},
    ],
    "has_first_step": True,
}


def render(**fields: object) -> list[str]:
    return replacements_text({"replacements": [REPLACEMENT | fields]}).splitlines()


def test_replacement_has_a_line_and_a_line_of_phases() -> None:
    assert render() == [
        "1970-01-01 00:00:00+0000 run 1 to 2, 95 s, after a notice: taken away",
        "  checkpoint 3 s, boot 92 s, first step 0.05 s",
    ]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"ended_ms": None}, "run 1 to 2, 95 s so far, after"),
        ({"ended_ms": None, "epoch": 1}, "run 1, 95 s so far, after"),
        ({"has_first_step": False}, "95 s up to the first report of training, after"),
        ({"attempts": 2}, "95 s, 2 runs without a step in between, after"),
        ({"cause": "flood"}, "95 s, flood: taken away"),
    ],
)
def test_line_names_what_is_special(fields: dict[str, object], expected: str) -> None:
    assert expected in render(**fields)[0]


def test_failure_of_an_early_pull_has_a_line() -> None:
    assert len(render(early_pull_failure="")) == 2
    assert render(early_pull_failure="no login")[2] == "  the image was not pulled early: no login"


@pytest.mark.parametrize("trial", [{}, {"replacements": []}])
def test_trial_without_replacements_has_no_text(trial: dict[str, object]) -> None:
    assert replacements_text(trial) == ""


def test_title_of_a_sum() -> None:
    sums = {"cause": "loss", "count": 1, "unmeasured": 0}
    assert sum_title(sums, 30) == "1 replacement after a loss, ended in the last 30 days"
    more = sum_title(sums | {"unmeasured": 2, "cause": "preemption", "count": 3}, 30)
    assert more == (
        "3 replacements after a preemption, ended in the last 30 days; 2 more without a report of "
        "the first step"
    )


def test_unknown_phases_keep_their_name() -> None:
    assert (phase_name("first_step"), phase_name("thaw")) == ("first step", "thaw")
