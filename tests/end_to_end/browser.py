"""The web page in the system's Chromium, as a single user uses the page."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conftest import require
from tests.emulators.server import missing, require_program
from tests.end_to_end.laptop import ROOT, Laptop
from tests.patience import PATIENCE, wait_until

BUILT = ROOT / "control_plane" / "page" / "built"
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
ANSWER_MS_MAX = 20_000 * PATIENCE
SIZE = {"width": 1280, "height": 900}
# A text that would be a script where text is no text.
CANARY = "<img src=x onerror=\"window.canary='hit'\"><script>window.canary='hit'</script>"
PRIORITY_POOL = "resource_pools: [{pool_name: default, scheduler: {type: priority}}]\n"


class Browser:
    """A browser window and all faults: script errors, policy violations, foreign requests."""

    def __init__(self, window: Any, laptop: Laptop, page: str | None = None) -> None:
        self.window = window
        self.laptop = laptop
        self.url = str(laptop.record()["url"])
        self.page = page or f"{self.url}/ui/"
        self.faults: list[str] = []
        window.set_default_timeout(ANSWER_MS_MAX)
        window.on("pageerror", lambda error: self.faults.append(str(error)))
        window.on("console", self._note_message)
        window.on("request", self._note_request)

    def sign_in(self) -> str:
        """Follow the link of `detcloud open`; return the link."""
        link = self.laptop.run("open", "--no-browser", "--page", self.page).stdout.strip()
        self.window.goto(link)
        self.see("Home")
        return link

    def go(self, path: str, title: str | re.Pattern[str]) -> None:
        """Open a view by an address, and wait for the heading."""
        self.window.goto(f"{self.page}#/{path}")
        self.see(title)

    def address(self) -> str:
        """Return the browser's current address: Playwright's `url` is as old as the last answer."""
        address: str = self.window.evaluate("location.href")
        return address

    def see(self, title: str | re.Pattern[str]) -> None:
        """Wait for the heading of a view, which contains the text."""
        self.window.get_by_role("heading", name=title, level=1).wait_for()

    def press(self, name: str) -> None:
        """Press the last button with this name, which is in the topmost window."""
        self.window.get_by_role("button", name=name, exact=True).last.click()

    def press_in_menu(self, name: str) -> None:
        """Open the user's menu in the header, and press the button with this name."""
        self.window.get_by_role("button", name="menu of").click()
        self.window.get_by_role("button", name=name, exact=True).click()

    def edit(self, name: str, text: str, within: Any = None) -> Any:
        """Enter a text into a field that is edited in place; return the unsaved form.

        `within` is a part of the view, by default the whole view.
        """
        part = within or self.window.locator("main")
        part.get_by_role("button", name=re.compile(f"^(Edit|Add) {name}$")).first.click()
        form = part.get_by_role("form", name=f"edit {name}")
        form.get_by_label(name, exact=True).fill(text)
        return form

    def edit_and_save(self, name: str, text: str, within: Any = None) -> None:
        """Enter a text into a field, save, and wait until the form is gone."""
        form = self.edit(name, text, within)
        form.get_by_role("button", name="Save").click()
        form.wait_for(state="detached")

    def wait_for_text(self, text: str | re.Pattern[str]) -> None:
        """Wait until a visible element contains the text."""
        self.window.get_by_text(text).locator("visible=true").first.wait_for()

    def table_rows(self, label: str) -> list[str]:
        """Return the texts of the rows of a table, without the head."""
        rows = self.window.get_by_role("table", name=label).locator("tbody tr")
        return [str(text) for text in rows.all_inner_texts()]

    def wait_for_width(self, width: int) -> None:
        """Wait until the view is at most `width` pixels wide.

        Wider parts must scroll in separate boxes. Charts are resized a frame after the window.
        """
        wide = "document.documentElement.scrollWidth"
        wait_until(lambda: self.window.evaluate(wide) <= width, what=f"no wider than {width}")

    def serious_findings(self) -> list[str]:
        """Return serious accessibility faults of the view, found by axe."""
        if not self.window.evaluate("typeof axe === 'object'"):
            self.window.evaluate(AXE.read_text())
        results = self.window.evaluate("axe.run({resultTypes: ['violations']})")
        return [
            f"{one['id']}: {[node['html'][:200] for node in one['nodes']]}"
            for one in results["violations"]
            if one["impact"] in ("serious", "critical")
        ]

    def check_view(self, width: int) -> None:
        """Check that no script failed, no user's text ran as code, and the view is accessible."""
        assert self.serious_findings() == []
        self.wait_for_width(width)
        assert self.window.evaluate("window.canary") is None
        assert self.faults == []

    def _note_message(self, message: Any) -> None:
        # Failed requests are logged by the browser too; tests check how the page handles these.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.faults.append(message.text)

    def _note_request(self, request: Any) -> None:
        if not request.url.startswith((f"{self.url}/", self.page, "data:", "blob:")):
            self.faults.append(f"a request to {request.url}")


@contextlib.contextmanager
def start_chromium() -> Iterator[Any]:
    """Yield a browser for `open_window`.

    The test is skipped without Chromium, Playwright or a built page.
    """
    playwright = require("playwright.sync_api")
    remedy = "apt-get install chromium"
    program = require_program("chromium", Path("/usr/bin/chromium"), remedy=remedy)
    if not (BUILT / "index.html").exists():
        missing("page", "the web page is not built; `make page` builds it")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=str(program), args=arguments)
        try:
            yield chromium
        finally:
            chromium.close()


@contextlib.contextmanager
def open_window(
    chromium: Any, laptop: Laptop, page: str | None = None, **options: Any
) -> Iterator[Browser]:
    """Yield a fresh window.

    `page` is the page's address, by default the cluster's. `options` are arguments of Playwright's
    context.
    """
    context = chromium.new_context(**options)
    try:
        yield Browser(context.new_page(), laptop, page)
    finally:
        context.close()
