"""The start page and the header, in a real browser over a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.browser import SIZE, Browser, open_window
from tests.end_to_end.laptop import Laptop, start_cluster
from tests.end_to_end.tiny_model import write_model
from tests.patience import wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("checked_view")]


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """Yield a cluster of one slot: a search failed, a search ended, one runs and one waits."""
    folder = tmp_path_factory.mktemp("home")
    with start_cluster(folder, 1, LOGNAME="ada") as one:
        submit(one, folder, "broken", fails_at=1, max_restarts=0)
        submit(one, folder, "ready")
        one.run("wait", 1, code=1)
        one.run("wait", 2)
        submit(one, folder, "busy", pause_seconds=30.0)
        submit(one, folder, "patient")
        yield one


def submit(laptop: Laptop, folder: Path, name: str, **fields: Any) -> None:
    """Create an experiment of a small search with this name."""
    (folder / name).mkdir()
    laptop.run("create", *write_model(folder / name, name=name, **fields))


def read_part(browser: Browser, name: str) -> list[str]:
    """Return the texts of the lines in a part of the start page, or [] without this part."""
    part = browser.window.get_by_role("region", name=name, exact=True)
    return [str(text) for text in part.locator(".rows > li").all_inner_texts()]


def test_home_shows_what_runs_waits_and_has_failed(browser: Browser) -> None:
    browser.go("home", "Home")
    wait_until(lambda: ["busy" in text for text in read_part(browser, "running")] == [True])
    wait_until(lambda: "needs 1 slot" in "".join(read_part(browser, "waiting")))
    assert "patient" in read_part(browser, "waiting")[0]
    assert "ready" in read_part(browser, "finished")[0]
    assert "1 of 1 slot used" in read_part(browser, "machines")[0]
    browser.wait_for_text("my trials")
    [failed] = read_part(browser, "failed")
    assert "broken" in failed
    browser.press("Mark as seen")
    wait_until(lambda: read_part(browser, "failed") == [])
    browser.window.reload()
    wait_until(lambda: read_part(browser, "finished") != [])
    assert read_part(browser, "failed") == []


def test_home_of_everyone_has_the_work_of_other_users(chromium: Any, laptop: Laptop) -> None:
    with laptop.cluster() as cluster:
        token = cluster.create_token("bob", role="user").token
    with open_window(chromium, laptop, viewport=SIZE) as bobs:
        bobs.window.goto(bobs.page)
        bobs.window.get_by_label("Token").fill(token)
        bobs.press("Sign in")
        bobs.see("Home")
        bobs.wait_for_text("Nothing runs.")
        bobs.press("Everyone's")
        wait_until(lambda: "busy" in "".join(read_part(bobs, "running")))
        assert "of=everyone" in bobs.address()
        bobs.check_view(SIZE["width"])


def test_header_leads_to_the_views_of_a_section(browser: Browser) -> None:
    window = browser.window
    browser.go("home", "Home")
    views = window.get_by_role("navigation", name="views", exact=True)
    views.get_by_role("link", name="Cluster").click()
    browser.see("Job queue")
    second = window.get_by_role("navigation", name="views of Cluster")
    second.get_by_role("link", name="Pools and agents").click()
    browser.see("Pools and agents")
    assert views.locator("[aria-current]").all_inner_texts() == ["Cluster"]
    assert second.locator("[aria-current]").all_inner_texts() == ["Pools and agents"]
    window.get_by_role("link", name="New experiment").click()
    browser.see("New experiment")
    window.get_by_role("button", name="menu of ada").click()
    window.get_by_role("link", name="Tokens").click()
    browser.see("Tokens")
    assert window.get_by_role("button", name="Sign out").count() == 0, "the menu is closed"
    window.set_viewport_size({"width": 390, "height": 800})
    browser.go("home", "Home")
    browser.wait_for_width(390)
    window.set_viewport_size(SIZE)
