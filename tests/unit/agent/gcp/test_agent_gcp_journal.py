"""Lines of the agent's systemd journal are shipped to Cloud Logging."""

import json
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from detcloud.agent.gcp.journal import CloudLog
from detcloud.agent.gcp.metadata import GceMetadata
from detcloud.agent.journal import JournalLine, LogRefused, send_request
from tests.emulators.gce.metadata import MachineMetadata, metadata_server
from tests.emulators.google_keys import GoogleKeys
from tests.raw_server import serve_raw

# 1,700,000,000 s after the epoch is 22:13:20 on 14 November 2023.
LINES = [
    JournalLine("began", 1_700_000_000_005, "s=1"),
    JournalLine("ends", 1_700_000_001_000, "s=2"),
]


class Logging:
    """Substitute for Cloud Logging: records entries in `written`; refuses foreign tokens by 403."""

    def __init__(self, machine: MachineMetadata) -> None:
        self.written: list[dict[str, Any]] = []
        logging = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                token = self.headers["Authorization"].removeprefix("Bearer ")
                may = machine.account and token in machine.access_tokens
                if may and self.path == "/v2/entries:write":
                    logging.written.append(body)
                status, answer = 200, {}
                if not may:
                    status, answer = 403, {"error": {"status": "PERMISSION_DENIED"}}
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def machine() -> MachineMetadata:
    return MachineMetadata("detcloud-vision-a1b2", GoogleKeys(), numeric_id=77)


@pytest.fixture
def logging(machine: MachineMetadata) -> Iterator[Logging]:
    service = Logging(machine)
    with service.server as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield service
        server.shutdown()


@pytest.fixture
def log(machine: MachineMetadata, logging: Logging) -> Iterator[CloudLog]:
    with metadata_server(machine) as host:
        endpoint = f"http://127.0.0.1:{logging.server.server_port}"
        yield CloudLog(GceMetadata(host), endpoint)


def test_log_entries_name_instance_and_time(log: CloudLog, logging: Logging) -> None:
    log.write(LINES)
    [body] = logging.written
    assert body["logName"] == "projects/team-project/logs/detcloud-agent"
    labels = {"project_id": "team-project", "instance_id": "77", "zone": "us-central1-a"}
    assert body["resource"] == {"type": "gce_instance", "labels": labels}
    assert body["labels"] == {"instance_name": "detcloud-vision-a1b2"}
    assert [(entry["textPayload"], entry["timestamp"]) for entry in body["entries"]] == [
        ("began", "2023-11-14T22:13:20.005Z"),
        ("ends", "2023-11-14T22:13:21.000Z"),
    ]


def test_a_resent_line_keeps_its_insert_id(log: CloudLog, logging: Logging) -> None:
    log.write(LINES)
    log.write(LINES)
    first, second = ([entry["insertId"] for entry in body["entries"]] for body in logging.written)
    assert first == second
    assert len(set(first)) == 2


def test_refusal_of_cloud_logging_is_named(log: CloudLog, machine: MachineMetadata) -> None:
    machine.token_answer = json.dumps({"access_token": "of-another"})
    with pytest.raises(LogRefused, match="PERMISSION_DENIED"):
        log.write(LINES)


@pytest.mark.parametrize("answer", ["hush", "[]", '{"access_token": null}'])
def test_malformed_token_is_an_os_error_without_secret(
    answer: str, log: CloudLog, machine: MachineMetadata
) -> None:
    machine.token_answer = answer
    with pytest.raises(OSError, match="no usable token") as caught:
        log.write(LINES)
    assert "hush" not in str(caught.value)


def test_unreadable_answer_is_an_os_error() -> None:
    with serve_raw(b"SSH-2.0\r\n") as server, pytest.raises(OSError, match="BadStatusLine"):
        send_request(urllib.request.Request(server.url), str)


def test_truncated_refusal_is_an_os_error() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(403)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"{")

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(OSError, match="IncompleteRead"):
            send_request(request, str)
        server.shutdown()
