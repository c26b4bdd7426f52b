"""The check that a request passed through the CloudFront distribution in front of the API."""

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

# Equal to the constant in infra/aws/front.py.
ORIGIN_HEADER = "x-detcloud-origin"
_TEXT = "use the cluster's own address, which `detcloud deploy` printed"
REFUSAL = {
    "statusCode": 403,
    "headers": {"content-type": "application/json"},
    "body": json.dumps({"error": {"code": "forbidden", "message": _TEXT, "details": []}}),
}


def comes_through_distribution(event: Mapping[str, Any], secret_sha256: str) -> bool:
    """Return whether a request of API Gateway carries the secret that the distribution adds.

    Always return True if `secret_sha256` is "", for a cluster without a distribution.

    Args:
        event: the event of API Gateway. The secret is in the header ORIGIN_HEADER.
        secret_sha256: the SHA-256 of the secret in hexadecimal.
    """
    if not secret_sha256:
        return True
    shown = str(event.get("headers", {}).get(ORIGIN_HEADER, ""))
    return hmac.compare_digest(hashlib.sha256(shown.encode()).hexdigest(), secret_sha256)
