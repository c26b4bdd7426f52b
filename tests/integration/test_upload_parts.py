"""Large files that users upload to stores which sign no parts.

The client is killed, a connection breaks, or a part has the wrong content.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from control_plane.access.principals import Role
from control_plane.checkpoint_gc.removal import remove_incomplete_uploads
from control_plane.checkpoint_gc.stores import stores_of
from control_plane.checkpoint_gc.upload_sessions import UploadSessions, trial_sessions
from control_plane.queries.experiment import get_experiment
from detcloud.client import Client
from detcloud.client.checkpoint_upload import _Sender
from detcloud.shared import http, upload_parts
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import Transport, Unreachable
from tests.conformance.checkpoint_files import hdfs_storage
from tests.emulators.azurite import Azurite
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.webhdfs import OWNER, webhdfs
from tests.patience import ANSWER_SECONDS_MAX
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.app_server import serve_app
from tests.unit.api.cluster import TOKENS, V1, Cluster, build_cluster
from tests.unit.api.exchange import call

MIB = 1 << 20
# Six parts of 1 MiB, and a shorter last part.
CONTENT = (
    b"".join(hashlib.shake_128(bytes([number])).digest(MIB) for number in range(6)) + b"the end"
)
PARTS = 7
KILLED = """
import os, signal, sys
from detcloud.client import checkpoint_upload
from detcloud.shared import upload_parts
from detcloud.cli.main import main

upload_parts.SIGNED_PART_BYTES = 1 << 20
checkpoint_upload.FILES_AT_ONCE = 1
upload, calls = checkpoint_upload._Sender._upload, []

def kill_in_fourth(self, request, reader, size, **options):
    calls.append(size)
    if len(calls) == 4:
        read = reader.read
        def read_some(count=-1):
            read(1000)
            os.kill(os.getpid(), signal.SIGKILL)
        reader.read = read_some
    upload(self, request, reader, size, **options)

checkpoint_upload._Sender._upload = kill_in_fourth
main(["checkpoint", "upload", sys.argv[1], "--trial", "1"])
"""


@pytest.fixture(autouse=True)
def part_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_parts, "SIGNED_PART_BYTES", MIB)
    monkeypatch.setattr(http, "RETRY_FIRST_SECONDS", 0.0)


@pytest.fixture(params=["directory", "gcs", "azure", "hdfs"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    if request.param == "hdfs":
        with webhdfs() as hdfs:
            yield hdfs_storage(hdfs.url, OWNER)
        return
    yield other_storage(request, tmp_path)


def other_storage(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    if request.param == "gcs":
        gcs: FakeGcs = request.getfixturevalue("resumable_gcs")
        return {"type": "gcs", "bucket": gcs.new_bucket()}
    if request.param == "azure":
        azure: Azurite = request.getfixturevalue("azure")
        return azure.storage()
    return {"type": "directory", "container_path": str(tmp_path / "store")}


@pytest.fixture
def cluster(tmp_path: Path, storage: dict[str, str]) -> Cluster:
    """Return a cluster with experiment 1; trial 1 stores checkpoints in `storage`."""
    cluster = build_cluster(tmp_path)
    answer = cluster.create(f"{CONFIG}\ncheckpoint_storage: {json.dumps(storage)}\n")
    assert answer.status == 201, answer.body
    Agent(cluster).take_work()
    return cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with serve_app(cluster.app) as url:
        client = Client(url, TOKENS[Role.USER])
        yield client
        client.http.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "large.bin").write_bytes(CONTENT)
    return folder


@pytest.fixture
def sent_numbers(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Return a list that receives the number of each sent part, and None for a whole file."""
    numbers: list[int | None] = []
    upload = _Sender._upload

    def note(self: _Sender, request: Any, reader: Any, size: int, **options: bool) -> None:
        numbers.append(request.get("number"))
        upload(self, request, reader, size, **options)

    monkeypatch.setattr(_Sender, "_upload", note)
    return numbers


def check_upload(client: Client, uuid: str, folder: Path) -> None:
    """Check that the checkpoint equals the folder, and that no rest of the upload remains."""
    uploaded = client.checkpoint(uuid)
    assert uploaded.state == "COMPLETED"
    assert {finding["state"] for finding in uploaded.verify()} == {"OK"}
    fetched = uploaded.download(folder.with_name(f"fetched-{uuid}"))
    assert (fetched / "large.bin").read_bytes() == CONTENT


def test_killed_client_resumes_with_the_missing_part(
    cluster: Cluster, client: Client, folder: Path, sent_numbers: list[int | None]
) -> None:
    environment = {
        **os.environ,
        "DETCLOUD_URL": client.http.base_url,
        "DETCLOUD_TOKEN": TOKENS[Role.USER],
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", KILLED, str(folder)]
    done = subprocess.run(command, env=environment, timeout=10 * ANSWER_SECONDS_MAX, check=False)
    assert done.returncode == -9
    assert list(client.trial(1).checkpoints()) == []
    uploaded = client.trial(1).upload_checkpoint(folder)
    # The fourth part is the first missing part; the metadata and the manifest are sent whole.
    assert sorted(sent_number for sent_number in sent_numbers if sent_number) == [4, 5, 6, 7]
    assert sent_numbers.count(None) == 2
    check_upload(client, uploaded.uuid, folder)


def test_broken_connection_costs_a_part(
    client: Client, folder: Path, sent_numbers: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, breaks = Transport._exchange, {3, 5}

    def break_some(self: Transport, method: str, url: str, body: Any, *more: Any) -> Any:
        position = body.tell() if hasattr(body, "tell") else None
        number = None if position is None else position // MIB + 1
        if position and number in breaks:
            breaks.discard(number)
            if number == 5:
                # The part was stored, and the answer was lost.
                with exchange(self, method, url, body, *more) as answer:
                    answer.read()
            raise Unreachable("reset by peer")
        return exchange(self, method, url, body, *more)

    monkeypatch.setattr(Transport, "_exchange", break_some)
    uploaded = client.trial(1).upload_checkpoint(folder)
    assert breaks == set()
    check_upload(client, uploaded.uuid, folder)


def test_concurrent_uploads_of_a_folder_end_with_a_single_checkpoint(
    client: Client, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second client uploads the whole folder while the first is before its fifth part."""
    upload, other = _Sender._upload, list[str]()

    def upload_meanwhile(
        self: _Sender, request: Any, reader: Any, size: int, **options: bool
    ) -> None:
        if request.get("number") == 5 and not other:
            other.append("")
            second = Client(client.http.base_url, TOKENS[Role.USER])
            other[0] = second.trial(1).upload_checkpoint(folder).uuid
            second.http.close()
        upload(self, request, reader, size, **options)

    monkeypatch.setattr(_Sender, "_upload", upload_meanwhile)
    monkeypatch.setattr("detcloud.client.checkpoint_upload.FILES_AT_ONCE", 1)
    try:
        uuid = client.trial(1).upload_checkpoint(folder).uuid
    except DetcloudError as error:
        # The answer may be that the checkpoint is complete already; a second call then finds the
        # checkpoint.
        if "COMPLETED already" not in str(error):
            raise
        uuid = client.trial(1).upload_checkpoint(folder).uuid
    assert uuid == other[0]
    check_upload(client, uuid, folder)


def test_api_accepts_only_the_named_parts(cluster: Cluster) -> None:
    uuid = "00000077-0000-4000-8000-000000000000"
    place = f"{V1}/checkpoint-uploads/1/{uuid}"
    file = {"path": "large.bin", "size": len(CONTENT), "md5": hashlib.md5(CONTENT).hexdigest()}

    def ask(number: int) -> Any:
        part = {"number": number, "md5": hashlib.md5(CONTENT[:MIB]).hexdigest()}
        content = {**file, "parts": [part]}
        return call(cluster.app, "POST", f"{place}/parts", token=TOKENS[Role.USER], content=content)

    answer = ask(1)
    assert (answer.status, answer.json["part_bytes"], answer.json["stored"]) == (200, MIB, [])
    assert ask(PARTS + 1).status == 422
    [request] = answer.json["uploads"]
    assert request["number"] == 1
    if not request["url"].startswith("/"):
        assert answer.json["in_order"]
        return
    assert not answer.json["in_order"]

    def put(body: bytes, url: str = request["url"]) -> Any:
        return call(cluster.app, "PUT", url, token=TOKENS[Role.USER], body=body)

    assert "MD5 differs" in put(b"x" * MIB).json["error"]["message"]
    short = request["url"].replace("number=1", f"number={PARTS}")
    assert "has 7" in put(CONTENT[:MIB], short).json["error"]["message"]
    assert put(CONTENT[:MIB], request["url"].replace("large.bin", "../x")).status == 422
    assert ask(2).json["stored"] == []
    for _ in range(2):
        assert put(CONTENT[:MIB]).status == 204
    assert ask(2).json["stored"] == [1]
    joined = call(cluster.app, "POST", f"{place}/parts/join", token=TOKENS[Role.USER], content=file)
    assert (joined.status, "part 2 of" in joined.json["error"]["message"]) == (409, True)


def test_abandoned_upload_is_ended_with_the_experiment(
    cluster: Cluster, client: Client, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = list[Any]()

    def die_in_third(self: _Sender, request: Any, reader: Any, size: int, **options: bool) -> None:
        requests.append(request)
        if len(requests) == 3:
            raise KeyboardInterrupt
        upload(self, request, reader, size, **options)

    upload = _Sender._upload
    monkeypatch.setattr(_Sender, "_upload", die_in_third)
    monkeypatch.setattr("detcloud.client.checkpoint_upload.FILES_AT_ONCE", 1)
    with pytest.raises(KeyboardInterrupt):
        client.trial(1).upload_checkpoint(folder)
    killed = call(cluster.app, "POST", f"{V1}/experiments/1/kill", token=TOKENS[Role.USER])
    assert killed.status < 300, killed.body
    table = cluster.services.table
    begun = [session for _, _, session in trial_sessions(table, 1)]
    state, _ = get_experiment(cluster.services, 1)
    list(remove_incomplete_uploads(stores_of(cluster.services), state, delete=True))
    assert list(trial_sessions(table, 1)) == []
    if begun:
        assert requests[2]["url"] == begun[0]
        late = Request(begun[0], CONTENT[:MIB], requests[2]["headers"], method="PUT")
        with pytest.raises(HTTPError, match="404"):
            urlopen(late)


def test_first_stored_upload_session_wins(cluster: Cluster) -> None:
    table = cluster.services.table
    one, other = (UploadSessions(table, 1, "u", "1/1/0/u/large.bin") for _ in range(2))
    assert one.keep("first", None) == "first"
    assert other.keep("second", None) == "first"
    # The first session has ended, as both uploads notice.
    assert one.keep("third", "first") == "third"
    assert other.keep("fourth", "first") == "third"
    assert UploadSessions(table, 1, "u", "1/1/0/u/other.bin").find() is None
    one.forget()
    assert other.find() is None
