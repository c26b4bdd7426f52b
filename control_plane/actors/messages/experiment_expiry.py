"""The messages to an experiment about expired logs and metrics."""

from dataclasses import dataclass

from control_plane.actors.records import DataRetention


@dataclass(frozen=True, slots=True)
class ExpiryDue:
    """The retention of logs or metrics may have ended."""


@dataclass(frozen=True, slots=True)
class ExpiryRequested:
    """Command of an admin: delete expired logs and metrics.

    The cluster's schedule is not awaited. The reply is whether anything will be deleted.
    """

    defaults: DataRetention
    """The cluster's present defaults, for days that the experiment does not set."""
