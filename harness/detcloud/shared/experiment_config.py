"""An experiment's configuration with the interface of Determined: a dict with getters."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any


class ExperimentConfig(dict[str, Any]):
    """A copy of an experiment's configuration with Determined's getters.

    Only the outer dict is a copy. The getters of optional sections return shallow copies, empty for
    a missing or null section. `get_entrypoint` raises KeyError without an entrypoint.
    `get_records_per_epoch` returns None without a number. `debug_enabled`, `profiling_enabled` and
    `mixed_precision_enabled` return False without a setting. Types are not checked: getters convert
    a text by `str`, a number by `int` and a switch by `bool`, and errors of these are passed on. A
    null, empty or zero section counts as missing; another section that is no dict raises
    AttributeError, TypeError or ValueError.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)

    def get_data_layer_type(self) -> str:
        """Return the type of `data_layer`. `shared_fs` without the section or the type.

        A null type becomes "None".
        """
        return str((self.get("data_layer") or {}).get("type", "shared_fs"))

    def get_searcher_metric(self) -> str:
        """Return the name of the searcher metric.

        Raise KeyError if the configuration has no `searcher` or the searcher no `metric`, and
        TypeError for a null searcher. A null metric becomes "None".
        """
        return str(self["searcher"]["metric"])

    def experiment_seed(self) -> int:
        """Return the seed of the experiment. 0 for a missing, null or empty seed.

        Raise ValueError for a text that is no integer.
        """
        return int((self.get("reproducibility") or {}).get("experiment_seed") or 0)

    def slots_per_trial(self) -> int:
        """Return the number of slots of a trial. 1 for a share of a slot and for a missing or null
        number, and 0 for 0.

        Raise ValueError for a text that is no integer.
        """
        slots = (self.get("resources") or {}).get("slots_per_trial")
        if isinstance(slots, float):
            return ceil(slots)
        return 1 if slots is None else int(slots)

    def debug_enabled(self) -> bool:
        return bool(self.get("debug"))

    def scheduling_unit(self) -> int:
        """Return the batches of a training workload (a step in Determined 0.12).

        100 for a missing, null or zero number.
        """
        return int(self.get("scheduling_unit") or 100)

    batches_per_step = scheduling_unit

    def get_records_per_epoch(self) -> int | None:
        records = self.get("records_per_epoch")
        return None if records is None else int(records)

    def get_min_validation_period(self) -> dict[str, Any]:
        """Return a copy of the minimum validation period, a dict of unit and number.

        Empty for a missing or null period.
        """
        return dict(self.get("min_validation_period") or {})

    def get_min_checkpoint_period(self) -> dict[str, Any]:
        """Return a copy of the minimum checkpoint period, a dict of unit and number.

        Empty for a missing or null period.
        """
        return dict(self.get("min_checkpoint_period") or {})

    def get_optimizations_config(self) -> dict[str, Any]:
        return dict(self.get("optimizations") or {})

    def get_checkpoint_storage(self) -> dict[str, Any]:
        return dict(self.get("checkpoint_storage") or {})

    def get_entrypoint(self) -> str | list[str]:
        entrypoint: str | list[str] = self["entrypoint"]
        return entrypoint

    def average_training_metrics_enabled(self) -> bool:
        """Whether training metrics are averaged over the slots.

        True without the setting. Otherwise the truth of the value: False for null, 0 and "", and
        True for any other text.
        """
        return bool(self.get_optimizations_config().get("average_training_metrics", True))

    averaging_training_metrics_enabled = average_training_metrics_enabled

    def mixed_precision_enabled(self) -> bool:
        return bool(self.get_optimizations_config().get("mixed_precision", "O0") != "O0")

    def profiling_enabled(self) -> bool:
        return bool((self.get("profiling") or {}).get("enabled"))

    def native_enabled(self) -> bool:
        """Return False, because experiments are only created from a configuration and a folder.

        The methods `native_parallel_enabled` and `input_from_dataflow` are the same.
        """
        return False

    native_parallel_enabled = input_from_dataflow = native_enabled
