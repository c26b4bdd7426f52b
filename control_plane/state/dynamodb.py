"""The StateTable in a table of DynamoDB: partition `p`, sort `s`, revision `r`, body `b`, and of
what is due `d` (epoch ms) and `h` (shard), by which the sparse index `due` finds it.

Reads are strongly consistent but for the index. A commit of one operation is a conditional write,
which costs half of a transaction; any other is a transaction with a token, so that it may be sent
again as it is. What was throttled, or met another transaction, is tried again after a pause drawn
evenly between nothing and a ceiling that doubles ("full jitter").
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import uniform
from typing import Any

from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
)

from control_plane.state.table import (
    Check,
    CommitRefused,
    Conflict,
    Delete,
    Expect,
    Expected,
    Key,
    Page,
    Put,
    Row,
    TableError,
    Unavailable,
    Write,
    asks_nothing,
    check_limits,
    shard_of,
    within_page,
)
from detcloud.aws import session

INDEX = "due"
TRIES_MAX = 8
PAUSE_SECONDS_FIRST = 0.025
PAUSE_SECONDS_MAX = 1.0
CONNECT_SECONDS_MAX = 2.0
READ_SECONDS_MAX = 5.0

# Nothing was done, and the same request may succeed later.
_PASSING = frozenset(
    {
        "LimitExceededException",
        "ProvisionedThroughputExceeded",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ThrottlingError",
        "ThrottlingException",
        "TransactionConflict",
        "TransactionConflictException",
    }
)
# Whether it was done is not known: the answer may have been lost behind these.
_UNCLEAR = frozenset(
    {
        "InternalFailure",
        "InternalServerError",
        "RequestTimeout",
        "ServiceUnavailable",
        "TransactionInProgressException",
    }
)
_FAILED = frozenset({"ConditionalCheckFailed", "ConditionalCheckFailedException"})
_INVALID = frozenset({"ItemCollectionSizeLimitExceeded", "ValidationError", "ValidationException"})
_CANCELED = "TransactionCanceledException"
_UNSENT = (ConnectTimeoutError, EndpointConnectionError)

Item = Mapping[str, Any]


class _Passing(Exception):
    """Nothing was done: to try again is harmless."""


class _Unclear(Exception):
    """It may have been done."""


def definition(name: str) -> dict[str, Any]:
    """The table as DynamoDB's CreateTable takes it: on demand, with a stream of keys."""
    types = {"p": "S", "s": "S", "h": "N", "d": "N"}
    return {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": kind} for name, kind in types.items()
        ],
        "KeySchema": _key_schema("p", "s"),
        "GlobalSecondaryIndexes": [
            {
                "IndexName": INDEX,
                "KeySchema": _key_schema("h", "d"),
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
        "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"},
        "SSESpecification": {"Enabled": True},
    }


def client() -> Any:
    """A client as DynamoTable wants it, with the environment's region and credentials."""
    config = Config(
        retries={"total_max_attempts": 1},
        connect_timeout=CONNECT_SECONDS_MAX,
        read_timeout=READ_SECONDS_MAX,
        tcp_keepalive=True,
        # What is asked is built here; to look through each item again takes as long as to sign it.
        parameter_validation=False,
    )
    return session().create_client("dynamodb", config=config)


def raw_items(name: str, partition: str) -> Iterator[Item]:
    """A partition's rows as DynamoDB keeps them, for tools; no part of a cluster reads them so.

    Raises Unavailable.
    """
    request: dict[str, Any] = {
        "TableName": name,
        "KeyConditionExpression": "p = :p",
        "ExpressionAttributeValues": {":p": {"S": partition}},
    }
    dynamodb = client()
    while True:
        try:
            answer = dynamodb.query(**request)
        except (ClientError, BotoCoreError) as error:
            raise Unavailable(f"table {name}: {error}") from None
        yield from answer["Items"]
        if "LastEvaluatedKey" not in answer:
            return
        request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


class DynamoTable:
    """A StateTable in the table `name`. `client` must not repeat anything by itself: only here is
    known which repetition is harmless. `sleep` waits for seconds.
    """

    # Rows of one page may be of different moments.
    snapshot_queries = False

    def __init__(
        self, client: Any, name: str, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._client = client
        self._name = name
        self._sleep = sleep

    def close(self) -> None:
        """Closes the connections; the table is of no use afterwards."""
        self._client.close()

    def get(self, key: Key) -> Row | None:
        """See StateTable."""
        found = self._read(
            "get_item", TableName=self._name, Key=_key(key), ConsistentRead=True
        ).get("Item")
        return _row(found) if found else None

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        """See StateTable."""
        found: dict[Key, Row] = {}
        left: Sequence[Item] = [_key(key) for key in dict.fromkeys(keys)]
        pauses = _pauses()
        while left:
            wanted = {self._name: {"Keys": left, "ConsistentRead": True}}
            answer = self._read("batch_get_item", RequestItems=wanted)
            rows = map(_row, answer["Responses"].get(self._name, ()))
            found |= {row.key: row for row in rows}
            left = answer.get("UnprocessedKeys", {}).get(self._name, {}).get("Keys", ())
            if left:
                self._wait(pauses, f"{len(left)} rows were not read")
        return tuple(found.get(key) for key in keys)

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """See StateTable."""
        if first >= last:
            return Page((), None)
        # A range includes both its ends, and an end may not be empty.
        condition = "p = :p and s between :first and :last" if first else "p = :p and s < :last"
        values = {":p": {"S": partition}, ":last": {"S": last}}
        request: dict[str, Any] = {
            "TableName": self._name,
            "KeyConditionExpression": condition,
            "ExpressionAttributeValues": values | ({":first": {"S": first}} if first else {}),
            "ScanIndexForward": not descending,
            "ConsistentRead": True,
            # One more shows whether there are any, and one may be `last` itself.
            "Limit": limit + 2,
        }
        rows: list[Row] = []
        while len(rows) <= limit and within_page(rows) == len(rows):
            answer = self._read("query", **request)
            rows += (row for row in map(_row, answer["Items"]) if row.key.sort != last)
            if "LastEvaluatedKey" not in answer:
                break
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
        taken = tuple(rows[: min(limit, within_page(rows))])
        if len(taken) == len(rows):
            return Page(taken, None)
        return Page(taken, taken[-1].key.sort if descending else rows[len(taken)].key.sort)

    def due(self, shard: int, until_ms: int, *, limit: int = 100) -> tuple[Key, ...]:
        """See StateTable."""
        answer = self._read(
            "query",
            TableName=self._name,
            IndexName=INDEX,
            KeyConditionExpression="h = :h and d <= :until",
            ExpressionAttributeValues={":h": _number(shard), ":until": _number(until_ms)},
            Limit=limit,
        )
        return tuple(Key(item["p"]["S"], item["s"]["S"]) for item in answer["Items"])

    def commit(self, writes: Sequence[Write]) -> None:
        """See StateTable."""
        check_limits(writes)
        matter = [it for it in writes if not asks_nothing(it)]
        if len(matter) == 1 and not isinstance(matter[0], Check):
            self._write(matter[0])
        elif matter:
            self._transact(matter)

    def _write(self, write: Put | Delete) -> None:
        """One conditional write. It has no token: of an attempt whose answer was lost nobody knows
        whether it happened, so none follows it.
        """
        operation = "put_item" if isinstance(write, Put) else "delete_item"
        request = self._operation(write)
        pauses = _pauses()
        while True:
            try:
                self._send(operation, request, (write,))
            except _Passing as trouble:
                self._wait(pauses, str(trouble))
            except _Unclear as trouble:
                raise Unavailable(str(trouble)) from None
            else:
                return

    def _transact(self, writes: Sequence[Write]) -> None:
        kinds = {Put: "Put", Delete: "Delete", Check: "ConditionCheck"}
        request = {
            "TransactItems": [{kinds[type(write)]: self._operation(write)} for write in writes],
            # With it the transaction happens once, however often it is sent.
            "ClientRequestToken": uuid.uuid4().hex,
        }
        pauses = _pauses()
        while True:
            try:
                self._send("transact_write_items", request, writes)
            except (_Passing, _Unclear) as trouble:
                self._wait(pauses, str(trouble))
            else:
                return

    def _read(self, operation: str, **request: Any) -> Mapping[str, Any]:
        pauses = _pauses()
        while True:
            try:
                return self._send(operation, request, ())
            except (_Passing, _Unclear) as trouble:
                self._wait(pauses, str(trouble))

    def _send(
        self, operation: str, request: Mapping[str, Any], writes: Sequence[Write]
    ) -> Mapping[str, Any]:
        """One attempt. Raises a TableError that is final, _Passing or _Unclear."""
        try:
            answer: Mapping[str, Any] = getattr(self._client, operation)(**request)
        except ClientError as error:
            raise _failure(error, writes) from None
        except _UNSENT as error:
            raise _Passing(str(error)) from None
        except HTTPClientError as error:
            raise _Unclear(str(error)) from None
        except BotoCoreError as error:
            # Such as no credentials: nothing was sent, and nothing will be.
            raise Unavailable(str(error)) from None
        return answer

    def _wait(self, pauses: Iterator[float], trouble: str) -> None:
        pause = next(pauses, None)
        if pause is None:
            raise Unavailable(f"{trouble} ({TRIES_MAX} tries)")
        self._sleep(pause)

    def _operation(self, write: Write) -> dict[str, Any]:
        request = {"TableName": self._name, **_condition(write.expect)}
        if isinstance(write, Put):
            return {**request, "Item": _item(write)}
        return {**request, "Key": _key(write.key)}


def _failure(error: ClientError, writes: Sequence[Write]) -> Exception:
    """What an answer that is an error means."""
    found = error.response.get("Error", {})
    code, text = found.get("Code", ""), f"{found.get('Code')}: {found.get('Message')}"
    if code == _CANCELED:
        return _cancellation(error.response.get("CancellationReasons") or (), writes, text)
    if code in _FAILED and writes:
        return Conflict(writes[0].key)
    if code in _INVALID:
        return CommitRefused(text) if writes else TableError(text)
    if code in _PASSING:
        return _Passing(text)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return _Unclear(text) if code in _UNCLEAR or status >= 500 else Unavailable(text)


def _cancellation(
    reasons: Sequence[Mapping[str, Any]], writes: Sequence[Write], text: str
) -> Exception:
    """Why a transaction did not happen: one reason for each of its operations, in their order."""
    codes = [reason.get("Code", "None") for reason in reasons]
    for code, write in zip(codes, writes, strict=False):
        if code in _FAILED:
            return Conflict(write.key)
    if _INVALID.intersection(codes):
        return CommitRefused(f"{text} {[reason.get('Message') for reason in reasons]}")
    return _Passing(text)


def _pauses() -> Iterator[float]:
    """Seconds to wait before each further try."""
    for n in range(TRIES_MAX - 1):
        yield uniform(0, min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_FIRST * 2**n))


def _condition(expect: Expected) -> dict[str, Any]:
    match expect:
        case Expect.ANYTHING:
            return {}
        case Expect.ABSENT:
            return {"ConditionExpression": "attribute_not_exists(p)"}
        case Expect.PRESENT:
            return {"ConditionExpression": "attribute_exists(p)"}
        case revision:
            values = {":expected": _number(revision)}
            return {
                "ConditionExpression": "r = :expected",
                "ExpressionAttributeValues": values,
            }


def _item(put: Put) -> dict[str, Any]:
    item = {**_key(put.key), "r": _number(put.revision), "b": {"B": put.body}}
    if put.due_ms is not None:
        item |= {"d": _number(put.due_ms), "h": _number(shard_of(put.key.partition))}
    return item


def _row(item: Item) -> Row:
    due = item.get("d")
    return Row(
        Key(item["p"]["S"], item["s"]["S"]),
        int(item["r"]["N"]),
        item["b"]["B"],
        None if due is None else int(due["N"]),
    )


def _key(key: Key) -> dict[str, Any]:
    return {"p": {"S": key.partition}, "s": {"S": key.sort}}


def _number(number: int) -> dict[str, str]:
    return {"N": str(number)}


def _key_schema(partition: str, sort: str) -> list[dict[str, str]]:
    return [
        {"AttributeName": partition, "KeyType": "HASH"},
        {"AttributeName": sort, "KeyType": "RANGE"},
    ]
