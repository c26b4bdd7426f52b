"""The probe of the API: only a refusal by the application counts as a response."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from lambdas.api_probe import KNOWN_MS, PATH, ApiProbe


class Gateway(BaseHTTPRequestHandler):
    """A handler that answers all calls with `status` and appends path and token to `seen`."""

    status = 401
    seen: list[str]

    def do_POST(self) -> None:
        self.seen.append(f"{self.path} {self.headers.get('Authorization')}")
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def gateway(status: int) -> Iterator[tuple[str, list[str]]]:
    seen: list[str] = []
    handler = type("Answering", (Gateway,), {"status": status, "seen": seen})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "is_down"),
    # Only the application asks for a token. 403 and 404 come from a firewall or a gateway without
    # a stage, 429 from the gateway's throttle, 500 to 503 from a function that failed.
    [(401, False), (403, True), (404, True), (429, True), (500, True), (503, True), (200, True)],
)
def test_only_status_401_shows_that_the_api_is_up(status: int, is_down: bool) -> None:
    with gateway(status) as (url, seen):
        assert ApiProbe(url, lambda: 0).is_down() is is_down
        assert seen == [f"{PATH} None"]


def test_refused_connection_is_an_outage_and_logs_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with gateway(401) as (url, _):
        pass
    assert ApiProbe(url, lambda: 0).is_down()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_probe_result_is_cached_for_a_tick() -> None:
    clock = [0]
    with gateway(401) as (url, seen):
        probe = ApiProbe(url, lambda: clock[0])
        for clock[0] in (0, KNOWN_MS, KNOWN_MS + 1):
            assert not probe.is_down()
        assert len(seen) == 2
