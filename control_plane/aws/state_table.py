"""The StateTable in a table of DynamoDB.

The attributes of an item are the partition `p`, the sort key `s`, the revision `r` and the body
`b`. A due row also has `d` (epoch ms) and `h` (shard), the keys of the sparse index `due`.

Reads are strongly consistent, except reads of the index. A commit of a single operation is a
conditional write, which costs half as much as a transaction. Every other commit is a transaction
with a token, so that the same request may be sent again. After throttling or a conflict with
another transaction, the request is sent again after a random pause between 0 and a ceiling that
doubles ("full jitter").
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    NoRegionError,
)

from control_plane.state.retry_pauses import RetryPauses
from control_plane.state.table import (
    EXPIRY_SHARDS,
    NEVER_MS,
    Check,
    Conflict,
    Delete,
    Expect,
    Expected,
    InvalidCommit,
    Key,
    Page,
    Put,
    Row,
    TableError,
    Unavailable,
    Write,
    check_limits,
    is_unconditional_check,
    page_of,
    page_row_count,
    shard_of,
)
from detcloud.shared.aws import new_session

INDEX = "due"
CONNECT_SECONDS_MAX = 2.0
READ_SECONDS_MAX = 5.0

# Errors after which nothing was written, and the same request may succeed later.
_RETRYABLE = frozenset(
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
# Errors after which the request may have been executed, with a lost response.
_UNKNOWN_OUTCOME = frozenset(
    {
        "InternalFailure",
        "InternalServerError",
        "RequestTimeout",
        "ServiceUnavailable",
        "TransactionInProgressException",
    }
)
_CONDITION_FAILED = frozenset({"ConditionalCheckFailed", "ConditionalCheckFailedException"})
_INVALID = frozenset({"ItemCollectionSizeLimitExceeded", "ValidationError", "ValidationException"})
_CANCELED = "TransactionCanceledException"
_NOT_SENT = (ConnectTimeoutError, EndpointConnectionError)

Item = Mapping[str, Any]


class _RetryableError(Exception):
    """The request was not executed and can safely be sent again."""


class _UnknownOutcome(Exception):
    """The request may have been executed or not."""


def table_definition(name: str) -> dict[str, Any]:
    """Return the arguments of CreateTable for a state table.

    The table is billed per request and encrypted. The index `due` is on the attributes `h`, the
    shard, and `d`, the due time. The table has a stream of keys.
    """
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


def create_client(region: str | None = None) -> Any:
    """Create botocore's client of DynamoDB for DynamoDbTable; the client never retries.

    The credentials are those of the environment, and without `region` also the region. Raises
    botocore's NoRegionError without any region.
    """
    config = Config(
        retries={"total_max_attempts": 1},
        connect_timeout=CONNECT_SECONDS_MAX,
        read_timeout=READ_SECONDS_MAX,
        tcp_keepalive=True,
        # This module builds valid requests; validating an item takes as long as signing it.
        parameter_validation=False,
    )
    return new_session().create_client("dynamodb", region, config=config)


def create_tool_client(name: str) -> Any:
    """Create a client of DynamoDB with the environment's region and credentials, for tools only.

    Raises Unavailable, which names the table `name`, without a region or with a broken profile.
    """
    try:
        return create_client()
    except NoRegionError:
        text = f"table {name}: no region is set; set AWS_DEFAULT_REGION to the table's region"
        raise Unavailable(text) from None
    except BotoCoreError as error:
        raise Unavailable(f"table {name}: {error}") from None


def read_raw_items(name: str, partition: str) -> Iterator[Item]:
    """Yield the items of a partition in DynamoDB's own form, for tools only.

    `name` is the name of the table. A new client with the environment's credentials is used. Raises
    Unavailable if a request fails.
    """
    request: dict[str, Any] = {
        "TableName": name,
        "KeyConditionExpression": "p = :p",
        "ExpressionAttributeValues": {":p": {"S": partition}},
    }
    dynamodb = create_tool_client(name)
    while True:
        try:
            answer = dynamodb.query(**request)
        except (ClientError, BotoCoreError) as error:
            raise Unavailable(f"table {name}: {error}") from None
        yield from answer["Items"]
        if "LastEvaluatedKey" not in answer:
            return
        request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


class DynamoDbTable:
    """A StateTable in the DynamoDB table `name`.

    Every method raises Unavailable if DynamoDB denies access or does not answer after several
    attempts, and TableError for an invalid request. `client` must not retry requests by itself,
    because only this class decides which retry is harmless. `sleep` waits for the given number of
    seconds.
    """

    # The rows of a page may be from different moments.
    snapshot_queries = False

    def __init__(
        self, client: Any, name: str, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._client = client
        self._name = name
        self._sleep = sleep

    def close(self) -> None:
        """Close the connections. The table cannot be used afterwards."""
        self._client.close()

    def get(self, key: Key) -> Row | None:
        """Read a row. Return None for a missing row."""
        found = self._send_read(
            "get_item", TableName=self._name, Key=_key_attributes(key), ConsistentRead=True
        ).get("Item")
        return _to_row(found) if found else None

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        """Read at most GET_MAX rows, in the order of `keys`. Return None for a missing row.

        DynamoDB refuses more keys. Without keys, send no request. Send further requests for rows
        that a response leaves out.
        """
        found: dict[Key, Row] = {}
        left: Sequence[Item] = [_key_attributes(key) for key in dict.fromkeys(keys)]
        pauses = RetryPauses(self._sleep)
        while left:
            wanted = {self._name: {"Keys": left, "ConsistentRead": True}}
            answer = self._send_read("batch_get_item", RequestItems=wanted)
            rows = map(_to_row, answer["Responses"].get(self._name, ()))
            found |= {row.key: row for row in rows}
            left = answer.get("UnprocessedKeys", {}).get(self._name, {}).get("Keys", ())
            if left:
                pauses.wait(f"{len(left)} rows were not read")
        return tuple(found.get(key) for key in keys)

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """Read rows with `first` <= sort < `last`: at most `limit` rows and about 1 MiB.

        The rows of a page may be from different moments. To read the next page, pass `next_sort` as
        `first`, or as `last` if the query is `descending`. Return an empty page for an empty range.
        """
        if first >= last:
            return Page((), None)
        # DynamoDB's ranges include both ends, and an end must not be empty.
        condition = "p = :p and s between :first and :last" if first else "p = :p and s < :last"
        values = {":p": {"S": partition}, ":last": {"S": last}}
        request: dict[str, Any] = {
            "TableName": self._name,
            "KeyConditionExpression": condition,
            "ExpressionAttributeValues": values | ({":first": {"S": first}} if first else {}),
            "ScanIndexForward": not descending,
            "ConsistentRead": True,
            # A further row shows whether the range continues, and another may be `last` itself.
            "Limit": limit + 2,
        }
        rows: list[Row] = []
        while len(rows) <= limit and page_row_count(rows) == len(rows):
            answer = self._send_read("query", **request)
            rows += (row for row in map(_to_row, answer["Items"]) if row.key.sort != last)
            if "LastEvaluatedKey" not in answer:
                break
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
        return page_of(rows, limit, descending)

    def due_shards(self, shards: Sequence[int], until_ms: int) -> tuple[int, ...]:
        """Return all `shards`, because a query of DynamoDB cannot read several shards."""
        return tuple(shards)

    def due_keys(
        self, shard: int, until_ms: int, *, after_ms: int = NEVER_MS, limit: int = 100
    ) -> tuple[Key, ...]:
        """Read at most `limit` keys of a shard that are due after `after_ms` and at or before
        `until_ms`, earliest first.

        The index may lag behind the rows: a returned row may be deleted or no longer due.
        """
        answer = self._send_read(
            "query",
            TableName=self._name,
            IndexName=INDEX,
            KeyConditionExpression="h = :h and d between :first and :until",
            ExpressionAttributeValues={
                ":h": _number_attribute(shard),
                ":first": _number_attribute(after_ms + 1),
                ":until": _number_attribute(until_ms),
            },
            Limit=limit,
        )
        return tuple(Key(item["p"]["S"], item["s"]["S"]) for item in answer["Items"])

    def commit(self, writes: Sequence[Write]) -> None:
        """Apply all writes atomically: either all writes or no write.

        Raises Conflict if a condition does not hold, Unavailable if the outcome is unknown or all
        attempts failed, and InvalidCommit for no writes, two writes of a row, or an exceeded limit.
        """
        check_limits(writes)
        effective = [write for write in writes if not is_unconditional_check(write)]
        if len(effective) == 1 and not isinstance(effective[0], Check):
            self._write_one(effective[0])
        elif effective:
            self._write_transaction(effective)

    def _write_one(self, write: Put | Delete) -> None:
        """Execute a single conditional write; retry after throttling.

        The write has no token and is therefore never repeated after a lost response. Raises
        Conflict, InvalidCommit, and Unavailable, also for a lost response.
        """
        operation = "put_item" if isinstance(write, Put) else "delete_item"
        request = self._operation_request(write)
        pauses = RetryPauses(self._sleep)
        while True:
            try:
                self._send_once(operation, request, (write,))
            except _RetryableError as trouble:
                pauses.wait(str(trouble))
            except _UnknownOutcome as trouble:
                raise Unavailable(str(trouble)) from None
            else:
                return

    def _write_transaction(self, writes: Sequence[Write]) -> None:
        """Execute writes as a transaction; retry after throttling and after a lost response.

        Raises Conflict, InvalidCommit, and Unavailable after the last attempt.
        """
        kinds = {Put: "Put", Delete: "Delete", Check: "ConditionCheck"}
        request = {
            "TransactItems": [
                {kinds[type(write)]: self._operation_request(write)} for write in writes
            ],
            # The token lets DynamoDB execute the transaction once, even if it is sent again.
            "ClientRequestToken": uuid.uuid4().hex,
        }
        pauses = RetryPauses(self._sleep)
        while True:
            try:
                self._send_once("transact_write_items", request, writes)
            except (_RetryableError, _UnknownOutcome) as trouble:
                pauses.wait(str(trouble))
            else:
                return

    def _send_read(self, operation: str, **request: Any) -> Mapping[str, Any]:
        """Send a reading request and return the response; repeat after errors that may pass.

        Raises Unavailable after the last attempt. For errors that no retry can avoid, raises at
        once: TableError for an invalid request, and Unavailable otherwise, for example for denied
        access or a missing table.
        """
        pauses = RetryPauses(self._sleep)
        while True:
            try:
                return self._send_once(operation, request, ())
            except (_RetryableError, _UnknownOutcome) as trouble:
                pauses.wait(str(trouble))

    def _send_once(
        self, operation: str, request: Mapping[str, Any], writes: Sequence[Write]
    ) -> Mapping[str, Any]:
        """Send a request once and return the response.

        Raises _RetryableError or _UnknownOutcome for errors that may pass. Raises Unavailable
        without credentials, and otherwise the result of `_to_exception`.

        Args:
            operation: the name of the client's method.
            writes: the writes in the request, in order; empty for reads.
        """
        try:
            answer: Mapping[str, Any] = getattr(self._client, operation)(**request)
        except ClientError as error:
            raise _to_exception(error, writes) from None
        except _NOT_SENT as error:
            raise _RetryableError(str(error)) from None
        except HTTPClientError as error:
            raise _UnknownOutcome(str(error)) from None
        except BotoCoreError as error:
            # Nothing was sent, for example without credentials, so a retry would fail as well.
            raise Unavailable(str(error)) from None
        return answer

    def _operation_request(self, write: Write) -> dict[str, Any]:
        """Return the arguments for a conditional write: table, item or key, and condition.

        The arguments are those of PutItem and DeleteItem, and also of the entries Put, Delete and
        ConditionCheck of a transaction. A Check has only the key and the condition.
        """
        request = {"TableName": self._name, **_condition_expression(write.expect)}
        if isinstance(write, Put):
            return {**request, "Item": _to_item(write)}
        return {**request, "Key": _key_attributes(write.key)}


def _to_exception(error: ClientError, writes: Sequence[Write]) -> Exception:
    """Return the exception for an error response.

    A failed condition is a Conflict with the failed write's key. Return InvalidCommit for an
    invalid write, TableError for an invalid read, _RetryableError or _UnknownOutcome for errors
    that may pass, and Unavailable otherwise. `writes` are the writes of the request; empty for a
    read.
    """
    fields = error.response.get("Error", {})
    code, text = fields.get("Code", ""), f"{fields.get('Code')}: {fields.get('Message')}"
    if code == _CANCELED:
        return _cancellation_exception(
            error.response.get("CancellationReasons") or (), writes, text
        )
    if code in _CONDITION_FAILED and writes:
        return Conflict(writes[0].key)
    if code in _INVALID:
        return InvalidCommit(text) if writes else TableError(text)
    if code in _RETRYABLE:
        return _RetryableError(text)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return _UnknownOutcome(text) if code in _UNKNOWN_OUTCOME or status >= 500 else Unavailable(text)


def _cancellation_exception(
    reasons: Sequence[Mapping[str, Any]], writes: Sequence[Write], text: str
) -> Exception:
    """Return the exception for a cancelled transaction.

    Return a Conflict for the first failed condition, InvalidCommit for an invalid operation, and
    _RetryableError otherwise.

    Args:
        reasons: DynamoDB's reason for each operation, in the order of `writes`.
        text: the text of the error.
    """
    codes = [reason.get("Code", "None") for reason in reasons]
    for code, write in zip(codes, writes, strict=False):
        if code in _CONDITION_FAILED:
            return Conflict(write.key)
    if _INVALID.intersection(codes):
        return InvalidCommit(f"{text} {[reason.get('Message') for reason in reasons]}")
    return _RetryableError(text)


def _condition_expression(expect: Expected) -> dict[str, Any]:
    """Return the arguments of a request that state a write's condition; empty for no condition."""
    match expect:
        case Expect.ANYTHING:
            return {}
        case Expect.ABSENT:
            return {"ConditionExpression": "attribute_not_exists(p)"}
        case Expect.PRESENT:
            return {"ConditionExpression": "attribute_exists(p)"}
        case revision:
            values = {":expected": _number_attribute(revision)}
            return {
                "ConditionExpression": "r = :expected",
                "ExpressionAttributeValues": values,
            }


def _to_item(put: Put) -> dict[str, Any]:
    item = {**_key_attributes(put.key), "r": _number_attribute(put.revision), "b": {"B": put.body}}
    if put.due_ms is not None:
        item |= {
            "d": _number_attribute(put.due_ms),
            "h": _number_attribute(shard_of(put.key.partition, expires=put.expires)),
        }
    return item


def _to_row(item: Item) -> Row:
    due = item.get("d")
    return Row(
        Key(item["p"]["S"], item["s"]["S"]),
        int(item["r"]["N"]),
        item["b"]["B"],
        None if due is None else int(due["N"]),
        "h" in item and int(item["h"]["N"]) in EXPIRY_SHARDS,
    )


def _key_attributes(key: Key) -> dict[str, Any]:
    return {"p": {"S": key.partition}, "s": {"S": key.sort}}


def _number_attribute(number: int) -> dict[str, str]:
    return {"N": str(number)}


def _key_schema(partition: str, sort: str) -> list[dict[str, str]]:
    return [
        {"AttributeName": partition, "KeyType": "HASH"},
        {"AttributeName": sort, "KeyType": "RANGE"},
    ]
