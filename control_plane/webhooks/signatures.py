"""The signatures of requests, by which receivers know that a request is from this cluster.

The headers `webhook-*` follow Standard Webhooks. The headers `X-Determined-AI-*` are those of
Determined, for receivers that were written for Determined.
"""

import base64
import hmac
import secrets
from collections.abc import Mapping

SECRET_PREFIX = "whsec_"
_SECRET_BYTES = 32


def new_secret() -> str:
    """Return a new random key of signatures, as text for receivers."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def signature_headers(secret: str, event_id: str, seconds: int, body: bytes) -> Mapping[str, str]:
    """Return the headers with the id, the time and the signatures of a request.

    Standard Webhooks signs `id.time.body` with the decoded key. Determined signs `time,body` with
    the text of the key.

    Args:
        secret: the key, as `new_secret` returns keys.
        event_id: the id of the event.
        seconds: the time of the attempt, in epoch seconds.
        body: the body of the request.
    """
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = f"{event_id}.{seconds}.".encode() + body
    signature = base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    former = hmac.digest(secret.encode(), f"{seconds},".encode() + body, "sha256").hex()
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": f"v1,{signature}",
        "X-Determined-AI-Signature-Timestamp": str(seconds),
        "X-Determined-AI-Signature": former,
    }
