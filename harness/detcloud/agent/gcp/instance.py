"""A Compute Engine instance as `detcloud.agent.clouds` has it: its proof of identity and its
notices.
"""

from __future__ import annotations

import os

from detcloud.agent.gcp.end_notices import PREEMPTION_SECONDS, GceNotices
from detcloud.agent.gcp.instance_identity import request_identity
from detcloud.agent.gcp.metadata import open_metadata
from detcloud.agent.join_token import IdentityProof

NOTICE_VARIABLE = "DETCLOUD_PREEMPTION_SECONDS"
"""The seconds from the notice of a preemption to its end, where they are not the usual ones: no
metadata tell, so the boot script does.
"""


def make_proof(cluster: str, token_sha256: str) -> IdentityProof:
    """Make this instance's proof with a token from its metadata. Raises OSError."""
    return request_identity(cluster, token_sha256, open_metadata())


def start_notices() -> GceNotices:
    """Start to wait for notices in the instance's metadata."""
    seconds = int(os.environ.get(NOTICE_VARIABLE) or PREEMPTION_SECONDS)
    return GceNotices(open_metadata(), seconds).start()
