"""The index that a Firestore query needs, and whether the index is deployed. No emulator checks
this.

A query that compares or orders a single field needs the field's index in the query's direction. A
query over several fields needs a composite index. The composite index begins with fields compared
for equality or with a list, in any order. The fields of the query's order follow. An
inequality orders by its field.

A query of a collection group needs an index with the scope of the group.
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

# Firestore runs a comparison with a list as a union of equality queries.
_EQUALITIES = ("EQUAL", "IN")


@dataclass(frozen=True)
class Index:
    """An index of a collection or a collection group: fields compared for equality, then ordered
    fields with directions.
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
    """Return whether a deployed composite index is the needed index."""
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
    """Return whether the only field has an index.

    Firestore indexes fields of a collection automatically, unless the file overrides the field.
    """
    field, direction = next(iter(index.order), (next(iter(index.equal), ""), "ASCENDING"))
    for override in indexes["fieldOverrides"]:
        if (override["collectionGroup"], override["fieldPath"]) == (index.collection, field):
            kept = [item for item in override["indexes"] if item.get("queryScope") == index.scope]
            return any(item.get("order") == direction for item in kept)
    return index.scope == "COLLECTION"
