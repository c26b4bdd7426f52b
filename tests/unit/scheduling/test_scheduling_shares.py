"""Offers of a fair share, worked out by hand."""

import pytest

from control_plane.scheduling.shares import ShareClaim, offer_shares


def claim(
    group: int, demand: int, weight: float = 1.0, fixed: int = 0, least: int = 1
) -> ShareClaim:
    """`least`: its smallest pending request, 0 for none."""
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
        # The small demand is met; what it leaves goes to the others. 9: first 9/3 = 3, of which it
        # takes 1; then the others weigh 2 together: 9/2 = 4 each.
        (9, (1, 10, 10), (1, 1, 1), [1, 4, 4]),
        # 8/3 = 2 each, then 2 are left: 2/3 counts as 1, for the first two.
        (8, (10, 10, 10), (1, 1, 1), [3, 3, 2]),
        # Weight 0 gets one slot a round, as long as there are any.
        (8, (10, 10), (0, 1), [1, 7]),
        (3, (9, 9), (0, 0), [2, 1]),
        # 0.1 and 0.3 are a tenth and three tenths: 8 x 0.3/0.4 = 6 and not 5.99.
        (8, (8, 8), (0.1, 0.3), [2, 6]),
        (4, (2, 1), (1, 1), [2, 1]),
        (0, (2, 1), (1, 1), [0, 0]),
    ],
)
def test_slots_are_offered_by_weight_up_to_the_demand(
    capacity: int, demands: tuple[int, ...], weights: tuple[float, ...], expected: list[int]
) -> None:
    claims = [claim(n, *one) for n, one in enumerate(zip(demands, weights, strict=True), 1)]
    assert offers(capacity, *claims) == expected


def test_whoever_fills_up_within_a_round_leaves_more_to_those_behind_it() -> None:
    # The first share is 12/3 = 4, of which the first takes 3. Now the others weigh 2: the share is
    # 12/2 = 6 for the second, and the third gets what is left: 12 - 3 - 6 = 3.
    assert offers(12, claim(1, 3), claim(2, 9), claim(3, 9)) == [3, 6, 3]


def test_a_group_whose_smallest_request_exceeds_its_offer_gives_it_up() -> None:
    # 4 each at first; the second needs 8 at once, so the first has all it asks for, and 2 are left.
    assert offers(8, claim(1, 6), claim(2, 8, least=8)) == [6, 0]


def test_the_latest_gives_up_first_and_the_one_before_gets_its_slots() -> None:
    # 4 each, both need 8: the second gives up, 4 more make 8 for the first.
    assert offers(8, claim(1, 8, least=8), claim(2, 8, least=8)) == [8, 0]
    # By age and not by demand: the older one is the one that demands more.
    assert offers(8, claim(2, 8, least=8), claim(1, 16, least=8)) == [0, 8]


def test_a_group_that_only_runs_does_not_give_up() -> None:
    assert offers(8, claim(1, 8, least=0), claim(2, 8, least=0)) == [4, 4]


def test_slots_that_cannot_be_taken_back_are_offered_before_all_others() -> None:
    # 6 of 8 are fixed and count as offered: 2 are left. In the first round 2/2 = 1 each, which the
    # first has had already; then 1 is left, 1/2 counts as 1, and so on until nobody else is open.
    assert offers(8, claim(1, 8, fixed=6), claim(2, 8)) == [6, 2]


def test_an_offer_larger_than_the_rest_of_the_fixed_slots_is_given_in_full() -> None:
    # A quirk of the original. 2 of 12 are fixed, 10 left: 10/2 = 5 each. The first has had 2 of its
    # 5, yet gets all 5 beside them: 7. The second gets 5.
    assert offers(12, claim(1, 10, fixed=2), claim(2, 10)) == [7, 5]


def test_more_fixed_slots_than_there_are_leave_nothing() -> None:
    assert offers(4, claim(1, 8, fixed=6), claim(2, 8)) == [6, 0]
