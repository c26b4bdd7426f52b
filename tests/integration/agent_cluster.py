"""A scripted server in place of the cluster, for tests of the agent."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

JOIN_TOKEN = "join-token-7f3a"
SHADOW = "detcloud/__init__.py", "detcloud/launch/__init__.py"


@dataclass
class DesiredEntry:
    """An entry of the desired list."""

    spec: dict[str, Any]
    code: dict[str, Any] | None
    directives: dict[str, Any]
    state: str = "run"
    grace_ms: int = 15_000


@dataclass
class ReceivedLine:
    """A report line with the time of arrival."""

    allocation: str
    writer: str
    offset: int
    line: dict[str, Any]
    at: float


@dataclass
class FakeCluster:
    """A cluster that records report lines, holds calls open, and rejects calls of old epochs.

    On request the cluster drops answers or is down.
    """

    lease_ms: int = 30_000
    patient_ms: int | None = None
    epoch: int = 0
    revision: int = 0
    down: bool = False
    answers_to_drop: int = 0
    forgets_exited: bool = False
    calls: list[dict[str, Any]] = field(default_factory=list)
    reports: list[ReceivedLine] = field(default_factory=list)
    acked: dict[str, dict[str, int]] = field(default_factory=dict)
    log: dict[str, bytes] = field(default_factory=dict)
    desired: dict[str, DesiredEntry] = field(default_factory=dict)
    archives: dict[str, bytes] = field(default_factory=dict)
    refused_text: str | None = None
    notice: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        self.changed = threading.Condition()
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if "/package-archives" in self.path:
                    # Releases without such archives answer 404.
                    self._answer(404, b"{}")
                    return
                self._answer(200, cluster.archives[self.path.rsplit("/", 1)[1]])

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = cluster.post(self.path, self.headers["Authorization"], body)
                if status == 0:
                    self.close_connection = True
                    return
                self._answer(status, json.dumps(answer).encode())

            def _answer(self, status: int, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """Ignore a call that the agent interrupted."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self.changed:
            self.revision += 1
            self.changed.notify_all()
        self.server.shutdown()
        self.server.server_close()

    def assign(
        self, allocation: str, program: str, *, hook: str | None = None, **spec: Any
    ) -> None:
        """Add an allocation to the desired list; `program` replaces the trial launcher."""
        files = {SHADOW[0]: "", SHADOW[1]: "", "detcloud/launch/trial.py": program}
        if hook is not None:
            files["startup-hook.sh"] = hook
        self.assign_files(allocation, files, **spec)

    def assign_files(self, allocation: str, files: dict[str, str], **spec: Any) -> None:
        """Add an allocation with this model code to the desired list."""
        archive = tar(files)
        digest = hashlib.sha256(archive).hexdigest()
        self.archives[digest] = archive
        code = {"sha256": digest, "size": len(archive), "path": f"/api/v1/model-code/{digest}"}
        base = {"version": 1, "trial_seed": 2**32 + 5, "config": {}, "allocation_id": allocation}
        with self.changed:
            self.desired[allocation] = DesiredEntry(
                {**base, **spec}, code, {"revision": 1, "length": 1}
            )
            self._change()

    def change(self, allocation: str, **fields: Any) -> None:
        """Change an entry of the desired list."""
        with self.changed:
            for name, value in fields.items():
                setattr(self.desired[allocation], name, value)
            self._change()

    def announce_end(self, notice: dict[str, Any]) -> None:
        """Send the agent a notice that the machine ends."""
        with self.changed:
            self.notice = notice
            self._change()

    def fence(self) -> None:
        """Reject every call of the present enrolment as outdated."""
        with self.changed:
            self.epoch += 1
            self._change()

    def lines(self, allocation: str, writer: str = "0") -> list[dict[str, Any]]:
        """Return the report lines of a writer, in order."""
        return [
            received.line
            for received in self.reports
            if (received.allocation, received.writer) == (allocation, writer)
        ]

    def kinds(self, allocation: str, writer: str = "agent") -> list[str]:
        """Return the kinds of the lines; a container's state replaces `container`."""
        return [str(line.get("state", line["kind"])) for line in self.lines(allocation, writer)]

    def exit_record(self, allocation: str) -> dict[str, Any] | None:
        """Return the agent's exit record, or None before it arrives."""
        records = self.lines(allocation, "agent")
        return next((record for record in records if record["kind"] == "exited"), None)

    def post(self, path: str, authorization: str, body: dict[str, Any]) -> tuple[int, Any]:
        if self.down:
            return 503, {"error": {"code": "unavailable", "message": "down", "details": []}}
        if path == "/api/v1/agents":
            return self._enrol(authorization, body)
        if path == "/api/v1/agents/node/storage-credentials":
            keys = {"key_id": "KEY", "secret": "hush", "session_token": body["allocation"]}
            return 200, {**keys, "expires_ms": 2_000_000_000_000}
        assert path == "/api/v1/agents/agent-1/sync"
        assert authorization == f"Bearer agent-token-{body['epoch']}"
        with self.changed:
            self.calls.append(body)
            if body["epoch"] != self.epoch:
                return 409, {"error": {"code": "conflict", "message": "older", "details": []}}
            if self.refused_text is not None and self.refused_text in json.dumps(body["reports"]):
                return 422, {"error": {"code": "invalid", "message": "bad line", "details": []}}
            self._take(body)
            if self.answers_to_drop and (body["reports"] or body["logs"]):
                self.answers_to_drop -= 1
                return 0, None
            self._hold(body)
            return 200, self._sync_answer(body)

    def _enrol(self, authorization: str, body: dict[str, Any]) -> tuple[int, Any]:
        if authorization != f"Bearer {JOIN_TOKEN}":
            message = {"code": "unauthenticated", "message": "unknown join token", "details": []}
            return 401, {"error": message}
        assert (body["name"], body["resource_pool"]) == ("node", "default")
        assert body["slots"]
        with self.changed:
            self.epoch += 1
            token = f"agent-token-{self.epoch}"
            enrolled = {"agent_id": "agent-1", "token": token, "epoch": self.epoch}
            return 200, {**enrolled, "lease_ms": self.lease_ms}

    def _take(self, body: dict[str, Any]) -> None:
        for report in body["reports"]:
            acked = self.acked.setdefault(report["allocation"], {})
            if report["offset"] > acked.get(report["writer"], 0):
                acked[report["writer"]] = report["offset"]
                self.reports.append(ReceivedLine(**report, at=time.time()))
        for piece in body["logs"]:
            held = self.log.setdefault(piece["allocation"], b"")
            text = piece["text"].encode()[len(held) - piece["offset"] :]
            assert piece["offset"] <= len(held)
            self.log[piece["allocation"]] = held + text
        for allocation, desired in self.desired.items():
            if self.forgets_exited and self.exit_record(allocation) and desired.state != "forget":
                desired.state = "forget"
                self._change()

    def _hold(self, body: dict[str, Any]) -> None:
        until = time.monotonic() + body["wait_ms"] / 1000
        while self.revision <= body["seen"] and (left := until - time.monotonic()) > 0:
            self.changed.wait(left)

    def _sync_answer(self, body: dict[str, Any]) -> dict[str, Any]:
        entries = []
        for allocation, desired in self.desired.items():
            entry: dict[str, Any] = {"allocation": allocation, "state": desired.state}
            entry |= {"directives": desired.directives, "grace_ms": desired.grace_ms}
            if allocation not in body["known"]:
                entry |= {"spec": desired.spec, "code": desired.code, "slots": [0]}
            entries.append(entry)
        return {
            "acked": self.acked,
            "logs_acked": {name: len(text) for name, text in self.log.items()},
            "revision": self.revision,
            "desired": entries,
            "next_sync_ms": 0,
            "lease_ms": self.lease_ms,
            **({} if self.patient_ms is None else {"patient_ms": self.patient_ms}),
            **({} if self.notice is None else {"notice": self.notice}),
        }

    def _change(self) -> None:
        self.revision += 1
        self.changed.notify_all()


def tar(files: Mapping[str, str | bytes]) -> bytes:
    """Return a .tar.gz of the files; equal files give equal bytes."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        for name, text in files.items():
            content = text.encode() if isinstance(text, str) else text
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
