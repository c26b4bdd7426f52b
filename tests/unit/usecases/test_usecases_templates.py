"""Templates: storage, use in configurations, ownership, secrets and limits."""

from functools import partial
from typing import Any

import pytest

from control_plane.access.principals import Principal, Role
from control_plane.errors import Code, RequestError
from control_plane.state.memory import MemoryTable
from control_plane.state.table import StateTable
from control_plane.usecases.templates import (
    BYTES_MAX,
    TemplateRecord,
    delete_template,
    load_template,
    put_template,
)
from simulator.faults.table_faults import InterleavingTable
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import NOW_MS, TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call

TEXT = "# for all of us\nmax_restarts: 2\nlabels: [ours]\n"
SECRET = "checkpoint_storage: {type: s3, bucket: b, secret_key: canary-5f1c}\n"


def put(
    cluster: Cluster, name: str, config: object, *, role: Role = Role.USER, key: str | None = None
) -> Answer:
    headers = [] if key is None else [("idempotency-key", key)]
    path, content = f"{V1}/templates/{name}", {"config": config}
    return call(cluster.app, "PUT", path, token=TOKENS[role], headers=headers, content=content)


def request_template(
    cluster: Cluster, method: str, name: str = "", role: Role = Role.USER
) -> Answer:
    path = f"{V1}/templates/{name}" if name else f"{V1}/templates"
    return call(cluster.app, method, path, token=TOKENS[role])


def problems(answer: Answer) -> list[dict[str, Any]]:
    assert (answer.status, answer.code) == (422, "invalid"), answer.body
    return list(answer.json["error"]["details"])


def test_template_is_stored_shown_and_listed(cluster: Cluster) -> None:
    answer = put(cluster, "base", TEXT)
    expected = {
        "name": "base",
        "config": TEXT,
        "created_ms": NOW_MS,
        "updated_ms": NOW_MS,
        "user": "user-1",
    }
    assert (answer.status, answer.json) == (200, expected)
    assert request_template(cluster, "GET", "base").json == expected
    assert request_template(cluster, "GET").json == {"items": [expected], "next_cursor": None}


@pytest.mark.parametrize("is_deletion", [False, True], ids=["replace", "delete"])
def test_change_does_not_reach_a_template_that_was_created_again(is_deletion: bool) -> None:
    table = MemoryTable()
    first, second = (Principal(user, Role.USER) for user in ("first", "second"))

    def store(caller: Principal, at_ms: int, through: StateTable = table) -> TemplateRecord:
        template = TemplateRecord("base", TEXT, "", at_ms, at_ms, caller.user)
        return put_template(through, template, caller, lambda stored: ())

    def create_again() -> None:
        delete_template(table, "base", first, lambda stored: ())
        store(second, NOW_MS + 1)

    store(first, NOW_MS)
    racing = InterleavingTable(table, create_again)
    change = partial(delete_template, racing, "base", first, lambda stored: ())
    if not is_deletion:
        change = partial(store, first, NOW_MS + 2, racing)
    with pytest.raises(RequestError) as refused:
        change()
    assert refused.value.code is Code.FORBIDDEN
    template = load_template(table, "base")
    assert template is not None
    assert template.user == "second"


def test_replacing_changes_only_text_and_time(cluster: Cluster) -> None:
    put(cluster, "base", TEXT)
    cluster.clock.ms += 1_000
    assert put(cluster, "base", TEXT).json["updated_ms"] == NOW_MS
    changed = put(cluster, "base", "max_restarts: 3\n", role=Role.ADMIN).json
    assert changed["config"] == "max_restarts: 3\n"
    assert (changed["created_ms"], changed["updated_ms"]) == (NOW_MS, NOW_MS + 1_000)
    assert changed["user"] == "user-1"


def test_deleted_template_is_not_found(cluster: Cluster) -> None:
    stored = put(cluster, "base", TEXT).json
    assert request_template(cluster, "DELETE", "base").json == stored
    for method in ("GET", "DELETE"):
        answer = request_template(cluster, method, "base")
        assert (answer.status, answer.code) == (404, "not_found")
    assert request_template(cluster, "GET").json["items"] == []


def test_configuration_overrides_the_template(cluster: Cluster) -> None:
    put(cluster, "base", TEXT + "resources: {slots_per_trial: 2}\n")
    answer = cluster.create(CONFIG + "labels: [mine]\n", template="base")
    assert answer.status == 201, answer.body
    config = cluster.get("/experiments/1").json["config"]
    assert config["max_restarts"] == 2
    assert config["resources"]["slots_per_trial"] == 2
    assert config["labels"] == ["mine", "ours"]
    # The experiment keeps the template's values.
    request_template(cluster, "DELETE", "base")
    assert cluster.get("/experiments/1").json["config"]["max_restarts"] == 2


def test_overrides_take_precedence_over_template(cluster: Cluster) -> None:
    put(cluster, "base", TEXT)
    cluster.create(CONFIG, template="base", overrides=["max_restarts=7"])
    assert cluster.get("/experiments/1").json["config"]["max_restarts"] == 7


@pytest.mark.parametrize("name", ["none", "", "../x", "a" * 100])
def test_unknown_template_is_named(cluster: Cluster, name: str) -> None:
    (problem,) = problems(cluster.create(CONFIG, template=name))
    assert problem["path"] == "template"
    assert problem["message"] == f"there is no template {name!r:.80} here"


def test_problem_names_line_of_template_or_configuration(cluster: Cluster) -> None:
    put(cluster, "base", "# one\nmax_restarts: -1\n")
    found = problems(cluster.create(CONFIG + "scheduling_unit: 0\n", template="base"))
    mine, ours = found
    # CONFIG has an empty line and 6 more lines.
    assert (mine["path"], mine["line"]) == ("scheduling_unit", 8)
    assert (ours["path"], ours.get("line")) == ("max_restarts", None)
    assert ours["hint"] == "on line 2 of the template"


@pytest.mark.parametrize(
    ("text", "line", "path"),
    [
        ("[]", 1, ""),
        ("a: 1\nb: [", 2, ""),
        ("a: !!python/name:os.system ''", 1, "a"),
        ("a: 1\na: 2", 1, "a"),
        ("a: &x [*x]", 1, "a[0]"),
    ],
)
def test_rejects_invalid_template_with_the_line(
    cluster: Cluster, text: str, line: int, path: str
) -> None:
    answer = put(cluster, "base", text)
    (problem,) = problems(answer)
    assert (problem["path"], problem["line"]) == (path, line)
    assert answer.json["error"]["message"] == "the template is not valid"
    assert request_template(cluster, "GET", "base").status == 404


def test_template_size_is_limited(cluster: Cluster) -> None:
    assert put(cluster, "base", "#" + "x" * (BYTES_MAX - 1)).status == 200
    assert put(cluster, "base", "#" + "x" * BYTES_MAX).status == 422
    # Each letter takes two bytes.
    answer = put(cluster, "base", "#" + "é" * (BYTES_MAX // 2))
    assert (answer.status, answer.code) == (413, "too_large")


@pytest.mark.parametrize("role", [Role.USER, Role.ADMIN])
def test_largest_template_fits_into_rows(cluster: Cluster, role: Role) -> None:
    # A quotation mark takes two bytes in a reply, four in an answer. A secret adds a second text.
    quotes = '"' * (BYTES_MAX - 100)
    text = f"{SECRET}x: '{quotes}'\n"
    first = put(cluster, "base", text, role=role, key="k1")
    assert first.status == 200, first.body
    assert put(cluster, "base", text, role=role, key="k1").body == first.body
    headers = [("idempotency-key", "k2")]
    path = f"{V1}/templates/base"
    answer = call(cluster.app, "DELETE", path, token=TOKENS[role], headers=headers)
    assert (answer.status, answer.json["config"]) == (200, text)


@pytest.mark.parametrize("name", ["a" * 65, "a b", "a%2Fb", "ä", "a;b"])
def test_rejects_invalid_names(cluster: Cluster, name: str) -> None:
    assert put(cluster, name, TEXT).status in (404, 422)
    assert request_template(cluster, "GET").json["items"] == []


@pytest.mark.parametrize("content", [{}, {"config": 1}, {"config": TEXT, "x": 1}, []])
def test_rejects_invalid_bodies(cluster: Cluster, content: object) -> None:
    path = f"{V1}/templates/base"
    answer = call(cluster.app, "PUT", path, token=TOKENS[Role.USER], content=content)
    assert answer.status == 422


def test_rejects_template_change_by_other_users(cluster: Cluster) -> None:
    put(cluster, "base", TEXT, role=Role.ADMIN)
    answer = put(cluster, "base", "max_restarts: 9\n")
    assert (answer.status, answer.code) == (403, "forbidden")
    assert "template base belongs to admin-1" in answer.json["error"]["message"]
    assert request_template(cluster, "DELETE", "base").status == 403
    assert cluster.create(CONFIG, template="base").status == 201


def test_secrets_are_shown_to_owner_and_admins_only(cluster: Cluster) -> None:
    put(cluster, "mine", SECRET)
    put(cluster, "theirs", SECRET, role=Role.ADMIN)
    assert request_template(cluster, "GET", "mine").json["config"] == SECRET
    assert request_template(cluster, "GET", "mine", Role.ADMIN).json["config"] == SECRET
    shown = request_template(cluster, "GET", "theirs").json["config"]
    assert "canary" not in shown
    assert "'********'" in shown
    listed = {
        item["name"]: item["config"] for item in request_template(cluster, "GET").json["items"]
    }
    assert listed == {"mine": SECRET, "theirs": shown}


def test_list_has_pages(cluster: Cluster) -> None:
    for number in range(5):
        put(cluster, f"t{number}", TEXT)
    path = f"{V1}/templates?limit=2"
    names, cursor = [], ""
    while cursor is not None:
        after = f"&cursor={cursor}" if cursor else ""
        page = call(cluster.app, "GET", path + after, token=TOKENS[Role.USER]).json
        names.append([item["name"] for item in page["items"]])
        cursor = page["next_cursor"]
    assert names == [["t0", "t1"], ["t2", "t3"], ["t4"]]


def test_rejects_agent_tokens(cluster: Cluster) -> None:
    agent = Agent(cluster)
    for method in ("GET", "PUT", "DELETE"):
        path = f"{V1}/templates/base"
        assert call(cluster.app, method, path, token=agent.token).status == 403


def test_rejects_replacement_of_an_older_version(cluster: Cluster) -> None:
    def put_if(config: str, expected: int) -> Answer:
        content = {"config": config, "expected_updated_ms": expected}
        path = f"{V1}/templates/base"
        return call(cluster.app, "PUT", path, token=TOKENS[Role.USER], content=content)

    first = put_if("max_restarts: 1\n", 0)
    assert first.status == 200
    again = put_if("max_restarts: 2\n", 0)
    assert (again.status, again.code) == (409, "conflict")
    assert "there is a template base already" in again.json["error"]["message"]
    # The clock stands still, but the stored time increases.
    second = put_if("max_restarts: 3\n", first.json["updated_ms"])
    assert second.json["updated_ms"] == first.json["updated_ms"] + 1
    late = put_if("max_restarts: 4\n", first.json["updated_ms"])
    assert (late.status, late.code) == (409, "conflict")
    request_template(cluster, "DELETE", "base")
    gone = put_if("max_restarts: 5\n", second.json["updated_ms"])
    assert "was deleted in the meantime" in gone.json["error"]["message"]
