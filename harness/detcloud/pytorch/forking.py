"""Torch in the fork server: what it loads once, and what each forked trial renews.

Nothing here computes in parallel: OpenMP's threads do not live on in a forked process, and a
child of one that has them waits for them forever.
"""

from __future__ import annotations

import sys

import torch


def preload_torch() -> None:
    """Load what torch itself loads only when a trial sets up its optimizer; change no setting."""
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def reseed_from_entropy() -> None:
    """Seed torch's and NumPy's generators as a new process does; Python does so by itself."""
    torch.default_generator.seed()
    if "numpy.random" in sys.modules:
        import numpy

        numpy.random.seed()
