"""Uploads of checkpoints by users: use, retention, parts and refusals."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from control_plane.access.principals import Role
from control_plane.engine.head import HEAD
from control_plane.state.table import Key
from detcloud.client import Client
from detcloud.shared import upload_parts
from detcloud.shared.errors import DetcloudError
from simulator.faults.table_faults import InterleavingTable
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.app_server import serve_app
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call
from tests.unit.api.test_api_collection import collect, delete, kill
from tests.unit.queries.test_queries_trials import checkpoint

OWN = "00000011-0000-4000-8000-000000000000"
NAMES = ["deep/b ü.bin", "metadata.json", "weights.bin"]
DAY_MS = 24 * 3600 * 1000
MIB = 1 << 20


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    """An agent with trial 1, which has stored a checkpoint at batch 2."""
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    checkpoint(cluster, agent, 1, OWN, 2)
    return agent


class UploadGate:
    """An application that records the paths of uploaded files, and can refuse files.

    Args:
        app: the application that stores the files.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.sent: list[str] = []
        self.allowed: tuple[str, ...] | None = None
        """The paths that may be uploaded; None allows all."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if request.method != "PUT" or not request.url.path.endswith("/content"):
            await self._app(scope, receive, send)
            return
        path = request.query_params["path"]
        if self.allowed is not None and path not in self.allowed:
            await request.body()
            error = {"code": "conflict", "message": "cut"}
            await JSONResponse({"error": error}, 409)(scope, receive, send)
            return
        self.sent.append(path)
        await self._app(scope, receive, send)


@pytest.fixture
def gate(cluster: Cluster) -> UploadGate:
    return UploadGate(cluster.app)


@pytest.fixture
def client(gate: UploadGate, agent: Agent) -> Iterator[Client]:
    with serve_app(gate) as url:
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
    """Return the names of all uploaded files in the store, without the checkpoint's folder."""
    found = (cluster.checkpoints / "1/1/0").rglob("*")
    return sorted("/".join(path.parts[len(cluster.checkpoints.parts) + 4 :]) for path in found)


def checkpoint_uuids(cluster: Cluster) -> list[str]:
    return [item["uuid"] for item in cluster.get("/trials/1/checkpoints").json["items"]]


def cut_short(client: Client, folder: Path, gate: UploadGate) -> None:
    """Begin an upload that fails after the first file."""
    gate.allowed = (NAMES[0],)
    with pytest.raises(DetcloudError, match="cut"):
        client.trial(1).upload_checkpoint(folder)
    assert gate.sent[-1] == NAMES[0]
    gate.allowed = None
    gate.sent.clear()


def test_uploaded_folder_is_a_usable_checkpoint(
    cluster: Cluster, client: Client, folder: Path, tmp_path: Path
) -> None:
    progress: list[tuple[int, int]] = []
    uploaded = client.trial(1).upload_checkpoint(
        folder,
        {"note": "n"},
        steps_completed=7,
        on_progress=lambda done, total: progress.append((done, total)),
    )
    expected = {"state": "COMPLETED", "steps_completed": 7, "uploaded_by": "user-1", "files": 3}
    assert expected.items() <= uploaded.data.items()
    assert uploaded.metadata == {"note": "n", "steps_completed": 7}
    # 1000 + 1 bytes and the metadata; the last progress report counts all bytes.
    stored = cluster.checkpoints / "1/1/0" / uploaded.uuid / "metadata.json"
    assert uploaded.size_bytes == 1001 + stored.stat().st_size
    assert progress[-1] == (uploaded.size_bytes, uploaded.size_bytes)
    assert checkpoint_uuids(cluster) == [OWN, uploaded.uuid]
    assert [file["path"] for file in uploaded.files()] == NAMES
    assert {finding["state"] for finding in uploaded.verify()} == {"OK"}
    fetched = uploaded.download(tmp_path / "fetched")
    assert (fetched / "deep" / "b ü.bin").read_bytes() == b"b"
    assert uploaded.pin()["users"] == ["user-1"]
    # Training does not continue from the upload, although the upload has more steps.
    assert cluster.get("/trials/1").json["latest_checkpoint"] == OWN
    for source in (f"source_checkpoint_uuid: {uploaded.uuid}", "source_trial_id: 1"):
        config = CONFIG.replace("searcher: {", f"searcher: {{{source}, ")
        assert cluster.create(config).status == 201
    # Experiment 2 started from the upload, and experiment 3 from the trial's own latest checkpoint.
    starts = [next(client.experiment(n).trials()).warm_start for n in (2, 3)]
    assert starts == [uploaded.uuid, OWN]
    # The downloaded folder has metadata with the steps; an upload yields an equal checkpoint.
    assert client.trial(1).upload_checkpoint(fetched).uuid == uploaded.uuid


def test_client_refuses_undownloadable_file_names(
    cluster: Cluster, client: Client, folder: Path
) -> None:
    (folder / "Weights.bin").write_bytes(b"other")
    with pytest.raises(DetcloudError, match=r"clashes with 'Weights\.bin' on some file systems"):
        client.trial(1).upload_checkpoint(folder)
    assert stored_names(cluster) == []


def test_interrupted_upload_is_resumed(
    cluster: Cluster, client: Client, folder: Path, gate: UploadGate
) -> None:
    cut_short(client, folder, gate)
    assert checkpoint_uuids(cluster) == [OWN]
    assert stored_names(cluster) == ["", "deep", NAMES[0]]
    uploaded = client.trial(1).upload_checkpoint(folder)
    assert sorted(gate.sent) == ["manifest.json", *NAMES[1:]]
    assert {finding["state"] for finding in uploaded.verify()} == {"OK"}
    # A changed folder is a new checkpoint; an unchanged folder is an existing checkpoint.
    assert client.trial(1).upload_checkpoint(folder).uuid == uploaded.uuid
    (folder / "weights.bin").write_bytes(b"v" * 1000)
    assert client.trial(1).upload_checkpoint(folder).uuid != uploaded.uuid


def test_retention_ignores_uploads_and_deleted_upload_can_be_repeated(
    cluster: Cluster, client: Client, agent: Agent, folder: Path
) -> None:
    uploaded = client.trial(1).upload_checkpoint(folder, steps_completed=9)
    kill(cluster, agent)
    none = {"save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 1}
    path = f"{V1}/experiments/1"
    assert call(cluster.app, "PATCH", path, token=TOKENS[Role.USER], content=none).status == 200
    collect(cluster)
    # Retention keeps the latest checkpoint that the trial stored.
    assert {item.uuid: item.state for item in client.trial(1).checkpoints()} == {
        OWN: "COMPLETED",
        uploaded.uuid: "COMPLETED",
    }
    uploaded.delete()
    collect(cluster)
    again = client.trial(1).upload_checkpoint(folder, steps_completed=9)
    assert (again.uuid != uploaded.uuid, again.state) == (True, "COMPLETED")
    assert client.checkpoint(uploaded.uuid).state == "DELETED"


def test_experiment_deletion_removes_uploads(
    cluster: Cluster,
    client: Client,
    agent: Agent,
    folder: Path,
    gate: UploadGate,
) -> None:
    client.trial(1).upload_checkpoint(folder)
    (folder / "weights.bin").write_bytes(b"other")
    cut_short(client, folder, gate)
    kill(cluster, agent)
    assert delete(cluster, "/experiments/1").status == 200
    with pytest.raises(DetcloudError, match="experiment 1 is being deleted"):
        client.trial(1).upload_checkpoint(folder)
    collect(cluster)
    assert cluster.get("/experiments/1").status == 404
    assert [path for path in cluster.checkpoints.rglob("*") if path.is_file()] == []


def test_concurrent_experiment_deletion_removes_upload(
    cluster: Cluster,
    client: Client,
    agent: Agent,
    folder: Path,
) -> None:
    kill(cluster, agent)

    def delete_experiment() -> None:
        assert delete(cluster, "/experiments/1").status == 200

    cluster.services.engine.table = InterleavingTable(
        cluster.services.table,
        delete_experiment,
        lambda writes: any(write.key == Key("trial#1", HEAD) for write in writes),
    )
    with pytest.raises(DetcloudError, match="experiment 1 was changed in the meantime"):
        client.trial(1).upload_checkpoint(folder)
    collect(cluster)
    assert cluster.get("/experiments/1").status == 404
    assert [path for path in cluster.checkpoints.rglob("*") if path.is_file()] == []


def test_collection_removes_incomplete_upload_after_a_day(
    cluster: Cluster,
    client: Client,
    agent: Agent,
    folder: Path,
    gate: UploadGate,
) -> None:
    cut_short(client, folder, gate)
    kill(cluster, agent)
    collect(cluster)
    assert stored_names(cluster) == ["", "deep", NAMES[0]]
    cluster.clock.ms += DAY_MS
    # Any change of the settings requests a collection.
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


def test_incomplete_upload_is_not_recorded(cluster: Cluster, agent: Agent) -> None:
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


def test_rejects_wrong_paths_digests_and_sizes(cluster: Cluster, agent: Agent) -> None:
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
    # The parts for a folder are sent to the API.
    answer = post(cluster, f"{place}/parts", {"path": "x", "size": 6 << 30})
    expected = {"part_bytes": 64 << 20, "in_order": False, "stored": [], "uploads": []}
    assert answer.json == expected
    joined = post(cluster, f"{place}/parts/join", {"path": "x", "size": 6 << 30})
    assert (joined.status, "part 1 of" in refusal(joined)[1]) == (409, True)
    assert post(cluster, f"{place}/parts", {"path": "../x", "size": 1}).status == 422
    (cluster.checkpoints / f"1/1/0/{uuid}").rmdir()
    (cluster.checkpoints / "1/1/0" / uuid).symlink_to("/tmp")
    assert put("detcloud-planted", b"x").status == 503
    assert not Path("/tmp/detcloud-planted").exists()


def test_rejects_wrong_parts_with_conflict(
    cluster: Cluster, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_parts, "SIGNED_PART_BYTES", 1 << 20)
    content = bytes(1 << 20) + b"the rest"
    place = "/checkpoint-uploads/1/00000077-0000-4000-8000-000000000000"
    own = {"path": "big", "size": len(content)}

    def put(path: str, number: int, part: bytes) -> Answer:
        md5 = hashlib.md5(part).hexdigest()
        query = f"path={path}&size={len(content)}&number={number}&md5={md5}"
        target = f"{V1}{place}/parts/content?{query}"
        return call(cluster.app, "PUT", target, token=TOKENS[Role.USER], body=part)

    def join(**changes: object) -> Answer:
        return post(cluster, f"{place}/parts/join", {**own, **changes})

    assert "ask for its parts before they are sent" in refusal(put("big", 1, content[:MIB]))[1]
    assert put("big", 1, content[:MIB]).status == 409
    assert post(cluster, f"{place}/parts", own).status == 200
    assert put("big", 1, content[:MIB]).status == 204
    assert (join().status, join(size=MIB).status) == (409, 409)
    assert put("big", 2, content[MIB:]).status == 204
    for changes in ({"size": MIB}, {"size": len(content) + 1}, {"md5": "0" * 32}):
        answer = join(**changes)
        assert answer.status == 409, changes
        # A failed join stores no file.
        assert not list(cluster.checkpoints.rglob("big"))
    assert join(md5=hashlib.md5(content).hexdigest()).status == 204
    assert (join().status, join(size=MIB).status) == (204, 409)
    # A late part is accepted and ignored.
    assert put("big", 2, content[MIB:]).status == 204


def test_resized_file_is_uploaded_from_the_start(
    cluster: Cluster, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_parts, "SIGNED_PART_BYTES", 1 << 20)
    place = "/checkpoint-uploads/1/00000077-0000-4000-8000-000000000000"
    for size in (3 * MIB, 2 * MIB):
        own = {"path": "big", "size": size}
        assert post(cluster, f"{place}/parts", own).json["stored"] == []
        for number in range(1, size // MIB + 1):
            part = bytes([number]) * MIB
            query = f"path=big&size={size}&number={number}&md5={hashlib.md5(part).hexdigest()}"
            target = f"{V1}{place}/parts/content?{query}"
            answer = call(cluster.app, "PUT", target, token=TOKENS[Role.USER], body=part)
            assert answer.status == 204
    assert post(cluster, f"{place}/parts/join", own).status == 204
    [stored] = cluster.checkpoints.rglob("big")
    assert stored.read_bytes() == b"\1" * MIB + b"\2" * MIB


def test_only_owners_and_admins_upload(cluster: Cluster, agent: Agent) -> None:
    body = {"config": CONFIG, "model_code": cluster.store_code()}
    assert post(cluster, "/experiments", body, Role.ADMIN).status == 201
    uuid = "00000077-0000-4000-8000-000000000000"
    theirs = cluster.get("/experiments/2/trials").json["items"][0]["id"]
    assert refusal(post(cluster, "/checkpoint-uploads", {"trial_id": theirs, "uuid": uuid})) == (
        403,
        f"trial {theirs} of experiment 2 belongs to admin-1: ask admin-1 or an admin to upload "
        "checkpoints to it, or create your own from its configuration",
    )
    own = {"trial_id": 1, "uuid": uuid}
    assert post(cluster, "/checkpoint-uploads", own, Role.ADMIN).status == 200
    assert post(cluster, "/checkpoint-uploads", {"trial_id": 99, "uuid": uuid}).status == 404
    # A checkpoint that the trial stored is not an upload.
    assert post(cluster, "/checkpoint-uploads", {**own, "uuid": OWN}).json["state"] == "COMPLETED"
    path = f"{V1}/checkpoint-uploads"
    assert call(cluster.app, "POST", path, token=agent.token, content=own).status == 403
