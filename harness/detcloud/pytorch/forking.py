"""torch in the fork server: modules to load once, and generators to renew in each forked trial.

Nothing here may compute in parallel. OpenMP's threads do not exist in a forked process, which would
wait for them forever.
"""

from __future__ import annotations

import sys

import torch


def preload_torch() -> None:
    """Import modules that torch imports only for an optimizer. No setting is changed."""
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def reseed_from_entropy() -> None:
    """Seed torch's and NumPy's generators as in a new process.

    NumPy is only seeded if numpy.random is imported. Python seeds its own after a fork.
    """
    torch.default_generator.seed()
    if "numpy.random" in sys.modules:
        import numpy

        numpy.random.seed()
