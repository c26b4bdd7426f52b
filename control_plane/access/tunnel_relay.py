"""The address, the pin and the secret of the relay of tunnels, from which the API makes tickets."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from detcloud.shared.tunnel.tickets import LIFETIME_MS, Side, Ticket, make_binding

_NUMBER_BYTES = 12


@dataclass(frozen=True)
class TunnelRelay:
    """A relay that runs, and that both ends of a tunnel can reach."""

    url: str
    """The address, `https://HOST`. "" for a relay in the API's own server: each end then dials the
    address at which it calls the API.
    """
    pin: str
    """The SHA-256 of the relay's certificate in hexadecimal. "" for a certificate of a public
    authority, and for a relay on this machine.
    """
    secret: bytes = field(repr=False)
    """The secret by which tickets are signed."""

    def find_relay(self) -> "TunnelRelay":
        """Return this relay, which always runs, as a RelaySource does."""
        return self

    def issue_ticket(
        self,
        side: Side,
        tunnel: str,
        user: str,
        allocation: str,
        ports: Iterable[int],
        now_ms: int,
        *,
        services: Iterable[str] = (),
    ) -> str:
        """Return a ticket that admits an end of a tunnel once, within LIFETIME_MS."""
        binding = make_binding(user, allocation, ports, services)
        number = secrets.token_urlsafe(_NUMBER_BYTES)
        return Ticket(tunnel, side, binding, now_ms + LIFETIME_MS, number).encode(self.secret)


class RelaySource(Protocol):
    """The relay of a cluster, which runs always or only while tunnels are used."""

    def find_relay(self) -> TunnelRelay | None:
        """Return the relay. Start it and return None if it does not run yet.

        Raise RequestError if the relay cannot start: unavailable if a later request may succeed,
        and conflict if an operator must change something first.
        """
