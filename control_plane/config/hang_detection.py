"""The section `hang_detection`: the detection of trials that live but do nothing."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from control_plane.config.durations import PositiveDuration
from control_plane.config.section import Section

THIRTY_MINUTES_MS = 1_800_000


def _word(value: object) -> object:
    """Return the word `off` for False, which YAML reads from `off`. Return other values."""
    return "off" if value is False else value


class HangDetection(Section):
    """When a silent trial counts as hanging, and what follows."""

    timeout: PositiveDuration = THIRTY_MINUTES_MS
    """The shortest silence that counts as a hang. A trial is silent while it neither reports nor
    prints anything. The silence must also be ten times as long as the usual time between two
    outputs of the run.
    """
    action: Annotated[Literal["notify", "restart", "off"], BeforeValidator(_word)] = "notify"
    """`notify` prints the stacks of all processes to the trial's log. `restart` also ends the run
    afterwards, which uses up a restart. `off` detects nothing.
    """

    def spec_fields(self) -> dict[str, Any]:
        """Return the field of a trial's specification, or {} if nothing is detected."""
        return {} if self.action == "off" else {"hang_timeout_ms": self.timeout}
