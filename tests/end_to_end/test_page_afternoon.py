"""The web page during a whole search: two windows without interaction or reload."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.browser import SIZE, Browser, open_window
from tests.end_to_end.laptop import Laptop, start_cluster
from tests.end_to_end.tiny_model import write_model
from tests.patience import wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.nightly]

TRIALS = 9
# Rungs at 20, 60 and 180 batches: of 9 trials, 3 are promoted and then 1. In total at least 9 x 20
# + 3 x 40 + 120 = 420 batches, since trials promoted early may differ from the final best.
SEARCHER = {
    "name": "async_halving",
    "metric": "loss",
    "max_length": {"batches": 180},
    "num_rungs": 3,
    "divisor": 3,
    "max_trials": TRIALS,
    "max_concurrent_trials": 2,
}
BATCH_SECONDS = 0.2
# Each window polls a handful of resources, each at most every 2 s.
REQUESTS_PER_SECOND_MAX = 8.0


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """Yield a cluster with two slots and a search that takes minutes."""
    folder = tmp_path_factory.mktemp("afternoon")
    with start_cluster(folder, 2, LOGNAME="ada") as one:
        one.run("create", *write_model(folder, BATCH_SECONDS, name="afternoon", searcher=SEARCHER))
        yield one


def wait_in(browser: Browser, look: Callable[[], Any]) -> None:
    """Wait until `look` finds a value in a window, which stays responsive meanwhile."""
    wait_until(lambda: look() or browser.window.wait_for_timeout(100), seconds=60)


def count_curves(browser: Browser) -> int:
    legend = browser.window.get_by_role("list", name="curves").get_by_role("listitem")
    return int(legend.count())


def test_search_is_followed_from_the_first_trial_to_the_end(
    chromium: Any, laptop: Laptop, browser: Browser, tmp_path: Path
) -> None:
    requests: list[str] = []
    browser.window.on("request", lambda request: requests.append(request.url))
    badge = browser.window.locator("h1 .badge")
    with open_window(chromium, laptop, viewport=SIZE) as queue:
        queue.sign_in()
        queue.go("jobs", "Job queue")
        queue.window.get_by_text("1: afternoon").wait_for()
        browser.go("experiments/1", "afternoon")
        began = time.monotonic()
        wait_in(browser, lambda: count_curves(browser) >= 2)

        # A colleague pauses the search and resumes it.
        laptop.run("pause", 1)
        wait_in(browser, lambda: badge.inner_text() == "paused")
        queue.wait_for_text("No jobs in this pool")
        laptop.run("activate", 1)
        wait_in(browser, lambda: badge.inner_text() in ("queued", "running"))
        queue.wait_for_text("1: afternoon")

        # A second user's job arrives, and the queue shows why it waits.
        second = tmp_path / "second"
        second.mkdir()
        laptop.run("create", *write_model(second, 0.0, name="errand"))
        queue.window.get_by_text("2: errand").wait_for()

        # The server dies; both windows report the outage, and recover by themselves.
        url = laptop.record()["url"]
        os.kill(laptop.record()["pid"], signal.SIGKILL)
        for window in (browser, queue):
            window.wait_for_text("Reconnecting")
        laptop.run("up")
        assert laptop.record()["url"] == url
        for window in (browser, queue):
            gone = window.window.get_by_text("Reconnecting").first
            gone.wait_for(state="detached")

        wait_in(browser, lambda: count_curves(browser) >= 5)
        wait_in(browser, lambda: badge.inner_text() == "finished")
        assert len(requests) / (time.monotonic() - began) < REQUESTS_PER_SECOND_MAX
        wait_in(browser, lambda: count_curves(browser) == TRIALS)
        described = laptop.json("describe", 1)
        best = described["best_trial_id"]
        browser.window.get_by_role("link", name=f"trial {best}", exact=True).wait_for()
        browser.wait_for_text(re.compile(f"{TRIALS} of {TRIALS} trials completed"))
        queue.window.get_by_text("No jobs in this pool").wait_for()
        assert queue.faults == []
    # The history has all events in order of time.
    browser.go("experiments/1/history", "afternoon")
    browser.window.get_by_label("Oldest first").check()
    browser.window.get_by_label("Without its trials").check()
    story = browser.window.locator("ol.history")
    story.get_by_text("paused").first.wait_for()
    texts = story.inner_text()
    assert texts.index("submitted by") < texts.index("paused") < texts.index("activated")
    assert browser.faults == []
