"""History and replay over HTTP: sentences, order, pages and secrets."""

from dataclasses import replace
from typing import Any, get_args

import pytest

from control_plane.actors.messages.experiment import (
    CollectionEnded,
    CostCheckDue,
    DurationEnded,
    SettingsChanged,
    TrialMetered,
    TrialPlaced,
    TrialSignaled,
    TrialValidationReported,
    WaitEnded,
)
from control_plane.actors.messages.experiment_events import (
    BestValidationDue,
    DeadlineNear,
    TrialAlerted,
    TrialLogMatched,
    WebhooksChanged,
)
from control_plane.actors.messages.experiment_expiry import ExpiryDue, ExpiryRequested
from control_plane.actors.messages.experiment_use import TrialUsedLittle
from control_plane.actors.messages.pool import (
    BudgetChecked,
    PatienceEnded,
    QuietHoursChecked,
    SupplyChecked,
)
from control_plane.actors.messages.trial import TrialMoved
from control_plane.actors.messages.trial_expiry import DataExpired
from control_plane.actors.records import DataRetention
from control_plane.actors.step import StepContext
from control_plane.actors.trial.state import TrialState
from control_plane.engine.actor_types import ACTOR_TYPES
from control_plane.evolve import evolve
from control_plane.queries import history as views
from control_plane.queries.pages import encode_cursor
from control_plane.queries.sentences.context import SentenceContext
from control_plane.queries.sentences.registry import SENTENCES, sentence
from control_plane.scheduling.quiet_hours import QuietPeriod
from control_plane.state.table import Expect, Key, Put
from tests.changed_actors import change_actor_type
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import Cluster, limit_queries
from tests.unit.api.table_decorators import recorded_table

LIST = "/experiments/1/history"


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    """An agent that runs trials 1 and 2 of experiment 1."""
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    return agent


def texts(cluster: Cluster, query: str = "") -> list[str]:
    return [item["text"] for item in cluster.get(f"{LIST}?limit=500{query}").json["items"]]


def fail(agent: Agent, allocation: str) -> None:
    exited = {"kind": "exited", "reason": "errored", "code": 1, "message": "Traceback:\n  boom"}
    agent.report(allocation, exited, writer="agent")


def test_messages_of_actors_have_sentences() -> None:
    kinds = {message for kind in ACTOR_TYPES.values() for message in get_args(kind.message_union)}
    assert {kind.__name__ for kind in kinds - set(SENTENCES)} == set()
    assert {kind.__name__ for kind in set(SENTENCES) - kinds} == set()


def test_history_shows_an_experiment_from_start_to_end(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    cluster.post("/experiments/1/pause", {})
    cluster.post("/experiments/1/activate", {})
    for allocation in agent.known:
        agent.finish(allocation)
    cluster.post("/experiments/1/kill", {})
    sentences = texts(cluster, "&actor=experiment%231")
    assert sentences[0] == "submitted by user-1 as 'digits': a random search for loss"
    assert sentences[1:3] == ["paused by user-1", "activated by user-1"]
    last = cluster.get(f"{LIST}?actor=experiment%231").json["items"][-1]
    assert last["actor"] == "experiment#1"
    assert last["text"] == "killed by user-1"


def test_history_shows_restart_with_reason(cluster: Cluster, agent: Agent) -> None:
    fail(agent, "1.1")
    events = cluster.get(f"{LIST}?actor=trial%231").json["items"]
    [exit_] = [event for event in events if "failed" in event["text"]]
    assert exit_["text"] == "allocation 1.1 failed: exit code 1, boom"
    # The default of max_restarts is 5.
    assert exit_["reasons"] == ["restart 1 of 5"]
    assert events[0]["text"].startswith("trial 1 created with x=0.")
    assert events[0]["text"].endswith("; to train to 10 batches")


def test_history_shows_validation_values(cluster: Cluster, agent: Agent) -> None:
    agent.report("1.1", metrics(10, "validation", loss=0.25))
    agent.report("1.1", {"kind": "completed", "length": 10, "metric": 0.25})
    sentences = texts(cluster)
    assert "trial 1 validated at 10 batches: loss 0.25" in sentences
    assert "trial 1 reached 10 batches with loss 0.25" in sentences
    alone = texts(cluster, "&trials=false")
    assert "trial 1 reached 10 batches with loss 0.25" in alone
    # Both journals have the two events; a merged history shows each event once.
    assert len([text for text in sentences if "loss 0.25" in text]) == 2


def test_history_shows_missing_searcher_metric(cluster: Cluster, agent: Agent) -> None:
    lack = "batch 10 lacks the searcher's metric 'loss'"
    agent.report("1.1", {"kind": "completed", "length": 10, "metric": None, "message": lack})
    experiment = cluster.get("/experiments/1").json
    assert experiment["state"] == "STOPPING_ERROR"
    assert experiment["message"] == f"trial 1: {lack}"
    reached = f"trial 1 reached 10 batches without the searcher's metric: {lack}"
    assert reached in texts(cluster)


def test_history_merges_trials_and_experiment(cluster: Cluster, agent: Agent) -> None:
    fail(agent, "2.1")
    actors = {item["actor"] for item in cluster.get(LIST).json["items"]}
    assert actors == {"experiment#1", "trial#1", "trial#2"}
    own = cluster.get(f"{LIST}?trials=false").json["items"]
    assert {item["actor"] for item in own} == {"experiment#1"}


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_have_no_gaps_and_no_repeats(cluster: Cluster, agent: Agent, order: str) -> None:
    for n in range(1, 4):
        agent.report("1.1", metrics(n, "validation", loss=n), metrics(n, "validation", loss=n + 1))
    fail(agent, "2.1")
    whole = cluster.get(f"{LIST}?limit=500&order={order}").json
    assert whole["next_cursor"] is None
    if order == "desc":
        assert whole["items"] == cluster.get(f"{LIST}?limit=500").json["items"][::-1]
    for limit in (1, 2, 3, 7):
        listed: list[Any] = []
        cursor = ""
        while True:
            page = cluster.get(f"{LIST}?limit={limit}&order={order}{cursor}").json
            assert len(page["items"]) <= limit
            listed += page["items"]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert listed == whole["items"]


def test_rejects_cursor_of_a_different_list(cluster: Cluster, agent: Agent) -> None:
    cursor = cluster.get(f"{LIST}?limit=1").json["next_cursor"]
    assert cluster.get(f"{LIST}?limit=1&cursor={cursor}").status == 200
    assert cluster.get(f"{LIST}?limit=1&actor=trial%231&cursor={cursor}").status == 422
    assert cluster.get(f"{LIST}?limit=1&order=desc&cursor={cursor}").status == 422
    assert cluster.get(f"/experiments/1/replay?cursor={cursor}").status == 422
    garbled = encode_cursor("history 1", ("1,x",))
    assert cluster.get(f"{LIST}?cursor={garbled}").status == 422


def test_rejects_actor_of_a_different_experiment(cluster: Cluster, agent: Agent) -> None:
    cluster.create(CONFIG)
    assert cluster.get("/experiments/9/history").status == 404
    assert cluster.get(f"{LIST}?actor=pool%23default").status == 422
    assert cluster.get(f"{LIST}?actor=trial%23x").status == 422
    assert cluster.get(f"{LIST}?actor=trial%23999").status == 404
    # Each experiment has two trials: trial 3 belongs to experiment 2.
    other = cluster.get(f"{LIST}?actor=trial%233")
    assert other.status == 404
    assert "not one of experiment 1" in other.json["error"]["message"]


def test_too_many_trials_are_not_merged(cluster: Cluster, agent: Agent) -> None:
    merged = cluster.get(f"{LIST}?limit=1").json
    cluster = limit_queries(cluster, merged_trials_max=1)
    actors = {item["actor"] for item in cluster.get(LIST).json["items"]}
    assert actors == {"experiment#1"}
    refused = cluster.get(f"{LIST}?trials=true")
    assert refused.status == 422
    assert "has 2 trials" in refused.json["error"]["message"]
    # The query ignores `trials` with an actor.
    assert cluster.get(f"{LIST}?trials=true&actor=experiment%231").status == 200
    # A cursor of the merged list continues with the experiment's own events.
    rest = cluster.get(f"{LIST}?cursor={merged['next_cursor']}").json
    own = cluster.get(LIST).json
    assert merged["items"] + rest["items"] == own["items"]


def test_page_reads_bounded_rows_of_a_long_history(cluster: Cluster, agent: Agent) -> None:
    for n in range(1, 40):
        agent.report("1.1", metrics(n, "validation", loss=n))
    with recorded_table(cluster) as table:
        cluster.get(f"{LIST}?limit=5&actor=experiment%231")
    # Entries with at most 5 events, and a row to see whether more follow.
    assert 0 < table.rows_read <= 10
    with recorded_table(cluster) as table:
        cluster.get(f"{LIST}?limit=5")
    # Two stretches of each of three journals, and a few other rows.
    assert 0 < table.rows_read <= (3 * 2 + 1) * views.STRETCH_ROWS


def test_unreadable_entry_hides_no_other_entry(cluster: Cluster, agent: Agent) -> None:
    key = Key("trial#1", "Z#000000000001")
    cluster.services.table.commit([Put(key, 1, b"garbled", Expect.ANYTHING)])
    sentences = texts(cluster, "&actor=trial%231")
    assert sentences[0] == "a journal entry that cannot be decoded"
    assert len(sentences) > 1
    renamed = b'{"v":2,"now":1,"f":1,"in":[],"command":[["TrialHatched",{}]],"out":{}}'
    cluster.services.table.commit([Put(key, 1, renamed, Expect.ANYTHING)])
    assert texts(cluster, "&actor=trial%231")[0].startswith("TrialHatched, which is not a message")


def test_history_shows_no_secrets(cluster: Cluster) -> None:
    secret = "canary-4711"
    config = f"""
{CONFIG}
environment: {{registry_auth: {{username: me, password: {secret}}}}}
data: {{token: {secret}}}
"""
    assert cluster.create(config).status == 201
    for path in (LIST, "/experiments/1/replay"):
        answer = cluster.get(path)
        assert answer.status == 200
        assert secret not in answer.body.decode()


def test_replay_finds_no_difference(cluster: Cluster, agent: Agent) -> None:
    fail(agent, "1.1")
    agent.finish("2.1")
    first = cluster.get("/experiments/1/replay?limit=2").json
    rest = cluster.get(f"/experiments/1/replay?cursor={first['next_cursor']}").json
    items = first["items"] + rest["items"]
    assert [item["actor"] for item in items] == ["experiment#1", "trial#1", "trial#2"]
    assert [item["difference"] for item in items] == [None] * 3
    assert all(item["complete"] and item["entries"] > 0 for item in items)


def test_replay_names_field_that_a_changed_rule_changes(
    cluster: Cluster, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(agent, "1.1")
    healthy = ACTOR_TYPES["trial"].step

    def forgetful(state: TrialState, message: Any, context: StepContext) -> Any:
        return evolve(healthy(state, message, context), restarts=0)

    change_actor_type(monkeypatch, "trial", step=forgetful)
    items = cluster.get("/experiments/1/replay").json["items"]
    assert [item["actor"] for item in items if item["difference"]] == ["trial#1"]
    difference = items[1]["difference"]
    assert difference["message"] == "AllocationExited"
    assert (difference["field"], difference["recorded"], difference["replayed"]) == (
        "restarts",
        1,
        0,
    )


@pytest.mark.parametrize(
    ("units", "metric", "text"),
    [
        (100.0, 0.93, "trial 7 validated at 100 batches: accuracy 0.93"),
        (2.5, None, "trial 7 validated at 2.5 batches: no finite accuracy"),
        (1.0, 1.5e-5, "trial 7 validated at 1 batch: accuracy 1.5e-05"),
    ],
)
def test_numbers_are_rounded(units: float, metric: float | None, text: str) -> None:
    context = SentenceContext("experiment#1", "", "accuracy", "batches", lambda number: number + 1)
    assert sentence(TrialValidationReported(6, units, metric), context) == text
    unknown = replace(context, trial_id=lambda number: None)
    assert sentence(TrialValidationReported(6, units, metric), unknown).startswith(
        "the trial with number 6"
    )


def max_cost_change(max_cost: float | None) -> SettingsChanged:
    return SettingsChanged(max_cost=max_cost, max_cost_given=True)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            SettingsChanged(workspace="Vision", project="Digits"),
            "changed by ana: workspace to 'Vision', project to 'Digits'",
        ),
        (SettingsChanged(metadata={"fold": 1}), "changed by ana: the metadata"),
    ],
)
def test_settings_sentence_lists_changes(message: object, text: str) -> None:
    context = SentenceContext("experiment#1", "ana", "accuracy", "batches", lambda n: n + 1)
    assert sentence(message, context) == text


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            TrialMetered(6, 1, 71_200, 3_600_000, 0, True),
            "trial 7 has cost $0.0712 and costs $3.60 an hour",
        ),
        (
            TrialMetered(6, 1, 12_400_000, 0, 0, True),
            "trial 7 has cost $12.40 and costs $0.00 an hour",
        ),
        (
            TrialMetered(6, 1, 12_400_000, 0, 0, False),
            "trial 7 has cost $12.40 and holds no slots",
        ),
        (CostCheckDue(), "a check of its cost is due"),
        (TrialPlaced(6, 0, 1), "trial 7 has slots, from which max_duration counts"),
        (DurationEnded(0), "the time of max_duration is over"),
        (DeadlineNear(0), "the deadline is near"),
        (BestValidationDue(), "webhooks may announce the newest best validation"),
        (
            TrialUsedLittle(6, "its slots computed 2.5 % of the last 60 min", False),
            "trial 7 uses too little: its slots computed 2.5 % of the last 60 min",
        ),
        (WebhooksChanged(), "a webhook for metrics was created or changed"),
        (TrialAlerted(6, "slow", "", "warn"), "trial 7 raised an alert (warn): slow"),
        (TrialLogMatched(9, "CUDA.*", "CUDA oom"), "the log of trial 9 matched CUDA.*"),
        (TrialSignaled(6, "CUDA OOM"), "the log of trial 7 shows CUDA OOM"),
        (
            CollectionEnded(1, expires_ms=5),
            "checkpoints marked for deletion were deleted; "
            "expired logs and metrics wait for the schedule",
        ),
        (ExpiryDue(), "the retention of logs or metrics may have ended"),
        (
            ExpiryRequested(DataRetention(7)),
            "deletion of expired logs and metrics requested by ana",
        ),
        (
            DataExpired(logs=True, metrics=True),
            "the retention of logs and detailed metrics has ended",
        ),
        (DataExpired(logs=False, metrics=True), "the retention of detailed metrics has ended"),
        (
            SettingsChanged(data_retention=DataRetention(1, -1)),
            "changed by ana: log retention to 1 day, metrics retention to no limit",
        ),
        (
            SettingsChanged(trial_log_days=(9, 30)),
            "changed by ana: log retention of trial 9 to 30 days",
        ),
        (BudgetChecked(True), "the budget is used up"),
        (BudgetChecked(False), "the budget is not used up"),
        (QuietHoursChecked((), ()), "the pool has no quiet hours"),
        (
            QuietHoursChecked((), (QuietPeriod(0, 3_600_000), QuietPeriod(7_200_000, 7_200_001))),
            "quiet hours from 1970-01-01 00:00 UTC until 1970-01-01 01:00 UTC",
        ),
        (max_cost_change(20), "changed by ana: max_cost to $20.00"),
        (max_cost_change(0.125), "changed by ana: max_cost to $0.1250"),
        (max_cost_change(1_234_567.5), "changed by ana: max_cost to $1234567.50"),
        (max_cost_change(None), "changed by ana: max_cost to no limit"),
    ],
)
def test_costs_are_shown_in_dollars(message: object, text: str) -> None:
    context = SentenceContext("experiment#1", "ana", "accuracy", "batches", lambda n: n + 1)
    assert sentence(message, context) == text


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (SupplyChecked("none", 1), "no instance can be launched now: none"),
        (SupplyChecked("", 0), "instances can be launched again"),
        (
            PatienceEnded(7, 1),
            "the job of experiment 7 has waited as long as its pool_patience allows",
        ),
        (
            WaitEnded("a", 0, 1, "no agents"),
            "can move from resource pool a to the next one: no agents",
        ),
        (TrialMoved("a"), "trial 7 will run in resource pool a"),
        (
            TrialMoved("a", keeps_slots=True),
            "trial 7 will run in resource pool a from its next run on",
        ),
    ],
)
def test_history_shows_moves_between_pools(message: object, text: str) -> None:
    context = SentenceContext("trial#7", "", "accuracy", "batches", lambda number: None)
    assert sentence(message, context) == text
