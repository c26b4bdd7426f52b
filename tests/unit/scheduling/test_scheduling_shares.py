"""Offers of a fair share, worked out by hand."""

import pytest

from control_plane.scheduling.shares import ShareClaim, offer_shares


def claim(
    group: int, demand: int, weight: float = 1.0, fixed: int = 0, least: int = 1
) -> ShareClaim:
    """Return a claim. `least` is the smallest pending request, 0 for no requests."""
    return ShareClaim(group, (group, group), demand, weight, fixed, least or None)


def offers(capacity: int, *claims: ShareClaim) -> list[int]:
    offer_shares(claims, capacity)
    return [one.offered for one in claims]


@pytest.mark.parametrize(
    ("capacity", "demands", "weights", "expected"),
    [
        # Shares of 8 x 1/2 each.
        (8, (10, 30), (1, 1), [4, 4]),
        # 8 x 10/40 = 2 and 8 x 30/40 = 6.
        (8, (10, 30), (10, 30), [2, 6]),
        # The round's share is 9/3 = 3. The small claim takes 1 and is full. The other two then
        # weigh 2 together and get 9/2 = 4 each.
        (9, (1, 10, 10), (1, 1, 1), [1, 4, 4]),
        # 8/3 = 2 each, then 2 are left: 2/3 counts as 1, for the first two.
        (8, (10, 10, 10), (1, 1, 1), [3, 3, 2]),
        # A claim of weight 0 gets a slot per round, as long as slots are left.
        (8, (10, 10), (0, 1), [1, 7]),
        (3, (9, 9), (0, 0), [2, 1]),
        # 0.1 and 0.3 are a tenth and three tenths: 8 x 0.3/0.4 = 6 and not 5.99.
        (8, (8, 8), (0.1, 0.3), [2, 6]),
        (4, (2, 1), (1, 1), [2, 1]),
        (0, (2, 1), (1, 1), [0, 0]),
    ],
)
def test_offers_by_weight_up_to_demand(
    capacity: int, demands: tuple[int, ...], weights: tuple[float, ...], expected: list[int]
) -> None:
    claims = [claim(n, *one) for n, one in enumerate(zip(demands, weights, strict=True), 1)]
    assert offers(capacity, *claims) == expected


def test_filled_claim_leaves_more_to_later_claims() -> None:
    # The first share is 12/3 = 4, of which claim 1 takes 3. The other two then weigh 2 together.
    # Claim 2 gets 12/2 = 6, and claim 3 the rest: 12 - 3 - 6 = 3.
    assert offers(12, claim(1, 3), claim(2, 9), claim(3, 9)) == [3, 6, 3]


def test_offer_below_smallest_request_is_given_up() -> None:
    # 4 slots each at first. Claim 2 needs 8 together and gives up, so claim 1 gets all 6.
    assert offers(8, claim(1, 6), claim(2, 8, least=8)) == [6, 0]


def test_youngest_claim_gives_up_first() -> None:
    # 4 each, both need 8: the second gives up, 4 more make 8 for the first.
    assert offers(8, claim(1, 8, least=8), claim(2, 8, least=8)) == [8, 0]
    # Age decides, not demand: here the older claim demands more.
    assert offers(8, claim(2, 8, least=8), claim(1, 16, least=8)) == [0, 8]


def test_claim_without_requests_keeps_offer() -> None:
    assert offers(8, claim(1, 8, least=0), claim(2, 8, least=0)) == [4, 4]


def test_non_preemptible_slots_are_offered_first() -> None:
    # 6 of 8 are fixed and count as offered: 2 are left. In the first round 2/2 = 1 each, which the
    # first has had already; then 1 is left, 1/2 counts as 1, and so on until no other claim is
    # open.
    assert offers(8, claim(1, 8, fixed=6), claim(2, 8)) == [6, 2]


def test_offer_above_rest_of_preoffer_is_granted_in_full() -> None:
    # As in Determined. 2 of 12 slots are fixed, and 10 are left: 10/2 = 5 each. Claim 1 has had 2
    # of its 5, yet gets all 5 in addition: 7. Claim 2 gets 5.
    assert offers(12, claim(1, 10, fixed=2), claim(2, 10)) == [7, 5]


def test_too_many_non_preemptible_slots_leave_no_offers() -> None:
    assert offers(4, claim(1, 8, fixed=6), claim(2, 8)) == [6, 0]
