"""The cache of facts of experiments, which belong to a revision of the listing row."""

import pytest

from control_plane.actors.experiment.listing import ListingRow
from control_plane.queries import listed_facts
from control_plane.queries.listed_facts import Facts, FactsOfRows, ListEntry


def make_entry(number: int, revision: int) -> ListEntry:
    return ListEntry(f"{number:012d}", revision, ListingRow("COMPLETED", "ada"))


def test_facts_are_those_of_the_revision_of_the_listing_row() -> None:
    cache = FactsOfRows()
    first, second = make_entry(1, 5), make_entry(2, 5)
    cache.add([(first, Facts(metric=0.5))])
    assert cache.find([second, first]) == [None, Facts(metric=0.5)]
    changed = make_entry(1, 6)
    assert cache.find([changed]) == [None]
    cache.add([(changed, Facts(metric=0.25))])
    assert cache.find([changed, first]) == [Facts(metric=0.25), None]


def test_full_cache_drops_former_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listed_facts, "_CACHED_MAX", 2)
    cache = FactsOfRows()
    entries = [make_entry(number, 1) for number in range(3)]
    cache.add((entry, Facts(metric=1.0)) for entry in entries[:2])
    cache.add([])
    assert cache.find(entries) == [Facts(metric=1.0), Facts(metric=1.0), None]
    cache.add([(entries[2], Facts(metric=2.0))])
    assert cache.find(entries) == [None, None, Facts(metric=2.0)]
