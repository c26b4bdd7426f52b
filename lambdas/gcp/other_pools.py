"""Pools on Google Cloud of a cluster whose functions run in another cloud. There is no key in it:
the role of the function that launches acts as a service account.
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
    """The remote account of a cluster on Google Cloud.

    `remote` has the `project`, the `region` of pools that name none, the `provider` of workload
    identities that trusts the cluster's cloud, the service accounts `launcher` and `instance`, by
    their e-mails, and the `network` as DETCLOUD_NETWORK has it for clusters there.
    """

    def __init__(self, parts: HostParts, remote: Mapping[str, Any]) -> None:
        self._parts = parts
        self._remote = remote

    def cloud_provider(self, settings: ProvisionerSettings) -> CloudProvider:
        """Return the Compute Engine of a pool. Raises CloudError."""
        return self._clouds.cloud(settings)

    @cached_property
    def identity_verifier(self) -> GoogleIdentityVerifier:
        """The verifier of instances that have the remote account's service account."""
        remote = self._remote
        return open_verifier(self._parts.cluster_id, remote["project"], remote["instance"])

    @cached_property
    def _clouds(self) -> GceClouds:
        from lambdas.gcp.gce_clouds import DeployedPlace, open_clouds
        from provisioner.clouds.gcp.federation import federated_credentials
        from provisioner.clouds.gcp.google_api import create_billing_api, create_compute_api

        remote = self._remote
        credentials = federated_credentials(remote["provider"], remote["launcher"])
        network = {**remote["network"], "service_account": remote["instance"]}
        return open_clouds(
            self._parts,
            DeployedPlace(remote["project"], remote["region"], network),
            code_place="",
            compute=lambda: create_compute_api(credentials),
            billing=lambda: create_billing_api(credentials),
        )


def open_pools(parts: HostParts, remote: Mapping[str, Any]) -> GooglePools:
    """Open the remote account of a cluster on Google Cloud."""
    return GooglePools(parts, remote)
