"""The agent's journal on its way to a cloud's logs, in batches.

Lines of the agent's unit, tracebacks included, go there in their order. A cursor in a file says how
far they were taken, so that a machine which starts again neither repeats nor leaves out any. What a
cloud does not take is sent again; the journal keeps it meanwhile.
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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

UNIT = "detcloud-agent"
GATHER_SECONDS = 5.0
RETRY_SECONDS = 30.0
# Of a call to CloudWatch: 10,000 events of 1 MiB together, 26 bytes of each being its own. Cloud
# Logging takes more.
EVENTS_MAX = 1_000
BATCH_BYTES_MAX = 900_000
LINE_BYTES_MAX = 16_384
LINE_OVERHEAD_BYTES = 26
ANSWER_SECONDS = 20.0


@dataclass(frozen=True)
class JournalLine:
    """A line of the journal, of `time_ms`; the journal goes on behind it from `cursor`."""

    text: str
    time_ms: int
    cursor: str


class LogRefused(Exception):
    """A cloud refused a call, by the name of its error."""


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


def first_batch(waiting: list[JournalLine]) -> list[JournalLine]:
    """Return the first lines, as many as one call can carry."""
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
    """Write each batch of lines until the cloud accepts it, and then store its cursor."""
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

    Raises LogRefused, with the name that `read_error_name` finds in the answer, and OSError.
    """
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        with error:
            raise LogRefused(read_error_name(error.read())) from None


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
            parsed = [parse_line(text) for text in texts if text is not None]
            yield [journal_line for journal_line in parsed if journal_line is not None]
            if None in texts:
                return
