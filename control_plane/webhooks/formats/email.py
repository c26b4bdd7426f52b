"""The format `email`: a message in plain text. The URL is `mailto:ADDRESS,ADDRESS`.

The sender and the recipients are added when the message is sent.
"""

from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

from control_plane.webhooks.formats.message import Announcement, fact_fields
from control_plane.webhooks.sender import Request

SUBJECT_CHARACTERS_MAX = 200


def build_request(announcement: Announcement) -> Request:
    """Return the message with title, text, facts and link.

    The id of the message is that of the event, so that mail programs recognize a repetition.
    """
    event = announcement.event
    message = EmailMessage(policy=SMTP)
    title = "".join(letter if letter.isprintable() else " " for letter in announcement.title)
    message["Subject"] = f"[{announcement.cluster}] {title}"[:SUBJECT_CHARACTERS_MAX]
    message["Message-ID"] = f"<{event.id}@webhooks.invalid>"
    message["Date"] = format_datetime(datetime.fromtimestamp(event.time_ms / 1000, UTC))
    message["Auto-Submitted"] = "auto-generated"
    facts = "\n".join(f"{name}: {value}" for name, value in fact_fields(announcement).items())
    parts = (announcement.title, event.text, facts, announcement.link)
    message.set_content("\n\n".join(filter(None, parts)) + "\n")
    return Request(announcement.url, message.as_bytes())
