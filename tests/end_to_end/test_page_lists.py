"""Lists of experiments, and the code of an experiment, in a real browser over a real cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detcloud.client import Client
from tests.end_to_end.browser import CANARY, SIZE, Browser
from tests.end_to_end.laptop import Laptop, start_cluster
from tests.end_to_end.tiny_model import write_model
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

# A name with a "/": a folder, and a file inside.
LOUD_FILE = f"{CANARY}.py"
LOUD_TEXT = f"{CANARY}\n\n    # third\n"
LOUD = re.compile("onerror")
# A name of a project has no "/".
LOUD_PROJECT = CANARY.partition("<script>")[0]


def write_loud_model(folder: Path) -> tuple[Path, Path]:
    """Write a model with names and texts that would run as scripts if not escaped."""
    config, model = write_model(folder, name=CANARY)
    loud = model / LOUD_FILE
    loud.parent.mkdir()
    loud.write_text(LOUD_TEXT)
    (model / "weights.bin").write_bytes(b"\0" * 10)
    (model / "long.py").write_text("".join(f"x = {n}\n" for n in range(1, 5_001)))
    return config, model


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """Yield a cluster with an ended search."""
    folder = tmp_path_factory.mktemp("lists")
    with start_cluster(folder, 1, LOGNAME="ada") as one:
        one.run("create", *write_loud_model(folder), "--follow")
        for name, project in (("beta", LOUD_PROJECT), ("alpha", LOUD_PROJECT), ("gamma", "Digits")):
            (folder / name).mkdir()
            fields: dict[str, Any] = {"name": name, "workspace": "Vision", "project": project}
            one.run("create", *write_model(folder / name, **fields), "--paused")
        yield one


def test_code_is_found_by_keyboard_read_copied_and_linked(browser: Browser) -> None:
    window = browser.window
    browser.go("experiments/1/code", LOUD)
    folder, name = LOUD_FILE.rsplit("/", 1)
    tree = window.get_by_role("navigation", name="files of the model code")
    assert tree.get_by_role("link", name=name).count() == 0
    tree.get_by_text(folder).press("Enter")
    tree.get_by_role("link", name=name).press("Enter")
    lines = window.get_by_role("region", name=f"lines of {LOUD_FILE}")
    lines.get_by_text(CANARY).wait_for()
    assert browser.serious_findings() == []
    assert window.evaluate("window.canary") is None
    browser.press("Copy")
    browser.wait_for_text(re.compile("^Copied$"))
    assert window.evaluate("navigator.clipboard.readText()") == LOUD_TEXT
    # Selecting by hand also copies the code without line numbers.
    chosen = "(it) => { getSelection().selectAllChildren(it); return getSelection().toString() }"
    assert lines.evaluate(chosen) == LOUD_TEXT.rstrip("\n")
    with window.expect_download() as started:
        browser.press("Download")
    assert Path(started.value.path()).read_text() == LOUD_TEXT
    lines.get_by_role("link", name="line 3").click()
    window.reload()
    window.locator(".marked", has_text="# third").wait_for()


def test_long_code_is_shown_in_parts_and_binary_files_are_not_shown(browser: Browser) -> None:
    window = browser.window
    browser.go("experiments/1/code", LOUD)
    tree = window.get_by_role("navigation", name="files of the model code")
    # A file of 5,000 lines is shown 2,000 at a time.
    window.get_by_label("Path contains").fill("LONG")
    window.get_by_label("Path contains").press("Enter")
    tree.get_by_role("link", name="long.py").click()
    browser.wait_for_text("lines 1 to 2000 of 5000")
    window.get_by_role("link", name="later").click()
    browser.wait_for_text("lines 2001 to 4000 of 5000")
    window.get_by_label("Line", exact=True).fill("4321")
    window.get_by_label("Line", exact=True).press("Enter")
    marked = window.locator(".marked", has_text="x = 4321")
    marked.wait_for()
    wait_until(lambda: marked.bounding_box()["y"] < window.viewport_size["height"])
    assert "path=long.py" in browser.address()
    tree.get_by_text("1 of 4 files").wait_for()
    browser.go("experiments/1/code?path=weights.bin", LOUD)
    browser.wait_for_text("This file is not text.")
    assert browser.serious_findings() == []
    window.set_viewport_size({"width": 390, "height": 800})
    browser.wait_for_width(390)
    window.set_viewport_size(SIZE)
    assert browser.faults == []


def names_in(browser: Browser) -> list[str]:
    """Return the names in the list of experiments, in order."""
    cells = browser.window.get_by_role("table", name="experiments").locator("tbody td:nth-child(3)")
    return [str(text) for text in cells.all_inner_texts()]


def test_experiments_are_sorted_by_the_cluster(laptop: Laptop, browser: Browser) -> None:
    window = browser.window
    browser.go("experiments", "Experiments")
    browser.wait_for_text("4 shown, newest first")
    assert names_in(browser) == ["gamma", "alpha", "beta", CANARY]
    browser.press("Name")
    # "<" is before all letters.
    wait_until(lambda: names_in(browser) == [CANARY, "alpha", "beta", "gamma"])
    browser.press("Name ↑")
    wait_until(lambda: names_in(browser) == ["gamma", "beta", "alpha", CANARY])
    browser.wait_for_text("4 shown, by name, descending")
    window.reload()
    wait_until(lambda: names_in(browser) == ["gamma", "beta", "alpha", CANARY])
    assert window.locator("th[aria-sort=descending]").all_inner_texts() == ["Name\u00a0↓"]
    browser.press("User")
    browser.wait_for_text("4 shown, by user, ascending")
    browser.press("Cost")
    browser.wait_for_text("4 shown, by cost, ascending")
    states = window.get_by_role("group", name="State")
    states.get_by_role("button", name="finished").click()
    wait_until(lambda: names_in(browser) == [CANARY])
    states.get_by_role("button", name="paused").click()
    wait_until(lambda: len(names_in(browser)) == 4)
    states.get_by_role("button", name="finished").click()
    wait_until(lambda: sorted(names_in(browser)) == ["alpha", "beta", "gamma"])
    assert states.get_by_role("button", pressed=True).all_inner_texts() == ["paused"]
    assert window.get_by_role("searchbox", name="Filter").input_value() == "state:paused"
    browser.press("Clear filters")
    browser.press("Progress")
    # Only the first experiment has begun, and so is last.
    wait_until(lambda: names_in(browser)[-1:] == [CANARY])
    with laptop.cluster() as cluster:
        cluster.experiment(2).set_metadata({"data": {"version": 3}})
    window.get_by_role("searchbox", name="Filter").fill("metadata:data.version=3")
    window.get_by_role("searchbox", name="Filter").press("Enter")
    wait_until(lambda: names_in(browser) == ["beta"])
    assert browser.serious_findings() == []
    assert browser.faults == []


def test_filter_columns_and_views_of_the_table(laptop: Laptop, browser: Browser) -> None:
    window = browser.window
    # The view of an earlier test would keep its focus in the box.
    browser.go("", "Home")
    browser.go("experiments", "Experiments")
    browser.wait_for_text("4 shown, newest first")
    box = window.get_by_role("searchbox", name="Filter")
    window.keyboard.press("/")
    window.keyboard.type("-state:paused metric:loss<")
    # An unfinished term is not sent.
    window.wait_for_timeout(600)
    assert len(names_in(browser)) == 4
    window.keyboard.type("low")
    window.keyboard.press("Enter")
    browser.wait_for_text("filter: character 27:")
    assert box.get_attribute("aria-invalid") == "true"
    assert window.locator(".chip.bad").all_inner_texts() == ["metric:loss<low ×"]
    assert browser.serious_findings() == []
    window.get_by_role("button", name="remove metric:loss<low").click()
    wait_until(lambda: names_in(browser) == [CANARY])
    assert box.input_value() == "-state:paused"
    # The best metric has its name and its direction.
    window.get_by_text("smaller is better").first.wait_for(state="attached")

    window.get_by_text("Columns", exact=True).click()
    field = window.get_by_label("Metric or hyperparameter")
    window.locator("option[value='metric:loss']").wait_for(state="attached")
    field.fill("metric:loss")
    field.press("Enter")
    browser.press("loss")
    browser.wait_for_text("1 shown, by loss, ascending")
    window.get_by_label("Group by project").check()
    window.locator("tr.group", has_text="(1)").wait_for()
    assert browser.serious_findings() == []

    window.get_by_text("Views", exact=True).click()
    browser.press("Save view")
    dialog = window.get_by_role("dialog", name="Save view")
    dialog.get_by_label("Name").fill("ended runs")
    dialog.get_by_role("combobox", name="For").select_option("a workspace")
    dialog.get_by_role("textbox", name="Workspace").fill("Uncategorized")
    assert browser.serious_findings() == []
    dialog.get_by_label("Name").press("Enter")
    dialog.wait_for(state="detached")
    window.get_by_text("View: ended runs").wait_for()
    browser.press("Clear filters")
    wait_until(lambda: len(names_in(browser)) >= 4)
    browser.press("ended runs")
    # The cluster narrows the views of a workspace.
    wait_until(lambda: box.input_value() == "workspace:Uncategorized -state:paused")
    window.get_by_text("workspace Uncategorized", exact=True).wait_for()
    listed = laptop.json("list", "--view", "ended runs")
    wait_until(lambda: names_in(browser) == [item["name"] for item in listed])
    assert browser.faults == []


def test_labels_and_the_archive_are_undone(laptop: Laptop, browser: Browser) -> None:
    window = browser.window
    browser.go("experiments?filter=state:finished", "Experiments")
    window.get_by_label("choose all").check()
    actions = window.get_by_role("group", name="actions on selected experiments")
    # Only the actions of an ended experiment are shown.
    assert actions.get_by_role("button").all_inner_texts() == ["Label", "Move", "Archive", "Delete"]
    browser.press("Label")
    window.get_by_label("Add labels").fill("kept, fast")
    window.get_by_label("Add labels").press("Enter")
    window.get_by_role("link", name="fast").wait_for()
    assert browser.serious_findings() == []
    browser.press("Undo")
    window.get_by_role("link", name="fast").wait_for(state="detached")
    window.get_by_label("choose all").check()
    browser.press("Archive")
    browser.wait_for_text("No experiments match these filters.")
    browser.press("Undo")
    wait_until(lambda: names_in(browser) == [CANARY])
    assert [item["labels"] for item in laptop.json("list", "--filter", "state:finished")] == [[]]
    assert browser.faults == []


def test_experiments_of_a_project_are_found_and_moved(laptop: Laptop, browser: Browser) -> None:
    window = browser.window
    held: list[Any] = []
    browser.go("jobs", "Job queue")
    window.keyboard.press("g")
    window.keyboard.press("r")
    browser.see("Projects")
    window.get_by_role("table", name="projects").wait_for()
    # Sorted by name, where "<" precedes all letters: with the numbers of all, unended and archived
    # experiments.
    assert [row.split("\t") for row in browser.table_rows("projects")] == [
        ["Uncategorized", "Uncategorized", "1", "0", "0"],
        ["Vision", LOUD_PROJECT, "2", "2", "0"],
        ["Vision", "Digits", "1", "1", "0"],
    ]
    assert browser.serious_findings() == []
    window.get_by_role("link", name=LOUD_PROJECT).click()
    browser.see("Experiments")
    wait_until(lambda: names_in(browser) == ["alpha", "beta"])

    window.get_by_label("choose all").check()
    browser.press("Move")
    dialog = window.get_by_role("dialog", name="Move 2 experiments")
    assert dialog.get_by_label("To workspace").input_value() == "Vision"
    # The field suggests the projects of the workspace, and keeps text that was typed before the
    # suggestions arrived.
    window.route("**/api/v1/projects?*", lambda route: held.append(route))
    dialog.get_by_label("To project").fill("a/b")
    wait_until(lambda: held or window.wait_for_timeout(50))
    held.pop().continue_()
    dialog.locator("option[value=Digits]").wait_for(state="attached")
    assert dialog.get_by_label("To project").input_value() == "a/b"
    window.unroute("**/api/v1/projects?*")
    dialog.get_by_label("To project").press("Enter")
    assert dialog.get_by_label("To project").evaluate("(it) => it.validity.patternMismatch")
    dialog.get_by_label("To project").fill("Digits")
    dialog.get_by_label("To project").press("Enter")
    dialog.wait_for(state="detached")
    browser.wait_for_text("No experiments match these filters.")
    moved = {item["name"]: (item["workspace"], item["project"]) for item in laptop.json("list")}
    assert [moved[name] for name in ("alpha", "beta")] == [("Vision", "Digits")] * 2

    window.get_by_role("searchbox", name="Filter").fill("project:Digits")
    window.get_by_role("searchbox", name="Filter").press("Enter")
    wait_until(lambda: names_in(browser) == ["gamma", "alpha", "beta"])
    window.get_by_role("link", name="beta").click()
    browser.see("beta")
    window.get_by_role("link", name="Vision / Digits").click()
    browser.see("Experiments")
    wait_until(lambda: names_in(browser) == ["gamma", "alpha", "beta"])
    assert window.evaluate("window.canary") is None
    assert browser.faults == []


def test_typed_text_is_kept_and_partial_names_filter_at_once(
    laptop: Laptop, browser: Browser
) -> None:
    window = browser.window
    with laptop.cluster() as cluster:
        for experiment in cluster.experiments(workspace="Vision"):
            experiment.move("Vision", "Digits")
    browser.go("experiments?project=Digits", "Experiments")
    wait_until(lambda: names_in(browser) == ["gamma", "alpha", "beta"])
    # The text ends with an unfinished term and is not submitted: updates of the list keep it.
    box = window.get_by_role("searchbox", name="Filter")
    assert box.input_value() == "project:Digits"
    box.fill("project:Digits user:")
    laptop.run("experiment", "set", "name", 4, "delta")
    window.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    wait_until(lambda: names_in(browser) == ["delta", "alpha", "beta"])
    assert box.input_value() == "project:Digits user:"
    box.press_sequentially("ada del")
    wait_until(lambda: names_in(browser) == ["delta"])
    assert "filter=project%3ADigits+user%3Aada+del" in browser.address()
    browser.press("Clear filters")
    wait_until(lambda: len(names_in(browser)) == 4)
    assert browser.faults == []


def test_checkpoint_is_pinned_and_an_admin_removes_all_pins_after_confirmation(
    laptop: Laptop, browser: Browser
) -> None:
    window = browser.window
    with laptop.cluster() as cluster:
        checkpoint = next(iter(cluster.experiment(1).checkpoints()))
        token = cluster.create_token("bob", role="user").token
    row = window.get_by_role("row").filter(has_text=checkpoint.uuid[:8])
    browser.go("experiments/1/checkpoints", LOUD)
    row.get_by_role("button", name="Pin", exact=True).click()
    row.get_by_role("cell", name="ada", exact=True).wait_for()
    assert row.get_by_role("button", name="Delete").is_disabled()
    row.get_by_role("button", name="Unpin").click()
    row.get_by_role("button", name="Pin", exact=True).wait_for()
    assert row.get_by_role("button", name="Delete").is_enabled()

    with Client(str(laptop.record()["url"]), token) as bobs:
        bobs.checkpoint(checkpoint.uuid).pin()
    window.reload()
    row.get_by_role("button", name="Pin", exact=True).click()
    row.get_by_role("cell", name="bob, ada", exact=True).wait_for()
    row.get_by_role("button", name="Unpin").click()
    window.get_by_role("dialog").get_by_text("This also removes the pins of bob.").wait_for()
    assert browser.serious_findings() == []
    browser.press("Unpin")
    row.get_by_role("button", name="Pin", exact=True).wait_for()
    with laptop.cluster() as cluster:
        assert not cluster.checkpoint(checkpoint.uuid).data["pinned"]
    assert browser.faults == []


def test_log_is_saved_completely_or_as_filtered(browser: Browser) -> None:
    window = browser.window
    browser.go("trials/1/logs", "Trial 1")
    window.get_by_role("log").wait_for()
    with window.expect_download() as started:
        browser.press("Download")
    whole = Path(started.value.path()).read_text()
    assert started.value.suggested_filename == "trial-1.log"
    assert "starts at 0" in whole
    assert "stops at" in whole
    window.get_by_label("Text").fill("STARTS AT")
    window.get_by_label("Text").press("Enter")
    browser.wait_for_text(re.compile("^1 line, complete"))
    with window.expect_download() as started:
        browser.press("Download these lines")
    assert Path(started.value.path()).read_text() == "starts at 0\n"
    assert browser.serious_findings() == []
    browser.press("Clear filters")
    assert browser.faults == []


def test_damaged_checkpoint_is_shown_and_restored_after_confirmation(
    laptop: Laptop, browser: Browser, tmp_path: Path
) -> None:
    window = browser.window
    single = {"name": "single", "metric": "loss", "max_length": {"batches": 10}}
    config, model = write_model(tmp_path, name="once", searcher=single, hyperparameters={"x": 1.0})
    number = laptop.json("create", config, model)["id"]
    laptop.run("wait", number)
    with laptop.cluster() as cluster:
        checkpoint = next(iter(cluster.experiment(number).checkpoints()))
    browser.go(f"experiments/{number}/checkpoints", "once")
    row = window.get_by_role("row").filter(has_text=checkpoint.uuid[:8])
    row.get_by_role("button", name="Files").click()
    dialog = window.get_by_role("dialog")
    dialog.get_by_text(checkpoint.uuid, exact=True).wait_for()
    dialog.get_by_text("Metadata", exact=True).wait_for()
    # The metadata that the model stored with its files, as JSON.
    dialog.get_by_text('"steps_completed": 10').wait_for()
    assert browser.serious_findings() == []
    window.keyboard.press("Escape")
    # A byte of the file is missing when a run starts from the checkpoint.
    file = checkpoint_file(laptop, checkpoint.uuid, "state.json")
    right = file.read_bytes()
    file.write_bytes(right[:-1])
    laptop.run("experiment", "continue", number, "--config", "searcher.max_length.batches=12")
    laptop.run("wait", number)
    window.reload()
    row.get_by_text("damaged", exact=True).wait_for()
    row.get_by_role("button", name="Not damaged").click()
    dialog.get_by_text("state.json").wait_for()
    assert browser.serious_findings() == []
    # The cluster compares the sizes.
    browser.press("Not damaged")
    dialog.get_by_role("alert").wait_for()
    file.write_bytes(right)
    browser.press("Not damaged")
    dialog.wait_for(state="detached")
    row.get_by_text("completed").wait_for()
    assert laptop.json("checkpoint", "describe", checkpoint.uuid)["damage"] == ""
    assert browser.faults == []


def checkpoint_file(laptop: Laptop, uuid: str, name: str) -> Path:
    """Return the path of a checkpoint's file on this machine."""
    with laptop.cluster() as cluster:
        place = cluster.get(f"/checkpoints/{uuid}/storage")
    return Path(place["storage"]["path"], place["path"], name)


def test_concurrent_change_of_a_template_is_not_lost(
    laptop: Laptop, browser: Browser, tmp_path: Path
) -> None:
    window = browser.window
    browser.go("templates", "Templates")
    browser.press("New template")
    dialog = window.get_by_role("dialog")
    dialog.get_by_label("Name").fill("base")
    text = dialog.get_by_label("Configuration (YAML)")
    text.fill("max_restarts: 1\n")
    # A reload does not lose entered text.
    window.reload()
    browser.press("New template")
    dialog.get_by_text("Your unsaved draft was restored.").wait_for()
    assert text.input_value() == "max_restarts: 1\n"
    dialog.get_by_label("Name").fill("base")
    dialog.get_by_role("button", name="Save").click()
    dialog.wait_for(state="detached")
    # A new template with an existing name does not silently replace the template.
    browser.press("New template")
    dialog.get_by_label("Name").fill("base")
    text.fill("max_restarts: 2\n")
    dialog.get_by_role("button", name="Save").click()
    dialog.get_by_role("alert").get_by_text("Another user has changed template base").wait_for()
    theirs = dialog.get_by_role("region", name="template as others changed it")
    theirs.get_by_text("max_restarts: 1").wait_for()
    assert browser.serious_findings() == []
    theirs.get_by_role("button", name="Use the new value").click()
    dialog.wait_for(state="detached")

    browser.press("open base")
    changed = tmp_path / "base.yaml"
    changed.write_text(f"# {CANARY}\nmax_restarts: 2\n")
    laptop.run("template", "set", "base", changed)
    text.fill("max_restarts: 3\n")
    dialog.get_by_role("button", name="Save").click()
    theirs.get_by_text(CANARY).wait_for()
    dialog.get_by_role("button", name="Save").click()
    dialog.wait_for(state="detached")
    assert laptop.json("template", "describe", "base")["config"] == "max_restarts: 3\n"
    browser.press("Delete")
    window.get_by_role("dialog").get_by_role("button", name="Delete").click()
    browser.wait_for_text("No templates.")


def test_draft_of_a_model_survives_a_reload(browser: Browser) -> None:
    window = browser.window
    browser.go("models", "Models")
    browser.press("New model")
    dialog = window.get_by_role("dialog")
    dialog.get_by_label("Name (cannot be changed").fill("digits")
    dialog.get_by_label("Metadata").fill("{not yet JSON")
    window.keyboard.press("Escape")
    dialog.get_by_text("You have unsaved changes.").wait_for()
    window.reload()
    browser.press("New model")
    dialog.get_by_text("Your unsaved draft was restored.").wait_for()
    assert dialog.get_by_label("Name (cannot be changed").input_value() == "digits"
    assert dialog.get_by_label("Metadata").input_value() == "{not yet JSON"
    browser.press("Discard draft")
    assert dialog.get_by_label("Name (cannot be changed").input_value() == ""
    dialog.get_by_role("button", name="Cancel").click()
    dialog.wait_for(state="detached")
