"""False claims of trials and agents in the agents' sync call.

No claim affects another trial's data or stops the call.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.actors import addresses
from control_plane.actors.trial.checkpoints import CHECKPOINTS
from control_plane.queries.metric_series_cache import MetricSeriesCache
from control_plane.queries.void_reports import RunCuts
from control_plane.state.table import Key
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import call

THEIRS = "0000000a-0000-4000-8000-000000000001"
OURS = "0000000b-0000-4000-8000-000000000002"


def checkpoint(
    allocation: str, uuid: str, experiment_id: int = 1, steps: int = 5, **fields: Any
) -> dict[str, Any]:
    """Return the report of a complete checkpoint, as the allocation's harness writes the line."""
    path = f"{experiment_id}/{allocation.replace('.', '/')}/{uuid}"
    line = {
        "kind": "checkpoint",
        "uuid": uuid,
        "steps_completed": steps,
        "path": path,
        "manifest_sha256": "0" * 64,
        "size_bytes": 8,
        "files": 1,
        "metadata": {},
        "time_ms": 1,
    }
    return {**line, **fields}


@pytest.fixture
def two(cluster: Cluster) -> tuple[Agent, str, str]:
    """Return an agent with two running trials: the victim and the attacker."""
    assert cluster.create(CONFIG).status == 201
    agent = Agent(cluster)
    first, second = agent.take_work()
    return agent, first, second


def trial_of(allocation: str) -> int:
    return int(allocation.partition(".")[0])


def test_checkpoint_cannot_be_claimed_by_a_second_trial(
    cluster: Cluster, two: tuple[Agent, str, str]
) -> None:
    agent, victim, thief = two
    assert agent.report(victim, checkpoint(victim, THEIRS)).status == 200
    before = cluster.get(f"/checkpoints/{THEIRS}").json
    stolen = checkpoint(thief, THEIRS, steps=9, metadata={"stolen": True})
    assert agent.report(thief, stolen).status == 200
    assert cluster.get(f"/checkpoints/{THEIRS}").json == before
    assert before["trial_id"] == trial_of(victim)
    assert cluster.get(f"/trials/{trial_of(thief)}/checkpoints").json["items"] == []
    assert cluster.get(f"/trials/{trial_of(thief)}").json["latest_checkpoint"] is None
    # The history of the trial has the reason of the refusal.
    history = cluster.get("/experiments/1/history").json["items"]
    texts = [line["text"] + " ".join(line["reasons"]) for line in history]
    assert any(f"checkpoint {THEIRS}" in line and "another trial" in line for line in texts)


def test_trial_continues_with_own_checkpoints_after_a_false_claim(
    cluster: Cluster, two: tuple[Agent, str, str]
) -> None:
    agent, victim, thief = two
    agent.report(victim, checkpoint(victim, THEIRS))
    agent.report(thief, checkpoint(thief, THEIRS), checkpoint(thief, OURS), checkpoint(thief, OURS))
    assert cluster.get(f"/trials/{trial_of(thief)}").json["latest_checkpoint"] == OURS
    assert cluster.get(f"/checkpoints/{OURS}").json["trial_id"] == trial_of(thief)
    agent.finish(thief)
    assert cluster.get(f"/trials/{trial_of(thief)}").json["state"] == "COMPLETED"


def test_checkpoint_that_two_trials_report_in_a_call_has_a_single_owner(
    cluster: Cluster, two: tuple[Agent, str, str]
) -> None:
    agent, one, other = two
    reports = [
        {"allocation": name, "writer": "0", "offset": 9, "line": checkpoint(name, THEIRS)}
        for name in (one, other)
    ]
    assert agent.sync(reports=reports).status == 200
    row = cluster.services.table.get(Key(CHECKPOINTS, THEIRS))
    assert row is not None
    owner = int(row.body)
    for trial_id in map(trial_of, (one, other)):
        part = cluster.services.engine.read_part(addresses.trial(trial_id), f"checkpoint/{THEIRS}")
        assert (part is not None) == (trial_id == owner)


def test_deleted_checkpoint_of_a_second_trial_cannot_be_claimed(
    cluster: Cluster, two: tuple[Agent, str, str]
) -> None:
    agent, victim, thief = two
    agent.report(victim, checkpoint(victim, THEIRS), checkpoint(victim, OURS, steps=6))
    path = f"{V1}/checkpoints/{THEIRS}"
    assert call(cluster.app, "DELETE", path, token=TOKENS[Role.USER]).status == 200
    agent.report(thief, checkpoint(thief, THEIRS))
    described = cluster.get(f"/checkpoints/{THEIRS}").json
    assert (described["trial_id"], described["state"]) == (trial_of(victim), "DELETING")


@pytest.mark.parametrize(
    "path",
    [
        "2/{own}/{uuid}",
        "01/{own}/{uuid}",
        "1/{other}/{uuid}",
        "1/{own}/../1/{uuid}",
        "/1/{own}/{uuid}",
        "1/{own}/{uuid}/..",
        "1/{own}/{uuid}\n",
        "1\\{own}\\{uuid}",
        "١/{own}/{uuid}",
        "",
    ],
)
def test_checkpoint_outside_the_trials_folder_is_ignored(
    cluster: Cluster, two: tuple[Agent, str, str], path: str
) -> None:
    agent, victim, thief = two
    places = {"own": thief.replace(".", "/"), "other": victim.replace(".", "/"), "uuid": OURS}
    line = checkpoint(thief, OURS, path=path.format(**places))
    assert agent.report(thief, line).status == 200
    assert cluster.get(f"/checkpoints/{OURS}").status == 404


def named_metrics(steps: int, values: dict[str, float]) -> dict[str, Any]:
    return {**metrics(steps), "metrics": values}


NAMES = {
    "control characters": "a\x00b\x1b[2J\r\n\x7f",
    "bidirectional": "\u202elr\u2066",
    "markup": "<img src=x onerror=alert(1)>",
    "formula": "=HYPERLINK(1)",
    "path": "../../../../etc/passwd",
    "sort keys": "R#~E#I#",
    "long": "n" * 200_000,
    "empty": "",
    "emoji": "😀" * 1000,
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_metric_with_an_odd_name_is_returned_as_json(
    cluster: Cluster, two: tuple[Agent, str, str], name: str
) -> None:
    agent, mine, _ = two
    assert agent.report(mine, named_metrics(1, {name: 0.5, "fine": 0.25})).status == 200
    path = f"/trials/{trial_of(mine)}/metrics"
    (found,) = cluster.get(path).json["items"]
    # Rows contain no NUL characters.
    name = name.replace("\0", "\ufffd")
    assert found["metrics"] == {name: 0.5, "fine": 0.25}
    names = [item["name"] for item in cluster.get(f"{path}/names").json["items"]]
    assert sorted(names) == sorted([name, "fine"])
    answer = cluster.get(f"{path}/series?group=training")
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.json["series"]) == 2


def test_flood_of_metric_names_is_limited(cluster: Cluster, two: tuple[Agent, str, str]) -> None:
    agent, mine, _ = two
    for round_ in range(4):
        lines = [
            named_metrics(
                n, {"fine": 1.0} | {f"{round_}-{n}-{name}": 1.0 for name in range(12_000)}
            )
            for n in range(4)
        ]
        assert agent.report(mine, *lines).status == 200
    # 4 calls of 4 lines of 12,000 new names: 192,000, of which 500 are kept.
    names = cluster.get(f"/trials/{trial_of(mine)}/metrics/names").json["items"]
    assert len(names) == 500
    assert next(item for item in names if item["name"] == "fine")["count"] == 16
    services, trial = cluster.services, int(trial_of(mine))
    numbers = MetricSeriesCache().draw_chart(
        services.table,
        services.objects,
        trial,
        "training",
        RunCuts(),
        lambda series: series.count_numbers(),
    )
    assert 500 <= numbers <= 16 + 16 * 500


def test_page_of_huge_reports_is_limited_by_size(
    cluster: Cluster, two: tuple[Agent, str, str]
) -> None:
    agent, mine, _ = two
    text = "x" * 200_000
    for n in range(10):
        lines = [metrics(4 * n + i, group="big", text=text, list=[text[:1000]]) for i in range(4)]
        assert agent.report(mine, *lines).status == 200
    seen, cursor, pages = [], "", 0
    while True:
        answer = cluster.get(f"/trials/{trial_of(mine)}/metrics?limit=500{cursor}")
        # 4 MiB, and the report that passed the limit.
        assert len(answer.body) < 4 * 2**20 + 256 * 1024
        seen += [item["steps_completed"] for item in answer.json["items"]]
        pages += 1
        if answer.json["next_cursor"] is None:
            break
        cursor = f"&cursor={answer.json['next_cursor']}"
    assert seen == list(range(40))
    # 40 x 201,000 bytes are 8.04 MB: two pages of 21 and 19.
    assert pages == 2


def rows(cluster: Cluster, trial_id: int, prefix: str) -> int:
    address = addresses.trial(trial_id)
    return len(cluster.services.table.query(address, f"{prefix}#", f"{prefix}~").rows)


def test_repeated_environment_reports_are_stored_once(
    cluster: Cluster, two: tuple[Agent, str, str]
) -> None:
    agent, mine, _ = two
    for n in range(5):
        line = {"kind": "environment", "hostname": f"h{n}", "packages": ["x" * 100_000]}
        assert agent.report(mine, line).status == 200
    assert rows(cluster, trial_of(mine), "E") == 1
    assert cluster.get(f"/trials/{trial_of(mine)}").json["environment"]["hostname"] == "h4"


def test_begun_checkpoint_stores_only_the_name(
    cluster: Cluster, two: tuple[Agent, str, str]
) -> None:
    agent, mine, _ = two
    intent = {"kind": "checkpoint_intent", "uuid": OURS, "path": "../..", "junk": "x" * 100_000}
    assert agent.report(mine, intent, {**intent, "uuid": "../.."}, {**intent, "uuid": 7}).status
    address = addresses.trial(trial_of(mine))
    (row,) = cluster.services.table.query(address, "I#", "I~").rows
    assert len(row.body) < 100


@pytest.mark.parametrize("steps", [-1, -(2**63), 2**53, 2**63, 10**30, 1.5, "1", None, True, []])
def test_malformed_step_counts_are_ignored(
    cluster: Cluster, two: tuple[Agent, str, str], steps: object
) -> None:
    agent, mine, _ = two
    lines = [
        {**metrics(1, "validation", loss=0.1), "steps_completed": steps},
        {**checkpoint(mine, OURS), "steps_completed": steps},
        {"kind": "completed", "length": steps, "metric": 0.1},
    ]
    assert agent.report(mine, *lines).status == 200
    trial = cluster.get(f"/trials/{trial_of(mine)}").json
    assert (trial["metric"], trial["latest_checkpoint"]) == (None, None)
    assert cluster.get(f"/trials/{trial_of(mine)}/metrics").json["items"] == []
    assert cluster.get("/experiments/1").json["trials"]["completed"] == 0


def test_huge_step_counts_harm_only_the_reporting_trial(
    cluster: Cluster, two: tuple[Agent, str, str]
) -> None:
    agent, mine, other = two
    huge = 2**53 - 1
    agent.report(mine, metrics(huge, loss=1.0), checkpoint(mine, OURS, steps=huge))
    agent.report(mine, {"kind": "completed", "length": huge, "metric": -1e308})
    agent.report(other, metrics(1, "validation", loss=0.5))
    agent.finish(other)
    assert cluster.get(f"/trials/{trial_of(other)}").json["state"] == "COMPLETED"
    assert cluster.get(f"/trials/{trial_of(mine)}").status == 200
    assert cluster.get("/experiments/1").status == 200


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "exited", "reason": "completed", "code": 0},
        {"kind": "container", "state": "RUNNING"},
        {"kind": "agent_warning", "message": "x" * 100_000},
        {"kind": ["exited"], "reason": "completed"},
        {"kind": {"a": 1}},
    ],
    ids=str,
)
@pytest.mark.parametrize("writer", ["0", "Agent", "agent_", "AGENT"])
def test_trial_cannot_write_lines_of_the_agent(
    cluster: Cluster, two: tuple[Agent, str, str], line: dict[str, Any], writer: str
) -> None:
    agent, mine, _ = two
    before = cluster.get(f"/trials/{trial_of(mine)}").json
    assert agent.report(mine, line, writer=writer).status == 200
    assert cluster.get(f"/trials/{trial_of(mine)}").json == before


def test_oversized_metadata_are_dropped_and_the_checkpoint_is_kept(
    cluster: Cluster, two: tuple[Agent, str, str]
) -> None:
    agent, mine, _ = two
    for n, metadata in enumerate([{"x": "y" * 100_000}, {"x" * 20_000: 1}], 1):
        uuid = f"0000000{n}-0000-4000-8000-000000000009"
        agent.report(mine, checkpoint(mine, uuid, metadata=metadata))
        answer = cluster.get(f"/checkpoints/{uuid}")
        assert answer.status == 200
        assert len(answer.body) < 20_000


def test_agent_reports_only_about_assigned_trials(
    cluster: Cluster, two: tuple[Agent, str, str]
) -> None:
    _, victim, _ = two
    stranger = Agent(cluster, "stranger")
    stranger.known = [victim]
    before = cluster.get(f"/trials/{trial_of(victim)}").json
    exited = {"kind": "exited", "reason": "completed", "code": 0}
    stranger.report(victim, metrics(5, "validation", loss=0.0), checkpoint(victim, THEIRS))
    stranger.report(victim, {"kind": "environment", "hostname": "mine"})
    stranger.report(victim, exited, writer="agent")
    stranger.log(victim, 0, "forged\n")
    assert cluster.get(f"/trials/{trial_of(victim)}").json == before
    assert cluster.get(f"/trials/{trial_of(victim)}/metrics").json["items"] == []
    assert cluster.get(f"/trials/{trial_of(victim)}/logs").json["text"] == ""
    assert cluster.get(f"/checkpoints/{THEIRS}").status == 404


def line(**fields: Any) -> dict[str, Any]:
    """Return a call with a line."""
    return {"reports": [{"allocation": "1.1", "writer": "0", "offset": 1, "line": {}, **fields}]}


def text(**fields: Any) -> dict[str, Any]:
    """Return a call with a piece of a log."""
    return {"logs": [{"allocation": "1.1", "offset": 0, "text": "x", **fields}]}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        (line(offset=-1), "offset"),
        (line(offset=2**64), "offset"),
        (line(offset="1"), "offset"),
        (line(writer="../0"), "writer"),
        (line(writer="0\n"), "writer"),
        (line(allocation="1.1#"), "allocation"),
        (line(allocation="01.1"), "allocation"),
        (line(allocation="١.1"), "allocation"),
        (line(allocation="1.1\n"), "allocation"),
        (line(line=[]), "line"),
        (text(offset=-5), "offset"),
        (text(text=5), "text"),
        (text(marks=[[1]]), "marks"),
        ({"known": ["1.1"] * 2001}, "known"),
        ({"known": ["../1"]}, "known"),
        ({"epoch": 0}, "epoch"),
        ({"epoch": True}, "epoch"),
        ({"wait_ms": 10**9}, "wait_ms"),
        ({"seen": -1}, "seen"),
    ],
    ids=str,
)
def test_invalid_field_of_a_call_is_refused_by_name(
    two: tuple[Agent, str, str], fields: dict[str, Any], path: str
) -> None:
    agent, _, _ = two
    answer = agent.sync(**fields)
    assert (answer.status, answer.code) == (422, "invalid")
    assert any(path in detail["path"] for detail in answer.json["error"]["details"])


def test_repeated_and_unordered_offsets_count_once(
    cluster: Cluster, two: tuple[Agent, str, str]
) -> None:
    agent, mine, _ = two
    offsets = [10, 10, 5, 30, 20, 30, 2**53]
    reports = [
        {"allocation": mine, "writer": "0", "offset": offset, "line": metrics(n, loss=n)}
        for n, offset in enumerate(offsets)
    ]
    answer = agent.sync(reports=reports)
    assert answer.json["acked"][mine] == {"0": 2**53}
    items = cluster.get(f"/trials/{trial_of(mine)}/metrics").json["items"]
    # Of 10, 10, 5, 30, 20, 30 and the last, only growing offsets count: 10, 30 and the last.
    assert [item["steps_completed"] for item in items] == [0, 3, 6]
    agent.sync(logs=[{"allocation": mine, "offset": 7, "text": "behind a gap"}])
    agent.sync(logs=[{"allocation": mine, "offset": 0, "text": "ab"}] * 3)
    agent.sync(logs=[{"allocation": mine, "offset": 1, "text": "bc\ud800"}])
    text = cluster.get(f"/trials/{trial_of(mine)}/logs").json["text"]
    assert text.startswith("abc")
    assert "gap" not in text


@pytest.mark.parametrize(
    "body",
    [
        b'{"epoch": 1, "logs": [{"allocation": "1.1", "offset": 0, "text": "\xff\xfe"}]}',
        b"\xff\xfe{\x00}\x00",
        b"\x00" * 100,
        b'{"epoch": 1' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    ],
    ids=["no UTF-8", "UTF-16", "NUL", "a long number", "open lists", "deep maps"],
)
def test_malformed_body_of_a_call_is_refused(two: tuple[Agent, str, str], body: bytes) -> None:
    agent, _, _ = two
    headers = [("content-type", "application/json")]
    path = f"{V1}/agents/{agent.name}/sync"
    answer = call(agent.cluster.app, "POST", path, token=agent.token, headers=headers, body=body)
    assert (answer.status, answer.code) == (422, "invalid")


def test_call_over_a_limit_is_refused_completely(
    cluster: Cluster, two: tuple[Agent, str, str]
) -> None:
    agent, mine, _ = two
    line = metrics(1, loss=1.0)
    many = [
        {"allocation": f"{n}.1", "writer": "0", "offset": 1, "line": line} for n in range(1, 32)
    ]
    assert agent.sync(reports=many).status == 422
    wide = [{"allocation": mine, "writer": "0", "offset": 1, "line": {"x": "y" * 200_000}}] * 6
    assert agent.sync(reports=wide).status == 413
    assert cluster.get(f"/trials/{trial_of(mine)}/metrics").json["items"] == []


def test_invented_writers_are_refused_before_the_session_is_full(
    cluster: Cluster, two: tuple[Agent, str, str]
) -> None:
    agent, mine, other = two
    answer = agent.sync()
    for n in range(12):
        reports = [
            {"allocation": mine, "writer": f"{n}-{i:028d}", "offset": 1, "line": {}}
            for i in range(8_000)
        ]
        answer = agent.sync(reports=reports)
        if answer.status != 200:
            break
    assert (answer.status, answer.code) == (422, "invalid")
    assert "writers" in answer.json["error"]["message"]
    # The agent's other trials are unaffected.
    agent.finish(other)
    assert cluster.get(f"/trials/{trial_of(other)}").json["state"] == "COMPLETED"


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[m" * 66,
        " " * 190,
        "\x1b[1m \x1b[m" * 20,
        "a - " * 48,
        "2020-01-01 " + "- " * 90,
        "[" * 190,
    ],
    ids=["colours", "blanks", "both", "names", "dashes", "brackets"],
)
def test_log_with_costly_patterns_is_read_quickly(
    cluster: Cluster, two: tuple[Agent, str, str], text: str
) -> None:
    agent, mine, _ = two
    agent.log(mine, 0, f"{text}\n" * 2_500)
    began = time.process_time()
    for query in ("", "?level=ERROR", "?search=nothing"):
        answer = cluster.get(f"/trials/{trial_of(mine)}/logs/lines{query}")
        assert answer.status == 200
    # 3 x 2,500 lines; in the worst case a line took 70 ms.
    assert time.process_time() - began < 10
