"""Sentences on the activity of experiments, and the expected end."""

from dataclasses import replace
from typing import Any

import pytest

from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.records import JobKind, Status
from control_plane.queries.activity import activity_sentence, expected_end_ms
from control_plane.queries.conditions import experiment_condition
from control_plane.queries.job_counts import JobCounts
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import experiment_submitted, random_plan
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import Cluster


def experiment(**fields: Any) -> ExperimentState:
    """Return an active experiment with seven trials, six of which are open."""
    actor = ActorHarness("experiment#1")
    actor.deliver(experiment_submitted(random_plan(7)))
    assert isinstance(actor.state, ExperimentState)
    return replace(actor.state, **{"trials": 7, "trials_open": 6, "created_ms": 0, **fields})


def sentence(state: ExperimentState, running: int = 0, queued: int = 0) -> str:
    condition = experiment_condition(state.status, running=running, queued=queued)
    return activity_sentence(state, condition, JobCounts(running, queued))


@pytest.mark.parametrize(
    ("running", "queued", "text"),
    [
        (2, 0, "2 trials run, 4 wait for the search"),
        (1, 5, "1 trial runs, 5 wait for slots"),
        (0, 6, "6 trials wait for slots"),
        (0, 1, "1 trial waits for slots, 5 wait for the search"),
        (4, 1, "4 trials run, 1 waits for slots, 1 waits for the search"),
    ],
)
def test_sentence_counts_open_trials(running: int, queued: int, text: str) -> None:
    assert sentence(experiment(), running, queued) == text


def test_sentence_of_an_experiment_that_does_not_run() -> None:
    assert sentence(experiment(trials_open=0)) == "the search has no trials yet"
    paused = experiment(status=Status.PAUSED)
    assert sentence(paused) == "no trial runs: the experiment is paused"
    stopping = experiment(status=Status.STOPPING_CANCELED, trials_open=1)
    assert sentence(stopping) == "the last trials are ending: 1 trial"
    ended = experiment(status=Status.COMPLETED, trials_completed=5, trials_errored=2)
    assert sentence(ended) == "the experiment is over: 5 of 7 trials completed, 2 failed"


def test_end_is_expected_at_the_mean_pace() -> None:
    # A quarter took 1,000 ms, so three quarters take 3,000 ms.
    assert expected_end_ms(experiment(progress=0.25), "running", 1_000) == 4_000


@pytest.mark.parametrize(
    "fields",
    [
        {"progress": 0.0},
        {"progress": 0.01},
        {"progress": 1.0},
        {"progress": None},
        {"progress": 0.25, "run_generation": 1},
        {"progress": 0.25, "kind": JobKind.COMMAND},
    ],
)
def test_end_is_unknown_without_a_pace(fields: dict[str, Any]) -> None:
    assert expected_end_ms(experiment(**fields), "running", 1_000) is None


def test_end_is_unknown_while_no_trial_runs() -> None:
    assert expected_end_ms(experiment(progress=0.25), "queued", 1_000) is None


def test_activity_names_the_reason_of_a_wait(cluster: Cluster) -> None:
    agent = Agent(cluster, slots=1)
    cluster.create(CONFIG)
    agent.take_work()
    activity = cluster.get("/experiments/1/activity").json
    assert (activity["condition"], activity["sentence"]) == (
        "running",
        "1 trial runs, 1 waits for slots",
    )
    assert "1 slot" in activity["reason"]
    cluster.post("/experiments/1/pause", {})
    activity = cluster.get("/experiments/1/activity").json
    assert (activity["condition"], activity["reason"]) == ("paused", "")
    assert cluster.get("/experiments/9/activity").status == 404
