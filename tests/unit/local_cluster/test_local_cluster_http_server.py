"""Tests of the port and the log of an embedded cluster's server."""

import json
import logging
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from control_plane.access.principals import Role
from control_plane.engine.engine import Engine
from lambdas import builder
from local_cluster.http_server import (
    DEFAULT_PORT,
    PORTS_TRIED_MAX,
    configure_logging,
    open_listener,
)
from tests.unit.api.adapters import ApiAdapters
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import TOKENS, V1, Cluster, build_cluster, role_tokens
from tests.unit.api.exchange import Answer, call


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return build_cluster(tmp_path / "cluster")


@pytest.fixture
def log_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the log file of a server with the logging of an embedded cluster."""
    path = tmp_path / "server.log"
    root, handlers = logging.getLogger(), list[logging.Handler]()
    level = root.level
    monkeypatch.setattr(root, "handlers", handlers)
    configure_logging(path)
    yield path
    root.setLevel(level)
    for handler in handlers:
        if isinstance(handler, logging.FileHandler):
            handler.close()


def read_lines(log_file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log_file.read_text().splitlines()]


class BrokenEngine(Engine):
    """An engine with a fault of the program: reads and commands raise ValueError."""

    def read_state(self, *_: object) -> NoReturn:
        raise ValueError("canary")

    def read_states(self, *_: object) -> NoReturn:
        raise ValueError("canary")

    def read_states_and_rows(self, *_: object) -> NoReturn:
        raise ValueError("canary")

    def execute_command(self, *_: object, **__: object) -> NoReturn:
        raise ValueError("canary")


def with_broken_engine(cluster: Cluster, folder: Path) -> Cluster:
    """Return the cluster of the folder with an API that uses a broken engine."""
    broken = builder.Cluster(ApiAdapters(folder, frozenset()))
    broken.engine = BrokenEngine(cluster.services.table, cluster.clock)
    return replace(cluster, app=broken.build_app(role_tokens()))


@pytest.mark.parametrize("kind", ["sync", "GET", "POST"])
def test_internal_errors_are_logged_with_a_traceback(
    cluster: Cluster, log_file: Path, tmp_path: Path, kind: str
) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    cluster = with_broken_engine(cluster, tmp_path / "cluster")
    agent.app = cluster.app
    answers: list[Answer] = []
    if kind == "sync":
        answers = [agent.sync(), agent.report("1.1", {"kind": "progress"})]
    elif kind == "GET":
        answers = [cluster.get("/trials/1"), cluster.get("/experiments/1")]
    else:
        answers = [cluster.post("/experiments/1/pause", {}), cluster.create(CONFIG)]
    lines = read_lines(log_file)
    for answer in answers:
        assert (answer.status, answer.code) == (500, "internal")
        request_id = answer.headers["x-request-id"]
        assert request_id in answer.json["error"]["message"]
        logged = [line for line in lines if line.get("request_id") == request_id]
        tracebacks = [line.get("traceback", "") for line in logged]
        assert ["ValueError: canary" in text for text in tracebacks] == [True, False]


def test_successful_reads_and_syncs_are_not_logged(cluster: Cluster, log_file: Path) -> None:
    agent = Agent(cluster)
    assert agent.sync().status == 200
    assert cluster.get("/experiments").status == 200
    assert cluster.get("/experiments/7").status == 404
    assert call(cluster.app, "GET", f"{V1}/agents", token=TOKENS[Role.AGENT]).status == 403
    listed = [(line["method"], line["status"]) for line in read_lines(log_file)]
    assert listed == [("POST", 200), ("GET", 404), ("GET", 403)]


def test_taken_port_error_suggests_to_leave_out_the_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            OSError, match=f"^port {port} is not available: .*leave out --port to use a free"
        ):
            open_listener(port)


def test_next_free_port_replaces_a_taken_former_port() -> None:
    with open_listener(0) as taken:
        port = taken.getsockname()[1]
        with open_listener(None, port) as listener:
            assert port < listener.getsockname()[1] < port + PORTS_TRIED_MAX
    with open_listener(None, port) as listener:
        assert listener.getsockname()[1] == port


def test_first_start_listens_at_the_default_port_or_above() -> None:
    with open_listener(None) as first, open_listener(None) as second:
        ports = [listener.getsockname()[1] for listener in (first, second)]
    assert DEFAULT_PORT <= ports[0] < ports[1] < DEFAULT_PORT + PORTS_TRIED_MAX


def test_any_port_is_used_if_no_higher_port_exists() -> None:
    with open_listener(None, 65536) as listener:
        assert listener.getsockname()[1] not in (0, 65536)
