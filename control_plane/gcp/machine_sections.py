"""The sections of a pool on Compute Engine about machine types."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator, model_validator

from control_plane.config.section import Section, refuse, with_defaults
from control_plane.field_types import Count, CountOrZero, Text
from control_plane.gcp.machine_types import (
    N1_ACCELERATORS,
    N1_DEFAULT,
    InstanceType,
    MachineType,
    MachineTypes,
    describe_instance_type,
    machine_series,
)


class MachineConfig(Section):
    """The instances of a pool without offerings."""

    machine_type: Text = N1_DEFAULT
    """The machine type. If absent, the cheapest type with `instance_slots` GPUs, or the smallest
    standard N1 type with 4 vCPUs for each of `gpu_num` accelerators.
    """
    gpu_type: str | None = None
    """The accelerator; by default nvidia-tesla-t4 for N1, otherwise the type's accelerator. `""`
    attaches no accelerator.
    """
    gpu_num: CountOrZero | None = None
    """The number of accelerators; by default 1 for N1, otherwise the type's number. 0 attaches no
    accelerators.
    """
    preemptible: bool = False
    """Whether instances are bought on the spot market."""

    @field_validator("gpu_num")
    @classmethod
    def _check_number(cls, number: int | None, info: ValidationInfo) -> int | None:
        if number and info.data.get("gpu_type") == "":
            refuse(f"must be 0 where gpu_type is empty, not {number}", "name a gpu_type")
        return number

    @model_validator(mode="after")
    def _attach_accelerator(self) -> MachineConfig:
        """Return a copy with an accelerator, for an N1 type without a configured number."""
        is_plain = self.gpu_type == "" or machine_series(self.machine_type) != "n1"
        if self.gpu_num is not None or is_plain:
            return self
        return with_defaults(self, gpu_num=N1_ACCELERATORS)

    def instance_type(self, described: MachineTypes) -> InstanceType:
        """Return the machine type with the accelerators to attach, after defaults are applied."""
        return describe_instance_type(self.machine_type, self.gpu_type, self.gpu_num, described)


class MachineTypeConfig(Section):
    """A machine type, as Compute Engine describes it."""

    vcpus: Count
    """The number of vCPUs."""
    memory_gb: Annotated[float, Field(gt=0)]
    """The memory in GiB."""
    gpus: CountOrZero = 0
    """The number of GPUs that belong to the type, without attached GPUs."""
    accelerator: str = ""
    """The kind of the GPUs, such as nvidia-b200."""

    @property
    def machine_type(self) -> MachineType:
        """The described type in the form of the catalogue."""
        return MachineType(self.gpus, self.vcpus, self.memory_gb, self.accelerator)


DescribedTypes = dict[Text, MachineTypeConfig]
