"""Commands in any order against a live cluster: each is answered as the experiment's state allows,
and whatever was accepted comes to an end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from detcloud.client import Client, Experiment
from detcloud.http import ApiError
from tests.integration.embedded_cluster import EmbeddedCluster, config, eventually, model_dir

FINAL = {"COMPLETED", "CANCELED", "ERROR"}
STOPPING = {"STOPPING_COMPLETED", "STOPPING_CANCELED", "STOPPING_KILLED", "STOPPING_ERROR"}
LIVE = {"ACTIVE", "PAUSED"}
# What an experiment may become of itself while a command is on its way.
FOLLOWING = {
    "ACTIVE": {"STOPPING_COMPLETED", "COMPLETED"},
    "STOPPING_CANCELED": {"CANCELED"},
    "STOPPING_KILLED": {"CANCELED"},
    "STOPPING_COMPLETED": {"COMPLETED"},
}
# The states in which a command is carried out; in the others it is a conflict.
ALLOWED = {
    "pause": LIVE,
    "activate": LIVE,
    "cancel": LIVE | STOPPING | FINAL,
    "kill": LIVE | STOPPING | FINAL,
    "archive": FINAL,
    "unarchive": FINAL,
}


class Lifecycle(RuleBasedStateMachine):
    """Experiments of tiny trials on one cluster that all runs share."""

    client: Client
    model: Path
    experiments: Bundle[Experiment] = Bundle("experiments")

    def __init__(self) -> None:
        super().__init__()
        self.created: dict[int, Experiment] = {}
        self.ended: dict[int, str] = {}
        self.archived: set[int] = set()

    @rule(
        target=experiments,
        paused=st.booleans(),
        trials=st.integers(1, 3),
        pause_seconds=st.sampled_from((0.0, 0.05)),
    )
    def create(self, paused: bool, trials: int, pause_seconds: float) -> Experiment:
        asked = config(pause_seconds, trials=trials)
        found = self.client.create_experiment(asked, self.model, paused=paused)
        assert found.state == ("PAUSED" if paused else "ACTIVE")
        self.created[found.id] = found
        return found

    @rule(experiment=experiments, verb=st.sampled_from(sorted(ALLOWED)))
    def command(self, experiment: Experiment, verb: str) -> None:
        before = self._state(experiment)
        refused = None
        try:
            getattr(experiment, verb)()
        except ApiError as error:
            refused = error
        after = self._state(experiment)
        passed = {before, after} | FOLLOWING.get(before, set())
        if refused is None:
            assert passed & ALLOWED[verb], f"{verb} was carried out in {before}"
            self._note_archived(experiment, verb)
        else:
            assert refused.code == "conflict", refused
            assert passed - ALLOWED[verb], f"{verb} was refused in {before}: {refused}"
            assert str(experiment.id) in str(refused)

    @rule(experiment=experiments, label=st.text("abc", min_size=1, max_size=3))
    def label(self, experiment: Experiment, label: str) -> None:
        experiment.set(labels=[label], description=f"about {label}")
        found = self.client.experiment(experiment.id)
        assert (found.labels, found.description) == ([label], f"about {label}")

    @rule(experiment=experiments, max_slots=st.sampled_from((None, 1, 2)))
    def limit(self, experiment: Experiment, max_slots: int | None) -> None:
        experiment.set(max_slots=max_slots)
        assert self.client.experiment(experiment.id).max_slots == max_slots

    @rule(experiment=experiments)
    def wait_a_little(self, experiment: Experiment) -> None:
        """Lets it come to an end, so that the commands of ended experiments are tried too."""
        with contextlib.suppress(AssertionError):
            eventually(lambda: self._state(experiment) not in {"ACTIVE", *STOPPING}, 1.0)

    @rule()
    def kill_the_server(self) -> None:
        self.restart()

    @invariant()
    def nothing_vanishes_and_ends_are_final(self) -> None:
        listed = {found.id: found for found in self.client.experiments(archived=None)}
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
            eventually(partial(self._has_ended, experiment), 60.0)
            states = {trial.state for trial in experiment.trials()}
            assert states <= FINAL, states
        eventually(self._pool_is_idle)

    def restart(self) -> None:
        raise AssertionError("the fixture says how")

    def _pool_is_idle(self) -> bool:
        pool = self.client.overview()["resource_pools"][0]
        return (pool["free_slots"], pool["queued"], pool["running"]) == (pool["slots"], 0, 0)

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
            client = cluster.start()
            type(self).client = client
            for number in self.created:
                self.created[number]._client = client

    try:
        yield Running
    finally:
        cluster.end()


def test_commands_in_any_order_are_answered_as_the_state_allows(machine: type[Lifecycle]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=6,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
