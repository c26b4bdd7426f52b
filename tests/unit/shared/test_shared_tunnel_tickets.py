"""Tickets of tunnels: only a signed ticket admits, only for its minute."""

import base64
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcloud.shared.tunnel.tickets import (
    LIFETIME_MS,
    Side,
    Ticket,
    TicketRefused,
    _encode_text,
    _signature,
    make_binding,
    read_ticket,
)

SECRET = b"s" * 32
NOW_MS = 1_800_000_000_000
TICKET = Ticket("tunnel-1", Side.USER, make_binding("ann", "3.1", [80]), NOW_MS + LIFETIME_MS, "n1")


def test_ticket_is_read_until_its_end() -> None:
    text = TICKET.encode(SECRET)
    assert read_ticket(text, SECRET, NOW_MS) == TICKET
    assert read_ticket(text, SECRET, TICKET.expires_ms - 1) == TICKET
    with pytest.raises(TicketRefused, match="expired"):
        read_ticket(text, SECRET, TICKET.expires_ms)


def test_other_secrets_are_refused() -> None:
    with pytest.raises(TicketRefused, match="signature"):
        read_ticket(TICKET.encode(b"o" * 32), SECRET, NOW_MS)


def test_far_ends_are_refused() -> None:
    far = replace(TICKET, expires_ms=NOW_MS + 10 * LIFETIME_MS)
    with pytest.raises(TicketRefused, match="too late"):
        read_ticket(far.encode(SECRET), SECRET, NOW_MS)


@pytest.mark.parametrize("fields", [[], [1, 2], {"a": 1}, ["t", "stranger", "b", 1, "n"], "x"])
def test_signed_content_of_other_forms_is_refused(fields: object) -> None:
    content = _encode_text(json.dumps(fields).encode())
    text = f"{content}.{_encode_text(_signature(SECRET, content))}"
    with pytest.raises(TicketRefused, match="form"):
        read_ticket(text, SECRET, NOW_MS)


@given(
    text=st.text(max_size=80) | st.binary(max_size=60).map(lambda x: base64.b64encode(x).decode())
)
def test_noise_is_refused(text: str) -> None:
    with pytest.raises(TicketRefused):
        read_ticket(text, SECRET, NOW_MS)


def test_binding_depends_on_user_epoch_ports_and_services() -> None:
    bindings = {
        make_binding("ann", "3.1", [80, 81]),
        make_binding("bob", "3.1", [80, 81]),
        make_binding("ann", "3.2", [80, 81]),
        make_binding("ann", "3.1", [80]),
        make_binding("ann", "3.1", [80], ["ssh"]),
        make_binding("ann", "3.1", [80], ["location", "ssh"]),
    }
    assert len(bindings) == 6
    assert make_binding("ann", "3.1", [81, 80]) in bindings
