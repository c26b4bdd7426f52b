"""A front of a store of any service whose network and credentials fail from a drawn request on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

from tests.emulators.http_server import serve_requests
from tests.patience import ANSWER_SECONDS_MAX

_BLOCK_BYTES = 1 << 16
_OF_CONNECTIONS = ("content-length", "transfer-encoding", "connection", "keep-alive")


class Fault(Enum):
    """The faults of a front: of a request's body a part is read and no more, and nothing is
    answered; or the store says that the credentials have expired, or that it has no room.
    """

    SILENCE = "silence"
    EXPIRY = "expiry"
    NO_ROOM = "no room"


@dataclass
class FaultyFront:
    """A front at `url` of the store at `store`, without a path. From the write of the number
    `faulty_from` on, the first is 0, all requests meet the `fault`.
    """

    url: str
    store: str
    fault: Fault | None = None
    faulty_from: int = 0
    writes: int = 0
    met: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _released: threading.Event = field(default_factory=threading.Event)

    def break_at(self, fault: Fault, write: int) -> None:
        """Meet the fault from that write on, counted from now."""
        with self._lock:
            self.fault, self.faulty_from, self.writes, self.met = fault, write, 0, 0
            self._released = threading.Event()

    def mend(self) -> None:
        """Pass everything on again; who was not answered is not answered any more."""
        with self._lock:
            self.fault = None
            self._released.set()

    def next_fault(self, *, is_write: bool) -> tuple[Fault | None, threading.Event]:
        """The fault of the next request, and what ends its silence."""
        with self._lock:
            is_over = self.writes >= self.faulty_from
            self.writes += is_write
            if self.fault is None or not (is_over and (is_write or self.met)):
                return None, self._released
            self.met += 1
            return self.fault, self._released


@contextmanager
def faulty_front(store: str) -> Iterator[FaultyFront]:
    """Serve in front of the store at that URL until the block ends."""

    class Handler(_Handler):
        pass

    with serve_requests(Handler) as address:
        parts = urlsplit(store)
        Handler.front = FaultyFront(f"http://{address}", f"{parts.scheme}://{parts.netloc}")
        try:
            yield Handler.front
        finally:
            Handler.front.mend()


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    front: FaultyFront
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def handle_expect_100(self) -> bool:
        """Say at once that a body may come, for which clients wait."""
        may_come = super().handle_expect_100()
        self.wfile.flush()
        return may_come

    def log_message(self, *_: object) -> None:
        """Write nothing."""

    def do_GET(self) -> None:
        self._handle(is_write=False)

    do_HEAD = do_DELETE = do_GET

    def do_PUT(self) -> None:
        self._handle(is_write=True)

    do_POST = do_PUT

    def _handle(self, *, is_write: bool) -> None:
        fault, released = self.front.next_fault(is_write=is_write)
        size = int(self.headers.get("Content-Length") or 0)
        if fault is Fault.SILENCE:
            # A half of the body may lie in buffers on the way.
            self.rfile.read(size // 2)
            released.wait()
            self.close_connection = True
            return
        body = self._read_body(size)
        if fault is not None:
            self._answer(*_refusal(fault, dict(self.headers)))
            return
        headers = {name: value for name, value in self.headers.items() if name != "Expect"}
        # A new one each time: a store closes those that were idle.
        behind = HTTPConnection(urlsplit(self.front.store).netloc, timeout=ANSWER_SECONDS_MAX)
        with closing(behind):
            behind.request(self.command, self.path, body, headers)
            answer = behind.getresponse()
            content = answer.read()
        told = {name: self._to_front(value) for name, value in answer.getheaders()}
        self._answer(answer.status, content, told)

    def _read_body(self, size: int) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(size)
        chunks = []
        while length := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(length))
            self.rfile.readline()
        self.rfile.readline()
        del self.headers["Transfer-Encoding"]
        return b"".join(chunks)

    def _to_front(self, value: str) -> str:
        """A header's value; where it leads to the store, to the front."""
        return value.replace(self.front.store, self.front.url)

    def _answer(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in _OF_CONNECTIONS:
                self.send_header(name, value)
        length = headers.get("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _refusal(fault: Fault, asked: Mapping[str, str]) -> tuple[int, bytes, dict[str, str]]:
    """The answer of the service whose client asks: status, content and headers."""
    names = {name.lower() for name in asked}
    if "x-amz-date" in names:
        # The second one is MinIO's.
        status, code = (
            (400, "ExpiredToken") if fault is Fault.EXPIRY else (507, "XMinioStorageFull")
        )
        text = f"<Error><Code>{code}</Code><Message>{fault.value}</Message></Error>"
        return status, text.encode(), {"Content-Type": "application/xml"}
    assert fault is Fault.EXPIRY, "no other service has such an answer"
    if "x-ms-version" in names:
        code = "AuthenticationFailed"
        text = f"<Error><Code>{code}</Code><Message>{fault.value}</Message></Error>"
        return 403, text.encode(), {"x-ms-error-code": code, "Content-Type": "application/xml"}
    error = {"code": 401, "message": "Invalid Credentials"}
    return 401, json.dumps({"error": error}).encode(), {"Content-Type": "application/json"}
