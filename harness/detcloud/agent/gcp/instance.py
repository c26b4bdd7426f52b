"""The `CloudInstance` functions for a Compute Engine instance: proof of identity and notices."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from detcloud.agent.gcp.instance_identity import request_identity
from detcloud.agent.gcp.metadata import open_metadata

if TYPE_CHECKING:
    from detcloud.agent.gcp.end_notices import GceNotices
    from detcloud.agent.identity_proof import IdentityProof

NOTICE_VARIABLE = "DETCLOUD_PREEMPTION_SECONDS"
"""The variable with the seconds from the notice of a preemption to the end of the instance.

The boot script sets it if they differ from `end_notices.PREEMPTION_SECONDS`, because the metadata
do not contain them.
"""


def make_proof(cluster: str, token_sha256: str) -> IdentityProof:
    """Prove this instance's identity with a token from the metadata server.

    `cluster` is the id of the cluster that the proof is for. `token_sha256` is the digest that the
    proof covers. Raise OSError if the metadata server does not answer or issues no token.
    """
    return request_identity(cluster, token_sha256, open_metadata())


def start_notices() -> GceNotices:
    """Start threads that wait for notices in the instance's metadata, and return the source.

    Raise ValueError if NOTICE_VARIABLE is set to something other than a number.
    """
    # Boot reports import this module under a Python that may be too old for the notices.
    from detcloud.agent.gcp.end_notices import PREEMPTION_SECONDS, GceNotices

    seconds = int(os.environ.get(NOTICE_VARIABLE) or PREEMPTION_SECONDS)
    return GceNotices(open_metadata(), seconds).start()
