"""How the training itself is done: optimizations, profiling, reproducibility."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from control_plane.config.section import Count, CountOrZero, Section, refuse

SEED_MAX: Final = (1 << 31) - 1


class Optimizations(Section):
    """Trades of exactness against speed."""

    aggregation_frequency: Count = 1
    average_aggregated_gradients: bool = True
    average_training_metrics: bool = True
    gradient_compression: bool = False
    mixed_precision: Literal["O0", "O1", "O2", "O3"] = "O0"
    tensor_fusion_threshold: CountOrZero = 64
    tensor_fusion_cycle_time: CountOrZero = 1
    auto_tune_tensor_fusion: bool = False


class Profiling(Section):
    """Which batches are profiled."""

    enabled: bool = False
    begin_on_batch: CountOrZero = 0
    end_after_batch: CountOrZero | None = None
    sync_timings: bool = True

    @field_validator("end_after_batch")
    @classmethod
    def _check_end(cls, end: int | None, info: ValidationInfo) -> int | None:
        begin = info.data.get("begin_on_batch", 0)
        if end is not None and end < begin:
            refuse(f"must be at least begin_on_batch ({begin}), not {end}")
        return end


class Reproducibility(Section):
    """What makes a run repeatable; the cluster picks a seed where none is given."""

    experiment_seed: Annotated[int, Field(ge=0, le=SEED_MAX)]
