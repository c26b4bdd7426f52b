"""The searches of a researcher: ended, failed, running and waiting, on a cluster of this machine.

The same trials can be written into a study of Optuna.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from detcloud.client import Client
from tests.end_to_end.browser import PRIORITY_POOL
from tests.end_to_end.laptop import Laptop
from tests.patience import wait_until

USER = "ada"
TRAIN = """\
import math
import time

from detcloud import core

with core.init() as context:
    hparams = context.info.hparams
    floor = hparams["floor"] + 0.3 * (math.log10(hparams["lr"]) + 2.5) ** 2
    floor += 0.4 * (hparams["dropout"] - 0.2) ** 2 + 1 / hparams["width"]
    steps = context.info.steps_completed
    for operation in context.searcher.operations():
        while steps < operation.length and not context.preempt.should_preempt():
            steps += 1
            time.sleep(hparams["pause"])
            if steps == hparams["fails_at"]:
                raise ArithmeticError(f"the loss of batch {steps} is not a number")
            loss = floor + 2 * math.exp(-steps / 8)
            context.train.report_training_metrics(steps, {"loss": loss})
            if steps % 5 == 0:
                context.train.report_validation_metrics(steps, {"loss": loss})
        if steps < operation.length:
            break
        operation.complete(loss)
"""
# What the failed trial prints last.
FAILURE = "ArithmeticError: the loss of batch 7 is not a number"
TRIALS, BATCHES = 24, 40
# The search that has the best trial, because its loss has the lowest floor.
BEST, OTHER, THIRD = "digits augmented", "digits baseline", "digits wider"
FLOORS = {OTHER: 0.3, BEST: 0.1, THIRD: 0.2}
FAILED, RUNNING, WAITING, THEIRS = "digits deep", "digits long", "digits later", "speech"


class Answers(NamedTuple):
    """The right answers, from the cluster itself."""

    best: int
    """The experiment with the best trial."""
    other: int
    """The search to compare with."""
    best_trial: int
    best_rate: float
    """The learning rate of the best trial."""
    important: str
    """The hyperparameter that explains most."""


class Searches:
    """The cluster of the researcher."""

    def __init__(self, laptop: Laptop, folder: Path) -> None:
        self.laptop = laptop
        self._model = folder / "model"
        self._model.mkdir()
        (self._model / "train.py").write_text(TRAIN)
        # Without preemption, so that searches wait for the running one.
        self._pools = folder / "pools.yaml"
        self._ended: list[int] = []

    def fill(self) -> Answers:
        """Run the searches that end, start the others, and return the right answers."""
        self._pools.write_text(PRIORITY_POOL)
        self.laptop.run("up", "--slots", 2, "--config", self._pools)
        with self.laptop.cluster() as cluster:
            self._ended = [
                self._submit(cluster, name, TRIALS, seed=seed, floor=floor)
                for seed, (name, floor) in enumerate(FLOORS.items(), 1)
            ]
            self._ended.append(self._submit(cluster, FAILED, 1, fails_at=7))
            for number in self._ended:
                cluster.experiment(number).wait()
            self._submit_active(cluster)
            bob = cluster.create_token("bob", role="user").token
            with Client(self.laptop.record()["url"], bob) as theirs:
                self._submit(theirs, THEIRS, 1)
            best = cluster.experiment(self._number_of(BEST))
            trial = cluster.trial(best.data["best_trial_id"])
            important = max(best.importance()["items"], key=lambda one: one["share"])
            rate = float(trial.data["hparams"]["lr"])
            other = self._number_of(OTHER)
            return Answers(best.id, other, trial.id, rate, important["name"])

    def start_again(self) -> None:
        """Delete the user's notes and later experiments, and start the active searches again."""
        with self.laptop.cluster() as cluster:
            later = [one for one in cluster.experiments(user=USER) if one.id > max(self._ended)]
            for experiment in later:
                if not experiment.has_ended:
                    experiment.kill()
            for experiment in later:
                experiment.refresh()
                experiment.wait()
                experiment.delete()
            cluster.experiment(self._number_of(BEST)).set(description="")
            self._submit_active(cluster)

    def export_trials(self) -> list[dict[str, Any]]:
        """Return the ended searches with the parameters and values of their trials."""
        with self.laptop.cluster() as cluster:
            return [
                {
                    "name": experiment.data["name"],
                    "trials": [_describe(trial) for trial in experiment.trials()],
                }
                for experiment in map(cluster.experiment, self._ended)
            ]

    def _number_of(self, name: str) -> int:
        return self._ended[list(FLOORS).index(name)]

    def _submit_active(self, cluster: Client) -> None:
        """Start a search that takes both slots for hours, and wait until another one waits."""
        self._submit(cluster, RUNNING, 2, pause=1.0, batches=10_000)
        waiting = self._submit(cluster, WAITING, 4)
        wait_until(lambda: cluster.job(waiting).data["waits"], what="the reason of the wait")

    def _submit(self, cluster: Client, name: str, trials: int, **fields: Any) -> int:
        """Submit a random search, and return the number of the experiment."""
        config = _config(name, trials, **fields)
        return int(cluster.create_experiment(config, self._model).id)


def _config(
    name: str,
    trials: int,
    *,
    seed: int = 1,
    floor: float = 0.4,
    fails_at: int = 0,
    pause: float = 0.0,
    batches: int = BATCHES,
) -> dict[str, Any]:
    return {
        "name": name,
        "entrypoint": "python train.py",
        "hyperparameters": {
            "lr": {"type": "log", "base": 10, "minval": -4, "maxval": -1},
            "dropout": {"type": "double", "minval": 0, "maxval": 0.5},
            "width": {"type": "categorical", "vals": [64, 128, 256]},
            "floor": floor,
            "fails_at": fails_at,
            "pause": pause,
        },
        "searcher": {
            "name": "random",
            "metric": "loss",
            "max_trials": trials,
            "max_length": {"batches": batches},
        },
        "max_restarts": 0,
        "reproducibility": {"experiment_seed": seed},
    }


def _describe(trial: Any) -> dict[str, Any]:
    """Return the parameters, the final value and the curve of a trial, for a study of Optuna."""
    fields = trial.data
    hparams = {name: fields["hparams"][name] for name in ("lr", "dropout", "width")}
    curve = {
        metric["steps_completed"]: metric["metrics"]["loss"] for metric in trial.metrics("training")
    }
    completed = fields["state"] == "COMPLETED"
    return {
        "hparams": hparams,
        "value": fields["best_metric"],
        "curve": curve,
        "completed": completed,
    }
