"""The web page during an outage of the cluster, and failed trials on the page."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.emulators.server import free_port
from tests.end_to_end.browser import Browser, open_window
from tests.end_to_end.laptop import Laptop, start_cluster
from tests.end_to_end.tiny_model import write_model
from tests.patience import PATIENCE

# The page promises two seconds; the test also waits for the browser.
NOTICE_SECONDS_MAX = 2.5 * PATIENCE
BROKEN = "print('the last words')\nraise ValueError('no such data')\n"


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """Yield a cluster whose only experiment has failed, on a port that no other cluster takes."""
    folder = tmp_path_factory.mktemp("outage")
    with start_cluster(folder, 1) as one:
        one.run("down")
        one.run("up", "--slots", 1, "--port", free_port())
        searcher = {"name": "single", "metric": "loss", "max_length": {"batches": 10}}
        config, model = write_model(
            folder,
            name="broken",
            entrypoint="python broken.py",
            max_restarts=0,
            searcher=searcher,
            hyperparameters={},
        )
        (model / "broken.py").write_text(BROKEN)
        one.run("create", config, model)
        one.run("wait", 1, code=1)
        yield one


@pytest.fixture
def browser(chromium: Any, laptop: Laptop) -> Iterator[Browser]:
    with open_window(chromium, laptop) as window:
        window.sign_in()
        window.go("experiments", "Experiments")
        yield window


def test_failed_trials_are_a_click_from_the_end_of_their_log(browser: Browser) -> None:
    window = browser.window
    window.get_by_role("button", name="with failed trials").click()
    window.get_by_role("link", name="1 trial failed", exact=True).click()
    browser.see("broken")
    failure = window.get_by_role("region", name="failure of trial 1")
    failure.get_by_text("ValueError: no such data").first.wait_for()
    browser.check_view(1280)
    window.get_by_role("link", name="Whole log of trial 1").click()
    browser.see("Trial 1")
    window.get_by_role("log").get_by_text("the last words").wait_for()


def test_message_of_a_failed_trial_is_short_until_it_is_opened(browser: Browser) -> None:
    window = browser.window
    window.set_viewport_size({"width": 390, "height": 800})
    browser.go("trials/1", "Trial 1")
    message = window.locator("dl.facts dd.bad")
    message.get_by_text("Whole message").wait_for()
    # The text without the part that is folded.
    assert "exit code 1" in message.inner_text()
    assert "ValueError" not in message.inner_text()
    message.get_by_text("Whole message").press("Enter")
    message.get_by_text("ValueError: no such data").wait_for()
    browser.check_view(390)


def test_errors_of_a_log_are_counted_marked_and_folded(browser: Browser) -> None:
    window = browser.window
    browser.go("trials/1/logs", "Trial 1")
    log = window.get_by_role("log")
    log.get_by_text("the last words").wait_for()
    browser.wait_for_text("1 error")
    window.keyboard.press(".")
    window.locator(".log .marked", has_text="Traceback").wait_for()
    browser.wait_for_text("error 1 of 1")
    browser.press("Next error .")
    browser.wait_for_text("No later error.")
    frame = log.get_by_text("broken.py")
    frame.first.wait_for()
    window.get_by_label("Fold tracebacks").check()
    frame.first.wait_for(state="detached")
    log.get_by_role("button", name="traceback at offset").click()
    frame.first.wait_for()
    window.get_by_label("Times").uncheck()
    browser.press("Full window")
    box = log.bounding_box()
    # The window is 900 pixels high; filters and switches stand above the log.
    assert box["height"] > 450
    browser.check_view(1280)
    window.keyboard.press("Escape")
    browser.wait_for_text("Full window")
    assert "full" not in browser.address()
    window.get_by_label("Level at least").select_option("ERROR")
    log.get_by_text("the last words").wait_for(state="detached")
    log.get_by_text("ValueError: no such data").wait_for()
    window.get_by_role("link", name="Show the line among all lines").click()
    log.get_by_text("the last words").wait_for()


def test_logs_of_all_trials_have_errors_files_and_links_to_the_logs_of_trials(
    laptop: Laptop, browser: Browser
) -> None:
    window = browser.window
    browser.go("experiments/1/logs", "broken")
    log = window.get_by_role("log")
    log.get_by_text("the last words").wait_for()
    window.get_by_label("Trials").fill("1")
    window.get_by_label("Trials").press("Enter")
    log.get_by_text("ValueError: no such data").wait_for()
    browser.check_view(1280)
    window.get_by_label("Trials").fill("one")
    window.get_by_label("Trials").press("Enter")
    browser.wait_for_text("one is no list of at most 100 ids of trials")
    browser.press("Clear filters")
    window.keyboard.press(".")
    window.locator(".log .marked", has_text="Traceback").wait_for()
    window.get_by_role("status").get_by_text("error of trial 1 at").wait_for()
    window.keyboard.press(".")
    browser.wait_for_text("No later error.")
    window.reload()
    window.locator(".log .marked", has_text="Traceback").wait_for()
    window.get_by_label("Level at least").select_option("ERROR")
    log.get_by_text("the last words").wait_for(state="detached")
    with window.expect_download() as started:
        browser.press("Download these lines")
    assert started.value.suggested_filename == "experiment-1-part.log"
    saved = Path(started.value.path()).read_text().splitlines()
    printed = laptop.run("logs", 1, "--level", "error", "--timestamps").stdout.splitlines()
    assert [line.replace("[trial 1] ", "") for line in saved] == printed
    browser.check_view(1280)
    browser.press("Clear filters")
    log.locator(".line", has_text="the last words").get_by_role("link").last.click()
    browser.see("Trial 1")
    window.locator(".log .marked", has_text="the last words").wait_for()


def test_outage_shows_a_bar_and_views_recover(browser: Browser, laptop: Laptop) -> None:
    window = browser.window
    bar = window.get_by_text("Reconnecting")
    record = laptop.record()
    # The list must be loaded before the outage.
    window.get_by_role("table", name="experiments").wait_for()
    os.kill(record["pid"], signal.SIGKILL)
    began = time.monotonic()
    bar.wait_for()
    assert time.monotonic() - began < NOTICE_SECONDS_MAX
    assert browser.serious_findings() == []
    # A view that is opened during the outage loads afterwards, and the list is still shown.
    window.get_by_role("table", name="experiments").wait_for()
    window.evaluate("location.hash = '#/trials/1/logs'")
    assert window.get_by_role("log").count() == 0
    laptop.run("up")
    assert laptop.record()["url"] == record["url"]
    bar.wait_for(state="detached")
    window.get_by_role("log").get_by_text("the last words").wait_for()
    for _ in range(2):
        laptop.run("down")
        bar.wait_for()
        laptop.run("up")
        assert laptop.record()["url"] == record["url"]
        bar.wait_for(state="detached")
    assert browser.faults == []


def test_sign_in_returns_to_the_view_of_the_expired_session(
    browser: Browser, laptop: Laptop
) -> None:
    browser.go("trials/1/history", "Trial 1")
    # The page asks the cluster with a session that does not exist.
    browser.window.evaluate("localStorage.setItem('detcloud.session-key', 'expired')")
    browser.window.reload()
    browser.see("Sign in to detcloud")
    link = laptop.run("open", "--no-browser").stdout.strip()
    browser.window.goto(link)
    browser.see("Trial 1")
    assert browser.address().endswith("#/trials/1/history")
