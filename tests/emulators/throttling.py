"""A proxy of the emulator's DynamoDB that refuses requests in DynamoDB's ways and loses answers.
The emulator never throttles.
"""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.emulators.forwarding import RelayingHandler
from tests.emulators.http_server import serve_requests

JSON = {"Content-Type": "application/x-amz-json-1.0"}
THROTTLES = (
    "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException",
    "com.amazon.coral.availability#ThrottlingException",
)
_CANCELED = "com.amazonaws.dynamodb.v20120810#TransactionCanceledException"


@dataclass
class ThrottledTables:
    """DynamoDB at `url`, for AWS_ENDPOINT_URL_DYNAMODB.

    Each `refused_of`-th request of an operation is refused and each `lost_of`-th answer is lost; 0
    means none. The counters have the numbers by operation.
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


class _Handler(RelayingHandler):
    """A connection of a client, with a connection to the emulator."""

    table: ThrottledTables

    def do_POST(self) -> None:
        body = self.read_body()
        operation = self.headers["X-Amz-Target"].rpartition(".")[2]
        table = self.table
        table.asked[operation] += 1
        number = table.asked[operation]
        if table.refused_of and number % table.refused_of == 0:
            table.refused[operation] += 1
            self.answer(*self._refusal(operation, json.loads(body)), JSON)
            return
        answer = self.ask("POST", self.path, body, dict(self.headers))
        if table.lost_of and number % table.lost_of == 0:
            table.lost[operation] += 1
            self.close_connection = True
            return
        self.answer(*answer)

    def _refusal(self, operation: str, request: dict[str, Any]) -> tuple[int, bytes]:
        """Return the status and the content of a refusal."""
        if operation == "BatchGetItem":
            unread = {"Responses": {}, "UnprocessedKeys": request["RequestItems"]}
            return 200, json.dumps(unread).encode()
        if operation == "TransactWriteItems":
            throttle = {"Code": "ThrottlingError", "Message": "Throughput exceeds the limit"}
            others = [{"Code": "None"}] * (len(request["TransactItems"]) - 1)
            cancellation: dict[str, Any] = {
                "__type": _CANCELED,
                "CancellationReasons": [throttle, *others],
            }
            return 400, json.dumps(cancellation | {"Message": "Transaction cancelled"}).encode()
        kind = THROTTLES[self.table.refused[operation] % len(THROTTLES)]
        return 400, json.dumps({"__type": kind, "message": "Rate exceeded"}).encode()
