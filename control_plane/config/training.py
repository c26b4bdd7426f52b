"""Sections on the training itself: optimizations, profiling, reproducibility."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from control_plane.config.section import Section, refuse
from control_plane.field_types import Count, CountOrZero

SEED_MAX: Final = (1 << 31) - 1


class Optimizations(Section):
    """Trades of exactness against speed."""

    aggregation_frequency: Count = 1
    """The number of batches whose gradients are added before the optimizer steps."""
    average_aggregated_gradients: bool = True
    """Whether the added gradients are divided by the number of batches."""
    asynchronous_checkpoints: bool | None = None
    """Whether a trial continues training while its checkpoint is written and stored, as far as its
    memory allows. By default it does, except for a PyTorchTrial's states of less than 4 MiB in a
    folder of its machine.
    """
    average_training_metrics: bool = True
    """Whether training metrics are averages over all processes of a trial, not the chief's own."""
    gradient_compression: bool = False
    """Whether processes exchange gradients in half precision."""
    mixed_precision: Literal["O0", "O1", "O2", "O3"] = "O0"
    """All but `O0` run batches in torch's autocast on a GPU, with gradients scaled."""
    tensor_fusion_threshold: CountOrZero = 64
    """The MiB of gradients that processes exchange at a time; 0 leaves it to PyTorch."""
    tensor_fusion_cycle_time: CountOrZero = 1
    """Accepted, but has no effect."""
    auto_tune_tensor_fusion: bool = False
    """Accepted, but has no effect."""
    grad_updates_size_file: str | None = None
    """Accepted, but has no effect."""


class Profiling(Section):
    """Measurements of the machine."""

    unknown_field_hints: ClassVar[Mapping[str, str]] = {
        "end_on_batch": "did you mean end_after_batch?"
    }

    enabled: bool = False
    """Whether the load of the trial's machine is recorded: processors, memory, disks, network and
    GPUs.
    """
    begin_on_batch: CountOrZero = 0
    """Accepted, but has no effect."""
    end_after_batch: CountOrZero | None = None
    """Accepted, but has no effect."""
    sync_timings: bool = True
    """Accepted, but has no effect."""

    @field_validator("end_after_batch")
    @classmethod
    def _check_end(cls, end: int | None, info: ValidationInfo) -> int | None:
        begin = info.data.get("begin_on_batch", 0)
        if end is not None and end < begin:
            refuse(f"must be at least begin_on_batch ({begin}), not {end}")
        return end


class Reproducibility(Section):
    """The seed that makes a run repeatable; the cluster picks one where none is given."""

    experiment_seed: Annotated[int, Field(ge=0, le=SEED_MAX)]
    """The seed of the search and, through it, of each trial. Drawn at random, and shown, if absent.
    """
