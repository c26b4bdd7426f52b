"""The stored records of the cluster's alarms. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Finding:
    """A condition that is true now."""

    alarm: str
    """The name of the alarm, a key of CLUSTER_ALARMS."""
    pool: str
    """The pool, or "" for the cluster as a whole."""
    text: str
    """What was found, as a sentence for users."""
    value: str = ""
    """The measured value, in the form of the threshold of `threshold_text`."""


@dataclass(frozen=True, slots=True)
class AlarmRow:
    """An alarm from the first finding to the notification of the end. Times are epoch ms."""

    alarm: str
    """The name of the alarm."""
    pool: str
    """The pool, or "" for the cluster as a whole."""
    text: str
    """What was found when the condition was last true, as a sentence for users."""
    since_ms: int
    """The time at which the condition was first found."""
    raised_ms: int | None = None
    """The time at which the alarm was raised. None while the condition has not lasted long
    enough.
    """
    cleared_ms: int | None = None
    """The time at which the condition of a raised alarm was no longer found."""
    is_notified: bool = False
    """Whether users were notified that the alarm was raised."""
    claimed_ms: int = 0
    """The time at which a process began to send a notification; 0 if no process has begun."""
    value: str = ""
    """The measured value of the same check, or "" in rows of older versions."""


@dataclass(frozen=True, slots=True)
class CostHistory:
    """The highest costs per hour of all machines."""

    began_hour: int
    """The hour of the first record, in hours since the epoch."""
    peaks: Mapping[int, int] = field(default_factory=dict)
    """The highest micro-dollars per hour in an hour, by hours since the epoch. Hours without costs
    are missing.
    """
