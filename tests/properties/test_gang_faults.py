"""The search for bad machines and links of a gang ends soon, and blames no good machine."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import example, given
from hypothesis import strategies as st

from detcloud.shared.gang_faults import FaultSearch, Link, begin_search, record_round, rounds_max

NODES = st.integers(3, 64)


def search_by_halves(
    nodes: int, bad: Collection[int] = (), links: Collection[Link] = ()
) -> FaultSearch:
    """Return the end of a search. Groups fail with a bad node, or with both nodes of a bad link."""
    search = begin_search(nodes)
    while not search.is_over:
        members = [node for group in search.groups for node in group]
        assert len(members) == len({*members})
        assert all(len(group) > 1 for group in search.groups)
        passed = [
            group
            for group in search.groups
            if not {*group} & {*bad} and not any({*link} <= {*group} for link in links)
        ]
        search = record_round(search, passed)
    return search


@given(NODES, st.integers(0))
@example(3, 2)
@example(5, 4)
def test_single_bad_machine_is_found(nodes: int, number: int) -> None:
    bad = number % nodes
    search = search_by_halves(nodes, [bad])
    assert (search.bad_nodes, search.bad_links) == ((bad,), ())
    # For 64 nodes: 6 halvings and at most 3 more rounds.
    assert search.rounds <= (nodes - 1).bit_length() + 3 == rounds_max(nodes)


@given(NODES, st.data())
def test_single_bad_link_is_found(nodes: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, nodes - 2))
    link = (first, data.draw(st.integers(first + 1, nodes - 1)))
    search = search_by_halves(nodes, (), [link])
    assert (search.bad_nodes, search.bad_links) == ((), (link,))
    assert search.rounds <= rounds_max(nodes)


@given(NODES, st.sets(st.integers(0, 63), max_size=8))
def test_several_bad_machines_blame_no_good_machine(nodes: int, numbers: set[int]) -> None:
    bad = {number % nodes for number in numbers}
    search = search_by_halves(nodes, bad)
    assert {*search.bad_nodes} <= bad
    assert all(bad & {*link} for link in search.bad_links)
    assert search.rounds <= rounds_max(nodes) + 2


def test_good_machines_need_a_single_round() -> None:
    search = search_by_halves(16)
    assert (search.rounds, search.has_passed, search.bad_nodes) == (1, True, ())


def test_two_machines_only_show_a_bad_link() -> None:
    search = search_by_halves(2, [1])
    assert (search.bad_nodes, search.bad_links, search.has_passed) == ((), ((0, 1),), False)
