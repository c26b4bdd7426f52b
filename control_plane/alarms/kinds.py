"""The alarms that the cluster decides. Pure.

Each alarm has a page in docs/runbook.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class AlarmKind:
    """An alarm that the cluster decides."""

    name: str
    meaning: str
    """The condition, as a sentence for users."""
    lasts_ms: int = 0
    """The time for which the condition must last before the alarm is raised."""


FAILED_BOOTS: Final = AlarmKind("failed-boots", "Machines of an offering do not boot.")
QUEUE_WAIT: Final = AlarmKind("queue-wait", "A job waits for slots for too long.")
MACHINE_AGE: Final = AlarmKind("machine-age", "A machine has been running for too long.")
HOURLY_COST: Final = AlarmKind(
    "hourly-cost", "The machines cost much more an hour than in the week before."
)
LAG: Final = AlarmKind(
    "lag",
    "Messages inside the cluster wait for the tick of each minute, so that everything is slow.",
    # Messages are late for a moment after a process was killed. Two checks in a row show a fault.
    4 * MINUTE_MS,
)

CLUSTER_ALARMS: Final[Mapping[str, AlarmKind]] = MappingProxyType(
    {kind.name: kind for kind in (FAILED_BOOTS, HOURLY_COST, LAG, MACHINE_AGE, QUEUE_WAIT)}
)
