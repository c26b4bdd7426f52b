"""The web page in the system's Chromium, as one person uses it."""

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
    """One window, and what went wrong in it: errors of scripts, refusals of the page's policy, and
    requests to anybody else.
    """

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
        """Follow the link of `detcloud open`; returns the link."""
        link = self.laptop.run("open", "--no-browser", "--page", self.page).stdout.strip()
        self.window.goto(link)
        self.see("Experiments")
        return link

    def go(self, path: str, title: str | re.Pattern[str]) -> None:
        """Go to a view by its address, and wait until its heading has the text."""
        self.window.goto(f"{self.page}#/{path}")
        self.see(title)

    def address(self) -> str:
        """Ask the browser for its address: Playwright's `url` is as old as its last answer."""
        address: str = self.window.evaluate("location.href")
        return address

    def see(self, title: str | re.Pattern[str]) -> None:
        """Wait for the heading of a view, which has the text in it."""
        self.window.get_by_role("heading", name=title, level=1).wait_for()

    def press(self, name: str) -> None:
        """Press the button with this name, the last one where a window is above another."""
        self.window.get_by_role("button", name=name, exact=True).last.click()

    def edit(self, name: str, text: str, within: Any = None) -> Any:
        """Write a text into what is edited where it stands, `within` a part of the view; returns
        its form, which is not saved.
        """
        part = within or self.window.locator("main")
        part.get_by_role("button", name=re.compile(f"^(Edit|Add) {name}$")).first.click()
        form = part.get_by_role("form", name=f"edit {name}")
        form.get_by_label(name, exact=True).fill(text)
        return form

    def edit_and_save(self, name: str, text: str, within: Any = None) -> None:
        """Write a text into what is edited where it stands, and see it saved."""
        form = self.edit(name, text, within)
        form.get_by_role("button", name="Save").click()
        form.wait_for(state="detached")

    def wait_for_text(self, text: str | re.Pattern[str]) -> None:
        """Wait until something visible has the text."""
        self.window.get_by_text(text).locator("visible=true").first.wait_for()

    def table_rows(self, label: str) -> list[str]:
        """The texts of the rows of a table, without its head."""
        rows = self.window.get_by_role("table", name=label).locator("tbody tr")
        return [str(text) for text in rows.all_inner_texts()]

    def wait_for_width(self, width: int) -> None:
        """Wait until nothing in the view makes it wider than so many pixels: what is wider scrolls
        in a box of its own. Charts take their new size a frame after their window has it.
        """
        wide = "document.documentElement.scrollWidth"
        wait_until(lambda: self.window.evaluate(wide) <= width, what=f"no wider than {width}")

    def serious_findings(self) -> list[str]:
        """The faults of the view for those who cannot see or point, as axe finds them."""
        if not self.window.evaluate("typeof axe === 'object'"):
            self.window.evaluate(AXE.read_text())
        found = self.window.evaluate("axe.run({resultTypes: ['violations']})")
        return [
            f"{one['id']}: {[node['html'][:200] for node in one['nodes']]}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]

    def check_view(self, width: int) -> None:
        """Check that no script failed or came from what others wrote, and that nothing keeps
        anybody from the view.
        """
        assert self.serious_findings() == []
        self.wait_for_width(width)
        assert self.window.evaluate("window.canary") is None
        assert self.faults == []

    def _note_message(self, message: Any) -> None:
        # An answer that is no success is a message of its own; tests look at what is made of it.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.faults.append(message.text)

    def _note_request(self, request: Any) -> None:
        if not request.url.startswith((f"{self.url}/", self.page, "data:", "blob:")):
            self.faults.append(f"a request to {request.url}")


@contextlib.contextmanager
def start_chromium() -> Iterator[Any]:
    """A browser, whose windows `open_window` opens.

    The test is skipped without Chromium, Playwright or a page that was built.
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
    """A window without a past. `page`: where the page is, at the cluster by default. `options` are
    of Playwright's context.
    """
    context = chromium.new_context(**options)
    try:
        yield Browser(context.new_page(), laptop, page)
    finally:
        context.close()
