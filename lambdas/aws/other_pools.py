"""Pools on AWS of a cluster whose functions run in another cloud. There is no key in it: an
identity token of the function that launches is exchanged for a session of a role.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from control_plane.aws.instance_identity import AwsIdentityVerifier
    from lambdas.other_clouds import HostParts
    from provisioner.clouds.aws.provider import Ec2Clouds
    from provisioner.clouds.provider import CloudProvider
    from provisioner.model import ProvisionerSettings


class AwsPools:
    """The remote account of a cluster on AWS.

    `remote` has the `region`, the ARNs of the roles `launcher` and `instance`, and the `network` as
    DETCLOUD_NETWORK has it for clusters there.
    """

    def __init__(self, parts: HostParts, remote: Mapping[str, Any]) -> None:
        self._parts = parts
        self._remote = remote

    def cloud_provider(self, settings: ProvisionerSettings) -> CloudProvider:
        """Return the EC2 of a pool. Raises CloudError."""
        return self._clouds.cloud(settings)

    @cached_property
    def identity_verifier(self) -> AwsIdentityVerifier:
        """The verifier of instances that have the remote account's role."""
        from control_plane.aws.instance_identity import AwsIdentityVerifier

        region = self._remote["region"]
        url = os.environ.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.amazonaws.com"
        return AwsIdentityVerifier(self._parts.cluster_id, self._remote["instance"], url)

    @cached_property
    def _clouds(self) -> Ec2Clouds:
        from lambdas.aws.ec2_clouds import DeployedPlace, open_clouds
        from provisioner.clouds.aws.federation import federated_session

        remote, parts = self._remote, self._parts
        session = federated_session(
            remote["launcher"], parts.cluster_id, remote["region"], parts.identity_token
        )
        place = DeployedPlace(remote["region"], remote["network"])
        return open_clouds(parts, place, "", lambda: session)


def open_pools(parts: HostParts, remote: Mapping[str, Any]) -> AwsPools:
    """Open the remote account of a cluster on AWS."""
    return AwsPools(parts, remote)
