from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.browser import SIZE, Browser, open_window, start_chromium
from tests.end_to_end.laptop import Laptop

CLIPBOARD = ["clipboard-read", "clipboard-write"]


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    """A cluster's home that does not exist yet; whatever ran for it is gone after the test."""
    one = Laptop(tmp_path / "home")
    yield one
    assert one.end() == [], "something outlived `detcloud down`"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with start_chromium() as started:
        yield started


@pytest.fixture(scope="module")
def browser(chromium: Any, laptop: Laptop) -> Iterator[Browser]:
    """A window that is signed in, for a module whose `laptop` is one for all of its tests."""
    with open_window(chromium, laptop, viewport=SIZE, permissions=CLIPBOARD) as opened:
        opened.sign_in()
        yield opened


@pytest.fixture
def checked_view(browser: Browser) -> Iterator[None]:
    """At the end of a test no script failed, nothing that others wrote became one, and nothing
    keeps anybody from the view.
    """
    yield
    browser.check_view(SIZE["width"])
