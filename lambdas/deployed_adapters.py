"""The adapters of hosts that are clouds. A pool is in the host's own cloud or in another cloud."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Final

from lambdas.adapters import Adapters
from lambdas.other_clouds import REMOTE_ACCOUNT_REMEDY, VARIABLE, HostParts, OtherClouds

if TYPE_CHECKING:
    from control_plane.access.tokens import StaticTokens
    from control_plane.agents.identity import IdentityVerifier
    from control_plane.fleet.notices import InstanceNotice
    from lambdas.api_probe import ApiProbe
    from provisioner.clouds.provider import CloudProvider
    from provisioner.model import ProvisionerSettings

# The name of the user who deployed the cluster. The first token belongs to this user.
ADMINISTRATOR = "administrator"

# The environment variable with which the stack lets the function `checkpoint_gc` purge versions.
PURGE_VARIABLE: Final = {"DETCLOUD_PURGE_VERSIONS": "1"}

RELAY_REMEDY: Final = (
    "its stack was deployed without one: set detcloud:relay to true and deploy, if the cluster's "
    "network may have a public address"
)


def read_setting(name: str) -> str:
    """Return the value of the environment variable DETCLOUD_`name`, which the stack sets.

    Raises KeyError if the variable is not set.
    """
    return os.environ[f"DETCLOUD_{name}"]


class DeployedAdapters(Adapters):
    """The parts that are the same for all clouds, which choose by a pool's provider type.

    Everything that uses the other clouds raises ValueError if the environment variable
    DETCLOUD_OTHER_CLOUDS is not JSON.
    """

    own_type: str
    """The provider type of pools in the cloud that the functions run in."""
    provider_remedy = REMOTE_ACCOUNT_REMEDY
    checks_endpoints = True
    has_suggest_function = True

    @cached_property
    def purges_versions(self) -> bool:
        """Whether the stack set DETCLOUD_PURGE_VERSIONS, only for the function `checkpoint_gc`."""
        return PURGE_VARIABLE.items() <= os.environ.items()

    @cached_property
    def provider_types(self) -> frozenset[str]:
        """The provider types of pools: `own_type`, and each cloud with a remote account."""
        return frozenset({self.own_type}) | self._other_clouds.types

    def find_verifier(self, provider_type: str) -> IdentityVerifier | None:
        """Return the verifier of identity proofs for instances of this provider type.

        Return None if the type is neither `own_type` nor a cloud with a remote account. The other
        cloud is opened and kept on first use. Raises KeyError for a missing setting of the host or
        field of the remote account.
        """
        if provider_type == self.own_type:
            return self.own_verifier
        other = self._other_clouds.find_cloud(provider_type)
        return None if other is None else other.identity_verifier

    def cloud_provider(self, settings: ProvisionerSettings) -> CloudProvider:
        """Return the provider of instances for a pool in the own cloud or in another cloud.

        Raises ConfigurationError if the cluster does not support the provider type, and another
        CloudError if the settings are unusable. Raises KeyError for a missing setting of the host
        or field of the remote account.
        """
        self._check_provider_type(settings)
        other = self._other_clouds.find_cloud(settings.kind)
        return self.own_cloud(settings) if other is None else other.cloud_provider(settings)

    def administrator_tokens(self) -> StaticTokens:
        """Return the token of the user who deployed the cluster, with the role of an admin.

        DETCLOUD_ADMIN_SHA256 contains only the digest of the token, which suffices to check the
        token. Raises KeyError if the variable is not set.
        """
        from control_plane.access.principals import Principal, Role
        from control_plane.access.tokens import StaticTokens

        return StaticTokens({read_setting("ADMIN_SHA256"): Principal(ADMINISTRATOR, Role.ADMIN)})

    @property
    def runbook_url(self) -> str:
        """The URL of the team's copy of the runbook, from DETCLOUD_RUNBOOK_URL; "" if unset."""
        return os.environ.get("DETCLOUD_RUNBOOK_URL", "")

    @property
    def cluster_url(self) -> str:
        """The URL of the API, from DETCLOUD_API_URL. Raises KeyError if unset."""
        return read_setting("API_URL")

    def instance_notices(self) -> Iterable[InstanceNotice]:
        """Return the notices in the state table, which agents and the cloud's events reported.

        Raises TableError, possibly during the iteration.
        """
        from control_plane.fleet.notices import read_notices

        return read_notices(self.state_table)

    def is_api_down(self) -> bool:
        """Return whether the API fails at the address that agents call.

        Send a probe, unless the last result is at most 20 s old. Log an error if a probe finds the
        API down. Raises KeyError if DETCLOUD_API_URL is not set.
        """
        return self._api_probe.is_down()

    @cached_property
    def _api_probe(self) -> ApiProbe:
        """The probe of the API at DETCLOUD_API_URL. Raises KeyError if unset."""
        from lambdas.api_probe import ApiProbe

        return ApiProbe(read_setting("API_URL"), self.clock)

    @property
    @abstractmethod
    def own_verifier(self) -> IdentityVerifier:
        """The verifier of identity proofs for instances in the cloud of the functions."""

    @abstractmethod
    def own_cloud(self, settings: ProvisionerSettings) -> CloudProvider:
        """Return the provider of instances for a pool in the cloud of the functions.

        Raises CloudError if the settings are unusable.
        """

    @property
    @abstractmethod
    def host_parts(self) -> HostParts:
        """The id, URL, clock and calls of this host that the providers of instances use.

        Raises KeyError for a missing setting.
        """

    @cached_property
    def _other_clouds(self) -> OtherClouds:
        """The other clouds with a remote account. Raises ValueError for an invalid variable."""
        return OtherClouds(os.environ.get(VARIABLE, ""), lambda: self.host_parts)
