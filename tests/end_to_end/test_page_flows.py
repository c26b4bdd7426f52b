"""Search, drafts and roles of the web page in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.browser import CANARY, PRIORITY_POOL, SIZE, Browser, open_window
from tests.end_to_end.laptop import Laptop, start_cluster
from tests.end_to_end.tiny_model import write_model
from tests.patience import wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("checked_view")]

SINGLE = {"name": "single", "metric": "loss", "max_length": {"batches": 5}}


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """Yield a cluster with two ended experiments, and a third with long names."""
    folder = tmp_path_factory.mktemp("flows")
    with start_cluster(folder, 1, PRIORITY_POOL, LOGNAME="ada") as one:
        for name, x in (("first sweep", 0.5), ("second sweep", 0.25)):
            place = folder / name
            place.mkdir()
            fields: dict[str, Any] = {"name": name, "searcher": SINGLE, "records_per_epoch": 4}
            fields["hyperparameters"] = {"x": x, "global_batch_size": 2}
            one.run("create", *write_model(place, **fields))
        one.run("create", *write_long_names(folder / "long"))
        for experiment in (1, 2, 3):
            one.run("wait", experiment)
        yield one


def write_long_names(folder: Path) -> tuple[Path, Path]:
    """Write a search with a name of 100,000 characters, and other names at the cluster's limits."""
    folder.mkdir()
    hyperparameters = {
        "x": {"type": "double", "minval": 0, "maxval": 1},
        # YAML does not allow longer keys on a line.
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


def test_palette_finds_names_and_the_tab_shows_the_title(browser: Browser) -> None:
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
    # The keyboard focus moves to the new view.
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


def test_search_key_waits_for_a_loading_view(browser: Browser) -> None:
    window = browser.window
    held: list[Any] = []
    browser.go("templates", "Templates")
    browser.wait_for_text("No templates.")
    # This view has no search, and the next key is a shortcut again.
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


def test_experiments_are_compared_by_any_metric_and_by_configuration(
    laptop: Laptop, browser: Browser
) -> None:
    window = browser.window
    best = [laptop.json("describe", experiment)["best_trial_id"] for experiment in (1, 2)]
    browser.go("compare?experiments=1,2", "Compare")
    legend = window.get_by_role("list", name="curves").get_by_role("listitem")
    legend.nth(1).wait_for()
    # By the searches' metric: the square of x.
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
    rows = [row.split("\t") for row in browser.table_rows("differences of the configurations")]
    assert ["name", "first sweep", "second sweep"] in rows
    assert ["hyperparameters.x.val", "0.5", "0.25"] in rows or [
        "hyperparameters.x",
        "0.5",
        "0.25",
    ] in rows
    window.reload()
    browser.see("Compare")
    wait_until(lambda: window.get_by_label("Metric").input_value() == '["training","loss"]')


def test_several_metrics_are_compared_in_charts_and_on_a_pareto_front(
    laptop: Laptop, browser: Browser
) -> None:
    window = browser.window
    best = [laptop.json("describe", experiment)["best_trial_id"] for experiment in (1, 2)]
    browser.go("compare?experiments=1,2", "Compare")
    window.get_by_text("Select several metrics").click()
    for name in ("training: loss", "validation: loss"):
        window.get_by_role("checkbox", name=name).check()
    charts = window.get_by_role("img", name="what is compared")
    wait_until(lambda: charts.count() == 2)
    rows = [row.split("\t") for row in browser.table_rows("what is compared")]
    assert [row[3:5] for row in rows] == [["0.2", "0.25"], ["0.2", "0.0625"]]
    # Differing values are first, and are marked for readers who see no colours.
    rows = [row.split("\t") for row in browser.table_rows("hyperparameters")]
    assert rows == [
        ["x", "differs", "0.5", "0.25"],
        ["global_batch_size", "same", "2", "2"],
    ]
    window.get_by_label("Only differences").check()
    wait_until(lambda: len(browser.table_rows("hyperparameters")) == 1)

    window.get_by_label("Horizontal axis").select_option("training: loss")
    window.get_by_label("Vertical axis").select_option("validation: loss")
    front = window.get_by_role("region", name="two objectives")
    front.get_by_text("On the Pareto front, by").wait_for()
    # The training losses are equal, and the second's validation loss is less.
    assert front.locator("p").get_by_role("link").all_inner_texts() == [f"trial {best[1]}"]
    window.get_by_label("Vertical axis: better if").select_option("larger")
    wait_until(
        lambda: front.locator("p").get_by_role("link").all_inner_texts() == [f"trial {best[0]}"]
    )
    assert browser.serious_findings() == []
    window.reload()
    front.get_by_text("On the Pareto front, by").wait_for()
    wait_until(lambda: charts.count() == 2)
    assert front.locator("p").get_by_role("link").all_inner_texts() == [f"trial {best[0]}"]
    window.set_viewport_size({"width": 360, "height": 800})
    browser.wait_for_width(360)
    window.set_viewport_size(SIZE)


def test_curves_are_drawn_over_epochs_records_and_times(browser: Browser) -> None:
    window = browser.window

    def read_places() -> tuple[str, list[float]]:
        with window.expect_download() as saved:
            window.get_by_role("button", name="CSV of loss").click()
        head, *lines = Path(saved.value.path()).read_text().splitlines()
        return head.split(",")[0], [float(line.split(",")[0]) for line in lines]

    browser.go("trials/1?group=training&metric=loss", "Trial 1")
    over = window.get_by_label("Over")
    over.select_option("epochs")
    # 2 records in each of the 5 batches, 4 in an epoch.
    wait_until(lambda: read_places() == ("epochs", [0.5, 1, 1.5, 2, 2.5]))
    over.select_option("records")
    wait_until(lambda: read_places() == ("records", [2, 4, 6, 8, 10]))
    over.select_option("time")
    wait_until(lambda: read_places()[0] == "time")
    times = read_places()[1]
    assert sorted(times) == times
    assert times[0] > 1e9
    over.select_option("time since the trial's start")
    wait_until(lambda: read_places()[0] == "time since the trial's start")
    elapsed = read_places()[1]
    # The trial began before its first report, but not an hour before.
    assert 0 <= elapsed[0] <= elapsed[-1] < 3600
    assert round(elapsed[-1] - elapsed[0], 3) == round(times[-1] - times[0], 3)
    # The choice is in the address, and becomes the user's default for other views.
    window.reload()
    wait_until(lambda: over.input_value() == "elapsed")
    browser.go("experiments/1/curves?picture=curves", "first sweep")
    wait_until(lambda: "x=elapsed" in browser.address())
    browser.go("compare?experiments=1,2", "Compare")
    wait_until(lambda: over.input_value() == "elapsed")
    over.select_option("batches (steps)")
    browser.go("experiments/1/curves?picture=curves", "first sweep")
    wait_until(lambda: over.input_value() == "batches")
    over.select_option("records")
    wait_until(lambda: read_places() == ("records", [10]))
    over.select_option("batches (steps)")


def test_concurrent_change_is_shown_before_an_overwrite(laptop: Laptop, browser: Browser) -> None:
    with laptop.cluster() as cluster:
        experiment = cluster.experiment(2)
        browser.go("experiments/2/configuration", "second sweep")
        form = browser.edit("notes", "mine")
        # A change of a different field is no conflict.
        experiment.set(labels=["theirs"])
        form.get_by_role("button", name="Save").click()
        form.wait_for(state="detached")
        experiment.refresh()
        assert (experiment.description, experiment.labels) == ("mine", ["theirs"])

        form = browser.edit("notes", "mine again")
        experiment.set(description=CANARY)
        form.get_by_role("button", name="Save").click()
        theirs = form.get_by_role("region", name="notes as others changed it")
        theirs.get_by_text(CANARY).wait_for()
        assert form.get_by_label("notes", exact=True).input_value() == "mine again"
        assert browser.serious_findings() == []
        experiment.refresh()
        assert experiment.description == CANARY
        form.get_by_role("button", name="Overwrite").click()
        form.wait_for(state="detached")
        experiment.refresh()
        assert experiment.description == "mine again"


def test_metadata_of_trials_and_checkpoints_are_edited_in_place(
    laptop: Laptop, browser: Browser
) -> None:
    window = browser.window
    browser.go("trials/1", "Trial 1")
    wanted = {"reviewed": True, CANARY: CANARY}
    browser.edit_and_save("metadata", json.dumps(wanted))
    browser.wait_for_text(re.compile("reviewed"))
    laptop.run("trial", "set", "metadata", 1, "fold=3")
    assert laptop.json("trial", "describe", 1)["metadata"] == {**wanted, "fold": 3}
    browser.go("trials/1/checkpoints", "Trial 1")
    browser.press("Files")
    dialog = window.get_by_role("dialog")
    browser.edit_and_save("metadata", json.dumps(wanted), dialog)
    # Escape closes the form, but not the surrounding window.
    form = browser.edit("metadata", "{}", dialog)
    for _ in range(2):
        window.keyboard.press("Escape")
    form.wait_for(state="detached")
    dialog.get_by_text("reviewed").wait_for()
    assert browser.serious_findings() == []
    # The address has which checkpoint is opened.
    window.reload()
    dialog.get_by_text("reviewed").wait_for()
    browser.press("Close")
    dialog.wait_for(state="detached")
    assert "files=" not in browser.address()
    checkpoint = laptop.json("trial", "describe", 1)["latest_checkpoint"]
    description = laptop.json("checkpoint", "describe", checkpoint)
    assert description["metadata"] == wanted


def test_trial_view_has_a_history(browser: Browser) -> None:
    window = browser.window
    browser.go("trials/1/history", "Trial 1")
    window.get_by_text("is RUNNING").wait_for()
    assert window.get_by_text("submitted by").count() == 0
    browser.go("experiments/1/history", "first sweep")
    submitted = window.get_by_role("listitem").filter(has_text="submitted by")
    submitted.wait_for()
    # The newest event is first, and the oldest last, unless the order is changed.
    events = window.locator("ol.history > li")
    assert "submitted by" in events.last.inner_text()
    window.get_by_label("Oldest first").check()
    wait_until(lambda: "submitted by" in events.first.inner_text())
    assert "order=asc" in browser.address()
    window.get_by_text("is RUNNING").wait_for()
    window.get_by_label("Without its trials").check()
    window.get_by_text("is RUNNING").wait_for(state="detached")
    window.get_by_text("submitted by").wait_for()


def test_drafts_survive_other_views_and_a_reload(browser: Browser) -> None:
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
    window.get_by_label("Start paused").check()
    window.get_by_label("Slots").fill("3")
    window.reload()
    browser.wait_for_text("Your unsaved draft was restored.")
    assert text.input_value() == written
    assert window.get_by_label("Start paused").is_checked()
    assert window.get_by_label("Slots").input_value() == "3"
    browser.press("Discard draft")
    assert "name: first sweep" in text.input_value()
    window.get_by_text("Your unsaved draft was restored.").wait_for(state="detached")

    # The form has the focus before the next key, so that no key of a fast writer is lost.
    browser.go("experiments/1", "first sweep")
    focused = window.get_by_role("button", name="Add notes").evaluate(
        """async (button) => {
            button.click();
            for (let turn = 0; turn < 10; turn++) await null;
            return document.activeElement.getAttribute("aria-label");
        }"""
    )
    assert focused == "notes"
    window.keyboard.press("Escape")

    # A single Escape does not discard entered notes.
    form = browser.edit("notes", "better than the last one")
    window.keyboard.press("Escape")
    form.get_by_text("You have unsaved changes.").wait_for()
    assert browser.serious_findings() == []
    window.reload()
    notes = form.get_by_label("notes")
    notes.wait_for()
    assert notes.input_value() == "better than the last one"
    notes.press("Escape")
    window.keyboard.press("Escape")
    form.wait_for(state="detached")
    window.get_by_role("button", name="Add notes").wait_for()


def test_continuation_is_validated_while_edited(laptop: Laptop, browser: Browser) -> None:
    window = browser.window
    browser.go("experiments/2", "second sweep")
    browser.press("Continue")
    dialog = window.get_by_role("dialog")
    changes = dialog.get_by_label("Changed settings")
    changes.fill("searcher.max_length.batches=3")
    dialog.get_by_text("must be at least 5").wait_for()
    window.reload()
    browser.press("Continue")
    dialog.get_by_text("Your unsaved draft was restored.").wait_for()
    assert changes.input_value() == "searcher.max_length.batches=3"
    changes.fill("searcher.max_length.batches=8")
    dialog.get_by_text("These changes are valid.").wait_for()
    assert laptop.json("describe", 2)["state"] == "COMPLETED"
    dialog.get_by_role("button", name="Continue").click()
    dialog.wait_for(state="detached")
    window.locator("h1 .badge", has_text="finished").wait_for()
    wait_until(lambda: laptop.trials(2)[0]["steps_completed"] == 8)


def test_confirmation_has_two_distinct_answers(laptop: Laptop, browser: Browser) -> None:
    window = browser.window
    forked = json.loads(laptop.run("list", "--json").stdout)[-1]["id"]
    browser.go(f"create?experiment={forked}", "New experiment")
    browser.wait_for_text("The configuration is valid.")
    window.get_by_label("Start paused").check()
    browser.press("Create")
    window.get_by_role("dialog").get_by_text("The configuration is unchanged").wait_for()
    browser.press("Create experiment")
    browser.see("first sweep")
    browser.press("Cancel")
    dialog = window.get_by_role("dialog", name="Cancel")
    assert dialog.get_by_role("button").all_inner_texts() == ["Cancel", "Cancel experiment"]
    dialog.get_by_role("button", name="Cancel", exact=True).click()
    dialog.wait_for(state="detached")
    window.locator("h1 .badge", has_text="paused").wait_for()
    browser.press("Cancel")
    browser.press("Cancel experiment")
    window.locator("h1 .badge", has_text="canceled").wait_for()


def test_charts_follow_the_chosen_colours(browser: Browser) -> None:
    window = browser.window
    browser.go("trials/1?group=training", "Trial 1")
    canvas = window.locator(".chart canvas").first
    canvas.wait_for()
    picture = "(it) => it.toDataURL()"
    browser.press_in_menu("colours: auto")
    wait_until(lambda: canvas.evaluate(picture))
    light = canvas.evaluate(picture)
    window.get_by_role("button", name="colours: light").click()
    wait_until(lambda: canvas.evaluate(picture) != light)
    window.get_by_role("button", name="colours: dark").click()
    window.get_by_role("button", name="colours: auto").wait_for()


def test_long_names_do_not_break_the_layout(browser: Browser) -> None:
    window = browser.window
    for path, content in (
        ("experiments", "Clear filters"),
        ("experiments/3", "Best so far"),
        ("experiments/3/trials", "2 trials"),
        ("experiments/3/hyperparameters", "Interaction"),
        ("experiments/3/configuration", "searcher:"),
        ("create?experiment=3", "The configuration is valid."),
    ):
        place = f"{path}?archived=all" if content == "Clear filters" else path
        title: str | re.Pattern[str] = re.compile("^n{100}|^Experiments|^New experiment")
        browser.go(place, title)
        browser.wait_for_text(content)
        # The heading leaves room for the content.
        assert window.get_by_role("heading", level=1).bounding_box()["height"] < 200, path
        for width in (1280, 390):
            window.set_viewport_size({"width": width, "height": 900})
            browser.wait_for_width(width)
            assert browser.serious_findings() == [], (path, width)
        window.set_viewport_size(SIZE)
        browser.wait_for_width(SIZE["width"])


def test_users_without_the_admin_role_see_no_admin_actions(
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
        bobs.see("Home")
        bobs.go("pools/default", "Pools and agents")
        bobs.wait_for_text("Only admins can drain pools")
        bobs.window.get_by_text("budget none").wait_for()
        for name in admins:
            assert bobs.window.get_by_role("button", name=name, exact=True).count() == 0, name
        bobs.go("experiments/1", "first sweep")
        bobs.wait_for_text("Only ada and admins can change it.")
        for name in ("Pause", "Cancel", "Kill", "Archive", "Delete"):
            button = bobs.window.get_by_role("button", name=name, exact=True)
            assert button.count() == 0, name
        for name in ("Edit name", "Edit notes", "Edit labels", "Edit metadata"):
            assert bobs.window.get_by_title(name).count() == 0, name
        bobs.go("trials/1", "Trial 1")
        bobs.wait_for_text("Only ada and admins can change it.")
        for control in (
            bobs.window.get_by_role("button", name="Kill", exact=True),
            bobs.window.get_by_title("Edit metadata"),
        ):
            assert control.count() == 0
        bobs.go("experiments/1/checkpoints", "first sweep")
        bobs.window.get_by_role("button", name="Files").first.wait_for()
        assert bobs.window.get_by_role("button", name="Delete", exact=True).count() == 0
        bobs.go("experiments", "Experiments")
        bobs.window.get_by_label("choose 1", exact=True).check()
        bobs.wait_for_text("1 selected; you can change 0")
        actions = bobs.window.get_by_role("group", name="actions on selected experiments")
        assert actions.get_by_role("button").count() == 0
        bobs.go("templates", "Templates")
        bobs.press("open ours")
        dialog = bobs.window.get_by_role("dialog", name="Template ours")
        dialog.get_by_text("max_restarts: 1").wait_for()
        assert dialog.get_by_role("button", name="Save").count() == 0
        assert bobs.serious_findings() == []
        assert bobs.faults == []
