import threading

from pydantic_core import to_json

from control_plane.engine import due_rows
from control_plane.engine.actor_types import parse_json
from control_plane.engine.engine import Engine
from control_plane.state.table import Key, Put
from tests.engine_timing import UNHURRIED
from tests.unit.api.agent_side import CONFIG
from tests.unit.api.cluster import NOW_MS, Cluster
from tests.unit.api.exchange import Answer

ROW = Key("idempotency#user-1", "I#abc")
DAY_MS = 24 * 3600 * 1000


def test_repeated_request_gets_the_stored_answer(cluster: Cluster) -> None:
    first = cluster.create(CONFIG, key="abc")
    cluster.post("/experiments/1/pause", {})
    second = cluster.create(CONFIG, key="abc")
    assert (second.status, second.body) == (201, first.body)
    assert len(cluster.get("/experiments").json["items"]) == 1


def test_rejects_key_of_a_different_request(cluster: Cluster) -> None:
    cluster.create(CONFIG, key="abc")
    other_body = cluster.create(CONFIG + "labels: [a]\n", key="abc")
    other_path = cluster.post("/experiments/1/pause", {}, key="abc")
    for answer in (other_body, other_path):
        assert (answer.status, answer.code) == (409, "conflict")
    assert cluster.get("/experiments/1").json["state"] == "ACTIVE"


def test_repeated_command_takes_effect_once(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    paused = cluster.post("/experiments/1/pause", {}, key="k1")
    cluster.post("/experiments/1/activate", {}, key="k2")
    again = cluster.post("/experiments/1/pause", {}, key="k1")
    assert again.body == paused.body
    assert cluster.get("/experiments/1").json["state"] == "ACTIVE"


def test_concurrent_repetitions_take_effect_once(cluster: Cluster) -> None:
    answers: list[Answer] = []
    start = threading.Barrier(8)

    def ask() -> None:
        start.wait()
        answers.append(cluster.create(CONFIG, key="abc"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status for answer in answers] == [201] * 8
    assert len({answer.body for answer in answers}) == 1
    assert len(cluster.get("/experiments").json["items"]) == 1


def test_concurrent_different_requests_all_take_effect(cluster: Cluster) -> None:
    answers: list[Answer] = []
    threads = [
        threading.Thread(target=lambda n=n: answers.append(cluster.create(CONFIG, key=f"k{n}")))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.json["id"] for answer in answers) == list(range(1, 9))


def test_lost_answer_is_rebuilt_without_repeating_the_effect(cluster: Cluster) -> None:
    cluster.create(CONFIG, key="abc")
    table = cluster.services.table
    row = table.get(ROW)
    assert row is not None
    fields = parse_json(row.body)
    del fields["answer"]
    table.commit((Put(ROW, row.revision, to_json(fields), row.revision, row.due_ms),))
    again = cluster.create(CONFIG, key="abc")
    assert (again.status, again.json["id"]) == (201, 1)
    assert len(cluster.get("/experiments").json["items"]) == 1


def test_key_expires_after_a_day(cluster: Cluster) -> None:
    cluster.create(CONFIG, key="abc")
    table = cluster.services.table
    due_rows.process_due_rows(Engine(table, lambda: NOW_MS + DAY_MS - 1, UNHURRIED))
    assert table.get(ROW) is not None
    due_rows.process_due_rows(Engine(table, lambda: NOW_MS + DAY_MS, UNHURRIED))
    assert table.get(ROW) is None
    assert cluster.create(CONFIG, key="abc").json["id"] == 2


def test_refused_request_stores_no_key(cluster: Cluster) -> None:
    assert cluster.create("nonsense: 1", key="abc").status == 422
    assert cluster.create(CONFIG, key="abc").status == 201


def test_rejects_invalid_key(cluster: Cluster) -> None:
    for key in ("", "x" * 129, "a\tb"):
        answer = cluster.create(CONFIG, key=key)
        assert answer.json["error"]["details"][0]["path"] == "Idempotency-Key", key
