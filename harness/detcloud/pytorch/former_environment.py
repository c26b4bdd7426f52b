"""Facts about a trial, which Determined's contexts and controllers had as `env`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from detcloud.core import TrialSpec
from detcloud.shared.errors import DetcloudError
from detcloud.shared.experiment_config import ExperimentConfig
from detcloud.shared.hparam_values import choose_hparams


class Environment:
    """Facts about a trial. `latest_checkpoint` is always None, as the Trainer loads the checkpoint.

    Attributes of Determined that do not exist here raise AttributeError.
    """

    latest_checkpoint = None
    training = on_cluster = managed_training = True

    def __init__(self, spec: TrialSpec) -> None:
        """Copy the facts of the specification."""
        self.hparams = spec.hparams
        self.experiment_config = ExperimentConfig(spec.config)
        self.debug, self.test_mode = self.experiment_config.debug_enabled(), spec.test_mode
        self.trial_seed, self.steps_completed = spec.trial_seed, spec.steps_completed
        self.trial_run_id, self.allocation_id = spec.epoch, spec.allocation_id
        self.det_trial_id, self.det_experiment_id = str(spec.trial_id), str(spec.experiment_id)
        self.det_cluster_id, self.det_agent_id = spec.cluster_id, spec.agent_id
        self.slot_ids, self.use_gpu = list(spec.slots), torch.cuda.is_available()
        # Names of the first releases.
        self.latest_batch, self.det_trial_unique_port_offset = spec.steps_completed, 0
        self._slots = max(1, len(spec.slots)) * max(1, spec.nodes)

    @property
    def global_batch_size(self) -> int:
        """The hyperparameter `global_batch_size`. Raises DetcloudError if it is missing."""
        if "global_batch_size" not in self.hparams:
            raise DetcloudError(
                "env.global_batch_size needs the hyperparameter global_batch_size: add it below"
                " hyperparameters in the configuration"
            )
        return int(self.hparams["global_batch_size"])

    @property
    def per_slot_batch_size(self) -> int:
        """The records in a slot's share of a batch, rounded down.

        Raises DetcloudError if the hyperparameter `global_batch_size` is missing.
        """
        return self.global_batch_size // self._slots

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError: the attribute of Determined does not exist here."""
        raise AttributeError(
            f"env.{name} is not supported by detcloud: a trial makes no requests to the cluster;"
            " what it may know is in determined.get_cluster_info()"
        )


@dataclass
class HorovodSettings:
    """Determined's settings of Horovod. `use` is False: a PyTorchTrial never runs Horovod here."""

    aggregation_frequency: int = 1
    average_aggregated_gradients: bool = True
    fp16_compression: bool = False
    average_training_metrics: bool = True
    use: bool = False


def read_horovod_settings(config: Mapping[str, Any]) -> HorovodSettings:
    """Return the settings in the section `optimizations` of a configuration."""
    options = config.get("optimizations") or {}
    return HorovodSettings(
        aggregation_frequency=options.get("aggregation_frequency", 1),
        average_aggregated_gradients=options.get("average_aggregated_gradients", True),
        fp16_compression=bool(options.get("gradient_compression")),
        average_training_metrics=options.get("average_training_metrics", True),
    )


def first_hparams(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyperparameters for trying a trial's methods: constants, and each range's minimum.

    Of a categorical hyperparameter, the first value is returned. `space` is the section
    `hyperparameters` of a configuration.
    """
    return choose_hparams(space, _first_number)


def _first_number(value: Mapping[str, Any]) -> Any:
    """Return the minimum of a range; a logarithmic range has a minimum exponent."""
    least = value["minval"]
    return float(value.get("base", 10)) ** least if value["type"] == "log" else least
