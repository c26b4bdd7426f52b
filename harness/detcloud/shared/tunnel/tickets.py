"""The tickets by which the two ends of a tunnel enter a relay.

The API signs a ticket with a secret that API and relay share. The relay needs no other state.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

LIFETIME_MS = 60_000
"""How long a ticket is valid."""
TICKET_CHARACTERS_MAX = 512
SECRET_BYTES_MIN = 32


class Side(StrEnum):
    """The end of a tunnel that a ticket admits."""

    USER = "user"
    AGENT = "agent"


class TicketRefused(ValueError):
    """A ticket does not admit the bearer. The message names the reason, and never the ticket."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """The content of a ticket."""

    tunnel: str
    """The id of the tunnel."""
    side: Side
    binding: str
    """A digest of user, allocation, ports and services, see `make_binding`."""
    expires_ms: int
    """The end of the ticket in epoch ms."""
    number: str
    """A random text, by which the relay recognizes a used ticket."""

    def encode(self, secret: bytes) -> str:
        """Return the ticket as text with a signature."""
        fields = [self.tunnel, self.side, self.binding, self.expires_ms, self.number]
        content = _encode_text(json.dumps(fields, separators=(",", ":")).encode())
        return f"{content}.{_encode_text(_signature(secret, content))}"


def make_binding(
    user: str, allocation: str, ports: Iterable[int], services: Iterable[str] = ()
) -> str:
    """Return a digest of a tunnel's user, allocation, ports and services.

    The relay pairs only tickets with the same digest. So a ticket of an older epoch of the trial
    does not meet a ticket of the current epoch.
    """
    content = json.dumps([user, allocation, sorted(ports), sorted(services)]).encode()
    return hashlib.sha256(content).hexdigest()[:32]


def read_ticket(text: str, secret: bytes, now_ms: int) -> Ticket:
    """Return the content of a ticket, after checking the signature and the end.

    Whether the ticket was used already is the relay's check. Raise TicketRefused for a malformed,
    forged or expired ticket.
    """
    content, _, signature = text.partition(".")
    if len(text) > TICKET_CHARACTERS_MAX or not text.isascii():
        raise TicketRefused("the ticket is malformed")
    if not hmac.compare_digest(_encode_text(_signature(secret, content)), signature):
        raise TicketRefused("the ticket's signature is invalid")
    ticket = _parse_content(content)
    if now_ms >= ticket.expires_ms:
        raise TicketRefused("the ticket has expired; request another")
    if ticket.expires_ms - now_ms > 2 * LIFETIME_MS:
        raise TicketRefused("the ticket ends too late; compare the clocks of cluster and relay")
    return ticket


def _parse_content(content: str) -> Ticket:
    """Return the fields of a ticket with a valid signature. Raise TicketRefused for other forms."""
    try:
        padded = content + "=" * (-len(content) % 4)
        tunnel, side, binding, expires_ms, number = json.loads(base64.urlsafe_b64decode(padded))
        return Ticket(str(tunnel), Side(side), str(binding), int(expires_ms), str(number))
    except (ValueError, TypeError, RecursionError):
        raise TicketRefused("the ticket has another form than this relay knows") from None


def _signature(secret: bytes, content: str) -> bytes:
    return hmac.digest(secret, b"detcloud tunnel ticket\n" + content.encode(), "sha256")


def _encode_text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
