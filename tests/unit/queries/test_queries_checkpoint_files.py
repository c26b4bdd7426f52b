"""Files of checkpoints: pages of the list, and the cache of parsed manifests."""

import hashlib
import json

import pytest

from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import Cluster
from tests.unit.api.exchange import call

UUID = "00000011-0000-4000-8000-000000000000"


@pytest.fixture
def files(cluster: Cluster) -> list[str]:
    """Store a checkpoint of trial 1; return the paths of the files, which contain their names."""
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    path = f"1/1/1/{UUID}"
    folder = cluster.checkpoints / path
    folder.mkdir(parents=True)
    names = [f"shard-{n:02}" for n in range(25)]
    entries = {}
    for name in names:
        (folder / name).write_text(name)
        entries[name] = {"size": len(name), "sha256": hashlib.sha256(name.encode()).hexdigest()}
    manifest = json.dumps({"version": 1, "files": entries, "metadata": {}}).encode()
    (folder / "manifest.json").write_bytes(manifest)
    line = {"kind": "checkpoint", "uuid": UUID, "steps_completed": 1, "path": path}
    digest = hashlib.sha256(manifest).hexdigest()
    more = {"manifest_sha256": digest, "size_bytes": 200, "files": len(names), "metadata": {}}
    agent.report("1.1", line | more)
    return names


def test_files_are_listed_page_by_page(cluster: Cluster, files: list[str]) -> None:
    found: list[str] = []
    cursor, pages = "", 0
    while True:
        page = cluster.get(f"/checkpoints/{UUID}/files?limit=10{cursor}").json
        found += [item["path"] for item in page["items"]]
        pages += 1
        for item in page["items"]:
            assert call(cluster.app, "GET", item["url"]).body.decode() == item["path"]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    # 10, 10 and 5.
    assert (found, pages) == (files, 3)


def test_manifest_is_read_once(cluster: Cluster, files: list[str]) -> None:
    listed = cluster.get(f"/checkpoints/{UUID}/files").json["items"]
    [manifest] = cluster.checkpoints.rglob("manifest.json")
    manifest.unlink()
    for _ in range(2):
        items = cluster.get(f"/checkpoints/{UUID}/files").json["items"]
    assert [item["path"] for item in items] == [item["path"] for item in listed]
    assert call(cluster.app, "GET", items[7]["url"]).body == b"shard-07"
