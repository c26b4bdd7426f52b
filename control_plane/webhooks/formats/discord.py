"""The format `discord`: an embed for a webhook of Discord."""

from datetime import UTC, datetime

from control_plane.webhooks.formats.message import Announcement, fact_fields, json_request
from control_plane.webhooks.sender import Request

_COLORS = {"bad": 0xCB2431, "warning": 0xE5A000, "good": 0x2DA44E, "neutral": 0x6E7781}
_MARKUP = str.maketrans({character: f"\\{character}" for character in "\\*_`~|>[]()#@"})


def build_request(announcement: Announcement) -> Request:
    """Return the message with an embed. The message mentions nobody."""
    event = announcement.event
    embed: dict[str, object] = {
        "title": announcement.title.translate(_MARKUP)[:256],
        "description": event.text.translate(_MARKUP)[:4000],
        "color": _COLORS[announcement.mood],
        "timestamp": datetime.fromtimestamp(event.time_ms / 1000, UTC).isoformat(),
        "fields": [
            {"name": name, "value": str(value).translate(_MARKUP)[:1000], "inline": True}
            for name, value in fact_fields(announcement).items()
        ],
    }
    if announcement.link:
        embed["url"] = announcement.link
    message = {"embeds": [embed], "allowed_mentions": {"parse": []}}
    return json_request(announcement.url, message)
