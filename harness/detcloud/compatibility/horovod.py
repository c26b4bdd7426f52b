"""`determined.horovod.hvd`: Horovod, imported at the first use of an attribute.

Determined's examples import `hvd` at the top of a module, but use it only with Horovod.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

FRAMEWORKS = ("torch", "tensorflow", "tensorflow.keras")


class Horovod:
    """The functions of Horovod for a framework, by default torch.

    Attributes are those of `horovod.FRAMEWORK`. Raises ImportError if Horovod is not installed.
    """

    def __init__(self) -> None:
        self._framework = "torch"

    def require_horovod_type(self, horovod_type: str, reason: str = "") -> None:
        """Choose the framework. Raises ValueError for another word than those in FRAMEWORKS.

        `reason` changes nothing.
        """
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
