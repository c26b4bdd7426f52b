"""A Lightning logger that reports the logged metrics."""

from __future__ import annotations

from typing import Any

from detcloud import core
from detcloud.lightning.package import loggers
from detcloud.shared.errors import DetcloudError

_Logger: Any = loggers.Logger


class DetLogger(_Logger):
    """Reports the metrics that a Trainer logs outside of validations, as training metrics.

    TrialCallback reports the validations.
    """

    def __init__(
        self, core_context: core.Context | None = None, *, config: Any = None, client: Any = None
    ) -> None:
        """Create a logger.

        Args:
            core_context: the context of `core.init`.
            config: refused; exists for scripts written for Determined.
            client: refused; exists for scripts written for Determined.

        Raises:
            DetcloudError: the context is missing, or `config` or `client` is given.
        """
        super().__init__()
        if core_context is None or config is not None or client is not None:
            raise DetcloudError(
                "DetLogger reports to a trial: give it the context alone, `with "
                "detcloud.core.init() as context: DetLogger(context)`"
            )
        self._core, self.is_validating = core_context, False

    @property
    def name(self) -> str:
        return "DetLogger"

    @property
    def version(self) -> str:
        return str(self._core.info.trial_id)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the trial's hyperparameters are those of the configuration.

        Args:
            params: ignored.
            args: ignored.
            kwargs: ignored.
        """

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        # Lightning's count does not include the present step.
        if self._core.is_chief and not self.is_validating:
            self._core.train.report_new_metrics("training", (step or 0) + 1, metrics)
