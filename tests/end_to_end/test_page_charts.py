"""The charts of the page in a real browser: tips, colours, files, links, timelines and reports."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.conftest import require
from tests.end_to_end.browser import CANARY, SIZE, Browser
from tests.end_to_end.laptop import Laptop, start_cluster
from tests.end_to_end.tiny_model import write_model
from tests.patience import wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("checked_view")]

# A white pixel.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP6DwABBQECz6AuzQAAAABJRU5ErkJggg=="
)
SVG = "{http://www.w3.org/2000/svg}"
HALVING = {
    "name": "async_halving",
    "metric": "loss",
    "max_length": {"batches": 4},
    "max_trials": 4,
    "num_rungs": 2,
    "divisor": 2,
}
RANDOM = {"name": "random", "metric": "loss", "max_length": {"batches": 2}, "max_trials": 5}


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """Yield a cluster with two ended searches. Trials of the second search validate once."""
    folder = tmp_path_factory.mktemp("charts")
    hyperparameters = {
        "x": {"type": "double", "minval": 0, "maxval": 1},
        "lr": {"type": "log", "minval": -4, "maxval": -1, "base": 10},
    }
    with start_cluster(folder, 2) as one:
        for number, searcher in enumerate((HALVING, RANDOM), 1):
            place = folder / str(number)
            place.mkdir()
            model = write_model(place, hyperparameters=hyperparameters, searcher=searcher)
            one.run("create", *model)
            one.run("wait", number)
        yield one


def point_at_first_curve(browser: Browser) -> None:
    """Move the pointer over the chart until it is on a curve."""
    box = browser.window.locator(".u-over").first.bounding_box()
    assert box is not None
    for across in range(5, 100, 5):
        for down in range(2, 100, 3):
            x, y = box["x"] + box["width"] * across / 100, box["y"] + box["height"] * down / 100
            browser.window.mouse.move(x, y)
            if browser.window.locator(".tip").count():
                return
    raise AssertionError("no curve was found")


def test_tip_names_the_trial_and_a_click_opens_it(browser: Browser) -> None:
    window = browser.window
    browser.go("experiments/1/curves?picture=curves", "tiny")
    window.locator(".uplot canvas").wait_for()
    point_at_first_curve(browser)
    tip = window.locator(".tip")
    trial = tip.locator("strong").inner_text()
    assert re.fullmatch(r"trial \d+", trial)
    for fact in ("steps", "loss", "x", "lr"):
        assert tip.locator("dt", has_text=re.compile(f"^{fact}$")).count() == 1
    # The legend shows the same trial.
    assert window.locator(".legend li.lit").inner_text().strip().startswith(trial)
    window.mouse.down()
    window.mouse.up()
    browser.see(trial.replace("trial", "Trial"))


def test_curves_are_coloured_by_a_hyperparameter(browser: Browser) -> None:
    window = browser.window
    browser.go("experiments/1/curves?picture=curves", "tiny")
    window.get_by_label("Colour by").select_option("hp.lr")
    window.locator(".colour-scale", has_text="lr").wait_for()
    assert "colour=hp.lr" in browser.address()
    window.get_by_label("Colour by").select_option("metric")
    window.locator(".colour-scale", has_text="best metric").wait_for()
    window.get_by_label("Median and quantiles").check()
    browser.wait_for_text("Line: median.")


def test_chart_is_saved_as_svg_with_exact_labels_and_has_a_link(browser: Browser) -> None:
    window = browser.window
    browser.go("experiments/1/curves?smooth=0.5", "tiny")
    window.locator(".uplot canvas").wait_for()
    browser.wait_for_text("debiased EMA, weight 0.50, about 2 points")
    name = "loss, EMA 0.50"
    with window.expect_download() as saved:
        window.get_by_role("button", name=f"SVG of {name}").click()
    text = Path(saved.value.path()).read_text()
    picture = ElementTree.fromstring(text)
    texts = [element.text or "" for element in picture.iter(f"{SVG}text")]
    assert texts[0] == f"{name}, trials of experiment 1"
    assert {"trial 1", "trial 2", "trial 3", "trial 4"} <= set(texts)
    # Colours are plain, because a file has no style sheet.
    assert "light-dark" not in text
    assert "var(" not in text
    window.get_by_role("button", name=f"link to {name}").click()
    wait_until(lambda: "chart=" in browser.address())
    window.reload()
    window.locator(".chart.linked").wait_for()


def test_search_of_single_values_starts_with_its_optimization_history(
    laptop: Laptop, browser: Browser
) -> None:
    window = browser.window
    trials: list[dict[str, Any]] = laptop.json("trial", "list", 2)
    trials.sort(key=lambda trial: int(trial["id"]))
    browser.go("experiments/2", "tiny")
    window.get_by_role("img", name="optimization history of experiment 2").wait_for()
    pressed = window.get_by_role("button", name="Overview")
    assert pressed.get_attribute("aria-pressed") == "true"
    window.get_by_role("region", name="importance").wait_for()
    window.get_by_role("button", name="Optimization history").click()
    with window.expect_download() as saved:
        window.get_by_role("button", name="CSV of loss").click()
    _, *rows = Path(saved.value.path()).read_text().splitlines()
    objectives = [float(row.split(",")[3]) for row in rows]
    assert objectives == pytest.approx([trial["best_metric"] for trial in trials])
    # The best so far is the least objective up to each trial.
    best = [min(objectives[: n + 1]) for n in range(len(objectives))]
    assert [float(row.split(",")[4]) for row in rows] == pytest.approx(best)
    for over in ("time", "batches", "cost"):
        window.get_by_label("Over").select_option(over)
        window.wait_for_url(re.compile(f"over={over}"))
    window.get_by_role("button", name="Learning curves").click()
    window.get_by_role("img", name="trials of experiment 2").wait_for()
    with window.expect_download() as saved:
        window.get_by_role("button", name="SVG of loss").click()
    picture = ElementTree.fromstring(Path(saved.value.path()).read_text())
    texts = [element.text or "" for element in picture.iter(f"{SVG}text")]
    # The axis of a single place is around this place, and has no places such as 1e7.
    assert [text for text in texts if re.fullmatch(r"\d+e\d+", text)] == []
    window.get_by_role("button", name="Pareto front").click()
    browser.wait_for_text("On the front:")


def test_keys_lead_through_the_optimization_history(laptop: Laptop, browser: Browser) -> None:
    window = browser.window
    numbers = sorted(int(trial["id"]) for trial in laptop.json("trial", "list", 2))
    browser.go("experiments/2?picture=history", "tiny")
    points = window.get_by_role("slider", name="points of optimization history of experiment 2")
    points.focus()
    for _ in range(2):
        points.press("ArrowRight")
    window.locator(".tip strong", has_text=f"trial {numbers[1]}").wait_for()
    # A screen reader reads the same.
    assert str(points.get_attribute("aria-valuetext")).startswith(f"trial {numbers[1]}, loss ")
    points.press("End")
    wait_until(lambda: points.get_attribute("aria-valuenow") == "5")
    points.press("Enter")
    browser.see(f"Trial {numbers[-1]}")


def test_axis_of_a_logarithmic_search_is_logarithmic(browser: Browser) -> None:
    browser.go("experiments/2/hyperparameters", "tiny")
    together = browser.window.get_by_role("region", name="hyperparameters together")
    together.get_by_text("lr (log)", exact=True).wait_for()
    assert together.get_by_text("x (log)", exact=True).count() == 0


def test_experiments_are_compared_with_all_their_trials(browser: Browser) -> None:
    window = browser.window
    browser.go("compare?experiments=1,2", "Compare")
    window.get_by_role("button", name="All trials").click()
    history = window.get_by_role("img", name="optimization history of what is compared")
    history.wait_for()
    window.get_by_role("img", name="all trials of what is compared: 9 curves").wait_for()
    rows = [row.split("\t") for row in browser.table_rows("experiments")]
    assert [row[4] for row in rows] == ["4", "5"]


def test_timeline_shows_runs_by_trial_and_by_slot(browser: Browser) -> None:
    window = browser.window
    browser.go("experiments/2/timeline", "tiny")
    picture = window.get_by_role("region", name="timeline of experiment 2")
    picture.get_by_role(
        "link", name=re.compile(r"^trial \d+: run 1 on .*: completed")
    ).first.wait_for()
    # Three of five trials wait for one of two slots.
    assert picture.locator("rect.slots").count() >= 3
    with window.expect_download() as saved:
        window.get_by_role("button", name="CSV of Trials over time").click()
    kinds = [line.split(",")[4] for line in Path(saved.value.path()).read_text().splitlines()]
    assert kinds.count("running") == 5
    window.get_by_role("button", name="By slot").click()
    picture.get_by_text("slot 1").wait_for()
    with window.expect_download() as saved:
        window.get_by_role("button", name="PNG of Slots over time").click()
    assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")


def test_rungs_are_shown_as_a_flow(browser: Browser) -> None:
    window = browser.window
    browser.go("experiments/1/rungs", "tiny")
    flow = window.get_by_role("region", name="flow of trials")
    flow.get_by_role("img", name=re.compile("^rung 1, 2 batches: 4 trials")).wait_for()
    with window.expect_download() as saved:
        window.get_by_role("button", name="SVG of Trials from rung to rung").click()
    picture = ElementTree.fromstring(Path(saved.value.path()).read_text())
    assert any("4 trials" in (text.text or "") for text in picture.iter(f"{SVG}text"))


def test_media_of_a_trial_are_shown_by_step(laptop: Laptop, browser: Browser) -> None:
    protos = require("tensorboard.compat.proto.event_pb2")
    writers = require("tensorboard.summary.writer.event_file_writer")
    summaries = require("tensorboard.compat.proto.summary_pb2")
    folder = laptop.home / "checkpoints" / "tensorboard" / "1" / "1"
    writer = writers.EventFileWriter(str(folder))
    metadata = {"plugin_data": {"plugin_name": "text"}}
    for step in (1, 2):
        table = f"| step | note |\n|---|---|\n| {step} | {CANARY} |"
        text = {"tag": "notes", "metadata": metadata, "tensor": {"string_val": [table.encode()]}}
        image = {"tag": "digits", "image": {"encoded_image_string": PNG}}
        summary = summaries.Summary(value=[text, image])
        writer.add_event(protos.Event(wall_time=1.0, step=step, summary=summary))
    writer.close()
    window = browser.window
    browser.go("trials/1/media", "Trial 1")
    image = window.get_by_role("img", name="digits, step 2")
    image.wait_for()
    # The browser has decoded the image.
    wait_until(lambda: image.evaluate("(image) => image.naturalWidth") == 1)
    notes = window.get_by_role("region", name="text notes")
    assert notes.locator("td").all_inner_texts() == ["2", CANARY]
    notes.get_by_role("slider").press("ArrowLeft")
    wait_until(lambda: notes.locator("td").all_inner_texts() == ["1", CANARY])


def test_chart_fills_the_screen_and_returns(browser: Browser) -> None:
    window = browser.window
    browser.go("experiments/1/curves?picture=curves", "tiny")
    canvas = window.locator(".uplot canvas")
    canvas.wait_for()
    before = canvas.bounding_box()["height"]
    window.get_by_role("button", name="full screen of loss").click()
    wait_until(lambda: canvas.bounding_box()["height"] > before)
    window.get_by_role("button", name="leave full screen of loss").click()
    wait_until(lambda: canvas.bounding_box()["height"] == before)


def report_text(*blocks: str) -> str:
    """Return a report with hostile text and a chart for each block."""
    charts = "\n\n".join(f"```chart\n{block}\n```" for block in blocks)
    return f"# Results\n\n{CANARY} and [a link](javascript:alert(1))\n\n{charts}\n"


EVERY_KIND = report_text(
    f"kind: curves\ntitle: {json.dumps(CANARY)}\nexperiments: [1, 2]\nsmooth: 0.5",
    "kind: history\nexperiments: 1",
    "kind: pareto\nexperiments: 2\nagainst: batches",
    "kind: scatter\nexperiments: 2\nhyperparameter: lr",
    "kind: parallel\nexperiments: 2",
    "kind: contour\nexperiments: 2",
    "kind: importance\nexperiments: 2",
    "kind: best\nfilter: id:1",
    'kind: table\nexperiments: [1, 2]\ncolumns: [id, name, "metric:loss"]',
)


def test_report_shows_every_chart_and_is_exported_as_one_file(
    laptop: Laptop, browser: Browser, tmp_path: Path
) -> None:
    (tmp_path / "report.md").write_text(EVERY_KIND)
    laptop.run("report", "create", CANARY, tmp_path / "report.md", "--sharing", "read")
    window = browser.window
    browser.go("reports", "Reports")
    window.get_by_role("link", name=CANARY).click()
    window.get_by_role("heading", name="Results", level=2).wait_for()
    window.get_by_role("img", name="trials of experiments 1, 2").wait_for()
    with window.expect_download() as saved:
        window.get_by_role("button", name="Export as HTML").click()
    file = tmp_path / "export.html"
    file.write_bytes(Path(saved.value.path()).read_bytes())
    text = file.read_text()
    assert "<script" not in text
    assert "javascript:" not in text
    check_exported_file(browser, file)
    # The view is as before, and all its parts are accessible.
    assert window.locator(".report-chart").count() == 9
    assert window.locator(".failure, .problems").count() == 0


def check_exported_file(browser: Browser, file: Path) -> None:
    """Open an export from the disk, and check the pictures, the tables and the policy."""
    window = browser.window.context.new_page()
    faults: list[str] = []
    window.on("console", lambda message: faults.append(message.text))
    window.on("pageerror", lambda error: faults.append(str(error)))
    window.goto(file.as_uri())
    assert window.title() == CANARY
    assert window.locator("h1").inner_text() == CANARY
    pictures = window.locator("img")
    # Importance, the best trial and the table are no pictures.
    assert pictures.count() == 6
    wait_until(lambda: all(image.evaluate("(one) => one.naturalWidth") for image in pictures.all()))
    # So few trials have no importance.
    assert window.get_by_text("importance", exact=False).first.is_visible()
    assert window.locator("table").count() == 1
    assert window.locator("table tbody tr").count() == 2
    assert window.locator("dt", has_text="Best loss").count() == 1
    assert window.locator("script, style + style, iframe, [onerror]").count() == 0
    assert window.evaluate("window.canary") is None
    assert faults == []
    window.close()


def test_chart_is_added_to_a_report_with_its_settings(laptop: Laptop, browser: Browser) -> None:
    window = browser.window
    browser.go("experiments/1/curves?smooth=0.5&colour=hp.lr", "tiny")
    window.get_by_role("button", name="add loss, EMA 0.50 to a report").click()
    window.get_by_role("dialog").get_by_label("Report").select_option("a new report")
    window.get_by_label("Title").fill("Rates")
    browser.press("Add")
    window.get_by_role("dialog").get_by_role("link", name="Rates").click()
    browser.see("Rates")
    window.locator(".colour-scale", has_text="lr").wait_for()
    number = int(browser.address().rpartition("/")[2])
    report = laptop.json("report", "show", number)
    block = "kind: curves\nexperiments: 1\nsmooth: 0.5\ncolour: hp.lr"
    assert report["text"] == f"```chart\n{block}\n```\n"


def test_report_is_written_beside_its_preview(laptop: Laptop, browser: Browser) -> None:
    window = browser.window
    browser.go("reports/new", "New report")
    window.get_by_label("Title").fill("Draft")
    text = window.get_by_label("text of the report")
    text.fill("```chart\nkind: history\nexperiment: 1\n```")
    preview = window.get_by_role("region", name="preview")
    problem = preview.get_by_role("group", name="block with errors")
    problem.get_by_text("Line 3: a chart of the kind history has no option `experiment`").wait_for()
    # The errors are part of a view without serious faults of accessibility.
    assert browser.serious_findings() == []
    text.fill("Then\n\n```chart\nkind: history # all\nexperiments: 1\n```")
    preview.get_by_role("img", name="optimization history of experiment 1").wait_for()
    preview.get_by_role("button", name="settings of Optimization history").click()
    preview.get_by_label("Over").select_option("batches")
    changed = "Then\n\n```chart\nkind: history # all\nexperiments: 1\nover: batches\n```"
    wait_until(lambda: text.input_value() == changed)
    window.set_viewport_size({"width": 390, "height": 800})
    browser.wait_for_width(390)
    window.set_viewport_size(SIZE)
    # A reload keeps the edited text.
    window.reload()
    browser.wait_for_text("Your unsaved draft was restored.")
    browser.press("Save")
    window.get_by_role("link", name="Edit").wait_for()
    number = int(browser.address().rpartition("/")[2])
    assert laptop.json("report", "show", number)["text"] == changed


def test_change_by_another_user_is_shown_before_it_is_replaced(
    laptop: Laptop, browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "text"
    path.write_text("first")
    number = int(laptop.run("report", "create", "Shared", path).stdout.split()[1])
    window = browser.window
    browser.go(f"reports/{number}/edit", "Shared")
    window.get_by_label("text of the report").fill("mine")
    path.write_text("theirs")
    laptop.run("report", "edit", number, path, "--revision", 1)
    browser.press("Save")
    browser.wait_for_text("has changed the report meanwhile.")
    theirs = window.get_by_role("region", name="report as others changed it")
    assert theirs.locator("pre").inner_text() == "theirs"
    browser.press("Save")
    window.get_by_role("link", name="Edit").wait_for()
    report = laptop.json("report", "show", number)
    assert (report["text"], report["revision"]) == ("mine", 3)
