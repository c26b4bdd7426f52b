"""The views of searches in a real browser over a real cluster: rungs, charts and bills."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.browser import CANARY, Browser, open_window
from tests.end_to_end.laptop import Laptop, start_cluster
from tests.end_to_end.tiny_model import write_model

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("checked_view")]

# A metric whose name would run as a script if not escaped, and is wider than a narrow screen.
METRIC = CANARY.partition("<script>")[0] + "m" * 200
# Rungs at 2 and 4 batches for 4 trials, which all begin at once: one in 2 is promoted.
SEARCHER = {
    "name": "async_halving",
    "metric": METRIC,
    "max_length": {"batches": 4},
    "num_rungs": 2,
    "divisor": 2,
    "max_trials": 4,
    "max_concurrent_trials": 4,
}


# Each run measures its machine, and writes measurements for rank 3 as if from a second machine.
MEASURE = """\
import time
from pathlib import Path
line = {"kind": "rank_metrics", "group": "cpu", "steps_completed": int(time.time()),
        "metrics": {"cpu_util_simple": 12.5}, "time_ms": 1000 * int(time.time())}
Path(os.environ["DETCLOUD_TRIAL_DIR"], "out", "report-3.jsonl").write_text(json.dumps(line) + "\\n")
"""
PROFILE = """\
    context.profiler.on(0.1, 1)
    time.sleep(0.35)
"""
INIT = "with core.init() as context:\n"


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """Yield a cluster with an ended halving search."""
    folder = tmp_path_factory.mktemp("views")
    with start_cluster(folder, 2) as one:
        one.run("create", *write_halving(folder))
        one.run("wait", 1)
        yield one


def write_halving(folder: Path) -> tuple[Path, Path]:
    hyperparameters = {
        "x": {"type": "double", "minval": 0, "maxval": 1},
        "y": {"type": "double", "minval": 0, "maxval": 1},
    }
    config, model = write_model(folder, hyperparameters=hyperparameters, searcher=SEARCHER)
    script = model / "train.py"
    reported = '{"loss": loss}'
    text = script.read_text()
    assert text.count(reported) == 1
    text = text.replace(reported, f"{{{METRIC!r}: loss}}").replace(INIT, MEASURE + INIT + PROFILE)
    script.write_text(text)
    return config, model


def test_rungs_show_each_trial_as_a_link_and_as_a_table(laptop: Laptop, browser: Browser) -> None:
    window = browser.window
    trials: list[dict[str, Any]] = laptop.json("trial", "list", 1)
    best = min(trials, key=lambda one: float(one["hparams"]["x"]))["id"]
    browser.go("experiments/1/rungs", "tiny")
    picture = window.get_by_role("region", name="rungs").first
    picture.get_by_text("4 batches").wait_for()
    # All four trials are in the first rung, and the promoted trials in the second, too.
    lower, upper = (row.split("\t") for row in browser.table_rows("rungs"))
    assert (lower[:3], upper[:2]) == (["1", "2", "4"], ["2", "4"])
    assert lower[-1] == upper[-1] == f"trial {best}"
    dots = picture.get_by_role("link")
    assert dots.count() == 4 + int(upper[2])
    # The keyboard reaches a dot, which names its trial and links to the trial.
    dot = picture.get_by_role("link", name=re.compile(f"^trial {best}: .*, finished$"))
    dot.focus()
    window.keyboard.press("Enter")
    browser.see(f"Trial {best}")


def test_search_is_previewed_before_creation(browser: Browser) -> None:
    window = browser.window
    browser.go("create?experiment=1", "New experiment")
    browser.wait_for_text("The configuration is valid.")
    window.get_by_label("Slots", exact=True).fill("2")
    window.get_by_label("Seconds per unit of length").fill("60")
    browser.press("Preview")
    # Trial i validates at i: of 4 trials, 2 train 4 batches and 2 train 2.
    browser.wait_for_text("async_halving: 4 trials, 12 batches in all.")
    rows = [row.split("\t") for row in browser.table_rows("training by length")]
    assert [row[:3] for row in rows] == [["2", "4", "2"], ["4", "2", "2"]]
    # At least the 12 minutes of 12 batches, divided among 2 slots; trials differ in speed.
    browser.wait_for_text(re.compile(r"min .* on 2 slots, \d+ % used"))
    text = window.get_by_label("Configuration (YAML)")
    text.fill(re.sub("max_trials: 4", "max_trials: 8", text.input_value()))
    browser.wait_for_text("The configuration has changed since this preview.")
    browser.wait_for_text("The configuration is valid.")
    browser.press("Preview")
    browser.wait_for_text("async_halving: 8 trials")
    # A refusal of the cluster is shown alone.
    text.fill(re.sub("max_trials: 8", "max_trials: 30000", text.input_value()))
    browser.wait_for_text("The configuration is valid.")
    browser.press("Preview")
    window.get_by_role("alert").get_by_text("at most 20000").wait_for()
    assert window.get_by_role("table", name="training by length").count() == 0


def test_machines_are_charted_by_the_measuring_rank(browser: Browser) -> None:
    window = browser.window
    browser.go("trials/1/profiler", "Trial 1")
    for title in ("Processors in use (%)", "Free memory (GiB)"):
        chart = window.get_by_role("region", name=title)
        chart.get_by_role("img").locator("canvas").wait_for()
        value = chart.get_by_role("list", name="curves").locator(".value").inner_text()
        assert float(value) >= 0
        # The heading alone has the title: the axis has the unit, and the legend the metric.
        assert chart.inner_text().count(title) == 1
    window.get_by_label("Rank").select_option("3")
    processors = window.get_by_role("region", name="Processors in use (%)")
    processors.get_by_text("12.5").wait_for()
    assert "rank=3" in browser.address()
    assert window.get_by_role("region", name="Free memory (GiB)").count() == 0
    browser.go("trials/1/profiler?rank=9", "Trial 1")
    browser.wait_for_text("Rank 9 has no measurements")


def test_plane_of_two_hyperparameters_links_to_trials(browser: Browser) -> None:
    window = browser.window
    browser.go("experiments/1/hyperparameters", "tiny")
    plane = window.get_by_role("region", name="two hyperparameters")
    plane.get_by_text("With so few trials").wait_for()
    assert plane.get_by_text("some of the 4 trials").count() == 1
    # Choosing the vertical hyperparameter for the horizontal axis swaps the two.
    across = plane.get_by_label("Horizontal axis")
    other = {"x": "y", "y": "x"}[across.input_value()]
    across.select_option(other)
    assert f"x={other}&y={plane.get_by_label('Vertical axis').input_value()}" in browser.address()
    window.get_by_text("As a table").click()
    rows = browser.table_rows(
        f"cells of {other} and {plane.get_by_label('Vertical axis').input_value()}"
    )
    cells = plane.locator(".heat").get_by_role("link")
    # The root of 4 trials is 2: at most 2 by 2 cells, which contain all trials.
    assert cells.count() == len(rows) <= 4
    assert sum(int(row.split("\t")[2]) for row in rows) == 4
    cells.first.focus()
    window.keyboard.press("Enter")
    browser.see(re.compile("Trial"))


def test_charts_of_hyperparameters_compare_a_chosen_length(
    laptop: Laptop, browser: Browser
) -> None:
    window = browser.window
    rungs = laptop.json("experiment", "rungs", 1)["brackets"][0]["rungs"]
    browser.go("experiments/1/hyperparameters?plane=contours", "tiny")
    choice = window.get_by_label("Compare trials at")
    # All four trials have a result at 2 batches, and the promoted trials at 4.
    assert choice.input_value() == "2"
    plane = window.get_by_role("region", name="two hyperparameters").locator(".plane")
    assert plane.get_by_role("link").count() == 4
    window.get_by_role("note").get_by_text("needs 20 trials").wait_for()
    choice.select_option("4")
    best = window.locator(".tools").get_by_text("at 4 batches:")
    best.wait_for()
    assert best.get_by_role("link").inner_text() == f"trial {rungs[1]['trials'][0]['id']}"
    assert "at=4" in browser.address()


def test_range_on_an_axis_keeps_trials_by_mouse_and_by_keyboard(
    laptop: Laptop, browser: Browser
) -> None:
    window = browser.window
    # All four trials have a result in the first rung, which is therefore the default.
    rungs = laptop.json("experiment", "rungs", 1)["brackets"][0]["rungs"]
    metrics = sorted(trial["metric"] for trial in rungs[0]["trials"])
    browser.go("experiments/1/hyperparameters", "tiny")
    together = window.get_by_role("region", name="hyperparameters together")
    together.get_by_text("4 of 4 trials kept").wait_for()
    # From the upper end of the metric's axis to below the middle: the worst trial is in this range.
    axis = together.locator(".brush").last
    axis.scroll_into_view_if_needed()
    box = axis.bounding_box()
    assert box is not None
    middle = box["x"] + box["width"] / 2
    window.mouse.move(middle, box["y"] + 2)
    window.mouse.down()
    window.mouse.move(middle, box["y"] + box["height"] * 0.3, steps=3)
    window.mouse.up()
    together.get_by_role("button", name="Clear limits").wait_for()
    kept = [row.split("\t") for row in browser.table_rows("kept trials")]
    assert 0 < len(kept) < 4
    assert f"{len(kept)} of 4 trials kept" in together.get_by_role("status").inner_text()
    assert max(float(row[1]) for row in kept) == pytest.approx(metrics[-1], rel=1e-3)
    # The range is in the address, and in the fields too.
    window.reload()
    together.get_by_text(f"{len(kept)} of 4 trials kept").wait_for()
    window.get_by_text("Limit an axis").click()
    below = (metrics[0] + metrics[1]) / 2
    together.get_by_label(f"{METRIC} from").fill(str(metrics[0] - 1))
    together.get_by_label(f"{METRIC} to").fill(str(below))
    together.get_by_label(f"{METRIC} to").press("Tab")
    together.get_by_text("1 of 4 trials kept").wait_for()
    together.get_by_label("Colour by").select_option("x")
    assert "colour=x" in browser.address()
    browser.press("Clear limits")
    together.get_by_text("4 of 4 trials kept").wait_for()
    assert "keep=" not in browser.address()


def test_chart_is_saved_as_picture_and_numbers_and_shown_as_table(
    browser: Browser,
) -> None:
    window = browser.window
    browser.go("experiments/1/curves?picture=curves", "tiny")
    window.locator(".uplot canvas").wait_for()
    window.get_by_text("As a table").click()
    rows = browser.table_rows(f"curves of {METRIC}, trials of experiment 1")
    assert len(rows) == 4
    with window.expect_download() as saved:
        window.get_by_role("button", name=f"CSV of {METRIC}").click()
    head, *lines = Path(saved.value.path()).read_text().splitlines()
    assert sorted(head.split(",")) == ["steps", *(f"trial {n}" for n in range(1, 5))]
    # Each trial was validated at 2 batches, and promoted trials at 4.
    assert [line.split(",")[0] for line in lines] == ["2", "4"]
    with window.expect_download() as saved:
        window.get_by_role("button", name=f"PNG of {METRIC}").click()
    assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")
    assert saved.value.suggested_filename.endswith(".png")


def test_long_table_renders_only_visible_rows(laptop: Laptop, browser: Browser) -> None:
    window = browser.window
    with laptop.cluster() as cluster:
        for n in range(130):
            cluster.create_model(f"m{n:03d}")
    browser.go("models?most=240", "Models")
    table = window.get_by_role("table", name="models")
    table.get_by_text("m000").wait_for()
    assert table.get_attribute("aria-rowcount") == "131"
    assert table.get_by_text("m129").count() == 0
    window.get_by_role("region", name="models").focus()
    window.keyboard.press("End")
    table.get_by_text("m129").wait_for()
    assert table.get_by_text("m000").count() == 0
    assert table.get_by_role("row").last.get_attribute("aria-rowindex") == "131"


def test_focused_row_stays_in_the_document(laptop: Laptop, browser: Browser) -> None:
    window = browser.window
    with laptop.cluster() as cluster:
        for n in range(130):
            cluster.create_model(f"f{n:03d}")
    browser.go("models?most=480&name=f", "Models")
    table = window.get_by_role("table", name="models")
    first = table.get_by_role("link", name="f000")
    first.focus()
    focused = "document.activeElement.textContent"
    region = window.get_by_role("region", name="models")
    for edge, row in (
        ("scrollHeight", "f129"),
        ("scrollTop * 0", "f001"),
        ("scrollHeight", "f129"),
    ):
        region.evaluate(f"(box) => {{ box.scrollTop = box.{edge}; }}")
        table.get_by_text(row).wait_for()
        assert window.evaluate(focused) == "f000"
        indexes = [int(r.get_attribute("aria-rowindex")) for r in table.locator("[data-key]").all()]
        assert indexes == sorted(indexes)
    assert indexes[:2] == [2, 52]
    # The focus moves to the next existing row, and then the first row may be removed.
    window.keyboard.press("Tab")
    assert window.evaluate(focused) == "f050"
    first.wait_for(state="detached")


def test_budget_is_set_and_lifted_and_bills_are_shown_by_month(
    laptop: Laptop, browser: Browser
) -> None:
    window = browser.window

    def budget() -> object:
        return laptop.json("resource-pool", "describe", "default")["costs"]["budget"]

    browser.go("pools/default", "Pools and agents")
    browser.wait_for_text(re.compile("budget none"))
    browser.press("Change budget")
    amount = window.get_by_label("Dollars a month")
    amount.fill("250.5")
    browser.press("Save")
    browser.wait_for_text(re.compile(r"budget \$250.50"))
    window.get_by_role("meter", name="spent of the budget").wait_for()
    assert budget() == 250.5
    browser.press("Change budget")
    assert amount.input_value() == "250.5"
    amount.fill("")
    browser.press("Save")
    browser.wait_for_text(re.compile("budget none"))
    assert budget() is None
    bills = window.get_by_role("region", name="bills")
    months = bills.get_by_label("Month (UTC)")
    earlier = months.locator("option").nth(1).inner_text()
    months.select_option(earlier)
    bills.get_by_text(re.compile(r"No costs in [A-Z]\w+ \d{4}\.")).wait_for()
    assert f"month={earlier}" in browser.address()


def test_search_views_are_accessible_in_the_dark_and_on_a_narrow_screen(
    chromium: Any, laptop: Laptop
) -> None:
    narrow = {"width": 390, "height": 800}
    with open_window(chromium, laptop, viewport=narrow, color_scheme="dark") as phone:
        phone.sign_in()
        for path, title, content in (
            ("experiments/1/rungs", "tiny", "As a table"),
            ("experiments/1/hyperparameters", "tiny", "Interaction"),
            ("trials/1/profiler", "Trial 1", "Free memory (GiB)"),
            ("create?experiment=1", "New experiment", "Seconds per unit of length"),
            ("pools/default", "Pools and agents", "Bills"),
        ):
            phone.go(path, title)
            phone.wait_for_text(content)
            assert phone.serious_findings() == [], path
            # Wider parts scroll in separate boxes, not with the page.
            phone.wait_for_width(narrow["width"])
        assert phone.faults == []


def test_command_line_shows_rungs_and_ranks(laptop: Laptop) -> None:
    [bracket] = laptop.json("experiment", "rungs", 1)["brackets"]
    assert [rung["length"] for rung in bracket["rungs"]] == [2, 4]
    assert len(bracket["rungs"][0]["trials"]) == 4
    rows = laptop.run("experiment", "rungs", 1, "--csv", "--trials", 1).stdout.splitlines()
    # A head, and rungs at 2 and at 4 batches.
    assert [row.split(",")[:5] for row in rows[1:]] == [
        ["1", "1", "2", "batches", "4"],
        ["1", "2", "4", "batches", str(bracket["rungs"][1]["reached"])],
    ]
    assert laptop.json("trial", "ranks", 1) == [{"trial_id": 1, "rank": 3}]
    with laptop.cluster() as cluster:
        assert cluster.trial(1).metric_ranks() == [3]
        assert cluster.experiment(1).rungs(0)["brackets"][0]["rungs"][0]["trials"] == []
