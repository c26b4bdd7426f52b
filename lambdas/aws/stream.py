"""The table's stream: which actors have new mail, and which of its records could not be served.

Records are gathered by actor, of which each is looked at once.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from control_plane.engine.engine import Engine
from control_plane.state.table import Key
from lambdas.receivers import NotAdvanced, advance_receiver

log = logging.getLogger(__name__)

Record = Mapping[str, Any]


@dataclass
class BatchOutcome:
    """The outcome of a batch of records. `actors`: how many they were about; `with_mail`: how many
    of those had mail left; `failed`: the sequence numbers of records that must come again.
    """

    actors: int = 0
    with_mail: int = 0
    failed: list[str] = field(default_factory=list)

    def answer(self) -> dict[str, Any]:
        """Return the answer to the stream's mapping, which goes on behind the first that failed."""
        return {"batchItemFailures": [{"itemIdentifier": number} for number in self.failed]}


def key_of(record: Record) -> Key:
    """Return the key of the row that a record is about. Raises KeyError or TypeError for what is no
    record.
    """
    keys = record["dynamodb"]["Keys"]
    return Key(keys["p"]["S"], keys["s"]["S"])


def advance_receivers(
    engine: Engine, records: Sequence[Record], left_ms: Callable[[], int]
) -> BatchOutcome:
    """Advance the actors that the records' messages were sent to, as far as the time allows."""
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
