"""Pools on Google Cloud of a cluster in another cloud or on own machines.

The cluster stores no key of Google Cloud. The role of a launching function acts as a service
account. A server on own machines uses the credentials of its environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lambdas.gcp.verifier import open_verifier

if TYPE_CHECKING:
    from control_plane.gcp.instance_identity import GoogleIdentityVerifier
    from lambdas.other_clouds import HostParts
    from provisioner.clouds.gcp.provider import GceClouds
    from provisioner.clouds.provider import CloudProvider
    from provisioner.model import ProvisionerSettings


class GooglePools:
    """The remote account on Google Cloud of a cluster in another cloud or on own machines.

    Args:
        parts: the id, URL, clock and calls of the cluster's host.
        remote: the fields of the remote account. A missing field raises KeyError on first use.

            - `project` and the default `region` of pools;
            - `provider`: the provider of workload identities that trusts the cluster's cloud; not
              needed on a host with own credentials;
            - `launcher` and `instance`: the e-mail addresses of two service accounts. On a host
              with own credentials, `launcher` may be "": the host launches without this account;
            - `network`, in the form of DETCLOUD_NETWORK on Google Cloud.
    """

    def __init__(self, parts: HostParts, remote: Mapping[str, Any]) -> None:
        self._parts = parts
        self._remote = remote

    def cloud_provider(self, settings: ProvisionerSettings) -> CloudProvider:
        """Return the provider of Compute Engine instances for a pool with the given settings.

        Equal settings get the same, cached provider. No request is sent: unusable settings and
        credentials raise CloudError when the provider is used.
        """
        return self._clouds.cloud(settings)

    @cached_property
    def identity_verifier(self) -> GoogleIdentityVerifier:
        """The verifier of identity proofs for instances with the service account `instance`."""
        remote = self._remote
        return open_verifier(self._parts.cluster_id, remote["project"], remote["instance"])

    @cached_property
    def _clouds(self) -> GceClouds:
        """The Compute Engine providers of the pools, by the pool's settings.

        The providers act as the service account `launcher`, which may launch and delete instances.
        No request is sent yet.
        """
        from lambdas.gcp.gce_clouds import DeployedPlace, open_clouds
        from provisioner.clouds.gcp.google_api import create_billing_api, create_compute_api

        remote, credentials = self._remote, self._open_credentials()
        network = {**remote["network"], "service_account": remote["instance"]}
        return open_clouds(
            self._parts,
            DeployedPlace(remote["project"], remote["region"], network),
            code_place="",
            compute=lambda: create_compute_api(credentials),
            billing=lambda: create_billing_api(credentials),
        )

    def _open_credentials(self) -> Any:
        """Return credentials that act as the account `launcher`. No request is sent yet."""
        remote = self._remote
        if self._parts.has_own_credentials:
            from provisioner.clouds.gcp.own_credentials import OwnCredentials

            return OwnCredentials(remote["launcher"])
        from provisioner.clouds.gcp.federation import federated_credentials

        return federated_credentials(remote["provider"], remote["launcher"])


def open_pools(parts: HostParts, remote: Mapping[str, Any]) -> GooglePools:
    """Return the pools of a remote account on Google Cloud, without any request.

    `parts` and `remote` are the arguments of GooglePools. A field that `remote` lacks raises
    KeyError on first use, not here.
    """
    return GooglePools(parts, remote)
