"""A front of a store of any service that passes requests on, and the common parts of fronts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

from tests.patience import ANSWER_SECONDS_MAX

_OF_CONNECTIONS = ("content-length", "transfer-encoding", "connection", "keep-alive")
Answer = tuple[int, bytes, dict[str, str]]
"""The status, the content and the headers of an answer."""


class PassingHandler(BaseHTTPRequestHandler):
    """A connection of a client. `url`: the front. `store`: the store."""

    url: str
    store: str
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def handle_expect_100(self) -> bool:
        """Answer at once that a body may come, for which clients wait."""
        may_come = super().handle_expect_100()
        self.wfile.flush()
        return may_come

    def log_message(self, *_: object) -> None:
        """Write nothing."""

    def do_GET(self) -> None:
        self.handle_request(is_write=False)

    do_HEAD = do_DELETE = do_GET

    def do_PUT(self) -> None:
        self.handle_request(is_write=True)

    do_POST = do_PUT

    @abstractmethod
    def handle_request(self, *, is_write: bool) -> None:
        """Answer a request."""

    def read_body(self, size: int) -> bytes:
        """Read the whole body of the request: `size` bytes, or all chunks of a chunked body."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(size)
        chunks = []
        while length := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(length))
            self.rfile.readline()
        self.rfile.readline()
        del self.headers["Transfer-Encoding"]
        return b"".join(chunks)

    def ask_store(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a request to the store and return the answer, with URLs in headers that lead to the
        front.
        """
        sent = {name: value for name, value in headers.items() if name != "Expect"}
        # A new connection each time, because stores close idle connections.
        behind = HTTPConnection(urlsplit(self.store).netloc, timeout=ANSWER_SECONDS_MAX)
        with closing(behind):
            behind.request(self.command, path, body, sent)
            answer = behind.getresponse()
            content = answer.read()
        answer_headers = {
            name: value.replace(self.store, self.url) for name, value in answer.getheaders()
        }
        return answer.status, content, answer_headers

    def answer(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        """Send an answer. The answer to HEAD keeps the length in `headers`."""
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in _OF_CONNECTIONS:
                self.send_header(name, value)
        lengths = [value for name, value in headers.items() if name.lower() == "content-length"]
        length = lengths[0] if lengths and self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
