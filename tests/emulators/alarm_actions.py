"""A front of the emulated CloudWatch whose alarm histories have actions.

The emulator runs the actions of an alarm but records only changes of state. The front answers a
request for actions with the changes of state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

from tests.emulators.http_server import AnsweringHandler, serve_requests
from tests.patience import ANSWER_SECONDS_MAX

# Texts in CBOR: the first byte is 0x60 plus the length.
_ACTION, _UPDATE = b"\x66Action", b"\x6bStateUpdate"


class _Front(AnsweringHandler):
    """A connection of a client. `aws`: the emulator's address."""

    aws: str

    def do_POST(self) -> None:
        body = self.read_body()
        is_history = self.path.endswith("/DescribeAlarmHistory")
        if is_history:
            body = body.replace(_ACTION, _UPDATE)
        sent = {**self.headers, "Content-Length": str(len(body))}
        behind = HTTPConnection(urlsplit(self.aws).netloc, timeout=ANSWER_SECONDS_MAX)
        with closing(behind):
            behind.request("POST", self.path, body, sent)
            answer = behind.getresponse()
            content, headers = answer.read(), dict(answer.getheaders())
        if is_history:
            content = content.replace(_UPDATE, _ACTION)
        self.answer(answer.status, content, headers)


@contextmanager
def alarm_actions(aws: str) -> Iterator[str]:
    """Serve the front of the emulator at the address `aws`; the value is the front's address."""

    class Front(_Front):
        pass

    Front.aws = aws
    with serve_requests(Front) as address:
        yield f"http://{address}"
