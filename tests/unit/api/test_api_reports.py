"""Reports: own and shared reports, revisions, refusals and limits."""

from typing import Any

import pytest

from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import token_digest, token_put
from control_plane.state.table import Key
from control_plane.usecases import reports
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call

OTHER = "dct_token-of-another-user"
USER, ADMIN = TOKENS[Role.USER], TOKENS[Role.ADMIN]
TEXT = "# Digits\n\n```chart\nkind: curves\nexperiments: 7\n```\n"


@pytest.fixture
def world(cluster: Cluster) -> Cluster:
    """A cluster with the users `user-1`, `user-2` and `admin-1`."""
    principal = Principal("user-2", Role.USER)
    cluster.services.table.commit([token_put(token_digest(OTHER), principal)])
    return cluster


def send(cluster: Cluster, method: str, path: str, token: str, content: Any = None) -> Answer:
    return call(cluster.app, method, f"{V1}/reports{path}", token=token, content=content)


def create(cluster: Cluster, sharing: str = "private", token: str = USER) -> Answer:
    content = {"title": "Digits", "text": TEXT, "sharing": sharing}
    answer = send(cluster, "POST", "", token, content)
    assert answer.status == 201, answer.body
    return answer


def put(cluster: Cluster, read: int, token: str = USER, **fields: Any) -> Answer:
    content = {"title": "Digits", "text": TEXT, "sharing": "edit", "revision": read}
    return send(cluster, "PUT", "/1", token, {**content, **fields})


def listed_ids(cluster: Cluster, token: str = USER) -> list[int]:
    return [item["id"] for item in send(cluster, "GET", "", token).json["items"]]


def test_report_is_created_read_changed_and_deleted(world: Cluster) -> None:
    created_ms = world.clock.ms
    summary = create(world).json
    assert summary == {
        "id": 1,
        "title": "Digits",
        "user": "user-1",
        "sharing": "private",
        "revision": 1,
        "created_ms": created_ms,
        "updated_ms": created_ms,
        "updated_by": "user-1",
    }
    assert send(world, "GET", "/1", USER).json == {**summary, "text": TEXT}
    world.clock.ms += 5
    changed = put(world, 1, title="Digits, again", text="ü").json
    assert changed == {
        **summary,
        "title": "Digits, again",
        "sharing": "edit",
        "revision": 2,
        "updated_ms": created_ms + 5,
    }
    assert send(world, "GET", "/1", USER).json["text"] == "ü"
    assert send(world, "DELETE", "/1", USER).json == changed
    assert send(world, "GET", "/1", USER).status == 404
    assert world.services.table.get(Key("report-texts", f"{1:012d}")) is None
    # An id is not used again, because links to the deleted report exist.
    assert create(world).json["id"] == 2


def test_users_list_their_own_and_shared_reports(world: Cluster) -> None:
    for sharing in ("private", "read", "edit"):
        create(world, sharing)
    create(world, token=OTHER)
    assert listed_ids(world) == [3, 2, 1]
    assert listed_ids(world, OTHER) == [4, 3, 2]
    assert listed_ids(world, ADMIN) == [3, 2]
    first = send(world, "GET", "?limit=2", USER).json
    rest = send(world, "GET", f"?limit=2&cursor={first['next_cursor']}", USER).json
    assert [item["id"] for item in first["items"] + rest["items"]] == [3, 2, 1]
    assert "text" not in first["items"][0]


def test_private_report_looks_missing_to_other_users(world: Cluster) -> None:
    create(world)
    answers = [
        send(world, "GET", "/1", OTHER),
        put(world, 1, OTHER),
        send(world, "DELETE", "/1", OTHER),
    ]
    missing = send(world, "GET", "/9", OTHER).json["error"]["message"].replace("9", "1")
    assert [answer.status for answer in answers] == [404, 404, 404]
    assert {answer.json["error"]["message"] for answer in answers} == {missing}
    assert send(world, "GET", "/1", ADMIN).json["text"] == TEXT


def test_report_shared_for_reading_is_changed_by_owner_and_admins_only(world: Cluster) -> None:
    create(world, "read")
    assert send(world, "GET", "/1", OTHER).json["text"] == TEXT
    refused = put(world, 1, OTHER, sharing="read")
    assert refused.status == 403
    assert "report 1 belongs to user-1" in refused.json["error"]["message"]
    assert put(world, 1, ADMIN, sharing="read").json["updated_by"] == "admin-1"
    assert send(world, "DELETE", "/1", OTHER).status == 403


def test_report_shared_for_editing_keeps_owner_and_sharing(world: Cluster) -> None:
    create(world, "edit")
    changed = put(world, 1, OTHER, text="by user-2").json
    assert (changed["user"], changed["updated_by"]) == ("user-1", "user-2")
    for sharing in ("private", "read"):
        assert put(world, 2, OTHER, sharing=sharing).status == 403
    assert send(world, "DELETE", "/1", OTHER).status == 403
    assert send(world, "GET", "/1", USER).json["revision"] == 2


def test_change_of_an_older_revision_names_the_last_writer(world: Cluster) -> None:
    create(world, "edit")
    assert put(world, 1, OTHER, text="theirs").status == 200
    answer = put(world, 1, text="mine")
    assert answer.status == 409
    message = answer.json["error"]["message"]
    assert message == (
        "user-2 changed report 1 in the meantime: it has revision 2, not 1; read it again and "
        "repeat your change"
    )
    assert send(world, "GET", "/1", USER).json["text"] == "theirs"
    assert put(world, 2, text="mine").json["revision"] == 3


def test_repeated_requests_answer_the_same(world: Cluster) -> None:
    headers = [("idempotency-key", "k")]

    def post() -> Answer:
        content = {"title": "t", "text": "x"}
        path = f"{V1}/reports"
        return call(world.app, "POST", path, token=USER, headers=headers, content=content)

    first = post()
    world.clock.ms += 7
    assert first.status == 201
    assert post().json == first.json
    assert listed_ids(world) == [1]


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"title": ""}, "title"),
        ({"title": " a"}, "title"),
        ({"title": "a\nb"}, "title"),
        ({"title": "a" * 201}, "title"),
        ({"sharing": "all"}, "sharing"),
        ({"text": None}, "text"),
        ({"revision": 0}, "revision"),
        ({"revision": None}, "revision"),
        ({"user": "me"}, "user"),
    ],
)
def test_wrong_reports_are_refused(world: Cluster, fields: dict[str, Any], place: str) -> None:
    create(world)
    answer = put(world, 1, **fields)
    assert answer.status == 422
    assert answer.json["error"]["details"][0]["path"].endswith(place)
    assert send(world, "GET", "/1", USER).json["revision"] == 1


def test_long_texts_are_refused(world: Cluster) -> None:
    create(world)
    # Two bytes each: 65,536 bytes are the limit.
    assert put(world, 1, text="ü" * 32_768).status == 200
    answer = put(world, 2, text="ü" * 32_769)
    assert answer.status == 413
    assert "the text has 65538 bytes; a report has at most 65536" in answer.body.decode()
    # JSON needs six bytes for each of these characters, the most of all characters.
    assert put(world, 2, text="\x01" * 65_536).status == 200


def test_number_of_reports_is_limited(world: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "REPORTS_MAX", 2)
    create(world)
    create(world, token=OTHER)
    answer = send(world, "POST", "", USER, {"title": "one more"})
    assert answer.status == 409
    assert "delete a report first" in answer.json["error"]["message"]
    assert put(world, 1).status == 200


def test_report_and_text_are_of_one_revision(
    world: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(world)
    table = world.services.table
    get = table.get

    def get_then_change(key: Key) -> Any:
        row = get(key)
        if key.partition == "reports":
            monkeypatch.setattr(table, "get", get)
            put(world, 1, text="newer")
        return row

    monkeypatch.setattr(table, "get", get_then_change)
    answer = send(world, "GET", "/1", USER).json
    assert (answer["revision"], answer["text"]) == (2, "newer")
