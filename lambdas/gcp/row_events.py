"""Events that tell of a new row of the state table: CloudEvents in binary mode over HTTP, as
Eventarc sends them for a document of Firestore that was created.

The event's headers name the document; what it brings is not read, for the row may have changed or
gone since. An event may come more than once, and later than one that was sent after it.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from urllib.parse import unquote

from control_plane.gcp.row_documents import CREATED, ROW_ID, TRIGGER_PATTERNS

TYPE, DOCUMENT, TIME = "ce-type", "ce-document", "ce-time"
VERSION, SPEC_VERSION = "ce-specversion", "1.0"
REQUIRED = ("ce-id", "ce-source", TYPE, VERSION)
# The content of an event in structured or batched mode, which Eventarc sends no document in.
WHOLE_EVENT = "application/cloudevents"
# The sender of a message goes on with its receiver. An event that comes sooner after its commit has
# the same work done twice at once, and one of the commits lost.
SENDER_SECONDS = 0.25


class NotAnEvent(Exception):
    """A request is no event of a new row that this function is called for."""


def is_event(headers: Mapping[str, str]) -> bool:
    """Whether a request is an event of any kind, a whole one or not."""
    is_whole = headers.get("content-type", "").startswith(WHOLE_EVENT)
    return is_whole or any(name.startswith("ce-") for name in headers)


def seconds_of_sender(headers: Mapping[str, str], now_seconds: float) -> float:
    """Return for how many seconds more the sender of an event's row may be at work on it, by the
    time of its commit; 0 for an event that tells none.
    """
    try:
        committed = datetime.fromisoformat(headers.get(TIME, "")).timestamp()
    except (ValueError, OverflowError):
        return 0.0
    # A clock that is behind Google's waits no longer.
    return max(0.0, min(SENDER_SECONDS, committed + SENDER_SECONDS - now_seconds))


def new_row_path(headers: Mapping[str, str], function: str) -> str:
    """Return the path of the document that an event says is new, one of those whose creation calls
    `function`. Raises NotAnEvent.
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
