"""The format `pagerduty`: an event for PagerDuty's Events API v2.

The last part of the webhook's URL is the routing key, as in
`https://events.pagerduty.com/v2/enqueue/KEY`. The key is sent in the body, and the request goes to
the URL without the key.
"""

from control_plane.actors.event_routes import EventType
from control_plane.webhooks.formats.message import Announcement, fact_fields, json_request
from control_plane.webhooks.sender import Request

_SEVERITIES = {"bad": "error", "warning": "warning", "good": "info", "neutral": "info"}
SUMMARY_CHARACTERS_MAX = 1_000


def build_request(announcement: Announcement) -> Request:
    """Return the event. The end of an alarm resolves the incident of the alarm.

    Incidents have the subject of the event as key, so that an experiment has one incident.
    """
    event = announcement.event
    url, _, key = announcement.url.rpartition("/")
    is_cleared = event.type == EventType.ALARM and event.condition.get("state") == "cleared"
    payload = {
        "summary": announcement.title[:SUMMARY_CHARACTERS_MAX],
        "source": announcement.cluster,
        "severity": _SEVERITIES[announcement.mood],
        "custom_details": {**fact_fields(announcement), "Text": event.text},
    }
    body: dict[str, object] = {
        "routing_key": key,
        "event_action": "resolve" if is_cleared else "trigger",
        "dedup_key": f"{announcement.cluster}/{event.subject}"[:255],
        "payload": payload,
    }
    if announcement.link:
        body["links"] = [{"href": announcement.link, "text": "Open"}]
    return json_request(url, body)
