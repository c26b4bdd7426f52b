"""The `CloudInstance` functions for an EC2 instance: proof of identity and notices."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from detcloud.agent.aws.instance_identity import sign_identity
from detcloud.agent.aws.metadata import ENDPOINT, Ec2Metadata

if TYPE_CHECKING:
    from detcloud.agent.aws.spot_notices import Ec2Notices
    from detcloud.agent.identity_proof import IdentityProof

METADATA_ENDPOINT = "AWS_EC2_METADATA_SERVICE_ENDPOINT"


def make_proof(cluster: str, token_sha256: str) -> IdentityProof:
    """Prove this instance's identity with a request that is signed with the role's keys.

    `cluster` is the id of the cluster that the proof is for. `token_sha256` is the digest that the
    proof covers. Raise OSError if the metadata service does not answer, or if the instance has no
    role.
    """
    return sign_identity(cluster, token_sha256, _open_metadata())


def start_notices() -> Ec2Notices:
    """Start a thread that polls the instance's metadata for notices, and return the source."""
    # Boot reports import this module under a Python that may be too old for the notices.
    from detcloud.agent.aws.spot_notices import Ec2Notices

    return Ec2Notices(_open_metadata()).start()


def _open_metadata() -> Ec2Metadata:
    return Ec2Metadata(os.environ.get(METADATA_ENDPOINT) or ENDPOINT)
