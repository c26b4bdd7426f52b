"""The tickets that were used already. No I/O and no clock."""

from collections import OrderedDict

from detcloud.shared.tunnel.tickets import Ticket, TicketRefused


class UsedTickets:
    """The used tickets that are not expired, at most `tickets_max`."""

    def __init__(self, tickets_max: int) -> None:
        self._tickets_max = tickets_max
        # The end of each ticket in epoch ms by the ticket's number, in the order of use.
        self._ends_ms: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of remembered tickets."""
        return len(self._ends_ms)

    def use(self, ticket: Ticket, now_ms: int) -> None:
        """Record the use of a valid ticket.

        Raise TicketRefused if the ticket was used before, or if too many are remembered.
        """
        if ticket.number in self._ends_ms:
            raise TicketRefused("the ticket was used already; request another")
        if len(self._ends_ms) >= self._tickets_max:
            self._forget_expired(now_ms)
        if len(self._ends_ms) >= self._tickets_max:
            raise TicketRefused("too many tickets were used within a minute; try again later")
        self._ends_ms[ticket.number] = ticket.expires_ms

    def _forget_expired(self, now_ms: int) -> None:
        for number in [name for name, end_ms in self._ends_ms.items() if now_ms >= end_ms]:
            del self._ends_ms[number]
