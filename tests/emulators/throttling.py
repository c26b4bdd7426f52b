"""A server between a cluster's functions and the emulator's DynamoDB, which itself throttles
nobody. Some requests are refused before they reach the table, in each of the ways in which DynamoDB
does; of others, which are carried out, the answer is lost.
"""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from tests.emulators.http_server import serve_requests
from tests.patience import ANSWER_SECONDS_MAX

# Then a connection closes on which nobody asks anything.
IDLE_SECONDS_MAX = 2.0
JSON = "application/x-amz-json-1.0"
THROTTLES = (
    "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException",
    "com.amazon.coral.availability#ThrottlingException",
)
_CANCELED = "com.amazonaws.dynamodb.v20120810#TransactionCanceledException"


@dataclass
class ThrottledTables:
    """DynamoDB at `url`: AWS_ENDPOINT_URL_DYNAMODB of another process. Of each operation's requests
    one in so many is refused, and the answer to one in so many lost; 0: of none. They are counted.
    """

    url: str
    refused_of: int = 0
    lost_of: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)


@contextmanager
def throttling(dynamodb: str) -> Iterator[ThrottledTables]:
    """Serve in front of the DynamoDB at that URL."""

    class Handler(_Handler):
        behind = urlsplit(dynamodb).netloc

    with serve_requests(Handler, joins_requests=True) as address:
        Handler.table = ThrottledTables(f"http://{address}")
        yield Handler.table


class _Handler(BaseHTTPRequestHandler):
    """One connection, and the one behind it."""

    table: ThrottledTables
    behind: str
    timeout = IDLE_SECONDS_MAX
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self._onward = HTTPConnection(self.behind, timeout=ANSWER_SECONDS_MAX)

    def finish(self) -> None:
        self._onward.close()
        super().finish()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        operation = self.headers["X-Amz-Target"].rpartition(".")[2]
        table = self.table
        table.asked[operation] += 1
        number = table.asked[operation]
        if table.refused_of and number % table.refused_of == 0:
            table.refused[operation] += 1
            self._send(*self._refusal(operation, json.loads(body)), JSON)
            return
        # As it is, its Host too: a signature covers that.
        self._onward.request("POST", self.path, body, dict(self.headers))
        answer = self._onward.getresponse()
        content = answer.read()
        if table.lost_of and number % table.lost_of == 0:
            table.lost[operation] += 1
            self.close_connection = True
            return
        self._send(answer.status, content, answer.headers["Content-Type"])

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""

    def _refusal(self, operation: str, request: dict[str, Any]) -> tuple[int, bytes]:
        """A status and what is said with it."""
        if operation == "BatchGetItem":
            unread = {"Responses": {}, "UnprocessedKeys": request["RequestItems"]}
            return 200, json.dumps(unread).encode()
        if operation == "TransactWriteItems":
            throttle = {"Code": "ThrottlingError", "Message": "Throughput exceeds the limit"}
            others = [{"Code": "None"}] * (len(request["TransactItems"]) - 1)
            said: dict[str, Any] = {"__type": _CANCELED, "CancellationReasons": [throttle, *others]}
            return 400, json.dumps(said | {"Message": "Transaction cancelled"}).encode()
        kind = THROTTLES[self.table.refused[operation] % len(THROTTLES)]
        return 400, json.dumps({"__type": kind, "message": "Rate exceeded"}).encode()

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
