"""Which index a query of Firestore needs, and whether it is deployed: no emulator asks for one.

The rules: a query that compares or orders one field needs that field's own index, in the query's
direction. One of several fields needs a composite index: first the fields that are compared for
equality or with a list, in any order, then those it is ordered by, in theirs. An inequality orders
by its field.
A query of all collections of a name needs an index of them all.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import control_plane.gcp

INDEXES: Mapping[str, Any] = json.loads(
    (Path(control_plane.gcp.__path__[0]) / "firestore.indexes.json").read_text()
)

# A list is asked for as the union of queries for each of its values.
_EQUALITIES = ("EQUAL", "IN")


@dataclass(frozen=True)
class Index:
    """Fields that are compared for equality, and then those of the order with their directions, of
    one collection or of all of its name.
    """

    collection: str
    scope: str
    equal: frozenset[str]
    order: tuple[tuple[str, str], ...]


def check_index(query: Mapping[str, Any], indexes: Mapping[str, Any] = INDEXES) -> None:
    """Raise AssertionError unless `indexes`, in the form of Firebase's file, serve the query."""
    index = needed_index(query)
    single = len(index.equal | {field for field, _ in index.order}) == 1
    deployed = _has_field_index if single else _has_composite_index
    assert deployed(index, indexes), f"no index serves {index}"


def needed_index(query: Mapping[str, Any]) -> Index:
    """The index that a query needs."""
    [source] = query["from"]
    scope = "COLLECTION_GROUP" if source.get("allDescendants") else "COLLECTION"
    filters = [
        condition["fieldFilter"] for condition in query["where"]["compositeFilter"]["filters"]
    ]
    fields = [(condition["field"]["fieldPath"], condition["op"]) for condition in filters]
    order = tuple((item["field"]["fieldPath"], item["direction"]) for item in query["orderBy"])
    compared = {field for field, operator in fields if operator not in _EQUALITIES}
    assert compared <= {field for field, _ in order[:1]}, "an inequality orders by its field"
    equal = frozenset(field for field, operator in fields if operator in _EQUALITIES)
    return Index(source["collectionId"], scope, equal, order)


def composite_indexes(indexes: Mapping[str, Any] = INDEXES) -> list[Mapping[str, Any]]:
    """The composite indexes that are deployed."""
    return list(indexes["indexes"])


def serves(deployed: Mapping[str, Any], index: Index) -> bool:
    """Whether a composite index is the one that is needed."""
    fields: Sequence[Mapping[str, str]] = deployed["fields"]
    split = len(index.equal)
    return (
        (deployed["collectionGroup"], deployed["queryScope"]) == (index.collection, index.scope)
        and {field["fieldPath"] for field in fields[:split]} == index.equal
        and tuple((item["fieldPath"], item["order"]) for item in fields[split:]) == index.order
    )


def _has_composite_index(index: Index, indexes: Mapping[str, Any]) -> bool:
    return any(serves(deployed, index) for deployed in composite_indexes(indexes))


def _has_field_index(index: Index, indexes: Mapping[str, Any]) -> bool:
    """Whether the only field has an index: Firestore makes that of a collection by itself, unless
    the file says otherwise.
    """
    field, direction = next(iter(index.order), (next(iter(index.equal), ""), "ASCENDING"))
    for override in indexes["fieldOverrides"]:
        if (override["collectionGroup"], override["fieldPath"]) == (index.collection, field):
            kept = [item for item in override["indexes"] if item.get("queryScope") == index.scope]
            return any(item.get("order") == direction for item in kept)
    return index.scope == "COLLECTION"
