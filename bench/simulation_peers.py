"""Peers' searches on the curves of the table, each in a separate process: `python -m
bench.simulation_peers NAME NUMBERS` prints the result as JSON.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.curve_table import DIVISOR, EPOCHS, PARAMETERS, RUNGS, curves, epoch_seconds, row_of
from bench.peers import MARK


class Best:
    """The least loss at a rung within a budget of epochs. Later reports are ignored."""

    def __init__(self, budget: int) -> None:
        self.loss = float("inf")
        self.epochs = 0
        self._budget = budget

    def take(self, epoch: int, loss: float) -> None:
        """Count a trained epoch, and keep the loss if the epoch is a rung within the budget."""
        self.epochs += 1
        if epoch in RUNGS and self.epochs <= self._budget:
            self.loss = min(self.loss, loss)


def syne_tune_seconds(workers: int, trials: int) -> float:
    """Return the seconds that Syne Tune simulates an ASHA of `trials` trials, without imports."""
    from syne_tune import StoppingCriterion

    tuner = _tuner(workers, 7, StoppingCriterion(max_num_trials_started=trials - 1))
    started = time.perf_counter()
    tuner.run()
    return time.perf_counter() - started


def syne_tune_best(seeds: int, budget: int) -> list[float]:
    """Return the best loss of Syne Tune's ASHA for each seed."""
    from syne_tune import StoppingCriterion
    from syne_tune.tuner_callback import TunerCallback

    class Watch(TunerCallback):
        def __init__(self, best: Best) -> None:
            self._best = best

        def on_trial_result(
            self, trial: Any, status: str, result: dict[str, Any], decision: str
        ) -> None:
            self._best.take(result["epoch"], result["loss"])

    found = []
    for seed in range(seeds):
        best = Best(budget)
        stop = StoppingCriterion(max_num_evaluations=budget)
        _tuner(1, seed, stop, Watch(best)).run()
        found.append(best.loss)
    return found


def optuna_best(seeds: int, budget: int) -> list[float]:
    """Return the best loss with Optuna's SuccessiveHalvingPruner for each seed. Trials run one
    after the other.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    table = curves()
    found = []
    for seed in range(seeds):
        best = Best(budget)

        def objective(trial: Any, best: Best = best) -> float:
            hparams = {name: trial.suggest_float(name, 0.0, 1.0) for name in PARAMETERS}
            losses = table[row_of(hparams)]
            for epoch, loss in enumerate(losses, 1):
                trial.report(loss, epoch)
                best.take(epoch, loss)
                if trial.should_prune():
                    raise optuna.TrialPruned
            return losses[-1]

        study = optuna.create_study(
            sampler=optuna.samplers.RandomSampler(seed=seed),
            pruner=optuna.pruners.SuccessiveHalvingPruner(
                min_resource=1, reduction_factor=DIVISOR, min_early_stopping_rate=0
            ),
        )
        while best.epochs < budget:
            study.optimize(objective, n_trials=1)
        found.append(best.loss)
    return found


def _tuner(workers: int, seed: int, stop: object, *callbacks: object) -> Any:
    # Syne Tune writes results to this folder instead of the home folder.
    os.environ["SYNETUNE_FOLDER"] = str(Path.cwd())
    import numpy as np
    from syne_tune import Tuner
    from syne_tune.backend.simulator_backend.simulator_callback import SimulatorCallback
    from syne_tune.blackbox_repository import UserBlackboxBackend
    from syne_tune.blackbox_repository.blackbox import Blackbox
    from syne_tune.config_space import uniform
    from syne_tune.optimizer.schedulers.asha import AsynchronousSuccessiveHalving

    logging.disable(logging.CRITICAL)
    epochs = np.arange(1, EPOCHS + 1)
    rows = [
        np.stack([losses, epochs * seconds], axis=1)
        for losses, seconds in zip(curves(), epoch_seconds(), strict=True)
    ]
    space = {name: uniform(0.0, 1.0) for name in PARAMETERS}

    class Table(Blackbox):
        fidelity_values = epochs

        def _objective_function(
            self, configuration: dict[str, Any], fidelity: object = None, seed: object = None
        ) -> Any:
            return rows[row_of(configuration)]

        def fidelity_name(self) -> str:
            return "epoch"

    blackbox = Table(space, {"epoch": None}, ["loss", "elapsed"])
    np.random.seed(seed)
    return Tuner(
        trial_backend=UserBlackboxBackend(blackbox, elapsed_time_attr="elapsed"),
        scheduler=AsynchronousSuccessiveHalving(
            space,
            metric="loss",
            time_attr="epoch",
            max_t=EPOCHS,
            grace_period=1,
            reduction_factor=DIVISOR,
            random_seed=seed,
        ),
        stop_criterion=stop,
        n_workers=workers,
        sleep_time=0,
        wait_trial_completion_when_stopping=True,
        callbacks=[SimulatorCallback(), *callbacks],
        save_tuner=False,
    )


PEERS: dict[str, Callable[[int, int], object]] = {
    "syne-tune-seconds": syne_tune_seconds,
    "syne-tune-best": syne_tune_best,
    "optuna-best": optuna_best,
}


if __name__ == "__main__":
    answer = PEERS[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
    print(f"{MARK}{json.dumps(answer)}", flush=True)
