"""Names, paths, keys and cursors with a special meaning in another layer.

Each is refused or names no object, and reaches neither a file nor another list.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from control_plane.access.principals import Role
from control_plane.queries.pages import encode_cursor
from tests.thinning import every
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call
from tests.unit.api.test_api_owners import WEBHOOK

CANARY = "canary-file-6d1b"
UUID = "0000000a-0000-4000-8000-000000000001"

# As in the target of a request.
TRICKS = {
    "up": "..",
    "up encoded": "%2e%2e",
    "up encoded twice": "%252e%252e",
    "up and down": "..%2f..%2f..%2f..%2fcanary",
    "up and down plainly": "../../../../canary",
    "up twice encoded": "%252e%252e%252fcanary",
    "up with a parameter": "..;/..;/canary",
    "up with backslashes": "..%5c..%5ccanary",
    "here": ".",
    "absolute": "%2fetc%2fpasswd",
    "absolute plainly": "//etc/passwd",
    "a drive": "C:%5cwindows",
    "a share": "%5c%5chost%5cshare",
    "a file": "file:%2f%2f%2fetc%2fpasswd",
    "NUL": "canary%00.json",
    "a newline": "a%0a",
    "a header": "a%0d%0aX-Injected:%20yes",
    "a parameter": "a;b=c",
    "overlong dots": "%c0%ae%c0%ae%c0%af",
    "wide dots": "%ef%bc%8e%ef%bc%8e%ef%bc%8f",
    "dot leaders": "%e2%80%a5%e2%88%95",
    "no UTF-8": "%ff%fe",
    "half a surrogate": "%ed%a0%80",
    "turned round": "%e2%80%ae7",
    "a wide digit": "%ef%bc%97",
    "an Arabic digit": "%d9%a7",
    "a superscript": "%c2%b2",
    "a zero": "0",
    "leading zeros": "007",
    "a sign": "+7",
    "negative": "-7",
    "an exponent": "1e3",
    "a fraction": "7.0",
    "hexadecimal": "0x7",
    "an underscore": "1_0",
    "a space": "%207%20",
    "huge": "9" * 40,
    "long": "a" * 5_000,
    "home": "~root",
    "a wildcard": "*",
    "a pattern": "%25",
    "a range": "7%23",
    "a sort key": "trial%237",
    "a query": "7%3fx=1",
}
# Characters that a name of a template or an agent may have stand for themselves.
PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


@pytest.fixture
def full(cluster: Cluster, tmp_path: Path) -> Cluster:
    """Return a cluster with two experiments with data, a model, a webhook and an unrelated file."""
    for n in range(6):
        (tmp_path / Path(*["x"] * n)).mkdir(exist_ok=True)
    (tmp_path / "canary").write_text(CANARY)
    for _ in range(2):
        assert cluster.create(CONFIG).status == 201
    agent = Agent(cluster)
    (first, second) = agent.take_work()
    for allocation in (first, second):
        agent.report(allocation, *[metrics(n, loss=1.0 / n) for n in range(1, 6)])
        agent.report(allocation, *[metrics(n, "a#~/..", loss=1.0) for n in range(1, 4)])
        agent.log(allocation, 0, "a line\n" * 10)
    assert cluster.post("/models", {"name": "1"}).status == 201
    assert cluster.post("/webhooks", WEBHOOK).status == 201
    return cluster


def routes(cluster: Cluster) -> Iterator[tuple[str, str, list[str]]]:
    """Yield method, path and parameter names of every route with parameters in the path."""
    paths = cluster.get("/openapi.json").json["paths"]
    for path, methods in paths.items():
        names = re.findall(r"\{(\w+)\}", path)
        for method in methods.keys() & {"get", "post", "put", "patch", "delete"}:
            if names:
                yield method.upper(), path, names


def token_for(method: str, path: str) -> str:
    return TOKENS[Role.AGENT if path.endswith("/sync") else Role.ADMIN]


def assert_unharmed(answer: Answer, request: object) -> None:
    assert answer.status in (200, 204, 401, 403, 404, 405, 422), (
        request,
        answer.status,
        answer.body,
    )
    assert CANARY.encode() not in answer.body, request
    assert b"root:" not in answer.body, request
    assert "x-injected" not in {name.lower() for name in answer.headers}
    assert "\n" not in "".join(answer.headers.values())


@pytest.mark.parametrize("trick", every(3, TRICKS))
def test_tricks_in_a_path_stay_within_the_route(full: Cluster, trick: str, tmp_path: Path) -> None:
    before = sorted(path for path in tmp_path.rglob("*") if "cluster" not in path.parts)
    experiments = full.get("/experiments").json
    for method, path, names in routes(full):
        for name in names:
            target = path.replace(f"{{{name}}}", TRICKS[trick])
            target = re.sub(r"\{\w+\}", "1", target)
            content = {"config": "max_restarts: 1"} if method == "PUT" else None
            answer = call(full.app, method, target, token=token_for(method, path), content=content)
            assert_unharmed(answer, (method, path, name))
            if not PLAIN.fullmatch(TRICKS[trick]):
                assert answer.status != 200, (method, path, name)
    assert full.get("/experiments").json == experiments
    assert sorted(path for path in tmp_path.rglob("*") if "cluster" not in path.parts) == before


@pytest.mark.parametrize(
    "value",
    [
        "..",
        "../../canary",
        "/etc/passwd",
        "%2e%2e",
        "..\\..\\canary",
        "\\\\host\\share",
        "a\x00b",
        "a\nb",
        "\u202e",
        "\uff0e\uff0e",
        "a" * 100_000,
        "",
        " ",
        "trial#7",
        "experiment#1#x",
        "trial#0x7",
        "trial#\u0667",
        "pool#default",
        "checkpoints#a",
        "tokens",
        "~",
        "'; drop table rows; --",
        "{{7*7}}",
        "${jndi:ldap://x}",
        "<script>",
        "=1+1",
        "*",
        "%",
    ],
    ids=lambda value: repr(value)[:30],
)
def test_tricks_in_a_query_reach_no_file(full: Cluster, value: str) -> None:
    paths = full.get("/openapi.json").json["paths"]
    for path, methods in paths.items():
        for parameter in methods.get("get", {}).get("parameters", ()):
            if parameter["in"] != "query":
                continue
            target = re.sub(r"\{\w+\}", "1", path)
            needed = "group=training&" if path.endswith("/series") else ""
            query = f"?{needed}{parameter['name']}={quote(value, safe='')}"
            answer = call(full.app, "GET", target + query, token=TOKENS[Role.ADMIN])
            assert_unharmed(answer, (path, parameter["name"]))


@pytest.mark.parametrize(
    "value", ["", "..", "../a", "A" * 64, "0" * 63, "0" * 64 + "\n", "０" * 64]
)
def test_malformed_digests_are_refused(full: Cluster, value: str) -> None:
    offered = full.post("/model-code", {"sha256": value, "size": 10})
    assert (offered.status, offered.code) == (422, "invalid")
    created = full.post("/experiments", {"config": CONFIG, "model_code": value})
    assert (created.status, created.code) == (422, "invalid")


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ("checkpoint_storage: {type: shared_fs, host_path: ../x}", "host_path"),
        (
            "checkpoint_storage: {type: shared_fs, host_path: /x, storage_path: ../../etc}",
            "storage",
        ),
        ('checkpoint_storage: {type: shared_fs, host_path: "/x\\0"}', "host_path"),
        ("checkpoint_storage: {type: directory, container_path: x/..}", "container_path"),
        ("resources: {resource_pool: ../default}", "resource_pool"),
        ('resources: {resource_pool: "default\\0"}', "resource_pool"),
        ("resources: {resource_pool: 'default#1'}", "resource_pool"),
        ("bind_mounts: [{host_path: etc, container_path: x}]", "host_path"),
    ],
)
def test_paths_and_names_of_a_configuration_are_checked(
    full: Cluster, section: str, field: str
) -> None:
    answer = full.create(f"{CONFIG}{section}\n")
    assert (answer.status, answer.code) == (422, "invalid")
    error = answer.json["error"]
    assert field in error["message"] + " ".join(detail["path"] for detail in error["details"])


@pytest.mark.parametrize("source", ["..", "%", "0000000", "~", "a/b", UUID + "0", "\x00", "_"])
def test_malformed_source_checkpoint_is_refused(full: Cluster, source: str) -> None:
    config = CONFIG.replace("name: random,", f"name: random, source_checkpoint_uuid: {source!r},")
    answer = full.create(config)
    assert (answer.status, answer.code) == (422, "invalid")


def lists(cluster: Cluster) -> list[str]:
    """Return every GET route with a cursor, filled in for experiment and trial 1."""
    paths = cluster.get("/openapi.json").json["paths"]
    return [
        re.sub(r"\{\w+\}", "1", path)
        for path, methods in paths.items()
        if any(
            parameter["name"] in ("cursor", "after")
            for parameter in methods.get("get", {}).get("parameters", ())
        )
        # These cursors are plain numbers without hidden content. The cursor of a checkpoint's files
        # needs a stored checkpoint, see test_queries_checkpoint_files.
        and not path.endswith(("/logs", "/searcher-events", "/files"))
    ]


def cursor_parameter(path: str) -> str:
    return "after" if path.endswith("/trials/1/logs/lines") else "cursor"


def page(cluster: Cluster, path: str, cursor: str | None = None, limit: int = 1) -> Answer:
    name = cursor_parameter(path)
    query = f"?limit={limit}" + (f"&{name}={cursor}" if cursor else "")
    return call(cluster.app, "GET", path + query, token=TOKENS[Role.USER])


def content_of(cursor: str) -> list[Any]:
    padded = cursor + "=" * (-len(cursor) % 4)
    content: list[Any] = json.loads(base64.urlsafe_b64decode(padded))
    return content


HOSTILE: dict[type, list[Any]] = {
    int: [-1, -(10**12), 10**15, 10**30, True, 1.5, "1", None, [], float("nan")],
    str: ["", "~", "\x7f", "\x00", "#", "..", "R#", "\u202e", "9" * 300, 7, None, "0.0.0", "-5"],
}


def test_cursor_of_a_list_is_refused_by_other_lists(full: Cluster) -> None:
    cursors = {}
    for path in lists(full):
        found = page(full, path).json["next_cursor"]
        if found is not None:
            cursors[path] = found
    assert len(cursors) >= 5, sorted(cursors)
    for path in lists(full):
        for other, cursor in cursors.items():
            same = content_of(cursor)[0] == content_of(cursors.get(path, cursor))[0]
            answer = page(full, path, cursor)
            if other == path:
                assert answer.status == 200
            elif not same:
                assert (answer.status, answer.code) == (422, "invalid"), (path, other)


def test_forged_cursor_shows_no_other_data_and_is_not_slow(full: Cluster) -> None:
    for path in lists(full):
        everything = page(full, path, limit=500).json["items"]
        real = page(full, path).json["next_cursor"]
        if real is None:
            continue
        kind, *position = content_of(real)
        for place, value in enumerate(position):
            for forged in HOSTILE[type(value)]:
                changed = [*position[:place], forged, *position[place + 1 :]]
                began = time.process_time()
                answer = page(full, path, encode_cursor(kind, tuple(changed)), limit=5)
                assert time.process_time() - began < 3, (path, changed)
                assert answer.status in (200, 422), (path, changed, answer.body)
                if answer.status == 200:
                    shown = answer.json["items"]
                    assert all(item in everything for item in shown), (path, changed)


@pytest.mark.parametrize(
    "cursor",
    ["", "%00", "a", "====", "WyJhIl0", "W10", "bnVsbA", "eyJhIjoxfQ", "W1tbW1tb", "a" * 1024],
)
def test_malformed_cursor_is_refused(full: Cluster, cursor: str) -> None:
    for path in lists(full):
        name = cursor_parameter(path)
        answer = call(full.app, "GET", f"{path}?{name}={cursor}", token=TOKENS[Role.USER])
        assert (answer.status, answer.code) == (422, "invalid"), path


def test_cursor_of_an_experiment_shows_no_data_in_a_second_experiment(full: Cluster) -> None:
    for name in ("trials", "history", "replay", "checkpoints"):
        mine = f"{V1}/experiments/1/{name}"
        theirs = f"{V1}/experiments/2/{name}"
        cursor = page(full, mine).json["next_cursor"]
        if cursor is None:
            continue
        allowed = page(full, theirs, limit=500).json["items"]
        answer = page(full, theirs, cursor, limit=5)
        assert answer.status in (200, 422)
        if answer.status == 200:
            assert all(item in allowed for item in answer.json["items"])


@pytest.mark.parametrize(
    "actor", ["trial#3", "experiment#2", "trial#01x", "pool#default", "agent#node", "trial#"]
)
def test_history_accepts_only_actors_of_the_experiment(full: Cluster, actor: str) -> None:
    # Trials 3 and 4 belong to experiment 2.
    answer = full.get(f"/experiments/1/history?actor={quote(actor)}")
    assert answer.status in (404, 422)


@pytest.mark.parametrize("key", ["\x00", "", " ", "a" * 129, "\u00e9" * 200, "a\tb", "\x7f"])
def test_malformed_idempotency_key_is_refused(full: Cluster, key: str) -> None:
    headers = [("idempotency-key", key.encode().decode("latin-1"))]
    answer = call(
        full.app, "POST", f"{V1}/tokens", token=TOKENS[Role.USER], headers=headers, content={}
    )
    assert answer.status in ((201,) if key == " " else (422,)), answer.body
