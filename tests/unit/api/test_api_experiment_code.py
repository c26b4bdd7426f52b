"""The model code of an experiment as files: listed in pages, and read by path."""

import asyncio
import hashlib
import tarfile
from pathlib import Path
from urllib.parse import quote

import pytest
from anyio import to_thread

from control_plane.access.principals import Role
from control_plane.objects.store import model_code_key
from tests.patience import ANSWER_SECONDS_MAX
from tests.unit.api.agent_side import CONFIG
from tests.unit.api.cluster import TOKENS, Cluster, archive, archive_of
from tests.unit.api.exchange import HOST, Answer, exchange
from tests.unit.api.slow_objects import with_slow_objects

CODE = "/experiments/1/code"
CANARY = '<img src=x onerror="alert(1)">.py'


def submit(cluster: Cluster, content: bytes) -> None:
    """Submit an experiment with an unchecked archive, as after an upload to a bucket."""
    digest = hashlib.sha256(content).hexdigest()
    cluster.objects.put(model_code_key(digest), content)
    # The submission looks for no file of this entrypoint in the code.
    config = CONFIG.replace("python train.py", "./train.sh")
    created = cluster.post("/experiments", {"config": config, "model_code": digest})
    assert (created.status, created.json["code_sha256"]) == (201, digest)


def read_file(cluster: Cluster, path: str) -> Answer:
    return cluster.get(f"{CODE}/file?path={quote(path, safe='')}")


def test_files_are_listed_page_by_page_and_read(cluster: Cluster) -> None:
    names = ["model.py", f"net/{CANARY}", "net/a b.py", "net/ä.py", "weights"]
    submit(cluster, archive_of(*((name, name.encode()) for name in names[:4]), ("weights", b"\0")))
    listed: list[str] = []
    cursor = ""
    while cursor is not None:
        page = cluster.get(f"{CODE}?limit=2{cursor and f'&cursor={cursor}'}").json
        listed += [item["path"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert listed == names
    for name in names[:4]:
        file = read_file(cluster, name).json
        assert (file["path"], file["text"]) == (name, name)
        assert (file["is_text"], file["is_truncated"]) == (True, False)
        assert file["size"] == len(name.encode())
    weights = read_file(cluster, "weights").json
    assert (weights["is_text"], weights["text"], weights["is_truncated"]) == (False, None, False)
    assert weights["sha256"] == hashlib.sha256(b"\0").hexdigest()


def test_long_text_is_truncated(cluster: Cluster) -> None:
    lines = "".join(f"x = {n}\n" for n in range(150_000))
    submit(cluster, archive("long.py", lines.encode()))
    file = read_file(cluster, "long.py").json
    assert (file["text"], file["is_truncated"]) == (lines[: 2**20], True)
    assert (file["size"], file["is_text"]) == (len(lines), True)


@pytest.mark.parametrize(
    "path", ["net", "../model.py", "/model.py", "./model.py", "model.py/", "MODEL.py", "x\n"]
)
def test_path_that_names_no_file_is_not_found(cluster: Cluster, path: str) -> None:
    submit(cluster, archive_of(("model.py", b"1"), ("net/a.py", b"2")))
    answer = read_file(cluster, path)
    assert (answer.status, answer.code) == (404, "not_found")


def test_rejects_path_with_a_nul_character(cluster: Cluster) -> None:
    submit(cluster, archive_of(("model.py", b"1")))
    answer = read_file(cluster, "\0")
    assert (answer.status, answer.code) == (422, "invalid")


def test_path_is_required_and_at_most_1024_characters(cluster: Cluster) -> None:
    submit(cluster, archive())
    for query in ("", "?path=", f"?path={'x' * 1025}"):
        assert cluster.get(f"{CODE}/file{query}").status == 422


def test_missing_code_is_not_found(cluster: Cluster) -> None:
    assert cluster.get(CODE).status == 404
    assert read_file(cluster, "model.py").status == 404
    content = archive()
    submit(cluster, content)
    cluster.objects.delete(model_code_key(hashlib.sha256(content).hexdigest()))
    answer = cluster.get(CODE)
    assert (answer.status, answer.code) == (404, "not_found")
    assert "no longer stored here" in answer.json["error"]["message"]


def test_invalid_stored_archive_is_a_conflict_with_the_reason(cluster: Cluster) -> None:
    link = tarfile.TarInfo("model.py")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    submit(cluster, archive_of((link, b"")))
    for answer in (cluster.get(CODE), read_file(cluster, "model.py")):
        assert (answer.status, answer.code) == (409, "conflict")
        assert "'model.py': links are not accepted" in answer.json["error"]["message"]


def test_slow_archive_read_blocks_only_uncached_reads(cluster: Cluster, tmp_path: Path) -> None:
    cluster, objects = with_slow_objects(cluster, tmp_path / "slow")
    submit(cluster, archive())
    assert cluster.get(CODE).status == 200
    for name in ("a", "b", "c"):
        submit(cluster, archive(name))
    objects.is_slow = True
    headers = [("host", HOST), ("authorization", f"Bearer {TOKENS[Role.USER]}")]

    async def ask() -> tuple[Answer, list[Answer]]:
        # A single thread serves answers: an archive read in this thread would block all answers.
        to_thread.current_default_thread_limiter().total_tokens = 1
        slow = [
            asyncio.create_task(
                exchange(cluster.app, "GET", f"/api/v1/experiments/{n}/code", headers)
            )
            for n in (2, 3, 4)
        ]
        await asyncio.to_thread(objects.is_called.wait, ANSWER_SECONDS_MAX)
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            kept = await exchange(cluster.app, "GET", f"/api/v1{CODE}", headers)
        objects.may_end.set()
        return kept, [await task for task in slow]

    kept, slow = asyncio.run(ask())
    assert [item["path"] for item in kept.json["items"]] == ["model.py"]
    assert [answer.json["items"][0]["path"] for answer in slow] == ["a", "b", "c"]
