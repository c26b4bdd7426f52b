"""The container environment: images and variables per kind of device, ports, registry login."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    SerializationInfo,
    TypeAdapter,
    ValidationInfo,
    field_validator,
)

from control_plane.config.section import (
    REVEAL,
    CarriedMap,
    Loose,
    Secret,
    Section,
    mask_variable,
    refusal,
    refuse,
)
from control_plane.field_types import Text
from control_plane.findings import Finding

DEVICE_KINDS: Final = ("cpu", "cuda", "rocm")
FORMER_KINDS: Final = {"gpu": "cuda"}
"""Names of device kinds in old configurations, and what they mean."""

VARIABLES_LOC: Final = ("environment", "environment_variables")
PER_DEVICE: Final = (("environment", "image"), VARIABLES_LOC)
"""Where a map by kind of device may stand."""

_VARIABLE: Final = re.compile(r"[^=\s\x00]+=[^\x00]*\Z")


def is_variable(value: object) -> bool:
    """Whether a value is of the form NAME=VALUE."""
    return isinstance(value, str) and _VARIABLE.match(value) is not None


def _check_variable(variable: str) -> str:
    if not is_variable(variable):
        hint = "write NAME= for an empty value; your shell's own is not handed on"
        refuse("must be of the form NAME=VALUE", hint, shown=False)
    return variable


def _check_list(variables: object) -> object:
    if not isinstance(variables, list | tuple):
        refuse("must be a list of NAME=VALUE", shown=False)
    return variables


def _check_devices(value: object) -> object:
    """Refuse a map of variables by their own names."""
    kinds = (*DEVICE_KINDS, *FORMER_KINDS)
    names = [name for name in value if name not in kinds] if isinstance(value, Mapping) else ()
    if names:
        hint = "write a list of NAME=VALUE, or a map of one for each of cpu, cuda and rocm"
        raise refusal([Finding((str(item),), "is not a kind of device", hint) for item in names])
    return value


def _render_variables(variables: tuple[str, ...], info: SerializationInfo) -> list[str]:
    return [
        variable if info.context == REVEAL else mask_variable(variable) for variable in variables
    ]


Variables = Annotated[
    tuple[Annotated[str, AfterValidator(_check_variable)], ...],
    BeforeValidator(_check_list),
    Field(strict=False),
    PlainSerializer(_render_variables),
]
Port = Annotated[int, Field(ge=1, le=65535)]
Words = Annotated[tuple[Text, ...], Loose]


def _spread_over_devices(single: TypeAdapter[Any]) -> BeforeValidator:
    """Return the validator that takes one value for all kinds of device, or a map of them, which
    may use former names.
    """

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

    cpu: Variables = Field(default=(), repr=False)
    cuda: Variables = Field(default=(), repr=False)
    rocm: Variables = Field(default=(), repr=False)

    def reveal(self) -> dict[str, list[str]]:
        """Return all of them unmasked, for the trial."""
        return self.model_dump(mode="json", context=REVEAL)


class RegistryAuth(Section):
    """The login of the registry that holds the image."""

    username: Text | None = None
    """The account."""
    password: Secret | None = None
    """Its password; always shown masked."""
    auth: Secret | None = None
    """Instead of both: `username:password` in base64."""
    identitytoken: Secret | None = None
    """Instead of a password: a token for which the registry gives others."""
    registrytoken: Secret | None = None
    """Instead of all of them: a token that the registry takes as it is."""
    server: str | None = None
    """The registry that it is for; without one it is for the image's."""
    serveraddress: str | None = None
    """The same as `server`."""
    email: str | None = None
    """Of the account."""

    @field_validator("serveraddress")
    @classmethod
    def _check_servers(cls, address: str | None, info: ValidationInfo) -> str | None:
        server = info.data.get("server")
        if address and server and address != server:
            refuse("must not differ from server, which means the same", "remove all but one")
        return address


class ProxyPort(Section):
    """A port of a trial that the cluster would pass connections on to."""

    proxy_port: Port
    """The port of the container."""
    proxy_tcp: bool = False
    """Whether it speaks a protocol other than HTTP."""
    unauthenticated: bool = False
    """Whether it accepts unauthenticated connections."""


ProxyPorts = Annotated[tuple[ProxyPort, ...], Loose]
ImagesField = Annotated[Images, _spread_over_devices(TypeAdapter(Text))]
VariablesField = Annotated[
    VariablesByDevice,
    _spread_over_devices(TypeAdapter(Variables)),
    BeforeValidator(_check_devices),
]


class Environment(Section):
    """The environment of a trial: its image, variables, ports and registry login."""

    image: ImagesField = Field(default_factory=Images)
    """The container image, or a map with one for each of `cpu`, `cuda` and `rocm`. Only in
    containers.
    """
    environment_variables: VariablesField = Field(default_factory=VariablesByDevice)
    """A list of NAME=VALUE, or a map from each of `cpu`, `cuda` and `rocm` to such a list. Where
    NAME sounds like a secret (password, secret, token, key, credential), VALUE is shown as a mask.
    In the length era the variables of the template and the cluster are added, unless one has the
    same NAME.
    """
    ports: dict[str, Port] = Field(default_factory=dict)
    """Accepted, but has no effect: containers use the host's network."""
    registry_auth: RegistryAuth | None = None
    """The login for the image's registry: `username` and `password`, or one of `auth`,
    `identitytoken` and `registrytoken`; `server` or `serveraddress`; `email`. It replaces the
    logins of the template and the cluster, which apply only to images of the registry that they are
    for. A login is sent only to the registry that is its `server`. Only in containers.
    """
    force_pull_image: bool = False
    """Whether the image is pulled even if it is present. Only in containers."""
    proxy_ports: ProxyPorts = ()
    """Accepted, but has no effect: maps of `proxy_port`, `proxy_tcp` and `unauthenticated`."""
    pod_spec: CarriedMap | None = Field(default=None, repr=False)
    """Accepted, but has no effect: this cluster runs no pods."""
    add_capabilities: Words = ()
    """Accepted, but has no effect: the user of a trial has no capabilities."""
    drop_capabilities: Words = ()
    """Accepted, but has no effect: the user of a trial has no capabilities."""
    slurm: Words = ()
    """Accepted, but has no effect: this cluster has no Slurm."""
    pbs: Words = ()
    """Accepted, but has no effect: this cluster has no PBS."""
    determined_compatibility: bool = True
    """Whether `import determined` in a trial is detcloud's package of Determined's names, which
    comes before an installed one; `false` leaves it out.
    """
