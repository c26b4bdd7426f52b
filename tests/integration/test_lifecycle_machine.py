"""Commands in any order on a live cluster.

Each answer matches the experiment's state, and every accepted experiment ends.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)

from detcloud.client import Client, Experiment
from detcloud.shared.http import ApiError
from tests.integration.embedded_cluster import EmbeddedCluster, config, model_dir
from tests.patience import wait_until

FINAL = {"COMPLETED", "CANCELED", "ERROR"}
STOPPING = {"STOPPING_COMPLETED", "STOPPING_CANCELED", "STOPPING_KILLED", "STOPPING_ERROR"}
LIVE = {"ACTIVE", "PAUSED"}
# States that an experiment may reach by itself while a command is on its way.
FOLLOWING = {
    "ACTIVE": {"STOPPING_COMPLETED", "COMPLETED"},
    "STOPPING_CANCELED": {"CANCELED"},
    "STOPPING_KILLED": {"CANCELED"},
    "STOPPING_COMPLETED": {"COMPLETED"},
}
# The states that allow a command; other states are a conflict.
ALLOWED = {
    "pause": LIVE,
    "activate": LIVE,
    "cancel": LIVE | STOPPING | FINAL,
    "kill": LIVE | STOPPING | FINAL,
    "archive": FINAL,
    "unarchive": FINAL,
}


def refusal_of(command: Callable[[], object]) -> ApiError | None:
    try:
        command()
    except ApiError as error:
        return error
    return None


class Lifecycle(RuleBasedStateMachine):
    """Experiments of tiny trials on a cluster that all runs share."""

    client: Client
    model: Path
    experiments: Bundle[Experiment] = Bundle("experiments")

    def __init__(self) -> None:
        super().__init__()
        self.created: dict[int, Experiment] = {}
        self.ended: dict[int, str] = {}
        self.archived: set[int] = set()
        self.deleted: set[int] = set()

    @rule(
        target=experiments,
        paused=st.booleans(),
        trials=st.integers(1, 3),
        pause_seconds=st.sampled_from((0.0, 0.05)),
    )
    def create(self, paused: bool, trials: int, pause_seconds: float) -> Experiment:
        request = config(pause_seconds, trials=trials)
        experiment = self.client.create_experiment(request, self.model, paused=paused)
        assert experiment.state == ("PAUSED" if paused else "ACTIVE")
        self.created[experiment.id] = experiment
        return experiment

    @rule(experiment=experiments, verb=st.sampled_from(sorted(ALLOWED)))
    def command(self, experiment: Experiment, verb: str) -> None:
        before = self._state(experiment)
        refused = refusal_of(getattr(experiment, verb))
        after = self._state(experiment)
        passed = {before, after} | FOLLOWING.get(before, set())
        if refused is None:
            assert passed & ALLOWED[verb], f"{verb} was carried out in {before}"
            self._note_archived(experiment, verb)
        else:
            assert refused.code == "conflict", refused
            assert passed - ALLOWED[verb], f"{verb} was refused in {before}: {refused}"
            assert str(experiment.id) in str(refused)

    @rule(experiment=experiments)
    def train_on(self, experiment: Experiment) -> None:
        """Continue an experiment.

        Allowed if the experiment has ended, is not archived, and a trial has batches left.
        """
        before = self._state(experiment)
        refused = refusal_of(experiment.continue_)
        if refused is None:
            passed = {before, *FOLLOWING.get(before, set())}
            assert passed & FINAL, f"continued in {before}"
            assert experiment.id not in self.archived
            self.ended.pop(experiment.id, None)
            return
        assert refused.code == "conflict", refused
        if before in FINAL and experiment.id not in self.archived:
            assert {trial.state for trial in experiment.trials()} == {"COMPLETED"}

    @rule(experiment=consumes(experiments))
    def delete(self, experiment: Experiment) -> None:
        """Delete an experiment: an ended experiment disappears with all files, others stay
        unchanged.
        """
        before = self._state(experiment)
        refused = refusal_of(experiment.delete)
        if refused is None:
            assert {before, *FOLLOWING.get(before, set())} & FINAL, f"deleted in {before}"
            del self.created[experiment.id]
            self.ended.pop(experiment.id, None)
            self.deleted.add(experiment.id)
            return
        assert refused.code == "conflict", refused
        assert before not in FINAL, f"not deleted in {before}: {refused}"

    @rule(experiment=experiments)
    def kill_a_trial(self, experiment: Experiment) -> None:
        """Kill a trial: the search continues without the trial; an ended trial stays unchanged."""
        trial = next(experiment.trials(), None)
        if trial is not None:
            ended_as = trial.state if trial.has_ended else None
            trial.kill()
            trial.refresh()
            assert ended_as in (None, trial.state)

    @rule(experiment=experiments, label=st.text("abc", min_size=1, max_size=3))
    def label(self, experiment: Experiment, label: str) -> None:
        experiment.set(labels=[label], description=f"about {label}")
        current = self.client.experiment(experiment.id)
        assert (current.labels, current.description) == ([label], f"about {label}")

    @rule(experiment=experiments, max_slots=st.sampled_from((None, 1, 2)))
    def limit(self, experiment: Experiment, max_slots: int | None) -> None:
        experiment.set(max_slots=max_slots)
        assert self.client.experiment(experiment.id).max_slots == max_slots

    @rule(experiment=experiments)
    def wait_a_little(self, experiment: Experiment) -> None:
        """Let the experiment end, so that commands for ended experiments are tried too."""
        for _ in range(50):
            if self._state(experiment) not in {"ACTIVE", *STOPPING}:
                break
            time.sleep(0.02)

    @rule()
    def kill_the_server(self) -> None:
        self.restart()

    @invariant()
    def nothing_vanishes_and_ends_are_final(self) -> None:
        listed = {
            experiment.id: experiment for experiment in self.client.experiments(archived=None)
        }
        for number in self.deleted & listed.keys():
            assert listed[number].state == "DELETING"
        for number in self.created:
            assert number in listed, f"experiment {number} has vanished"
            state = listed[number].state
            assert state == self.ended.get(number, state)
            assert listed[number].archived == (number in self.archived)
            if state in FINAL:
                self.ended[number] = state

    def teardown(self) -> None:
        for experiment in self.created.values():
            with contextlib.suppress(ApiError):
                experiment.activate()
        for experiment in self.created.values():
            wait_until(partial(self._has_ended, experiment), 60.0)
            states = {trial.state for trial in experiment.trials()}
            assert states <= FINAL, states
        wait_until(self._pool_is_idle)
        for number in self.deleted:
            wait_until(partial(self._is_gone, number))

    def restart(self) -> None:
        raise AssertionError("the fixture says how")

    def _pool_is_idle(self) -> bool:
        pool = self.client.overview()["resource_pools"][0]
        return (pool["free_slots"], pool["queued"], pool["running"]) == (pool["slots"], 0, 0)

    def _is_gone(self, number: int) -> bool:
        refused = refusal_of(lambda: self.client.experiment(number))
        return refused is not None and refused.code == "not_found"

    def _has_ended(self, experiment: Experiment) -> bool:
        return self._state(experiment) in FINAL

    def _state(self, experiment: Experiment) -> str:
        return self.client.experiment(experiment.id).state

    def _note_archived(self, experiment: Experiment, verb: str) -> None:
        if verb == "archive":
            self.archived.add(experiment.id)
        elif verb == "unarchive":
            self.archived.discard(experiment.id)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[type[Lifecycle]]:
    folder: Path = tmp_path_factory.mktemp("machine")
    cluster = EmbeddedCluster(folder / "home")

    class Running(Lifecycle):
        client = cluster.start()
        model = model_dir(folder / "model")

        def restart(self) -> None:
            cluster.kill()
            self.client.http.close()
            # All handles share the client.
            self.client.http = cluster.start().http

    try:
        yield Running
    finally:
        cluster.end()


def test_commands_in_any_order_are_answered_by_the_state(machine: type[Lifecycle]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(os.environ.get("LIFECYCLE_EXAMPLES", "1")),
            stateful_step_count=12,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
