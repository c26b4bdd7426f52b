"""The section `low_use`: the policy for trials with a low use of slots."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from control_plane.config.durations import PositiveDuration
from control_plane.config.section import Section

HOUR_MS = 3_600_000


class LowUse(Section):
    """The limit below which the use of slots is low, and the consequence."""

    percent: Annotated[int, Ge(1), Le(100)] = 5
    """The mean use of the slots in percent, below which the use is low."""
    time: PositiveDuration = HOUR_MS
    """The time over which the mean is computed. The use of all nodes must be low."""
    action: Literal["notify", "end", "ignore"] = "notify"
    """`notify` shows the low use and sends the event `LOW_USE` to webhooks. `end` also cancels the
    trial, which saves a checkpoint first. `ignore` does nothing.
    """

    def spec_fields(self) -> dict[str, Any]:
        """Return the field of a trial's specification, or {} without a policy."""
        if self.action == "ignore":
            return {}
        return {"low_use": {"percent": self.percent, "time_ms": self.time}}
