"""A real embedded server with a damaged folder, disk or records.

The server names the problem in a line and changes no file, or continues.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from detcloud.client import Client, Experiment
from detcloud.shared.http import ApiError, Transport
from detcloud.shared.processes import list_descendants
from tests.integration.embedded_cluster import EmbeddedCluster, config, environment, model_dir
from tests.patience import PROCESS_SECONDS_MAX, wait_until
from tests.thinning import every

pytestmark = pytest.mark.end_to_end

NOBODY = 65534
# Of linux/capability.h and linux/prctl.h.
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER = 1, 2, 3
PR_CAPBSET_DROP = 24


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    one = EmbeddedCluster(tmp_path / "home")
    yield one
    one.end()


def limit(pid: int, size: int = resource.RLIM_INFINITY) -> None:
    """Limit the size of the process's files to `size` bytes, which simulates a full disk."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def token_of(cluster: EmbeddedCluster) -> str:
    return (cluster.home / "token").read_text().strip()


def server_pid(cluster: EmbeddedCluster) -> int:
    assert cluster.process is not None
    return cluster.process.pid


def start_refusal(cluster: EmbeddedCluster, **options: Any) -> str:
    """Return the message of a server that does not start.

    Kill a server that starts, with its agent.
    """
    server: subprocess.Popen[str] = subprocess.Popen(
        cluster.command(), env=environment(), stderr=subprocess.PIPE, text=True, **options
    )
    try:
        _, output = server.communicate(timeout=PROCESS_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        for process in [server.pid, *(child.pid for child in list_descendants(server.pid))]:
            os.kill(process, signal.SIGKILL)
        server.communicate()
        raise
    assert server.returncode == 1, output
    assert "Traceback" not in output
    (line,) = [line for line in output.splitlines() if not line.startswith("{")]
    assert line.startswith("detcloud server: ")
    return str(line).removeprefix("detcloud server: ")


def test_full_disk_under_a_running_cluster_loses_no_data(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    client = cluster.start()
    model = model_dir(tmp_path / "model")
    running = client.create_experiment(config(0.2, batches=20, trials=2), model)
    wait_until(lambda: client.overview()["resource_pools"][0]["running"] == 2)
    limit(server_pid(cluster), 0)
    with closing(Transport(client.url, token_of(cluster), attempts_max=1)) as once:
        _check_refusals(once, running, model)
    limit(server_pid(cluster))
    second = client.create_experiment(config(trials=1), model)
    assert second.id == running.id + 1
    for experiment in (running, second):
        assert experiment.wait() == "COMPLETED"
        assert {trial.state for trial in experiment.trials()} == {"COMPLETED"}
        assert {trial.data["restarts"] for trial in experiment.trials()} == {0}
    replayed = list(client.items(f"/experiments/{running.id}/replay"))
    assert [entry["difference"] for entry in replayed] == [None] * len(replayed)
    assert cluster.stop() == 0


def _check_refusals(once: Transport, running: Experiment, model: Path) -> None:
    """Check that changes are refused and reads are answered."""
    body = {"config": json.dumps(config(trials=1)), "model_code": running.data["code_sha256"]}
    for path, content in [("/experiments", body), (f"/experiments/{running.id}/pause", None)]:
        for _ in range(2):
            with pytest.raises(ApiError) as caught:
                once.request("POST", f"/api/v1{path}", content)
            assert (caught.value.status, caught.value.code) == (503, "unavailable")
            assert "the state table is unavailable now" in str(caught.value)
    assert once.request("GET", f"/api/v1/experiments/{running.id}")["state"] == "ACTIVE"
    assert len(once.request("GET", "/api/v1/experiments")["items"]) == 1
    offer = once.request("POST", "/api/v1/model-code", {"sha256": "1" * 64, "size": 20})
    with (model / "train.py").open("rb") as file, pytest.raises(ApiError) as caught:
        once.upload(offer["upload"]["path"], file, 20)
    assert (caught.value.status, caught.value.code) == (503, "unavailable")


def test_server_without_disk_space_names_the_folder(cluster: EmbeddedCluster) -> None:
    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    refusal = start_refusal(cluster, preexec_fn=no_room)
    assert str(cluster.home) in refusal
    client = cluster.start()
    assert list(client.experiments()) == []


@pytest.mark.parametrize("stays", every(2, ["killed", "stopped"]))
def test_folder_has_a_single_server_at_a_time(cluster: EmbeddedCluster, stays: str) -> None:
    cluster.start()
    elsewhere = cluster.home.parent / "link"
    elsewhere.symlink_to(cluster.home)
    for path in (cluster.home, elsewhere):
        refusal = start_refusal(EmbeddedCluster(path))
        assert refusal == f"a server runs on {path} already"
    if stays == "killed":
        cluster.kill()
    else:
        assert cluster.stop() == 0
    assert list(cluster.start().experiments()) == []


def test_frozen_server_is_not_replaced(cluster: EmbeddedCluster) -> None:
    cluster.start()
    os.kill(server_pid(cluster), signal.SIGSTOP)
    try:
        assert "already" in start_refusal(EmbeddedCluster(cluster.home))
    finally:
        os.kill(server_pid(cluster), signal.SIGCONT)


Damage = Callable[[Path], object]


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda home: (home / "state.db").write_bytes(b"rubbish " * 5000), "state.db"),
        (lambda home: (home / "state.db").mkdir(), "state.db"),
        (lambda home: (home / "token").write_bytes(b"\xff\xfe\x00canary"), "token"),
        (lambda home: (home / "token").write_text("short"), "token"),
        (lambda home: (home / "token").write_text("two words " * 10), "token"),
        (lambda home: (home / "token").mkdir(), "token"),
        (lambda home: (home / "signing.key").write_text("x"), "signing.key"),
        (lambda home: (home / "agent.token").write_bytes(b"\x00" * 50), "agent.token"),
        (lambda home: (home / "objects").write_text(""), "objects"),
        (lambda home: (home / "checkpoints").write_text(""), "checkpoints"),
        (lambda home: (home / "server.lock").mkdir(), "server.lock"),
        (lambda home: (home / "server.log").mkdir(), "server.log"),
    ],
    ids=[
        "a state table of rubbish",
        "a state table that is a folder",
        "a token that is not text",
        "a short token",
        "a token with spaces",
        "a token that is a folder",
        "a short key",
        "a join token of NULs",
        "objects that are a file",
        "checkpoints that are a file",
        "a lock that is a folder",
        "a log that is a folder",
    ],
)
def test_broken_folder_is_refused_with_the_name_of_the_broken_file(
    cluster: EmbeddedCluster, damage: Damage, named: str
) -> None:
    cluster.home.mkdir()
    damage(cluster.home)
    refusal = start_refusal(cluster)
    assert str(cluster.home / named) in refusal
    assert "canary" not in refusal


@pytest.mark.parametrize("content", ["", "\n", " \n\t"])
def test_empty_token_is_created_again_with_private_permissions(
    cluster: EmbeddedCluster, content: str
) -> None:
    cluster.home.mkdir(mode=0o755)
    for name in ("token", "agent.token", "signing.key"):
        (cluster.home / name).write_text(content)
        (cluster.home / name).chmod(0o666)
    client = cluster.start()
    assert list(client.experiments()) == []
    for name in ("token", "agent.token", "signing.key"):
        assert (cluster.home / name).stat().st_mode & 0o777 == 0o600
        assert (cluster.home / name).read_text().startswith("dct_")
    assert cluster.home.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe[]",
        b'{"url": "http://127.0.0.1:99999999", "pid": -1}',
        b'{"url": "http://127.0.0.1:\xc2\xb2", "pid": 1}',
        b'{"url": null, "pid": 99999999999999999999}',
        b"[" * 100_000,
    ],
    ids=lambda content: content[:40],
)
def test_damaged_records_stop_no_server(cluster: EmbeddedCluster, content: bytes) -> None:
    cluster.home.mkdir()
    (cluster.home / "server.json").write_bytes(content)
    (cluster.home / "agent.json").write_bytes(content.replace(b"url", b"started_ticks"))
    client = cluster.start()
    assert list(client.experiments()) == []
    assert client.url.startswith("http://127.0.0.1:")


def without_privileges() -> None:
    """Drop three capabilities before the exec, so that file permissions apply to root too."""
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files that are another's")
@pytest.mark.parametrize("name", ["", "state.db", "token", "server.lock", "agent.token"])
def test_error_names_a_file_without_write_permission(cluster: EmbeddedCluster, name: str) -> None:
    cluster.home.mkdir(mode=0o755)
    theirs = cluster.home / name
    if name:
        theirs.write_text("" if name == "state.db" else "x" * 40)
        theirs.chmod(0o444)
    os.chown(theirs, NOBODY, NOBODY)
    assert str(theirs) in start_refusal(cluster, preexec_fn=without_privileges)


def test_two_agents_do_not_share_a_work_folder(cluster: EmbeddedCluster) -> None:
    client = cluster.start()
    wait_until(lambda: client.agents())
    command = [sys.executable, "-P", "-m", "detcloud.agent", "--url", client.url, "--name", "x"]
    command += ["--pool", "default", "--token-file", str(cluster.home / "agent.token")]
    command += ["--work-dir", str(cluster.home / "agent"), "--slots", "1"]
    done = subprocess.run(
        command,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 2
    assert "another agent works in" in done.stderr
    assert [agent.id for agent in client.agents()] == ["local"]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"\n"])
def test_agent_with_an_invalid_token_file_names_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    command = [sys.executable, "-P", "-m", "detcloud.agent", "--url", "http://127.0.0.1:1"]
    command += ["--name", "x", "--pool", "default", "--token-file", str(path), "--slots", "1"]
    done = subprocess.run(
        [*command, "--work-dir", str(tmp_path / "work")],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 2
    assert str(path) in done.stderr
    assert "Traceback" not in done.stderr


def test_damaged_table_is_refused_by_the_next_server(cluster: EmbeddedCluster) -> None:
    client = cluster.start()
    for number in range(40):
        client.set_template(f"t{number}", "max_restarts: 1")
    assert cluster.stop() == 0
    path = cluster.home / "state.db"
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))
    refusal = start_refusal(cluster)
    assert refusal.startswith(f"the state table {path} cannot be used: database disk image is malf")


def test_client_retries_after_a_full_disk(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    client: Client = cluster.start()
    model = model_dir(tmp_path / "model")
    pauses: list[float] = []

    def lift_limit(seconds: float) -> None:
        pauses.append(seconds)
        limit(server_pid(cluster))

    client.http = Transport(client.http.base_url, client.http.token, sleep=lift_limit)
    limit(server_pid(cluster), 0)
    experiment = client.create_experiment(config(trials=1), model)
    assert len(pauses) == 1
    assert [one.id for one in client.experiments()] == [experiment.id]
