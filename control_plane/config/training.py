"""The sections `optimizations`, `profiling`, `debugger` and `reproducibility`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from control_plane.config.section import Section, refuse
from control_plane.field_types import Count, CountOrZero

SEED_MAX: Final = (1 << 31) - 1


class Optimizations(Section):
    """Settings of the training loop, some of which trade exactness for speed."""

    aggregation_frequency: Count = 1
    """The number of batches before each step of the optimizer. Their gradients are summed."""
    average_aggregated_gradients: bool = True
    """Whether the summed gradients are divided by the number of batches."""
    asynchronous_checkpoints: bool | None = None
    """Whether a trial continues to train while a checkpoint is written and stored. By default
    `true`, except for a PyTorchTrial's states of less than 4 MiB in a folder on the trial's
    machine.

    If memory is short, the trial waits until the checkpoint is written.
    """
    average_training_metrics: bool = True
    """Whether training metrics are averages over all processes of a trial. With `false`, the
    chief process reports its own training metrics.
    """
    gradient_compression: bool = False
    """Whether processes exchange gradients in half precision."""
    mixed_precision: Literal["O0", "O1", "O2", "O3"] = "O0"
    """The precision of training. With `O1`, `O2` or `O3`, batches run in PyTorch's autocast on a
    GPU, with scaled gradients.
    """
    tensor_fusion_threshold: CountOrZero = 64
    """The size in MiB of the gradients that processes exchange at a time. With 0, PyTorch chooses
    the size.
    """
    tensor_fusion_cycle_time: CountOrZero = 1
    """Accepted, but has no effect."""
    auto_tune_tensor_fusion: bool = False
    """Accepted, but has no effect."""
    grad_updates_size_file: str | None = None
    """Accepted, but has no effect."""


class Profiling(Section):
    """Measurements of the trial's machine."""

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


class Debugger(Section):
    """The wait of a trial for a debugger."""

    enabled: bool = False
    """Whether rank 0 of the trial waits until a debugger is attached. The search must have a single
    trial. `create --debug` sets this field.
    """
    attach_timeout: Count = 1_800
    """The time in seconds after which a trial without a debugger ends."""


class Reproducibility(Section):
    """The seed that makes an experiment repeatable. The cluster draws a seed if none is set."""

    experiment_seed: Annotated[int, Field(ge=0, le=SEED_MAX)]
    """The seed of the search, from which the seed of each trial is derived. If absent, a random
    seed, which the stored configuration shows.
    """
