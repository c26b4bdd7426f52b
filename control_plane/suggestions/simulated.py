"""Suggestions for an experiment whose actors are simulated: from its live parts, at once."""

from collections.abc import Iterable, Mapping

from control_plane.actors.experiment_state import Definition, ExperimentState
from control_plane.actors.experiment_suggestions import awaited
from control_plane.actors.experiment_summaries import Summaries
from control_plane.searchers.bayesian import TRIED
from control_plane.searchers.method import Suggested
from control_plane.suggestions.model import suggested
from control_plane.suggestions.suggester import observed, problem_of


def suggestion(experiment: ExperimentState, parts: Mapping[str, object]) -> Suggested:
    """The suggestion that the experiment waits for; ImportError without Optuna."""
    number, definition = awaited(experiment), parts["definition"]
    assert number is not None
    assert isinstance(definition, Definition)
    pieces = (parts[name] for name in _numbered(parts, f"search/{TRIED}"))
    tried = [piece for piece in pieces if isinstance(piece, bytes)]
    kept = (parts[name] for name in _numbered(parts, "trials/"))
    summaries = [one for part in kept if isinstance(part, Summaries) for one in part.trials]
    known = observed(tried, summaries)
    return Suggested(number, (suggested(problem_of(definition, experiment), known, number),))


def _numbered(parts: Iterable[str], prefix: str) -> list[str]:
    """The parts whose names are a prefix and a number, in the order of the numbers."""
    named = [name for name in parts if name.startswith(prefix)]
    return sorted(named, key=lambda name: int(name.removeprefix(prefix)))
