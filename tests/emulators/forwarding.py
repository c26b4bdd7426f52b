"""Proxies before emulators: what comes is looked at and then passed on to the emulator."""

import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPConnection
from urllib.parse import quote

from tests.emulators.http_server import AnsweringHandler
from tests.patience import ANSWER_SECONDS_MAX

# Then a connection closes on which nobody asks anything.
IDLE_SECONDS_MAX = 2.0


class ForwardingHandler(AnsweringHandler):
    """One connection of a front of the emulated Cloud Storage at the URL `store`, which passes on
    all that comes, without its token.
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
        """Answer a request with its content, None for a method that has none."""
        self.forward(body)

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

    def is_there(self, bucket: str, name: str) -> bool:
        """Whether the store has an object."""
        place = f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}"
        return self.ask_store("GET", place, None, {})[0] == 200


class RelayingHandler(AnsweringHandler):
    """One connection, and the one to the emulator at `behind` (host:port) that stays open as long.
    Requests go there as they are, with Host and token, which signatures cover.
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
        """Ask the emulator; its status, content, and what kind of content that is."""
        self._onward.request(method, target, body, dict(headers))
        answer = self._onward.getresponse()
        kind = {"Content-Type": answer.headers["Content-Type"] or ""}
        return answer.status, answer.read(), kind
