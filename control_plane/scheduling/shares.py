"""Max-min fair shares of a pool by progressive filling, weighted, of whole slots."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import compress
from math import lcm
from operator import attrgetter


@dataclass(slots=True)
class ShareClaim:
    """A group's demand, and its offer. `None` slots: no request is pending.

    `demand`: slots that it runs on or waits for, at most its limit. `non_preemptible`: slots that
    it cannot be asked to give back. `smallest_request`: slots of its smallest pending request.
    `age_key` orders groups by age.
    """

    group: int
    age_key: tuple[int, int]
    demand: int
    weight: float = 1.0
    non_preemptible: int = 0
    smallest_request: int | None = None
    offered: int = 0
    preoffer: int = 0
    disabled: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the group may be offered more."""
        return not self.disabled and self.offered < self.demand


def offer_shares(claims: Sequence[ShareClaim], capacity: int) -> list[ShareClaim]:
    """Set the offer of each group; return the claims in the order in which they are served.

    Rounds of offers in proportion to weights, small demands first, until nothing is left. A group
    whose smallest request does not fit into its offer by then gives it up, latest first, and the
    rounds go on. Slots that cannot be preempted are offered before all rounds and count against
    what their group is offered in them.
    """
    for claim in claims:
        claim.offered = claim.preoffer = claim.non_preemptible
    left = max(0, capacity - sum(claim.non_preemptible for claim in claims))
    by_age = sorted(claims, key=attrgetter("age_key"))
    order = sorted(by_age, key=attrgetter("demand"))
    filling = _ProgressiveFilling(order, left)
    latest = reversed(by_age)
    while True:
        was_open = filling.run_round()
        if filling.left > 0:
            if not was_open:
                return order
        elif not filling.disable_next(latest):
            return order


class _ProgressiveFilling:
    """The rounds of offers. `left`: slots not yet offered.

    A round ends with the last slot and starts among the groups that are still open: with ten
    thousand groups, each that gives up a slot or two costs a step or two.
    """

    def __init__(self, order: Sequence[ShareClaim], left: int) -> None:
        self.left = left
        self._order = order
        self._places = {claim.group: place for place, claim in enumerate(order)}
        self._next = [place if claim.is_open else place + 1 for place, claim in enumerate(order)]
        self._next.append(len(order))
        self._weights = _integer_weights([claim.weight for claim in order])
        are_open = (self._next[place] == place for place in range(len(order)))
        self._weight_of_open = sum(compress(self._weights, are_open))
        self._total_weight = self._weight_of_open

    def run_round(self) -> bool:
        """Offer every open group its share; return whether any was open."""
        start = left = self.left
        order, weights, end = self._order, self._weights, len(self._order)
        place = self._next_open(0)
        was_open = place < end
        while place < end and left > 0:
            claim, total = order[place], self._total_weight
            share = start * weights[place] // total if total else 1
            given = min(share or 1, left, claim.demand - claim.offered)
            if claim.preoffer:
                given = _grant_beyond_preoffer(claim, given)
            claim.offered += given
            left -= given
            if claim.offered == claim.demand:
                self._close_claim(place)
                self._total_weight = self._weight_of_open
            place = self._next_open(place + 1)
        self.left = left
        return was_open

    def disable_next(self, latest: Iterator[ShareClaim]) -> bool:
        """Disable the next group for whose smallest request the offer is too small; False: there is
        none. Groups passed by never get into that state: offers only grow.
        """
        for claim in latest:
            if (
                claim.is_open
                and claim.smallest_request is not None
                and claim.smallest_request > claim.offered
            ):
                self.left += claim.offered
                claim.offered = 0
                claim.disabled = True
                self._close_claim(self._places[claim.group])
                return True
        return False

    def _close_claim(self, place: int) -> None:
        self._next[place] = place + 1
        self._weight_of_open -= self._weights[place]

    def _next_open(self, place: int) -> int:
        """The first open group from `place` on; path compression shortens later lookups."""
        following = self._next
        while following[place] != place:
            following[place] = following[following[place]]
            place = following[place]
        return place


def _grant_beyond_preoffer(claim: ShareClaim, given: int) -> int:
    """The part of an offer that exceeds the pre-offer; as in the original, one larger than the rest
    of the pre-offer is granted in full.
    """
    before, claim.preoffer = claim.preoffer, max(0, claim.preoffer - given)
    return given if given > before else 0


def _integer_weights(weights: Sequence[float]) -> list[int]:
    """Integer weights in the same proportions, so that shares are exact."""
    exact = {weight: _weight_fraction(weight) for weight in set(weights)}
    scale = lcm(*(one.denominator for one in exact.values()))
    whole = {weight: int(one * scale) for weight, one in exact.items()}
    return [whole[weight] for weight in weights]


@lru_cache(maxsize=1024)
def _weight_fraction(weight: float) -> Fraction:
    """The weight as it is written: 0.1 is a tenth."""
    return Fraction(repr(weight))
