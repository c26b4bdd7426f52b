"""The table of stops: every way to stop a trial, for every form of its entrypoint.

The rule: a trial that is asked to stop ends with a checkpoint of all its trained batches, and its
next run begins at that batch. `pytest -s` prints the entries, "batches trained / batches saved".
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from detcloud.client import Experiment, Trial
from tests.integration.embedded_cluster import EmbeddedCluster
from tests.integration.trial_forms import (
    HEAVY,
    LIGHT,
    Form,
    began_at,
    config,
    trained_batches,
    write_model,
)
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

POOLS = """
resource_pools:
  - pool_name: default
    scheduler: {type: priority, preemption: true}
"""
SLOTS = 10
# Enough that something would be lost.
BATCHES_MIN = 5


class ConfiguredCluster(EmbeddedCluster):
    """A cluster with a pool that takes slots from less important jobs."""

    def command(self) -> list[str]:
        self.home.parent.mkdir(parents=True, exist_ok=True)
        path = self.home.parent / "cluster.yaml"
        path.write_text(POOLS)
        return [*super().command(), "--config", str(path)]


class Stops:
    """The trials of several forms on a cluster, with trained and saved batches."""

    def __init__(self, cluster: EmbeddedCluster, folder: Path) -> None:
        self.cluster = cluster
        self.client = cluster.start(slots=SLOTS)
        self.model = write_model(folder / "model")
        self.experiments: dict[str, Experiment] = {}
        self._folder = self._counts = folder

    def begin(self, forms: Mapping[str, Form]) -> None:
        """Start a trial of each form, and wait until each has trained some batches."""
        self._counts = self._folder / f"counts-{time.monotonic_ns()}"
        self._counts.mkdir()
        for name, form in forms.items():
            fields = config(name, form, self._counts)
            self.experiments[name] = self.client.create_experiment(fields, self.model)
        for name in forms:
            wait_until(partial(self._has_begun, name), seconds=60, what=name)

    def await_ends(self) -> dict[str, int]:
        """Wait for the end of each first run; return how many batches each has trained."""
        for name in self.experiments:
            wait_until(partial(self._has_ended, name), what=f"the end of {name}")
        return {name: trained_batches(self._counts, name, 1) or 0 for name in self.experiments}

    def await_next_runs(self) -> dict[str, int]:
        """Wait until each trial runs again; return the batches at which the second runs began."""
        for name in self.experiments:
            wait_until(partial(self._has_begun_again, name), what=name)
        return {name: self._began_again(name) or 0 for name in self.experiments}

    def saved_batches(self) -> dict[str, int]:
        """Return the batches in the latest checkpoint of each trial; no trial may run."""
        return {name: self._trial(name).steps_completed for name in self.experiments}

    def end(self) -> None:
        """End all trials."""
        for experiment in self.experiments.values():
            experiment.kill()
        for experiment in self.experiments.values():
            wait_until(partial(self._is_over, experiment))
        self.experiments = {}

    def keeps_training(self) -> bool:
        """Wait until each first run has trained more batches; return whether all still run."""
        now = {name: trained_batches(self._counts, name, 1) or 0 for name in self.experiments}
        for name, count in now.items():
            wait_until(partial(self._has_trained, name, count + BATCHES_MIN))
        return all(self._runs(name) for name in self.experiments)

    def signal_supervisors(self) -> None:
        """Send SIGTERM to the supervisor of each running trial, as engines and shutdowns do."""
        for name in self.experiments:
            allocation = self._trial(name).allocation
            assert allocation is not None
            place = f"agent/allocations/{allocation['id']}/agent/process.json"
            process = json.loads((self.cluster.home / place).read_bytes())
            os.kill(process["supervisor"], signal.SIGTERM)

    def _has_begun(self, name: str) -> bool:
        trial = self._trial(name)
        log = "".join(trial.logs())
        assert trial.state == "ACTIVE", f"{name} ended: {log}"
        return self._has_trained(name, BATCHES_MIN)

    def _has_trained(self, name: str, batches: int) -> bool:
        return (trained_batches(self._counts, name, 1) or 0) >= batches

    def _has_ended(self, name: str) -> bool:
        return not self._runs(name)

    def _has_begun_again(self, name: str) -> bool:
        return self._began_again(name) is not None

    def _is_over(self, experiment: Experiment) -> bool:
        return self.client.experiment(experiment.id).has_ended

    def _began_again(self, name: str) -> int | None:
        return began_at(self._counts, name, 2)

    def _runs(self, name: str) -> bool:
        allocation = self._trial(name).allocation
        return allocation is not None and allocation["id"].endswith(".1")

    def _trial(self, name: str) -> Trial:
        return next(self.experiments[name].trials(1))


def disable_agent(stops: Stops) -> None:
    stops.client.agent("local").disable()


def disable_slots(stops: Stops) -> None:
    # Free slots first: a stopped trial would begin its second run on a free slot.
    slots = stops.client.agent("local").slots
    for slot in sorted(slots, key=lambda slot: slot.allocation is not None):
        slot.disable()


def enable_all(stops: Stops) -> None:
    agent = stops.client.agent("local")
    agent.enable()
    for slot in agent.slots:
        slot.enable()


def pause(stops: Stops) -> None:
    for experiment in stops.experiments.values():
        experiment.pause()


def activate(stops: Stops) -> None:
    for experiment in stops.experiments.values():
        experiment.activate()


def cancel(stops: Stops) -> None:
    for experiment in stops.experiments.values():
        experiment.cancel()


def kill(stops: Stops) -> None:
    for experiment in stops.experiments.values():
        experiment.kill()


def submit_more_important_job(stops: Stops) -> None:
    """Take all slots for a program that ends after other trials were stopped."""
    fields = {
        "name": "important",
        "entrypoint": "true",
        "resources": {"slots_per_trial": SLOTS, "priority": 1},
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}},
    }
    stops.client.create_experiment(fields, stops.model)


def stop_agent(stops: Stops) -> None:
    os.kill(stops.cluster.record()["agent_pid"], signal.SIGTERM)


def announce_end(stops: Stops) -> None:
    notice = {"deadline_ms": time.time_ns() // 10**6 + 60_000, "reason": "spot"}
    (stops.cluster.home / "agent" / "preemption-notice.json").write_text(json.dumps(notice))


def stop_cluster(stops: Stops) -> None:
    stops.cluster.stop()
    stops.client = stops.cluster.start(slots=SLOTS)
    for name, experiment in stops.experiments.items():
        stops.experiments[name] = stops.client.experiment(experiment.id)


def do_nothing(_stops: Stops) -> None:
    pass


@dataclass(frozen=True)
class Way:
    """A way to stop a trial. `resume`: what makes the trial run again, None for a last stop."""

    stop: Callable[[Stops], None]
    resume: Callable[[Stops], None] | None = do_nothing
    saves_readers: bool = True


WAYS = {
    "agent disable": Way(disable_agent, enable_all),
    "slot disable": Way(disable_slots, enable_all),
    "preemption by a job": Way(submit_more_important_job),
    "pause": Way(pause, activate),
    "cancel": Way(cancel, None),
    # No trial runs again: a program that ignores the directives is ended at once.
    "kill": Way(kill, None, saves_readers=False),
    "SIGTERM to the agent": Way(stop_agent),
    "SIGTERM to the supervisor": Way(Stops.signal_supervisors),
    "down and up": Way(stop_cluster),
}


@pytest.fixture(scope="module")
def stops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stops]:
    """Yield a cluster for all ways that leave the agent in service."""
    folder = tmp_path_factory.mktemp("stops")
    cluster = ConfiguredCluster(folder / "home")
    yield Stops(cluster, folder)
    cluster.end()


@pytest.fixture(autouse=True)
def end_trials(stops: Stops) -> Iterator[None]:
    """End the trials that a failed test has left."""
    yield
    enable_all(stops)
    stops.end()


# The gate runs a stop by the scheduler, by a user and by force. The notice of a machine is below.
GATE_WAYS = ("preemption by a job", "pause", "kill")


@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=() if way in GATE_WAYS else pytest.mark.nightly) for way in WAYS],
)
def test_stop_saves_every_trained_batch(stops: Stops, way: str) -> None:
    check_way(stops, way, WAYS[way], LIGHT)


@pytest.mark.nightly
@pytest.mark.parametrize("way", WAYS)
def test_every_stop_saves_trials_of_classes_and_gangs(stops: Stops, way: str) -> None:
    check_way(stops, way, WAYS[way], HEAVY)


def test_notice_of_machine_end_saves_every_trained_batch(tmp_path: Path) -> None:
    cluster = ConfiguredCluster(tmp_path / "home")
    try:
        # The ending machine starts no more trials.
        check_way(Stops(cluster, tmp_path), "spot notice", Way(announce_end, None), LIGHT)
    finally:
        cluster.end()


def test_draining_agent_stops_no_trial(stops: Stops) -> None:
    stops.begin({"text": LIGHT["text"]})
    stops.client.agent("local").disable(drain=True)
    assert stops.keeps_training()


def check_way(stops: Stops, name: str, way: Way, forms: Mapping[str, Form]) -> None:
    """Stop a trial of each form in this way; compare trained with saved batches."""
    stops.begin(forms)
    way.stop(stops)
    had = stops.await_ends()
    if way.resume is None:
        saved = stops.saved_batches()
    else:
        way.resume(stops)
        saved = stops.await_next_runs()
    for form in forms:
        print(f"{name:26} | {form:18} | trained {had[form]:5} | saved {saved[form]:5}")
    stops.end()
    for form, how in forms.items():
        # The signal of a kill may arrive before the program has read the directives.
        is_promised = way.saves_readers or not how.reads_alone
        assert saved[form] in ({had[form]} if is_promised else {had[form], 0}), form
    assert all(count >= BATCHES_MIN for count in had.values())
