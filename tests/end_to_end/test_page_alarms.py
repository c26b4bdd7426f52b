"""The banner about raised alarms, the list of alarms and the runbook, in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.end_to_end.browser import Browser, open_window
from tests.end_to_end.laptop import Laptop, start_cluster
from tests.end_to_end.tiny_model import write_model
from tests.patience import wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("checked_view")]
CONFIG = "alarms: {queue_wait: 1ms, off: [machine-age]}\n"


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """Yield a cluster with a raised alarm, because a job waits for a disabled agent.

    A server checks the alarms when it starts, so that a restart raises the alarm.
    """
    folder = tmp_path_factory.mktemp("alarms")
    with start_cluster(folder, 1, CONFIG) as one:
        wait_until(lambda: one.json("agent", "list"))
        one.run("agent", "disable", "local")
        one.run("create", *write_model(folder, 0.1))
        wait_until(lambda: one.json("job", "list"))
        one.run("down")
        one.run("up", "--slots", 1, "--config", folder / "pools.yaml")
        wait_until(lambda: one.json("alarm", "list"), what="a raised alarm")
        yield one


def test_command_line_lists_and_explains_the_alarm(laptop: Laptop) -> None:
    [alarm] = laptop.json("alarm", "list")
    assert (alarm["alarm"], alarm["pool"], alarm["state"]) == ("queue-wait", "default", "raised")
    states = {item["alarm"]: item["state"] for item in laptop.json("alarm", "list", "--all")}
    assert states["machine-age"] == "off"
    described = laptop.json("alarm", "describe", "queue-wait")
    assert described["items"] == [alarm]
    # The page of the server is the page of the command line.
    with laptop.cluster() as cluster:
        assert cluster.alarm("queue-wait")["runbook"] == described["runbook"]


def test_banner_leads_to_the_alarms_and_the_runbook_by_keyboard(browser: Browser) -> None:
    browser.go("experiments", "Experiments")
    header = browser.window.get_by_role("banner")
    link = header.get_by_role("link", name=re.compile("1 alarm raised: queue-wait"))
    link.wait_for()
    assert "queue-wait (default)" in link.inner_text()
    link.focus()
    browser.window.keyboard.press("Enter")
    browser.see("Alarms")
    shown = wait_until(lambda: browser.table_rows("alarms"))
    rows = [row.split("\t") for row in shown]
    # Raised alarms come first, and each alarm of the cluster has a row.
    assert rows[0][:3] == ["queue-wait", "raised", "default"]
    assert re.fullmatch(r"\d+ (s|min|h).*", rows[0][4])
    assert rows[0][5] == "0 s"
    assert [row[0] for row in rows[1:]] == ["failed-boots", "hourly-cost", "lag", "machine-age"]
    assert [row[1] for row in rows[1:]] == ["clear", "clear", "clear", "off"]
    browser.check_view(1280)
    browser.window.get_by_role("link", name="queue-wait", exact=True).focus()
    browser.window.keyboard.press("Enter")
    browser.see("Alarm queue-wait")
    browser.window.get_by_role("heading", name="Silence an alarm", level=2).wait_for()
    assert browser.table_rows("states")[0].split("\t")[0] == "raised"


def test_alarm_of_the_cloud_has_a_page_and_links_to_others(browser: Browser) -> None:
    browser.go("alarms/dead-letters", "Alarm dead-letters")
    browser.wait_for_text("The cloud evaluates this alarm")
    browser.go("alarms/throttles", "Alarm throttles")
    browser.window.locator("main").get_by_role("link", name="errors", exact=True).first.click()
    browser.see("Alarm errors")


def test_unknown_alarm_is_refused_with_the_names(browser: Browser) -> None:
    browser.go("alarms/moon", "Alarm moon")
    browser.window.get_by_role("alert").get_by_text("there is no alarm moon; the alarms").wait_for()


def test_shortcut_opens_the_alarms(browser: Browser) -> None:
    browser.go("projects", "Projects")
    browser.window.keyboard.press("g")
    browser.window.keyboard.press("a")
    browser.see("Alarms")


def test_cluster_without_raised_alarms_has_no_banner(browser: Browser) -> None:
    empty = json.dumps({"items": [], "cloud_alarms": []})
    browser.window.route(
        re.compile(r"/api/v1/alarms$"),
        lambda route: route.fulfill(body=empty, content_type="application/json"),
    )
    try:
        browser.window.reload()
        browser.see("Alarms")
        browser.wait_for_text("queue-wait")
        assert browser.window.get_by_role("banner").get_by_role("link", name="raised").count() == 0
    finally:
        browser.window.unroute_all()


def test_alarms_are_accessible_in_the_dark_and_on_a_narrow_screen(
    chromium: Any, laptop: Laptop
) -> None:
    narrow = {"width": 390, "height": 800}
    with open_window(chromium, laptop, viewport=narrow, color_scheme="dark") as phone:
        phone.sign_in()
        for path, title in (("alarms", "Alarms"), ("alarms/lag", "Alarm lag")):
            phone.go(path, title)
            phone.window.get_by_role("link", name=re.compile("1 alarm raised")).wait_for()
            phone.window.get_by_role("table").first.wait_for()
            assert phone.serious_findings() == [], path
            phone.wait_for_width(narrow["width"])
        assert phone.faults == []
