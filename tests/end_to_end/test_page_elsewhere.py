"""The web page served by a server that knows nothing of the cluster, in a real browser."""

from __future__ import annotations

import contextlib
import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.browser import Browser, open_window, start_chromium
from tests.end_to_end.laptop import Laptop

pytestmark = pytest.mark.end_to_end

# Files of another server, which it does not matter what they are.
FILES = Path(__file__).parent

# What the script of a page does that got hold of the half of a session which scripts can read.
ASK = """async ([url, headers, credentials]) => {
  try {
    const answer = await fetch(url, {headers, credentials});
    return answer.status;
  } catch (error) {
    return String(error);
  }
}"""


@contextlib.contextmanager
def serve_folder(folder: Path) -> Iterator[str]:
    """Serve a folder's files as they are; yields the origin."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    one = Laptop(tmp_path_factory.mktemp("elsewhere") / "home")
    try:
        one.run("up", "--slots", 1)
        yield one
    finally:
        assert one.end() == []


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with start_chromium() as started:
        yield started


@pytest.fixture(scope="module")
def origin(laptop: Laptop, chromium: Any) -> Iterator[str]:
    """The origin that serves a copy of the page."""
    folder = laptop.home.parent / "copy"
    exported = laptop.run("page", "export", folder)
    assert exported.stdout.strip() == str(folder)
    # Once more: what is there is a copy.
    laptop.run("page", "export", folder)
    with serve_folder(folder) as served:
        yield served


def allow(laptop: Laptop, *origins: str) -> None:
    config = laptop.home.parent / "cluster.yaml"
    config.write_text(f"page_origins: {list(origins)}\n")
    laptop.run("cluster", "apply", config)


def ask(
    browser: Browser, url: str, headers: dict[str, str], credentials: str = "include"
) -> object:
    """The status of an answer, or why there is none."""
    return browser.window.evaluate(ASK, [url, headers, credentials])


def test_a_page_that_no_one_named_gets_no_answer(
    laptop: Laptop, chromium: Any, origin: str
) -> None:
    allow(laptop)
    with open_window(chromium, laptop, f"{origin}/") as browser:
        link = laptop.run("open", "--no-browser", "--page", browser.page).stdout.strip()
        assert link.startswith(f"{origin}/#/sign-in/")
        browser.window.goto(link)
        browser.wait_for_text(f"does not name {origin}")
        assert browser.window.evaluate("sessionStorage.length") == 0


def test_a_page_that_is_named_is_the_same_page(laptop: Laptop, chromium: Any, origin: str) -> None:
    allow(laptop, origin)
    with open_window(chromium, laptop, f"{origin}/") as browser:
        # A link to a view asks for a sign-in first, and the link of the command line is one.
        browser.go("pools/default", "Sign in to detcloud")
        browser.wait_for_text(f"detcloud open --page {origin}/")
        browser.sign_in()
        browser.go("pools/default", "Pools and agents")
        browser.wait_for_text("ALIVE")
        window = browser.window
        assert window.context.cookies() == []
        assert window.evaluate("localStorage.getItem('detcloud.session-key')") is None
        assert browser.serious_findings() == []
        # A tab of its own starts without the token.
        other = window.context.new_page()
        other.goto(f"{origin}/#/pools/default")
        other.get_by_role("heading", name="Sign in to detcloud").wait_for()
        token = window.evaluate("sessionStorage.getItem('detcloud.session-key')")
        assert token.count("dct_") == 2
        browser.press("Sign out")
        browser.see("Sign in to detcloud")
        headers = {"Authorization": f"Bearer {token}"}
        assert ask(browser, f"{browser.url}/api/v1/whoami", headers, "omit") == 401
        assert browser.faults == []


def test_its_policy_keeps_scripts_from_others_and_the_page_from_frames(
    laptop: Laptop, chromium: Any, origin: str
) -> None:
    with open_window(chromium, laptop, f"{origin}/") as browser, serve_folder(FILES) as other:
        browser.go("", "Sign in to detcloud")
        assert "Failed to fetch" in str(ask(browser, f"{other}/", {}))
        assert any("Content Security Policy" in fault for fault in browser.faults)
        with pytest.raises(Exception, match="TrustedHTML"):
            browser.window.evaluate("document.body.innerHTML = '<b>markup</b>'")
        browser.window.goto(f"{other}/__init__.py")
        browser.window.evaluate(
            """(url) => {
              const frame = document.createElement("iframe");
              frame.src = url;
              document.body.append(frame);
            }""",
            f"{origin}/",
        )
        frame = browser.window.frame_locator("iframe")
        frame.get_by_text("not shown in a frame").wait_for()


def test_a_session_of_the_clusters_page_is_of_no_use_elsewhere(
    laptop: Laptop, chromium: Any, origin: str
) -> None:
    allow(laptop, origin)
    with open_window(chromium, laptop) as browser:
        browser.sign_in()
        window, url = browser.window, f"{browser.url}/api/v1/whoami"
        # Both halves: browsers share cookies among the ports of a machine.
        assert len(window.context.cookies()) == 1
        key = window.evaluate("localStorage.getItem('detcloud.session-key')")
        assert ask(browser, url, {"X-Session-Key": key}) == 200
        window.goto(f"{origin}/")
        browser.see("Sign in to detcloud")
        # Its header is not allowed, and without it the cookie is no session.
        assert "Failed to fetch" in str(ask(browser, url, {"X-Session-Key": key}))
        assert "Failed to fetch" in str(ask(browser, url, {}))


def test_a_copy_goes_nowhere_else(laptop: Laptop) -> None:
    folder = laptop.home.parent / "mine"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years")
    for words, told in (
        ((folder,), "holds something else than a page"),
        ((folder / "thesis.tex",), "is no folder"),
        ((folder / "new", "--api", "http://api.test"), "would send tokens in the clear"),
        ((folder / "new", "--api", "https://me:x@api.test"), "is no address of an API"),
    ):
        assert told in laptop.run("page", "export", *words, code=1).stderr
    assert [entry.name for entry in folder.iterdir()] == ["thesis.tex"]
