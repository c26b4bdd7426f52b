"""Processing of the state table's stream, whose records report new mail of actors.

The records of a batch are grouped by actor, so that each actor is advanced once.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from control_plane.engine.engine import Engine
from control_plane.state.table import Key
from lambdas.clock import TAKEOVER_MS
from lambdas.receivers import NotAdvanced, advance_receiver

log = logging.getLogger(__name__)

Record = Mapping[str, Any]


@dataclass
class BatchOutcome:
    """The outcome of a batch of stream records."""

    actors: int = 0
    """The number of actors in the records."""
    with_mail: int = 0
    """The number of these actors that still had mail."""
    failed: list[str] = field(default_factory=list)
    """The sequence numbers of the records that the stream must deliver again."""

    def answer(self) -> dict[str, Any]:
        """Return the response to Lambda's event source mapping, which lists the failed records.

        The stream then continues with the earliest failed record. Without failed records the list
        is empty, and the stream continues after the batch.
        """
        return {"batchItemFailures": [{"itemIdentifier": number} for number in self.failed]}


def key_of(record: Record) -> Key:
    """Return the key of the row in a stream record.

    Raises KeyError or TypeError if the value is not a stream record.
    """
    keys = record["dynamodb"]["Keys"]
    return Key(keys["p"]["S"], keys["s"]["S"])


def is_left_to_tick(record: Record, now_ms: int) -> bool:
    """Return whether a record is older than TAKEOVER_MS, so that a tick has seen the row.

    Return False for a record without a time.
    """
    created = record["dynamodb"].get("ApproximateCreationDateTime")
    return created is not None and now_ms - int(created * 1000) > TAKEOVER_MS


def advance_receivers(
    engine: Engine, records: Sequence[Record], left_ms: Callable[[], int]
) -> BatchOutcome:
    """Advance the receivers of the messages in stream records, each receiver once.

    Return the counts and the records that failed. A record fails if it names no row, which is
    logged, or if its receiver could not be advanced because of the time or the state table. Raises
    KeyError for a record without a sequence number.

    Args:
        left_ms: returns the time until the function is stopped.
    """
    outcome = BatchOutcome()
    numbers: dict[str, list[str]] = {}
    for record in records:
        number = record["dynamodb"]["SequenceNumber"]
        try:
            numbers.setdefault(key_of(record).partition, []).append(number)
        except (KeyError, TypeError):
            log.exception("record %s names no row", number)
            outcome.failed.append(number)
    for address, actor_numbers in numbers.items():
        try:
            outcome.with_mail += advance_receiver(engine, address, left_ms)
        except NotAdvanced:
            outcome.failed += actor_numbers
        outcome.actors += 1
    return outcome
