"""The items of a table of DynamoDB, for a copy of all rows."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import botocore.exceptions as sdk

from control_plane.state.table import Key
from infra.aws.instance_ends import error_code
from infra.restoration import RestoreFailed
from infra.row_copy import StoredItem

# The most requests that DynamoDB accepts in a batch.
BATCH_ITEMS: Final = 25
_PAUSE_SECONDS_FIRST: Final = 0.1
_TRIES_MAX: Final = 12
_THROTTLED: Final = frozenset(
    {"ProvisionedThroughputExceededException", "RequestLimitExceeded", "ThrottlingException"}
)

Item = dict[str, Any]


class TableItems:
    """All items of the table `name`. Every method raises the SDK's errors.

    `sleep` waits for a number of seconds.
    """

    batch_items = BATCH_ITEMS

    def __init__(self, client: Any, name: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._client = client
        self._name = name
        self._sleep = sleep

    def read(self) -> Iterator[StoredItem]:
        """Yield all items, each once, in any order."""
        pages = self._client.get_paginator("scan")
        for page in pages.paginate(TableName=self._name, ConsistentRead=True):
            yield from map(to_stored_item, page["Items"])

    def write(self, items: Sequence[StoredItem]) -> None:
        """Write at most BATCH_ITEMS items. Raise RestoreFailed if DynamoDB keeps refusing some."""
        self._send([{"PutRequest": {"Item": dict(item.content)}} for item in items])

    def delete(self, keys: Sequence[Key]) -> None:
        """Delete at most BATCH_ITEMS items. Raise RestoreFailed if DynamoDB keeps refusing some."""
        self._send(
            [
                {"DeleteRequest": {"Key": {"p": {"S": key.partition}, "s": {"S": key.sort}}}}
                for key in keys
            ]
        )

    def _send(self, requests: list[Item]) -> None:
        """Send requests until DynamoDB has executed all; an overloaded table leaves out some."""
        pause = _PAUSE_SECONDS_FIRST
        for _ in range(_TRIES_MAX):
            requests = self._send_once(requests)
            if not requests:
                return
            self._sleep(pause)
            pause = min(2 * pause, 10.0)
        raise RestoreFailed(
            f"the table {self._name} did not accept {len(requests)} rows in {_TRIES_MAX} attempts; "
            "run the restore again, which continues"
        )

    def _send_once(self, requests: list[Item]) -> list[Item]:
        """Send requests in one call, and return the requests that DynamoDB did not execute."""
        try:
            answer = self._client.batch_write_item(RequestItems={self._name: requests})
        except sdk.ClientError as error:
            # DynamoDB raises this error only if no request was executed.
            if error_code(error) in _THROTTLED:
                return requests
            raise
        left: list[Item] = answer.get("UnprocessedItems", {}).get(self._name, [])
        return left


def to_stored_item(item: Item) -> StoredItem:
    """Return an item in the form of the copy."""
    return StoredItem(Key(item["p"]["S"], item["s"]["S"]), item)


def counter_value(item: StoredItem) -> int:
    """Return the next id of an item that is a counter."""
    return int(item.content["b"]["B"])
