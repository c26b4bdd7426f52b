"""The shipping of the agent's journal to a cloud's logs, in batches.

The lines of the agent's unit, tracebacks included, are sent in order. A file stores the cursor of
the last accepted line, so that a restarted machine continues there. Refused lines are sent again;
the systemd journal keeps them in the meantime.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

UNIT = "detcloud-agent"
GATHER_SECONDS = 5.0
RETRY_SECONDS = 30.0
# A call to CloudWatch takes at most 10,000 events of 1 MiB in total, with an overhead of 26 bytes
# for each event. The limits of Cloud Logging are higher.
EVENTS_MAX = 1_000
BATCH_BYTES_MAX = 900_000
LINE_BYTES_MAX = 16_384
LINE_OVERHEAD_BYTES = 26
ANSWER_SECONDS = 20.0


@dataclass(frozen=True)
class JournalLine:
    """A line of the journal."""

    text: str
    """The message, cut off after LINE_BYTES_MAX bytes."""
    time_ms: int
    """The line's time in milliseconds since the epoch."""
    cursor: str
    """journalctl's position of the line. Reading continues after the cursor."""


class LogRefused(Exception):
    """A cloud's log service refused a call. The message is the name of the service's error."""


def parse_line(text: str) -> JournalLine | None:
    """Parse a line of `journalctl --output json`, and cut off a message after LINE_BYTES_MAX bytes.

    Return None if the line is malformed, or if the message is blank or no text.
    """
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


def first_batch(waiting: list[JournalLine]) -> list[JournalLine]:
    """Return the first waiting lines that fit into a call, at least one line.

    Return an empty list without waiting lines. `waiting` is not changed.
    """
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
    """Write all lines to a cloud in batches, and store the cursor after each accepted batch.

    After a LogRefused or OSError of `write`, print the error, sleep for RETRY_SECONDS and repeat
    the batch, without end. Return when `lines` ends. The yielded lists are emptied.

    Args:
        lines: lists of lines, in order.
        write: sends a batch to the cloud.
        cursor: the file that stores the cursor.
        sleep: pauses for a number of seconds.

    Raises:
        OSError: the cursor cannot be stored.
    """
    for waiting in lines:
        while batch := first_batch(waiting):
            try:
                write(batch)
            except (LogRefused, OSError) as error:
                print(f"the journal was not accepted, trying again: {error}", file=sys.stderr)
                sleep(RETRY_SECONDS)
                continue
            del waiting[: len(batch)]
            cursor.write_text(batch[-1].cursor, encoding="ascii")


def send_request(request: urllib.request.Request, read_error_name: Callable[[bytes], str]) -> None:
    """Send a request with lines to a cloud's logs.

    Raise LogRefused for an error status, with the name that `read_error_name` finds in the answer's
    body. Raise OSError if no readable answer comes within ANSWER_SECONDS.
    """
    try:
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise LogRefused(read_error_name(error.read())) from None
    except HTTPException as error:
        raise OSError(f"the answer cannot be read: {type(error).__name__}") from error


def follow_journal(cursor: Path) -> Iterable[list[JournalLine]]:
    """Yield lists of the agent's journal lines, each gathered for GATHER_SECONDS after a line.

    Start after the cursor in the file `cursor`, which the caller writes. Without a cursor, start at
    the machine's last boot. A list has at most EVENTS_MAX lines. Unusable lines are skipped, so a
    list may be empty. Run `journalctl --follow` as a child process, and end when journalctl ends.
    Raise OSError if journalctl cannot be started or the file cannot be read.
    """
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
            parsed = [parse_line(text) for text in texts if text is not None]
            yield [journal_line for journal_line in parsed if journal_line is not None]
            if None in texts:
                return
