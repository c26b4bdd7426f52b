"""Checkpoints that users upload: what they are, what keeps them, and what becomes of a part."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.usecases import checkpoint_uploads
from detcloud.client import Client
from detcloud.client.checkpoint_upload import _Sender
from detcloud.shared.errors import DetcloudError
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.app_server import serve_app
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call
from tests.unit.api.test_api_collection import collect, delete, kill
from tests.unit.queries.test_queries_trials import checkpoint

OWN = "00000011-0000-4000-8000-000000000000"
NAMES = ["deep/b ü.bin", "metadata.json", "weights.bin"]
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    """Trial 1 has stored a checkpoint at 2 itself."""
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    checkpoint(cluster, agent, 1, OWN, 2)
    return agent


@pytest.fixture
def client(cluster: Cluster, agent: Agent) -> Iterator[Client]:
    with serve_app(cluster.app) as url:
        client = Client(url, TOKENS[Role.USER])
        yield client
        client.http.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    (folder / "deep").mkdir(parents=True)
    (folder / "weights.bin").write_bytes(b"w" * 1000)
    (folder / "deep" / "b ü.bin").write_bytes(b"b")
    return folder


def stored_names(cluster: Cluster) -> list[str]:
    """The files of uploads that lie in the store, without the checkpoint's folder."""
    found = (cluster.checkpoints / "1/1/0").rglob("*")
    return sorted("/".join(path.parts[len(cluster.checkpoints.parts) + 4 :]) for path in found)


def checkpoint_uuids(cluster: Cluster) -> list[str]:
    return [item["uuid"] for item in cluster.get("/trials/1/checkpoints").json["items"]]


def cut_short(client: Client, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begins an upload that ends with its first file."""
    sent: list[str] = []
    put = _Sender._put

    def put_first(self: _Sender, file: object, request: object) -> None:
        if sent:
            raise DetcloudError("cut")
        sent.append("one")
        put(self, file, request)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(_Sender, "_put", put_first)
        patched.setattr("detcloud.client.checkpoint_upload.FILES_AT_ONCE", 1)
        with pytest.raises(DetcloudError, match="cut"):
            client.trial(1).upload_checkpoint(folder)


def test_an_uploaded_folder_is_a_checkpoint_like_others(
    cluster: Cluster, client: Client, folder: Path, tmp_path: Path
) -> None:
    told: list[tuple[int, int]] = []
    uploaded = client.trial(1).upload_checkpoint(
        folder,
        {"note": "n"},
        steps_completed=7,
        on_progress=lambda done, total: told.append((done, total)),
    )
    expected = {"state": "COMPLETED", "steps_completed": 7, "uploaded_by": "user-1", "files": 3}
    assert expected.items() <= uploaded.data.items()
    assert uploaded.metadata == {"note": "n", "steps_completed": 7}
    # 1000 + 1 bytes and the metadata, all of which are told of in the end.
    stored = cluster.checkpoints / "1/1/0" / uploaded.uuid / "metadata.json"
    assert uploaded.size_bytes == 1001 + stored.stat().st_size
    assert told[-1] == (uploaded.size_bytes, uploaded.size_bytes)
    assert checkpoint_uuids(cluster) == [OWN, uploaded.uuid]
    assert [file["path"] for file in uploaded.files()] == NAMES
    assert {finding["state"] for finding in uploaded.verify()} == {"OK"}
    fetched = uploaded.download(tmp_path / "fetched")
    assert (fetched / "deep" / "b ü.bin").read_bytes() == b"b"
    assert uploaded.pin()["users"] == ["user-1"]
    # It is not what the training goes on from, though it has more steps.
    assert cluster.get("/trials/1").json["latest_checkpoint"] == OWN
    for source in (f"source_checkpoint_uuid: {uploaded.uuid}", "source_trial_id: 1"):
        config = CONFIG.replace("searcher: {", f"searcher: {{{source}, ")
        assert cluster.create(config).status == 201
    # Experiment 2 started from it, and 3 from the latest of the trial's own.
    starts = [next(client.experiment(n).trials()).warm_start for n in (2, 3)]
    assert starts == [uploaded.uuid, OWN]
    # Uploading what was fetched, whose metadata name its steps, is the same again.
    assert client.trial(1).upload_checkpoint(fetched).uuid == uploaded.uuid


def test_files_that_no_download_would_take_are_not_uploaded(
    cluster: Cluster, client: Client, folder: Path
) -> None:
    (folder / "Weights.bin").write_bytes(b"other")
    with pytest.raises(DetcloudError, match=r"clashes with 'Weights\.bin' on some file systems"):
        client.trial(1).upload_checkpoint(folder)
    assert stored_names(cluster) == []


def test_an_upload_that_was_cut_short_goes_on_where_it_was(
    cluster: Cluster, client: Client, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_short(client, folder, monkeypatch)
    assert checkpoint_uuids(cluster) == [OWN]
    assert stored_names(cluster) == ["", "deep", NAMES[0]]
    sent: list[str] = []
    put = _Sender._put

    def put_counted(self: _Sender, file: object, request: object) -> None:
        sent.append(file.path)  # type: ignore[attr-defined]
        put(self, file, request)  # type: ignore[arg-type]

    monkeypatch.setattr(_Sender, "_put", put_counted)
    uploaded = client.trial(1).upload_checkpoint(folder)
    assert sorted(sent) == ["manifest.json", *NAMES[1:]]
    assert {finding["state"] for finding in uploaded.verify()} == {"OK"}
    # What changed is another checkpoint, and what did not is the same.
    assert client.trial(1).upload_checkpoint(folder).uuid == uploaded.uuid
    (folder / "weights.bin").write_bytes(b"v" * 1000)
    assert client.trial(1).upload_checkpoint(folder).uuid != uploaded.uuid


def test_the_save_settings_count_no_upload_and_a_deleted_one_may_come_again(
    cluster: Cluster, client: Client, agent: Agent, folder: Path
) -> None:
    uploaded = client.trial(1).upload_checkpoint(folder, steps_completed=9)
    kill(cluster, agent)
    none = {"save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 1}
    path = f"{V1}/experiments/1"
    assert call(cluster.app, "PATCH", path, token=TOKENS[Role.USER], content=none).status == 200
    collect(cluster)
    # The one place is for the latest that the trial stored itself.
    assert {item.uuid: item.state for item in client.trial(1).checkpoints()} == {
        OWN: "COMPLETED",
        uploaded.uuid: "COMPLETED",
    }
    uploaded.delete()
    collect(cluster)
    again = client.trial(1).upload_checkpoint(folder, steps_completed=9)
    assert (again.uuid != uploaded.uuid, again.state) == (True, "COMPLETED")
    assert client.checkpoint(uploaded.uuid).state == "DELETED"


def test_uploads_and_parts_of_them_go_with_the_experiment(
    cluster: Cluster,
    client: Client,
    agent: Agent,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.trial(1).upload_checkpoint(folder)
    (folder / "weights.bin").write_bytes(b"other")
    cut_short(client, folder, monkeypatch)
    kill(cluster, agent)
    assert delete(cluster, "/experiments/1").status == 200
    with pytest.raises(DetcloudError, match="experiment 1 is being deleted"):
        client.trial(1).upload_checkpoint(folder)
    collect(cluster)
    assert cluster.get("/experiments/1").status == 404
    assert [path for path in cluster.checkpoints.rglob("*") if path.is_file()] == []


def test_a_deletion_that_is_faster_leaves_nothing_of_an_upload(
    cluster: Cluster,
    client: Client,
    agent: Agent,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kill(cluster, agent)
    checked = checkpoint_uploads._check_stored

    def delete_first(files: Any, stored: Any) -> None:
        assert delete(cluster, "/experiments/1").status == 200
        checked(files, stored)

    monkeypatch.setattr(checkpoint_uploads, "_check_stored", delete_first)
    with pytest.raises(DetcloudError, match="experiment 1 was changed in the meantime"):
        client.trial(1).upload_checkpoint(folder)
    collect(cluster)
    assert cluster.get("/experiments/1").status == 404
    assert [path for path in cluster.checkpoints.rglob("*") if path.is_file()] == []


def test_a_part_is_removed_by_the_collection_after_a_day(
    cluster: Cluster,
    client: Client,
    agent: Agent,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut_short(client, folder, monkeypatch)
    kill(cluster, agent)
    collect(cluster)
    assert stored_names(cluster) == ["", "deep", NAMES[0]]
    cluster.clock.ms += DAY_MS
    # Any change of the settings asks for a collection.
    content = {"save_trial_latest": 3}
    path = f"{V1}/experiments/1"
    assert call(cluster.app, "PATCH", path, token=TOKENS[Role.USER], content=content).status == 200
    collect(cluster)
    assert stored_names(cluster) == []


def post(cluster: Cluster, path: str, content: object, role: Role = Role.USER) -> Answer:
    return call(cluster.app, "POST", V1 + path, token=TOKENS[role], content=content)


def refusal(answer: Answer) -> tuple[int, str]:
    error = answer.json["error"]
    return answer.status, " ".join(
        (error["message"], *(detail["message"] for detail in error["details"]))
    )


def test_nothing_is_recorded_that_is_not_all_there(cluster: Cluster, agent: Agent) -> None:
    uuid = "00000077-0000-4000-8000-000000000000"
    assert post(cluster, "/checkpoint-uploads", {"trial_id": 1, "uuid": uuid}).json == {
        "uuid": uuid,
        "trial_id": 1,
        "path": f"1/1/0/{uuid}",
        "state": "UPLOADING",
        "cluster_id": "cluster-1",
    }
    place = f"/checkpoint-uploads/1/{uuid}"
    files = {"a": {"size": 2, "sha256": "0" * 64}}
    manifest = {"version": 1, "uuid": uuid, "trial_id": 1, "files": files, "metadata": {}}
    manifest |= {"steps_completed": 3, "cluster_id": "another"}

    def complete() -> tuple[int, str]:
        content = json.dumps(manifest).encode()
        path = cluster.checkpoints / f"1/1/0/{uuid}/manifest.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        return refusal(post(cluster, f"{place}/complete", {"manifest_sha256": digest}))

    digest = {"manifest_sha256": "0" * 64}
    assert refusal(post(cluster, f"{place}/complete", digest)) == (
        409,
        "manifest.json is missing: upload it last",
    )
    assert "must be 'cluster-1'" in complete()[1]
    manifest["cluster_id"] = "cluster-1"
    assert complete() == (409, "a is not there, 2 bytes are listed; upload it again")
    (cluster.checkpoints / f"1/1/0/{uuid}/a").write_bytes(b"x")
    assert complete() == (409, "a has 1 bytes there, 2 bytes are listed; upload it again")
    assert "its manifest was modified" in refusal(post(cluster, f"{place}/complete", digest))[1]
    assert checkpoint_uuids(cluster) == [OWN]


def test_files_lead_nowhere_else_and_are_what_was_named(cluster: Cluster, agent: Agent) -> None:
    uuid = "00000077-0000-4000-8000-000000000000"
    place = f"/checkpoint-uploads/1/{uuid}"

    def put(path: str, body: bytes, digest: str | None = None) -> Answer:
        sha256 = digest or hashlib.sha256(body).hexdigest()
        target = f"{V1}{place}/content?path={path}&sha256={sha256}"
        return call(cluster.app, "PUT", target, token=TOKENS[Role.USER], body=body)

    assert put("../../1/x", b"x").status == 422
    assert "SHA-256" in refusal(put("x", b"x", "0" * 64))[1]
    file = {"path": "/etc/x", "size": 1, "sha256": "0" * 64, "md5": "0" * 32}
    assert post(cluster, f"{place}/files", {"files": [file]}).status == 422
    large = {**file, "path": "x", "size": (5 << 40) + 1}
    assert post(cluster, f"{place}/files", {"files": [large]}).status == 413
    # A folder takes parts through the API.
    answer = post(cluster, f"{place}/parts", {"path": "x", "size": 6 << 30})
    expected = {"part_bytes": 64 << 20, "in_order": False, "stored": [], "uploads": []}
    assert answer.json == expected
    joined = post(cluster, f"{place}/parts/join", {"path": "x", "size": 6 << 30})
    assert (joined.status, "part 1 of" in refusal(joined)[1]) == (503, True)
    assert post(cluster, f"{place}/parts", {"path": "../x", "size": 1}).status == 422
    (cluster.checkpoints / f"1/1/0/{uuid}").rmdir()
    (cluster.checkpoints / "1/1/0" / uuid).symlink_to("/tmp")
    assert put("detcloud-planted", b"x").status == 503
    assert not Path("/tmp/detcloud-planted").exists()


def test_only_owners_and_admins_upload(cluster: Cluster, agent: Agent) -> None:
    body = {"config": CONFIG, "model_code": cluster.store_code()}
    assert post(cluster, "/experiments", body, Role.ADMIN).status == 201
    uuid = "00000077-0000-4000-8000-000000000000"
    theirs = cluster.get("/experiments/2/trials").json["items"][0]["id"]
    assert refusal(post(cluster, "/checkpoint-uploads", {"trial_id": theirs, "uuid": uuid})) == (
        403,
        "experiment 2 is admin-1's: only they or an admin upload checkpoints to it",
    )
    own = {"trial_id": 1, "uuid": uuid}
    assert post(cluster, "/checkpoint-uploads", own, Role.ADMIN).status == 200
    assert post(cluster, "/checkpoint-uploads", {"trial_id": 99, "uuid": uuid}).status == 404
    # A checkpoint of the trial's own is no upload.
    assert post(cluster, "/checkpoint-uploads", {**own, "uuid": OWN}).json["state"] == "COMPLETED"
    path = f"{V1}/checkpoint-uploads"
    assert call(cluster.app, "POST", path, token=agent.token, content=own).status == 403
