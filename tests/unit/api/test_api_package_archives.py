"""Agents store archives of packages only for experiments with trials on the agent."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from control_plane.objects.package_archives import PackageArchive, archives_folder, list_archives
from control_plane.usecases.package_archives import find_excess
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import V1, Cluster, build_cluster
from tests.unit.api.exchange import Answer, call

KEY, SHA256 = "a" * 64, "b" * 64
GIB = 1 << 30


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return build_cluster(tmp_path)


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    assert agent.take_work() == ["1.1", "2.1"]
    return agent


def path_of(agent: Agent) -> str:
    return f"{V1}/agents/{agent.name}/package-archives"


def offer(agent: Agent, token: str | None = None, **fields: Any) -> Answer:
    content = {"allocation": "1.1", "kind": "hook", "key": KEY, "size": 5, "sha256": SHA256}
    token = token or agent.token
    return call(
        agent.cluster.app, "POST", path_of(agent), token=token, content={**content, **fields}
    )


def list_stored(agent: Agent, allocation: str = "1.1") -> Answer:
    path = f"{path_of(agent)}?allocation={allocation}"
    return call(agent.cluster.app, "GET", path, token=agent.token)


def store(agent: Agent, content: bytes = b"12345", **fields: Any) -> None:
    """Offer and upload an archive; fail unless the upload succeeds."""
    digest = hashlib.sha256(content).hexdigest()
    upload = offer(agent, size=len(content), sha256=digest, **fields).json["upload"]
    sent = call(agent.cluster.app, "PUT", upload["path"], body=content)
    assert sent.status == 204, sent.body


def test_package_archive_is_offered_uploaded_and_downloaded(agent: Agent) -> None:
    assert list_stored(agent).json == {"archives": []}
    store(agent)
    [stored] = list_stored(agent, "2.1").json["archives"]
    assert (stored["kind"], stored["key"], stored["size"]) == ("hook", KEY, 5)
    assert call(agent.cluster.app, "GET", stored["url"]).body == b"12345"


def test_stored_archive_needs_no_second_upload(agent: Agent) -> None:
    store(agent)
    assert offer(agent).json == {"upload": None, "reason": ""}
    assert offer(agent, kind="declared").json["upload"] is not None


def test_rejects_content_that_differs_from_the_offer(agent: Agent) -> None:
    upload = offer(agent).json["upload"]
    assert call(agent.cluster.app, "PUT", upload["path"], body=b"evil!").status == 422
    assert list_stored(agent).json == {"archives": []}


def test_agents_reach_only_experiments_of_own_allocations(agent: Agent) -> None:
    agent.cluster.create(CONFIG)
    for allocation in ("3.1", "1.2", "99.1"):
        assert list_stored(agent, allocation).status == 403
        assert offer(agent, allocation=allocation).status == 403
    other = Agent(agent.cluster, "other")
    assert offer(agent, token=other.token).status == 403
    agent.finish("1.1")
    assert list_stored(agent).status == 403
    assert offer(agent).status == 403


@pytest.mark.parametrize(
    "fields",
    [{"kind": "x"}, {"key": "../1"}, {"key": "A" * 64}, {"sha256": "0"}, {"size": 0}],
)
def test_malformed_offers_are_refused(agent: Agent, fields: dict[str, Any]) -> None:
    assert offer(agent, **fields).status == 422


def test_archives_beyond_a_limit_are_not_stored(agent: Agent) -> None:
    answer = offer(agent, size=4 * GIB + 1).json
    assert answer["upload"] is None
    assert "the limit is 4294967296" in answer["reason"]
    for number in range(8):
        store(agent, key=f"{number:064x}")
    assert "8 archives of packages, the limit is 8" in offer(agent).json["reason"]


def test_archives_of_an_experiment_have_a_size_limit() -> None:
    stored = [PackageArchive(1, "hook", KEY, SHA256, 4 * GIB)] * 3
    # 3 * 4 + 4 = 16 GiB, exactly the limit.
    assert find_excess(stored, 4 * GIB) == ""
    assert "the limit is" in find_excess([*stored, *stored[:1]], 1)


def test_foreign_objects_are_not_listed(cluster: Cluster) -> None:
    cluster.objects.put(archives_folder(1) / "hook" / "key" / "x", b"x")
    assert list(list_archives(cluster.objects, archives_folder(1))) == []
