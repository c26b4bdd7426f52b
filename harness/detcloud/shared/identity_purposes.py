"""Purposes of an instance's proof of identity, common to all clouds."""

BOOT_REPORT = "boot-report"
"""What the digest of a proof is of that is no token's: see `proven_cluster`."""

AGENT_CODE = "agent-code"
"""What the digest of a proof is of by which an instance asks for the code of its agent."""


def proven_cluster(cluster: str, purpose: str = "") -> str:
    """The cluster as a proof names it. A proof for one purpose is of no use for another one; that
    of a join token has none.
    """
    return f"{cluster}/{purpose}" if purpose else cluster
