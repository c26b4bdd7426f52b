"""The rehearsal of a lost bucket of checkpoints while trials run, for every cloud."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from infra.restoration import FilesReport
from tests.end_to_end.cluster_steps import (
    DeployedCluster,
    checkpoints,
    first_checkpoint,
    steps_kept,
    trial_of,
    wait_for,
    wait_until,
)
from tests.end_to_end.laptop import Laptop

# Longer than the pause of a patient store, and than the start of a machine and a process.
WAIT_SECONDS_MAX = 120


class CopiedBucket(Protocol):
    """The cluster's bucket of checkpoints, which has a copy in another region."""

    def lose(self) -> None:
        """Delete the bucket with all versions, while trials may write objects.

        Each object is in the copy, as after a replication.
        """

    def create(self) -> None:
        """Create the bucket again, empty, as a deployment with `--new-stores` does."""

    def restore(self) -> FilesReport:
        """Restore the lost objects as the command does, and return the outcome."""


def rehearse_loss_of_bucket(
    cluster: DeployedCluster[Any],
    person: Laptop,
    bucket: CopiedBucket,
    begin: Callable[[Path], int],
    folder: Path,
) -> None:
    """Lose the bucket under a trial that trains and under a trial that starts meanwhile.

    Both trials must end without a restart, and train nothing again that a checkpoint has.

    Args:
        begin: creates an experiment with a slow trial that keeps all checkpoints, with its files in
            a new folder; returns the experiment.
    """
    for name in ("training", "starting"):
        (folder / name).mkdir()
    starting = begin(folder / "starting")
    starting_trial = first_checkpoint(cluster, starting)
    pause(cluster, person, starting)
    training = begin(folder / "training")
    training_trial = first_checkpoint(cluster, training)

    bucket.lose()
    await_line(cluster, training_trial, "waiting until the bucket exists again")
    person.run("experiment", "activate", starting)
    await_line(cluster, starting_trial, "waiting for the files of this trial")
    bucket.create()
    # The trial stores its work in the new bucket before any object is restored.
    wait_until(lambda: bool(checkpoints(cluster, training_trial)), WAIT_SECONDS_MAX, "new files")
    report = bucket.restore()
    assert report.lost == ()
    assert any(path.startswith(f"{starting}/") for path in report.restored)

    for experiment in (training, starting):
        described = wait_for(cluster, person, experiment)
        assert described["restarts"] == 0
        assert described["recent_damages"] == []
        assert described["steps_completed"] == described["target_steps"]
        with cluster.client() as client:
            states = {one.state for one in client.experiment(experiment).checkpoints()}
        assert states == {"COMPLETED"}
        runs = [steps_kept(cluster, described["id"], epoch) for epoch in (1, 2)]
        steps = [step for run in runs for step in run]
        # A busy machine may add losses of machines, after which batches are trained again.
        assert steps == sorted(set(steps)) or described["losses"]


def pause(cluster: DeployedCluster[Any], person: Laptop, experiment: int) -> None:
    """Pause an experiment of a single trial, and wait until no run is left."""
    trial = trial_of(cluster, experiment)
    person.run("experiment", "pause", experiment)
    wait_until(lambda: person.json("trial", "describe", trial)["allocation"] is None, 60, "no run")


def await_line(cluster: DeployedCluster[Any], trial: int, text: str) -> None:
    """Wait until the log of a trial contains a text."""
    with cluster.client() as client:
        wait_until(
            lambda: text in "".join(client.trial(trial).logs()),
            WAIT_SECONDS_MAX,
            f"the line {text!r}",
        )
