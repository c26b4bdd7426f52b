from pathlib import Path

import pytest

from control_plane.access.principals import Role
from control_plane.api.errors import STATUS_BY_CODE, error_response
from control_plane.errors import Code, Detail, RequestError
from tests.unit.api.cluster import TOKENS, Cluster, build_app_with_notes
from tests.unit.api.exchange import Answer, call

USER = TOKENS[Role.USER]


def note(root: Path, body: bytes, content_type: str = "application/json") -> Answer:
    headers = [("content-type", content_type)]
    return call(
        build_app_with_notes(root), "POST", "/api/v1/notes", token=USER, headers=headers, body=body
    )


def test_wrong_field_is_named_by_the_path(tmp_path: Path) -> None:
    answer = note(tmp_path, b'{"text": 5}')
    assert (answer.status, answer.code) == (422, "invalid")
    detail = {"path": "text", "message": "must be a valid string"}
    assert answer.json["error"]["details"] == [detail]
    assert "text: must be a valid string" in answer.json["error"]["message"]


def test_missing_field_is_reported_as_required(tmp_path: Path) -> None:
    assert note(tmp_path, b"{}").json["error"]["details"] == [
        {"path": "text", "message": "is required"}
    ]


def test_errors_repeat_no_wrong_value(tmp_path: Path) -> None:
    answer = note(tmp_path, b'{"text": "' + b"canary" * 9 + b'"}')  # 54 > 50 characters
    assert answer.status == 422
    assert b"canary" not in answer.body


@pytest.mark.parametrize(
    "body",
    [b"{not json", b"\xff\xfe", b"[" * 100, b"", b"7"],
)
def test_body_without_an_object_is_invalid(tmp_path: Path, body: bytes) -> None:
    answer = note(tmp_path, body)
    assert (answer.status, answer.code) == (422, "invalid")


def test_malformed_body_is_reported_by_character(tmp_path: Path) -> None:
    # {"text": } -- the value is missing at character 9.
    message = note(tmp_path, b'{"text": }').json["error"]["message"]
    assert "not JSON at character 9" in message


def test_rejects_other_content_types(tmp_path: Path) -> None:
    assert note(tmp_path, b'{"text": "a"}', "text/plain").code == "invalid"


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/nothing"),
        ("GET", "/api/v1/none"),
        ("GET", "/api/v1/health/"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
    ],
)
def test_unknown_route_is_not_found(cluster: Cluster, method: str, target: str) -> None:
    answer = call(cluster.app, method, target, token=USER)
    assert (answer.status, answer.code) == (404, "not_found")
    assert f"{method} {target}" in answer.json["error"]["message"]


def test_method_not_allowed_lists_the_allowed_methods(cluster: Cluster) -> None:
    # Two routes share the path: PUT and GET.
    answer = call(cluster.app, "DELETE", "/api/v1/objects/a/b", token=USER)
    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, PUT"
    assert "GET, PUT" in answer.json["error"]["message"]


def test_openapi_describes_error_answers(cluster: Cluster) -> None:
    document = cluster.get("/openapi.json").json
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            for status in ("4XX", "5XX"):
                content = described["responses"][status]["content"]["application/json"]
                assert content["schema"] == {"$ref": "#/components/schemas/ErrorAnswer"}, (
                    path,
                    method,
                )


def test_unexpected_error_is_internal_without_details(tmp_path: Path) -> None:
    answer = call(build_app_with_notes(tmp_path), "GET", "/api/v1/broken")
    assert (answer.status, answer.code) == (500, "internal")
    assert b"canary" not in answer.body
    assert answer.headers["x-request-id"] in answer.json["error"]["message"]


def test_error_details_omit_empty_fields() -> None:
    details = [Detail("a.b", "wrong", line=3), Detail("c", "missing", hint="add it")]
    answer = error_response(RequestError(Code.CONFLICT, "no", details))
    assert answer.status_code == 409
    assert answer.body == (
        b'{"error":{"code":"conflict","message":"no","details":['
        b'{"path":"a.b","message":"wrong","line":3},'
        b'{"path":"c","message":"missing","hint":"add it"}]}}'
    )


def test_error_codes_have_the_documented_statuses() -> None:
    assert {code.value: STATUS_BY_CODE[code] for code in Code} == {
        "unauthenticated": 401,
        "forbidden": 403,
        "not_found": 404,
        "method_not_allowed": 405,
        "conflict": 409,
        "too_large": 413,
        "invalid": 422,
        "rate_limited": 429,
        "internal": 500,
        "unavailable": 503,
    }
