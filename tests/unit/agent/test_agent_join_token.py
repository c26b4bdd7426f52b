"""The join token of an instance: created and stored locally, proved to the cluster by a digest."""

import hashlib
import json
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from detcloud.agent.identity_proof import IdentityProof
from detcloud.agent.join_token import IdentityRefused, obtain_join_token

INSTANCE = "i-0123456789abcdef0"


class Api(HTTPServer):
    """HTTP server that answers with `statuses` in turn and repeats the last; records `requests`."""

    statuses: list[int]
    requests: list[tuple[str, dict[str, Any]]]


@pytest.fixture
def api() -> Iterator[Api]:
    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            assert isinstance(self.server, Api)
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.server.requests.append((self.path, body))
            statuses = self.server.statuses
            status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
            answer = {} if status == 200 else {"error": {"code": "x", "message": f"said {status}"}}
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = Api(("127.0.0.1", 0), Handler)
    server.statuses, server.requests = [200], []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def no_pause(seconds: float) -> None:
    assert seconds > 0


def make_proof(digest: str) -> IdentityProof:
    return IdentityProof(INSTANCE, {"signature": f"of {digest}"})


def obtain_token(api: Api, path: Path, logged: list[str] | None = None) -> str:
    url = f"http://127.0.0.1:{api.server_port}"
    log_line = (logged if logged is not None else []).append
    return obtain_join_token(path, url, "gpus", make_proof, log_line, no_pause)


def test_only_the_digest_of_the_join_token_is_sent(api: Api, tmp_path: Path) -> None:
    token = obtain_token(api, tmp_path / "join.token")
    digest = hashlib.sha256(token.encode()).hexdigest()
    fields = {"resource_pool": "gpus", "token_sha256": digest, "signature": f"of {digest}"}
    assert api.requests == [(f"/api/v1/instances/{INSTANCE}/identity", fields)]
    assert token not in json.dumps(fields)
    assert stat.S_IMODE((tmp_path / "join.token").stat().st_mode) == 0o600


def test_join_token_is_kept_for_the_next_agent(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "join.token"
    assert obtain_token(api, path) == obtain_token(api, path)
    (_, first), (_, second) = api.requests
    assert first["token_sha256"] == second["token_sha256"]


def test_join_token_is_retried_until_the_instance_is_known(api: Api, tmp_path: Path) -> None:
    api.statuses = [404, 503, 200]
    logged: list[str] = []
    obtain_token(api, tmp_path / "join.token", logged)
    assert len(api.requests) == 3
    assert ["said 404" in logged[0], "said 503" in logged[1]] == [True, True]


@pytest.mark.parametrize("status", [401, 403, 422])
def test_a_refused_identity_is_not_retried(api: Api, tmp_path: Path, status: int) -> None:
    api.statuses = [status]
    with pytest.raises(IdentityRefused, match=f"said {status}"):
        obtain_token(api, tmp_path / "join.token")
    assert len(api.requests) == 1


def test_identity_proof_is_retried_after_a_cloud_error(api: Api, tmp_path: Path) -> None:
    failures = [OSError("no role"), OSError("no role yet")]
    logged: list[str] = []

    def make_proof_later(digest: str) -> IdentityProof:
        if failures:
            raise failures.pop()
        return make_proof(digest)

    url = f"http://127.0.0.1:{api.server_port}"
    path = tmp_path / "join.token"
    obtain_join_token(path, url, "gpus", make_proof_later, logged.append, no_pause)
    assert len(api.requests) == 1
    assert [line.rpartition(": ")[2] for line in logged] == ["no role yet", "no role"]
