"""An experiment's configuration with the interface of Determined: a dict with getters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ExperimentConfig(dict[str, Any]):
    """A copy of an experiment's configuration with Determined's getters.

    The getters of optional sections return copies, empty for a missing section. `get_entrypoint`
    raises KeyError without an entrypoint.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)

    def get_data_layer_type(self) -> str:
        """Return the type of `data_layer`, by default `shared_fs`."""
        return str((self.get("data_layer") or {}).get("type", "shared_fs"))

    def get_searcher_metric(self) -> str:
        """Return the name of the searcher metric. Raise KeyError if the configuration has none."""
        return str(self["searcher"]["metric"])

    def experiment_seed(self) -> int:
        """Return the seed of the experiment, by default 0."""
        return int((self.get("reproducibility") or {}).get("experiment_seed") or 0)

    def slots_per_trial(self) -> int:
        """Return the number of slots of a trial, by default 1."""
        return int((self.get("resources") or {}).get("slots_per_trial", 1))

    def debug_enabled(self) -> bool:
        return bool(self.get("debug"))

    def scheduling_unit(self) -> int:
        """Return the batches of a training workload (a step in Determined 0.12), by default 100."""
        return int(self.get("scheduling_unit") or 100)

    batches_per_step = scheduling_unit

    def get_records_per_epoch(self) -> int | None:
        records = self.get("records_per_epoch")
        return None if records is None else int(records)

    def get_min_validation_period(self) -> dict[str, Any]:
        """Return the minimum validation period as a dict of unit and number. Empty without one."""
        return dict(self.get("min_validation_period") or {})

    def get_min_checkpoint_period(self) -> dict[str, Any]:
        """Return the minimum checkpoint period as a dict of unit and number. Empty without one."""
        return dict(self.get("min_checkpoint_period") or {})

    def get_optimizations_config(self) -> dict[str, Any]:
        return dict(self.get("optimizations") or {})

    def get_checkpoint_storage(self) -> dict[str, Any]:
        return dict(self.get("checkpoint_storage") or {})

    def get_entrypoint(self) -> str | list[str]:
        entrypoint: str | list[str] = self["entrypoint"]
        return entrypoint

    def average_training_metrics_enabled(self) -> bool:
        """Whether training metrics are averaged over the slots. True by default."""
        return bool(self.get_optimizations_config().get("average_training_metrics", True))

    averaging_training_metrics_enabled = average_training_metrics_enabled

    def mixed_precision_enabled(self) -> bool:
        return bool(self.get_optimizations_config().get("mixed_precision", "O0") != "O0")

    def profiling_enabled(self) -> bool:
        return bool((self.get("profiling") or {}).get("enabled"))

    def native_enabled(self) -> bool:
        """Return False, because experiments are only created from a configuration and a folder."""
        return False

    native_parallel_enabled = input_from_dataflow = native_enabled
