"""AWS's signature, version 4, by the keys of an instance's role, and the fetch of a file by it. Any
Python 3 does both.
"""

import datetime
import hashlib
import hmac
import json
import os
import pathlib
import time
import urllib.parse
import urllib.request

ENDPOINT = "http://169.254.169.254"
SECONDS_MAX = 30


def fetch(path, url, attempts, pause_seconds, make_request):
    """Write what a request is answered with to a file, and return the exit status. It is made and
    sent again while nobody answers, or does not know the role or the instance yet.
    """
    for attempt in range(1, attempts + 1):
        try:
            with urllib.request.urlopen(make_request(), timeout=SECONDS_MAX) as answer:
                content = answer.read()
            break
        except OSError as error:
            print(f"the agent's code could not be fetched from {url}: {error}")
            if attempt == attempts:
                return 1
            time.sleep(pause_seconds)
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


def sign(method, url, region, service, headers, content=b""):
    """Return the headers of a request to a service of AWS, signed now."""
    keys, content_digest = read_keys(), hashlib.sha256(content).hexdigest()
    place = urllib.parse.urlsplit(url)
    now = datetime.datetime.now(datetime.UTC)
    moment, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    signed = {
        **headers,
        "host": place.netloc,
        "x-amz-date": moment,
        "x-amz-security-token": keys["Token"],
    }
    lines = ["{}:{}".format(*item) for item in sorted(signed.items())]
    names = ";".join(sorted(signed))
    request = "\n".join([method, place.path, place.query, *lines, "", names, content_digest])
    scope = "/".join([day, region, service, "aws4_request"])
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
