"""A model for simulated Bayesian searches, which learns nothing and takes no time."""

from collections.abc import Mapping, Sequence

from control_plane.searchers.randomness import Generator
from control_plane.searchers.space import draw_hparams
from control_plane.suggestions.model import Observation, Problem


def sample_point(
    problem: Problem, observations: Sequence[Observation], number: int
) -> Mapping[str, object]:
    """Return random hyperparameters, which depend on the seed and `number` only.

    The observations are ignored.
    """
    generator = Generator.from_seed((problem.seed + number) % 2**32)
    return draw_hparams(problem.space, generator, maxval_drawn=problem.maxval_drawn)
