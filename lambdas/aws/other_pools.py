"""Pools on AWS of a cluster in another cloud or on own machines.

The cluster stores no key of AWS. A launching function exchanges its identity token for a session
of an AWS role. A server on own machines uses the credentials of its environment.
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
    """The remote account on AWS of a cluster in another cloud or on own machines.

    Args:
        parts: the id, URL, clock and calls of the cluster's host.
        remote: the `region`, the ARNs of the roles `launcher` and `instance`, and `network`, in the
            form of DETCLOUD_NETWORK on AWS. A missing field raises KeyError on first use. On a host
            with own credentials, `launcher` may be "": the host then launches without this role.
    """

    def __init__(self, parts: HostParts, remote: Mapping[str, Any]) -> None:
        self._parts = parts
        self._remote = remote

    def cloud_provider(self, settings: ProvisionerSettings) -> CloudProvider:
        """Return the provider of EC2 instances for a pool with the given settings.

        Equal settings get the same, cached provider. No request is sent. Raises CloudError if the
        settings are unusable.
        """
        return self._clouds.cloud(settings)

    @cached_property
    def identity_verifier(self) -> AwsIdentityVerifier:
        """The verifier of identity proofs for instances with the role `instance`.

        An instance proves its identity when its agent enrolls. No request is sent yet. Raises
        ValueError if `instance` is not the ARN of a role.
        """
        from control_plane.aws.instance_identity import AwsIdentityVerifier

        region = self._remote["region"]
        url = os.environ.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.amazonaws.com"
        return AwsIdentityVerifier(self._parts.cluster_id, self._remote["instance"], url)

    @cached_property
    def _clouds(self) -> Ec2Clouds:
        """The EC2 providers of the pools, by the pool's settings. No request is sent yet.

        The providers act as the role `launcher`, which may launch and terminate instances.
        """
        from lambdas.aws.ec2_clouds import DeployedPlace, open_clouds

        remote, parts, session = self._remote, self._parts, self._open_session()
        place = DeployedPlace(remote["region"], remote["network"])
        return open_clouds(parts, place, "", lambda: session)

    def _open_session(self) -> Any:
        """Return a botocore session that acts as the role `launcher`. No request is sent yet."""
        parts, role, region = self._parts, self._remote["launcher"], self._remote["region"]
        if parts.has_own_credentials:
            from provisioner.clouds.aws.own_session import own_session

            return own_session(role, parts.cluster_id, region)
        from provisioner.clouds.aws.federation import federated_session

        return federated_session(role, parts.cluster_id, region, parts.identity_token)


def open_pools(parts: HostParts, remote: Mapping[str, Any]) -> AwsPools:
    """Return the pools of a remote account on AWS, without any request.

    `parts` and `remote` are the arguments of AwsPools. A field that `remote` lacks raises KeyError
    on first use, not here.
    """
    return AwsPools(parts, remote)
