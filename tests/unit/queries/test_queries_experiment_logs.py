"""Log lines of all trials of an experiment, and log lines around an offset."""

from typing import Any

import pytest

from control_plane.agents.log_slices import LOOKUPS_MAX
from control_plane.agents.logs import TrialLogs
from control_plane.agents.sessions import LogChunk
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import Cluster
from tests.unit.api.table_decorators import recorded_table


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    """An agent that runs trials 1 and 2 of experiment 1."""
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    return agent


def log(agent: Agent, allocation: str, *lines: tuple[int, str]) -> None:
    """Report lines with their times, from the beginning of the allocation's log."""
    offset, text, marks = 0, "", []
    for time_ms, line in lines:
        marks.append([offset, time_ms])
        text += f"{line}\n"
        offset += len(line.encode()) + 1
    agent.sync(logs=[{"allocation": allocation, "offset": 0, "text": text, "marks": marks}])


def find(cluster: Cluster, query: str = "") -> dict[str, Any]:
    answer = cluster.get(f"/experiments/1/logs/lines?{query}")
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


def found_texts(answer: dict[str, Any]) -> list[str]:
    return [f"{item['trial_id']} {item['text']}" for item in answer["items"]]


def test_lines_of_all_trials_are_sorted_by_time(cluster: Cluster, agent: Agent) -> None:
    now_ms = cluster.services.now_ms()
    log(agent, "1.1", (now_ms, "a"), (now_ms + 3_000, "ERROR: d"))
    log(agent, "2.1", (now_ms + 1_000, "b"), (now_ms + 2_000, "[rank=1] c"))
    answer = find(cluster)
    assert found_texts(answer) == ["1 a", "2 b", "2 c", "1 ERROR: d"]
    assert answer["next_cursor"] is None
    assert answer["items"][3] == {
        "trial_id": 1,
        # "a" and its line break have two bytes.
        "offset": 2,
        "time_ms": now_ms + 3_000,
        "rank": 0,
        "level": "ERROR",
        "text": "ERROR: d",
    }


def test_conditions_narrow_the_lines_of_all_trials(cluster: Cluster, agent: Agent) -> None:
    now_ms = cluster.services.now_ms()
    log(agent, "1.1", (now_ms, "a"), (now_ms + 3_000, "ERROR: d"))
    log(agent, "2.1", (now_ms + 1_000, "b"), (now_ms + 2_000, "[rank=1] c"))
    assert found_texts(find(cluster, "trial=2")) == ["2 b", "2 c"]
    assert found_texts(find(cluster, "trial=2&trial=1&trial=1&level=ERROR")) == ["1 ERROR: d"]
    assert found_texts(find(cluster, "rank=1&rank=3")) == ["2 c"]
    period = f"since_ms={now_ms + 1_000}&until_ms={now_ms + 2_000}"
    assert found_texts(find(cluster, period)) == ["2 b", "2 c"]
    # A period long before the trials, and a period long after.
    assert found_texts(find(cluster, f"until_ms={now_ms - 10**7}")) == []
    assert found_texts(find(cluster, f"since_ms={now_ms + 10**7}")) == []


def test_pages_of_all_trials_continue_within_a_trial(cluster: Cluster, agent: Agent) -> None:
    now_ms = cluster.services.now_ms()
    log(agent, "1.1", *((now_ms + n, f"line {n}") for n in range(3)))
    log(agent, "2.1", (now_ms, "b"))
    pages = []
    # The second page has the rest of trial 1 and trial 2, sorted by time.
    query = "limit=2"
    while True:
        answer = find(cluster, query)
        pages.append(found_texts(answer))
        if answer["next_cursor"] is None:
            break
        query = f"limit=2&cursor={answer['next_cursor']}"
    assert pages == [["1 line 0", "1 line 1"], ["2 b", "1 line 2"]]


def test_lines_of_unknown_trials_are_refused(cluster: Cluster, agent: Agent) -> None:
    cluster.create(CONFIG)
    answer = cluster.get("/experiments/2/logs/lines?trial=1")
    assert answer.status == 422
    [detail] = answer.json["error"]["details"]
    assert (detail["path"], detail["message"]) == ("trial", "1 is not a trial of experiment 2")
    assert cluster.get("/experiments/9/logs/lines").status == 404
    for query in ("level=LOUD", "trial=0", "rank=-1", "cursor=x", "&".join(["trial=1"] * 101)):
        assert cluster.get(f"/experiments/1/logs/lines?{query}").status == 422


def test_lines_around_an_offset_are_read(cluster: Cluster, agent: Agent) -> None:
    text = "a\nb\nc\nd\n"
    agent.log("1.1", 0, text)
    last = cluster.get("/trials/1/logs/lines?before=1000&limit=2").json
    assert [item["text"] for item in last["items"]] == ["c", "d"]
    assert (last["previous"], last["size"], last["complete"]) == (4, 8, False)
    first = cluster.get("/trials/1/logs/lines?before=4").json
    assert [item["text"] for item in first["items"]] == ["a", "b"]
    assert first["previous"] is None
    # Offset 3 is the end of line b.
    middle = cluster.get("/trials/1/logs/lines?at=3&limit=1").json
    assert [item["text"] for item in middle["items"]] == ["c"]
    assert middle["previous"] == 4
    rest = cluster.get(f"/trials/1/logs/lines?after={last['next_cursor']}").json
    assert rest["items"] == []
    agent.log("1.1", len(text), "e\n")
    rest = cluster.get(f"/trials/1/logs/lines?after={last['next_cursor']}").json
    assert [item["text"] for item in rest["items"]] == ["e"]


def test_rejects_several_places_of_a_log(cluster: Cluster, agent: Agent) -> None:
    for query in ("at=1&before=2", "at=-1", "before=x"):
        assert cluster.get(f"/trials/1/logs/lines?{query}").status == 422


MANY = """
name: many
entrypoint: python train.py
searcher:
  name: random
  metric: loss
  max_length: {batches: 10}
  max_trials: 500
  max_concurrent_trials: 500
hyperparameters:
  x: {type: double, minval: 0, maxval: 1}
"""


def test_request_for_500_trials_has_bounded_costs(cluster: Cluster) -> None:
    assert cluster.create(MANY).status == 201
    logs = TrialLogs(cluster.services.table, cluster.services.objects)
    now_ms = cluster.services.now_ms()
    for trial in range(1, 501):
        chunk = LogChunk(f"{trial}.1", 0, b"line\n", ((0, now_ms),))
        cluster.services.table.commit([logs.store_chunk(trial, chunk)])
    found = set()
    query, requests = f"limit=500&since_ms={now_ms}", 0
    cursor = ""
    while cursor is not None:
        with recorded_table(cluster) as table:
            answer = find(cluster, query + cursor)
        # Each log costs a lookup, and the first and the last page of its chunks.
        assert table.calls["query"] <= 3 * LOOKUPS_MAX
        # At most 200 states of 100 a call, and the parts of the experiment.
        assert table.calls["get_many"] <= 4
        found |= {item["trial_id"] for item in answer["items"]}
        requests += 1
        cursor = answer["next_cursor"] and f"&cursor={answer['next_cursor']}"
    assert found == set(range(1, 501))
    assert requests <= 4
