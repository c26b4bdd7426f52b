"""A front of the emulated CloudWatch whose alarm histories have actions.

The emulator runs the actions of an alarm but records only changes of state. The front answers a
request for actions with the changes to ALARM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

from tests.emulators.http_server import AnsweringHandler, serve_requests
from tests.patience import ANSWER_SECONDS_MAX

_ITEMS, _TYPE = "AlarmHistoryItems", "HistoryItemType"


class _Front(AnsweringHandler):
    """A connection of a client. `aws`: the emulator's address."""

    aws: str

    def do_POST(self) -> None:
        body = self.read_body()
        is_history = self.headers.get("X-Amz-Target", "").endswith(".DescribeAlarmHistory")
        if is_history:
            asked = json.loads(body)
            assert asked[_TYPE] == "Action"
            body = json.dumps({**asked, _TYPE: "StateUpdate"}).encode()
        sent = {**self.headers, "Content-Length": str(len(body))}
        behind = HTTPConnection(urlsplit(self.aws).netloc, timeout=ANSWER_SECONDS_MAX)
        with closing(behind):
            behind.request("POST", self.path, body, sent)
            answer = behind.getresponse()
            content, headers = answer.read(), dict(answer.getheaders())
        if is_history:
            found = json.loads(content)
            found[_ITEMS] = [
                {**item, _TYPE: "Action"}
                for item in found[_ITEMS]
                if item["HistorySummary"].endswith(" to ALARM")
            ]
            content = json.dumps(found).encode()
        self.answer(answer.status, content, headers)


@contextmanager
def alarm_actions(aws: str) -> Iterator[str]:
    """Serve the front of the emulator at the address `aws`; the value is the front's address."""

    class Front(_Front):
        pass

    Front.aws = aws
    with serve_requests(Front) as address:
        yield f"http://{address}"
