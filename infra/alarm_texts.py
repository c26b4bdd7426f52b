"""The texts of the alarms that the clouds evaluate, for descriptions and notifications. Pure."""

from collections.abc import Mapping
from typing import Final

from control_plane.alarms.runbook import runbook_page

# The setting `runbookUrl` of every cloud. Google accepts links of up to 1024 characters.
RUNBOOK_URL: Final = r"https?://[^\s\"<>]{1,400}"
RUNBOOK_URL_EXPECTED: Final = (
    "a URL of at most 400 characters, such as https://wiki.example.com/runbook"
)

MEANINGS: Final[Mapping[str, str]] = {
    "minute": (
        "No minute tick has run for ten minutes. Without the tick, no machine is launched or "
        "terminated. Idle machines end themselves after an hour."
    ),
    "errors": "A function logged an error, or ran out of time or memory.",
    "api": "The API answered several requests in five minutes with a status of 5xx.",
    "dead-letters": "A message, a notice, a new row or a minute was dropped after all retries.",
    "throttles": "The state table throttled reads or writes.",
}


def describe_alarm(alarm: str, cluster: str, runbook_url: str) -> str:
    """Return the description of an alarm: the cluster, the meaning, and the page of the runbook.

    Raises KeyError for an alarm that MEANINGS lacks.
    """
    page = runbook_page(alarm, runbook_url)
    return f"{cluster}: {MEANINGS[alarm]} Runbook: {page}"
