"""Torch in a process from which trials are forked: what such a process loads, what a trial renews.

Nothing here computes in parallel: OpenMP's threads do not live on in a forked process, and a
child of one that has them waits for them forever.
"""

from __future__ import annotations

import sys

import torch


def preload() -> None:
    """Load what torch itself loads only when a trial sets up its optimizer, and change nothing."""
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def draw_entropy() -> None:
    """Seed torch's and NumPy's generators as a new process does. Python's own does so by itself."""
    torch.default_generator.seed()
    if "numpy.random" in sys.modules:
        import numpy

        numpy.random.seed()
