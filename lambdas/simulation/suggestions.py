"""Suggestions of a model that knows nothing and takes no time: points drawn by their numbers."""

from collections.abc import Mapping, Sequence

from control_plane.searchers.randomness import Generator
from control_plane.searchers.space import draw
from control_plane.suggestions.model import Observation, Problem


def drawn_point(
    problem: Problem, observations: Sequence[Observation], number: int
) -> Mapping[str, object]:
    """See Model."""
    generator = Generator.seeded((problem.seed + number) % 2**32)
    return draw(problem.space, generator, maxval_drawn=problem.maxval_drawn)
