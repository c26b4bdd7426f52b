"""A window of Chromium with the web page, and measurements of the window."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

CHROMIUM = Path("/usr/bin/chromium")
WIDTH, HEIGHT = 1280, 900
WAIT_MS_MAX = 60_000
# Time after the first content, in which further work of the view and the next poll are measured.
SETTLE_MS = 2_500
# The thread is free when no long task begins for this time.
FREE_MS = 500
# Records long tasks and the first change of the page. Runs before all scripts of the page.
WATCH = """
window.watched = {tasks: [], rows: null};
new PerformanceObserver((list) => list.getEntries().forEach(({startTime, duration}) =>
  window.watched.tasks.push([startTime, duration]))).observe({type: 'longtask', buffered: true});
new MutationObserver(() => {
  if (window.watched.rows === null && document.querySelector('table tbody tr'))
    window.watched.rows = performance.now();
}).observe(document, {childList: true, subtree: true});
"""
COUNT_FRAMES = """
(seconds) => new Promise((resolve) => {
  const times = [];
  function note(now) {
    times.push(now);
    if (now - times[0] < 1000 * seconds) requestAnimationFrame(note); else resolve(times);
  }
  requestAnimationFrame(note);
})
"""


@dataclass(frozen=True, slots=True)
class FirstLoad:
    """A load of the first view: KB of the page's own files, and milliseconds to interactive."""

    kilobytes: float
    interactive_ms: float


@dataclass(frozen=True, slots=True)
class Visit:
    """A visit to a view.

    `paths`: requested paths of the API. `shown_ms`: time until the content was shown. `longest_ms`:
    longest task of the thread. `busiest_ms`: largest processor time of a task.
    """

    paths: tuple[str, ...]
    shown_ms: float
    longest_ms: float
    busiest_ms: float


@dataclass(frozen=True, slots=True)
class Frames:
    """Mean and lowest frames per second, the number of data changes meanwhile, and the number of
    curves.
    """

    mean: float
    slowest: float
    changes: int
    curves: int


class PageWindow:
    """A signed-in window."""

    def __init__(self, window: Any, url: str, timeout: type[Exception]) -> None:
        self._window = window
        self._timeout = timeout
        self._page = f"{url}/ui/"
        self._api = f"{url}/api/v1"
        self._asked: list[str] = []
        self._network = window.context.new_cdp_session(window)
        window.set_default_timeout(WAIT_MS_MAX)
        window.on("request", self._note_request)

    def sign_in(self, code: str) -> None:
        """Sign in with a code, and wait for the first view."""
        self._window.goto(f"{self._page}#/sign-in/{code}")
        self._window.get_by_role("heading", name="Home", level=1).wait_for()

    def load_first_view(self, slowdown: int) -> FirstLoad:
        """Load the list of experiments without anything in the cache, on a slower processor."""
        sizes: list[float] = []
        files: set[str] = set()

        def note_response(fields: Any) -> None:
            if fields["response"]["url"].startswith(self._page):
                files.add(fields["requestId"])

        def note_size(fields: Any) -> None:
            if fields["requestId"] in files:
                sizes.append(fields["encodedDataLength"])

        self._window.goto("about:blank")
        self._network.send("Network.enable")
        self._network.send("Network.clearBrowserCache")
        self._network.on("Network.responseReceived", note_response)
        self._network.on("Network.loadingFinished", note_size)
        self._network.send("Emulation.setCPUThrottlingRate", {"rate": slowdown})
        self._window.goto(f"{self._page}#/experiments")
        self._window.wait_for_selector("table tbody tr")
        self._window.wait_for_timeout(1_000 + slowdown * FREE_MS)
        watched = self._window.evaluate("window.watched")
        self._network.send("Emulation.setCPUThrottlingRate", {"rate": 1})
        self._network.remove_listener("Network.responseReceived", note_response)
        self._network.remove_listener("Network.loadingFinished", note_size)
        return FirstLoad(sum(sizes) / 1000, _interactive_ms(watched["rows"], watched["tasks"]))

    def visit(self, address: str, selector: str) -> Visit:
        """Go to a view, wait for the selector and SETTLE_MS, and return the measurements."""
        self._window.evaluate("location.hash = '#/tokens'")
        self._window.get_by_role("heading", name="Tokens", level=1).wait_for()
        self._window.wait_for_load_state("networkidle")
        self._asked.clear()
        self._window.evaluate("window.watched.tasks = []")
        browser = self._window.context.browser
        browser.start_tracing(page=self._window, categories=["toplevel"])
        try:
            began = time.perf_counter()
            self._window.evaluate("(hash) => { location.hash = hash }", f"#/{address}")
            self._wait_for(selector)
            shown_ms = 1_000 * (time.perf_counter() - began)
            self._window.wait_for_timeout(SETTLE_MS)
            tasks = self._window.evaluate("window.watched.tasks")
        finally:
            # Stop the trace even after an error, so that the next view can be traced.
            trace = browser.stop_tracing()
        longest_ms = max((long for _, long in tasks), default=0.0)
        busiest_ms = _busiest_ms(json.loads(trace)["traceEvents"])
        return Visit(tuple(self._asked), shown_ms, longest_ms, busiest_ms)

    def count_frames(self, address: str, selector: str, seconds: float) -> Frames:
        """Count the frames of a view for some seconds while the pointer moves over the view."""
        self._window.goto(f"{self._page}#/{address}")
        self._wait_for(selector)
        curves = self._window.locator(".legend li").count()
        self._window.wait_for_timeout(SETTLE_MS)
        self._asked.clear()
        times: list[float] = self._window.evaluate(COUNT_FRAMES, seconds)
        by_second: dict[int, int] = {}
        for moment in times[1:]:
            second = int((moment - times[0]) / 1_000)
            by_second[second] = by_second.get(second, 0) + 1
        slowest = min(by_second.get(second, 0) for second in range(int(seconds)))
        changes = sum("/metrics?" in path for path in self._asked)
        return Frames(1_000 * (len(times) - 1) / (times[-1] - times[0]), slowest, changes, curves)

    def count_idle_requests(self, address: str, minutes: int) -> int:
        """Count the requests of a settled view over minutes of the page's clock.

        Requests for the cluster's health are left out: only the page of a cluster on the same
        machine sends these.
        """
        window = self._window.context.new_page()
        try:
            window.clock.install()
            window.goto(f"{self._page}#/{address}")
            window.wait_for_load_state("networkidle")
            asked: list[str] = []
            _let_pass(window, 2)
            window.on("request", lambda request: asked.append(request.url))
            _let_pass(window, minutes)
            return sum(not url.endswith("/api/v1/health") for url in asked)
        finally:
            window.close()

    def _wait_for(self, selector: str) -> None:
        try:
            self._window.locator(f"main {selector}").first.wait_for(state="attached")
        except self._timeout:
            text = self._window.locator("main").inner_text()[:200]
            raise RuntimeError(f"there is no {selector}, but: {text}") from None

    def _note_request(self, request: Any) -> None:
        if request.method == "GET" and request.url.startswith(self._api):
            self._asked.append(request.url.removeprefix(self._api))


@contextmanager
def open_page(url: str, token: str) -> Iterator[PageWindow]:
    """A window of the page at a server, signed in. Raises RuntimeError without a browser."""
    try:
        # Playwright is optional.
        from playwright.sync_api import TimeoutError, sync_playwright
    except ImportError:
        raise RuntimeError("Playwright is not installed") from None
    if not CHROMIUM.exists():
        raise RuntimeError(f"there is no {CHROMIUM}")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=str(CHROMIUM), args=arguments)
        try:
            window = chromium.new_context(viewport={"width": WIDTH, "height": HEIGHT}).new_page()
            window.add_init_script(WATCH)
            opened = PageWindow(window, url, TimeoutError)
            opened.sign_in(_sign_in_code(url, token))
            yield opened
        finally:
            chromium.close()


def _sign_in_code(url: str, token: str) -> str:
    request = Request(f"{url}/api/v1/sign-in-codes", b"{}", method="POST")
    request.add_header("Authorization", f"Bearer {token}")
    request.add_header("Content-Type", "application/json")
    with urlopen(request) as response:
        return str(json.load(response)["code"])


def _interactive_ms(rows_ms: float, tasks: list[tuple[float, float]]) -> float:
    """Return the moment from which on the rows are shown and no long task begins for FREE_MS."""
    free_ms = rows_ms
    for start, duration in tasks:
        if start < free_ms + FREE_MS:
            free_ms = max(free_ms, start + duration)
    return free_ms


def _busiest_ms(events: list[dict[str, Any]]) -> float:
    """Return the largest processor time of a page's task in a trace, in milliseconds.

    Other processes do not influence this time.
    """
    pages = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    times_us = (
        event["tdur"]
        for event in events
        if "tdur" in event and (event["pid"], event["tid"]) in pages
    )
    return float(max(times_us, default=0)) / 1000


def _let_pass(window: Any, minutes: int) -> None:
    """Advance a page's clock in small steps, between which answers may arrive."""
    for _ in range(minutes * 6):
        window.clock.run_for(10_000)
        window.wait_for_load_state("networkidle")
