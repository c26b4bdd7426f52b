"""The format `slack`: a message of blocks for an incoming webhook of Slack."""

from control_plane.webhooks.formats.message import Announcement, fact_fields, json_request
from control_plane.webhooks.sender import Request

_COLORS = {"bad": "#cb2431", "warning": "#e5a000", "good": "#2da44e", "neutral": "#6e7781"}
_SECTION_CHARACTERS_MAX = 2_900


def build_request(announcement: Announcement) -> Request:
    """Return the message with the title, the text and the facts of the event."""
    event = announcement.event
    title = _escape(announcement.title)
    linked = f"<{announcement.link}|{title}>" if announcement.link else title
    blocks = [_section(f"*{linked}*")]
    if event.text:
        blocks.append(_section(_escape(event.text)[:_SECTION_CHARACTERS_MAX]))
    facts = fact_fields(announcement)
    line = "  ".join(f"*{name}:* {_escape(str(value))}" for name, value in facts.items())
    details = {"type": "context", "elements": [{"type": "mrkdwn", "text": line[:2000]}]}
    attachment = {"color": _COLORS[announcement.mood], "blocks": [details]}
    message = {"text": title, "blocks": blocks, "attachments": [attachment]}
    return json_request(announcement.url, message)


def _section(text: str) -> dict[str, object]:
    """Return a block with a text in Slack's markup."""
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}


def _escape(text: str) -> str:
    """Escape a text for Slack's markup, so that the text has no links and mentions nobody."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
