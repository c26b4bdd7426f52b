"""The container environment: images and variables per kind of device, ports, registry login."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter

from control_plane.config.section import Secret, Section, Text, refuse

DEVICE_KINDS: Final = ("cpu", "cuda", "rocm")
FORMER_KINDS: Final = {"gpu": "cuda"}
"""Names of device kinds in old configurations, and what they mean."""

PER_DEVICE: Final = (("environment", "image"), ("environment", "environment_variables"))
"""Where a map by kind of device may stand."""

_VARIABLE: Final = re.compile(r"[^=\s\x00]+=[^\x00]*\Z")


def _check_variable(variable: str) -> str:
    if not _VARIABLE.match(variable):
        refuse("must be of the form NAME=VALUE", shown=False)
    return variable


Variables = Annotated[
    tuple[Annotated[str, AfterValidator(_check_variable)], ...], Field(strict=False)
]
Port = Annotated[int, Field(ge=1, le=65535)]


def _per_device(single: TypeAdapter[Any]) -> BeforeValidator:
    """One value for all kinds of device, or a map that may use former names."""

    def spread(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return dict.fromkeys(DEVICE_KINDS, single.validate_python(value))
        renamed = dict(value)
        for former, kind in FORMER_KINDS.items():
            if former in renamed:
                if kind in renamed:
                    refuse(f"must not have both {former} and {kind}", f"{former} means {kind}")
                renamed[kind] = renamed.pop(former)
        return renamed

    return BeforeValidator(spread)


class Images(Section):
    """The image for each kind of device; null is the cluster's own."""

    cpu: Text | None = None
    cuda: Text | None = None
    rocm: Text | None = None


class VariablesByDevice(Section):
    """NAME=VALUE strings for each kind of device."""

    cpu: Variables = ()
    cuda: Variables = ()
    rocm: Variables = ()


class RegistryAuth(Section):
    """The login of the registry that holds the image."""

    username: Text
    password: Secret
    server: str | None = None
    email: str | None = None


class Environment(Section):
    """What a trial's container contains and sees."""

    image: Annotated[Images, _per_device(TypeAdapter(Text))] = Images()
    environment_variables: Annotated[VariablesByDevice, _per_device(TypeAdapter(Variables))] = (
        VariablesByDevice()
    )
    ports: dict[str, Port] = Field(default_factory=dict)
    registry_auth: RegistryAuth | None = None
    force_pull_image: bool = False
