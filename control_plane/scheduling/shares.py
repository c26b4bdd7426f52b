"""Max-min fair shares of a pool by progressive filling, weighted, of whole slots."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import compress
from math import lcm
from operator import attrgetter


@dataclass(slots=True)
class Claim:
    """What a group wants, and what it is offered of it. `None` slots: no request is pending.

    `demand`: slots that it runs on or waits for, at most its limit. `fixed`: slots that it cannot
    be asked to give back. `smallest`: slots of its smallest pending request. `registered` orders
    groups by age.
    """

    group: int
    registered: tuple[int, int]
    demand: int
    weight: float = 1.0
    fixed: int = 0
    smallest: int | None = None
    offered: int = 0
    preoffer: int = 0
    disabled: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it may be offered more."""
        return not self.disabled and self.offered < self.demand


def offer(claims: Sequence[Claim], capacity: int) -> list[Claim]:
    """Sets what each group is offered; the claims in the order in which they are served.

    Rounds of offers in proportion to weights, small demands first, until nothing is left. A group
    whose smallest request does not fit into its offer by then gives it up, latest first, and the
    rounds go on. Slots that cannot be taken back are offered before all rounds and count against
    what their group is offered in them.
    """
    for claim in claims:
        claim.offered = claim.preoffer = claim.fixed
    left = max(0, capacity - sum(claim.fixed for claim in claims))
    by_age = sorted(claims, key=attrgetter("registered"))
    order = sorted(by_age, key=attrgetter("demand"))
    filling = _Filling(order, left)
    latest = reversed(by_age)
    while True:
        was_open = filling.round()
        if filling.left > 0:
            if not was_open:
                return order
        elif not filling.give_up(latest):
            return order


class _Filling:
    """The rounds. `left`: slots that nobody was offered.

    A round ends with the last slot and starts among those that are open still: with ten thousand
    groups, each that gives up a slot or two costs a step or two.
    """

    def __init__(self, order: Sequence[Claim], left: int) -> None:
        self.left = left
        self._order = order
        self._places = {claim.group: place for place, claim in enumerate(order)}
        self._next = [place if claim.is_open else place + 1 for place, claim in enumerate(order)]
        self._next.append(len(order))
        self._weights = _whole([claim.weight for claim in order])
        are_open = (self._next[place] == place for place in range(len(order)))
        self._open_weight = sum(compress(self._weights, are_open))
        self._total_weight = self._open_weight

    def round(self) -> bool:
        """Offers every open group its share; whether any was open."""
        start = left = self.left
        order, weights, end = self._order, self._weights, len(self._order)
        place = self._open(0)
        was_open = place < end
        while place < end and left > 0:
            claim, total = order[place], self._total_weight
            share = start * weights[place] // total if total else 1
            given = min(share or 1, left, claim.demand - claim.offered)
            if claim.preoffer:
                given = _beyond_preoffer(claim, given)
            claim.offered += given
            left -= given
            if claim.offered == claim.demand:
                self._close(place)
                self._total_weight = self._open_weight
            place = self._open(place + 1)
        self.left = left
        return was_open

    def give_up(self, latest: Iterator[Claim]) -> bool:
        """The next group for whose smallest request the offer is too small; False: there is none.
        Whoever is passed by never gets into that state: offers only grow.
        """
        for claim in latest:
            if claim.is_open and claim.smallest is not None and claim.smallest > claim.offered:
                self.left += claim.offered
                claim.offered = 0
                claim.disabled = True
                self._close(self._places[claim.group])
                return True
        return False

    def _close(self, place: int) -> None:
        self._next[place] = place + 1
        self._open_weight -= self._weights[place]

    def _open(self, place: int) -> int:
        """The first open group from `place` on; the way there gets shorter with every look."""
        following = self._next
        while following[place] != place:
            following[place] = following[following[place]]
            place = following[place]
        return place


def _beyond_preoffer(claim: Claim, given: int) -> int:
    """What is left of an offer after the pre-offer; as in the original, one larger than the rest of
    the pre-offer is given in full.
    """
    before, claim.preoffer = claim.preoffer, max(0, claim.preoffer - given)
    return given if given > before else 0


def _whole(weights: Sequence[float]) -> list[int]:
    """Whole numbers in the same proportions, so that shares are exact."""
    exact = {weight: _exact(weight) for weight in set(weights)}
    scale = lcm(*(one.denominator for one in exact.values()))
    whole = {weight: int(one * scale) for weight, one in exact.items()}
    return [whole[weight] for weight in weights]


@lru_cache(maxsize=1024)
def _exact(weight: float) -> Fraction:
    """As it is written: 0.1 is a tenth."""
    return Fraction(repr(weight))
