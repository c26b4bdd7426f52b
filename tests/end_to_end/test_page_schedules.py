"""Schedules and the notes about deleted data on the page, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.end_to_end.browser import Browser, open_window
from tests.end_to_end.laptop import Laptop, start_cluster
from tests.end_to_end.tiny_model import write_model
from tests.patience import wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("checked_view")]
SEARCHER = {"name": "single", "metric": "loss", "max_length": {"batches": 10}}
SCHEDULE = {"cron": "0 3 1 1 *", "time_zone": "Europe/Berlin"}


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """Yield a cluster with a schedule, and with an experiment of the schedule without its logs."""
    folder = tmp_path_factory.mktemp("schedules")
    with start_cluster(folder, 1) as one:
        one.run("create", *write_model(folder, 0.0, searcher=SEARCHER, schedule=SCHEDULE))
        one.run("schedule", "run-now", 1)
        one.run("wait", 1)
        one.run("experiment", "set", "log-retention", 1, "--days", 0)
        one.run("experiment", "set", "metrics-retention", 1, "--days", 0)
        one.run("retention", "cleanup", "--yes")
        wait_until(lambda: one.json("experiment", "describe", 1)["metrics_deleted_ms"])
        yield one


def test_list_shows_the_next_time_and_the_last_run(laptop: Laptop, browser: Browser) -> None:
    browser.go("schedules", "Schedules")
    browser.wait_for_text("Europe/Berlin")
    row = browser.table_rows("schedules")[0]
    assert "0 3 1 1 *" in row
    assert "Europe/Berlin" in row
    assert "submitted experiment 1" in row


def test_schedule_and_experiment_link_to_each_other(laptop: Laptop, browser: Browser) -> None:
    browser.go("schedules", "Schedules")
    browser.window.get_by_role("link", name="tiny").click()
    browser.see("Schedule tiny")
    browser.window.get_by_role("table", name="runs").get_by_role("link").click()
    browser.see("tiny")
    browser.window.get_by_role("link", name="schedule 1").click()
    browser.see("Schedule tiny")


def test_schedule_is_paused_activated_and_run(laptop: Laptop, browser: Browser) -> None:
    browser.go("schedules/1", "Schedule tiny")
    browser.press("Pause")
    browser.window.get_by_role("button", name="Activate").wait_for()
    assert laptop.json("schedule", "describe", 1)["paused"] is True
    browser.press("Activate")
    browser.window.get_by_role("button", name="Pause").wait_for()
    browser.press("Run now")
    browser.window.get_by_role("dialog").get_by_role("button", name="Run now").click()
    browser.wait_for_text("experiment 2")
    assert laptop.json("schedule", "describe", 1)["last_experiment_id"] == 2


@pytest.mark.parametrize(
    ("path", "title"), [("experiments/1", "tiny"), ("trials/1/logs", "Trial 1")]
)
def test_deleted_data_has_a_note_with_the_date(
    laptop: Laptop, browser: Browser, path: str, title: str
) -> None:
    browser.go(path, title)
    browser.wait_for_text(re.compile(r"Logs were deleted on .*, after their retention had ended"))
    browser.wait_for_text(re.compile(r"Detailed metrics were deleted on .*: validations"))


def test_comparison_names_trials_with_deleted_metrics(laptop: Laptop, browser: Browser) -> None:
    browser.go("compare?trials=1", "Compare")
    browser.wait_for_text(re.compile(r"Detailed metrics of trial 1 were deleted on"))


def test_schedules_are_accessible_in_the_dark_and_on_a_narrow_screen(
    chromium: Any, laptop: Laptop
) -> None:
    narrow = {"width": 390, "height": 800}
    with open_window(chromium, laptop, viewport=narrow, color_scheme="dark") as phone:
        phone.sign_in()
        for path, title in (("schedules", "Schedules"), ("schedules/1", "Schedule tiny")):
            phone.go(path, title)
            phone.wait_for_text("Europe/Berlin")
            assert phone.serious_findings() == [], path
            phone.wait_for_width(narrow["width"])
        assert phone.faults == []


def test_schedule_is_deleted(laptop: Laptop, browser: Browser) -> None:
    browser.go("schedules/1", "Schedule tiny")
    browser.press("Delete")
    browser.window.get_by_role("dialog").get_by_role("button", name="Delete").click()
    browser.wait_for_text("No schedules yet.")
    assert laptop.json("schedule", "list") == []
