"""The web page finds things, keeps what one writes and knows roles, in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.browser import Browser, open_window
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.tiny_model import write_model
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

SINGLE = {"name": "single", "metric": "loss", "max_length": {"batches": 5}}
POOLS = """
resource_pools:
  - pool_name: default
    scheduler: {type: priority}
"""
SIZE = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """A cluster with two experiments that have ended, and one whose names are long."""
    folder = tmp_path_factory.mktemp("flows")
    one = Laptop(folder / "home", LOGNAME="ada")
    (folder / "pools.yaml").write_text(POOLS)
    try:
        one.run("up", "--slots", 1, "--config", folder / "pools.yaml")
        for name, x in (("first sweep", 0.5), ("second sweep", 0.25)):
            place = folder / name
            place.mkdir()
            fields: dict[str, Any] = {"name": name, "searcher": SINGLE, "hyperparameters": {"x": x}}
            one.run("create", *write_model(place, **fields))
        one.run("create", *write_long_names(folder / "long"))
        for experiment in (1, 2, 3):
            one.run("wait", experiment)
        yield one
    finally:
        assert one.end() == []


def write_long_names(folder: Path) -> tuple[Path, Path]:
    """A search whose name has 100,000 characters, and others as many as the cluster takes."""
    folder.mkdir()
    hyperparameters = {
        "x": {"type": "double", "minval": 0, "maxval": 1},
        # YAML takes no longer key on a line.
        "h" * 1000: {"type": "categorical", "vals": ["v" * 10_000, "w" * 10_000]},
    }
    searcher = {"name": "random", "metric": "loss", "max_trials": 2, "max_length": {"batches": 2}}
    return write_model(
        folder,
        name="n" * 100_000,
        labels=["l" * 1_000],
        hyperparameters=hyperparameters,
        searcher=searcher,
    )


@pytest.fixture(autouse=True)
def nothing_is_wrong(browser: Browser) -> Iterator[None]:
    """No script failed, and nothing keeps anybody from the view."""
    yield
    assert browser.serious_findings() == []
    browser.wait_for_width(SIZE["width"])
    assert browser.faults == []


def test_the_palette_finds_by_name_and_the_tab_says_what_is_shown(browser: Browser) -> None:
    window = browser.window
    browser.go("experiments", "Experiments")
    assert window.title() == "Experiments – detcloud"
    window.keyboard.press("Control+k")
    window.keyboard.type("second sw")
    window.get_by_role("option", name="Experiment 2: second sweep").wait_for()
    assert browser.serious_findings() == []
    window.keyboard.press("Enter")
    browser.see("second sweep")
    wait_until(lambda: window.title() == "second sweep – detcloud")
    # The keyboard goes on in the view that came.
    assert window.evaluate("document.activeElement.id") == "main"
    window.keyboard.press("?")
    dialog = window.get_by_role("dialog", name="Keyboard shortcuts")
    dialog.get_by_text("Job queue").wait_for()
    assert browser.serious_findings() == []
    window.keyboard.press("Escape")
    window.keyboard.press("g")
    window.keyboard.press("e")
    browser.see("Experiments")
    window.keyboard.press("/")
    window.keyboard.type("first")
    wait_until(lambda: len(browser.table_rows("experiments")) == 1)
    window.keyboard.press("Escape")


def test_the_key_that_searches_waits_for_a_view_that_loads(browser: Browser) -> None:
    window = browser.window
    held: list[Any] = []
    browser.go("templates", "Templates")
    browser.wait_for_text("No templates.")
    # Nothing is searched here, and the next key is a shortcut again.
    window.keyboard.press("/")
    window.keyboard.press("g")
    window.keyboard.press("j")
    browser.see("Job queue")
    window.route("**/api/v1/trials/1", lambda route: held.append(route))
    window.goto(f"{browser.page}#/trials/1/logs")
    wait_until(lambda: held or window.wait_for_timeout(50))
    window.keyboard.press("/")
    window.keyboard.press("Shift+S")
    window.keyboard.type("topz")
    window.keyboard.press("Backspace")
    held.pop().continue_()
    text = window.get_by_role("searchbox", name="Text")
    text.wait_for()
    wait_until(lambda: text.input_value() == "Stop")
    window.keyboard.type("s at 5")
    window.keyboard.press("Enter")
    browser.wait_for_text(re.compile("^1 line, complete"))
    window.unroute("**/api/v1/trials/1")


def test_experiments_are_compared_by_any_metric_and_by_their_configurations(
    laptop: Laptop, browser: Browser
) -> None:
    window = browser.window
    best = [laptop.json("describe", experiment)["best_trial_id"] for experiment in (1, 2)]
    browser.go("compare?experiments=1,2", "Compare")
    legend = window.get_by_role("list", name="curves").get_by_role("listitem")
    legend.nth(1).wait_for()
    # By what the searches go by: the square of x.
    assert [row.split("\t")[4] for row in browser.table_rows("what is compared")] == [
        "0.25",
        "0.0625",
    ]
    window.get_by_label("Metric").select_option("training: loss")
    # The model's training loss at its last step, 5, is 1/5.
    wait_until(
        lambda: (
            [row.split("\t")[4] for row in browser.table_rows("what is compared")] == ["0.2", "0.2"]
        )
    )
    assert f"trial {best[0]} of experiment 1" in legend.all_inner_texts()[0]
    rows = [row.split("\t") for row in browser.table_rows("what differs in their configurations")]
    assert ["name", "first sweep", "second sweep"] in rows
    assert ["hyperparameters.x.val", "0.5", "0.25"] in rows or [
        "hyperparameters.x",
        "0.5",
        "0.25",
    ] in rows
    window.reload()
    browser.see("Compare")
    wait_until(lambda: window.get_by_label("Metric").input_value() == '["training","loss"]')


def test_a_trial_tells_what_happened_to_it(browser: Browser) -> None:
    window = browser.window
    browser.go("trials/1/history", "Trial 1")
    window.get_by_text("is RUNNING").wait_for()
    assert window.get_by_text("submitted by").count() == 0
    browser.go("experiments/1/history", "first sweep")
    submitted = window.get_by_role("listitem").filter(has_text="submitted by")
    submitted.wait_for()
    # The newest is first, and what came first is last, unless one asks otherwise.
    events = window.locator("ol.history > li")
    assert "submitted by" in events.last.inner_text()
    window.get_by_label("Oldest first").check()
    wait_until(lambda: "submitted by" in events.first.inner_text())
    assert "order=asc" in window.url
    window.get_by_text("is RUNNING").wait_for()
    window.get_by_label("Without its trials").check()
    window.get_by_text("is RUNNING").wait_for(state="detached")
    window.get_by_text("submitted by").wait_for()


def test_what_one_writes_is_kept_over_other_views_and_a_reload(browser: Browser) -> None:
    window = browser.window
    text = window.get_by_label("Configuration (YAML)")
    browser.go("create?experiment=1", "New experiment")
    written = re.sub("(?m)^name: .*$", "name: third sweep", text.input_value())
    text.fill(written)
    browser.wait_for_text("The configuration is valid.")
    window.keyboard.press("Control+k")
    window.keyboard.type("job")
    window.keyboard.press("Enter")
    browser.see("Job queue")
    browser.go("create?experiment=1", "New experiment")
    assert text.input_value() == written
    window.reload()
    browser.wait_for_text("This is what you wrote before.")
    assert text.input_value() == written
    browser.press("Begin again")
    assert "name: first sweep" in text.input_value()
    window.get_by_text("This is what you wrote before.").wait_for(state="detached")

    # Notes that were written are not lost by one Escape.
    browser.go("experiments/1", "first sweep")
    form = browser.edit("notes", "better than the last one")
    window.keyboard.press("Escape")
    form.get_by_text("This is not saved yet.").wait_for()
    assert browser.serious_findings() == []
    window.reload()
    notes = form.get_by_label("notes")
    notes.wait_for()
    assert notes.input_value() == "better than the last one"
    notes.press("Escape")
    window.keyboard.press("Escape")
    form.wait_for(state="detached")
    window.get_by_role("button", name="Add notes").wait_for()


def test_a_continuation_is_checked_as_it_is_written(laptop: Laptop, browser: Browser) -> None:
    window = browser.window
    browser.go("experiments/2", "second sweep")
    browser.press("Continue")
    dialog = window.get_by_role("dialog")
    changes = dialog.get_by_label("What changes")
    changes.fill("searcher.max_length.batches=3")
    dialog.get_by_text("must be at least 5").wait_for()
    changes.fill("searcher.max_length.batches=8")
    dialog.get_by_text("These changes are valid.").wait_for()
    assert laptop.json("describe", 2)["state"] == "COMPLETED"
    dialog.get_by_role("button", name="Continue").click()
    dialog.wait_for(state="detached")
    window.locator("h1 .badge", has_text="COMPLETED").wait_for()
    wait_until(lambda: laptop.trials(2)[0]["steps_completed"] == 8)


def test_a_question_has_two_answers_that_differ(laptop: Laptop, browser: Browser) -> None:
    window = browser.window
    forked = json.loads(laptop.run("list", "--json").stdout)[-1]["id"]
    browser.go(f"create?experiment={forked}", "New experiment")
    browser.wait_for_text("The configuration is valid.")
    window.get_by_label("Begin paused").check()
    browser.press("Create")
    browser.see("first sweep")
    browser.press("Cancel")
    dialog = window.get_by_role("dialog", name="Cancel")
    assert dialog.get_by_role("button").all_inner_texts() == ["Back", "Cancel"]
    browser.press("Back")
    dialog.wait_for(state="detached")
    window.locator("h1 .badge", has_text="PAUSED").wait_for()
    browser.press("Cancel")
    dialog.get_by_role("button", name="Cancel").click()
    window.locator("h1 .badge", has_text="CANCELED").wait_for()


def test_charts_take_the_colours_that_are_chosen(browser: Browser) -> None:
    window = browser.window
    browser.go("trials/1?group=training", "Trial 1")
    canvas = window.locator(".chart canvas").first
    canvas.wait_for()
    picture = "(it) => it.toDataURL()"
    window.get_by_role("button", name="colours: auto").click()
    wait_until(lambda: canvas.evaluate(picture))
    light = canvas.evaluate(picture)
    window.get_by_role("button", name="colours: light").click()
    wait_until(lambda: canvas.evaluate(picture) != light)
    window.get_by_role("button", name="colours: dark").click()
    window.get_by_role("button", name="colours: auto").wait_for()


def test_long_names_keep_to_their_place(browser: Browser) -> None:
    window = browser.window
    for path, content in (
        ("experiments", "Clear filters"),
        ("experiments/3", "Best so far"),
        ("experiments/3/trials", "2 trials"),
        ("experiments/3/hyperparameters", "Two of them"),
        ("experiments/3/configuration", "searcher:"),
        ("create?experiment=3", "The configuration is valid."),
    ):
        place = f"{path}?archived=all" if content == "Clear filters" else path
        title: str | re.Pattern[str] = re.compile("^n{100}|^Experiments|^New experiment")
        browser.go(place, title)
        browser.wait_for_text(content)
        # The heading leaves room for what it is about.
        assert window.get_by_role("heading", level=1).bounding_box()["height"] < 200, path
        for width in (1280, 390):
            window.set_viewport_size({"width": width, "height": 900})
            browser.wait_for_width(width)
            assert browser.serious_findings() == [], (path, width)
        window.set_viewport_size(SIZE)
        browser.wait_for_width(SIZE["width"])


def test_who_is_no_admin_is_not_offered_what_only_admins_may(
    chromium: Any, laptop: Laptop, browser: Browser
) -> None:
    admins = ("Drain", "Disable", "Change budget")
    browser.go("pools/default", "Pools and agents")
    for name in admins:
        browser.window.get_by_role("button", name=name, exact=True).first.wait_for()
    with laptop.cluster() as cluster:
        token = cluster.create_token("bob", role="user").token
        cluster.set_template("ours", "max_restarts: 1\n")
    with open_window(chromium, laptop, viewport=SIZE) as bobs:
        bobs.window.goto(f"{bobs.url}/ui/")
        bobs.window.get_by_label("Token").fill(token)
        bobs.press("Sign in")
        bobs.see("Experiments")
        bobs.go("pools/default", "Pools and agents")
        bobs.wait_for_text("Only admins drain pools")
        bobs.window.get_by_text("budget none").wait_for()
        for name in admins:
            assert bobs.window.get_by_role("button", name=name, exact=True).count() == 0, name
        bobs.go("experiments/1", "first sweep")
        bobs.wait_for_text("Only ada and admins delete it.")
        assert bobs.window.get_by_role("button", name="Delete", exact=True).count() == 0
        bobs.go("templates", "Templates")
        bobs.press("open ours")
        dialog = bobs.window.get_by_role("dialog", name="Template ours")
        dialog.get_by_text("max_restarts: 1").wait_for()
        assert dialog.get_by_role("button", name="Save").count() == 0
        assert bobs.serious_findings() == []
        assert bobs.faults == []
