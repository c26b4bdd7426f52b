"""Seeding, capturing and restoring the random generators of a trial."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from detcloud.pytorch.devices import uses_mps

numpy: ModuleType | None
try:
    import numpy
except ImportError:
    numpy = None


def seed_all(seed: int) -> None:
    """Seed the generators of Python, torch and, if installed, NumPy. `seed` is in [0, 2^32)."""
    random.seed(seed)
    torch.manual_seed(seed)
    if numpy is not None:
        numpy.random.seed(seed)


def seed_worker(seed: int) -> None:
    """Seed the generators of `seed_all`, quickly. GPU generators are seeded only if in use.

    Unless a GPU is in use, torch.manual_seed records each call for later. That takes most of a
    millisecond and more memory each time.
    """
    cuda: Any = torch.cuda
    if cuda.is_initialized():
        seed_all(seed)
        return
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if numpy is not None:
        numpy.random.seed(seed)


def capture_state() -> dict[str, Any]:
    """Return the states of the generators of Python, torch, all GPUs and, if installed, NumPy.

    The GPU of a Mac counts if the trial has its slot. The result contains tensors and plain data.
    """
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }
    if uses_mps():
        state["mps"] = torch.mps.get_rng_state()
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state(legacy=True)
        state["numpy"] = [name, keys.tolist(), *rest]
    return state


def restore_state(state: dict[str, Any]) -> None:
    """Set the generators of Python, torch, the GPUs and NumPy to a captured state.

    States of GPUs that do not exist here are ignored. GPUs without a state keep their generators,
    and so does NumPy. Raises KeyError, TypeError, ValueError or another Exception for anything but
    a captured state; some generators may be changed then.
    """
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(state["torch"])
    for index, device_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(device_state, index)
    if "mps" in state and uses_mps():
        torch.mps.set_rng_state(state["mps"])
    if numpy is not None and "numpy" in state:
        name, keys, *rest = state["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), *rest))


@contextmanager
def preserve_state() -> Iterator[None]:
    """Restore the present state of all generators at the end of the block, also after an error.

    The generators are those of Python, torch, all GPUs and, if installed, NumPy.
    """
    state = capture_state()
    try:
        yield
    finally:
        restore_state(state)
