"""Start, status and stop of the local cluster's server process.

The server here is a small program with the files and locks of the real server. SERVER_MODE makes
the program crash, hang, ignore SIGTERM, leave its agent behind or write its record late.
"""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from detcloud import DetcloudError
from detcloud.cli.local.server import (
    ServerChoices,
    ServerPatience,
    server_command,
    server_environment,
    server_path,
    start_server,
    stop_server,
)
from detcloud.client.home import Home, ServerRecord
from detcloud.shared.processes import list_descendants, pss_bytes, read_process
from tests.patience import wait_until
from tests.unit.cli.conftest import Detcloud

SERVER = """
import argparse, fcntl, json, os, pathlib, signal, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

parser = argparse.ArgumentParser()
for name in ("--home", "--slots", "--port"):
    parser.add_argument(name)
options = parser.parse_args()
home = pathlib.Path(options.home)
mode = os.environ.get("SERVER_MODE", "")
if mode == "crash":
    sys.exit("the port is taken")
lock = (home / "server.lock").open("w")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
if mode == "hang":
    time.sleep(60)
agent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
(home / "agent").write_text(str(agent.pid))

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        answers = {
            "/api/v1/health": {"status": "ok"},
            "/api/v1/agents": {"items": [{"slots": [0, 1, 2]}], "next_cursor": None},
            "/api/v1/cluster": {"cluster_id": "c", "version": "0.1.0", "resource_pools": []},
        }
        path = self.path.partition("?")[0]
        content = json.dumps(answers.get(path, {"items": [], "next_cursor": None})).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *values):
        pass

server = HTTPServer(("127.0.0.1", int(options.port or 0)), Handler)

def end(number, frame):
    if mode == "orphan":
        os._exit(0)
    agent.kill()
    os._exit(0)

signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "deaf" else end)
(home / "token").write_text("t")
if mode == "late record":
    import threading
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    time.sleep(1)
record = {"url": f"http://127.0.0.1:{server.server_port}", "pid": os.getpid(), "started_ms": 1}
version = os.environ.get("SERVER_VERSION", "0.1.0")
(home / "server.json").write_text(json.dumps({**record, "version": version}))
(home / "asked").write_text(json.dumps([options.slots, options.port]))
if mode == "late record":
    signal.pause()
server.serve_forever(0.01)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    code = tmp_path / "installed"
    (code / "local_cluster").mkdir(parents=True)
    # Without this file, the package of a checkout in PYTHONPATH would be found first.
    (code / "local_cluster" / "__init__.py").touch()
    (code / "local_cluster" / "__main__.py").write_text(SERVER)
    monkeypatch.setattr("detcloud.cli.local.server.server_path", lambda: code)
    monkeypatch.setenv("DETCLOUD_HOME", str(tmp_path / "data"))
    home = Home(tmp_path / "data")
    yield home
    for pid in (server_pid(home), agent_pid(home)):
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def server_pid(home: Home) -> int | None:
    record = home.running_server()
    return record.pid if record else None


def agent_pid(home: Home) -> int | None:
    path = home.folder / "agent"
    return int(path.read_text()) if path.exists() else None


def test_up_status_down(home: Home, detcloud: Detcloud) -> None:
    code, out, err = detcloud("up", "--slots", "3")
    record = home.running_server()
    assert isinstance(record, ServerRecord)
    assert (code, err) == (0, "")
    assert out == (
        f"the local cluster is up at {record.url} (pid {record.pid}, data in {home.folder})\n"
    )
    assert json.loads((home.folder / "asked").read_text()) == ["3", None]
    assert home.folder.stat().st_mode & 0o777 == 0o700
    facts = json.loads(detcloud("status", "--json").out)
    assert (facts["pid"], facts["home"]) == (record.pid, str(home.folder))
    assert [process["pid"] for process in facts["processes"]] == [record.pid, agent_pid(home)]
    assert all(process["pss_bytes"] > 100_000 for process in facts["processes"])
    assert f"pid          {record.pid}, since 1970-01-01 00:00:00+0000" in detcloud("status").out
    assert detcloud("down") == (0, "the local cluster was stopped\n", "")
    assert read_process(record.pid) is None
    assert read_process(agent_pid(home) or 0) is None
    assert detcloud("down") == (0, "no local cluster was running\n", "")
    assert detcloud("status").code == 4
    assert json.loads(detcloud("status", "--json").out)["running"] is False


def test_up_after_a_kill_names_the_server_that_it_started(
    home: Home, detcloud: Detcloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    detcloud("up")
    killed = home.running_server()
    assert killed is not None
    for pid in (killed.pid, agent_pid(home)):
        os.kill(pid or 0, signal.SIGKILL)
    wait_until(lambda: home.running_server() is None)
    # The new server takes the lock and listens on the old port a second before writing its record.
    monkeypatch.setenv("SERVER_MODE", "late record")
    port = killed.url.rpartition(":")[2]
    out = detcloud("up", "--port", port).out
    record = home.running_server()
    assert record is not None
    assert record.pid != killed.pid
    assert f"(pid {record.pid}," in out


def test_second_up_reports_the_running_server(home: Home, detcloud: Detcloud) -> None:
    detcloud("up")
    pid = server_pid(home)
    again = detcloud("up")
    assert again.code == 0
    assert "is already running at http://127.0.0.1:" in again.out
    assert f"(pid {pid})" in again.out
    assert server_pid(home) == pid


def test_second_up_with_different_options_is_an_error(home: Home, detcloud: Detcloud) -> None:
    detcloud("up")
    record = home.running_server()
    assert record is not None
    port = int(record.url.rpartition(":")[2])
    assert detcloud("up", "--port", str(port), "--slots", "3").code == 0
    again = detcloud("up", "--port", str(port - 1), "--slots", "2")
    assert again.code == 1
    differences = f"port {port}, not {port - 1} and 3 slots, not 2"
    assert again.err.startswith(f"error: the running cluster has {differences}; ")
    assert "`detcloud down` and this command again" in again.err
    again = detcloud("up", "--clouds", "clouds.yaml")
    assert again.code == 1
    assert "remote accounts that only a start changes" in again.err


def test_command_of_the_server_has_the_clouds_only_if_given(home: Home) -> None:
    assert server_command(home, ServerChoices(clouds="none"))[-2:] == ["--clouds", "none"]
    assert "--clouds" not in server_command(home, ServerChoices())


def test_unusable_data_folder_is_an_error(
    tmp_path: Path, detcloud: Detcloud, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "file/below"):
        monkeypatch.setenv("DETCLOUD_HOME", str(tmp_path / name))
        code, _, err = detcloud("up")
        assert code == 1
        assert err.startswith(f"error: the data folder {tmp_path / name} cannot be used: ")
        assert "DETCLOUD_HOME names another one" in err


def test_up_refuses_a_running_server_of_a_different_version(
    home: Home, detcloud: Detcloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_VERSION", "0.0.9")
    assert detcloud("up").code == 0
    again = detcloud("up")
    assert again.code == 1
    assert "error: the running cluster has version 0.0.9, not 0.1.0" in again.err


def test_concurrent_starts_share_a_server(home: Home) -> None:
    records: list[ServerRecord] = []
    threads = [
        threading.Thread(target=lambda: records.append(start_server(home))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(records) == 4
    assert len({record.pid for record in records}) == 1


def test_crash_at_startup_shows_the_log(
    home: Home, detcloud: Detcloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_MODE", "crash")
    home.folder.mkdir()
    home.log.write_text("of an earlier life\n")
    code, _, err = detcloud("up")
    assert code == 1
    assert err == (
        f"error: the local cluster's server ended with code 1; {home.log} ends with:\n"
        "  the port is taken\n"
    )


def test_unresponsive_server_is_killed_after_startup_timeout(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_MODE", "hang")
    with pytest.raises(DetcloudError, match="did not answer within"):
        start_server(home, patience=ServerPatience(start=0.5))
    # Servers are started with the data folder as an argument.
    assert not [
        child for child in list_descendants(os.getpid()) if str(home.folder) in child.command
    ]


def test_a_crashed_server_is_replaced(home: Home) -> None:
    first = start_server(home)
    os.kill(first.pid, signal.SIGKILL)
    os.waitpid(first.pid, 0)
    agent = agent_pid(home)
    assert agent is not None
    os.kill(agent, signal.SIGKILL)
    assert home.running_server() is None, "server.json is there, its lock is free"
    second = start_server(home)
    assert second.pid != first.pid
    assert stop_server(home)


def test_server_that_is_being_killed_is_replaced(home: Home, detcloud: Detcloud) -> None:
    first = start_server(home)
    agent = agent_pid(home)
    assert agent is not None
    # The stopped process holds the lock without an answer, like a killed process that still exits.
    os.kill(first.pid, signal.SIGSTOP)
    killer = threading.Timer(0.5, lambda: os.kill(first.pid, signal.SIGKILL))
    killer.start()
    done = detcloud("up")
    killer.join()
    os.kill(agent, signal.SIGKILL)
    assert (done.code, "already running" in done.out) == (0, False)
    assert server_pid(home) != first.pid


@pytest.mark.parametrize("mode", ["deaf", "orphan"])
def test_stop_kills_processes_that_ignore_sigterm(
    mode: str, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_MODE", mode)
    record = start_server(home)
    agent = agent_pid(home)
    assert agent is not None
    assert read_process(agent) is not None
    assert stop_server(home, ServerPatience(stop=0.2, kill=1.0))
    assert read_process(record.pid) is None
    assert read_process(agent) is None


@pytest.mark.usefixtures("quick_retries")
def test_create_starts_a_cluster_when_none_is_configured(
    home: Home, detcloud: Detcloud, config: Path, model_dir: Path
) -> None:
    err = detcloud("create", str(config), str(model_dir)).err
    assert err.startswith("starting a local cluster ...\n")
    assert server_pid(home) is not None


@pytest.mark.usefixtures("quick_retries")
def test_create_starts_no_cluster_if_a_cluster_is_configured(
    home: Home,
    detcloud: Detcloud,
    config: Path,
    model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DETCLOUD_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("DETCLOUD_TOKEN", "t")
    code, _, err = detcloud("create", str(config), str(model_dir))
    assert code == 4
    assert "http://127.0.0.1:1 could not be reached" in err
    assert not home.folder.exists()


def test_purge_requires_confirmation_and_keeps_credentials(home: Home, detcloud: Detcloud) -> None:
    detcloud("up")
    (home.folder / "credentials.json").write_text("{}")
    (home.folder / "objects").mkdir()
    (home.folder / "objects" / "x").touch()
    refused = detcloud("down", "--purge")
    assert refused.code == 1
    assert "confirm with --yes, since stdin is not a terminal" in refused.err
    assert server_pid(home) is not None
    (home.folder / "files.json").write_text('{"bucket": "s3://lab/team"}')
    done = detcloud("down", "--purge", "--yes")
    assert done.code == 0
    assert "model code and logs stay in s3://lab/team" in done.out
    assert sorted(path.name for path in home.folder.iterdir()) == ["credentials.json", "lock"]


def test_purge_spares_a_folder_that_is_no_data_folder(
    tmp_path: Path, detcloud: Detcloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter").touch()
    monkeypatch.setenv("DETCLOUD_HOME", str(folder))
    code, _, err = detcloud("down", "--purge", "--yes")
    assert code == 1
    assert "is not a data folder of detcloud" in err
    assert (folder / "chapter").exists()


def test_server_code_is_found_in_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = server_path()
    assert (folder / "control_plane").is_dir()
    monkeypatch.setenv("PYTHONPATH", "/mine")
    first, *_, last = server_environment()["PYTHONPATH"].split(os.pathsep)
    assert (first, last) == (str(folder), "/mine")


def test_missing_server_packages_are_named() -> None:
    with pytest.raises(DetcloudError, match=r"no_such_package; pip install 'detcloud\[server\]'"):
        server_path(("json", "no_such_package"))


def test_memory_of_an_ended_process_is_none() -> None:
    assert pss_bytes(2**22 + 1) is None
    assert read_process(2**22 + 1) is None


def test_server_killed_during_a_start_is_replaced(home: Home) -> None:
    first = start_server(home)
    orphan = agent_pid(home)
    # A stopped process keeps the lock, as a killed process does for a moment.
    os.kill(first.pid, signal.SIGSTOP)
    killing = threading.Timer(0.5, os.kill, (first.pid, signal.SIGKILL))
    killing.start()
    second = start_server(home)
    killing.join()
    # A real agent ends with its server; the agent of these tests does not.
    assert orphan
    os.kill(orphan, signal.SIGKILL)
    assert second.pid != first.pid
    assert home.running_server() == second


def test_killed_servers_port_may_be_taken_by_a_foreign_cluster(home: Home) -> None:
    first = start_server(home)
    orphan = agent_pid(home)
    os.kill(first.pid, signal.SIGSTOP)
    killing = threading.Timer(0.5, os.kill, (first.pid, signal.SIGKILL))
    with refusing_server() as url:
        fields = {**json.loads((home.folder / "server.json").read_text()), "url": url}
        (home.folder / "server.json").write_text(json.dumps(fields))
        killing.start()
        second = start_server(home)
    killing.join()
    assert orphan
    os.kill(orphan, signal.SIGKILL)
    assert second.pid != first.pid
    assert home.running_server() == second


def test_server_that_neither_answers_nor_ends_is_an_error(home: Home) -> None:
    record = start_server(home)
    os.kill(record.pid, signal.SIGSTOP)
    try:
        with pytest.raises(DetcloudError, match=rf"\(pid {record.pid}\) does not answer; `detclo"):
            start_server(home, patience=ServerPatience(start=0.2))
    finally:
        os.kill(record.pid, signal.SIGCONT)


class RefusingHandler(BaseHTTPRequestHandler):
    """HTTP handler that answers like a cluster for which the token is unknown."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path.endswith("/health") else 401)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_values: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def refusing_server() -> Iterator[str]:
    """Serve a RefusingHandler in a thread during the block; yield the URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), RefusingHandler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
