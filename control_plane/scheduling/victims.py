"""Who has to make room: running allocations, the least important first."""

from collections.abc import Iterator, Sequence
from decimal import Decimal

from control_plane.scheduling.fitting import Fleet
from control_plane.scheduling.model import Holding, Job, Request

_Place = tuple[int, Decimal]
_FIRST: _Place = (2**31, Decimal(0))


class Victims:
    """The running allocations of one pass in the order in which they have to go: those that leave
    already, then what can be preempted from the back of the queue, of one job the youngest first.

    `hopeless`: slots, and whether on one agent, of requests that asked in vain.
    """

    def __init__(self, order: Sequence[Job], with_slots: bool) -> None:
        self._order = order
        self._with_slots = with_slots
        self._coming = self._in_turn()
        self._known: list[tuple[_Place, Holding]] = []
        self._taken = 0
        # Whoever asks later may preempt no more, of which others may have taken something.
        self.hopeless: set[tuple[int, bool]] = set()

    def make_room(self, request: Request, job: Job, fleet: Fleet) -> list[Holding]:
        """Removes allocations from `fleet` until the request fits and returns them, all of which
        have to go. If it never does, none is removed.

        A request may preempt what has a lower priority and, at its own, what is strictly behind it.
        """
        size = (request.slots, request.single_agent)
        may_spread = fleet.may_spread(*size)
        removed: list[Holding] = []
        if fleet.is_possible(*size):
            for holding in self._behind((job.priority, job.position)):
                freed = fleet.give_back(holding.places)
                removed.append(holding)
                # It did not fit before, so that only what has just become free matters.
                if 0 < request.slots <= freed or (may_spread and fleet.fits(*size)):
                    self._taken += len(removed)
                    return removed
        for holding in removed:
            fleet.take(holding.places)
        if fleet.fits_no_more(*size):
            self.hopeless.add(size)
        return []

    def _behind(self, place: _Place) -> Iterator[Holding]:
        at = self._taken
        while True:
            if at == len(self._known):
                found = next(self._coming, None)
                if found is None:
                    return
                self._known.append(found)
            other, holding = self._known[at]
            if other <= place:
                return
            yield holding
            at += 1

    def _in_turn(self) -> Iterator[tuple[_Place, Holding]]:
        for job in self._order:
            for holding in job.holdings if job.leaving_slots or not self._with_slots else ():
                if holding.leaving and self._is_of_pass(holding):
                    yield _FIRST, holding
        for job in reversed(self._order):
            if job.held_slots or not self._with_slots:
                for holding in sorted(job.holdings, key=_start, reverse=True):
                    if holding.preemptible and not holding.leaving and self._is_of_pass(holding):
                        yield (job.priority, job.position), holding

    def _is_of_pass(self, holding: Holding) -> bool:
        return (holding.slots > 0) == self._with_slots


def _start(holding: Holding) -> int:
    return holding.start
