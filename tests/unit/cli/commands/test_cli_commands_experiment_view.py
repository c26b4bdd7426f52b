"""Commands on saved views, and lists of experiments by a view."""

import json

import pytest

from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster


def test_view_is_saved_listed_and_deleted(fake: FakeCluster, detcloud: Detcloud) -> None:
    words = ["--filter", "lr>0.01", "--column", "metric:loss", "--sort-by", "metric:loss"]
    saved = detcloud("e", "view", "save", "good", *words, "--order-by", "asc", "-w", "vision")
    assert (saved.code, saved.out) == (0, "view good was saved for workspace vision\n")
    (view,) = fake.views.views
    assert (view["columns"], view["sort"], view["order"]) == (["metric:loss"], "metric:loss", "asc")
    fake.views.add("all", "bob", shared=True, group="project")
    rows = detcloud("experiment", "view", "list").out.splitlines()
    cells = [[cell.strip() for cell in row.split("|")] for row in rows[2:]]
    assert [row[:4] for row in cells] == [
        ["good", "ada", "workspace vision", "lr>0.01"],
        ["all", "bob", "all users", "N/A"],
    ]
    listed = json.loads(detcloud("e", "view", "list", "-w", "vision", "--json").out)
    assert [one["name"] for one in listed] == ["good"]
    deleted = detcloud("e", "view", "delete", "good")
    assert (deleted.code, deleted.out) == (0, "view good of ada was deleted\n")
    assert [one["name"] for one in fake.views.views] == ["all"]


def test_refused_view_is_an_error(fake: FakeCluster, detcloud: Detcloud) -> None:
    refused = detcloud("e", "view", "save", "x", "--filter", "bad")
    assert refused.code == 3
    assert "filter: character 1: 'bad' is not valid" in refused.err
    assert detcloud("e", "view", "save", "x", "--shared", "-w", "vision").code == 2
    assert detcloud("e", "view", "save", "x", "--sort-by", "pool").code == 2
    assert fake.views.views == []


def test_list_uses_a_view(fake: FakeCluster, detcloud: Detcloud) -> None:
    content = {"columns": ["name", "metric:loss"], "sort": "metric:loss", "order": "asc"}
    fake.views.add("good", "ada", filter="lr>0.01", group="project", **content)
    listed = detcloud("e", "list", "--view", "good", "--filter", "state:running")
    assert listed.code == 0
    query = fake.list_query
    assert query["filter"] == ["lr>0.01 state:running"]
    assert (query["sort"], query["order"]) == (["metric:loss"], ["asc"])
    # Columns of the page that are fields are always in the table of the command line.
    assert query["columns"] == ["metric:loss"]
    titles = [title.strip() for title in listed.out.splitlines()[0].split("|")]
    assert titles[-2:] == ["Workspace", "Project"]


def test_options_replace_the_order_of_a_view(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.views.add("good", "ada", sort="metric", order="asc", columns=["hparam:lr"])
    detcloud("e", "list", "--view", "good", "--sort-by", "cost", "--column", "metric:loss")
    query = fake.list_query
    assert (query["sort"], query["order"]) == (["cost"], ["desc"])
    assert query["columns"] == ["hparam:lr", "metric:loss"]
    detcloud("e", "list", "--view", "good", "--order-by", "desc")
    assert (fake.list_query["sort"], fake.list_query["order"]) == (["metric"], ["desc"])


@pytest.mark.parametrize(
    ("owners", "text", "expected"),
    [
        (["ada", "bob"], "x", "ada"),
        (["bob"], "x", "bob"),
        (["bob", "eve"], "eve/x", "eve"),
    ],
)
def test_view_is_found_by_name_and_owner(
    fake: FakeCluster, detcloud: Detcloud, owners: list[str], text: str, expected: str
) -> None:
    for owner in owners:
        fake.views.add("x", owner, filter=f"user:{owner}", shared=True)
    assert detcloud("e", "list", "--view", text).code == 0
    assert fake.list_query["filter"] == [f"user:{expected}"]


def test_unknown_and_ambiguous_views_are_errors(fake: FakeCluster, detcloud: Detcloud) -> None:
    unknown = detcloud("e", "list", "--view", "x")
    assert (unknown.code, "there is no view 'x'; there is no saved view" in unknown.err) == (
        1,
        True,
    )
    for owner in ("bob", "eve"):
        fake.views.add("x", owner, shared=True)
    ambiguous = detcloud("e", "list", "--view", "x")
    assert ambiguous.code == 1
    assert "several views have the name 'x'; choose one of bob/x, eve/x" in ambiguous.err
