"""Suggestions of a model that learns nothing and takes no time: points drawn by their numbers."""

from collections.abc import Mapping, Sequence

from control_plane.searchers.randomness import Generator
from control_plane.searchers.space import draw_hparams
from control_plane.suggestions.model import Observation, Problem


def sample_point(
    problem: Problem, observations: Sequence[Observation], number: int
) -> Mapping[str, object]:
    """Sample a point, as described in SuggestionModel."""
    generator = Generator.from_seed((problem.seed + number) % 2**32)
    return draw_hparams(problem.space, generator, maxval_drawn=problem.maxval_drawn)
