"""The version of the API that the agent and an engine agree on."""

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from detcloud.agent.docker.engine import EngineClient, EngineError, agree_version


@pytest.mark.parametrize(
    ("newest", "oldest", "agreed"),
    [
        # The agent speaks 1.44, and the newest version of an older engine.
        ("1.41", "1.12", "1.41"),
        ("1.44", "1.24", "1.44"),
        ("1.50", "1.24", "1.44"),
        # An engine without 1.44 is asked in the engine's oldest version.
        ("1.60", "1.50", "1.50"),
        ("", "", "1.44"),
    ],
)
def test_agrees_on_the_older_api_version(newest: str, oldest: str, agreed: str) -> None:
    assert agree_version({"ApiVersion": newest, "MinAPIVersion": oldest}) == agreed


def test_an_engine_without_requests_for_devices_is_refused() -> None:
    with pytest.raises(EngineError, match=r"version 1\.39, and at least 1\.40 is needed"):
        agree_version({"ApiVersion": "1.39", "MinAPIVersion": "1.12"})


class Engine(socketserver.ThreadingUnixStreamServer):
    """HTTP server as an engine that knows only `api_version`; `paths` lists all requests."""

    daemon_threads = True
    api_version = "1.43"

    def __init__(self, path: Path) -> None:
        self.paths: list[str] = []
        super().__init__(str(path), Handler)


class Handler(BaseHTTPRequestHandler):
    server: Engine

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        version = self.server.api_version
        if self.path == "/version":
            self._answer(200, {"Version": "9", "ApiVersion": version, "MinAPIVersion": version})
        elif self.path.startswith(f"/v{version}/"):
            devices = [{"Source": "cdi", "ID": "nvidia.com/gpu=GPU-a"}, {"Source": "x", "ID": "y"}]
            self._answer(200, {"DockerRootDir": "/x", "DiscoveredDevices": devices})
        else:
            self._answer(400, {"message": f"client version is too new. Maximum is {version}"})

    def log_message(self, *_: object) -> None:
        """Write nothing."""

    def _answer(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(folder: Path) -> Iterator[Engine]:
    with Engine(folder / "docker.sock") as engine:
        threading.Thread(target=engine.serve_forever, daemon=True).start()
        yield engine
        engine.shutdown()


def test_api_version_is_negotiated_once(tmp_path: Path) -> None:
    with serving(tmp_path) as engine:
        client = EngineClient(str(tmp_path / "docker.sock"))
        assert client.root_folder() == "/x"
        assert client.cdi_devices() == {"nvidia.com/gpu=GPU-a"}
        assert engine.paths == ["/version", "/v1.43/info", "/v1.43/info"]


def test_api_version_is_renegotiated_after_an_engine_change(tmp_path: Path) -> None:
    with serving(tmp_path) as engine:
        client = EngineClient(str(tmp_path / "docker.sock"))
        client.root_folder()
        engine.api_version = "1.42"
        assert client.root_folder() == "/x"
        assert engine.paths[2:] == ["/v1.43/info", "/version", "/v1.42/info"]
