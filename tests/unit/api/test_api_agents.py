import json
import threading
import time
from dataclasses import replace
from typing import NoReturn

import pytest

from control_plane.access.principals import Role
from control_plane.actors import addresses
from control_plane.actors.agent.actor import leases_partition
from control_plane.actors.messages.agent import AgentDeclaredLost
from control_plane.agents.failed_syncs import FAILED_SYNC
from control_plane.agents.leases import FORGOTTEN_AFTER_MS, forget_lost_agents
from control_plane.agents.service import AgentService
from control_plane.api.app import create_app
from control_plane.api.routes.agents import HOLD_MS_MAX, SYNC_BYTES_MAX
from control_plane.fleet.notices import InstanceNotice, read_notices, record_notice
from control_plane.objects.store import model_code_key
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Expect, Key, Put
from lambdas.api_probe import PATH, REFUSED
from provisioner.engine_pools import EnginePools
from tests.patience import wait_until
from tests.unit.api.agent_side import CONFIG, Agent, enrol, metrics
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call

# A sync that takes longer was held until the timeout.
HELD_SECONDS_MAX = 0.75 * HOLD_MS_MAX / 1000


def nest(depth: int, leaf: object) -> object:
    """Return the leaf inside `depth` nested objects."""
    for _ in range(depth):
        leaf = {"a": leaf}
    return leaf


def test_enrolled_agent_gets_trials(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    answer = agent.sync().json
    assert set(answer) == {
        "acked",
        "logs_acked",
        "revision",
        "desired",
        "next_sync_ms",
        "lease_ms",
    }
    assert [entry["allocation"] for entry in answer["desired"]] == ["1.1", "2.1"]
    first = answer["desired"][0]
    assert (first["state"], first["slots"]) == ("run", [0])
    assert first["directives"] == {
        "revision": 1,
        "length": 10,
        "length_units": 10,
        "closed": True,
        "answered": 0,
        "best_validation": None,
        "preempt": None,
    }
    digest = cluster.store_code()
    code = first["code"]
    assert (code["sha256"], code["path"]) == (digest, f"{V1}/model-code/{digest}")
    assert code["size"] == cluster.objects.size(model_code_key(digest))
    spec = first["spec"]
    checkpoints = str(cluster.checkpoints)
    assert spec["storage"] == {"type": "directory", "path": checkpoints}
    assert spec["data_layer"] == {"type": "shared_fs"}
    assert spec["entrypoint"] == "python train.py"
    assert (spec["allocation_id"], spec["epoch"], spec["trial_id"]) == ("1.1", 1, 1)
    assert (spec["metric"], spec["smaller_is_better"]) == ("loss", True)
    assert 0 <= spec["trial_seed"] < 2**31
    assert call(cluster.app, "GET", code["path"], token=agent.token).status == 200


def test_agents_receive_the_best_validation_of_the_experiment(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    answer = agent.report("1.1", metrics(5, "validation", loss=0.25)).json
    best = [entry["directives"]["best_validation"] for entry in answer["desired"]]
    assert best == [0.25, 0.25]
    assert cluster.get("/experiments/1").json["best_metric"] == 0.25
    assert cluster.get("/trials/1").json["metric"] == 0.25


def test_agent_without_slots_gets_trials_without_slots(cluster: Cluster) -> None:
    agent = Agent(cluster, slots=0)
    cluster.create(CONFIG, overrides=["resources.slots_per_trial=0"])
    desired = agent.sync().json["desired"]
    assert [(item["allocation"], item["slots"]) for item in desired] == [("1.1", []), ("2.1", [])]


def test_join_token_enrols_in_the_named_pool_only(cluster: Cluster) -> None:
    assert enrol(cluster, "node", pool="gpus").status == 403
    answer = call(cluster.app, "GET", f"{V1}/experiments", token=TOKENS[Role.JOIN])
    assert answer.status == 403


@pytest.mark.parametrize("name", ["", "../x", "a b", "~brake", "x" * 64])
def test_rejects_invalid_agent_names(cluster: Cluster, name: str) -> None:
    assert enrol(cluster, name).status == 422


def test_rejects_too_large_slot_descriptions_and_names_the_limit(cluster: Cluster) -> None:
    # 1,024 slots with UUIDs and names of 40 bytes are far below 256 KiB; with 200 bytes, above.
    def enrol_with(length: int) -> Answer:
        slots = [
            {"id": n, "type": "cuda", "uuid": "u" * length, "name": "n" * length}
            for n in range(1024)
        ]
        body = {"name": "node", "resource_pool": "default", "slots": slots}
        return call(cluster.app, "POST", f"{V1}/agents", token=TOKENS[Role.JOIN], content=body)

    assert enrol_with(40).status == 200
    refused = enrol_with(200)
    assert (refused.status, refused.code) == (422, "invalid")
    assert "the limit is 262144" in refused.json["error"]["message"]


def test_agent_token_is_refused_on_routes_of_users_and_agents(cluster: Cluster) -> None:
    first, other = Agent(cluster, "one"), Agent(cluster, "other")
    body = {"epoch": 1}
    path = f"{V1}/agents/other/sync"
    assert call(cluster.app, "POST", path, token=first.token, content=body).status == 403
    assert call(cluster.app, "POST", path, token=other.token, content=body).status == 200
    for route in ("/experiments", "/agents", "/cluster"):
        assert call(cluster.app, "GET", V1 + route, token=first.token).status == 403
    assert call(cluster.app, "POST", f"{V1}/agents", token=first.token).status == 403


def test_lost_agent_gets_no_code_and_is_forgotten_after_a_day(cluster: Cluster) -> None:
    agent, digest = Agent(cluster), cluster.store_code()

    def status() -> int:
        path = f"{V1}/model-code/{digest}"
        return call(cluster.app, "GET", path, token=agent.token).status

    assert status() == 200
    cluster.services.engine.post_message(
        "agent#node", AgentDeclaredLost(agent.epoch), sender="test"
    )
    assert status() == 409
    lease = Key(leases_partition("default"), "node")
    lost = json.dumps({"epoch": 1, "renewed_ms": cluster.clock.ms, "lost": True}).encode()
    cluster.services.table.commit((Put(lease, 2, lost, Expect.ANYTHING),))
    cluster.clock.ms += FORGOTTEN_AFTER_MS + 1
    assert forget_lost_agents(cluster.services.engine, "default") == ("node",)
    assert status() == 401
    assert cluster.get("/agents").json["items"] == []


def test_second_enrolment_revokes_the_first_token_and_raises_the_epoch(cluster: Cluster) -> None:
    former = Agent(cluster)
    latter = Agent(cluster)
    assert (former.epoch, latter.epoch) == (1, 2)
    assert former.sync().status == 401
    assert latter.sync().status == 200


def test_probe_of_the_sync_route_is_refused(cluster: Cluster) -> None:
    assert call(cluster.app, "POST", PATH, content={}).status == REFUSED


class BrokenAgents(AgentService):
    """A service with an error in every sync."""

    def sync(self, *_: object) -> NoReturn:
        raise ZeroDivisionError


def test_records_internal_errors_of_syncs_but_no_refusals(cluster: Cluster) -> None:
    agent = Agent(cluster)
    agent.epoch += 1
    assert agent.sync().status == 409
    assert cluster.services.table.get(FAILED_SYNC) is None
    agent.epoch -= 1

    def never(*_: object) -> NoReturn:
        raise AssertionError("a broken sync stores nothing")

    broken = BrokenAgents(cluster.services.engine, never, never, never)
    services = replace(cluster.services, make_agents=lambda: broken)
    agent.app = create_app(services)
    assert agent.sync().status == 500
    assert cluster.services.table.get(FAILED_SYNC) is not None


def test_sync_with_an_older_epoch_is_a_conflict(cluster: Cluster) -> None:
    Agent(cluster)
    agent = Agent(cluster)
    agent.epoch = 1
    answer = agent.sync()
    assert (answer.status, answer.code) == (409, "conflict")


def test_tokens_are_stored_by_digest(cluster: Cluster) -> None:
    agent = Agent(cluster)
    stored = cluster.services.table.query("tokens", " ", "~").rows
    assert len(stored) == 1
    assert agent.token not in stored[0].key.sort + stored[0].body.decode()


def start_held_sync(agent: Agent, answers: list[tuple[float, Answer]]) -> threading.Thread:
    """Start a sync that the server holds; append the seconds and the answer to `answers`."""

    def ask() -> None:
        began = time.monotonic()
        answer = agent.sync(wait_ms=HOLD_MS_MAX)
        answers.append((time.monotonic() - began, answer))

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: agent.cluster.long_polls.watched_addresses(), what="a call that is held")
    return thread


def test_sync_is_held_until_a_trial_is_assigned(cluster: Cluster) -> None:
    agent = Agent(cluster)
    agent.sync()
    answers: list[tuple[float, Answer]] = []
    thread = start_held_sync(agent, answers)
    assert answers == []
    cluster.create(CONFIG)
    thread.join()
    [(seconds, answer)] = answers
    assert seconds < HELD_SECONDS_MAX
    assert answer.json["desired"] != []


def test_held_sync_returns_as_soon_as_a_trial_is_preempted(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    agent.sync()
    answers: list[tuple[float, Answer]] = []
    thread = start_held_sync(agent, answers)
    assert answers == []
    cluster.post("/experiments/1/pause", {})
    thread.join()
    [(seconds, answer)] = answers
    assert seconds < HELD_SECONDS_MAX
    assert answer.json["desired"][0]["directives"]["preempt"] is not None


def test_change_between_two_syncs_is_answered_without_a_wait(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    agent.sync()
    cluster.post("/experiments/1/pause", {})
    began = time.monotonic()
    answer = agent.sync(wait_ms=HOLD_MS_MAX)
    assert time.monotonic() - began < HELD_SECONDS_MAX
    assert answer.json["desired"][0]["directives"]["preempt"] is not None


def test_sync_with_reports_is_not_held(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    agent.sync()
    began = time.monotonic()
    assert agent.sync(wait_ms=HOLD_MS_MAX, more=True).status == 200
    assert time.monotonic() - began < HELD_SECONDS_MAX


def test_host_without_long_polls_returns_sync_intervals(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(replace(cluster, app=create_app(replace(cluster.services, long_polls=None))))
    began = agent.sync().json
    agent.known = [entry["allocation"] for entry in began["desired"]]
    steady = agent.sync(wait_ms=20_000).json
    assert (began["next_sync_ms"], began["patient_ms"]) == (1000, 36_000)
    assert 10_000 <= steady["next_sync_ms"] <= 15_000


def test_later_sync_ends_the_held_sync(cluster: Cluster) -> None:
    agent = Agent(cluster)
    agent.sync()
    answers: list[tuple[float, Answer]] = []
    thread = start_held_sync(agent, answers)
    agent.sync()
    thread.join()
    assert answers[0][0] < HELD_SECONDS_MAX


def test_registry_is_empty_after_a_held_sync(cluster: Cluster) -> None:
    agent = Agent(cluster)
    agent.sync()
    agent.sync(wait_ms=50)
    assert cluster.long_polls.watched_addresses() == frozenset()
    assert len(cluster.long_polls) == 0


def test_nan_and_infinity_are_returned_as_strings(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    agent.report("1.1", metrics(1, loss=float("nan"), deep=[float("inf")]))
    [item] = cluster.get("/trials/1/metrics").json["items"]
    assert item["metrics"] == {"loss": "NaN", "deep": ["Infinity"]}


def test_accepts_900_kib_of_metrics_in_one_sync(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    # 9 x 100 KiB is more than a row of 400 KiB, and less than a call of 1 MiB.
    lines = [metrics(n, text="x" * 100 * 1024) for n in range(9)]
    assert agent.report("1.1", *lines).status == 200
    items = cluster.get("/trials/1/metrics").json["items"]
    assert [item["steps_completed"] for item in items] == list(range(9))


@pytest.mark.parametrize(
    "fields",
    [
        {"epoch": "1"},
        {"known": ["1"]},
        {"known": ["0.1"]},
        {"known": ["1.1"] * 2001},
        {"reports": [{"allocation": "1.1", "writer": "a#b", "offset": 1, "line": {}}]},
        {"reports": [{"allocation": "1.1", "writer": "0", "offset": -1, "line": {}}]},
        {"reports": [{"allocation": "1.1", "writer": "0", "offset": 1, "line": []}]},
        {
            "reports": [
                {"allocation": f"{n}.1", "writer": "0", "offset": 1, "line": {}}
                for n in range(1, 32)
            ]
        },
    ],
)
def test_rejects_malformed_syncs(cluster: Cluster, fields: dict[str, object]) -> None:
    agent = Agent(cluster)
    answer = agent.sync(**fields)
    assert (answer.status, answer.code) == (422, "invalid")


@pytest.mark.parametrize(
    "value",
    [
        "\ud800",
        {"\ud800": 1},
        "x" * 2**18,
        [1e300] * 50_000,
        *(nest(depth, "NaN") for depth in (64, 150, 195, 199, 200, 230, 254, 260, 900)),
    ],
    ids=lambda value: f"{value!r:.20}",
)
def test_unstorable_line_is_dropped_and_other_lines_are_stored(
    cluster: Cluster, value: object
) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    deep = {"kind": "environment", "a": value}
    lines = [metrics(1, loss=0.5), deep, metrics(2, a=value), metrics(3, loss=0.25)]
    answer = agent.report("1.1", *lines)
    assert answer.status == 200
    assert answer.json["acked"]["1.1"]["0"] == agent.offsets["1.1", "0"]
    items = cluster.get("/trials/1/metrics").json["items"]
    assert [item["steps_completed"] for item in items] == [1, 3]
    assert cluster.get("/trials/1").json["environment"] is None


@pytest.mark.parametrize("depth", [60, 150, 196, 200, 230, 260])
def test_checkpoint_with_deep_metadata_blocks_no_trial_or_slot(
    cluster: Cluster, depth: int
) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    first, _ = agent.take_work()
    uuid = "0000000a-0000-4000-8000-000000000001"
    place = {"uuid": uuid, "path": f"1/1/1/{uuid}", "manifest_sha256": "0" * 64}
    sizes = {"size_bytes": 8, "files": 1, "steps_completed": 5}
    line = {"kind": "checkpoint", **place, **sizes, "metadata": nest(depth, "NaN")}
    assert agent.report(first, line).status == 200
    assert cluster.get(f"/checkpoints/{uuid}").status == (200 if depth == 60 else 404)
    agent.finish(first)
    assert cluster.get("/trials/1").json["state"] == "COMPLETED"
    agent.sync()
    slots = cluster.get("/agents").json["items"][0]["slots"]
    assert [slot["allocation"] for slot in slots].count(first) == 0


def test_exit_counts_although_the_message_is_unstorable(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    first, _ = agent.take_work()
    line = {"kind": "exited", "reason": "completed", "message": nest(200, "x")}
    assert agent.report(first, line, writer="agent").status == 200
    assert cluster.get("/trials/1").json["restarts"] == 1


def test_rejects_syncs_above_the_size_limit(cluster: Cluster) -> None:
    agent = Agent(cluster)
    body = json.dumps({"epoch": 1, "unknown": "x" * SYNC_BYTES_MAX}).encode()
    path = f"{V1}/agents/node/sync"
    assert call(cluster.app, "POST", path, token=agent.token, body=body).status == 413


def test_agent_is_told_to_forget_a_finished_trial(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    agent.finish("1.1")
    states = {e["allocation"]: e["state"] for e in agent.sync().json["desired"]}
    assert states == {"1.1": "forget", "2.1": "run"}
    assert cluster.get("/trials/1").json["state"] == "COMPLETED"


def test_sync_lists_ended_experiments_of_cached_ids(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    cluster.create(CONFIG)
    agent = Agent(cluster)
    assert agent.sync(cached=[1, 2, 9]).json["ended_experiments"] == [9]
    for allocation in ("1.1", "2.1"):
        agent.take_work()
        agent.finish(allocation)
    assert agent.sync(cached=[1, 2]).json["ended_experiments"] == [1]
    assert "ended_experiments" not in agent.sync().json


def test_notice_of_an_older_session_is_refused(cluster: Cluster) -> None:
    Agent(cluster)
    agent = Agent(cluster)
    agent.epoch = 1
    assert agent.sync(notice={"deadline_ms": 1_800_000_120_000}).status == 409
    assert not list(read_notices(cluster.services.table))


def test_trial_that_leaves_an_ending_machine_is_not_assigned_again(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    assert agent.take_work() == ["1.1", "2.1"]
    # The instance reported the notice first. The agent then sends notice and exit together.
    record_notice(cluster.services.table, InstanceNotice("node", 1_800_000_119_000), 1)
    ends = {"deadline_ms": 1_800_000_120_000}
    left = {"kind": "exited", "reason": "killed", "notice": "it is taken away"}
    report = {"allocation": "1.1", "writer": "agent", "offset": 90, "line": left}
    assert agent.sync(reports=[report], notice=ends).status == 200
    wanted = agent.sync().json["desired"]
    assert [item["allocation"] for item in wanted if item["state"] == "run"] == ["2.1"]
    # A notice without a deadline is advice: the provisioner decides.
    other = Agent(cluster, "other")
    other.sync(notice={})
    draining = {item["id"]: item["draining"] for item in cluster.get("/agents").json["items"]}
    assert draining == {"node": True, "other": False}


def test_repeated_notice_is_stored_once(cluster: Cluster) -> None:
    agent = Agent(cluster)
    for _ in range(2):
        assert agent.sync(notice={"deadline_ms": 1_800_000_120_000}).status == 200
    assert agent.sync(notice={}).status == 200
    assert list(read_notices(cluster.services.table)) == [
        InstanceNotice("node", 1_800_000_120_000),
        InstanceNotice("node"),
    ]


def test_agent_receives_notices_that_the_cluster_received(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    assert agent.take_work() == ["1.1", "2.1"]
    before = agent.sync().json
    assert "notice" not in before
    pools = EnginePools(cluster.services.engine)
    pools.drain_agent("node", 1_800_000_120_000)
    rows = list(read_rows(cluster.services.table, addresses.agent("node")))
    # A second call, as from each pass of the provisioner, writes no row.
    pools.drain_agent("node", 1_800_000_120_000)
    assert list(read_rows(cluster.services.table, addresses.agent("node"))) == rows != []
    after = agent.sync().json
    assert after["notice"]["deadline_ms"] == 1_800_000_120_000
    # The revision changes, so that a held sync returns; running trials continue until the deadline.
    assert after["revision"] != before["revision"]
    assert [entry["state"] for entry in after["desired"]] == ["run", "run"]
    # A new session runs on the same machine.
    assert "notice" in Agent(cluster).sync().json
