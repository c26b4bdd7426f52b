"""The request to AWS's token service by which an instance of EC2 proves who it is.

The instance signs it, and the cluster sends it with that signature.
"""

REQUEST_BODY = b"Action=GetCallerIdentity&Version=2011-06-15"
CONTENT_TYPE = "application/x-www-form-urlencoded; charset=utf-8"
CLUSTER_HEADER = "x-detcloud-cluster"
TOKEN_HEADER = "x-detcloud-token"
