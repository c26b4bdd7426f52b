"""The agent's journal in CloudWatch: `python -m detcloud.agent.aws.journal --group G --stream S`.

Lines of the agent's unit, tracebacks included, go to the group in batches. A cursor in a file says
how far they were taken, so that a machine which starts again neither repeats nor leaves out any.
What CloudWatch does not take is sent again; the journal keeps it meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.agent.aws.instance_identity import (
    read_metadata,
    role_credentials,
    signed_headers,
)
from detcloud.agent.aws.metadata import ENDPOINT, Ec2Metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from detcloud.agent.aws.metadata import InstanceMetadata

UNIT = "detcloud-agent"
GATHER_SECONDS = 5.0
RETRY_SECONDS = 30.0
ANSWER_SECONDS = 20.0
# Of a call: 10,000 events of 1 MiB together, 26 bytes of each being CloudWatch's own.
EVENTS_MAX = 1_000
BATCH_BYTES_MAX = 900_000
LINE_BYTES_MAX = 16_384
LINE_OVERHEAD_BYTES = 26
_CONTENT_TYPE = "application/x-amz-json-1.1"


@dataclass(frozen=True)
class JournalLine:
    """A line of the journal, of `time_ms`; the journal goes on behind it from `cursor`."""

    text: str
    time_ms: int
    cursor: str


class LogRefused(Exception):
    """CloudWatch refused a call, by the name of its error."""


class LogStream:
    """A stream of a group in CloudWatch, which is made when it is not there."""

    def __init__(self, group: str, stream: str, metadata: InstanceMetadata) -> None:
        self._group = group
        self._metadata = metadata
        self._stream = stream or read_metadata(metadata, "latest/meta-data/instance-id")

    def write(self, lines: Sequence[JournalLine]) -> None:
        """Write lines. Raises LogRefused, OSError."""
        events = [{"timestamp": it.time_ms, "message": it.text} for it in lines]
        # CloudWatch wants them in the order of their times.
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
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise LogRefused(_error_name(error.read())) from None


def parse_line(text: str) -> JournalLine | None:
    """Parse a line of `journalctl --output json`; None for one without a message that is text."""
    try:
        fields = json.loads(text)
        message = fields["MESSAGE"]
        time_ms = int(fields["__REALTIME_TIMESTAMP"]) // 1000
        cursor = str(fields["__CURSOR"])
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(message, str) or not message.strip():
        return None
    shown = message.encode()[:LINE_BYTES_MAX].decode(errors="ignore")
    return JournalLine(shown, time_ms, cursor)


def take_batch(waiting: list[JournalLine]) -> list[JournalLine]:
    """Return as many of the first lines as one call takes."""
    batch: list[JournalLine] = []
    size = 0
    for line in waiting:
        size += len(line.text.encode()) + LINE_OVERHEAD_BYTES
        if batch and (size > BATCH_BYTES_MAX or len(batch) >= EVENTS_MAX):
            break
        batch.append(line)
    return batch


def ship(
    lines: Iterable[list[JournalLine]],
    write: Callable[[Sequence[JournalLine]], None],
    cursor: Path,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Write what is gathered, again until it is taken, and then its cursor."""
    for waiting in lines:
        while batch := take_batch(waiting):
            try:
                write(batch)
            except (LogRefused, OSError) as error:
                print(f"the journal was not taken, trying again: {error}", file=sys.stderr)
                sleep(RETRY_SECONDS)
                continue
            del waiting[: len(batch)]
            cursor.write_text(batch[-1].cursor, encoding="ascii")


def follow_journal(cursor: Path) -> Iterable[list[JournalLine]]:
    """Yield what the journal has gathered in each GATHER_SECONDS, from the cursor on."""
    known = cursor.read_text(encoding="ascii").strip() if cursor.exists() else ""
    since = [f"--after-cursor={known}"] if known else ["--boot"]
    words = ["journalctl", "--follow", "--no-tail", "--output=json", f"--unit={UNIT}", *since]
    found: queue.Queue[str | None] = queue.Queue(maxsize=10 * EVENTS_MAX)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as journal:
        assert journal.stdout is not None
        output = journal.stdout

        def read() -> None:
            for line in output:
                found.put(line)
            found.put(None)

        threading.Thread(target=read, name="journal", daemon=True).start()
        while True:
            texts = [found.get()]
            time.sleep(GATHER_SECONDS)
            while len(texts) < EVENTS_MAX and not found.empty():
                texts.append(found.get())
            parsed = [parse_line(it) for it in texts if it is not None]
            yield [it for it in parsed if it is not None]
            if None in texts:
                return


def _error_name(body: bytes) -> str:
    try:
        return str(json.loads(body)["__type"]).rpartition("#")[2]
    except (ValueError, KeyError, TypeError):
        return "an answer that is no error of CloudWatch's"


def main() -> int:
    """Follow the journal until it ends, which systemd starts anew."""
    parser = argparse.ArgumentParser(prog="detcloud.agent.aws.journal", description=__doc__)
    parser.add_argument("--group", required=True, help="the group, which is there")
    parser.add_argument("--stream", default="", help="the stream (default: the instance's id)")
    parser.add_argument("--cursor", type=Path, required=True, help="where its cursor is kept")
    options = parser.parse_args()
    endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or ENDPOINT
    stream = LogStream(options.group, options.stream, Ec2Metadata(endpoint))
    ship(follow_journal(options.cursor), stream.write, options.cursor)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
