"""The purposes of an instance's proof of identity, common to all clouds."""

BOOT_REPORT = "boot-report"
"""The purpose of a proof for a boot report. The proof covers the report's digest."""

AGENT_CODE = "agent-code"
"""The purpose of a proof with which an instance requests the code of its agent."""


def proven_cluster(cluster: str, purpose: str = "") -> str:
    """Return how a proof of identity names a cluster: `CLUSTER/PURPOSE`.

    `cluster` is the cluster's id, `purpose` is a constant of this module. A proof is therefore
    invalid for another purpose. The proof of a join token has no purpose, and names the id alone.
    """
    return f"{cluster}/{purpose}" if purpose else cluster
