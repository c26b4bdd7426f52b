"""The deployed indexes against the queries of the Firestore table."""

from collections.abc import Mapping
from typing import Any

import pytest

from control_plane.gcp.row_documents import COLLECTION, to_fields
from control_plane.gcp.state_table import FirestoreTable
from control_plane.state.table import Expect, Key, Put
from tests.emulators.firestore_indexes import (
    INDEXES,
    check_index,
    composite_indexes,
    needed_index,
    serves,
)


class QueryRecorder:
    """A client that records queries and returns no rows."""

    documents = "projects/p/databases/d/documents"

    def __init__(self) -> None:
        self.queries: list[Mapping[str, Any]] = []

    def run_query(self, query: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], bool]:
        self.queries.append(query)
        return [], True


@pytest.fixture
def queries() -> list[Mapping[str, Any]]:
    """The queries of all methods of the table."""
    recorder = QueryRecorder()
    table = FirestoreTable(recorder)  # type: ignore[arg-type]
    table.query("p", "a", "b")
    table.query("p", "a", "b", descending=True)
    table.due_shards((3, 5), 10)
    table.due_keys(3, 10)
    return recorder.queries


def test_queries_and_deployed_indexes_match(
    queries: list[Mapping[str, Any]],
) -> None:
    needed = [needed_index(query) for query in queries]
    for query in queries:
        check_index(query)
    for deployed in composite_indexes():
        assert any(serves(deployed, index) for index in needed)


def test_check_index_refuses_a_query_without_an_index(queries: list[Mapping[str, Any]]) -> None:
    *_, due = queries
    turned = [{**item, "direction": _opposite(item["direction"])} for item in due["orderBy"]]
    of_one = [{"collectionId": COLLECTION}]
    for query in ({**due, "orderBy": turned}, {**due, "from": of_one}):
        with pytest.raises(AssertionError, match="no index serves"):
            check_index(query)
    by_one_field = {
        **due,
        "where": {"compositeFilter": {"filters": due["where"]["compositeFilter"]["filters"][1:]}},
    }
    with pytest.raises(AssertionError, match="no index serves"):
        check_index(by_one_field)
    unsaid: Mapping[str, Any] = {"indexes": [], "fieldOverrides": []}
    check_index({**by_one_field, "from": of_one}, unsaid)
    with pytest.raises(AssertionError, match="no index serves"):
        check_index(by_one_field, unsaid)


def test_fields_have_no_automatic_index() -> None:
    put = Put(Key("p", "s"), 1, b"", Expect.ABSENT, due_ms=1, expires=True)
    overrides = {
        field_override["fieldPath"]: field_override["indexes"]
        for field_override in INDEXES["fieldOverrides"]
        if field_override["collectionGroup"] == COLLECTION
    }
    assert overrides == {field: [] for field in to_fields(put, b"")}
    assert [
        field_override["fieldPath"]
        for field_override in INDEXES["fieldOverrides"]
        if field_override.get("ttl")
    ] == ["x"]


def _opposite(direction: str) -> str:
    return "DESCENDING" if direction == "ASCENDING" else "ASCENDING"
