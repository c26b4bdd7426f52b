"""The check that a request comes by the distribution in front of the API, where there is one."""

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

# As of infra/aws/front.py.
ORIGIN_HEADER = "x-detcloud-origin"
_TEXT = "use the cluster's own address, which `detcloud deploy` printed"
REFUSAL = {
    "statusCode": 403,
    "headers": {"content-type": "application/json"},
    "body": json.dumps({"error": {"code": "forbidden", "message": _TEXT, "details": []}}),
}


def comes_through_distribution(event: Mapping[str, Any], secret_sha256: str) -> bool:
    """Return whether a request of the gateway shows what the distribution alone knows, whose digest
    is `secret_sha256`; "": nobody needs to.
    """
    if not secret_sha256:
        return True
    shown = str(event.get("headers", {}).get(ORIGIN_HEADER, ""))
    return hmac.compare_digest(hashlib.sha256(shown.encode()).hexdigest(), secret_sha256)
