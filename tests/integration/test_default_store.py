"""The checkpoint store of the cluster configuration, for experiments that configure no store.

On every kind of store a checkpoint is stored, fetched, verified and deleted.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from control_plane.access.principals import Role
from detcloud.client import Client
from detcloud.storage import build_store
from tests.conformance.conftest import model_hdfs
from tests.conformance.every_store import STORES, new_storage
from tests.integration.trial_checkpoints import Trials, collect
from tests.unit.api.agent_side import CONFIG
from tests.unit.api.app_server import serve_app
from tests.unit.api.cluster import TOKENS, build_cluster
from tests.unit.api.exchange import call
from tests.unit.usecases.test_usecases_resource_pools import apply

__all__ = ["model_hdfs"]

# The configuration's name for the folder of a trial's specification.
FOLDER_OPTIONS = {"directory": "container_path", "shared_fs": "host_path"}


@pytest.mark.parametrize("kind", STORES)
def test_experiment_without_a_store_uses_the_clusters_store(
    kind: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    set_upload_part_bytes: Callable[[int], None],
) -> None:
    set_upload_part_bytes(5 << 20)
    storage = new_storage(kind, request, tmp_path)
    options = dict(storage)
    if kind in FOLDER_OPTIONS:
        options[FOLDER_OPTIONS[kind]] = options.pop("path")
    cluster = build_cluster(tmp_path)
    applied = apply(cluster, json.dumps({"checkpoint_storage": options}))
    assert applied.status == 200, applied.body
    trials = Trials(cluster, CONFIG)
    assert trials.specs["1.1"]["storage"] == storage
    trained = tmp_path / "trained"
    trained.mkdir()
    # Two parts, of 5 MiB and 1 MiB.
    (trained / "weights").write_bytes(b"0123456789abcdef" * (6 << 16))
    stored = trials.store(1, 5, trained)
    with serve_app(cluster.app) as url:
        client = Client(url, TOKENS[Role.USER])
        uploaded = client.trial(1).upload_checkpoint(trained, {"note": "n"}, steps_completed=5)
        for uuid in (stored, uploaded.uuid):
            checkpoint = client.checkpoint(uuid)
            assert {finding["state"] for finding in checkpoint.verify()} == {"OK"}
            fetched = checkpoint.download(tmp_path / f"fetched-{uuid}")
            assert (fetched / "weights").read_bytes() == (trained / "weights").read_bytes()
        client.http.close()
    store = build_store(storage)
    assert {key.split("/")[3] for key in store.list("1/1")} == {stored, uploaded.uuid}
    trials.kill(cluster)
    deleted = call(cluster.app, "DELETE", "/api/v1/experiments/1", token=TOKENS[Role.USER])
    assert deleted.status in (200, 202), deleted.body
    collect(cluster)
    assert cluster.get("/experiments/1").status == 404
    assert store.list("1") == {}
