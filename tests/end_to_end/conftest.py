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
    """Yield the home of a cluster that does not exist yet; check that no process remains."""
    one = Laptop(tmp_path / "home")
    yield one
    assert one.end() == [], "something outlived `detcloud down`"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with start_chromium() as started:
        yield started


@pytest.fixture(scope="module")
def browser(chromium: Any, laptop: Laptop) -> Iterator[Browser]:
    """Yield a signed-in window, for modules with a shared `laptop`."""
    with open_window(chromium, laptop, viewport=SIZE, permissions=CLIPBOARD) as opened:
        opened.sign_in()
        yield opened


@pytest.fixture
def checked_view(browser: Browser) -> Iterator[None]:
    """Check after a test that no script failed, no user's text ran, and the view is accessible."""
    yield
    browser.check_view(SIZE["width"])
