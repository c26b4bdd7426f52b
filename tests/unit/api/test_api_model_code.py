import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread

from control_plane.access.principals import Role
from control_plane.api.routes.model_code import ARCHIVE_BYTES_MAX
from control_plane.objects.store import ObjectKey
from tests.patience import ANSWER_SECONDS_MAX
from tests.unit.api.cluster import NOW_MS, TOKENS, Cluster, archive
from tests.unit.api.exchange import HOST, Answer, call, exchange
from tests.unit.api.slow_objects import with_slow_objects

USER = TOKENS[Role.USER]
PATH = "/api/v1/model-code"


def offer(cluster: Cluster, content: bytes) -> Answer:
    digest = hashlib.sha256(content).hexdigest()
    return call(
        cluster.app, "POST", PATH, token=USER, content={"sha256": digest, "size": len(content)}
    )


def upload(cluster: Cluster, content: bytes) -> Answer:
    request = offer(cluster, content).json["upload"]
    headers = request["headers"].items()
    return call(cluster.app, request["method"], request["path"], headers=headers, body=content)


def test_model_code_is_offered_uploaded_and_fetched(cluster: Cluster) -> None:
    content = archive()
    digest = hashlib.sha256(content).hexdigest()
    answer = offer(cluster, content)
    assert answer.json["needed"] is True
    assert answer.json["upload"]["method"] == "PUT"
    assert answer.json["upload"]["expires_ms"] == NOW_MS + 15 * 60 * 1000
    assert upload(cluster, content).status == 204
    for role in (Role.USER, Role.ADMIN, Role.AGENT):
        fetched = call(cluster.app, "GET", f"{PATH}/{digest}", token=TOKENS[role])
        assert (fetched.status, fetched.body) == (200, content)
    assert fetched.headers["content-length"] == str(len(content))
    assert fetched.headers["content-disposition"] == "attachment"


def test_stored_model_code_needs_no_upload(cluster: Cluster) -> None:
    upload(cluster, archive())
    assert offer(cluster, archive()).json == {"needed": False, "upload": None}


def test_upload_may_be_repeated(cluster: Cluster) -> None:
    content = archive()
    request = offer(cluster, content).json["upload"]
    for _ in range(2):
        assert call(cluster.app, "PUT", request["path"], body=content).status == 204


@pytest.mark.parametrize("name", ["../model.py", "/etc/passwd", "a\\b"])
def test_unsafe_archive_is_not_stored(cluster: Cluster, name: str) -> None:
    content = archive(name)
    answer = upload(cluster, content)
    assert (answer.status, answer.code) == (422, "invalid")
    assert answer.json["error"]["details"][0]["path"] == name
    assert offer(cluster, content).json["needed"] is True


def test_upload_without_an_archive_is_not_stored(cluster: Cluster) -> None:
    answer = upload(cluster, b"print(1)\n")
    assert (answer.status, answer.code) == (422, "invalid")
    assert list(cluster.objects.list_objects(ObjectKey("model-code"))) == []
    assert offer(cluster, b"print(1)\n").json["needed"] is True


def test_too_large_archive_is_refused_at_the_offer(cluster: Cluster) -> None:
    content = {"sha256": "0" * 64, "size": ARCHIVE_BYTES_MAX + 1}
    answer = call(cluster.app, "POST", PATH, token=USER, content=content)
    assert (answer.status, answer.code) == (413, "too_large")
    assert ".detignore" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ({"sha256": "0" * 63, "size": 1}, "sha256"),
        ({"sha256": "G" * 64, "size": 1}, "sha256"),
        ({"sha256": "../" + "0" * 61, "size": 1}, "sha256"),
        ({"sha256": "0" * 64 + "\n", "size": 1}, "sha256"),
        ({"sha256": "0" * 64, "size": 0}, "size"),
        ({"sha256": "0" * 64, "size": "1"}, "size"),
        ({"sha256": "0" * 64}, "size"),
        ({"sha256": "0" * 64, "size": 1, "key": "x"}, "key"),
    ],
)
def test_rejects_invalid_offers(cluster: Cluster, content: object, path: str) -> None:
    answer = call(cluster.app, "POST", PATH, token=USER, content=content)
    assert answer.code == "invalid"
    assert [detail["path"] for detail in answer.json["error"]["details"]] == [path]


def test_unknown_model_code_is_not_found(cluster: Cluster) -> None:
    answer = call(cluster.app, "GET", f"{PATH}/{'0' * 64}", token=USER)
    assert (answer.status, answer.code) == (404, "not_found")


@pytest.mark.parametrize("name", ["..", "%2e%2e", "x" * 64, "%2e%2e%2fobjects"])
def test_path_without_a_digest_is_refused(cluster: Cluster, name: str) -> None:
    assert call(cluster.app, "GET", f"{PATH}/{name}", token=USER).status in (404, 422)


def test_slow_archive_check_blocks_no_other_request(cluster: Cluster, tmp_path: Path) -> None:
    # The thread that checks an archive also stores the archive.
    cluster, objects = with_slow_objects(cluster, tmp_path / "slow")
    contents = [archive(f"{n}.py") for n in range(3)]
    paths = [offer(cluster, content).json["upload"]["path"] for content in contents]
    host, token = ("host", HOST), ("authorization", f"Bearer {USER}")
    objects.is_slow = True

    async def ask() -> tuple[Answer, list[Answer]]:
        # A single thread serves answers: a check in this thread would block all answers.
        to_thread.current_default_thread_limiter().total_tokens = 1
        uploads = [
            asyncio.create_task(
                exchange(
                    cluster.app, "PUT", path, [host, ("content-length", str(len(body)))], [body]
                )
            )
            for path, body in zip(paths, contents, strict=True)
        ]
        await asyncio.to_thread(objects.is_called.wait, ANSWER_SECONDS_MAX)
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            answer = await exchange(cluster.app, "GET", "/api/v1/experiments", [host, token])
        objects.may_end.set()
        return answer, [await upload for upload in uploads]

    answer, uploads = asyncio.run(ask())
    assert answer.status == 200
    assert [upload.status for upload in uploads] == [204, 204, 204]


def send_code(cluster: Cluster, content: bytes, digest: str = "", **options: Any) -> Answer:
    """Upload an archive through the API, without a signed address."""
    path = f"/api/v1/model-code/{digest or hashlib.sha256(content).hexdigest()}"
    return call(cluster.app, "PUT", path, body=content, **({"token": USER} | options))


def test_small_archive_is_uploaded_through_the_api(cluster: Cluster) -> None:
    content = archive("mine.py")
    assert send_code(cluster, content).status == 204
    assert send_code(cluster, content).status == 204
    assert offer(cluster, content).json["needed"] is False


def test_upload_through_the_api_is_checked(cluster: Cluster) -> None:
    content = archive("mine.py")
    assert send_code(cluster, content, "0" * 64).code == "invalid"
    for hostile in (archive("../up.py"), archive("a/../../b.py"), b"no archive"):
        assert send_code(cluster, hostile).code == "invalid"
        assert offer(cluster, hostile).json["needed"] is True
    assert send_code(cluster, content, token=TOKENS[Role.AGENT]).status == 403
    assert send_code(cluster, content, token=None).status == 401
    large = [("content-length", str(4 * 1024 * 1024 + 1))]
    refused = send_code(cluster, content, headers=large)
    assert (refused.status, refused.bytes_taken) == (413, 0)
