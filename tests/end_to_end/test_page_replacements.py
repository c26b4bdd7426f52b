"""The phases of a replacement on the page of a trial and of a pool, in a real browser."""

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
SEARCHER = {"name": "single", "metric": "loss", "max_length": {"batches": 10_000}}


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """Yield a cluster whose only trial lost the slots to a disabled agent, and trained again."""
    folder = tmp_path_factory.mktemp("replacements")
    with start_cluster(folder, 1) as one:
        one.run("create", *write_model(folder, 0.1, searcher=SEARCHER))

        def describe() -> Any:
            return one.json("trial", "describe", 1)

        wait_until(lambda: describe()["steps_completed"] > 0)
        one.run("agent", "disable", "local")
        wait_until(lambda: not describe()["allocation"]["places"])
        one.run("agent", "enable", "local")
        wait_until(lambda: describe()["replacements"][0]["ended_ms"])
        one.run("kill", 1)
        yield one


def test_trial_shows_a_bar_and_the_phases_of_a_replacement(
    laptop: Laptop, browser: Browser
) -> None:
    (replacement,) = laptop.json("trial", "describe", 1)["replacements"]
    assert (replacement["cause"], replacement["has_first_step"]) == ("preemption", True)
    browser.go("trials/1", "Trial 1")
    browser.window.get_by_text("1 replacement: from the loss of the slots").click()
    bar = browser.window.get_by_role("img", name=re.compile(r"^checkpoint .* s, queue .* s, .*"))
    names = [each["phase"] for each in replacement["phases"] if each["duration_ms"]]
    assert [each.get_attribute("class") for each in bar.locator("rect").all()] == names
    browser.wait_for_text(re.compile(r"Run 1 to 2, .* after a preemption"))


def test_pool_sums_up_its_replacements(laptop: Laptop, browser: Browser) -> None:
    browser.go("pools/default", "Pools and agents")
    browser.window.get_by_text("Replacements in the last 30 days").click()
    assert browser.table_rows("phases after a preemption")[0].split()[:2] == ["total", "1"]
    browser.window.get_by_role("link", name="Trial 1").wait_for()


def test_experiment_sums_up_the_replacements_of_its_trials(
    laptop: Laptop, browser: Browser
) -> None:
    (cause,) = laptop.json("experiment", "describe", 1)["replacements"]["causes"]
    assert (cause["cause"], cause["count"]) == ("preemption", 1)
    browser.go("experiments/1", "tiny")
    browser.window.get_by_text("Replacements of its trials").click()
    assert browser.table_rows("phases after a preemption")[0].split()[:2] == ["total", "1"]
    browser.window.get_by_role("link", name="Trial 1").first.wait_for()


def test_replacements_are_accessible_in_the_dark_and_on_a_narrow_screen(
    chromium: Any, laptop: Laptop
) -> None:
    narrow = {"width": 390, "height": 800}
    with open_window(chromium, laptop, viewport=narrow, color_scheme="dark") as phone:
        phone.sign_in()
        for path, title, summary in (
            ("trials/1", "Trial 1", "1 replacement: from the loss of the slots"),
            ("pools/default", "Pools and agents", "Replacements in the last 30 days"),
            ("experiments/1", "tiny", "Replacements of its trials"),
        ):
            phone.go(path, title)
            phone.window.get_by_text(summary).click()
            assert phone.serious_findings() == [], path
            phone.wait_for_width(narrow["width"])
        assert phone.faults == []
