"""The table's stream: which actors have new mail, and which of its records could not be served.

Whoever sent a message has usually gone on with its receiver by the time its record comes, so the
records are gathered by actor, and an actor without mail costs one read.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from control_plane.dispatch.engine import BUDGET_MS, Engine
from control_plane.state.table import Key, TableError

log = logging.getLogger(__name__)

# For the commit under way and the answer.
RESERVE_MS = 5_000

Record = Mapping[str, Any]


@dataclass
class Served:
    """What became of a batch: actors that had mail left, and the records that must come again."""

    actors: int = 0
    waiting: int = 0
    failed: list[str] = field(default_factory=list)

    def answer(self) -> dict[str, Any]:
        """What the stream's mapping wants to hear: it goes on behind the first that failed."""
        return {"batchItemFailures": [{"itemIdentifier": number} for number in self.failed]}


def key_of(record: Record) -> Key:
    """The row that a record is about. Raises KeyError or TypeError for what is no record."""
    keys = record["dynamodb"]["Keys"]
    return Key(keys["p"]["S"], keys["s"]["S"])


def serve(engine: Engine, records: Sequence[Record], left_ms: Callable[[], int]) -> Served:
    """Advances the actors that the records' messages were sent to, as far as the time allows."""
    served = Served()
    numbers: dict[str, list[str]] = {}
    for record in records:
        number = record["dynamodb"]["SequenceNumber"]
        try:
            numbers.setdefault(key_of(record).partition, []).append(number)
        except (KeyError, TypeError):
            log.exception("record %s names no row", number)
            served.failed.append(number)
    for address, theirs in numbers.items():
        budget_ms = min(BUDGET_MS, left_ms() - RESERVE_MS)
        if budget_ms <= 0:
            served.failed += theirs
            continue
        served.actors += 1
        try:
            if engine.has_mail(address):
                served.waiting += 1
                engine.follow((address,), budget_ms=budget_ms)
        except TableError as error:
            log.warning("%s was not advanced: %s", address, error)
            served.failed += theirs
    return served
