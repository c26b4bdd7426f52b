"""The window that changes a webhook, in a real browser over a real cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.end_to_end.browser import Browser
from tests.end_to_end.laptop import Laptop, start_cluster
from tests.patience import wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("checked_view")]


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """Yield a cluster with a webhook."""
    with start_cluster(tmp_path_factory.mktemp("webhooks"), 1) as one:
        one.run("webhook", "create", "chat", "https://example.com/a", "--label", "old")
        yield one


@pytest.mark.nightly
def test_window_changes_only_edited_fields(browser: Browser, laptop: Laptop) -> None:
    (before,) = laptop.json("webhook", "list")
    browser.go("webhooks/1", "Webhook chat")
    browser.press("Edit")
    form = browser.window.get_by_role("dialog", name="Edit webhook")
    form.get_by_label("URL").fill("https://example.com/b")
    form.get_by_label("Triggers").fill("CUSTOM:warn\nMETRIC_THRESHOLD_EXCEEDED:loss")
    form.get_by_label("Labels").fill("nightly\ncheap")
    browser.press("Save")
    browser.wait_for_text("METRIC_THRESHOLD_EXCEEDED:loss has no form like")
    form.get_by_label("Triggers").fill("CUSTOM:warn\nMETRIC_THRESHOLD_EXCEEDED:loss<0.5")
    browser.press("Save")
    form.wait_for(state="detached")
    browser.wait_for_text(
        "CUSTOM:warn, METRIC_THRESHOLD_EXCEEDED:loss<0.5 to https://example.com/b"
    )
    browser.check_view(1280)
    (after,) = laptop.json("webhook", "list")
    assert after["labels"] == ["nightly", "cheap"]
    assert [trigger["type"] for trigger in after["triggers"]] == [
        "CUSTOM",
        "METRIC_THRESHOLD_EXCEEDED",
    ]
    assert (after["url"], after["changed_by"]) == ("https://example.com/b", before["user"])
    for name in ("name", "format", "mode", "workspace", "filtered_user", "experiments"):
        assert after[name] == before[name], name


@pytest.mark.nightly
def test_refused_change_stays_open(browser: Browser, laptop: Laptop) -> None:
    browser.go("webhooks/1", "Webhook")
    browser.press("Edit")
    form = browser.window.get_by_role("dialog", name="Edit webhook")
    form.get_by_label("Format").select_option("github")
    form.get_by_label("New token").fill("secret")
    browser.press("Save")
    browser.wait_for_text("must be like https://api.github.com/repos/OWNER/REPOSITORY")
    browser.press("Cancel")
    wait_until(lambda: not form.is_visible())
    (kept,) = laptop.json("webhook", "list")
    assert kept["format"] == "json"
