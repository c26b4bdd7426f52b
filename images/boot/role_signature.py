"""AWS's signature, version 4, with the keys of an instance's role, and the download of a file.

The module needs only Python 3.8 and the standard library, because the boot script installs a
newer Python later.
"""

import hashlib
import hmac
import json
import os
import pathlib
import time
import urllib.parse
import urllib.request
from http.client import HTTPException

ENDPOINT = "http://169.254.169.254"
SECONDS_MAX = 30
# A proxy would return the metadata of its own machine.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
KEY_NAMES = "AccessKeyId", "SecretAccessKey", "Token"


def fetch(path, url, attempts, pause_seconds, make_request):
    """Write the answer of a request to the file `path`, and replace any former content.

    Return 0, or 1 after `attempts` (1 or more) failed attempts, which leave the file unchanged.
    Each attempt sends a new request of `make_request`. An OSError of the request or of
    `make_request`, such as an error status or a truncated answer, is printed to stdout and retried
    after `pause_seconds`: AWS may not know the new role yet, or the cluster the new instance. `url`
    is for messages only. Raises OSError if the file cannot be written, and passes on any other
    error at once.
    """
    for attempt in range(1, attempts + 1):
        try:
            content = read(make_request())
            break
        except OSError as error:
            print(f"the agent's code could not be fetched from {url}: {error}")
            if attempt == attempts:
                return 1
            time.sleep(pause_seconds)
    pathlib.Path(path).write_bytes(content)
    return 0


def read_keys():
    """Return the keys of the instance's role: `AccessKeyId`, `SecretAccessKey` and `Token`.

    The result has all fields of the answer of the instance's metadata service, which is asked at
    each call. AWS_EC2_METADATA_SERVICE_ENDPOINT replaces the service's address. Raises OSError if
    the service fails, the instance has no role, or the answer has no keys of the role.
    """
    endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or ENDPOINT
    place = endpoint.rstrip("/") + "/latest/"
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
    request = urllib.request.Request(place + "api/token", headers=ttl, method="PUT")
    token = read(request, DIRECT.open).decode()
    headers = {"X-aws-ec2-metadata-token": token}
    roles = place + "meta-data/iam/security-credentials/"
    names = read(urllib.request.Request(roles, headers=headers), DIRECT.open).decode().split()
    if not names:
        raise OSError("the instance has no role")
    request = urllib.request.Request(roles + names[0], headers=headers)
    return parse_keys(names[0], read(request, DIRECT.open))


def parse_keys(role, text):
    """Return the keys of `role`: all fields of the metadata service's answer, a JSON object.

    Raises OSError with the service's reason if any of KEY_NAMES is missing, and for any other text.
    """
    try:
        keys = json.loads(text)
    except ValueError:
        keys = None
    if not isinstance(keys, dict):
        raise OSError(f"no keys of role {role}: the answer is no JSON object")
    if not all(keys.get(name) for name in KEY_NAMES):
        raise OSError(f"no keys of role {role}: {keys.get('Code')}: {keys.get('Message')}")
    return keys


def read(request, send=urllib.request.urlopen):
    """Send a request once, follow redirects, and return the content of the whole answer, as bytes.

    `send` opens the request; by default through the proxy that the environment names, if any.
    Raises OSError after SECONDS_MAX without data from the server, and also for an error status and
    for a truncated or unreadable answer. A slow answer may take longer in total.
    """
    try:
        with send(request, timeout=SECONDS_MAX) as answer:
            return answer.read()
    except HTTPException as error:
        raise OSError(repr(error)) from error


def sign(method, url, region, service, headers, content=b""):
    """Return the headers of a request to an AWS service, with a new signature of the role's keys.

    The result contains `headers`, x-amz-date, x-amz-security-token and Authorization. `host` is
    signed and not contained, since the HTTP client adds it. The request itself is not sent. The
    caller must send `url`, the headers and the body `content` unchanged. The keys are read from the
    instance's metadata service at each call. Raises OSError if no keys are available (`read_keys`).

    AWS refuses the signature unless the path of `url` is present (at least "/") and URL-encoded.
    The query must be sorted, and the names in `headers` must be in lower case.
    """
    keys, content_digest = read_keys(), hashlib.sha256(content).hexdigest()
    place = urllib.parse.urlsplit(url)
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    day = moment[:8]
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
