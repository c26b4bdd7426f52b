"""Optuna's TPE over the digits: a search method of one's own, run beside the cluster.

python search.py             # Ctrl-C, and the same again goes on where it was
"""

import argparse
import logging
from pathlib import Path
from uuid import UUID, uuid4

import optuna

from detcloud import DetcloudError, searcher

HERE = Path(__file__).resolve().parent


class TreeParzen(searcher.SearchMethod):
    """Keeps `concurrent` trials open until `trials` have ended; each trains `epochs`.

    Study and sampler are plain data, so that the method is kept by pickling it, which is what a
    method does that says nothing else.
    """

    def __init__(self, trials: int, concurrent: int, epochs: int) -> None:
        self.trials = trials
        self.concurrent = concurrent
        self.epochs = epochs
        self.numbers: dict[UUID, int] = {}
        # Random points first; the default, ten of them, would leave TPE little to do.
        sampler = optuna.samplers.TPESampler(seed=17, n_startup_trials=4)
        self.study = optuna.create_study(direction="maximize", sampler=sampler)

    def initial_operations(self, searcher_state: searcher.SearcherState) -> list:
        return [one for _ in range(self.concurrent) for one in self.next_trial()]

    def on_trial_created(self, searcher_state: searcher.SearcherState, request_id: UUID) -> list:
        return []

    def on_validation_completed(
        self,
        searcher_state: searcher.SearcherState,
        request_id: UUID,
        metric: float,
        train_length: int,
    ) -> list:
        self.study.tell(self.numbers[request_id], metric)
        return [searcher.Close(request_id)]

    def on_trial_exited_early(
        self,
        searcher_state: searcher.SearcherState,
        request_id: UUID,
        exited_reason: searcher.ExitedReason,
    ) -> list:
        number = self.numbers[request_id]
        self.study.tell(number, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)
        return []

    def on_trial_closed(self, searcher_state: searcher.SearcherState, request_id: UUID) -> list:
        if len(searcher_state.trials_closed) == self.trials:
            return [searcher.Shutdown()]
        return self.next_trial() if len(self.numbers) < self.trials else []

    def progress(self, searcher_state: searcher.SearcherState) -> float:
        return sum(searcher_state.trial_progress.values()) / (self.trials * self.epochs)

    def next_trial(self) -> list:
        """Where TPE expects most."""
        trial = self.study.ask()
        request_id = uuid4()
        self.numbers[request_id] = trial.number
        hparams = {
            "global_batch_size": 64,
            "learning_rate": trial.suggest_float("learning_rate", 0.003, 0.16, log=True),
            "dropout": trial.suggest_float("dropout", 0.1, 0.5),
            "n_filters": trial.suggest_categorical("n_filters", [8, 16, 32]),
            "weight_decay": trial.suggest_float("weight_decay", 1e-5, 1e-3, log=True),
        }
        return [
            searcher.Create(request_id, hparams),
            searcher.ValidateAfter(request_id, self.epochs),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--concurrent", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--folder", default="tpe-search", help="what a search goes on from")
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("detcloud.searcher").setLevel(logging.INFO)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    method = TreeParzen(options.trials, options.concurrent, options.epochs)
    runner = searcher.LocalSearchRunner(method, options.folder)
    try:
        experiment = runner.run(HERE / "tpe.yaml", HERE.parent)
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the same command goes on") from None
    except DetcloudError as error:
        raise SystemExit(f"error: {error}") from None
    best = method.study.best_trial
    print(f"experiment {experiment}: accuracy {best.value:.4f} in trial {best.number + 1}")
    for name, value in best.params.items():
        print(f"  {name} {value:.5g}")


if __name__ == "__main__":
    main()
