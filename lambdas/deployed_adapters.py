"""The adapters of hosts that are clouds: their pools are their own, or in another cloud."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from lambdas.adapters import Adapters
from lambdas.other_clouds import REMOTE_ACCOUNT_REMEDY, VARIABLE, HostParts, OtherClouds

if TYPE_CHECKING:
    from control_plane.access.tokens import StaticTokens
    from control_plane.agents.identity import IdentityVerifier
    from control_plane.fleet.notices import InstanceNotice
    from lambdas.api_probe import ApiProbe
    from provisioner.clouds.provider import CloudProvider
    from provisioner.model import ProvisionerSettings

# The user who deploys, to whom the first token belongs.
ADMINISTRATOR = "administrator"


def read_setting(name: str) -> str:
    """Return a setting that the stack gave the function. Raises KeyError if it did not."""
    return os.environ[f"DETCLOUD_{name}"]


class DeployedAdapters(Adapters):
    """The parts that a cloud has for pools, by the type of their provider.

    Attributes:
        own_type: that of pools whose instances are of the cloud that the functions run in.
    """

    own_type: str
    provider_remedy = REMOTE_ACCOUNT_REMEDY
    checks_endpoints = True
    has_suggest_function = True

    @cached_property
    def provider_types(self) -> frozenset[str]:
        return frozenset({self.own_type}) | self._other_clouds.types

    def find_verifier(self, provider_type: str) -> IdentityVerifier | None:
        """Return the verifier of the cloud's own instances, or of another cloud's."""
        if provider_type == self.own_type:
            return self.own_verifier
        other = self._other_clouds.find_cloud(provider_type)
        return None if other is None else other.identity_verifier

    def cloud_provider(self, settings: ProvisionerSettings) -> CloudProvider:
        """Return the provider of a pool, of the cloud's own or of another's. Raises CloudError."""
        self._check_provider_type(settings)
        other = self._other_clouds.find_cloud(settings.kind)
        return self.own_cloud(settings) if other is None else other.cloud_provider(settings)

    def administrator_tokens(self) -> StaticTokens:
        """Return the token of the user who deployed the cluster."""
        from control_plane.access.principals import Principal, Role
        from control_plane.access.tokens import StaticTokens

        return StaticTokens({read_setting("ADMIN_SHA256"): Principal(ADMINISTRATOR, Role.ADMIN)})

    def instance_notices(self) -> Iterable[InstanceNotice]:
        """Return what agents, and events of the cloud, announced of instances."""
        from control_plane.fleet.notices import read_notices

        return read_notices(self.state_table)

    def is_api_down(self) -> bool:
        """Return whether the API does not answer at the address that agents know."""
        return self._api_probe.is_down()

    @cached_property
    def _api_probe(self) -> ApiProbe:
        from lambdas.api_probe import ApiProbe

        return ApiProbe(read_setting("API_URL"), self.clock)

    @property
    @abstractmethod
    def own_verifier(self) -> IdentityVerifier:
        """The verifier of the cloud's own instances."""

    @abstractmethod
    def own_cloud(self, settings: ProvisionerSettings) -> CloudProvider:
        """Return the provider of a pool of the cloud's own. Raises CloudError."""

    @property
    @abstractmethod
    def host_parts(self) -> HostParts:
        """The parts that pools' clouds use."""

    @cached_property
    def _other_clouds(self) -> OtherClouds:
        return OtherClouds(os.environ.get(VARIABLE, ""), lambda: self.host_parts)
