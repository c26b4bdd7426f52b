"""The section `retention_policy`: the time for which logs and detailed metrics are kept.

An experiment has the days, and the cluster's configuration has defaults and the schedule. The names
`log_retention_days` and `schedule` are Determined's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from annotated_types import Ge, Le
from pydantic import AfterValidator

from control_plane.actors.records import RETENTION_DAYS_MAX, DataRetention
from control_plane.config.durations import find_duration_ms
from control_plane.config.section import Section, refuse
from control_plane.findings import Finding, value_text

SECTION: Final = "retention_policy"
LOG_DAYS: Final = "log_retention_days"
METRICS_DAYS: Final = "metrics_retention_days"
_NAMES: Final = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
_FIELD: Final = re.compile(r"[0-9A-Za-z*,/#\-]{1,100}\Z")
_FIELDS: Final = 5


def _check_schedule(text: str) -> str:
    fields = text.split()
    is_cron = len(fields) == _FIELDS and all(map(_FIELD.match, fields))
    if not is_cron and text.strip().lower() not in _NAMES and not find_duration_ms(text):
        hint = "write five fields such as 0 3 * * *, a name such as @daily, or a time such as 24h"
        refuse(f"must be a cron expression or a duration, not {value_text(text)}", hint)
    return text


RetentionDays = Annotated[int, Ge(-1), Le(RETENTION_DAYS_MAX)]
"""A retention in days. -1 stands for an unlimited retention."""
DeletionTimes = Annotated[str, AfterValidator(_check_schedule)]
"""The times of deletions, as a cron expression or a duration."""


class RetentionRules(Section):
    """The defaults for the retention of logs and metrics, and the times of deletions."""

    log_retention_days: RetentionDays | None = None
    """The default `log_retention_days` of experiments, commands, notebooks and shells. -1: logs are
    kept as long as the experiment, as without a value.
    """
    metrics_retention_days: RetentionDays | None = None
    """The default `metrics_retention_days` of experiments, commands, notebooks and shells. -1:
    metrics are kept as long as the experiment, as without a value.
    """
    schedule: DeletionTimes | None = None
    """The times of deletions: a cron expression in UTC, or a duration such as 24h. Data is deleted
    at the first time after the end of its retention. If absent, data is deleted within minutes
    after the end of its retention.
    """

    def config_layer(self) -> dict[str, Any]:
        """Return the default days as a layer of a job's configuration. {} without defaults."""
        days = {
            name: getattr(self, name)
            for name in (LOG_DAYS, METRICS_DAYS)
            if getattr(self, name) is not None
        }
        return {SECTION: days} if days else {}


def retention_findings(fields: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Yield a finding for each unknown field and each wrong number of an experiment's section."""
    for name, value in (fields or {}).items():
        if name not in (LOG_DAYS, METRICS_DAYS):
            hint = f"it has {LOG_DAYS} and {METRICS_DAYS}"
            yield Finding((SECTION, str(name)), "is unknown", hint)
        elif value is not None and not _is_days(value):
            text = f"must be a whole number from -1 to {RETENTION_DAYS_MAX}"
            yield Finding((SECTION, name), text, "-1 keeps the data for ever", value)


def stored_retention(fields: Mapping[str, Any] | None) -> DataRetention:
    """Return the retention of a configuration's section.

    Missing and invalid numbers are None: older releases stored the section unchecked.
    """
    log_days, metrics_days = (
        value if _is_days(value := (fields or {}).get(name)) else None
        for name in (LOG_DAYS, METRICS_DAYS)
    )
    return DataRetention(log_days, metrics_days)


def _is_days(value: object) -> bool:
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return -1 <= value <= RETENTION_DAYS_MAX
