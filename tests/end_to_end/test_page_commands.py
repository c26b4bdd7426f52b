"""Commands and notebooks in the web page, and a page with missing scripts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.browser import CANARY, PRIORITY_POOL, SIZE, Browser, open_window
from tests.end_to_end.laptop import Laptop, start_cluster
from tests.patience import wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("checked_view")]

LIST = "Commands and notebooks"
LOUD = "<b>loud</b>"


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """Yield a cluster with a slot and no work yet."""
    with start_cluster(tmp_path_factory.mktemp("commands"), 1, PRIORITY_POOL, LOGNAME="ada") as one:
        yield one


def run_command(laptop: Laptop, script: str, *options: str) -> int:
    """Start a shell script as a detached command; return the id."""
    words = ("cmd", "run", "--detach", *options, "--", "bash", "-c", script)
    return int(laptop.run(*words).stdout)


def read_rows(browser: Browser) -> list[list[str]]:
    """Return each row of the list: id, program, kind, state, exit code, user and machine."""
    rows = [row.split("\t") for row in browser.table_rows("commands")]
    return [[row[1], *row[3:8], row[9]] for row in rows]


def see_state(browser: Browser, state: str) -> None:
    browser.window.locator("h1 .badge", has_text=state).wait_for()


def kind_in(row: str) -> str:
    """Return the kind of the job in a row of the queue, whose third cell has two lines."""
    return row.split("\t")[2].strip().splitlines()[1].partition(",")[0]


def read_fact(browser: Browser, name: str) -> str:
    """Return the text that the view shows for a name."""
    facts = browser.window.locator("dl.facts").first
    text: str = facts.locator("dt", has_text=re.compile(f"^{name}$")).locator("+ dd").inner_text()
    return text


def test_empty_or_failing_list_shows_a_message(browser: Browser) -> None:
    window = browser.window
    browser.go("experiments", "Experiments")
    window.keyboard.press("g")
    window.keyboard.press("c")
    browser.see(LIST)
    browser.wait_for_text("No commands or notebooks yet.")
    assert browser.serious_findings() == []
    browser.go("commands?name=x", LIST)
    browser.wait_for_text("No commands or notebooks match these filters.")
    answer = '{"error": {"code": "internal", "message": "internal error", "details": []}}'
    window.route("**/api/v1/experiments*", lambda route: route.fulfill(status=500, body=answer))
    browser.press("Clear filters")
    browser.wait_for_text("internal error")
    window.unroute("**/api/v1/experiments*")
    browser.press("Try again")
    browser.wait_for_text("No commands or notebooks yet.")
    window.goto(f"{browser.page}#/commands/99")
    browser.wait_for_text("there is no experiment 99")


def test_command_is_listed_and_the_log_is_followed(
    laptop: Laptop, browser: Browser, tmp_path: Path
) -> None:
    window = browser.window
    sign = tmp_path / "sign"
    script = f"echo begins; echo {shlex.quote(CANARY)}; until [ -e {sign} ]; do sleep .1; done"
    options = [f"name={LOUD!r}", "max_duration=1h", "environment.proxy_ports=[{proxy_port: 8265}]"]
    run_command(
        laptop,
        f"{script}; echo goes on; sleep 600",
        *(word for option in options for word in ("--config", option)),
    )
    run_command(laptop, "echo second", "--config", "name=next")
    # The command waits up to a minute for the start, which needs the slot of command 1.
    waiting = laptop.spawn("notebook", "start", "--detach", "--no-browser", "--config", "name=book")
    browser.go("commands", LIST)
    wait_until(lambda: len(read_rows(browser)) == 3)
    waiting.kill()
    waiting.communicate()
    wait_until(
        lambda: [row[3:] for row in read_rows(browser)[2:]] == [["running", "–", "ada", "local"]]
    )
    assert read_rows(browser)[:2] == [
        ["3", "–", "notebook", "queued", "–", "ada", "–"],
        ["2", "bash -c 'echo second'", "command", "queued", "–", "ada", "–"],
    ]
    window.get_by_label("Kind").select_option("notebooks")
    wait_until(lambda: [row[2] for row in read_rows(browser)] == ["notebook"])
    window.get_by_role("link", name="book", exact=True).click()
    browser.see("book")
    browser.wait_for_text("detcloud notebook open 3")

    browser.go("commands/1", LOUD)
    log = window.get_by_role("log")
    log.get_by_text("begins").wait_for()
    log.get_by_text(CANARY).wait_for()
    assert log.get_by_text("goes on").count() == 0
    sign.touch()
    # Without interaction the page shows new output.
    log.get_by_text("goes on").wait_for()
    assert browser.serious_findings() == []
    log.get_by_role("link").first.click()
    window.reload()
    window.locator(".log .marked", has_text="begins").wait_for()
    assert "commands/1/logs?line=" in browser.address()
    assert read_fact(browser, "Machine") == "local, pool default, 1 slot"
    assert read_fact(browser, "Terminal").startswith("detcloud ssh 1")
    assert read_fact(browser, "Port 8265").startswith("detcloud tunnel 1")
    assert read_fact(browser, "Ends").endswith("at its max_duration")


def test_waiting_command_is_in_the_queue_and_starts_after_a_kill(
    browser: Browser,
) -> None:
    window = browser.window
    browser.go("jobs", "Job queue")
    kinds = ["command", "command", "notebook"]
    wait_until(lambda: [kind_in(row) for row in browser.table_rows("jobs")] == kinds)
    window.get_by_role("link", name="2: next").click()
    see_state(browser, "queued")
    browser.wait_for_text("No lines yet.")
    assert read_fact(browser, "Queue").startswith("priority 42")
    assert "needs 1 slot" in read_fact(browser, "Waits")
    browser.press("Manage Job")
    window.get_by_label("To", exact=True).fill("7")
    browser.press("OK")
    wait_until(lambda: read_fact(browser, "Queue").startswith("priority 7"))

    browser.go("commands/1", LOUD)
    browser.press("Kill")
    window.get_by_role("dialog", name="Kill").wait_for()
    window.keyboard.press("Escape")
    window.get_by_role("dialog").wait_for(state="detached")
    see_state(browser, "running")
    browser.press("Kill")
    window.get_by_role("dialog", name="Kill").wait_for()
    browser.press("Kill")
    see_state(browser, "canceled")
    browser.go("commands/2", "next")
    see_state(browser, "finished")
    wait_until(lambda: read_fact(browser, "Exit code") == "0")
    window.get_by_role("log").get_by_text("second").wait_for()


def test_failure_of_a_program_is_shown_without_secrets(laptop: Laptop, browser: Browser) -> None:
    window = browser.window
    variables = "environment.environment_variables=[API_TOKEN=s3cret]"
    options = ("--config", variables, "--config", "resources.slots=0", "--config", "name=failing")
    third = run_command(laptop, "echo why; exit 3", *options)
    laptop.run("wait", third, code=1)
    browser.go("commands?state=failed&kind=command", LIST)
    wait_until(lambda: [row[3:5] for row in read_rows(browser)] == [["failed", "3"]])
    # Commands and experiments share their numbers, and so their addresses.
    window.goto(f"{browser.page}#/experiments/{third}")
    see_state(browser, "failed")
    assert f"commands/{third}" in browser.address()
    assert read_fact(browser, "Exit code") == "3"
    assert "bash -c 'echo why; exit 3'" in read_fact(browser, "Program")
    window.get_by_role("link", name="Configuration").click()
    browser.wait_for_text(re.compile("environment_variables:"))
    assert "s3cret" not in window.content()
    window.get_by_role("link", name="History").click()
    browser.wait_for_text(re.compile("a command"))
    window.keyboard.press("Control+k")
    window.keyboard.type("failing")
    window.get_by_role("option", name=f"Command {third}: failing").wait_for()
    window.keyboard.press("Escape")
    browser.go("commands?name=failing", LIST)
    window.get_by_label("choose all").check()
    browser.press("Archive")
    browser.wait_for_text("No commands or notebooks match these filters.")


def test_command_views_are_accessible_in_the_dark_and_on_a_narrow_screen(
    chromium: Any, laptop: Laptop
) -> None:
    narrow = {"width": 390, "height": 800}
    with open_window(chromium, laptop, viewport=narrow, color_scheme="dark") as phone:
        phone.sign_in()
        for path, title in (("commands?archived=all", LIST), ("commands/1", LOUD)):
            phone.go(path, title)
            phone.wait_for_text("local")
            assert phone.serious_findings() == [], path
            phone.wait_for_width(narrow["width"])
        assert phone.faults == []


def test_view_with_missing_scripts_asks_for_a_reload(chromium: Any, laptop: Laptop) -> None:
    scripts = "**/assets/*.js"
    with open_window(chromium, laptop, viewport=SIZE) as old:
        window = old.window
        old.sign_in()
        # As after an upgrade: the page names files that no longer exist.
        window.route(scripts, lambda route: route.fulfill(status=404, body="not found"))
        window.keyboard.press("g")
        window.keyboard.press("j")
        old.wait_for_text(re.compile("This view could not be loaded"))
        window.get_by_role("navigation", name="views", exact=True).wait_for()
        assert old.serious_findings() == []
        window.unroute(scripts)
        old.press("Reload the page")
        old.see("Job queue")

        window.context.set_offline(True)
        window.keyboard.press("g")
        window.keyboard.press("t")
        old.wait_for_text(re.compile("This view could not be loaded"))
        # A reload would lose the page.
        old.press("Reload the page")
        old.wait_for_text(re.compile("The cluster still does not answer"))
        window.get_by_role("navigation", name="views", exact=True).wait_for()
        window.context.set_offline(False)
        # When the cluster answers again, the page reloads by itself.
        old.see("Templates")

        # If even the first script is missing, the document shows a message.
        window.route(scripts, lambda route: route.fulfill(status=404, body="not found"))
        window.reload()
        old.wait_for_text(re.compile("If this stays, reload the page"))
        assert old.faults == []
