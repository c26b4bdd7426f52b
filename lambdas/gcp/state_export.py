"""Exports of the state database into a bucket of another region, which the tick starts on demand.

An export without a time is not consistent: Firestore may include a row and leave out another row of
the same commit. An export of a whole minute is consistent, from the point-in-time recovery.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import urllib3

ROOT = "https://firestore.googleapis.com/v1"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
# The header of a call that asks the tick for an export.
EXPORT_HEADER = "x-detcloud-export"
SECONDS_MAX = 30.0

Post = Callable[[str, dict[str, Any]], None]
"""Sends a JSON object to a URL. Raises ExportFailed if the call is refused or not answered."""


class ExportFailed(Exception):
    """Google did not start an export."""


def start_export(database: str, bucket: str, now_ms: int, post: Post) -> str:
    """Start the export of the database's state of the last whole minute; return the export's URL.

    `database` is projects/PROJECT/databases/DATABASE. The export gets a folder of its own in the
    bucket. Firestore writes the export within minutes after this call. Raises ExportFailed if
    Google refuses.
    """
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    # A minute is complete when the next one begins; the clocks of Google and this machine differ.
    minute = now.replace(second=0, microsecond=0) - timedelta(minutes=1)
    folder = f"gs://{bucket}/{now:%Y%m%dT%H%M%S}Z"
    body = {"outputUriPrefix": folder, "snapshotTime": f"{minute:%Y-%m-%dT%H:%M:%SZ}"}
    post(f"{ROOT}/{database}:exportDocuments", body)
    return folder


def post_as_function(url: str, body: dict[str, Any]) -> None:
    """Send a JSON object with the credentials of the running function.

    Raises ExportFailed if the credentials are missing, no answer arrives or Google refuses.
    """
    import google.auth
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.urllib3 import Request

    # A repeated call would start a second export.
    pool = urllib3.PoolManager(retries=False, timeout=SECONDS_MAX)
    headers = {"Content-Type": "application/json"}
    try:
        credentials, _ = google.auth.default(scopes=(SCOPE,))
        credentials.before_request(Request(pool), "POST", url, headers)
        answer = pool.request("POST", url, body=json.dumps(body).encode(), headers=headers)
    except (GoogleAuthError, urllib3.exceptions.HTTPError) as error:
        raise ExportFailed(f"{url} was not called: {error}") from None
    if answer.status != 200:
        text = answer.data[:500].decode(errors="replace")
        raise ExportFailed(f"{url} answered {answer.status}: {text}")
