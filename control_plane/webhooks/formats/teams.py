"""The format `teams`: an adaptive card for a workflow of Microsoft Teams."""

from control_plane.webhooks.formats.message import Announcement, fact_fields, json_request
from control_plane.webhooks.sender import Request

_COLORS = {"bad": "Attention", "warning": "Warning", "good": "Good", "neutral": "Default"}
_MARKUP = str.maketrans({character: f"\\{character}" for character in "\\*_[]()`~#>"})


def build_request(announcement: Announcement) -> Request:
    """Return the card with the title, the text and the facts of the event."""
    event = announcement.event
    body: list[dict[str, object]] = [
        {
            "type": "TextBlock",
            "text": announcement.title.translate(_MARKUP),
            "weight": "Bolder",
            "color": _COLORS[announcement.mood],
            "wrap": True,
        }
    ]
    if event.text:
        body.append({"type": "TextBlock", "text": event.text.translate(_MARKUP), "wrap": True})
    facts = [
        {"title": name, "value": str(value).translate(_MARKUP)}
        for name, value in fact_fields(announcement).items()
    ]
    body.append({"type": "FactSet", "facts": facts})
    card: dict[str, object] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": body,
    }
    if announcement.link:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Open", "url": announcement.link}]
    content = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return json_request(announcement.url, {"type": "message", "attachments": [content]})
