"""The types of providers that a resource pool may have: the registry of clouds.

A new cloud adds a line here, and a folder with its name in each root.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import PlainValidator, SerializeAsAny, ValidationInfo

from control_plane.aws.pool_provider import AwsProvider
from control_plane.config.providers import Provider
from control_plane.config.section import validate_variant
from control_plane.gcp.pool_provider import GcpProvider
from control_plane.local.pool_provider import LocalProvider

PROVIDERS: Final[Mapping[str, type[Provider]]] = MappingProxyType(
    {"local": LocalProvider, "aws": AwsProvider, "gcp": GcpProvider}
)


def _parse_provider(value: object, info: ValidationInfo) -> Provider:
    return (
        value if isinstance(value, Provider) else validate_variant(value, "type", PROVIDERS, info)
    )


AnyProvider = Annotated[SerializeAsAny[Provider], PlainValidator(_parse_provider)]
