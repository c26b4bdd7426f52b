"""Immediate suggestions for an experiment whose actor is in memory, for example in simulations."""

from collections.abc import Iterable, Mapping

from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.experiment.suggestions import awaited_suggestion
from control_plane.actors.experiment.trial_summaries import Summaries
from control_plane.searchers.method import SuggestedPoints
from control_plane.searchers.methods.bayesian import HPARAMS_BLOBS
from control_plane.suggestions.model import suggest_point
from control_plane.suggestions.suggester import to_observations, to_problem


def suggest_from_parts(experiment: ExperimentState, parts: Mapping[str, object]) -> SuggestedPoints:
    """Return the suggestion for the experiment's first open request.

    The experiment must have an open request.

    Args:
        parts: the parts of the experiment's actor, by name.

    Raises:
        ImportError: Optuna is not installed.
    """
    number, definition = awaited_suggestion(experiment), parts["definition"]
    assert number is not None
    assert isinstance(definition, Definition)
    blobs = (parts[name] for name in _numbered_parts(parts, f"search/{HPARAMS_BLOBS}"))
    hparams_blobs = [blob for blob in blobs if isinstance(blob, bytes)]
    trial_parts = (parts[name] for name in _numbered_parts(parts, "trials/"))
    summaries = [
        summary for part in trial_parts if isinstance(part, Summaries) for summary in part.trials
    ]
    observations = to_observations(hparams_blobs, summaries)
    point = suggest_point(to_problem(definition, experiment), observations, number)
    return SuggestedPoints(number, (point,))


def _numbered_parts(parts: Iterable[str], prefix: str) -> list[str]:
    """Return the names that begin with `prefix`, sorted by the number after the prefix."""
    matching = [name for name in parts if name.startswith(prefix)]
    return sorted(matching, key=lambda name: int(name.removeprefix(prefix)))
