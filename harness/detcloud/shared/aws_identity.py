"""The request to AWS's token service by which an instance of EC2 proves who it is.

The instance signs it, and the cluster sends it with that signature.
"""

REQUEST_BODY = b"Action=GetCallerIdentity&Version=2011-06-15"
CONTENT_TYPE = "application/x-www-form-urlencoded; charset=utf-8"
CLUSTER_HEADER = "x-detcloud-cluster"
TOKEN_HEADER = "x-detcloud-token"
BOOT_REPORT = "boot-report"
"""What the digest of a proof is of that is no token's: see `signed_cluster`."""


def signed_cluster(cluster: str, purpose: str = "") -> str:
    """The cluster as the signed request names it. A proof for one purpose is of no use for another
    one; that of a join token has none.
    """
    return f"{cluster}/{purpose}" if purpose else cluster
