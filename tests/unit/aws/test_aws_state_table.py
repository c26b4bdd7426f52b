"""DynamoDB's table under faults that are injected between table and client."""

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    NoCredentialsError,
    ReadTimeoutError,
)

from control_plane.aws.state_table import DynamoDbTable, table_definition
from control_plane.state.retry_pauses import PAUSE_SECONDS_FIRST, PAUSE_SECONDS_MAX, TRIES_MAX
from control_plane.state.table import (
    Check,
    Conflict,
    Delete,
    Expect,
    InvalidCommit,
    Key,
    Put,
    Row,
    Unavailable,
    shard_of,
)
from tests.emulators.ministack import Ministack

KEY, OTHER, THIRD = Key("trial#1", "A"), Key("trial#1", "B"), Key("trial#1", "C")
ONE = [Put(KEY, 1, b"", Expect.ABSENT)]
TWO = [*ONE, Put(OTHER, 1, b"", Expect.ABSENT)]
THROTTLES = [
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "ThrottlingException",
]


def refusal(code: str, status: int = 400, **more: Any) -> ClientError:
    """Build an error answer of DynamoDB."""
    answer = {
        "Error": {"Code": code, "Message": "injected"},
        "ResponseMetadata": {"HTTPStatusCode": status},
        **more,
    }
    return ClientError(answer, "Operation")


def cancellation(*codes: str) -> ClientError:
    """Build the error of a cancelled transaction, with a reason for each operation."""
    reasons = [{"Code": code, "Message": "injected"} for code in codes]
    return refusal("TransactionCanceledException", CancellationReasons=reasons)


LOST = ReadTimeoutError(endpoint_url="http://here")
UNREACHED = ConnectTimeoutError(endpoint_url="http://here")


class FaultyClient:
    """A client with injected faults.

    `before`: errors of the next calls, which are not sent. `after`: errors after the next sent
    calls. `sent`: operation and request of each sent call.
    """

    def __init__(self, client: Any) -> None:
        self.before: list[Exception] = []
        self.after: list[Exception] = []
        self.call_count = 0
        self.sent: list[tuple[str, Mapping[str, Any]]] = []
        self._client = client

    def __getattr__(self, operation: str) -> Any:
        def call(**request: Any) -> Any:
            self.call_count += 1
            if self.before:
                raise self.before.pop(0)
            self.sent.append((operation, request))
            answer = getattr(self._client, operation)(**request)
            if self.after:
                raise self.after.pop(0)
            return answer

        return call


@pytest.fixture
def name(aws: Ministack) -> str:
    name = f"table-{uuid.uuid4().hex}"
    aws.client("dynamodb").create_table(**table_definition(name))
    return name


@pytest.fixture
def faulty_client(aws: Ministack) -> FaultyClient:
    return FaultyClient(aws.client("dynamodb"))


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def table(faulty_client: FaultyClient, name: str, pauses: list[float]) -> DynamoDbTable:
    # Real pauses would slow the tests down.
    return DynamoDbTable(faulty_client, name, sleep=pauses.append)


@pytest.mark.parametrize("code", THROTTLES)
@pytest.mark.parametrize("writes", [ONE, TWO], ids=["single write", "transaction"])
def test_throttled_commit_is_retried(
    table: DynamoDbTable,
    faulty_client: FaultyClient,
    pauses: list[float],
    writes: list[Put],
    code: str,
) -> None:
    faulty_client.before = [refusal(code), refusal(code)]
    table.commit(writes)
    assert table.get(KEY) == Row(KEY, 1, b"")
    assert len(pauses) == 2


def test_pauses_are_random_below_a_doubling_ceiling(
    table: DynamoDbTable, faulty_client: FaultyClient, pauses: list[float]
) -> None:
    for _ in range(50):
        faulty_client.before = [refusal(THROTTLES[0])] * TRIES_MAX
        with pytest.raises(Unavailable, match=rf"injected \({TRIES_MAX} tries\)"):
            table.commit(ONE)
    assert faulty_client.call_count == 50 * TRIES_MAX
    for n in range(TRIES_MAX - 1):
        drawn = pauses[n :: TRIES_MAX - 1]
        ceiling = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_FIRST * 2**n)
        # 50 uniform numbers are all in the same half with a probability of 2 in 10^15.
        assert 0 <= min(drawn) < ceiling / 2 < max(drawn) <= ceiling
    assert table.get(KEY) is None


@pytest.mark.parametrize("reason", ["TransactionConflict", "ThrottlingError"])
def test_conflicting_transaction_is_retried(
    table: DynamoDbTable, faulty_client: FaultyClient, reason: str
) -> None:
    faulty_client.before = [cancellation("None", reason)]
    table.commit(TWO)
    assert table.get(OTHER) == Row(OTHER, 1, b"")


def test_write_that_meets_a_transaction_is_retried(
    table: DynamoDbTable, faulty_client: FaultyClient
) -> None:
    faulty_client.before = [refusal("TransactionConflictException")]
    table.commit(ONE)
    assert table.get(KEY) == Row(KEY, 1, b"")


@pytest.mark.parametrize("fault", [LOST, refusal("InternalServerError", 500)], ids=["lost", "500"])
def test_transaction_with_a_lost_answer_happens_once(
    table: DynamoDbTable, faulty_client: FaultyClient, fault: Exception
) -> None:
    faulty_client.after = [fault]
    table.commit(TWO)
    sent = [request["ClientRequestToken"] for _, request in faulty_client.sent]
    assert len(sent) == 2
    assert len(set(sent)) == 1
    with pytest.raises(Conflict):
        table.commit(TWO)


@pytest.mark.parametrize("fault", [LOST, refusal("InternalServerError", 500)], ids=["lost", "500"])
def test_write_with_a_lost_answer_is_unavailable(
    table: DynamoDbTable, faulty_client: FaultyClient, fault: Exception
) -> None:
    faulty_client.after = [fault]
    with pytest.raises(Unavailable):
        table.commit(ONE)
    assert [operation for operation, _ in faulty_client.sent] == ["put_item"]
    assert table.get(KEY) == Row(KEY, 1, b"")


@pytest.mark.parametrize("writes", [ONE, TWO], ids=["single write", "transaction"])
def test_unsent_commit_is_retried(
    table: DynamoDbTable, faulty_client: FaultyClient, writes: list[Put]
) -> None:
    faulty_client.before = [UNREACHED]
    table.commit(writes)
    assert table.get(KEY) == Row(KEY, 1, b"")


def test_reads_are_retried(table: DynamoDbTable, faulty_client: FaultyClient) -> None:
    table.commit([Put(KEY, 1, b"", Expect.ABSENT, due_ms=1)])
    reads: tuple[Callable[[], bool], ...] = (
        lambda: table.get(KEY) is not None,
        lambda: table.get_many([KEY]) == (Row(KEY, 1, b"", 1),),
        lambda: len(table.query("trial#1", "A", "B").rows) == 1,
        lambda: table.due_keys(shard_of("trial#1"), 1) == (KEY,),
    )
    for read in reads:
        faulty_client.before = [refusal(THROTTLES[0]), LOST, UNREACHED]
        assert read()


def test_unprocessed_keys_are_read_again(
    table: DynamoDbTable, faulty_client: FaultyClient, name: str, pauses: list[float]
) -> None:
    table.commit(TWO)
    answers: list[object] = [
        {"Responses": {name: []}, "UnprocessedKeys": {name: {"Keys": [_wire(KEY), _wire(OTHER)]}}},
        {
            "Responses": {name: [{**_wire(OTHER), "r": {"N": "1"}, "b": {"B": b""}}]},
            "UnprocessedKeys": {name: {"Keys": [_wire(KEY)]}},
        },
    ]

    class Partial:
        """A client with incomplete first answers."""

        def batch_get_item(self, **request: Any) -> Any:
            return answers.pop(0) if answers else faulty_client.batch_get_item(**request)

    partial = DynamoDbTable(Partial(), name, sleep=pauses.append)
    assert partial.get_many([KEY, OTHER]) == (Row(KEY, 1, b""), Row(OTHER, 1, b""))
    assert len(pauses) == 2


def test_conflict_names_the_first_failed_row(
    table: DynamoDbTable, faulty_client: FaultyClient
) -> None:
    faulty_client.before = [
        cancellation("TransactionConflict", "ConditionalCheckFailed", "ConditionalCheckFailed")
    ]
    with pytest.raises(Conflict) as raised:
        table.commit([*TWO, Check(THIRD, Expect.ABSENT)])
    assert raised.value.key == OTHER


def test_unconditional_check_does_not_shift_the_reasons(table: DynamoDbTable) -> None:
    table.commit([Put(OTHER, 1, b"", Expect.ABSENT)])
    with pytest.raises(Conflict) as raised:
        table.commit([Check(THIRD, Expect.ANYTHING), *TWO])
    assert raised.value.key == OTHER


def test_invalid_commit_is_refused(table: DynamoDbTable, faulty_client: FaultyClient) -> None:
    for writes, fault in (
        (ONE, refusal("ValidationException")),
        (TWO, cancellation("None", "ValidationError")),
    ):
        faulty_client.before = [fault]
        with pytest.raises(InvalidCommit, match="injected"):
            table.commit(writes)


@pytest.mark.parametrize(
    "fault",
    [refusal("AccessDeniedException"), refusal("ResourceNotFoundException"), NoCredentialsError()],
    ids=["denied", "no table", "no credentials"],
)
def test_permanent_errors_are_not_retried(
    table: DynamoDbTable, faulty_client: FaultyClient, pauses: list[float], fault: Exception
) -> None:
    faulty_client.before = [fault]
    with pytest.raises(Unavailable):
        table.commit(TWO)
    assert pauses == []


def test_single_write_uses_no_transaction(
    table: DynamoDbTable, faulty_client: FaultyClient
) -> None:
    table.commit(ONE)
    table.commit([Delete(KEY, 1)])
    table.commit([*ONE, Check(OTHER, Expect.ANYTHING)])
    operations = [operation for operation, _ in faulty_client.sent]
    assert operations == ["put_item", "delete_item", "put_item"]


def _wire(key: Key) -> dict[str, Any]:
    return {"p": {"S": key.partition}, "s": {"S": key.sort}}
