"""Moves of jobs in the queue of the web page, with the pointer and with the keyboard."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.end_to_end.browser import SIZE, Browser
from tests.patience import wait_until


def move_by_drag_and_by_keys(
    browser: Browser, jobs: tuple[int, int], order: Callable[[], list[int]]
) -> None:
    """Drag the second of two jobs to the first place, and move it back and again by keys."""
    window, (first, second) = browser.window, jobs
    window.set_viewport_size({"width": 1440, "height": 900})
    table = window.get_by_role("region", name="jobs")
    assert table.evaluate("(box) => box.scrollWidth - box.clientWidth") == 0
    assert browser.serious_findings() == []
    handle = window.get_by_role("button", name=f"Move job {second}", exact=True)
    handle.hover()
    window.mouse.down()
    top = table.locator("tbody tr").first.bounding_box()
    window.mouse.move(top["x"] + 30, top["y"] + 4)
    window.get_by_text(f"Job {second}: place 1 of 2.").wait_for()
    window.mouse.up()
    wait_until(lambda: order() == [second, first])
    wait_until(lambda: "second_job" in browser.table_rows("jobs")[0])

    # On a phone the jobs are cards. Escape leaves a job in its place.
    window.set_viewport_size({"width": 390, "height": 800})
    browser.wait_for_width(390)
    cards = window.get_by_role("list", name="jobs").get_by_role("listitem")
    cards.first.get_by_text(re.compile(r"^(Waits|Runs)")).wait_for()
    assert browser.serious_findings() == []
    handle.focus()
    for key in ("Space", "ArrowDown", "Escape", "Space", "ArrowDown", "Enter"):
        window.keyboard.press(key)
    wait_until(lambda: order() == [first, second])
    wait_until(lambda: "first_job" in cards.first.inner_text())
    handle.focus()
    for key in ("Space", "Home", "Space"):
        window.keyboard.press(key)
    wait_until(lambda: order() == [second, first])
    window.set_viewport_size(SIZE)
    # The table takes the place of the cards a frame later.
    window.get_by_role("table", name="jobs").wait_for()
    wait_until(lambda: "second_job" in browser.table_rows("jobs")[0])
