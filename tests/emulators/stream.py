"""A table's stream and the functions behind it, delivered like AWS does.

Records are gathered into batches and filtered. A failed batch is repeated from the first failed
record, is halved, and finally goes to the dead-letter queue. The emulator's own delivery does none
of this.
"""

import base64
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.emulators.ministack import Ministack
from tests.patience import ANSWER_SECONDS_MAX, PATIENCE

POLL_SECONDS = 0.2
INVOKE_SECONDS_MAX = 120 * PATIENCE
READ_MAX = 500
# AWS doubles the pause; a constant pause keeps the tests short.
RETRY_SECONDS = 0.2

Record = Mapping[str, Any]


@dataclass
class StreamMapping:
    """A configured mapping and its deliveries.

    `lag_seconds`: delay of deliveries. `repeats`: number of additional deliveries of a successful
    batch.
    """

    function: str
    filters: Sequence[Mapping[str, Any]]
    batch_size: int
    window_seconds: float
    tries_max: int
    halves: bool
    dead_letters: str
    invocations: int = 0
    records: int = 0
    lost: list[Record] = field(default_factory=list)
    lag_seconds: float = 0.0
    repeats: int = 0

    def wants(self, record: Record) -> bool:
        """Return whether a filter accepts the record."""
        return not self.filters or any(matches(pattern, record) for pattern in self.filters)


def matches(pattern: Any, value: Any) -> bool:
    """Return whether a value matches an event pattern of values and prefixes."""
    if isinstance(pattern, Mapping):
        is_map = isinstance(value, Mapping)
        return is_map and all(matches(wish, value.get(name)) for name, wish in pattern.items())
    return any(_is_one(wish, value) for wish in pattern)


class Pump:
    """A delivery of the stream of `table` to all mapped functions."""

    def __init__(self, aws: Ministack, table: str) -> None:
        self._aws = aws
        described = aws.client("dynamodb").describe_table(TableName=table)["Table"]
        self._arn = described["LatestStreamArn"]
        self.mappings = {mapping.function: mapping for mapping in self._mappings()}
        self._stopped = threading.Event()

    @contextmanager
    def running(self) -> Iterator["Pump"]:
        """Delivers until the block ends."""
        threads = [
            threading.Thread(target=self._run, args=(mapping,), daemon=True)
            for mapping in self.mappings.values()
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            for thread in threads:
                thread.join(ANSWER_SECONDS_MAX)

    def _mappings(self) -> Iterator[StreamMapping]:
        listing = self._aws.client("lambda").list_event_source_mappings(EventSourceArn=self._arn)
        for mapping in listing["EventSourceMappings"]:
            filters = mapping.get("FilterCriteria", {}).get("Filters", ())
            failed = (
                mapping.get("DestinationConfig", {}).get("OnFailure", {}).get("Destination", "")
            )
            yield StreamMapping(
                # The name with the alias, if the mapping has an alias.
                function=mapping["FunctionArn"].partition(":function:")[2],
                filters=[json.loads(condition["Pattern"]) for condition in filters],
                batch_size=mapping["BatchSize"],
                window_seconds=mapping.get("MaximumBatchingWindowInSeconds", 0),
                tries_max=1 + mapping.get("MaximumRetryAttempts", 0),
                halves=mapping.get("BisectBatchOnFunctionError", False),
                dead_letters=failed,
            )

    def _run(self, mapping: StreamMapping) -> None:
        streams = self._aws.client("dynamodbstreams")
        shards = streams.describe_stream(StreamArn=self._arn)["StreamDescription"]["Shards"]
        iterators = [
            streams.get_shard_iterator(
                StreamArn=self._arn,
                ShardId=shard["ShardId"],
                ShardIteratorType="TRIM_HORIZON",
            )["ShardIterator"]
            for shard in shards
        ]
        client = self._aws.client("lambda", read_timeout=INVOKE_SECONDS_MAX)
        waiting: list[Record] = []
        since = 0.0
        while not self._stopped.wait(POLL_SECONDS):
            for n, iterator in enumerate(iterators):
                answer = streams.get_records(ShardIterator=iterator, Limit=READ_MAX)
                iterators[n] = answer["NextShardIterator"]
                new = [item for item in map(_event, answer["Records"]) if mapping.wants(item)]
                if new and not waiting:
                    since = time.monotonic()
                waiting += new
            late = mapping.window_seconds + mapping.lag_seconds
            is_due = time.monotonic() - since >= late or len(waiting) >= mapping.batch_size
            while waiting and is_due and not self._stopped.is_set():
                batch, waiting = waiting[: mapping.batch_size], waiting[mapping.batch_size :]
                for _ in range(1 + mapping.repeats):
                    self._deliver(client, mapping, batch, 1)

    def _deliver(
        self, client: Any, mapping: StreamMapping, batch: list[Record], tries: int
    ) -> None:
        while batch and not self._stopped.is_set():
            failed = self._invoke(client, mapping, batch)
            if failed is None:
                return
            if failed:
                # Records before the first failed record are done.
                batch, tries = batch[failed:], 1
            elif tries >= mapping.tries_max:
                mapping.lost += batch
                self._send_dead_letter(mapping, batch)
                return
            elif mapping.halves and len(batch) > 1:
                half = len(batch) // 2
                self._deliver(client, mapping, batch[:half], tries + 1)
                batch = batch[half:]
                tries += 1
            else:
                tries += 1
                time.sleep(RETRY_SECONDS)

    def _invoke(self, client: Any, mapping: StreamMapping, batch: list[Record]) -> int | None:
        """Invoke the function with a batch. Return the index of the first failed record, or None
        after success.
        """
        mapping.invocations += 1
        mapping.records += len(batch)
        while True:
            try:
                answer = client.invoke(
                    FunctionName=mapping.function, Payload=json.dumps({"Records": batch})
                )
                break
            except client.exceptions.TooManyRequestsException:
                # The function runs at its concurrency limit, which does not count as a try.
                time.sleep(RETRY_SECONDS)
        result = json.loads(answer["Payload"].read() or b"null")
        if answer.get("FunctionError"):
            return 0
        failed = {
            batch_item_failure["itemIdentifier"]
            for batch_item_failure in (result or {}).get("batchItemFailures", ())
        }
        numbers = [item["dynamodb"]["SequenceNumber"] for item in batch]
        if failed - set(numbers):
            return 0
        return min((numbers.index(item) for item in failed), default=None)

    def _send_dead_letter(self, mapping: StreamMapping, batch: Sequence[Record]) -> None:
        if not mapping.dead_letters:
            return
        sqs = self._aws.client("sqs")
        queue = sqs.get_queue_url(QueueName=mapping.dead_letters.rpartition(":")[2])["QueueUrl"]
        first, last = batch[0], batch[-1]
        about = {
            "DDBStreamBatchInfo": {
                "startSequenceNumber": first["dynamodb"]["SequenceNumber"],
                "endSequenceNumber": last["dynamodb"]["SequenceNumber"],
                "batchSize": len(batch),
                "streamArn": self._arn,
            }
        }
        sqs.send_message(QueueUrl=queue, MessageBody=json.dumps(about))


def _is_one(wish: Any, value: Any) -> bool:
    if isinstance(wish, Mapping) and set(wish) == {"prefix"}:
        return isinstance(value, str) and value.startswith(wish["prefix"])
    if isinstance(wish, Mapping):
        raise AssertionError(f"this filter is not understood here: {wish}")
    return bool(wish == value)


def _event(record: Record) -> Record:
    """Return a record in the form that a function receives."""
    about = dict(record["dynamodb"])
    about["ApproximateCreationDateTime"] = about["ApproximateCreationDateTime"].timestamp()
    names = ("eventID", "eventName", "eventVersion", "eventSource", "awsRegion")
    return {**{name: record[name] for name in names}, "dynamodb": _plain(about)}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
