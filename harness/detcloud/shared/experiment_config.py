"""An experiment's configuration as Determined's code reads it: a dict with getters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ExperimentConfig(dict[str, Any]):
    """An experiment's configuration with Determined's getters."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)

    def get_data_layer_type(self) -> str:
        """The type of `data_layer`, `shared_fs` where there is none."""
        return str((self.get("data_layer") or {}).get("type", "shared_fs"))

    def get_searcher_metric(self) -> str:
        """The metric that the search goes by."""
        return str(self["searcher"]["metric"])

    def experiment_seed(self) -> int:
        """The seed of the experiment, 0 where none is given."""
        return int((self.get("reproducibility") or {}).get("experiment_seed") or 0)

    def slots_per_trial(self) -> int:
        """The slots of a trial, 1 where nothing is said."""
        return int((self.get("resources") or {}).get("slots_per_trial", 1))

    def debug_enabled(self) -> bool:
        return bool(self.get("debug"))

    def scheduling_unit(self) -> int:
        """The batches of a training workload, which 0.12 called a step."""
        return int(self.get("scheduling_unit") or 100)

    batches_per_step = scheduling_unit

    def get_records_per_epoch(self) -> int | None:
        records = self.get("records_per_epoch")
        return None if records is None else int(records)

    def get_min_validation_period(self) -> dict[str, Any]:
        """The period with its unit, empty where validations have none."""
        return dict(self.get("min_validation_period") or {})

    def get_min_checkpoint_period(self) -> dict[str, Any]:
        """The period with its unit, empty where checkpoints have none."""
        return dict(self.get("min_checkpoint_period") or {})

    def get_optimizations_config(self) -> dict[str, Any]:
        return dict(self.get("optimizations") or {})

    def get_checkpoint_storage(self) -> dict[str, Any]:
        return dict(self.get("checkpoint_storage") or {})

    def get_entrypoint(self) -> str | list[str]:
        entrypoint: str | list[str] = self["entrypoint"]
        return entrypoint

    def average_training_metrics_enabled(self) -> bool:
        """Whether training metrics are averaged over the slots, as is the default."""
        return bool(self.get_optimizations_config().get("average_training_metrics", True))

    averaging_training_metrics_enabled = average_training_metrics_enabled

    def mixed_precision_enabled(self) -> bool:
        return bool(self.get_optimizations_config().get("mixed_precision", "O0") != "O0")

    def profiling_enabled(self) -> bool:
        return bool((self.get("profiling") or {}).get("enabled"))

    def native_enabled(self) -> bool:
        """Never: experiments are made from a configuration and a folder."""
        return False

    native_parallel_enabled = input_from_dataflow = native_enabled
