"""Adapters of hosts with pools of several provider types: the own type, and remote accounts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from lambdas.adapters import Adapters
from lambdas.other_clouds import HostParts, OtherClouds

if TYPE_CHECKING:
    from control_plane.agents.identity import IdentityVerifier
    from control_plane.fleet.notices import InstanceNotice
    from lambdas.api_probe import ApiProbe
    from provisioner.clouds.provider import CloudProvider
    from provisioner.model import ProvisionerSettings


class CloudPoolAdapters(Adapters):
    """The parts that choose by a pool's provider type: providers, verifiers, notices and probe.

    Everything that uses the other clouds raises ValueError if `remote_accounts` is not JSON.
    """

    own_type: str
    """The provider type of pools in the host's own cloud, or on the host's own machine."""

    @property
    @abstractmethod
    def remote_accounts(self) -> str:
        """The remote accounts by the name of the cloud, as JSON. "" for no remote accounts."""

    @property
    @abstractmethod
    def own_verifier(self) -> IdentityVerifier | None:
        """The verifier of identity proofs for instances of `own_type`.

        None if these instances prove no identity.
        """

    @abstractmethod
    def own_cloud(self, settings: ProvisionerSettings) -> CloudProvider:
        """Return the provider of instances for a pool of `own_type`.

        Raises CloudError if the settings are unusable.
        """

    @property
    @abstractmethod
    def host_parts(self) -> HostParts:
        """The id, URL, clock and calls of this host that the providers of instances use.

        Raises KeyError for a missing setting.
        """

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
        """Return the provider of instances for a pool of `own_type` or in another cloud.

        Raises ConfigurationError if the cluster does not support the provider type, and another
        CloudError if the settings are unusable. Raises KeyError for a missing setting of the host
        or field of the remote account.
        """
        self._check_provider_type(settings)
        other = self._other_clouds.find_cloud(settings.kind)
        return self.own_cloud(settings) if other is None else other.cloud_provider(settings)

    def instance_notices(self) -> Iterable[InstanceNotice]:
        """Return the notices in the state table, which agents and the cloud's events reported.

        Raises TableError, possibly during the iteration.
        """
        from control_plane.fleet.notices import read_notices

        return read_notices(self.state_table)

    def is_api_down(self) -> bool:
        """Return whether the API fails at `cluster_url`, which machines in clouds call.

        Send a probe, unless the last result is at most 20 s old. Log an error if a probe finds the
        API down. Raises KeyError if the address is not configured.
        """
        return self._api_probe.is_down()

    @cached_property
    def _api_probe(self) -> ApiProbe:
        """The probe of the API at `cluster_url`. Raises KeyError if not configured."""
        from lambdas.api_probe import ApiProbe

        return ApiProbe(self.cluster_url, self.clock)

    @cached_property
    def _other_clouds(self) -> OtherClouds:
        """The clouds with a remote account. Raises ValueError for invalid JSON."""
        return OtherClouds(self.remote_accounts, lambda: self.host_parts)
