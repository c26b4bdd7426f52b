"""Workspaces, projects, metadata and orders of experiments over HTTP."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import pytest

from control_plane.access.principals import Role
from control_plane.actors import addresses
from control_plane.actors.experiment.state import LISTING
from control_plane.actors.messages.experiment import CollectionEnded, TrialMetered
from control_plane.actors.metadata_terms import metadata_partition
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import TOKENS, V1, Cluster, limit_queries
from tests.unit.api.exchange import Answer, call

SINGLE = """
name: NAME
entrypoint: python train.py
searcher: {name: single, metric: loss, max_length: {batches: 10}}
"""


def create(cluster: Cluster, name: str = "digits", *overrides: str) -> int:
    answer = cluster.create(SINGLE.replace("NAME", name), overrides=list(overrides), paused=True)
    assert answer.status == 201, answer.body
    number: int = answer.json["id"]
    return number


def change(cluster: Cluster, number: int, **fields: Any) -> Answer:
    path = f"{V1}/experiments/{number}"
    return call(cluster.app, "PATCH", path, token=TOKENS[Role.USER], content=fields)


def list_ids(cluster: Cluster, **query: object) -> list[int]:
    answer = cluster.get(f"/experiments?{urlencode(query, doseq=True)}")
    assert answer.status == 200, answer.body
    return [item["id"] for item in answer.json["items"]]


def charge(cluster: Cluster, number: int, micros: int) -> None:
    """Add costs in millionths of a dollar to the experiment's trial."""
    metered = TrialMetered(0, 1, micros, 0, cluster.services.now_ms(), False)
    cluster.services.engine.post_message(addresses.experiment(number), metered, sender="test")


def find_ids(cluster: Cluster, *filters: str) -> list[int]:
    return list_ids(cluster, metadata=list(filters))


def refusal(answer: Answer) -> str:
    assert (answer.status, answer.code) == (422, "invalid"), answer.body
    message: str = answer.json["error"]["message"]
    return message


def test_experiments_are_filtered_by_workspace_and_project(cluster: Cluster) -> None:
    create(cluster)
    create(cluster, "a", "workspace=Vision", "project=Digits")
    create(cluster, "b", "workspace=Vision")
    create(cluster, "c", "project=Digits")
    assert list_ids(cluster, workspace="Vision") == [3, 2]
    assert list_ids(cluster, project="Digits") == [4, 2]
    assert list_ids(cluster, workspace="Vision", project="Digits") == [2]
    assert list_ids(cluster, workspace="Uncategorized", project="Uncategorized") == [1]
    assert list_ids(cluster, workspace="vision") == []
    shown = cluster.get("/experiments/2").json
    assert (shown["workspace"], shown["project"]) == ("Vision", "Digits")
    assert shown["warnings"] == []


def test_projects_and_workspaces_are_counted(cluster: Cluster) -> None:
    create(cluster)
    for name in "ab":
        create(cluster, name, "workspace=Vision", "project=Digits")
    create(cluster, "c", "workspace=Vision", "project=Faces")
    assert cluster.post("/experiments/2/kill", {}).status == 200
    assert cluster.post("/experiments/2/archive", {}).status == 200
    none, digits, faces = cluster.get("/projects").json["items"]
    counts = {"experiments": 1, "open": 1, "archived": 0}
    assert none == {"workspace": "Uncategorized", "project": "Uncategorized", **counts}
    assert faces == {"workspace": "Vision", "project": "Faces", **counts}
    # The first of the two was killed and archived.
    assert digits == {"workspace": "Vision", "project": "Digits", "experiments": 2} | {
        "open": 1,
        "archived": 1,
    }
    assert cluster.get("/projects?workspace=Vision").json["items"] == [digits, faces]
    assert cluster.get("/projects?workspace=Text").json == {"items": [], "left_out_before": None}
    vision = cluster.get("/workspaces").json["items"][1]
    sums = {"projects": 2, "experiments": 3, "open": 2, "archived": 1}
    assert vision == {"workspace": "Vision", **sums}


def test_only_the_newest_experiments_are_counted(cluster: Cluster) -> None:
    for _ in range(3):
        create(cluster)
    limited = limit_queries(cluster, counted_experiments_max=2)
    answer = limited.get("/projects").json
    assert (answer["items"][0]["experiments"], answer["left_out_before"]) == (2, 2)
    limited = limit_queries(cluster, counted_experiments_max=3)
    assert limited.get("/workspaces").json["left_out_before"] is None


def test_experiment_moves_between_projects(cluster: Cluster) -> None:
    number = create(cluster)
    moved = change(cluster, number, workspace="Vision", project="Digits").json
    assert (moved["workspace"], moved["project"]) == ("Vision", "Digits")
    assert change(cluster, number, project="Faces").json["workspace"] == "Vision"
    assert list_ids(cluster, workspace="Vision", project="Faces") == [number]
    assert list_ids(cluster, project="Digits") == []
    # A change of labels keeps workspace and project.
    assert change(cluster, number, labels=["x"]).json["project"] == "Faces"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a/b", "holds '/'"),
        ("a,b", "holds ','"),
        ("a\nb", r"holds '\n'"),
        (" a", "must not begin or end with a space"),
        ("\u202eb", r"holds '\u202e'"),
        ("\ud800", "half of a surrogate pair"),
    ],
)
def test_rejects_invalid_workspace_and_project_names(cluster: Cluster, name: str, why: str) -> None:
    number = create(cluster)
    for field in ("workspace", "project"):
        assert why in refusal(change(cluster, number, **{field: name}))
        if name.isascii():
            query = urlencode({field: name})
            assert why in refusal(cluster.get(f"/experiments?{query}"))
            config = SINGLE + f"{field}: {name!r}\n".replace("'", '"')
            assert why in refusal(cluster.create(config))
    assert cluster.get(f"/experiments/{number}").json["project"] == "Uncategorized"


def test_project_name_has_at_most_128_characters(cluster: Cluster) -> None:
    number = create(cluster)
    assert change(cluster, number, project="x" * 128).status == 200
    assert change(cluster, number, project="x" * 129).status == 422
    assert change(cluster, number, project="").status == 422
    text = refusal(cluster.create(SINGLE + f"project: {'x' * 129}\n"))
    assert "has 129 characters; at most 128 are allowed" in text
    assert cluster.get(f"/experiments?workspace={'x' * 201}").status == 422
    assert cluster.get(f"/projects?workspace={'x' * 129}").status == 422


def test_experiments_are_found_by_metadata(cluster: Cluster) -> None:
    data: Mapping[int, dict[str, Any]] = {
        1: {"data": {"version": 3, "set": "mnist"}, "tags": ["a", "b"], "ok": True},
        2: {"data": {"version": 3.0}, "ok": False, "none": None},
        3: {"data": {"version": "4"}},
    }
    for number, metadata in data.items():
        create(cluster)
        assert change(cluster, number, metadata=metadata).json["metadata"] == metadata
    # 3 and 3.0 are equal; a numeric text is found by the exact text.
    assert find_ids(cluster, "data.version=3") == find_ids(cluster, "data.version=3.00") == [2, 1]
    assert find_ids(cluster, "data.version=4") == [3]
    assert find_ids(cluster, "data.version=3", "data.set=mnist") == [1]
    assert find_ids(cluster, "data.set=mnist", "ok=false") == []
    assert find_ids(cluster, "tags=b") == find_ids(cluster, "ok=true") == [1]
    assert find_ids(cluster, "none=null") == [2]
    assert find_ids(cluster, "data=3") == find_ids(cluster, "version=3") == []
    assert list_ids(cluster, metadata="data.version=3", sort="id", order="asc") == [1, 2]
    assert list_ids(cluster, metadata="data.version=3", name="other") == []
    assert change(cluster, 1, metadata={"data": {"version": 4}}).status == 200
    assert find_ids(cluster, "data.version=3") == [2]
    assert find_ids(cluster, "data.version=4") == [3, 1]
    assert find_ids(cluster, "tags=b") == []


def test_metadata_search_continues_at_the_cursor(cluster: Cluster) -> None:
    for number in range(1, 6):
        create(cluster)
        change(cluster, number, metadata={"kind": "odd" if number % 2 else "even", "all": 1})
    # A request reads at most two of the five experiments with `all`; 5, 3 and 1 are odd.
    limited = limit_queries(cluster, looked_up_experiments_max=2)
    seen, cursor = [], ""
    while True:
        answer = limited.get(f"/experiments?metadata=all=1&metadata=kind=odd{cursor}").json
        seen.append([item["id"] for item in answer["items"]])
        if answer["next_cursor"] is None:
            break
        cursor = f"&cursor={answer['next_cursor']}"
    assert seen == [[5], [3], [1]]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x", "must be KEY=VALUE"),
        ("=x", "must be KEY=VALUE"),
        ("k" * 201 + "=x", "has a key of 201 characters; at most 200 are found"),
        ("k=" + "x" * 201, "has a value of 201 characters"),
        ("a\0=x", "contains a NUL character"),
    ],
)
def test_rejects_invalid_metadata_filters(cluster: Cluster, text: str, why: str) -> None:
    query = urlencode({"metadata": text})
    create(cluster)
    for path in ("/experiments", "/experiments/1/trials"):
        assert why in refusal(cluster.get(f"{path}?{query}"))


def test_metadata_has_limits(cluster: Cluster) -> None:
    number = create(cluster)
    thirty = {f"k{n}": n for n in range(30)}
    assert change(cluster, number, metadata=thirty).status == 200
    # One commit replaces all thirty values.
    others = {f"k{n}": n + 1 for n in range(30)}
    assert change(cluster, number, metadata=others).status == 200
    assert find_ids(cluster, "k29=30") == [number]
    text = refusal(change(cluster, number, metadata={**thirty, "k30": 1}))
    assert "metadata: has 31 values; at most 30 are allowed" in text
    assert "bytes as JSON; the limit is 4096" in refusal(
        change(cluster, number, metadata={"k": "x" * 4096})
    )
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"k": deep}
    assert change(cluster, number, metadata=deep).status in (400, 422)
    assert cluster.get("/experiments?" + "&".join(["metadata=k=1"] * 6)).status == 422
    # A value that is longer than a filter is stored, but not found.
    assert change(cluster, number, metadata={"k": "x" * 201}).status == 200
    assert find_ids(cluster, "k29=30") == []


def test_deleted_experiment_is_not_found_by_metadata(cluster: Cluster) -> None:
    number = create(cluster)
    change(cluster, number, metadata={"k": 1})
    cluster.post(f"/experiments/{number}/kill", {})
    path = f"{V1}/experiments/{number}"
    assert call(cluster.app, "DELETE", path, token=TOKENS[Role.USER]).status == 200
    engine = cluster.services.engine
    ended = CollectionEnded(engine.read_state(f"experiment#{number}").collection_number)
    engine.post_message(f"experiment#{number}", ended, sender="test")
    engine.advance_until_idle([f"experiment#{number}"])
    assert cluster.get(f"/experiments/{number}").status == 404
    assert find_ids(cluster, "k=1") == []
    for partition in (metadata_partition("k=1"), LISTING):
        assert cluster.services.table.query(partition, " ", "\x7f").rows == ()


def test_trials_are_found_by_metadata(cluster: Cluster) -> None:
    assert cluster.create(CONFIG).status == 201
    agent = Agent(cluster)
    first, second = agent.take_work()
    for allocation, fold in ((first, 1), (second, 2)):
        line = {"kind": "trial_metadata", "metadata": {"cv": {"fold": fold}, "run": "x"}}
        assert agent.report(allocation, line).status == 200
    numbers = {
        text: [
            item["number"]
            for item in cluster.get(f"/experiments/1/trials?metadata={text}").json["items"]
        ]
        for text in ("cv.fold=2", "run=x", "run=y", "cv.fold=2&metadata=run=x")
    }
    assert numbers["cv.fold=2"] == numbers["cv.fold=2&metadata=run=x"]
    assert len(numbers["cv.fold=2"]) == 1
    assert (numbers["run=x"], numbers["run=y"]) == ([0, 1], [])
    page = cluster.get("/experiments/1/trials?metadata=run=x&limit=1").json
    assert [item["number"] for item in page["items"]] == [0]
    rest = cluster.get(f"/experiments/1/trials?metadata=run=x&cursor={page['next_cursor']}").json
    assert [item["number"] for item in rest["items"]] == [1]


def test_experiments_are_sorted_by_id_name_and_state(cluster: Cluster) -> None:
    for name in ("beta", "Alpha", "gamma", "alpha"):
        create(cluster, name)
    cluster.post("/experiments/3/kill", {})
    assert list_ids(cluster, sort="id", order="asc") == [1, 2, 3, 4]
    assert list_ids(cluster, sort="submitted") == [4, 3, 2, 1]
    # Case is ignored; equal names are sorted newest first in both orders.
    assert list_ids(cluster, sort="name", order="asc") == [4, 2, 1, 3]
    assert list_ids(cluster, sort="name") == [3, 1, 4, 2]
    # CANCELED comes before PAUSED.
    assert list_ids(cluster, sort="state", order="asc") == [3, 4, 2, 1]
    assert cluster.get("/experiments?sort=pool").status == 422
    assert cluster.get("/experiments?order=up").status == 422


def test_experiments_are_sorted_by_best_metric(cluster: Cluster) -> None:
    agent = Agent(cluster, slots=2)
    for _ in range(3):
        create(cluster)
    for number, loss in ((1, 0.5), (2, 0.25)):
        assert cluster.post(f"/experiments/{number}/activate", {}).status == 200
        (allocation,) = set(agent.take_work()) - set(agent.known[:-1])
        agent.report(allocation, metrics(5 * number, "validation", loss=loss))
    by_id = {item["id"]: item["best_metric"] for item in cluster.get("/experiments").json["items"]}
    assert by_id == {1: 0.5, 2: 0.25, 3: None}
    assert list_ids(cluster, sort="metric", order="asc") == [2, 1, 3]
    # Experiments without a value come last in both orders.
    assert list_ids(cluster, sort="metric") == [1, 2, 3]


def test_experiments_are_sorted_by_user(cluster: Cluster) -> None:
    path, model_code = f"{V1}/experiments", cluster.store_code()
    for role in (Role.USER, Role.ADMIN, Role.USER):
        body = {"config": SINGLE, "model_code": model_code, "paused": True}
        assert call(cluster.app, "POST", path, token=TOKENS[role], content=body).status == 201
    users = {item["id"]: item["user"] for item in cluster.get("/experiments").json["items"]}
    assert users[1] == users[3] != users[2]
    last = sorted(users.values())[-1]
    # Equal users are sorted newest first.
    expected = [2, 3, 1] if users[2] == last else [3, 1, 2]
    assert list_ids(cluster, sort="user") == expected


def test_experiments_are_sorted_by_cost(cluster: Cluster) -> None:
    for number, micros in ((1, 2_000_000), (2, 0), (3, 5_000_000)):
        create(cluster)
        charge(cluster, number, micros)
    assert list_ids(cluster, sort="cost") == [3, 1, 2]
    assert list_ids(cluster, sort="cost", order="asc") == [2, 1, 3]


def test_changed_texts_have_the_limits_of_configurations(cluster: Cluster) -> None:
    create(cluster)
    name, label = "n" * 100_000, "l" * 1_000
    assert change(cluster, 1, name=name, description=name, labels=[label]).status == 200
    assert list_ids(cluster, label=label) == [1]
    for fields in ({"name": name + "n"}, {"labels": [label + "l"]}, {"description": name + "n"}):
        assert change(cluster, 1, **fields).status == 422, list(fields)


def test_sorted_list_returns_the_first_left_out_id(cluster: Cluster) -> None:
    for name in ("d", "c", "b", "a"):
        create(cluster, name)
    answer = cluster.get("/experiments?sort=name&order=asc&limit=3").json
    assert [item["id"] for item in answer["items"]] == [4, 3, 2]
    assert answer["left_out_before"] is None
    rest = cluster.get(f"/experiments?sort=name&order=asc&cursor={answer['next_cursor']}").json
    assert ([item["id"] for item in rest["items"]], rest["next_cursor"]) == ([1], None)
    assert cluster.get(f"/experiments?sort=name&cursor={answer['next_cursor']}").status == 422
    cluster = limit_queries(cluster, listed_experiments_max=3)
    answer = cluster.get("/experiments?sort=name").json
    assert ([item["id"] for item in answer["items"]], answer["left_out_before"]) == ([2, 3, 4], 2)
    # Experiments without progress need no lookup; later progress is read from states.
    cluster = limit_queries(cluster, listed_experiments_max=3, looked_up_experiments_max=2)
    answer = cluster.get("/experiments?sort=progress").json
    assert ([item["id"] for item in answer["items"]], answer["left_out_before"]) == ([4, 3, 2], 2)
    for number in range(1, 5):
        charge(cluster, number, 1_000)
    answer = cluster.get("/experiments?sort=progress").json
    assert ([item["id"] for item in answer["items"]], answer["left_out_before"]) == ([4, 3], 3)
    # Sorted by id, pages leave out no experiment.
    first = cluster.get("/experiments").json
    assert (len(first["items"]), first["left_out_before"]) == (3, None)
    assert first["next_cursor"] is not None
