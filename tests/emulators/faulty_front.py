"""A front of a store of any service, with a network or credentials that fail from a given request
on.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import urlsplit

from tests.emulators.http_server import serve_requests
from tests.emulators.passing_front import PassingHandler


class Fault(Enum):
    """Faults of a front.

    SILENCE: a part of the request's body is read and no answer is sent. EXPIRY: the credentials
    have expired. NO_ROOM: the store is full.
    """

    SILENCE = "silence"
    EXPIRY = "expiry"
    NO_ROOM = "no room"


@dataclass
class FaultyFront:
    """A front at `url` of the store at `store`, a URL without a path.

    From the write with number `faulty_from` on, counted from 0, all requests meet `fault`.
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
        """Count a request. Return its fault or None, and the event that ends a silence."""
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
        Handler.url, Handler.store = Handler.front.url, Handler.front.store
        try:
            yield Handler.front
        finally:
            Handler.front.mend()


class _Handler(PassingHandler):
    """A connection of a client."""

    front: FaultyFront

    def handle_request(self, *, is_write: bool) -> None:
        fault, released = self.front.next_fault(is_write=is_write)
        size = int(self.headers.get("Content-Length") or 0)
        if fault is Fault.SILENCE:
            # Half of the body may remain in buffers on the way.
            self.rfile.read(size // 2)
            released.wait()
            self.close_connection = True
            return
        body = self.read_body(size)
        if fault is not None:
            self.answer(*_refusal(fault, dict(self.headers)))
            return
        self.answer(*self.ask_store(self.path, body, dict(self.headers)))


def _refusal(fault: Fault, headers: Mapping[str, str]) -> tuple[int, bytes, dict[str, str]]:
    """Return status, content and headers of a refusal, in the format of the headers' service."""
    names = {name.lower() for name in headers}
    if "x-amz-date" in names:
        # The second code is MinIO's.
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
