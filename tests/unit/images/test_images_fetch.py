"""The download of the agent's code at an instance's boot, over a connection that breaks."""

import json
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


class MetadataService:
    """The server of an instance's metadata, with given answers about the instance's role.

    `roles` is the list of roles. `documents` are the answers about the role, in order; the last one
    is repeated.
    """

    def __init__(self, roles: bytes, documents: list[bytes]) -> None:
        service, self._documents = self, documents

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                self.answer(b"token")

            def do_GET(self) -> None:
                self.answer(roles if self.path.endswith("/") else service.next_document())

            def answer(self, content: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def next_document(self) -> bytes:
        return self._documents.pop(0) if len(self._documents) > 1 else self._documents[0]


MetadataServices = Callable[[bytes, list[bytes]], None]
KEYS = json.dumps(
    {"Code": "Success", "AccessKeyId": "id", "SecretAccessKey": "secret", "Token": "token"}
).encode()
FAILURE = b'{"Code": "Failed", "Message": "the role cannot be assumed"}'


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataServices]:
    """Starts a metadata service, given its list of roles and its answers about the role."""
    started: list[MetadataService] = []

    def start(roles: bytes, documents: list[bytes]) -> None:
        service = MetadataService(roles, documents)
        started.append(service)
        place = f"http://127.0.0.1:{service.server.server_port}"
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", place)

    yield start
    for service in started:
        service.server.shutdown()
        service.server.server_close()


def test_fetch_repeats_after_metadata_without_keys(
    script: dict[str, Any],
    metadata: MetadataServices,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    metadata(b"role", [FAILURE, KEYS])
    signed: list[dict[str, str]] = []

    def make_request() -> urllib.request.Request:
        signed.append(script["sign"]("GET", "http://bucket/code", "us-east-1", "s3", {}))
        return urllib.request.Request("data:,code")

    assert fetch(script, tmp_path / "code", 2, make_request) == 0
    assert (tmp_path / "code").read_bytes() == b"code"
    assert len(signed) == 1
    assert "no keys of role role: Failed: the role cannot be assumed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("roles", "document", "message"),
    [
        (b"", KEYS, "the instance has no role"),
        (b"role", FAILURE, "no keys of role role: Failed: the role cannot be assumed"),
        (b"role", b"[]", "no keys of role role: the answer is no JSON object"),
        (b"role", b"<html>", "no keys of role role: the answer is no JSON object"),
    ],
)
def test_keys_that_the_metadata_service_lacks_are_an_os_error(
    script: dict[str, Any], metadata: MetadataServices, roles: bytes, document: bytes, message: str
) -> None:
    metadata(roles, [document])
    with pytest.raises(OSError, match=message):
        script["read_keys"]()
