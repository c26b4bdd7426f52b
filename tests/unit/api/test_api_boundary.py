import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from control_plane.access.principals import Role
from control_plane.api.access_log import JsonLines
from tests.unit.api.cluster import TOKENS, Cluster, build_app_with_notes
from tests.unit.api.exchange import HOST, call

ROOT = Path(__file__).resolve().parents[3]


def test_health_is_open(cluster: Cluster) -> None:
    answer = call(cluster.app, "GET", "/api/v1/health")
    assert (answer.status, answer.json) == (200, {"status": "ok"})


def test_openapi_lists_routes_with_authentication(cluster: Cluster) -> None:
    answer = call(cluster.app, "GET", "/api/v1/openapi.json", token=TOKENS[Role.USER])
    offer = answer.json["paths"]["/api/v1/model-code"]["post"]
    assert offer["security"] == [{"bearer": []}]
    assert "security" not in answer.json["paths"]["/api/v1/health"]["get"]
    assert answer.json["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"


@pytest.mark.parametrize("host", [HOST, f"{HOST}:80", "127.0.0.1:8080", "[::1]:8080", "[::1]"])
def test_accepts_hosts_of_the_cluster_on_any_port(cluster: Cluster, host: str) -> None:
    assert call(cluster.app, "GET", "/api/v1/health", headers=[("host", host)]).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "attacker.test",
        "attacker.test:8080",
        "",
        f"{HOST}.evil.test",
        "[::1].evil.test",
        "[::1]evil.test",
        "[::1",
        "[::1]:80:80",
        f"{HOST}:80.evil.test",
        f"{HOST}:80@evil.test",
    ],
)
def test_rejects_unknown_host_even_with_a_token(cluster: Cluster, host: str) -> None:
    headers = [("host", host)]
    target = "/api/v1/openapi.json"
    answer = call(cluster.app, "GET", target, headers=headers, token=TOKENS[Role.ADMIN])
    assert (answer.status, answer.code) == (403, "forbidden")


def test_rejects_requests_with_two_hosts(cluster: Cluster) -> None:
    headers = [("host", HOST), ("host", "attacker.test")]
    assert call(cluster.app, "GET", "/api/v1/health", headers=headers).status == 403


@pytest.mark.parametrize("target", ["/api/v1/health", "/none", "/api/v1/broken"])
def test_answers_have_security_headers_and_a_request_id(tmp_path: Path, target: str) -> None:
    headers = call(build_app_with_notes(tmp_path), "GET", target).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert len(headers["x-request-id"]) == 16


def test_request_ids_differ(cluster: Cluster) -> None:
    ids = {call(cluster.app, "GET", "/api/v1/health").headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2


def test_request_is_logged_in_one_line_without_the_query(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "control_plane.api")
    target = "/api/v1/openapi.json?signature=canary"
    answer = call(cluster.app, "GET", target, token=TOKENS[Role.USER])
    (record,) = caplog.records
    line = json.loads(JsonLines().format(record))
    assert line["request_id"] == answer.headers["x-request-id"]
    assert (line["method"], line["path"]) == ("GET", "/api/v1/openapi.json")
    assert (line["status"], line["user"], line["role"]) == (200, "user-1", "user")
    assert line["level"] == "info"


def test_failure_is_logged_with_a_traceback_and_without_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answer = call(build_app_with_notes(tmp_path), "GET", "/api/v1/broken")
    failure = next(record for record in caplog.records if record.exc_info)
    text = JsonLines().format(failure)
    line = json.loads(text)
    assert line["request_id"] == answer.headers["x-request-id"]
    assert "RuntimeError: canary" in line["traceback"]
    assert "dct_secret" not in text


@pytest.mark.parametrize(
    "said",
    [
        "Authorization: Bearer canary",
        "{'authorization': 'bearer canary'}",
        "token dct_canary-canary_canary was refused",
        "PUT /api/v1/objects/a/b?size=3&signature=canary&expires_ms=1",
        '{"signature": "canary"}',
        "the store http://me:canary@store.test/bucket does not answer",
        "endpoint_url: 'https://canary@store.test:9000'",
    ],
)
def test_log_lines_mask_secrets(said: str) -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "%s", (said,), None)
    record.fields = {"said": said}
    text = JsonLines().format(record)
    assert "canary" not in text
    assert json.loads(text)["level"] == "info"


def test_log_lines_keep_other_text() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "the bearer of size=3", (), None)
    assert "size=3" in JsonLines().format(record)


def test_import_of_the_application_loads_no_heavy_module() -> None:
    heavy = ("torch", "numpy", "httpx", "sqlite3", "boto3", "multiprocessing")
    code = f"import sys, control_plane.api.app; print([m for m in {heavy} if m in sys.modules])"
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "harness")])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
