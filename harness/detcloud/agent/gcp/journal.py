"""The agent's journal in Cloud Logging: `python -m detcloud.agent.gcp.journal --cursor FILE`.

Lines go to the log `detcloud-agent` of the instance's project, with the instance as the resource.
The instance's service account must be allowed to write logs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.agent.gcp.metadata import open_metadata
from detcloud.agent.journal import UNIT, JournalLine, follow_journal, send_request, ship

if TYPE_CHECKING:
    from collections.abc import Sequence

    from detcloud.agent.gcp.metadata import GceMetadata

ENDPOINT = "https://logging.googleapis.com"
ENDPOINT_VARIABLE = "DETCLOUD_LOGGING_ENDPOINT"
TOKEN_PATH = "instance/service-accounts/default/token"


class CloudLog:
    """The instance's log in Cloud Logging, written through the API at `endpoint`."""

    def __init__(self, metadata: GceMetadata, endpoint: str = ENDPOINT) -> None:
        self._metadata = metadata
        self._url = f"{endpoint}/v2/entries:write"

    def write(self, lines: Sequence[JournalLine]) -> None:
        """Write lines to the log in a single call.

        Raise LogRefused if Cloud Logging refuses the call. Raise OSError if the metadata or Cloud
        Logging cannot be reached.
        """
        read = self._metadata.require
        project = read("project/project-id")
        labels = {
            "project_id": project,
            "instance_id": read("instance/id"),
            "zone": read("instance/zone").rpartition("/")[2],
        }
        body = {
            "logName": f"projects/{project}/logs/{UNIT}",
            "resource": {"type": "gce_instance", "labels": labels},
            "labels": {"instance_name": read("instance/name")},
            "entries": [_entry(line) for line in lines],
        }
        # The metadata server caches the token, so that a request for each call is cheap.
        token = _access_token(read(TOKEN_PATH))
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        request = urllib.request.Request(self._url, json.dumps(body).encode(), headers)
        send_request(request, _error_name)


def _access_token(text: str) -> str:
    """Return the access token in an answer of the metadata server. Raise OSError without a token.

    The error does not repeat the answer, which may contain a secret.
    """
    try:
        token = json.loads(text)["access_token"]
    except (ValueError, KeyError, TypeError):
        token = None
    if not isinstance(token, str):
        raise OSError(f"this machine's metadata have no usable token at {TOKEN_PATH}")
    return token


def _entry(line: JournalLine) -> dict[str, Any]:
    """Return the log entry of a line.

    The id is a digest of the line's cursor, so that Cloud Logging shows a repeated entry once.
    """
    moment = datetime.fromtimestamp(line.time_ms / 1000, UTC)
    return {
        "timestamp": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "insertId": hashlib.sha256(line.cursor.encode()).hexdigest()[:32],
        "textPayload": line.text,
    }


def _error_name(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["status"])
    except (ValueError, KeyError, TypeError):
        return "an unknown response from Cloud Logging"


def main() -> int:
    """Ship journal lines to Cloud Logging until `journalctl` ends, then return 1.

    The exit code makes systemd restart the process.
    """
    parser = argparse.ArgumentParser(prog="detcloud.agent.gcp.journal", description=__doc__)
    parser.add_argument(
        "--cursor", type=Path, required=True, help="the file that stores the cursor"
    )
    options = parser.parse_args()
    log = CloudLog(open_metadata(), os.environ.get(ENDPOINT_VARIABLE) or ENDPOINT)
    ship(follow_journal(options.cursor), log.write, options.cursor)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
