"""The request to AWS's token service by which an EC2 instance proves its identity.

The instance signs the request, and the cluster sends the request with the signature.
"""

REQUEST_BODY = b"Action=GetCallerIdentity&Version=2011-06-15"
CONTENT_TYPE = "application/x-www-form-urlencoded; charset=utf-8"
CLUSTER_HEADER = "x-detcloud-cluster"
TOKEN_HEADER = "x-detcloud-token"
