"""`python3 fetch_code.py URL CLUSTER POOL SHA256 REGION FILE`: asks the cluster, whose bucket is in
another cloud, for an instance's code by a proof of who the instance is.
"""

import json
import os
import pathlib
import sys
import time
import urllib.request

from role_signature import SECONDS_MAX, sign

# The cluster may hear of this machine no earlier than by the next minute's tick.
ATTEMPTS, PAUSE_SECONDS = 24, 5
# As of detcloud/shared/aws_identity.py and identity_purposes.py.
IDENTITY = b"Action=GetCallerIdentity&Version=2011-06-15"
FORM = "application/x-www-form-urlencoded; charset=utf-8"
PURPOSE = "agent-code"


def main():
    """Fetch the file, again while nobody answers, or does not know the role or the instance yet."""
    url, cluster, pool, digest, region, path = sys.argv[1:]
    for attempt in range(1, ATTEMPTS + 1):
        try:
            body = json.dumps(prove(region, cluster, pool, digest)).encode()
            kind = {"Content-Type": "application/json"}
            request = urllib.request.Request(url, body, kind, method="POST")
            with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
                content = answer.read()
            break
        except OSError as error:
            print(f"the agent's code could not be had from {url}: {error}")
            if attempt == ATTEMPTS:
                return 1
            time.sleep(PAUSE_SECONDS)
    pathlib.Path(path).write_bytes(content)
    return 0


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
