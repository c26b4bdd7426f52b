"""Writes of many items into a table of DynamoDB that refuses some."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from control_plane.state.table import Key
from infra.aws.item_store import TableItems, to_stored_item
from infra.restoration import RestoreFailed


class Dynamo:
    """A table that executes one request of each call, or `is_full` none."""

    def __init__(self, *, is_full: bool = False, throttles: int = 0) -> None:
        self.is_full = is_full
        self.throttles = throttles
        self.done: list[Any] = []

    def batch_write_item(self, RequestItems: dict[str, list[Any]]) -> Any:
        if self.throttles:
            self.throttles -= 1
            error = {"Error": {"Code": "ProvisionedThroughputExceededException"}}
            raise ClientError(error, "BatchWriteItem")
        requests = RequestItems["t"]
        executed = 0 if self.is_full else 1
        self.done += requests[:executed]
        return {"UnprocessedItems": {"t": requests[executed:]}}


ITEMS = [to_stored_item({"p": {"S": "p"}, "s": {"S": text}}) for text in "abc"]


def test_unexecuted_requests_are_sent_again_after_growing_pauses() -> None:
    dynamo, pauses = Dynamo(throttles=1), list[float]()
    TableItems(dynamo, "t", pauses.append).write(ITEMS)
    assert [request["PutRequest"]["Item"]["s"]["S"] for request in dynamo.done] == ["a", "b", "c"]
    assert pauses == [0.1, 0.2, 0.4]


def test_gives_up_with_the_number_of_missing_rows() -> None:
    pauses = list[float]()
    with pytest.raises(RestoreFailed, match="the table t did not accept 2 rows in 12 attempts"):
        TableItems(Dynamo(is_full=True), "t", pauses.append).delete([Key("p", "a"), Key("p", "b")])
    assert max(pauses) == 10.0
