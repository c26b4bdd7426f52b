"""`python3 fetch_code.py URL CLUSTER POOL SHA256 REGION FILE`: fetch the agent's code from a
cluster in another cloud, with a proof of the instance's identity.

The boot script stores this file as fetch_code.py.
"""

import json
import os
import sys
import urllib.request

from role_signature import fetch, sign

# The cluster may know this machine only after the next tick, a minute later.
ATTEMPTS, PAUSE_SECONDS = 24, 5
# Equal to the constants in detcloud/shared/aws_identity.py and identity_purposes.py.
IDENTITY = b"Action=GetCallerIdentity&Version=2011-06-15"
FORM = "application/x-www-form-urlencoded; charset=utf-8"
PURPOSE = "agent-code"


def main():
    """Ask the cluster's API for the agent's code, and write the code to the file FILE.

    The arguments of the command line are URL, CLUSTER, POOL, SHA256, REGION and FILE. Each attempt
    posts a new proof of the instance's role (`prove`) to URL and follows the redirect to the code.
    Return 0, or 1 after ATTEMPTS failed attempts, PAUSE_SECONDS apart, which leave FILE unchanged.
    Each failure is printed. The code's digest is not checked here. Raises ValueError for another
    number of arguments, and OSError if the file cannot be written.
    """
    url, cluster, pool, digest, region, path = sys.argv[1:]

    def make_request():
        body = json.dumps(prove(region, cluster, pool, digest)).encode()
        kind = {"Content-Type": "application/json"}
        return urllib.request.Request(url, body, kind, method="POST")

    return fetch(path, url, ATTEMPTS, PAUSE_SECONDS, make_request)


def prove(region, cluster, pool, digest):
    """Return the body, a dict for JSON, of a request for the code with the SHA-256 `digest`.

    The dict names the pool and the digest. The dict also contains the signature, the date and the
    security token of a request to AWS's token service (GetCallerIdentity). The cluster, not this
    function, sends that request to learn the signing role, and then redirects to the code in its
    bucket. The signature covers `cluster`, the digest and the purpose: no other cluster accepts the
    proof, and no other request of an instance.
    AWS_ENDPOINT_URL_STS replaces the address of the token service in the signature. The keys are
    read from the instance's metadata service. Raises OSError if no keys are available.
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
