"""URLs signed by a machine's service account, with a token of sufficient scopes."""

import base64
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from detcloud.shared.gcs import GcsBucket
from tests.emulators.gcs_signatures import Response

EMAIL = "api@team.iam.gserviceaccount.com"
STORAGE = "https://www.googleapis.com/auth/devstorage.read_write"
# signBlob requires at least a single scope of these.
SIGNING = {
    "https://www.googleapis.com/auth/iam",
    "https://www.googleapis.com/auth/cloud-platform",
}


class CloudRun:
    """Cloud Run's metadata server, which issues tokens of requested scopes, and a signing service.

    The signing service refuses tokens without a scope of SIGNING. `signed` counts signatures.
    """

    def __init__(self) -> None:
        self.signed = 0

    def __call__(self, url: str, method: str = "GET", **more: Any) -> Response:
        parts = urlsplit(url)
        if parts.path.endswith(":signBlob"):
            scopes = set(more["headers"]["authorization"].removeprefix("Bearer ").split(","))
            if not scopes & SIGNING:
                return Response(403, b'{"error": {"status": "PERMISSION_DENIED"}}')
            self.signed += 1
            return _json({"keyId": "1", "signedBlob": base64.b64encode(b"signature").decode()})
        if parts.path.endswith("/token"):
            (scopes_text,) = parse_qs(parts.query).get("scopes", ["none"])
            return _json({"access_token": scopes_text, "expires_in": 3600, "token_type": "Bearer"})
        return _json({"email": EMAIL, "aliases": ["default"], "scopes": [STORAGE]})


def _json(content: object) -> Response:
    return Response(200, json.dumps(content).encode(), {"content-type": "application/json"})


@pytest.mark.parametrize("scopes", [(STORAGE,), None])
def test_machine_with_storage_scopes_signs_urls(
    scopes: tuple[str, ...] | None,
) -> None:
    from google.auth.compute_engine import Credentials

    cloud_run = CloudRun()
    # With None the storage client requests its own scopes.
    credentials = Credentials(scopes=scopes, universe_domain="googleapis.com")
    bucket = GcsBucket("objects", credentials=credentials, auth_request=cloud_run)
    url = urlsplit(bucket.signed_get_url("model-code/a", 60))
    query = parse_qs(url.query)
    assert query["X-Goog-Signature"] == [b"signature".hex()]
    assert query["X-Goog-Credential"][0].startswith(f"{EMAIL}/")
    assert cloud_run.signed == 1
