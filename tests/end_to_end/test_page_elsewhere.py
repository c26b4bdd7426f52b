"""The web page on an unrelated server, in a real browser."""

from __future__ import annotations

import contextlib
import functools
import http.server
import io
import re
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.browser import Browser, open_window, start_chromium
from tests.end_to_end.laptop import Laptop, start_cluster
from tests.end_to_end.tiny_model import write_model

pytestmark = pytest.mark.end_to_end

# Arbitrary files of a further server.
FILES = Path(__file__).parent

# A script that has stolen the readable half of a session.
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
    """Serve a folder's files unchanged; yield the origin."""

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
    with start_cluster(tmp_path_factory.mktemp("elsewhere"), 1) as one:
        yield one


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with start_chromium() as started:
        yield started


@pytest.fixture(scope="module")
def origin(laptop: Laptop, chromium: Any) -> Iterator[str]:
    """Yield the origin that serves a copy of the page."""
    folder = laptop.home.parent / "copy"
    exported = laptop.run("page", "export", folder)
    assert exported.stdout.strip() == str(folder)
    # A second time: the copy exists already.
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
    """Return the status of an answer, or the error's text."""
    return browser.window.evaluate(ASK, [url, headers, credentials])


def test_page_of_an_unnamed_origin_gets_no_answer(
    laptop: Laptop, chromium: Any, origin: str
) -> None:
    allow(laptop)
    with open_window(chromium, laptop, f"{origin}/") as browser:
        link = laptop.run("open", "--no-browser", "--page", browser.page).stdout.strip()
        assert link.startswith(f"{origin}/#/sign-in/")
        browser.window.goto(link)
        browser.wait_for_text(f"does not name {origin}")
        assert browser.window.evaluate("sessionStorage.length") == 0


def test_page_of_an_allowed_origin_works_completely(
    laptop: Laptop, chromium: Any, origin: str
) -> None:
    allow(laptop, origin)
    with open_window(chromium, laptop, f"{origin}/") as browser:
        # A link to a view requires a sign-in first, which the command line's link provides.
        browser.go("pools/default", "Sign in to detcloud")
        browser.wait_for_text(f"detcloud open --page {origin}/")
        browser.sign_in()
        browser.go("pools/default", "Pools and agents")
        browser.wait_for_text("alive")
        window = browser.window
        assert window.context.cookies() == []
        assert window.evaluate("localStorage.getItem('detcloud.session-key')") is None
        assert browser.serious_findings() == []
        # A new tab starts without the token.
        other = window.context.new_page()
        other.goto(f"{origin}/#/pools/default")
        other.get_by_role("heading", name="Sign in to detcloud").wait_for()
        token = window.evaluate("sessionStorage.getItem('detcloud.session-key')")
        assert token.count("dct_") == 2
        browser.press_in_menu("Sign out")
        browser.see("Sign in to detcloud")
        headers = {"Authorization": f"Bearer {token}"}
        assert ask(browser, f"{browser.url}/api/v1/whoami", headers, "omit") == 401
        assert browser.faults == []


def test_policy_blocks_foreign_scripts_and_frames(
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
        frame.get_by_text("does not run inside a frame").wait_for()


def test_session_of_the_clusters_page_is_useless_at_a_different_origin(
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
        # The header is not allowed, and the cookie alone is not a session.
        assert "Failed to fetch" in str(ask(browser, url, {"X-Session-Key": key}))
        assert "Failed to fetch" in str(ask(browser, url, {}))


def test_export_refuses_occupied_folders_and_insecure_addresses(laptop: Laptop) -> None:
    folder = laptop.home.parent / "mine"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years")
    for words, message in (
        ((folder,), "holds something else than a page"),
        ((folder / "thesis.tex",), "is no folder"),
        ((folder / "new", "--api", "http://api.test"), "would send tokens in the clear"),
        ((folder / "new", "--api", "https://me:x@api.test"), "is no address of an API"),
    ):
        assert message in laptop.run("page", "export", *words, code=1).stderr
    assert [entry.name for entry in folder.iterdir()] == ["thesis.tex"]


HOSTILE = "<img src=x onerror=\"window.canary='hit'\">.py"
LONG = "deep/" * 30 + "file.py"
DROP = """(section, [name, bytes]) => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(bytes)], name));
  const init = {dataTransfer: data, bubbles: true, cancelable: true};
  section.dispatchEvent(new DragEvent("drop", init));
}"""


def write_folder(folder: Path) -> Path:
    """Write model code with a configuration, hostile names, and ignored files."""
    folder.mkdir()
    config, model = write_model(folder, 0, name="from the page")
    config.rename(model / "config.yaml")
    (model / "__pycache__").mkdir()
    (model / ".git").mkdir()
    for name in (HOSTILE, "__pycache__/a.pyc", ".git/config", "data.bin", "ü.txt", LONG):
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).write_text("x")
    (model / ".detignore").write_text("*.bin\n")
    return model


def test_experiment_is_created_from_a_folder(laptop: Laptop, chromium: Any, origin: str) -> None:
    allow(laptop, origin)
    model = write_folder(laptop.home.parent / "new")
    with open_window(chromium, laptop, f"{origin}/") as browser:
        browser.sign_in()
        browser.go("create", "New experiment")
        window = browser.window
        window.get_by_label("Folder").set_input_files(model)
        # The omitted files: .detignore, data.bin, and the files of __pycache__ and .git.
        browser.wait_for_text("4 are left out")
        browser.press("Upload the code")
        editor = window.get_by_label("Configuration (YAML)")
        editor.wait_for()
        assert '"name": "from the page"' in editor.input_value()
        browser.wait_for_text("The configuration is valid.")
        editor.fill(editor.input_value().replace('"metric"', '"metrik"'))
        browser.wait_for_text("metrik")
        # A reload loses neither the code nor the text.
        window.reload()
        browser.wait_for_text("Code from the folder model")
        assert "metrik" in editor.input_value()
        browser.wait_for_text("metrik")
        window.get_by_role("button", name="line ").first.wait_for()
        assert window.get_by_role("button", name="Create", exact=True).is_disabled()
        editor.fill(editor.input_value().replace('"metrik"', '"metric"'))
        browser.wait_for_text("The configuration is valid.")
        assert browser.serious_findings() == []
        browser.press("Create")
        browser.press("Create experiment")
        browser.see("from the page")
        number = int(browser.address().rpartition("/")[2])
        assert window.evaluate("window.canary") is None
        assert browser.faults == []
    laptop.run("wait", number)
    with laptop.cluster() as cluster:
        listed = cluster.get(f"/experiments/{number}/code", limit=500)["items"]
    assert {one["path"] for one in listed} >= {"train.py", "config.yaml", HOSTILE, "ü.txt", LONG}
    assert not {one["path"] for one in listed} & {"data.bin", ".detignore", ".git/config"}


def drop_from_outside(window: Any, path: Path) -> None:
    """Drop a file or folder of this machine on the code of "New experiment", as by the pointer."""
    section = window.get_by_role("region", name="code from this machine")
    section.scroll_into_view_if_needed()
    box = section.bounding_box()
    protocol = window.context.new_cdp_session(window)
    for kind in ("dragEnter", "dragOver", "drop"):
        data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
        place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        protocol.send("Input.dispatchDragEvent", {"type": kind, "data": data, **place})


def test_dropped_folder_is_uploaded_without_ignored_files(laptop: Laptop, chromium: Any) -> None:
    model = write_folder(laptop.home.parent / "dropped")
    with open_window(chromium, laptop) as browser:
        browser.sign_in()
        browser.go("create", "New experiment")
        drop_from_outside(browser.window, model)
        # As for a chosen folder: .detignore, data.bin, and the files of __pycache__ and .git.
        browser.wait_for_text(re.compile(f"the folder {model.name}: 5 files"))
        browser.wait_for_text("4 are left out")
        assert browser.serious_findings() == []
        browser.press("Upload the code")
        editor = browser.window.get_by_label("Configuration (YAML)")
        editor.wait_for()
        assert '"name": "from the page"' in editor.input_value()
        browser.wait_for_text("The configuration is valid.")
        assert browser.window.evaluate("window.canary") is None
        assert browser.faults == []


def test_dropped_archive_is_checked_by_the_cluster(laptop: Laptop, chromium: Any) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../up.py"))
    with open_window(chromium, laptop) as browser:
        browser.sign_in()
        browser.go("create", "New experiment")
        section = browser.window.get_by_role("region", name="code from this machine")
        section.evaluate(DROP, ["code.zip", [1]])
        browser.wait_for_text("code.zip is not a .tar.gz")
        section.evaluate(DROP, ["code.tar.gz", [*packed.getvalue()]])
        browser.press("Upload the code")
        browser.wait_for_text("the name must not hold")
        assert browser.faults == []
