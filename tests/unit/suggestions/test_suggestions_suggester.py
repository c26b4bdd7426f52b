"""The suggester with a real engine: intents, repetitions and failures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from control_plane.actors.messages.experiment import CancelRequested, PauseRequested
from control_plane.engine.engine import Engine
from control_plane.engine.head import HEAD
from control_plane.engine.mailbox import MAIL
from control_plane.engine.replay import replay_actor
from control_plane.rows.experiment_rows import SUGGESTION
from control_plane.searchers.era_rules import LENGTH_ERA
from control_plane.searchers.method import SuggestedPoints
from control_plane.searchers.methods.bayesian import BayesianPlan
from control_plane.searchers.search import SearchPlan
from control_plane.searchers.space import Double, Group
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Put, Unavailable, Write
from control_plane.suggestions.model import Observation, Problem, Stage
from control_plane.suggestions.suggester import TRIES_MAX, Suggester
from local_cluster.suggestion_thread import SuggestionThread
from simulator.faults.table_faults import TableDecorator
from simulator.stepped.small_search import submission
from simulator.stepped.stepped_cluster import SteppedCluster
from tests.patience import wait_until
from tests.simulation.scripts import train_at_once

EXPERIMENT = "experiment#1"
INTENT = Key(SUGGESTION.partition, f"{1:012d}")


@dataclass
class Model:
    """A model that suggests 100 plus the point's number and records the observations."""

    raises: Exception | None = None
    meanwhile: Callable[[], object] = lambda: None
    shown: list[Sequence[Observation]] = field(default_factory=list)

    def __call__(
        self, problem: Problem, observations: Sequence[Observation], number: int
    ) -> Mapping[str, object]:
        assert problem.seed == 7
        self.shown.append(observations)
        self.meanwhile()
        if self.raises is not None:
            raise self.raises
        return {"x": 100.0 + number}


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def cluster(tmp_path: Path, model: Model) -> SteppedCluster:
    """A search of 4 trials, 2 at a time; 2 trials have ended and a suggestion is awaited."""
    cluster = SteppedCluster(tmp_path / "table.db")
    cluster.host.suggester = Suggester(cluster.engine, model)
    cluster.add_pool()
    cluster.add_agent("a", 1, train_at_once)
    plan = SearchPlan(BayesianPlan(4, 4, 2, 1, LENGTH_ERA), Group({"x": Double(0.0, 1.0)}), 7)
    cluster.command(EXPERIMENT, replace(submission(1, 4), plan=plan, searcher="bayesian"))
    while INTENT not in cluster.checker.rows:
        for agent in cluster.agents:
            agent.sync()
            agent.work()
    return cluster


def values(cluster: SteppedCluster) -> list[float]:
    """Return the hyperparameter x of all trials, sorted by the trials' numbers."""
    trials = sorted(cluster.checker.actor_states("trial"), key=lambda trial: trial.number)
    return [trial.hparams["x"] for trial in trials]


def folded_messages(cluster: SteppedCluster) -> list[str]:
    return [name for name, _ in cluster.checker.folded_messages(EXPERIMENT)]


def test_suggestion_creates_a_trial_and_removes_the_intent(
    cluster: SteppedCluster, model: Model
) -> None:
    assert cluster.host.suggester.suggest_all()
    assert values(cluster)[2:] == [100.0]
    assert INTENT not in cluster.checker.rows
    assert not cluster.host.suggester.suggest_all()
    [[ended, running]] = model.shown
    # The scripted trial reports the sum of the hyperparameters as metric.
    assert ended == Observation(ended.hparams, Stage.COMPLETE, round(ended.hparams["x"], 6))
    assert (running.stage, running.metric) == (Stage.RUNNING, None)


def test_bayesian_search_completes_and_replays(cluster: SteppedCluster) -> None:
    cluster.run_to_rest()
    assert cluster.checker.actor_state(EXPERIMENT).status == "COMPLETED"
    assert values(cluster)[2:] == [100.0, 101.0]
    assert replay_actor(cluster.host.rows, EXPERIMENT).difference is None


def test_concurrent_suggester_has_no_effect(cluster: SteppedCluster, model: Model) -> None:
    other = Suggester(cluster.engine, lambda problem, observations, number: {"x": 200.0})
    model.meanwhile = other.suggest_all
    cluster.host.suggester.suggest_all()
    assert values(cluster)[2:] == [200.0]
    assert folded_messages(cluster).count("Suggested") == 2


def test_repeated_suggestion_has_no_effect(cluster: SteppedCluster) -> None:
    for _ in range(2):
        cluster.post(EXPERIMENT, SuggestedPoints(0, ({"x": 100.0},)))
    assert values(cluster)[2:] == [100.0]


def test_canceled_search_gets_no_suggestion(cluster: SteppedCluster, model: Model) -> None:
    cluster.command(EXPERIMENT, CancelRequested())
    assert INTENT not in cluster.checker.rows
    assert not cluster.host.suggester.suggest_all()
    cluster.post(EXPERIMENT, SuggestedPoints(0, ({"x": 100.0},)))
    assert len(values(cluster)) == 2
    cluster.run_to_rest()
    assert model.shown == []
    assert cluster.checker.actor_state(EXPERIMENT).status == "CANCELED"


def test_paused_search_accepts_the_suggestion(cluster: SteppedCluster) -> None:
    cluster.command(EXPERIMENT, PauseRequested())
    assert cluster.host.suggester.suggest_all()
    assert values(cluster)[2:] == [100.0]
    assert cluster.checker.actor_state("trial#3").allocation is None


def test_failing_model_is_retried_and_replaced_by_a_random_point(
    cluster: SteppedCluster, model: Model
) -> None:
    model.raises = ValueError("out of\nluck")
    begun_ms = cluster.now_ms
    while len(values(cluster)) == 2:
        cluster.host.suggester.suggest_all()
        cluster.now_ms += 500
    assert len(model.shown) == TRIES_MAX
    # Pauses of 1, 2 and 4 s between the four tries.
    assert cluster.now_ms - begun_ms == 7_500
    assert 0 <= values(cluster)[2] < 1
    text = "drawn at random instead of suggested: ValueError: out of luck"
    assert cluster.checker.actor_state(EXPERIMENT).message == text


def test_model_is_tried_once_per_point_after_a_failure(
    cluster: SteppedCluster, model: Model
) -> None:
    model.raises = ImportError("No module named 'optuna'")
    cluster.run_to_rest()
    assert cluster.checker.actor_state(EXPERIMENT).status == "COMPLETED"
    assert len(values(cluster)) == 4
    assert len(model.shown) == TRIES_MAX + 1
    assert cluster.checker.actor_state(EXPERIMENT).message.endswith(
        "Optuna cannot be used on this server (No module named 'optuna'):"
        " pip install 'detcloud[optuna]'"
    )


def test_table_error_is_no_failure_of_the_model(cluster: SteppedCluster, model: Model) -> None:
    model.raises = Unavailable("throttled")
    for _ in range(TRIES_MAX + 1):
        with pytest.raises(Unavailable):
            cluster.host.suggester.suggest_all()
        cluster.now_ms += 60_000
    model.raises = None
    assert cluster.host.suggester.suggest_all()
    assert values(cluster)[2:] == [100.0]


class LosingTable(TableDecorator):
    """A table that loses all mail to the experiment. The engine never loses mail."""

    def commit(self, writes: Sequence[Write]) -> None:
        if not any(write.key.sort.startswith(MAIL) for write in writes):
            super().commit(writes)


def test_unfolded_suggestion_is_repeated_after_a_pause(
    cluster: SteppedCluster, model: Model
) -> None:
    cluster.engine.table = LosingTable(cluster.engine.table)
    assert cluster.host.suggester.suggest_all()
    assert not cluster.host.suggester.suggest_all()
    cluster.now_ms += 1_000
    assert cluster.host.suggester.suggest_all()
    assert len(model.shown) == 2


def test_thread_suggests_after_the_commit_of_the_intent(
    cluster: SteppedCluster, model: Model
) -> None:
    made = SuggestionThread(cluster.host.suggester, look_seconds=60)
    cluster.engine.on_row = made.wake_on_row
    made.start()
    try:
        wait_until(lambda: len(values(cluster)) == 3)
        while INTENT not in cluster.checker.rows and len(values(cluster)) == 3:
            for agent in cluster.agents:
                agent.sync()
                agent.work()
        wait_until(lambda: len(values(cluster)) == 4)
    finally:
        made.stop()
    assert len(model.shown) == 2


def test_pause_of_the_model_begun_by_a_fast_clock_ends_early(
    cluster: SteppedCluster, model: Model
) -> None:
    model.raises = ValueError("out of luck")
    cluster.now_ms += 86_400_000
    assert not cluster.host.suggester.suggest_all()
    cluster.now_ms -= 86_400_000
    model.raises = None
    assert cluster.host.suggester.suggest_all()


def test_unreadable_search_does_not_block_other_searches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = SqliteTable(tmp_path / "rows.db")
    engine = Engine(table, lambda: 1_800_000_000_000)
    for number in (1, 2):
        unreadable = Put(Key(f"experiment#{number}", HEAD), 1, b"{}\n{", Expect.ABSENT)
        table.commit(
            [unreadable, Put(Key(SUGGESTION.partition, f"{number:012d}"), 1, b"", Expect.ABSENT)]
        )
    assert not Suggester(engine).suggest_all()
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [f"no suggestion: experiment {number} cannot be read" for number in (1, 2)]
