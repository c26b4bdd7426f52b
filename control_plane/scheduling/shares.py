"""Weighted max-min fair shares of a pool in whole slots, by progressive filling."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import compress
from math import lcm
from operator import attrgetter


@dataclass(slots=True)
class ShareClaim:
    """A job's demand for slots and the offer that `offer_shares` computes."""

    group: int
    """The experiment id of the job."""
    age_key: tuple[int, int]
    """The sort key of jobs by age; older jobs have smaller keys."""
    demand: int
    """The slots that the job holds or waits for, at most its `max_slots`."""
    weight: float = 1.0
    """The weight of the job's share. Positive."""
    non_preemptible: int = 0
    """The slots that the job cannot be asked to return."""
    smallest_request: int | None = None
    """The slots of the job's smallest pending request, None without pending requests."""
    offered: int = 0
    """The slots offered so far; in the end the job's share."""
    preoffer: int = 0
    """The part of the slots offered before the rounds that still counts against offers in the
    rounds.
    """
    disabled: bool = False
    """Whether the job has given up its offer, because its smallest request does not fit into it."""

    @property
    def is_open(self) -> bool:
        """Whether the offer is below the demand and was not given up."""
        return not self.disabled and self.offered < self.demand


def offer_shares(claims: Sequence[ShareClaim], capacity: int) -> list[ShareClaim]:
    """Set the offer of each claim, and return the claims in the order of service: small demands
    first.

    Each round offers slots in proportion to the weights, until all slots are offered or all demands
    are met. If no slot is left, the youngest job with a smallest request above its offer gives up
    the offer for good, and the rounds continue. Slots that cannot be preempted are offered before
    the rounds, even beyond the capacity, and count against the offers of the rounds.

    Changes the claims; earlier offers do not matter. Equal demands are in the order of age. Return
    an empty list without claims.

    Args:
        claims: the claims of all jobs, in any order.
        capacity: the slots of the pool.
    """
    for claim in claims:
        claim.offered = claim.preoffer = claim.non_preemptible
        claim.disabled = False
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
    """The rounds of offers. `left` is the number of slots not offered yet.

    A round stops when no slot is left, and skips claims that are not open. So even with ten
    thousand claims, redistributing a few slots takes a few steps.

    Args:
        order: the claims in the order of service.
        left: the slots to offer.
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
        """Offer a share of the slots left to each open claim, in the order of service.

        A share is proportional to the weight and has at least one slot. The offers are added to the
        claims, up to their demands. A pre-offer that covers the offer replaces it. The round ends
        early when no slot is left. Return whether a claim was open.
        """
        start = left = self.left
        order, weights, end = self._order, self._weights, len(self._order)
        place = self._next_open(0)
        was_open = place < end
        while place < end and left > 0:
            claim, total = order[place], self._total_weight
            share = start * weights[place] // total if total else 1
            offer = min(share or 1, left, claim.demand - claim.offered)
            if claim.preoffer:
                offer = _grant_beyond_preoffer(claim, offer)
            claim.offered += offer
            left -= offer
            if claim.offered == claim.demand:
                self._close_claim(place)
                self._total_weight = self._weight_of_open
            place = self._next_open(place + 1)
        self.left = left
        return was_open

    def disable_next(self, latest: Iterator[ShareClaim]) -> bool:
        """Disable open claims with an offer below the smallest request, the youngest claim first.

        Stop after a claim with an offer above 0, and keep the slots of the offer for further
        rounds. Return False if no such claim is left. A claim that was passed once is not visited
        again, because offers only grow.

        Args:
            latest: the claims, the youngest first, continued from call to call.
        """
        for claim in latest:
            if (
                claim.is_open
                and claim.smallest_request is not None
                and claim.smallest_request > claim.offered
            ):
                self._close_claim(self._places[claim.group])
                claim.disabled = True
                if claim.offered:
                    self.left += claim.offered
                    claim.offered = 0
                    return True
        return False

    def _close_claim(self, place: int) -> None:
        """Remove a claim from the open claims, and the weight from the weight of open claims.

        Args:
            place: the index of the claim in the order of service.
        """
        self._next[place] = place + 1
        self._weight_of_open -= self._weights[place]

    def _next_open(self, place: int) -> int:
        """Return the index of the first open claim from `place` on, or the number of claims if all
        are closed.

        Path compression speeds up later calls.
        """
        following = self._next
        while following[place] != place:
            following[place] = following[following[place]]
            place = following[place]
        return place


def _grant_beyond_preoffer(claim: ShareClaim, offer: int) -> int:
    """Reduce the claim's pre-offer by an offer, to at least 0. Return the granted slots of the
    offer.

    As in Determined, an offer larger than the pre-offer before the reduction is granted in full.
    Any other offer is not granted at all, and 0 is returned.
    """
    preoffer, claim.preoffer = claim.preoffer, max(0, claim.preoffer - offer)
    return offer if offer > preoffer else 0


def _integer_weights(weights: Sequence[float]) -> list[int]:
    """Return integers in the exact proportions of the weights' decimal notations: 0.1 is a tenth.

    The integers are in the order of the weights. Return an empty list without weights.
    """
    exact = {weight: _weight_fraction(weight) for weight in set(weights)}
    scale = lcm(*(fraction.denominator for fraction in exact.values()))
    whole = {weight: int(fraction * scale) for weight, fraction in exact.items()}
    return [whole[weight] for weight in weights]


@lru_cache(maxsize=1024)
def _weight_fraction(weight: float) -> Fraction:
    """Return the exact value of the weight's decimal notation: 0.1 is a tenth."""
    return Fraction(repr(weight))
