"""The section `environment`: images and variables by kind of device, packages, registry login."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    FieldSerializationInfo,
    PlainSerializer,
    PlainValidator,
    SerializationInfo,
    TypeAdapter,
    ValidationInfo,
    field_serializer,
    field_validator,
)

from control_plane.config.section import (
    REVEAL,
    CarriedMap,
    Loose,
    Secret,
    Section,
    refusal,
    refuse,
)
from control_plane.field_types import Text
from control_plane.findings import Finding, value_text
from detcloud.shared.masking import mask_urls, mask_variable

DEVICE_KINDS: Final = ("cpu", "cuda", "rocm")
FORMER_KINDS: Final = {"gpu": "cuda"}
"""The former names of device kinds, with the present names."""

VARIABLES_LOC: Final = ("environment", "environment_variables")
SHOWN_LOC: Final = ("environment", "shown_variables")
PER_DEVICE: Final = (("environment", "image"), VARIABLES_LOC)
"""The paths of fields that may be a map by kind of device."""

PROXY_PORTS_MAX: Final = 32
"""The most ports of a tunnel, and so the most distinct ports of `proxy_ports`."""

_VARIABLE: Final = re.compile(r"[^=\s\x00]+=[^\x00]*\Z")
_VARIABLE_NAME: Final = re.compile(r"[^=\s\x00]+\Z")


def is_variable(value: object) -> bool:
    """Return whether a value is a text of the form NAME=VALUE. VALUE may be empty."""
    return isinstance(value, str) and _VARIABLE.match(value) is not None


def _check_variable(variable: str) -> str:
    if not is_variable(variable):
        hint = "write NAME= for an empty value; your shell's own is not handed on"
        refuse("must be of the form NAME=VALUE", hint, shown=False)
    return variable


def _check_name(name: str) -> str:
    if not _VARIABLE_NAME.match(name):
        refuse("must be the name of a variable, without = and a value", shown=False)
    return name


def _check_list(variables: object) -> object:
    if not isinstance(variables, list | tuple):
        refuse("must be a list of NAME=VALUE", shown=False)
    return variables


def _check_devices(value: object) -> object:
    """Return the value unchanged. Raise ValidationError for a map with other keys than devices.

    Every key that is not a present or former kind of device is reported.
    """
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
VariableNames = Annotated[tuple[Annotated[str, AfterValidator(_check_name)], ...], Loose]
Port = Annotated[int, Field(ge=1, le=65535)]
Words = Annotated[tuple[Text, ...], Loose]


def _spread_over_devices(single: TypeAdapter[Any]) -> BeforeValidator:
    """Return a validator that converts a field to a map by present kinds of device.

    A value that is not a map is validated by `single`, and stands for all kinds. In a map, former
    names of kinds are renamed. A former and a present name of the same kind together are an error.
    The values of a map are not validated.
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
    """The container image for each kind of device. Null stands for the cluster's image."""

    cpu: Text | None = None
    cuda: Text | None = None
    rocm: Text | None = None


class VariablesByDevice(Section):
    """The environment variables for each kind of device, as NAME=VALUE."""

    cpu: Variables = Field(default=(), repr=False)
    cuda: Variables = Field(default=(), repr=False)
    rocm: Variables = Field(default=(), repr=False)

    def reveal(self) -> dict[str, list[str]]:
        """Return the variables by kind of device, unmasked, for the trial."""
        return self.model_dump(mode="json", context=REVEAL)


def render_variables(
    variables: VariablesByDevice, shown: tuple[str, ...], info: FieldSerializationInfo
) -> dict[str, list[str]]:
    """Return variables by kind of device as JSON values.

    The values are unmasked if the serialization context is REVEAL. Otherwise every value is masked,
    except for names in `shown` and some names of libraries, which only lose the secrets in URLs.

    Args:
        info: the context and the exclusions of the serialization.
    """
    by_device: dict[str, list[str]] = variables.model_dump(
        mode="json",
        context=REVEAL,
        exclude_defaults=info.exclude_defaults,
        exclude_unset=info.exclude_unset,
    )
    if info.context == REVEAL:
        return by_device
    return {
        kind: [mask_variable(variable, shown) for variable in listed]
        for kind, listed in by_device.items()
    }


class RegistryAuth(Section):
    """The login of the registry that holds the image."""

    username: Text | None = None
    """The user name of the account."""
    password: Secret | None = None
    """The password of the account, always shown masked."""
    auth: Secret | None = None
    """`username:password` in base64, in place of `username` and `password`."""
    identitytoken: Secret | None = None
    """A token that the registry exchanges for access tokens, in place of a password."""
    registrytoken: Secret | None = None
    """An access token of the registry, in place of all other secrets."""
    server: str | None = None
    """The registry that the login is for. If absent, the login is for the image's registry."""
    serveraddress: str | None = None
    """Another name of `server`. If both are given, they must be equal."""
    email: str | None = None
    """The e-mail address of the account."""

    @field_validator("serveraddress")
    @classmethod
    def _check_servers(cls, address: str | None, info: ValidationInfo) -> str | None:
        server = info.data.get("server")
        if address and server and address != server:
            refuse("must not differ from server, which means the same", "remove all but one")
        return address


class ProxyPort(Section):
    """A port of a trial that `detcloud tunnel ID` opens."""

    proxy_port: Port
    """The port on which the program of the trial listens, 1 to 65535."""
    proxy_tcp: bool = False
    """Whether the port speaks a protocol other than HTTP. A tunnel carries every protocol over
    TCP.
    """
    unauthenticated: bool = False
    """Accepted, but has no effect: only the owner of a trial and admins open tunnels."""


ProxyPorts = Annotated[tuple[ProxyPort, ...], Loose]
ImagesField = Annotated[Images, _spread_over_devices(TypeAdapter(Text))]
VariablesField = Annotated[
    VariablesByDevice,
    _spread_over_devices(TypeAdapter(Variables)),
    BeforeValidator(_check_devices),
]


def _parse_packages(value: object) -> str | tuple[str, ...]:
    """Return a list of requirements as a tuple, or the normalized path of a requirements file.

    Raise PydanticCustomError for other values, for a path that is empty or leaves the model
    directory, and for a requirement that is empty or has several lines.
    """
    if isinstance(value, str):
        path = posixpath.normpath(value.strip())
        if not value.strip() or posixpath.isabs(path) or path.split("/")[0] == "..":
            hint = "write a path inside the model directory, or a list of packages"
            refuse(f"must be a file of the model directory, not {value_text(value)}", hint)
        return path
    if not isinstance(value, list | tuple):
        refuse("must be a list of packages, or the name of a requirements file")
    for package in value:
        if not isinstance(package, str) or not package.strip() or "\n" in package:
            hint = "write each package as a line of a requirements file, such as numpy>=2"
            refuse("must be a list of packages", hint)
    return tuple(value)


def _render_packages(value: Packages, info: SerializationInfo) -> Any:
    lines = [value] if isinstance(value, str) else value
    shown = [line if info.context == REVEAL else mask_urls(line) for line in lines]
    return shown[0] if isinstance(value, str) else shown


Packages = str | tuple[str, ...]
PackagesField = Annotated[
    Packages, PlainValidator(_parse_packages), PlainSerializer(_render_packages)
]


class Environment(Section):
    """The environment of a trial: image, variables, packages, ports and registry login."""

    image: ImagesField = Field(default_factory=Images)
    """The container image, or a map from each of `cpu`, `cuda` and `rocm` to an image. Only in
    containers.
    """
    environment_variables: VariablesField = Field(default_factory=VariablesByDevice)
    """A list of NAME=VALUE, or a map from each of `cpu`, `cuda` and `rocm` to a list of NAME=VALUE.
    In the length era, variables with other names are added from the template and the cluster.

    Every VALUE is shown as a mask, except for names in `shown_variables` and some names of
    libraries, such as `OMP_NUM_THREADS` and `CUDA_VISIBLE_DEVICES`.
    """
    shown_variables: VariableNames = ()
    """Names of variables with public values, which configurations and templates show unmasked.
    Logins in URLs stay masked. In the length era, the names of the template and the cluster are
    added.
    """
    pip: PackagesField | None = Field(default=None, repr=False)
    """Packages that `pip` installs before `startup-hook.sh` and the trial: a list of lines of a
    requirements file, such as `[\"transformers==4.57\"]`, or the path of a requirements file in the
    model directory.

    The packages are installed with and without containers. A machine installs the same packages
    once for each user. Set the package index, and the login for the index, with variables such as
    `PIP_INDEX_URL`.
    """
    uv: PackagesField | None = Field(default=None, repr=False)
    """The same as `pip`, but installed by `uv`, which must be installed on the machine or in the
    image. `uv` installs all dependencies, even if the machine or image has them already. Only one
    of `pip` and `uv` may be set.
    """
    kernel_cache: bool = True
    """Whether the machine keeps kernels that `torch.compile` and Triton compiled for later runs of
    the same user. With `false`, each run compiles the kernels again.
    """
    ports: dict[str, Port] = Field(default_factory=dict)
    """Accepted, but has no effect: containers use the host's network."""
    registry_auth: RegistryAuth | None = None
    """The login for the image's registry: `username` and `password`, or one of `auth`,
    `identitytoken` and `registrytoken`; `server` or `serveraddress`; `email`. Only in containers.

    The login replaces the logins of the template and the cluster, which apply only to images of
    their own registry. A login with a `server` is sent to no other registry.
    """
    force_pull_image: bool = False
    """Whether the image is pulled even if the machine has the image. Only in containers."""
    proxy_ports: ProxyPorts = ()
    """Ports on which the trial's program listens, at most 32. `detcloud tunnel ID` without numbers
    opens these ports. Of a trial on several machines, the ports of the machine with rank 0 are
    opened.
    """
    pod_spec: CarriedMap | None = Field(default=None, repr=False)
    """Accepted, but has no effect: the cluster runs no Kubernetes pods."""
    add_capabilities: Words = ()
    """Accepted, but has no effect: the user of a trial has no capabilities."""
    drop_capabilities: Words = ()
    """Accepted, but has no effect: the user of a trial has no capabilities."""
    slurm: Words = ()
    """Accepted, but has no effect: the cluster does not use Slurm."""
    pbs: Words = ()
    """Accepted, but has no effect: the cluster does not use PBS."""
    determined_compatibility: bool = True
    """Whether `import determined` in a trial imports detcloud's package of Determined's names, even
    if another package `determined` is installed. With `false`, detcloud's package is not available.
    """

    @field_serializer("environment_variables")
    def _render_variables(
        self, variables: VariablesByDevice, info: FieldSerializationInfo
    ) -> dict[str, list[str]]:
        return render_variables(variables, self.shown_variables, info)

    @field_validator("uv")
    @classmethod
    def _check_installers(cls, packages: Packages | None, info: ValidationInfo) -> Packages | None:
        if packages and info.data.get("pip"):
            refuse("must not be set together with pip", "move all packages to one of them")
        return packages

    def declared_packages(self) -> dict[str, Any] | None:
        """Return the packages that the agent installs before the trial, unmasked, as JSON values.

        `installer` is "pip" or "uv". Either `packages` lists the lines of a requirements file and
        `file` is "", or `file` is the path in the model directory and `packages` is None. Return
        None if the configuration names no packages.
        """
        for installer, packages in (("pip", self.pip), ("uv", self.uv)):
            if packages:
                is_file = isinstance(packages, str)
                return {
                    "installer": installer,
                    "packages": None if is_file else list(packages),
                    "file": packages if is_file else "",
                }
        return None
