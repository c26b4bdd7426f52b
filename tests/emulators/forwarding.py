"""Requests that a stand-in of a service passes on to the emulator behind it."""

import urllib.error
import urllib.request
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler

from tests.patience import ANSWER_SECONDS_MAX

_OF_CONNECTIONS = ("content-length", "transfer-encoding", "connection")


class ForwardingHandler(BaseHTTPRequestHandler):
    """A handler of one connection; `store` is the URL of the emulator."""

    store: str
    protocol_version = "HTTP/1.1"
    # Headers and content in one segment: a second one would wait for the receiver to confirm it.
    wbufsize = 1 << 16

    def log_message(self, *_: object) -> None:
        """Write nothing."""

    def read_body(self) -> bytes:
        """The whole body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def forward(self, body: bytes | None) -> None:
        """Pass the request on, without its token, and answer as the emulator does."""
        left_out = ("host", "authorization", "accept-encoding", "connection")
        headers = {k: v for k, v in self.headers.items() if k.lower() not in left_out}
        self.answer(*self.ask_store(self.command, self.path, body, headers))

    def ask_store(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes, dict[str, str]]:
        """Ask the emulator; its status, content and headers."""
        request = urllib.request.Request(
            f"{self.store}{target}", body, dict(headers), method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as answer:
                return answer.status, answer.read(), dict(answer.headers)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(), dict(error.headers)

    def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Answer the request, with JSON if nothing else is said."""
        self.send_response(status)
        for name, value in (headers or {"Content-Type": "application/json"}).items():
            if name.lower() not in _OF_CONNECTIONS:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
