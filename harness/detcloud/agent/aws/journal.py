"""The agent's journal in CloudWatch: `python -m detcloud.agent.aws.journal --group GROUP`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.agent.aws.instance_identity import (
    read_metadata,
    role_credentials,
    signed_headers,
)
from detcloud.agent.aws.metadata import ENDPOINT, Ec2Metadata
from detcloud.agent.journal import JournalLine, LogRefused, follow_journal, send_request, ship

if TYPE_CHECKING:
    from collections.abc import Sequence

    from detcloud.agent.aws.metadata import InstanceMetadata

_CONTENT_TYPE = "application/x-amz-json-1.1"


class LogStream:
    """A stream of a CloudWatch log group. The first `write` creates a missing stream.

    `group` must exist. `stream` is the stream's name. An empty name means the instance's id, which
    the constructor reads from the metadata. Raise OSError if the id cannot be read.
    """

    def __init__(self, group: str, stream: str, metadata: InstanceMetadata) -> None:
        self._group = group
        self._metadata = metadata
        self._stream = stream or read_metadata(metadata, "latest/meta-data/instance-id")

    def write(self, lines: Sequence[JournalLine]) -> None:
        """Write lines to the stream in a single call, and create a missing stream.

        Raise LogRefused if CloudWatch refuses the call. Raise OSError if the metadata or CloudWatch
        cannot be reached.
        """
        events = [{"timestamp": line.time_ms, "message": line.text} for line in lines]
        # CloudWatch accepts a batch only in chronological order.
        events.sort(key=lambda event: int(str(event["timestamp"])))
        try:
            self._call("PutLogEvents", logEvents=events)
        except LogRefused as refused:
            if str(refused) != "ResourceNotFoundException":
                raise
            with contextlib.suppress(LogRefused):
                self._call("CreateLogStream")
            self._call("PutLogEvents", logEvents=events)

    def _call(self, operation: str, **fields: Any) -> None:
        region = read_metadata(self._metadata, "latest/meta-data/placement/region")
        url = os.environ.get("AWS_ENDPOINT_URL_LOGS") or f"https://logs.{region}.amazonaws.com"
        body = json.dumps(
            {"logGroupName": self._group, "logStreamName": self._stream, **fields}
        ).encode()
        own = {"content-type": _CONTENT_TYPE, "x-amz-target": f"Logs_20140328.{operation}"}
        keys = role_credentials(self._metadata)
        headers = signed_headers(own, url, body, keys, region, "logs")
        request = urllib.request.Request(f"{url}/", body, headers)
        send_request(request, _error_name)


def _error_name(body: bytes) -> str:
    try:
        return str(json.loads(body)["__type"]).rpartition("#")[2]
    except (ValueError, KeyError, TypeError):
        return "an unknown response from CloudWatch"


def main() -> int:
    """Ship journal lines to CloudWatch until `journalctl` ends, then return 1.

    The exit code makes systemd restart the process.
    """
    parser = argparse.ArgumentParser(prog="detcloud.agent.aws.journal", description=__doc__)
    parser.add_argument("--group", required=True, help="the existing log group")
    parser.add_argument("--stream", default="", help="the stream (default: the instance's id)")
    parser.add_argument(
        "--cursor", type=Path, required=True, help="the file that stores the cursor"
    )
    options = parser.parse_args()
    endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or ENDPOINT
    stream = LogStream(options.group, options.stream, Ec2Metadata(endpoint))
    ship(follow_journal(options.cursor), stream.write, options.cursor)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
