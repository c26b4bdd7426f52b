"""An instance of EC2 as `detcloud.agent.clouds` has it: its proof of identity and its notices."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from detcloud.agent.aws.instance_identity import sign_identity
from detcloud.agent.aws.metadata import ENDPOINT, Ec2Metadata
from detcloud.agent.join_token import IdentityProof

if TYPE_CHECKING:
    from detcloud.agent.aws.spot_notices import Ec2Notices

METADATA_ENDPOINT = "AWS_EC2_METADATA_SERVICE_ENDPOINT"


def make_proof(cluster: str, token_sha256: str) -> IdentityProof:
    """Make this instance's proof with the keys of its role. Raises OSError."""
    return sign_identity(cluster, token_sha256, _open_metadata())


def start_notices() -> Ec2Notices:
    """Start to look for notices in the instance's metadata."""
    # A boot report is made by a Python that may be too old for these.
    from detcloud.agent.aws.spot_notices import Ec2Notices

    return Ec2Notices(_open_metadata()).start()


def _open_metadata() -> Ec2Metadata:
    return Ec2Metadata(os.environ.get(METADATA_ENDPOINT) or ENDPOINT)
