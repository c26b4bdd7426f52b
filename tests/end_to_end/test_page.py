"""The web page in a real browser over a real cluster: each view and all actions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.browser import CANARY, SIZE, Browser, open_window
from tests.end_to_end.laptop import Laptop, start_cluster
from tests.end_to_end.queue_moves import move_by_drag_and_by_keys
from tests.end_to_end.tiny_model import write_model
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

POOLS = """
resource_pools:
  - pool_name: default
    scheduler: {type: priority, preemption: true}
  - pool_name: other
"""
LONG = {"name": "single", "metric": "loss", "max_length": {"batches": 100_000}}
LOUD_TRAIN = f"print({CANARY!r}, flush=True)\n"

LOUD = re.compile("onerror")
TRIAL = re.compile("Trial 1")
# The heading of each view, and a text that appears when the view has loaded.
VIEWS: dict[str, tuple[str | re.Pattern[str], str]] = {
    "home?of=everyone": ("Home", "Finished lately"),
    "experiments": ("Experiments", "newest first"),
    "experiments/1": (LOUD, "Best so far"),
    "experiments/1/trials": (LOUD, "4 trials"),
    "experiments/1/rungs": (LOUD, "are not compared at rungs"),
    "experiments/1/hyperparameters": (LOUD, "Importance"),
    "experiments/1/checkpoints": (LOUD, "Files"),
    "experiments/1/logs": (LOUD, "stops at 20"),
    "experiments/1/configuration": (LOUD, "searcher:"),
    "experiments/1/history": (LOUD, "submitted by"),
    "trials/1": (TRIAL, "All metrics"),
    "trials/1/logs": (TRIAL, "stops at 20"),
    "trials/1/logs?ranks=0,1&full=1": (TRIAL, "stops at 20"),
    "trials/1/checkpoints": (TRIAL, "Files"),
    "trials/1/environment": (TRIAL, "Environment of the last run"),
    "compare?experiments=1&trials=1,2": ("Compare", "trial 2 of experiment 1"),
    "jobs": ("Job queue", "No jobs in this pool."),
    "pools/default": ("Pools and agents", "alive"),
    "create?experiment=1": ("New experiment", "The configuration is valid."),
    "create?trial=1": ("New experiment", "The configuration is valid."),
    "models": ("Models", "No models yet."),
    "schedules": ("Schedules", "No schedules yet."),
    "reports": ("Reports", "No reports yet."),
    "templates": ("Templates", "No templates."),
    "usage": ("Usage", "slot hours, mean use"),
    "webhooks": ("Webhooks", "No webhooks yet."),
    "tokens": ("Tokens", "No tokens yet."),
}


def write_loud_model(folder: Path) -> tuple[Path, Path]:
    """Write a search with names, labels, values and log lines that would run as scripts if not
    escaped.
    """
    folder.mkdir()
    config, model = write_model(
        folder,
        0.05,
        name=CANARY,
        description=CANARY,
        labels=[CANARY],
        hyperparameters={
            "x": {"type": "double", "minval": 0, "maxval": 1},
            "<b>word</b>": {"type": "categorical", "vals": [CANARY, "plain"]},
        },
        searcher={
            "name": "random",
            "metric": "loss",
            "max_trials": 4,
            "max_length": {"batches": 20},
        },
    )
    script = model / "train.py"
    script.write_text(LOUD_TRAIN + script.read_text())
    return config, model


def submit_long(laptop: Laptop, folder: Path, name: str) -> int:
    """Submit an experiment that trains until a test ends it; return the id."""
    folder.mkdir()
    fields: dict[str, Any] = {"name": name, "searcher": LONG, "hyperparameters": {"x": 0.5}}
    experiment: int = laptop.json("create", *write_model(folder, 0.02, **fields))["id"]
    return experiment


def pixels_of_first_curve(browser: Browser) -> int:
    """Return the number of the chart's pixels in the colour of the first curve, #0072b2."""
    count: int = browser.window.evaluate(
        """() => {
            const canvas = document.querySelector(".chart canvas");
            if (!canvas) return 0;
            const context = canvas.getContext("2d");
            const {data} = context.getImageData(0, 0, canvas.width, canvas.height);
            let count = 0;
            for (let n = 0; n < data.length; n += 4)
                count += data[n] === 0 && data[n + 1] === 0x72 && data[n + 2] === 0xb2;
            return count;
        }"""
    )
    return count


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """Yield a cluster with a slot and a running search."""
    folder = tmp_path_factory.mktemp("page")
    with start_cluster(folder, 1, POOLS) as one:
        one.run("create", *write_loud_model(folder / "loud"))
        yield one


@pytest.fixture(scope="module")
def search_end(laptop: Laptop) -> None:
    """Wait until the search has ended."""
    laptop.run("wait", 1)


def test_sign_in_link_works_once_and_the_session_survives_a_reload(
    chromium: Any, laptop: Laptop
) -> None:
    with open_window(chromium, laptop) as first:
        link = first.sign_in()
        assert "sign-in" not in first.address()
        first.window.reload()
        first.see("Home")
        with_cookie = first.window.evaluate("fetch('/api/v1/whoami').then((one) => one.status)")
        assert with_cookie == 401, "the cookie alone is nothing"
        assert first.window.evaluate("document.cookie") == ""
        first.press_in_menu("Sign out")
        first.see("Sign in to detcloud")
        first.window.goto("about:blank")
        first.window.goto(link)
        first.see("Sign in to detcloud")
        first.wait_for_text("the code is not known, was used or has expired")
        first.window.get_by_label("Token").fill((laptop.home / "token").read_text())
        first.press("Sign in")
        first.see("Home")
        assert first.faults == []


def test_curves_and_logs_are_updated_live(browser: Browser) -> None:
    browser.go("experiments/1", re.compile("onerror"))
    # Each trial validates once, so that the page changes to the optimization history.
    browser.press("Learning curves")
    # Without interaction the page shows the end of each trial.
    legend = browser.window.get_by_role("list", name="curves").get_by_role("listitem")
    legend.nth(0).wait_for()
    legend.nth(3).wait_for()
    wait_until(lambda: pixels_of_first_curve(browser))
    browser.window.get_by_label("Best so far").check()
    browser.window.get_by_label("Log scale").check()
    wait_until(lambda: pixels_of_first_curve(browser))
    assert "best=1" in browser.address()
    assert "scale=log" in browser.address()
    browser.window.locator("h1 .badge", has_text="finished").wait_for()
    # A long unchanging curve is drawn from the first answer.
    browser.go("trials/1?group=training", re.compile("Trial 1"))
    browser.window.get_by_role("list", name="curves").get_by_text("loss").wait_for()
    wait_until(lambda: pixels_of_first_curve(browser))

    browser.go("trials/1/logs", re.compile("Trial 1"))
    log = browser.window.get_by_role("log")
    log.get_by_text("stops at 20").wait_for()
    browser.window.get_by_label("Text").fill("STARTS AT")
    browser.window.get_by_label("Text").press("Enter")
    browser.wait_for_text(re.compile("^1 line, complete"))
    assert "search=STARTS" in browser.address()
    log.get_by_role("link").first.click()
    browser.window.reload()
    browser.window.locator(".log .marked", has_text="starts at 0").wait_for()
    assert browser.faults == []


@pytest.mark.usefixtures("search_end")
def test_every_view_escapes_text_and_is_accessible(browser: Browser) -> None:
    for path, (title, content) in VIEWS.items():
        browser.go(path, title)
        browser.wait_for_text(content)
        assert browser.window.get_by_role("alert").all_inner_texts() == [], path
        assert browser.serious_findings() == [], path
        assert browser.window.evaluate("window.canary") is None, path
    assert browser.faults == []


def test_page_is_accessible_in_the_dark_and_on_a_narrow_screen(
    chromium: Any, laptop: Laptop
) -> None:
    narrow = {"width": 390, "height": 800}
    with open_window(chromium, laptop, viewport=narrow, color_scheme="dark") as phone:
        phone.sign_in()
        for path in ("experiments", "experiments/1", "trials/1/logs", "pools/default"):
            title, content = VIEWS[path]
            phone.go(path, title)
            phone.wait_for_text(content)
            assert phone.serious_findings() == [], path
            # Wider parts scroll in separate boxes, not with the page.
            phone.wait_for_width(narrow["width"])
        assert phone.faults == []


@pytest.mark.usefixtures("search_end")
def test_checkpoint_is_registered_described_and_kept(laptop: Laptop, browser: Browser) -> None:
    window = browser.window
    name = "digits (v2) + more"
    browser.go("experiments", "Experiments")
    window.keyboard.press("g")
    window.keyboard.press("m")
    browser.see("Models")
    browser.press("New model")
    _fill_and_save(browser, "Create", {"Name (cannot be changed": name, "Description": CANARY})
    browser.see(name)
    browser.wait_for_text("No versions yet.")

    browser.go("experiments/1/checkpoints", LOUD)
    browser.press("Register")
    window.get_by_role("combobox", name="Model").select_option(name)
    _fill_and_save(browser, "Register version", {"Comment": "good enough"})
    browser.see(name)
    version = window.get_by_role("region", name="version 1", exact=True)
    version.get_by_text("good enough").wait_for()
    version.get_by_text("completed").wait_for()
    with laptop.cluster() as cluster:
        registered = cluster.model(name).version(1)
        assert registered.data["experiment_id"] == 1

        # A second user changes the version during the edit: no change is lost.
        form = browser.edit("notes", CANARY, version)
        registered.set(notes="theirs", metadata={"<b>accuracy</b>": 0.5})
        form.get_by_role("button", name="Save").click()
        _see_beside(form, "theirs")
        assert browser.serious_findings() == []
        # After a reload the unsaved text appears beside the current value.
        window.reload()
        _see_beside(form, "theirs")
        form.get_by_role("button", name="Use the new value").click()
        version.get_by_text("theirs", exact=True).wait_for()
        form = browser.edit("metadata", "{accuracy: 1}", version)
        form.get_by_role("button", name="Save").click()
        window.get_by_role("alert").get_by_text("not JSON").wait_for()
        form.get_by_label("metadata").fill('{"<b>accuracy</b>": 0.75}')
        form.get_by_label("metadata").press("Control+Enter")
        version.get_by_text("0.75").wait_for()
        browser.edit_and_save("notes", CANARY, version)
        browser.edit_and_save("labels", f"{CANARY}\nbest", version)
        changed = cluster.model(name).version(1).data
    assert (changed["notes"], changed["labels"]) == (CANARY, [CANARY, "best"])
    assert (changed["comment"], changed["metadata"]) == ("good enough", {"<b>accuracy</b>": 0.75})
    _see_files(browser, version)
    window.set_viewport_size({"width": 390, "height": 800})
    browser.wait_for_width(390)
    window.set_viewport_size(SIZE)
    assert window.evaluate("window.canary") is None
    assert browser.faults == []


def _see_beside(form: Any, theirs: str) -> None:
    """Wait until the other user's text appears next to the text that was entered here."""
    part = form.get_by_role("region", name="notes as others changed it")
    part.get_by_text(theirs, exact=True).wait_for()
    assert form.get_by_label("notes", exact=True).input_value() == CANARY


def _see_files(browser: Browser, version: Any) -> None:
    version.get_by_role("button", name="Files").click()
    browser.window.get_by_role("dialog").get_by_role("link", name="state.json").wait_for()
    assert browser.serious_findings() == []
    browser.window.keyboard.press("Escape")


@pytest.mark.usefixtures("search_end")
def test_archived_model_is_hidden_and_deleted_after_confirmation(
    laptop: Laptop, browser: Browser
) -> None:
    window = browser.window
    with laptop.cluster() as cluster:
        old = cluster.create_model("old", description=CANARY, notes=CANARY, labels=[CANARY])
        old.register_version(next(iter(cluster.experiment(1).checkpoints())).uuid, name=CANARY)
    browser.go("models/old", "old")
    window.get_by_role("link", name="version 1").press("Enter")
    # The version appears below the table, with the keyboard focus.
    window.locator("h2:focus", has_text="Version 1: <img").wait_for()
    browser.press("Archive")
    browser.press("Unarchive")
    browser.press("Archive")
    window.locator("h1 .badge", has_text="archived").wait_for()
    for name in ("Edit", "Add"):
        assert window.get_by_role("button", name=name).count() == 0
    assert browser.serious_findings() == []
    browser.go("models?name=old", "Models")
    browser.wait_for_text("No models match these filters.")
    window.get_by_label("Archived").select_option("Only")
    window.get_by_role("link", name="old").wait_for()
    assert browser.serious_findings() == []
    browser.go("models/old/2", "old")
    browser.wait_for_text("there is no version 2 of a model old")
    browser.press("Delete model")
    window.get_by_role("dialog").get_by_text("and its 1 version?").wait_for()
    window.keyboard.press("Escape")
    window.get_by_role("dialog").wait_for(state="detached")
    with laptop.cluster() as cluster:
        assert cluster.model("old").version(1).data["name"] == CANARY
        browser.press("Delete model")
        window.get_by_role("dialog").wait_for()
        browser.press("Delete model")
        browser.see("Models")
        assert "old" not in [model.name for model in cluster.models(archived=None)]
    assert window.evaluate("window.canary") is None
    assert browser.faults == []


def _fill_and_save(browser: Browser, action: str, texts: dict[str, str]) -> None:
    """Fill the fields with these beginnings of labels, press the button and wait until the window
    closes.
    """
    dialog = browser.window.get_by_role("dialog")
    for label, text in texts.items():
        dialog.get_by_label(label).fill(text)
    browser.press(action)
    dialog.wait_for(state="detached")


@pytest.mark.usefixtures("search_end")
def test_job_queue_is_managed_as_in_determineds_page(
    laptop: Laptop, browser: Browser, tmp_path: Path
) -> None:
    first = submit_long(laptop, tmp_path / "a", "first_job")
    second = submit_long(laptop, tmp_path / "b", "second_job")

    def order() -> list[int]:
        with laptop.cluster() as cluster:
            return [job.data["experiment_id"] for job in cluster.jobs("default")]

    browser.go("jobs", "Job queue")
    browser.wait_for_text(f"{second}: second_job")
    assert order() == [first, second]
    browser.press("Move to Top")
    wait_until(lambda: order() == [second, first])
    wait_until(lambda: "second_job" in browser.table_rows("jobs")[0])
    browser.press("Undo")
    wait_until(lambda: order() == [first, second])
    wait_until(lambda: "first_job" in browser.table_rows("jobs")[0])
    move_by_drag_and_by_keys(browser, (first, second), order)
    browser.press(f"Manage Job {first}")
    browser.window.get_by_label("To", exact=True).fill("7")
    browser.press("OK")
    browser.window.get_by_role("dialog").wait_for(state="detached")
    assert {job["experiment_id"]: job["priority"] for job in laptop.json("job", "list")}[first] == 7

    # Irreversible actions are confirmed first; Escape cancels.
    browser.go("experiments?name=_job", "Experiments")
    browser.window.get_by_label("choose all").check()
    browser.press("Kill")
    browser.window.get_by_role("dialog").wait_for()
    browser.window.keyboard.press("Escape")
    browser.window.get_by_role("dialog").wait_for(state="detached")
    assert order() == [first, second]
    browser.press("Kill")
    browser.window.get_by_role("dialog").wait_for()
    browser.press("Kill")
    wait_until(lambda: order() == [])
    assert browser.faults == []


def test_fork_is_validated_while_edited(laptop: Laptop, browser: Browser) -> None:
    browser.go("create?trial=1", "New experiment")
    browser.wait_for_text("The configuration is valid.")
    text = browser.window.get_by_label("Configuration (YAML)")
    good = text.input_value()
    text.fill(good.replace("metric: loss", "metrik: loss"))
    browser.wait_for_text("searcher.metrik")
    assert browser.window.get_by_role("button", name="Create").is_disabled()
    problem = browser.window.get_by_role("listitem").filter(has_text="searcher.metrik")
    problem.get_by_role("button").click()
    assert "metrik" in browser.window.evaluate(
        "(({value, selectionStart: a, selectionEnd: b}) => value.slice(a, b))"
        "(document.activeElement)"
    )
    text.fill(re.sub("^name: .*$", "name: forked", good, flags=re.MULTILINE))
    browser.wait_for_text("The configuration is valid.")
    # The form follows the text, and the text the form.
    search = browser.window.get_by_role("group", name="Search")
    assert search.get_by_label("metric", exact=True).input_value() == "loss"
    search.get_by_label("name", exact=True).fill("random")
    wait_until(lambda: "  name: random" in text.input_value())
    search.get_by_label("name", exact=True).fill("single")
    browser.wait_for_text("The configuration is valid.")
    browser.window.get_by_label("Show defaults").check()
    complete = browser.window.get_by_label("configuration with defaults")
    assert "max_restarts: 5" in complete.inner_text()
    assert "max_restarts" not in text.input_value()
    browser.window.get_by_label("Start paused").check()
    browser.press("Create")
    browser.window.get_by_role("dialog").get_by_text("+ name: forked").wait_for()
    assert browser.serious_findings() == []
    browser.press("Create experiment")
    browser.see(re.compile("^forked"))
    family = browser.window.get_by_role("table", name="family")
    family.get_by_role("row").nth(2).get_by_text("searcher.name: ").wait_for()
    forked = laptop.json("list")[0]
    assert (forked["name"], forked["searcher"], forked["state"]) == ("forked", "single", "PAUSED")
    browser.edit_and_save("labels", "one\ntwo")
    # The keyboard focus returns to the edited field.
    focused = "document.activeElement.title"
    wait_until(lambda: browser.window.evaluate(focused) == "Edit labels")
    browser.edit_and_save("metadata", '{"data": {"version": 3}}')
    browser.wait_for_text('"version": 3')
    browser.edit("name", "renamed").get_by_label("name").press("Enter")
    browser.see("renamed")
    changed = laptop.json("describe", forked["id"])
    assert (changed["name"], changed["labels"]) == ("renamed", ["one", "two"])
    assert changed["metadata"] == {"data": {"version": 3}}
    assert browser.faults == []


def test_unreachable_cluster_is_reported_and_retried(browser: Browser) -> None:
    window = browser.window
    answer = '{"error": {"code": "internal", "message": "internal error", "details": []}}'
    window.route("**/api/v1/experiments*", lambda route: route.fulfill(status=500, body=answer))
    browser.go("templates", "Templates")
    browser.go("experiments", "Experiments")
    browser.wait_for_text("internal error")
    window.unroute("**/api/v1/experiments*")
    browser.press("Try again")
    window.get_by_role("table", name="experiments").wait_for()
    window.context.set_offline(True)
    browser.go("tokens", "Tokens")
    browser.wait_for_text("Reconnecting")
    window.context.set_offline(False)
    # The page retries by itself.
    window.get_by_text("You are").wait_for()
    assert browser.faults == []


def test_page_works_by_keyboard_alone(browser: Browser) -> None:
    keyboard = browser.window.keyboard
    browser.go("experiments", "Experiments")
    keyboard.press("g")
    keyboard.press("p")
    browser.see("Pools and agents")
    keyboard.press("Control+k")
    keyboard.type("trial 1")
    keyboard.press("Enter")
    browser.see(re.compile("Trial 1"))
    assert browser.faults == []


@pytest.mark.usefixtures("search_end")
def test_unused_page_polls_rarely_and_a_hidden_page_never(chromium: Any, laptop: Laptop) -> None:
    with open_window(chromium, laptop) as idle:
        idle.window.clock.install()
        idle.sign_in()
        idle.go("experiments/1", re.compile("onerror"))
        idle.window.wait_for_load_state("networkidle")
        requests: list[str] = []
        idle.window.on("request", lambda request: requests.append(request.url))
        _let_pass(idle, minutes=4)
        # Only the page of a cluster on this machine asks for the health, every 1.7 s.
        health = f"{idle.url}/api/v1/health"
        assert requests.count(health) <= 240 / 1.7
        others = [url for url in requests if url != health]
        # Less than once in 20 s: the experiment every 30 s, the alarms every two minutes.
        assert 1 <= len(others) < 12, others
        polled = {f"{idle.url}/api/v1/{path}" for path in ("experiments/1", "alarms")}
        assert set(others) == polled
        _set_hidden(idle, True)
        _let_pass(idle, minutes=1)
        requests.clear()
        _let_pass(idle, minutes=4)
        assert requests == []
        _set_hidden(idle, False)
        wait_until(lambda: requests or idle.window.wait_for_timeout(50))
        assert idle.faults == []


def _let_pass(browser: Browser, minutes: int) -> None:
    """Advance the page's clock by short steps, so that answers arrive before the page gives up."""
    for _ in range(minutes * 30):
        browser.window.clock.run_for(2_000)
        browser.window.wait_for_timeout(20)


def _set_hidden(browser: Browser, hidden: bool) -> None:
    """Make the page believe that the window is hidden, or visible again."""
    browser.window.evaluate(
        "(hidden) => { Object.defineProperty(document, 'hidden', {value: hidden,"
        " configurable: true}); document.dispatchEvent(new Event('visibilitychange')); }",
        hidden,
    )
