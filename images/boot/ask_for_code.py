"""`python3 fetch_code.py URL CLUSTER POOL SHA256 REGION FILE`: asks the cluster, whose bucket is in
another cloud, for an instance's code by a proof of who the instance is.
"""

import json
import os
import sys
import urllib.request

from role_signature import fetch, sign

# The cluster may hear of this machine no earlier than by the next minute's tick.
ATTEMPTS, PAUSE_SECONDS = 24, 5
# As of detcloud/shared/aws_identity.py and identity_purposes.py.
IDENTITY = b"Action=GetCallerIdentity&Version=2011-06-15"
FORM = "application/x-www-form-urlencoded; charset=utf-8"
PURPOSE = "agent-code"


def main():
    """Fetch the file; return the exit status."""
    url, cluster, pool, digest, region, path = sys.argv[1:]

    def make_request():
        body = json.dumps(prove(region, cluster, pool, digest)).encode()
        kind = {"Content-Type": "application/json"}
        return urllib.request.Request(url, body, kind, method="POST")

    return fetch(path, url, ATTEMPTS, PAUSE_SECONDS, make_request)


def prove(region, cluster, pool, digest):
    """Return the body that asks for code with this digest. The cluster has AWS's token service say
    who signed what is in it, and redirects to the bucket.
    """
    service = os.environ.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.amazonaws.com"
    headers = {
        "content-type": FORM,
        "x-detcloud-cluster": f"{cluster}/{PURPOSE}",
        "x-detcloud-token": digest,
    }
    signed = sign("POST", f"{service}/", region, "sts", headers, IDENTITY)
    return {
        "resource_pool": pool,
        "sha256": digest,
        "authorization": signed["Authorization"],
        "date": signed["x-amz-date"],
        "security_token": signed["x-amz-security-token"],
    }


if __name__ == "__main__":
    sys.exit(main())
