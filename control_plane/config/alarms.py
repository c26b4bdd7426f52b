"""The section `alarms` of cluster configurations: the thresholds of the cluster's alarms."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le
from pydantic import Field

from control_plane.config.durations import UNITS_MS, PositiveDuration
from control_plane.config.section import Section

AlarmName = Literal["failed-boots", "hourly-cost", "lag", "machine-age", "queue-wait"]


class Alarms(Section):
    """The thresholds of the alarms that the cluster decides."""

    off: Annotated[tuple[AlarmName, ...], Field(strict=False)] = ()
    """The alarms that are never raised."""
    failed_boots: Annotated[int, Ge(1), Le(1000)] = 2
    """`failed-boots` is raised if this many machines of an offering have failed to boot in a row.
    """
    queue_wait: PositiveDuration = 2 * UNITS_MS["h"]
    """`queue-wait` is raised if a job holds no slots, and its oldest request has waited for this
    time.
    """
    machine_age: PositiveDuration = 14 * UNITS_MS["d"]
    """`machine-age` is raised if a machine of a pool was launched longer ago."""
    hourly_cost_factor: Annotated[float, Ge(1), Le(1000)] = 2.0
    """`hourly-cost` is raised if all machines cost more an hour than this many times the most
    expensive hour of the week before. That week ended a day ago.
    """
    hourly_cost_minimum: Annotated[float, Ge(0), Le(1_000_000)] = 10.0
    """The dollars an hour up to which `hourly-cost` is not raised."""
    lag: PositiveDuration = 30 * UNITS_MS["s"]
    """`lag` is raised if a message inside the cluster has waited for this time, in two checks five
    minutes apart.
    """
