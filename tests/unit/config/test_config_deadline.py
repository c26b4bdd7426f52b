"""Deadlines and maximum costs of configurations: accepted forms and stored values."""

import pytest

from control_plane.config.check import check_config
from control_plane.config.deadline import deadline_ms, span_ms
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.problems import ConfigInvalid
from control_plane.config.trial_settings import trial_settings

HOUR_MS = 3_600_000
CONFIG = """\
entrypoint: model_def:Net
hyperparameters: {global_batch_size: 1}
searcher: {name: single, metric: loss, max_length: {batches: 1}}
resources: {%s}
"""


def check_resources(resources: str) -> ExperimentConfig:
    return check_config(CONFIG % resources)


@pytest.mark.parametrize(
    ("text", "after_ms"),
    [
        ("6h", 6 * HOUR_MS),
        ("90m", 90 * 60_000),
        ("2d", 48 * HOUR_MS),
        ("45s", 45_000),
        ("1.5h", 90 * 60_000),
        (" 6h ", 6 * HOUR_MS),
    ],
)
def test_duration_counts_from_the_submission(text: str, after_ms: int) -> None:
    assert span_ms(text) == after_ms
    assert deadline_ms(text, 1_000_000) == 1_000_000 + after_ms


@pytest.mark.parametrize(
    "text",
    [
        # 1,790,000,000 seconds after the beginning of 1970.
        "2026-09-21T14:13:20Z",
        "2026-09-21T16:13:20+02:00",
        "2026-09-21 14:13:20+00:00",
        "20260921T141320Z",
    ],
)
def test_timestamp_is_an_absolute_deadline(text: str) -> None:
    assert span_ms(text) is None
    assert deadline_ms(text, 5) == 1_790_000_000_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("soon", "must be a duration like '6h', '90m' or '2d', or a time with its zone"),
        ("6 hours", "must be a duration"),
        ("-6h", "must be a duration"),
        ("", "must be a duration"),
        ("2026-02-30T00:00:00Z", "must be a duration"),
        ("0h", "longer than 0 and at most 3650d"),
        ("3651d", "longer than 0 and at most 3650d"),
        ("2026-09-21T14:13:20", "must include a time zone"),
        ("2026-09-21", "must include a time zone"),
    ],
)
def test_malformed_deadline_is_refused_with_the_expected_form(text: str, message: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        check_resources(f"deadline: '{text}'")
    (problem,) = refused.value.problems
    assert (problem.path, problem.line) == ("resources.deadline", 4)
    assert message in problem.message
    assert problem.message.endswith(f'not "{text}"')


def test_deadline_rejects_numbers() -> None:
    with pytest.raises(
        ConfigInvalid, match=r"deadline: must be a duration like '6h', .* zone, not 6"
    ):
        check_resources("deadline: 6")


def test_unquoted_timestamp_stays_text() -> None:
    config = check_resources("deadline: 2026-09-21T14:13:20Z")
    assert config.resources.deadline == "2026-09-21T14:13:20Z"


def test_trial_settings_have_absolute_deadline_and_maximum_cost() -> None:
    settings = trial_settings(check_resources("deadline: 6h, max_cost: 12.5"), "default", 7)
    assert (settings.deadline_ms, settings.max_cost) == (7 + 6 * HOUR_MS, 12.5)
    settings = trial_settings(check_resources("slots_per_trial: 1"), "default", 7)
    assert (settings.deadline_ms, settings.max_cost) == (None, None)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0", "must be greater than 0, not 0"),
        ("-1", "must be greater than 0, not -1"),
        ("'10'", 'must be a number, not "10"'),
        (".inf", "must be a finite number"),
        (".nan", "must be a finite number"),
    ],
)
def test_max_cost_must_be_a_positive_number(value: str, message: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        check_resources(f"max_cost: {value}")
    assert [problem.path for problem in refused.value.problems] == ["resources.max_cost"]
    assert message in refused.value.problems[0].message
