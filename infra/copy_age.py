"""The check of the newest export of a stack's state in another region, for both clouds."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from infra.copy_settings import Copies
from infra.findings import Finding, Level, fine_finding

SUBJECT: Final = "copies"
"""The subject of findings about copies."""


def check_export_age(copies: Copies, remedy: str, newest: datetime | None) -> Iterator[Finding]:
    """Yield a warning if the newest export is missing or older than two intervals.

    Args:
        copies: the stack's setting.
        remedy: the remedy for an old export, which names the place of the reason.
        newest: the time of the newest export; None without an export.
    """
    age = None if newest is None else datetime.now(UTC) - newest
    if age is None:
        text = f"no export of the state has been made in {copies.region} yet"
        first = f"the first one is made within {copies.hours} h of the deployment"
        yield Finding(Level.WARNING, SUBJECT, text, first)
    elif age > timedelta(hours=2 * copies.hours):
        text = f"the newest export of the state is {age.total_seconds() / 3600:.0f} h old"
        yield Finding(Level.WARNING, SUBJECT, text, remedy)
    else:
        yield fine_finding(SUBJECT, f"the newest export is of {newest:%Y-%m-%d %H:%M} UTC")
