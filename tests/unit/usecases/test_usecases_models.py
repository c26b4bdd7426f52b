"""The model registry: models, versions, ownership and pins of checkpoints."""

from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.actors.pins import PINS, decode_pin
from control_plane.state.table import Conflict, Key
from control_plane.usecases.model_versions import VERSIONS_OF_CHECKPOINT_MAX
from control_plane.usecases.models import METADATA_BYTES_MAX
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import NOW_MS, TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call
from tests.unit.api.table_decorators import RefusingTable
from tests.unit.api.test_api_collection import collect, kill
from tests.unit.queries.test_queries_trials import checkpoint

FIRST, SECOND = (f"{n:08d}-0000-4000-8000-000000000000" for n in (11, 12))


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    """An agent with trial 1, which has checkpoints at batches 2 and 4; the first is better."""
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    for uuid, steps, loss in ((FIRST, 2, 0.1), (SECOND, 4, 0.3)):
        checkpoint(cluster, agent, 1, uuid, steps)
        agent.report("1.1", metrics(steps, "validation", loss=loss))
    return agent


def ask(
    cluster: Cluster,
    method: str,
    path: str,
    content: object = None,
    *,
    role: Role = Role.USER,
    key: str | None = None,
) -> Answer:
    headers = [] if key is None else [("idempotency-key", key)]
    target = f"{V1}/models{path}"
    return call(cluster.app, method, target, token=TOKENS[role], headers=headers, content=content)


def create(cluster: Cluster, name: str = "digits", **fields: Any) -> Answer:
    return ask(cluster, "POST", "", {"name": name, **fields})


def register(
    cluster: Cluster, uuid: str = FIRST, name: str = "digits", role: Role = Role.USER, **fields: Any
) -> Answer:
    content = {"checkpoint_uuid": uuid, **fields}
    return ask(cluster, "POST", f"/{name}/versions", content, role=role)


def holders(cluster: Cluster, uuid: str = FIRST) -> tuple[str, ...]:
    row = cluster.services.table.get(Key(PINS, uuid))
    return decode_pin(row.body).versions if row else ()


def refusal(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json["error"]["message"]


def test_model_is_created_shown_and_listed(cluster: Cluster) -> None:
    made = create(cluster, description="ten of them", labels=["a", "a"], metadata={"k": [1]})
    expected = {
        "name": "digits",
        "workspace": "Uncategorized",
        "description": "ten of them",
        "notes": "",
        "labels": ["a"],
        "metadata": {"k": [1]},
        "archived": False,
        "versions": 0,
        "user": "user-1",
        "created_ms": NOW_MS,
        "updated_ms": NOW_MS,
        "revision": made.json["revision"],
    }
    assert (made.status, made.json) == (201, expected)
    assert ask(cluster, "GET", "/digits").json == expected
    assert ask(cluster, "GET", "").json == {"items": [expected], "next_cursor": None}


def test_rejects_existing_name_and_accepts_repeated_request(cluster: Cluster) -> None:
    first = ask(cluster, "POST", "", {"name": "digits"}, key="k")
    assert ask(cluster, "POST", "", {"name": "digits"}, key="k").body == first.body
    assert refusal(create(cluster)) == (409, "model digits already exists (owner user-1)")


def test_patch_changes_only_given_fields(cluster: Cluster) -> None:
    made = create(cluster, description="d", notes="n").json
    cluster.clock.ms += 1_000
    same = ask(cluster, "PATCH", "/digits", {"description": "d"})
    assert same.json == made, "nothing is different, so that nothing changes"
    moved = ask(cluster, "PATCH", "/digits", {"workspace": "Vision", "notes": ""}).json
    later = {"workspace": "Vision", "notes": "", "updated_ms": NOW_MS + 1_000}
    assert moved == {**made, **later, "revision": moved["revision"]}
    assert moved["revision"] > made["revision"]


def test_rejects_change_of_an_older_revision(cluster: Cluster, agent: Agent) -> None:
    seen = create(cluster).json["revision"]
    assert ask(cluster, "PATCH", "/digits", {"notes": "1", "revision": seen}).status == 200
    late = ask(cluster, "PATCH", "/digits", {"notes": "2", "revision": seen})
    assert (late.status, late.code) == (409, "conflict")
    assert "changed in the meantime" in refusal(late)[1]
    assert ask(cluster, "GET", "/digits").json["notes"] == "1"
    version = register(cluster).json["revision"]
    change = {"notes": "v", "revision": version}
    assert ask(cluster, "PATCH", "/digits/versions/1", change).status == 200
    change = {"notes": "w", "revision": version}
    assert ask(cluster, "PATCH", "/digits/versions/1", change).status == 409


def test_archived_model_is_unlisted_and_immutable(cluster: Cluster, agent: Agent) -> None:
    create(cluster)
    register(cluster)
    assert ask(cluster, "PATCH", "/digits", {"archived": True}).json["archived"]
    assert ask(cluster, "GET", "").json["items"] == []
    for query in ("true", "all"):
        assert len(ask(cluster, "GET", f"?archived={query}").json["items"]) == 1
    for answer in (
        ask(cluster, "PATCH", "/digits", {"notes": "n"}),
        ask(cluster, "PATCH", "/digits/versions/1", {"notes": "n"}),
        register(cluster),
    ):
        assert (answer.status, answer.code) == (409, "conflict")
        assert "model digits is archived" in refusal(answer)[1]
    assert ask(cluster, "PATCH", "/digits", {"archived": False, "notes": "n"}).status == 200


def test_rejects_model_change_by_other_users(cluster: Cluster, agent: Agent) -> None:
    ask(cluster, "POST", "", {"name": "digits"}, role=Role.ADMIN)
    for method, content in (("PATCH", {"notes": "n"}), ("DELETE", None)):
        answer = ask(cluster, method, "/digits", content)
        assert (answer.status, answer.code) == (403, "forbidden")
        assert "model digits belongs to admin-1" in refusal(answer)[1]
    assert register(cluster, role=Role.ADMIN).json["user"] == "admin-1"
    refused = register(cluster)
    assert (refused.status, refused.code) == (403, "forbidden")
    assert ask(cluster, "PATCH", "/digits/versions/1", {"notes": "n"}).status == 403
    assert ask(cluster, "DELETE", "/digits/versions/1").status == 403
    assert ask(cluster, "GET", "/digits").json["versions"] == 1


def test_registrant_and_model_owner_own_a_version(cluster: Cluster, agent: Agent) -> None:
    # user-1 owns the checkpoint and the model.
    create(cluster)
    assert register(cluster, role=Role.ADMIN).json["user"] == "admin-1"
    assert ask(cluster, "PATCH", "/digits/versions/1", {"notes": "n"}).status == 200
    # user-1 owns the checkpoint, the admin owns the model.
    ask(cluster, "POST", "", {"name": "other"}, role=Role.ADMIN)
    assert register(cluster, name="other", role=Role.ADMIN).status == 201


def test_rejects_agent_tokens(cluster: Cluster) -> None:
    token = Agent(cluster).token
    for method, path in (("GET", ""), ("POST", ""), ("GET", "/x"), ("DELETE", "/x/versions/1")):
        assert call(cluster.app, method, f"{V1}/models{path}", token=token).status == 403


def test_version_shows_the_checkpoint(cluster: Cluster, agent: Agent) -> None:
    create(cluster)
    version = register(cluster, FIRST[:8], name="digits", comment="good", metadata={"f1": 0.9})
    expected = {
        "model": "digits",
        "number": 1,
        "name": "",
        "comment": "good",
        "notes": "",
        "labels": [],
        "metadata": {"f1": 0.9},
        "checkpoint_uuid": FIRST,
        "trial_id": 1,
        "experiment_id": 1,
        "steps_completed": 2,
        "user": "user-1",
        "created_ms": NOW_MS,
        "updated_ms": NOW_MS,
        "revision": version.json["revision"],
    }
    assert (version.status, version.json) == (201, expected)
    assert ask(cluster, "GET", "/digits/versions/1").json == expected
    register(cluster, SECOND)
    listed = ask(cluster, "GET", "/digits/versions").json["items"]
    assert [item["number"] for item in listed] == [2, 1]
    assert ask(cluster, "GET", "/digits").json["versions"] == 2
    assert (holders(cluster), holders(cluster, SECOND)) == (("digits/1",), ("digits/2",))


def test_version_numbers_are_never_reused(cluster: Cluster, agent: Agent) -> None:
    create(cluster)
    register(cluster)
    assert ask(cluster, "DELETE", "/digits/versions/1").status == 200
    assert register(cluster).json["number"] == 2
    assert ask(cluster, "GET", "/digits").json["versions"] == 1
    assert refusal(ask(cluster, "GET", "/digits/versions/1")) == (
        404,
        "there is no version 1 of a model digits",
    )


def test_repeated_registration_takes_effect_once(cluster: Cluster, agent: Agent) -> None:
    create(cluster)
    content = {"checkpoint_uuid": FIRST}
    first = ask(cluster, "POST", "/digits/versions", content, key="k")
    assert ask(cluster, "POST", "/digits/versions", content, key="k").body == first.body
    assert holders(cluster) == ("digits/1",)


def test_version_prevents_collection_of_the_checkpoint(cluster: Cluster, agent: Agent) -> None:
    create(cluster)
    register(cluster, SECOND)
    kill(cluster, agent)
    none = {"save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 0}
    path = f"{V1}/experiments/1"
    assert call(cluster.app, "PATCH", path, token=TOKENS[Role.USER], content=none).status == 200
    collect(cluster)
    states = {uuid: cluster.get(f"/checkpoints/{uuid}").json["state"] for uuid in (FIRST, SECOND)}
    assert states == {FIRST: "DELETED", SECOND: "COMPLETED"}
    assert cluster.get(f"/checkpoints/{SECOND}/files").status == 200
    for target in (f"/checkpoints/{SECOND}", "/experiments/1"):
        answer = call(cluster.app, "DELETE", V1 + target, token=TOKENS[Role.USER])
        assert answer.code == "conflict"
        assert "model version digits/1 holds" in refusal(answer)[1]
    gone = refusal(register(cluster, FIRST))
    assert gone == (409, f"checkpoint {FIRST} was deleted, and cannot be a version")
    ask(cluster, "DELETE", "/digits")
    assert call(cluster.app, "DELETE", path, token=TOKENS[Role.USER]).json["state"] == "DELETING"
    collect(cluster)
    assert cluster.get(f"/checkpoints/{SECOND}").status == 404


def test_deleting_last_version_releases_the_checkpoint(cluster: Cluster, agent: Agent) -> None:
    create(cluster)
    create(cluster, "other")
    register(cluster)
    register(cluster, name="other")
    ask(cluster, "DELETE", "/digits/versions/1")
    assert holders(cluster) == ("other/1",)
    ask(cluster, "DELETE", "/other/versions/1")
    assert cluster.services.table.get(Key(PINS, FIRST)) is None


def test_deleting_a_version_keeps_pins_of_experiments(cluster: Cluster, agent: Agent) -> None:
    create(cluster)
    register(cluster)
    warm = CONFIG.replace("searcher: {", f"searcher: {{source_checkpoint_uuid: {FIRST}, ", 1)
    assert cluster.create(warm).status == 201
    ask(cluster, "DELETE", "/digits/versions/1")
    row = cluster.services.table.get(Key(PINS, FIRST))
    assert row is not None
    assert decode_pin(row.body).experiments == (2,)


def test_model_deletion_removes_all_versions(cluster: Cluster, agent: Agent) -> None:
    create(cluster)
    # More versions than a commit can delete.
    for n in range(35):
        register(cluster, (FIRST, SECOND)[n % 2])
    deleted = ask(cluster, "DELETE", "/digits")
    assert (deleted.status, deleted.json["versions"]) == (200, 0)
    assert ask(cluster, "GET", "/digits/versions").status == 404
    assert holders(cluster) == holders(cluster, SECOND) == ()
    create(cluster)
    assert ask(cluster, "GET", "/digits/versions").json["items"] == []


def test_change_is_retried_after_a_concurrent_change(cluster: Cluster, agent: Agent) -> None:
    create(cluster)
    # Each row has one concurrent change.
    changes = [Conflict(Key(PINS, FIRST)), Conflict(Key("models", "digits"))]
    cluster.services.engine.table = RefusingTable(cluster.services.table, changes)
    assert register(cluster).json["number"] == 1
    assert holders(cluster) == ("digits/1",)


def test_versions_per_checkpoint_are_limited(cluster: Cluster, agent: Agent) -> None:
    create(cluster)
    for _ in range(VERSIONS_OF_CHECKPOINT_MAX):
        assert register(cluster).status == 201
    answer = register(cluster)
    assert answer.code == "conflict"
    assert "is 100 versions already; delete one of them first" in refusal(answer)[1]


@pytest.mark.parametrize(
    "name", ["", "a" * 129, ".a", "..", "a/b", "a%b", "ä", "a\n", " a", "a ", "a,b", "'a", "-a"]
)
def test_rejects_invalid_names(cluster: Cluster, name: str) -> None:
    answer = create(cluster, name)
    assert (answer.status, answer.code) == (422, "invalid")
    assert answer.json["error"]["details"][0]["path"] == "name"


@pytest.mark.parametrize("name", ["a" * 128, "a b.c", "v1.0+x@y:(z)", "7"])
def test_accepts_valid_names(cluster: Cluster, name: str) -> None:
    assert create(cluster, name).status == 201
    path = "/" + name.replace(" ", "%20")
    assert ask(cluster, "GET", path).json["name"] == name


@pytest.mark.parametrize(
    "fields",
    [
        {"x": 1},
        {"description": "d" * 4_001},
        {"notes": "n" * 16_001},
        {"labels": ["l"] * 101},
        {"labels": [""]},
        {"workspace": ""},
        {"workspace": "a,b"},
        {"metadata": []},
        # {"k":""} has 8 characters and a space after the colon.
        {"metadata": {"k": "m" * (METADATA_BYTES_MAX - 8)}},
    ],
)
def test_rejects_invalid_fields(cluster: Cluster, fields: dict[str, Any]) -> None:
    assert create(cluster, **fields).code == "invalid"
    assert ask(cluster, "GET", "").json["items"] == []


@pytest.mark.parametrize("text", [b'{"k": NaN}', b'{"k": "\\ud800"}', b'{"k":' * 70 + b"1}" * 70])
def test_rejects_metadata_that_json_cannot_represent(cluster: Cluster, text: bytes) -> None:
    body = b'{"name": "digits", "metadata": ' + text + b"}"
    headers = [("content-type", "application/json")]
    path = f"{V1}/models"
    answer = call(cluster.app, "POST", path, token=TOKENS[Role.USER], headers=headers, body=body)
    assert (answer.status, answer.code) == (422, "invalid"), answer.body


def test_largest_model_fits_into_rows(cluster: Cluster) -> None:
    # A quotation mark takes two bytes in a row, and four in the answer in a key's row.
    quotes = '"' * ((METADATA_BYTES_MAX - 9) // 2)
    body = {"name": "digits", "metadata": {"k": quotes}, "notes": '"' * 14_000}
    first = ask(cluster, "POST", "", body, key="k")
    assert first.status == 201, first.body
    assert ask(cluster, "POST", "", body, key="k").body == first.body
    # 64 KiB of metadata and 2 x 16,000 + 4,000 bytes are more than the 96 KiB of a row.
    change = {"notes": '"' * 16_000, "description": "é" * 4_000}
    answer = ask(cluster, "PATCH", "/digits", change)
    assert (answer.status, answer.code) == (413, "too_large")


def test_list_has_pages_order_and_filters(cluster: Cluster) -> None:
    for number in range(5):
        kind = ("odd", "even")[number % 2]
        create(cluster, f"m {number}", labels=[kind], workspace=kind)
    names, cursor = [], ""
    while cursor is not None:
        page = ask(cluster, "GET", f"?limit=2{cursor and f'&cursor={cursor}'}").json
        names.append([item["name"] for item in page["items"]])
        cursor = page["next_cursor"]
    assert names == [["m 0", "m 1"], ["m 2", "m 3"], ["m 4"]]

    def found_names(query: str) -> list[str]:
        return [item["name"] for item in ask(cluster, "GET", f"?{query}").json["items"]]

    assert found_names("order=desc&limit=2") == ["m 4", "m 3"]
    assert found_names("label=even") == found_names("workspace=even,none") == ["m 1", "m 3"]
    assert found_names("name=M%202") == ["m 2"]
    assert found_names("user=admin-1") == []
    assert ask(cluster, "GET", "?order=up").status == 422


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/no"), ("PATCH", "/no"), ("DELETE", "/no"), ("GET", "/no/versions")],
)
def test_unknown_model_is_named(cluster: Cluster, method: str, path: str) -> None:
    content = {"notes": "n"} if method == "PATCH" else None
    assert refusal(ask(cluster, method, path, content)) == (404, "there is no model no")


def test_version_requires_model_and_checkpoint(cluster: Cluster, agent: Agent) -> None:
    assert refusal(register(cluster)) == (404, "there is no model digits")
    create(cluster)
    assert refusal(register(cluster, "99")) == (404, "there is no checkpoint 99")
    assert register(cluster, "0").code == "invalid", "it begins several"
    assert ask(cluster, "GET", "/digits").json["versions"] == 0
