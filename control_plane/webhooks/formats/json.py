"""The format `json`: the payload of Determined with further fields.

Receivers of Determined's webhooks read `event_id`, `event_type`, `timestamp`, `condition` and
`event_data`.
"""

from control_plane.webhooks.formats.message import Announcement, json_request
from control_plane.webhooks.sender import Request


def build_request(announcement: Announcement) -> Request:
    """Return the request with the whole event as JSON."""
    event = announcement.event
    payload = {
        "event_id": event.id,
        "event_type": event.type,
        "timestamp": event.time_ms // 1000,
        "condition": event.condition,
        "event_data": event.data,
        "time_ms": event.time_ms,
        "subject": event.subject,
        "number": event.number,
        "title": event.title,
        "text": event.text,
        "cluster": announcement.cluster,
        "link": announcement.link,
    }
    return json_request(announcement.url, payload)
