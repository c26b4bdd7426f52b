"""The base classes of code with a trial controller: trial, context and controller.

In Determined 0.12 to 0.37 a trial class could name a controller, as `trial_controller_class`. The
controller trains, validates and saves when its methods are called. `controller_loop` calls them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from detcloud import core, pytorch
from detcloud.compatibility.metric_writers import BatchMetricWriter, get_metric_writer


class TrialContext(pytorch.PyTorchTrialContext):
    """The context of a trial with a controller."""

    def __init__(self, core_context: core.Context) -> None:
        super().__init__(core_context)
        self._core = core_context


class Trial(ABC):
    """A trial that names the class of the controller and optionally of the context."""

    framework: ClassVar[str] = "detcloud.compatibility.controller_loop"
    trial_controller_class: ClassVar[Any] = None
    trial_context_class: ClassVar[Any] = TrialContext

    @abstractmethod
    def __init__(self, context: Any) -> None: ...


_pytorch_trial: Any = pytorch.PyTorchTrial
Trial.register(_pytorch_trial)


class TrialController:
    """The base class of controllers.

    With empty `workloads`, a controller's own loop does nothing.
    """

    def __init__(self, context: Any, env: Any, workloads: Any = (), **others: Any) -> None:
        self.context, self.env, self.workloads = context, env, workloads
        self.load_path = others.get("load_path")
        self.rendezvous_info = self.hvd_config = self.prof = None
        self.use_horovod, self.use_torch = False, context.distributed.size > 1
        self.is_chief = context.distributed.rank == 0
        self.scheduling_unit = context.core.info.scheduling_unit
        self.metric_writer = self.create_metric_writer()

    @classmethod
    def create_metric_writer(cls) -> BatchMetricWriter:
        """Return the controller's `metric_writer`. A controller may override this method."""
        return get_metric_writer()

    @classmethod
    def supports_mixed_precision(cls) -> bool:
        """Return whether the controller trains with mixed precision. Nothing here calls this
        method.
        """
        return False

    def close(self) -> None:
        """Close the context, as Determined's controllers do at the end."""
        self.context.close()

    def upload_tb_files(self) -> None:
        """Do nothing: the trial's event files already have every reported metric."""

    def terminate(self) -> None:
        """Called after the training. Does nothing by default."""
