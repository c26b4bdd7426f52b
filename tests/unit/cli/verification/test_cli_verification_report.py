"""The report of a self-test: results as text and JSON, without secrets."""

import pytest

from detcloud.cli.verification.plan import Plan, PlannedPool
from detcloud.cli.verification.report import (
    Report,
    StepFailed,
    StepReport,
    StepSkipped,
    make_mask,
)
from detcloud.cli.verification.steps import run_step
from detcloud.shared.errors import DetcloudError

ACCOUNT = "123456789012"
PLAN = Plan((PlannedPool("gpus", "g5.xlarge", "us-east-1a", "spot", 1, 0.4),))


def make_report(*steps: StepReport) -> Report:
    return Report({"region": "us-east-1", "account": ACCOUNT}, PLAN, list(steps))


def test_text_has_plan_steps_and_result() -> None:
    step = StepReport("pool gpus", "ok", 61.04, details={"seconds": {"launched": 41.5}})
    text = make_report(step).render()
    # 0.4 x 9 / 60 = 0.06 dollars.
    assert "pool gpus: g5.xlarge us-east-1a spot, 0.4 $ an hour, about 9 minutes: 0.060 $" in text
    assert "ok          61.0 s  pool gpus\n" in text
    assert "seconds: launched 41.5\n" in text
    assert text.endswith("no step failed\n")


def test_failed_step_shows_all_lines_of_the_reason() -> None:
    report = make_report(StepReport("alarms", "failed", 1.0, "a\nb"))
    assert "failed       1.0 s  alarms: a\n                    b\n" in report.render()
    assert report.has_failed
    assert report.render().endswith("failed\n")


def test_skipped_step_is_no_failure() -> None:
    assert not make_report(StepReport("alarms", "skipped", 0.0, "no such call")).has_failed


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"arn:aws:iam::{ACCOUNT}:role/x", "arn:aws:iam::********9012:role/x"),
        ("token dct_abc-DEF_1 was refused", "token ******** was refused"),
        ("https://b.s3/x?X-Amz-Signature=abc", "https://b.s3/x?X-Amz-Signature=********"),
        ("projects/acme-ml-prod/zones", "projects/********prod/zones"),
        ("at 1732894711123 ms", "at 1732894711123 ms"),
    ],
)
def test_secrets_are_masked(text: str, masked: str) -> None:
    assert make_mask(["acme-ml-prod"])(text) == masked


def test_json_is_masked_everywhere() -> None:
    report = make_report(StepReport("a", "failed", 1.0, ACCOUNT, {"means": [f"x {ACCOUNT}"]}))
    report.leftovers.append(f"instance {ACCOUNT}")
    assert ACCOUNT not in str(report.to_json(make_mask([ACCOUNT])))


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (StepFailed("x"), "failed"),
        (StepSkipped("x"), "skipped"),
        (DetcloudError("x"), "failed"),
    ],
)
def test_error_becomes_the_result_of_a_step(error: Exception, result: str) -> None:
    steps: list[StepReport] = []
    lines: list[str] = []
    with run_step("alarms", steps, lines.append):
        raise error
    assert (steps[0].result, steps[0].reason) == (result, "x")
    assert lines == ["alarms ...", f"alarms: {result} after 0 s: x"]


def test_interrupted_step_has_failed() -> None:
    steps: list[StepReport] = []
    with pytest.raises(KeyboardInterrupt), run_step("alarms", steps, lambda line: None):
        raise KeyboardInterrupt
    assert (steps[0].result, steps[0].reason) == ("failed", "interrupted")
