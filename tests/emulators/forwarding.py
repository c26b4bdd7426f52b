"""Proxies of emulators: handlers that inspect a request and pass the request on."""

import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPConnection
from urllib.parse import quote

from tests.emulators.http_server import AnsweringHandler
from tests.patience import ANSWER_SECONDS_MAX

# An idle connection is closed after this time.
IDLE_SECONDS_MAX = 2.0


class ForwardingHandler(AnsweringHandler):
    """A connection to a front of the emulated Cloud Storage at `store`. Requests are passed on
    without the token.
    """

    store: str

    def do_GET(self) -> None:
        self.handle_request(None)

    def do_DELETE(self) -> None:
        self.handle_request(None)

    def do_POST(self) -> None:
        self.handle_request(self.read_body())

    def do_PUT(self) -> None:
        self.handle_request(self.read_body())

    def do_PATCH(self) -> None:
        self.handle_request(self.read_body())

    def handle_request(self, body: bytes | None) -> None:
        """Answer a request. `body` is None for methods without a body."""
        self.forward(body)

    def forward(self, body: bytes | None) -> None:
        """Pass the request on without its token, and return the emulator's answer to the client."""
        left_out = ("host", "authorization", "accept-encoding", "connection")
        headers = {k: v for k, v in self.headers.items() if k.lower() not in left_out}
        self.answer(*self.ask_store(self.command, self.path, body, headers))

    def ask_store(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes, dict[str, str]]:
        """Send a request to the emulator and return status, content and headers."""
        request = urllib.request.Request(
            f"{self.store}{target}", body, dict(headers), method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as answer:
                return answer.status, answer.read(), dict(answer.headers)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(), dict(error.headers)

    def is_there(self, bucket: str, name: str) -> bool:
        """Whether the store has an object."""
        place = f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}"
        return self.ask_store("GET", place, None, {})[0] == 200


class RelayingHandler(AnsweringHandler):
    """A connection of a client with an open connection to the emulator at `behind` (host:port).

    Requests pass unchanged, because signatures cover Host and token.
    """

    behind: str
    timeout = IDLE_SECONDS_MAX

    def setup(self) -> None:
        super().setup()
        self._onward = HTTPConnection(self.behind, timeout=ANSWER_SECONDS_MAX)

    def finish(self) -> None:
        self._onward.close()
        super().finish()

    def ask(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes, dict[str, str]]:
        """Send a request to the emulator. Return status, content and a header with the content
        type.
        """
        self._onward.request(method, target, body, dict(headers))
        answer = self._onward.getresponse()
        kind = {"Content-Type": answer.headers["Content-Type"] or ""}
        return answer.status, answer.read(), kind
