"""Write searches as studies of Optuna: `PYTHON optuna_studies.py SEARCHES.json DATABASE`.

PYTHON is the one of Optuna's dashboard, so that both have the same version of Optuna.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import optuna

SPACE: dict[str, optuna.distributions.BaseDistribution] = {
    "lr": optuna.distributions.FloatDistribution(1e-4, 1e-1, log=True),
    "dropout": optuna.distributions.FloatDistribution(0, 0.5),
    "width": optuna.distributions.CategoricalDistribution([64, 128, 256]),
}


def main() -> None:
    """Write all searches of a file."""
    source, database = Path(sys.argv[1]), sys.argv[2]
    for search in json.loads(source.read_text()):
        study = optuna.create_study(storage=f"sqlite:///{database}", study_name=search["name"])
        for trial in search["trials"]:
            has_ended = trial["completed"]
            state = optuna.trial.TrialState.COMPLETE if has_ended else optuna.trial.TrialState.FAIL
            study.add_trial(
                optuna.trial.create_trial(
                    state=state,
                    value=trial["value"] if has_ended else None,
                    params=trial["hparams"],
                    distributions=SPACE,
                    intermediate_values={int(step): loss for step, loss in trial["curve"].items()},
                )
            )


if __name__ == "__main__":
    main()
