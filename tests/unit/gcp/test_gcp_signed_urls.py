"""URLs that a machine's service account has signed, by a token of the scopes that this takes."""

import base64
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from detcloud.shared.gcs import GcsBucket
from tests.emulators.gcs_signatures import Response

EMAIL = "api@team.iam.gserviceaccount.com"
STORAGE = "https://www.googleapis.com/auth/devstorage.read_write"
# The two of which signBlob asks for one.
SIGNING = {
    "https://www.googleapis.com/auth/iam",
    "https://www.googleapis.com/auth/cloud-platform",
}


class CloudRun:
    """The metadata server of Cloud Run, whose tokens have the scopes that were asked for, and the
    service that signs, which takes those of enough of them.
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
def test_a_machine_whose_tokens_are_for_storage_alone_has_urls_signed(
    scopes: tuple[str, ...] | None,
) -> None:
    from google.auth.compute_engine import Credentials

    cloud_run = CloudRun()
    # None: the storage client asks for scopes of storage itself.
    credentials = Credentials(scopes=scopes, universe_domain="googleapis.com")
    bucket = GcsBucket("objects", credentials=credentials, auth_request=cloud_run)
    url = urlsplit(bucket.signed_get_url("model-code/a", 60))
    query = parse_qs(url.query)
    assert query["X-Goog-Signature"] == [b"signature".hex()]
    assert query["X-Goog-Credential"][0].startswith(f"{EMAIL}/")
    assert cloud_run.signed == 1
