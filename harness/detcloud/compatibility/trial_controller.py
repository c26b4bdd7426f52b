"""The classes that code with a trial controller derives from: trial, context and controller.

Determined 0.12 to 0.37 let a trial class name a controller, which trains, validates and saves when
it is told to, as `trial_controller_class`. `controller_loop` tells it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from detcloud import core, pytorch


class TrialContext(pytorch.PyTorchTrialContext):
    """A trial's context."""

    def __init__(self, core_context: core.Context) -> None:
        super().__init__(core_context)
        self._core = core_context


class Trial(ABC):
    """A trial that names a controller class, and perhaps the class of its context."""

    framework: ClassVar[str] = "detcloud.compatibility.controller_loop"
    trial_controller_class: ClassVar[Any] = None
    trial_context_class: ClassVar[Any] = TrialContext

    @abstractmethod
    def __init__(self, context: Any) -> None: ...


_pytorch_trial: Any = pytorch.PyTorchTrial
Trial.register(_pytorch_trial)


class TrialController:
    """The base class of controllers. `workloads` is empty, so a controller's loop has no work."""

    def __init__(self, context: Any, env: Any, workloads: Any = (), **others: Any) -> None:
        self.context, self.env, self.workloads = context, env, workloads
        self.load_path = others.get("load_path")
        self.rendezvous_info = self.hvd_config = self.prof = None
        self.use_horovod, self.use_torch = False, context.distributed.size > 1
        self.is_chief = context.distributed.rank == 0

    def upload_tb_files(self) -> None:
        """Do nothing: every reported number is in the trial's event files."""

    def terminate(self) -> None:
        """Called at the end."""
