"""The section `schedule` of experiments: the times at which new experiments are submitted.

The section only checks the forms of the fields. `control_plane/cron_times.py` reads the expression
and the time zone, because time zones are files of the machine.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from annotated_types import MaxLen, MinLen

from control_plane.config.section import Section

SECTION: Final = "schedule"
CRON_CHARACTERS_MAX: Final = 200


class Schedule(Section):
    """The times at which new experiments are submitted."""

    cron: Annotated[str, MinLen(1), MaxLen(CRON_CHARACTERS_MAX)]
    """The times as a cron expression: minute, hour, day of the month, month and day of the week. Or
    a name: `@hourly`, `@daily`, `@weekly`, `@monthly` or `@yearly`.
    """
    time_zone: Annotated[str, MinLen(1), MaxLen(64)] = "UTC"
    """The time zone of the expression, for example `Europe/Berlin`."""
    overlap: Literal["skip", "allow"] = "skip"
    """The rule while the schedule's last experiment has not ended. `skip`: no experiment is
    submitted. `allow`: the new experiment runs at the same time as the last experiment.
    """
    catch_up: bool = False
    """Whether a single experiment is submitted after times that the cluster missed. Otherwise the
    schedule continues with the next time.
    """
