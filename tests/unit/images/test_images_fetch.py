"""The download of the agent's code at an instance's boot, over a connection that breaks."""

import runpy
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

BOOT = Path(__file__).parents[3] / "images/boot"
CONTENT = b"the agent's code"


@pytest.fixture
def url() -> Iterator[str]:
    """The URL of a server that truncates the first answer and completes all others."""
    answers = iter([CONTENT[:4]])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(next(answers, CONTENT))

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def script() -> dict[str, Any]:
    """The names of role_signature.py."""
    return runpy.run_path(str(BOOT / "role_signature.py"))


def fetch(
    script: dict[str, Any], path: Path, attempts: int, make_request: Callable[[], object]
) -> int:
    status: int = script["fetch"](str(path), "http://cluster", attempts, 0, make_request)
    return status


def test_fetch_repeats_a_truncated_download(
    script: dict[str, Any], url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch(script, tmp_path / "code", 2, lambda: urllib.request.Request(url)) == 0
    assert (tmp_path / "code").read_bytes() == CONTENT
    message = "the agent's code could not be fetched from http://cluster: IncompleteRead(4 bytes"
    assert capsys.readouterr().out.startswith(message)


def test_fetch_repeats_after_truncated_metadata(
    script: dict[str, Any], url: str, tmp_path: Path
) -> None:
    def make_request() -> urllib.request.Request:
        assert script["read"](urllib.request.Request(url)) == CONTENT
        return urllib.request.Request(url)

    assert fetch(script, tmp_path / "code", 2, make_request) == 0
    assert (tmp_path / "code").read_bytes() == CONTENT


def test_fetch_fails_after_the_last_truncated_download(
    script: dict[str, Any], url: str, tmp_path: Path
) -> None:
    assert fetch(script, tmp_path / "code", 1, lambda: urllib.request.Request(url)) == 1
    assert not (tmp_path / "code").exists()
