"""Deletion of selected files of a checkpoint through the API."""

import errno
from urllib.parse import urlencode

import pytest

from control_plane.access.principals import Role
from control_plane.checkpoint_stores.folder_files import FolderFiles
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call
from tests.unit.api.test_api_collection import collect, delete
from tests.unit.queries.test_queries_trials import checkpoint

UUID, LATEST = (f"{n:08d}-0000-4000-8000-000000000000" for n in (11, 12))
NAMES = ("weights.pt", "optimizer/a.pt", "optimizer/b.pt")
PATH = f"/checkpoints/{UUID}"


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    """An agent with two checkpoints of trial 1; the first has three files of 12 bytes."""
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    checkpoint(cluster, agent, 1, UUID, 2, NAMES)
    checkpoint(cluster, agent, 1, LATEST, 4)
    return agent


def delete_files(cluster: Cluster, path: str, *patterns: str) -> Answer:
    return delete(cluster, f"{path}?{urlencode({'glob': patterns}, doseq=True)}")


def paths(cluster: Cluster) -> list[str]:
    return [item["path"] for item in cluster.get(f"{PATH}/files").json["items"]]


def test_matching_files_are_deleted_and_other_files_remain(cluster: Cluster, agent: Agent) -> None:
    before = {item["path"]: item["url"] for item in cluster.get(f"{PATH}/files").json["items"]}
    preview = cluster.get(f"{PATH}/deletion?glob=optimizer/**").json
    counts = {"delete_files": 2, "delete_bytes": 24, "delete_seconds": 1, "problem": ""}
    assert preview == {"uuid": UUID, **counts}
    answer = delete_files(cluster, PATH, "optimizer/**")
    assert answer.status == 200
    changed = {"state": "PARTIALLY_DELETED", "files": 1, "size_bytes": 12}
    assert {**changed, "deleted_patterns": ["optimizer/**"]}.items() <= answer.json.items()
    assert paths(cluster) == ["weights.pt"]
    collect(cluster)
    folder = cluster.checkpoints / f"1/1/1/{UUID}"
    assert sorted(path.name for path in folder.rglob("*.*")) == ["manifest.json", "weights.pt"]
    url = cluster.get(f"{PATH}/files").json["items"][0]["url"]
    # The path of a remaining file in signed addresses stays the same.
    assert url.split("?")[0] == before["weights.pt"].split("?")[0]
    assert call(cluster.app, "GET", url).body == b"weights of 2"


def test_deletion_of_all_files_deletes_the_checkpoint(cluster: Cluster, agent: Agent) -> None:
    assert cluster.get(f"{PATH}/deletion?glob=**/*").json["delete_files"] == 4
    assert delete_files(cluster, PATH, "**/*").json["state"] == "DELETING"
    collect(cluster)
    assert cluster.get(PATH).json["state"] == "DELETED"
    assert delete_files(cluster, PATH, "**/*").status == 404


def test_partly_deleted_checkpoint_cannot_be_pinned_or_started_from(
    cluster: Cluster, agent: Agent
) -> None:
    delete_files(cluster, PATH, "optimizer/a.pt")
    pinned = cluster.post(f"{PATH}/pin", {})
    assert pinned.status == 409
    assert "was partly deleted, and cannot be pinned" in pinned.body.decode()
    config = CONFIG.replace("searcher: {", f"searcher: {{source_checkpoint_uuid: {UUID}, ")
    refused = cluster.create(config)
    assert refused.status == 422
    assert "was partly deleted" in refused.body.decode()


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("glob=*.bin", 422, "(3 files) matches"),
        ("glob=", 422, "glob"),
        ("glob=" + "a" * 201, 422, "glob"),
        ("&".join(["glob=a"] * 21), 422, "glob"),
    ],
)
def test_rejects_patterns_without_matches_and_too_many_patterns(
    cluster: Cluster, agent: Agent, query: str, status: int, text: str
) -> None:
    for answer in (delete(cluster, f"{PATH}?{query}"), cluster.get(f"{PATH}/deletion?{query}")):
        assert answer.status == status
        assert text in answer.body.decode()
    assert cluster.get(PATH).json["state"] == "COMPLETED"


def test_stored_patterns_of_a_checkpoint_are_limited(cluster: Cluster, agent: Agent) -> None:
    delete_files(cluster, PATH, "optimizer/a.pt", *(f"{n}" for n in range(18)))
    answer = delete_files(cluster, PATH, "optimizer/b.pt", "x")
    assert answer.status == 422
    assert "21 patterns would be stored; the limit is 20" in answer.body.decode()
    assert delete_files(cluster, PATH, "optimizer/b.pt").status == 200


def test_files_of_needed_checkpoints_are_not_deleted(cluster: Cluster, agent: Agent) -> None:
    checkpoint(cluster, agent, 1, "00000013-0000-4000-8000-000000000000", 6, NAMES)
    latest = "/checkpoints/00000013"
    answer = delete_files(cluster, latest, "weights.pt")
    assert answer.status == 409
    assert "its trial has not ended and needs it" in answer.body.decode()
    cluster.post(f"{PATH}/pin", {})
    answer = delete_files(cluster, PATH, "weights.pt")
    assert answer.status == 409
    assert "pinned it" in answer.body.decode()


def test_store_that_does_not_answer_is_unavailable(
    cluster: Cluster, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: FolderFiles, path: str) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(FolderFiles, "open_file", fail)
    query = "glob=weights.pt"
    for answer in (
        delete(cluster, f"{PATH}?{query}"),
        cluster.get(f"{PATH}/deletion?{query}"),
        cluster.get(f"{PATH}/files"),
    ):
        assert answer.status == 503
        assert "does not respond: Stale file handle" in answer.body.decode()


def test_agent_token_cannot_delete_files(cluster: Cluster, agent: Agent) -> None:
    target = f"{V1}{PATH}?glob=weights.pt"
    answer = call(cluster.app, "DELETE", target, token=TOKENS[Role.AGENT])
    assert answer.status == 403
