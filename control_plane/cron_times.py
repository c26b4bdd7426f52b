"""The times of cron expressions in a time zone.

The package `cronsim` computes the times, and follows Debian's cron when clocks change. A time that
the change skips moves to the first minute after the change. A repeated time counts once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

MINUTE_MS = 60_000
_SECOND_MS = 1_000
_FIELDS = 5
_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class CronInvalid(ValueError):
    """A text that is not a cron expression, or that no day ever matches."""


class ZoneUnknown(ValueError):
    """A name that is not a time zone of the IANA database."""


@dataclass(frozen=True)
class CronTimes:
    """The times of a cron expression in a time zone.

    Args:
        cron: five fields, or a name, for example `@daily`.
        time_zone: a name of the IANA database, for example `Europe/Berlin`.

    Raises:
        CronInvalid: the expression cannot be read, or has no time in the next decades.
        ZoneUnknown: the time zone does not exist.
    """

    cron: str
    time_zone: str
    _expression: str = field(init=False, repr=False)
    _zone: ZoneInfo = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_expression", _expression_of(self.cron))
        object.__setattr__(self, "_zone", find_zone(self.time_zone))
        # cronsim searches 50 years, in which the days of the week repeat.
        self.next_time(0)

    def times_after(self, after_ms: int) -> Iterator[int]:
        """Yield the times after `after_ms` in epoch ms, in order. The iterator may never end."""
        start = datetime.fromtimestamp(after_ms // _SECOND_MS, UTC).astimezone(self._zone)
        try:
            times = CronSim(self._expression, start)
        except CronSimError as error:
            raise CronInvalid(f"is not a cron expression: {error}") from None
        last_ms = after_ms
        for time in times:
            time_ms = int(time.timestamp()) * _SECOND_MS
            # In the repeated hour, cronsim may return the first of two equal times of day again.
            if time_ms > last_ms:
                last_ms = time_ms
                yield time_ms

    def next_time(self, after_ms: int) -> int:
        """Return the first time after `after_ms` in epoch ms. Raises CronInvalid for no time."""
        found = next(self.times_after(after_ms), None)
        if found is None:
            raise CronInvalid("has no time: no day matches")
        return found


def _expression_of(cron: str) -> str:
    """Return the five fields of an expression. Raises CronInvalid for another number of fields."""
    text = cron.strip()
    if text.startswith("@"):
        found = _ALIASES.get(text.lower())
        if found is None:
            raise CronInvalid(f"must be five fields or one of {', '.join(_ALIASES)}")
        return found
    if len(text.split()) != _FIELDS:
        raise CronInvalid("must have five fields: minute, hour, day, month and weekday")
    return text


def find_zone(name: str) -> ZoneInfo:
    """Return the time zone with this name. Raises ZoneUnknown."""
    try:
        return ZoneInfo(name)
    # A folder of the database raises IsADirectoryError, and a hostile name ValueError.
    except (OSError, ValueError, KeyError):
        raise ZoneUnknown("is not a time zone such as Europe/Berlin or UTC") from None
