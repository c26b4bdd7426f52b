"""`python3 fetch_code.py URL REGION FILE`: fetches an instance's code from the cluster's bucket,
signed with the keys of the instance's role. Any Python 3 does, since the machine's own runs it.
"""

import datetime
import hashlib
import hmac
import json
import os
import pathlib
import sys
import time
import urllib.parse
import urllib.request

ENDPOINT = "http://169.254.169.254"
ATTEMPTS = 10
SECONDS_MAX = 30
EMPTY = hashlib.sha256(b"").hexdigest()


def main():
    """Fetch the file, again while S3 or the metadata do not answer or do not know the role yet."""
    url, region, path = sys.argv[1:]
    for attempt in range(1, ATTEMPTS + 1):
        try:
            request = urllib.request.Request(url, headers=sign(url, region, read_keys()))
            with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
                content = answer.read()
            break
        except OSError as error:
            print(f"the agent's code could not be fetched from {url}: {error}")
            if attempt == ATTEMPTS:
                return 1
            time.sleep(3)
    pathlib.Path(path).write_bytes(content)
    return 0


def read_keys():
    """Return the keys of the instance's role, of its metadata."""
    endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or ENDPOINT
    place = endpoint.rstrip("/") + "/latest/"
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
    token = read(urllib.request.Request(place + "api/token", headers=ttl, method="PUT"))
    headers = {"X-aws-ec2-metadata-token": token}
    roles = place + "meta-data/iam/security-credentials/"
    role = read(urllib.request.Request(roles, headers=headers)).split()[0]
    return json.loads(read(urllib.request.Request(roles + role, headers=headers)))


def read(request):
    """Return the text of an answer."""
    with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
        return answer.read().decode()


def sign(url, region, keys):
    """Return the headers of a GET that is signed as S3 wants it (AWS's signature, version 4)."""
    place = urllib.parse.urlsplit(url)
    now = datetime.datetime.now(datetime.UTC)
    moment, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    signed = {
        "host": place.netloc,
        "x-amz-content-sha256": EMPTY,
        "x-amz-date": moment,
        "x-amz-security-token": keys["Token"],
    }
    lines = ["{}:{}".format(*it) for it in sorted(signed.items())]
    names = ";".join(sorted(signed))
    request = "\n".join(["GET", place.path, place.query, *lines, "", names, EMPTY])
    scope = "/".join([day, region, "s3", "aws4_request"])
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = ("AWS4" + keys["SecretAccessKey"]).encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), "sha256").digest()
    text = "\n".join(["AWS4-HMAC-SHA256", moment, scope, digest])
    signature = hmac.new(key, text.encode(), "sha256").hexdigest()
    credential = "{}/{}".format(keys["AccessKeyId"], scope)
    del signed["host"]
    signed["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
    )
    return signed


if __name__ == "__main__":
    sys.exit(main())
