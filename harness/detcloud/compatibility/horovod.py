"""`determined.horovod.hvd`: Horovod, imported when a name of it is used.

Determined's examples import `hvd` at the top of a module and use it only where there is Horovod.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

FRAMEWORKS = ("torch", "tensorflow", "tensorflow.keras")


class Horovod:
    """Horovod for one framework, by default torch."""

    def __init__(self) -> None:
        self._framework = "torch"

    def require_horovod_type(self, horovod_type: str, reason: str = "") -> None:
        """Choose the framework whose functions the other names are."""
        if horovod_type not in FRAMEWORKS:
            known = ", ".join(FRAMEWORKS)
            raise ValueError(f"Horovod type {horovod_type!r:.80}: expected one of {known}")
        self._framework = horovod_type

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._load_module(name), name)

    def _load_module(self, name: str) -> ModuleType:
        try:
            return importlib.import_module(f"horovod.{self._framework}")
        except ModuleNotFoundError as error:
            raise ImportError(
                f"determined.horovod.hvd.{name} needs Horovod, which is not installed: install it "
                "in the image, or use context.distributed (rank, size, allgather, broadcast) and "
                "torch.distributed"
            ) from error


hvd = Horovod()
