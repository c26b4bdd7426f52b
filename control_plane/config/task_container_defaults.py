"""The section `task_container_defaults` of a cluster configuration, for a pool or all pools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, FieldSerializationInfo, field_serializer

from control_plane.config import master_fields
from control_plane.config.environment import (
    ImagesField,
    RegistryAuth,
    VariableNames,
    VariablesByDevice,
    VariablesField,
    render_variables,
)
from control_plane.config.log_policies import CheckedLogPolicies
from control_plane.config.low_use import LowUse
from control_plane.config.resources import BindMounts, DeviceField
from control_plane.config.section import REVEAL, Section
from control_plane.field_types import Count, CountOrZero


class TaskContainerDefaults(Section):
    """Defaults for the trials of a pool, which the configurations of experiments override."""

    unknown_field_hints: ClassVar[Mapping[str, str]] = master_fields.TASK_CONTAINER_DEFAULTS

    preemption_timeout: Count | None = None
    """The time in seconds that a trial has to save a checkpoint after a request to stop. Then the
    trial is killed.
    """
    shm_size_bytes: CountOrZero | None = None
    """The size of /dev/shm in bytes."""
    image: ImagesField | None = None
    """The container image, or a map from each of `cpu`, `cuda` and `rocm` to an image."""
    environment_variables: VariablesField | None = None
    """A list of NAME=VALUE, or a map from each kind of device to a list of NAME=VALUE.
    Configurations of the length era add variables. Configurations of the step era replace the list.
    """
    shown_variables: VariableNames = ()
    """Names of variables with public values, as in configurations of experiments."""
    registry_auth: RegistryAuth | None = None
    """The login for the registry `server`; without `server` for the registry of `image`, and
    without `server` and `image` for Docker Hub. The login is sent to no other registry, even if the
    image of a configuration is in another registry.
    """
    force_pull_image: bool | None = None
    """Whether the image is pulled even if the machine has the image."""
    bind_mounts: BindMounts = ()
    """Directories of the host. Configurations of the length era add entries. Configurations of the
    step era replace the list.
    """
    devices: Annotated[tuple[DeviceField, ...], Field(strict=False)] = ()
    """Devices of the host. Configurations of the length era add entries. Configurations of the step
    era replace the list.
    """
    log_policies: CheckedLogPolicies = ()
    """Policies for lines of logs, as `log_policies` of experiments. Configurations add policies,
    and replace policies of the same name. The default policies are `CUDA OOM` and `ECC Error`, and
    an entry with only the `name` switches a default policy off.
    """
    low_use: LowUse | None = None
    """The policy for trials whose slots compute too little, as `low_use` of experiments."""

    @field_serializer("environment_variables")
    def _render_variables(
        self, variables: VariablesByDevice | None, info: FieldSerializationInfo
    ) -> dict[str, list[str]] | None:
        if variables is None:
            return None
        return render_variables(variables, self.shown_variables, info)

    def config_layer(self) -> dict[str, Any]:
        """Return the defaults as a layer of an experiment's configuration, secrets unmasked.

        `shm_size_bytes` becomes `resources.shm_size`, and `devices` becomes `resources.devices`.
        `preemption_timeout`, `bind_mounts`, `log_policies` and `low_use` keep their names, and all
        other fields move to `environment`. Fields with their default values and empty sections are
        left out.
        """
        given = self.model_dump(mode="json", context=REVEAL, exclude_defaults=True)
        resources = {
            ours: given.pop(name)
            for name, ours in (("shm_size_bytes", "shm_size"), ("devices", "devices"))
            if name in given
        }
        kept = {
            name: given.pop(name)
            for name in ("preemption_timeout", "bind_mounts", "log_policies", "low_use")
            if name in given
        }
        parts = {"resources": resources, "environment": given}
        return kept | {name: part for name, part in parts.items() if part}
