"""Parsing of events about new rows of the state table.

Eventarc sends an event for a new document in Firestore, as a CloudEvent in binary mode over HTTP.
The headers name the document. The content is not read, because the row may have changed or been
deleted since. Events may be repeated and may arrive in another order.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from urllib.parse import unquote

from control_plane.gcp.row_documents import CREATED, ROW_ID, TRIGGER_PATTERNS
from lambdas.clock import TAKEOVER_MS

TYPE, DOCUMENT, TIME = "ce-type", "ce-document", "ce-time"
VERSION, SPEC_VERSION = "ce-specversion", "1.0"
REQUIRED = ("ce-id", "ce-source", TYPE, VERSION)
# The content type of events in structured or batched mode, which Eventarc does not use here.
WHOLE_EVENT = "application/cloudevents"
# After a commit, the sender of a message advances the receiver for about this time. If the event
# were handled earlier, two processes would do the same work, and the later commit would fail.
SENDER_SECONDS = 0.25


class NotAnEvent(Exception):
    """A request is not an event about a new row for this function."""


def is_event(headers: Mapping[str, str]) -> bool:
    """Return whether a request is a CloudEvent in any mode: structured, batched or binary."""
    is_whole = headers.get("content-type", "").startswith(WHOLE_EVENT)
    return is_whole or any(name.startswith("ce-") for name in headers)


def seconds_of_sender(headers: Mapping[str, str], now_seconds: float) -> float:
    """Return the seconds until SENDER_SECONDS have passed since the commit of an event's row.

    Meanwhile the sender of a message may still process the row. The result is from 0 to
    SENDER_SECONDS. Return 0 if the time of the commit is missing or invalid.

    Args:
        headers: the event's headers, with names in lower case.
        now_seconds: the current epoch time in seconds.
    """
    try:
        committed = datetime.fromisoformat(headers.get(TIME, "")).timestamp()
    except (ValueError, OverflowError):
        return 0.0
    # If this machine's clock is behind Google's, the difference would be too large.
    return max(0.0, min(SENDER_SECONDS, committed + SENDER_SECONDS - now_seconds))


def is_left_to_tick(headers: Mapping[str, str], now_ms: int) -> bool:
    """Return whether an event is older than TAKEOVER_MS, so that a tick has seen the row.

    Return False if the time of the event is missing or invalid.

    Args:
        headers: the event's headers, with names in lower case.
        now_ms: the current epoch time in ms.
    """
    try:
        committed = datetime.fromisoformat(headers.get(TIME, "")).timestamp()
    except (ValueError, OverflowError):
        return False
    return now_ms - int(committed * 1000) > TAKEOVER_MS


def new_row_path(headers: Mapping[str, str], function: str) -> str:
    """Return the path, in the database, of the new document that an event reports.

    Raises NotAnEvent if the request is not a binary CloudEvent about a new document, or if the
    document's path does not match the trigger of `function`. Raises KeyError for another function.

    Args:
        headers: the request's headers, with names in lower case.
        function: `advance` or `tick`.
    """
    content = headers.get("content-type", "")
    if content.startswith(WHOLE_EVENT):
        raise NotAnEvent(f"content-type is {content!r:.80}; expected an event in headers")
    missing = [name for name in REQUIRED if not headers.get(name)]
    if missing:
        raise NotAnEvent(f"an event has no {', '.join(missing)}")
    if headers[VERSION] != SPEC_VERSION:
        raise NotAnEvent(f"{VERSION} is {headers[VERSION]!r:.20}, not {SPEC_VERSION}")
    kind, path = headers.get(TYPE, ""), unquote(headers.get(DOCUMENT, ""))
    if kind != CREATED:
        raise NotAnEvent(f"{TYPE} is {kind!r:.80}, not {CREATED}")
    parents, _, name = path.rpartition("/")
    expected = TRIGGER_PATTERNS[function]
    if parents != expected.rpartition("/")[0] or re.fullmatch(ROW_ID, name) is None:
        raise NotAnEvent(f"{DOCUMENT} is {path!r:.200}, not {expected}")
    return path
