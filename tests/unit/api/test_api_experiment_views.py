"""Saved views of the list of experiments: own and shared, refusals and limits."""

from typing import Any
from urllib.parse import quote

import pytest

from control_plane.access.principals import Role
from control_plane.usecases.experiment_views import VIEWS_MAX
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call

VIEW = {
    "filter": "state:running lr>0.01",
    "columns": ["name", "metric:loss"],
    "sort": "metric:loss",
    "order": "asc",
    "group": "project",
    "shared": False,
    "workspace": "",
}


def put(cluster: Cluster, name: str, role: Role = Role.USER, **fields: Any) -> Answer:
    path = f"{V1}/experiment-views/{quote(name, safe='')}"
    return call(cluster.app, "PUT", path, token=TOKENS[role], content={**VIEW, **fields})


def delete(cluster: Cluster, target: str, role: Role = Role.USER) -> Answer:
    return call(cluster.app, "DELETE", f"{V1}/experiment-views/{target}", token=TOKENS[role])


def names(cluster: Cluster, role: Role = Role.USER) -> list[tuple[str, str]]:
    answer = call(cluster.app, "GET", f"{V1}/experiment-views", token=TOKENS[role])
    return [(item["user"], item["name"]) for item in answer.json["items"]]


def test_view_is_saved_replaced_and_deleted(cluster: Cluster) -> None:
    answer = put(cluster, "Fast runs ü")
    assert answer.status == 200, answer.body
    times = {"created_ms": cluster.clock.ms, "updated_ms": cluster.clock.ms}
    assert answer.json == {"name": "Fast runs ü", "user": "user-1", **VIEW, **times}
    created = cluster.clock.ms
    cluster.clock.ms += 5
    again = put(cluster, "Fast runs ü", filter="", shared=True).json
    assert (again["filter"], again["created_ms"], again["updated_ms"]) == ("", created, created + 5)
    assert names(cluster) == [("user-1", "Fast runs ü")]
    assert delete(cluster, quote("Fast runs ü")).json == again
    assert names(cluster) == []
    assert delete(cluster, "x").status == 404


def test_users_see_their_own_and_shared_views(cluster: Cluster) -> None:
    put(cluster, "own")
    put(cluster, "for all", shared=True)
    put(cluster, "own", Role.ADMIN)
    assert names(cluster) == [("user-1", "for all"), ("user-1", "own")]
    assert names(cluster, Role.ADMIN) == [("admin-1", "own"), ("user-1", "for all")]


def test_view_of_a_workspace_is_narrowed_and_seen_by_all(cluster: Cluster) -> None:
    saved = put(cluster, "fast", workspace="my vision").json
    assert (saved["workspace"], saved["shared"]) == ("my vision", False)
    assert saved["filter"] == 'workspace:"my vision" state:running lr>0.01'
    # The filter has the term already, also in another form.
    for text in (saved["filter"], 'lr>1 workspace="my vision"'):
        again = put(cluster, "fast", workspace="my vision", filter=text)
        assert again.json["filter"] == text
    assert put(cluster, "plain", Role.ADMIN, workspace="Audio", filter="").json["filter"] == (
        "workspace:Audio"
    )
    assert names(cluster, Role.ADMIN) == [("admin-1", "plain"), ("user-1", "fast")]
    path = f"{V1}/experiment-views?workspace=my+vision"
    answer = call(cluster.app, "GET", path, token=TOKENS[Role.ADMIN])
    assert [item["name"] for item in answer.json["items"]] == ["fast"]
    assert delete(cluster, "plain?user=admin-1").status == 403


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"shared": True}, "workspace: must be empty if shared is true"),
        ({"workspace": "a/b"}, "workspace: 'a/b' holds '/'"),
        (
            {"filter": "lr>1 workspace:Audio"},
            "filter: character 6: 'workspace:Audio' is not valid; expected workspace:Vision",
        ),
        ({"filter": " ".join(["lr>1"] * 20)}, "at most 20 terms"),
    ],
)
def test_wrong_views_of_workspaces_are_refused(
    cluster: Cluster, fields: dict[str, Any], text: str
) -> None:
    answer = put(cluster, "wrong", **{"workspace": "Vision", **fields})
    assert answer.status == 422
    assert text in answer.json["error"]["message"]
    assert names(cluster) == []


def test_only_owner_and_admins_delete_a_view(cluster: Cluster) -> None:
    put(cluster, "theirs", Role.ADMIN, shared=True)
    put(cluster, "mine", shared=True)
    answer = delete(cluster, "theirs?user=admin-1")
    assert answer.status == 403
    assert "view theirs belongs to admin-1" in answer.json["error"]["message"]
    assert delete(cluster, "mine?user=user-1", Role.ADMIN).status == 200
    assert names(cluster) == [("admin-1", "theirs")]


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"filter": "state:x"}, "filter"),
        ({"sort": "pool"}, "sort"),
        ({"columns": ["metric:"]}, "columns"),
        ({"columns": ["name"] * 41}, "columns"),
        ({"group": "user"}, "group"),
        ({"order": "up"}, "order"),
        ({"extra": 1}, "extra"),
    ],
)
def test_wrong_views_are_refused(cluster: Cluster, fields: dict[str, Any], place: str) -> None:
    answer = put(cluster, "wrong", **fields)
    assert answer.status == 422
    assert answer.json["error"]["details"][0]["path"].endswith(place)
    assert names(cluster) == []


@pytest.mark.parametrize("name", [".", "..", " a", "a ", "a/b", "n" * 65, "a\tb"])
def test_wrong_names_are_refused(cluster: Cluster, name: str) -> None:
    assert put(cluster, name).status in (404, 405, 422)
    assert names(cluster) == []


def test_number_of_views_is_limited(cluster: Cluster) -> None:
    for number in range(VIEWS_MAX):
        assert put(cluster, f"view {number}").status == 200
    answer = put(cluster, "one more")
    assert answer.status == 409
    assert "delete a view first" in answer.json["error"]["message"]
    # A view can still be replaced, and other users can save views.
    assert put(cluster, "view 3", filter="").status == 200
    assert put(cluster, "one more", Role.ADMIN).status == 200


def test_repeated_request_answers_the_same(cluster: Cluster) -> None:
    headers = [("idempotency-key", "k")]
    path, token = f"{V1}/experiment-views/x", TOKENS[Role.USER]
    first = call(cluster.app, "PUT", path, token=token, headers=headers, content=VIEW)
    cluster.clock.ms += 7
    second = call(cluster.app, "PUT", path, token=token, headers=headers, content=VIEW)
    assert first.json == second.json
