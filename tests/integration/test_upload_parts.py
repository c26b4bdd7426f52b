"""Large files that users upload to stores which sign no parts.

The client is killed, a connection breaks, or a part has the wrong content.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
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
from detcloud.client.upload import PartReader
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import Unreachable
from tests.conformance.checkpoint_files import hdfs_storage
from tests.emulators.azurite import Azurite
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.webhdfs import OWNER, webhdfs
from tests.integration.upload_client import NotingTransport, SentBody, UploadClient
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
from pathlib import Path
from detcloud.shared import upload_parts

upload_parts.SIGNED_PART_BYTES = 1 << 20
from tests.integration.upload_client import UploadClient

def kill_in_fourth(body):
    if body.number == 4:
        read = body.content.read
        def read_some(count=-1):
            read(1000)
            os.kill(os.getpid(), signal.SIGKILL)
        body.content.read = read_some

client = UploadClient(os.environ["DETCLOUD_URL"], os.environ["DETCLOUD_TOKEN"])
client.uploads.before_upload = kill_in_fourth
client.upload_one_after_another(Path(sys.argv[1]))
"""


@pytest.fixture(autouse=True)
def _small_parts(set_upload_part_bytes: Callable[[int], None]) -> None:
    set_upload_part_bytes(MIB)


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
def client(cluster: Cluster) -> Iterator[UploadClient]:
    with serve_app(cluster.app) as url:
        client = UploadClient(url, TOKENS[Role.USER], MIB)
        yield client
        client.http.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "large.bin").write_bytes(CONTENT)
    return folder


def check_upload(client: Client, uuid: str, folder: Path) -> None:
    """Check that the checkpoint equals the folder, and that no rest of the upload remains."""
    uploaded = client.checkpoint(uuid)
    assert uploaded.state == "COMPLETED"
    assert {finding["state"] for finding in uploaded.verify()} == {"OK"}
    fetched = uploaded.download(folder.with_name(f"fetched-{uuid}"))
    assert (fetched / "large.bin").read_bytes() == CONTENT


def test_killed_client_resumes_with_the_missing_part(
    cluster: Cluster, client: UploadClient, folder: Path
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
    sent_numbers = client.uploads.sent_numbers
    assert sorted(number for number in sent_numbers if number) == [4, 5, 6, 7]
    assert sent_numbers.count(None) == 2
    check_upload(client, uploaded.uuid, folder)


class BreakingTransport(NotingTransport):
    """A transport whose connection breaks before part 3, and after part 5 was stored."""

    def __init__(self, base_url: str, token: str | None, part_bytes: int) -> None:
        super().__init__(base_url, token, part_bytes)
        self.breaks = {3, 5}

    @contextmanager
    def _exchange(self, method: str, url: str, body: Any, *more: Any) -> Iterator[HTTPResponse]:
        number = body.tell() // MIB + 1 if isinstance(body, PartReader) else None
        is_broken = number in self.breaks
        self.breaks.discard(number or 0)
        if is_broken and number == 3:
            raise Unreachable("reset by peer")
        with super()._exchange(method, url, body, *more) as answer:
            if is_broken:
                answer.read()
                raise Unreachable("reset by peer")
            yield answer


def test_broken_connection_costs_a_part(client: UploadClient, folder: Path) -> None:
    client.http = breaking = BreakingTransport(client.url, TOKENS[Role.USER], MIB)
    uploaded = client.trial(1).upload_checkpoint(folder)
    assert breaking.breaks == set()
    check_upload(client, uploaded.uuid, folder)


def test_concurrent_uploads_of_a_folder_end_with_a_single_checkpoint(
    client: UploadClient, folder: Path
) -> None:
    """The second client uploads the whole folder while the first is before its fifth part."""
    other = list[str]()

    def upload_meanwhile(body: SentBody) -> None:
        if body.number == 5 and not other:
            other.append("")
            second = Client(client.http.base_url, TOKENS[Role.USER])
            other[0] = second.trial(1).upload_checkpoint(folder).uuid
            second.http.close()

    client.uploads.before_upload = upload_meanwhile
    try:
        uuid = client.upload_one_after_another(folder)["uuid"]
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
    cluster: Cluster, client: UploadClient, folder: Path
) -> None:
    third: list[SentBody] = []

    def die_in_third(body: SentBody) -> None:
        if body.number == 3:
            third.append(body)
            raise KeyboardInterrupt

    client.uploads.before_upload = die_in_third
    with pytest.raises(KeyboardInterrupt):
        client.upload_one_after_another(folder)
    killed = call(cluster.app, "POST", f"{V1}/experiments/1/kill", token=TOKENS[Role.USER])
    assert killed.status < 300, killed.body
    table = cluster.services.table
    begun = [session for _, _, session in trial_sessions(table, 1)]
    state, _ = get_experiment(cluster.services, 1)
    list(remove_incomplete_uploads(stores_of(cluster.services), state, delete=True))
    assert list(trial_sessions(table, 1)) == []
    if begun:
        assert third[0].url == begun[0]
        late = Request(begun[0], CONTENT[:MIB], dict(third[0].headers), method="PUT")
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
