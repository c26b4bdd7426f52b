"""A random search of short trials for stepped clusters, and the specifications of the trials."""

from typing import Any

from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.lengths import Lengths
from control_plane.actors.messages.experiment import ExperimentSubmitted
from control_plane.actors.records import TrialSettings
from control_plane.actors.trial.state import TrialState
from control_plane.searchers.era_rules import LENGTH_ERA
from control_plane.searchers.methods.random import RandomPlan
from control_plane.searchers.search import SearchPlan
from control_plane.searchers.space import Double, Group

POOL = "default"


def submission(
    experiment_id: int, trials: int, concurrent: int = 0, max_restarts: int = 5
) -> ExperimentSubmitted:
    """Return the submission of a random search. Its trials have one slot and train four batches.

    Args:
        concurrent: the maximum number of trials at a time. 0 for no limit.
    """
    space = Group({"x": Double(0.0, 1.0), "y": Double(0.0, 1.0)})
    plan = SearchPlan(RandomPlan(4, trials, concurrent, LENGTH_ERA), space, 7)
    settings = TrialSettings(POOL, 1, max_restarts, True, Lengths("batches"), experiment_id)
    return ExperimentSubmitted(
        experiment_id=experiment_id,
        owner="me",
        name="search",
        config="{}",
        code_sha256="0" * 64,
        plan=plan,
        settings=settings,
        metric="loss",
        searcher="random",
        paused=False,
    )


def build_search_spec(
    experiment: ExperimentState, definition: Definition, trial: TrialState
) -> dict[str, Any]:
    """Return the fields of a trial's specification that scripts read."""
    return {
        "experiment_id": experiment.experiment_id,
        "trial_id": trial.trial_id,
        "metric": experiment.metric,
        "hparams": dict(trial.hparams),
        "restarts": trial.restarts,
    }
